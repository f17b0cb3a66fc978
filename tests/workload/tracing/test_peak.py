from devkit.workload.tracing.peak import fullest
from devkit.workload.tracing.stream import Allocation, Kind, Phase, Release, Section

LOAD, FIRST, LOSS, BACK = (Section(phase) for phase in (Phase.LOAD, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD))
WEIGHTS = Allocation(LOAD, 0, 4096, Kind.WEIGHTS)
KEPT = Allocation(FIRST, 0, 1024)
BRIEF = Allocation(FIRST, 1, 2048)
LOGITS = Allocation(LOSS, 0, 512)
GRADIENT = Allocation(BACK, 0, 100, Kind.GRADIENTS)
STEP = [
    KEPT,
    BRIEF,
    Release(FIRST, BRIEF.name),
    LOGITS,
    Release(BACK, LOGITS.name),
    GRADIENT,
    Release(BACK, KEPT.name),
    Release(BACK, GRADIENT.name),
]


def test_each_phase_has_its_fullest_moment():
    found = fullest([WEIGHTS], STEP)
    assert {phase: moment.bytes for phase, moment in found.items()} == {
        Phase.FORWARD: 4096 + 1024 + 2048,
        Phase.LOSS: 4096 + 1024 + 512,
        Phase.BACKWARD: 4096 + 1024 + 512,
    }


def test_parts_tell_what_lives_on_from_what_comes_and_goes():
    found = fullest([WEIGHTS], STEP)
    assert found[Phase.FORWARD].parts == {"weights": 4096, "activations": 1024, "temporaries": 2048}
    assert found[Phase.BACKWARD].parts == {"weights": 4096, "activations": 1024, "gradients": 512}


def test_what_loading_gave_back_is_not_there():
    unpacked = Allocation(LOAD, 1, 10**6)
    found = fullest([unpacked, WEIGHTS, Release(LOAD, unpacked.name)], STEP)
    assert found[Phase.LOSS].bytes == 4096 + 1024 + 512
