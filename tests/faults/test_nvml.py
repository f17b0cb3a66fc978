"""Every call of NVML fails with every error, hangs and crashes; the bindings are real, the library is the stand-in."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devkit.facts.gpu import FailedGpu, NvmlAnswer
from devkit.probe.host import ProgramResult, run_program
from tests.faults.damage import Damaged
from tests.faults.examining import broken, examine, examine_anew, unprintable
from tests.faults.test_answers import examine_sound
from tests.faults.test_transcripts import asking
from tests.hosts import machine
from tests.nvml_stub import stub_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a Linux library")

ERRORS = (1, 3, 4, 9, 13, 15, 16, 17, 18, 21, 30, 999)
"""Of nvmlReturn_t those that devkit tells apart, two others, and one that no header names yet."""
SIDE_BY_SIDE = 5
DEADLINE_S = 2.0
MACHINE = "cdi-only-h100x8"


def transcripts(stub, settings):
    """The child's output for each dictionary of settings."""
    lines = "".join(json.dumps(dict(stub_environment(stub, **each))) + "\n" for each in settings)
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).parent / "nvml_transcripts.py")],
        input=lines,
        env={**os.environ, "LD_LIBRARY_PATH": str(stub.parent)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def calls(stub):
    """Every NVML function that the child calls on two kinds of GPUs."""
    told = transcripts(stub, [{"gpus": 1}, {"gpus": 1, "mig": "0:2"}])
    names = {json.loads(line).get("call") for text in told for line in text.splitlines()}
    return sorted(name for name in names if name and name.startswith("nvml"))


def judged(transcript):
    """What the whole doctor makes of it on a machine with eight GPUs."""
    host = machine(MACHINE)
    answer = ProgramResult(0, transcript, "")
    damaged = Damaged(host, "run", asking(MACHINE, "ask_nvml"), lambda _: answer)
    return examine_anew(examine_sound(MACHINE), damaged, ("nvml",))


@pytest.mark.parametrize("code", ERRORS)
def test_every_call_may_fail_with_every_error(stub, calls, code):
    faults = [{"gpus": 2, "mig": "0:1", "fail": f"{call}={code}"} for call in calls]
    problems = []
    for fault, transcript in zip(faults, transcripts(stub, faults), strict=True):
        assert "Traceback" not in transcript, fault
        problems += [f"{fault['fail']}: {problem}" for problem in broken(judged(transcript))]
    assert not problems, "\n".join(("", *problems))


GARBAGE = ("", "?" * 63, "a\tb\nc", '"}{', "\udcff\udcfe", "Gr\u00f6\u00dfe", "%s%n", "\x1b[31m", "\u202e")


@pytest.mark.parametrize("setting", ["name", "driver", "capability"])
def test_texts_may_be_garbage(stub, setting):
    faults = [{"gpus": 2, setting: text} for text in GARBAGE]
    problems = []
    for fault, transcript in zip(faults, transcripts(stub, faults), strict=True):
        assert "Traceback" not in transcript, fault
        seen = judged(transcript)
        problems += [f"{fault}: {problem}" for problem in (*broken(seen), *unprintable(seen))]
    assert not problems, "\n".join(("", *problems))


@pytest.mark.parametrize("gpus", [0, 9, 64, 65, 1000, -1], ids="{} GPUs".format)
def test_the_count_may_be_wrong(stub, gpus):
    (transcript,) = transcripts(stub, [{"gpus": gpus}])
    assert broken(judged(transcript)) == []


def asks_stub(stub, settings):
    """A machine whose NVML child runs for real, on a configured stub."""
    host = machine(MACHINE)
    variables = [f"{name}={value}" for name, value in stub_environment(stub, **settings).items()]

    class Real:
        def __getattr__(self, name):
            return getattr(host, name)

        def run(self, argv, *, deadline_s=5.0, without=()):
            if not any(word.endswith("ask_nvml.py") for word in argv):
                return host.run(argv, deadline_s=deadline_s)
            return run_program(["env", *variables, sys.executable, *argv[1:]], deadline_s=deadline_s)

    return Real()


@pytest.mark.parametrize("end", ["hang", "segv"])
@pytest.mark.clock
def test_every_call_may_hang_or_crash_on_one_gpu_of_three(stub, calls, end):
    def tried(call):
        where = "@1" if call.startswith("nvmlDevice") and call != "nvmlDeviceGetCount_v2" else ""
        host = asks_stub(stub, {"gpus": 3, "mig": "1:1", "fail": f"{call}{where}={end}"})
        return call, examine(host, project=machine(MACHINE).project, deadline_s=DEADLINE_S, clock=time.monotonic)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        seen = dict(pool.map(tried, calls))
    problems = {call: broken(each, deadline_s=DEADLINE_S) for call, each in seen.items()}
    assert not {call: found for call, found in problems.items() if found}
    spared = {
        call: [isinstance(gpu, FailedGpu) for gpu in each.facts.nvml.gpus]
        for call, each in seen.items()
        if isinstance(each.facts.nvml, NvmlAnswer) and call.startswith("nvmlDevice")
    }
    assert len(spared) > 20
    assert not {call: failed for call, failed in spared.items() if failed[0]}, "the GPU in front of it must answer"
