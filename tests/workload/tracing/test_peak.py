from benchmarks.tracing.stream import Allocation, Deallocation, Section, StepPhase, TensorKind, peak_by_phase

LOAD, FIRST, LOSS, BACK = (
    Section(phase) for phase in (StepPhase.LOAD, StepPhase.FORWARD, StepPhase.LOSS, StepPhase.BACKWARD)
)
WEIGHTS = Allocation(LOAD, 4096, TensorKind.WEIGHTS)
KEPT = Allocation(FIRST, 1024)
BRIEF = Allocation(FIRST, 2048)
LOGITS = Allocation(LOSS, 512)
GRADIENT = Allocation(BACK, 100, TensorKind.GRADIENTS)
STEP = [
    KEPT,
    BRIEF,
    Deallocation(FIRST, BRIEF),
    LOGITS,
    Deallocation(BACK, LOGITS),
    GRADIENT,
    Deallocation(BACK, KEPT),
    Deallocation(BACK, GRADIENT),
]


def test_each_phase_has_its_peak():
    found = peak_by_phase([WEIGHTS], STEP)
    assert {phase: moment.bytes for phase, moment in found.items()} == {
        StepPhase.FORWARD: 4096 + 1024 + 2048,
        StepPhase.LOSS: 4096 + 1024 + 512,
        StepPhase.BACKWARD: 4096 + 1024 + 512,
    }


def test_activations_are_distinguished_from_temporaries():
    found = peak_by_phase([WEIGHTS], STEP)
    assert found[StepPhase.FORWARD].parts == {"weights": 4096, "activations": 1024, "temporaries": 2048}
    assert found[StepPhase.BACKWARD].parts == {"weights": 4096, "activations": 1024, "gradients": 512}


def test_memory_that_loading_freed_is_not_counted():
    unpacked = Allocation(LOAD, 10**6)
    found = peak_by_phase([unpacked, WEIGHTS, Deallocation(LOAD, unpacked)], STEP)
    assert found[StepPhase.LOSS].bytes == 4096 + 1024 + 512
