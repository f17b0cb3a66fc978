"""The doctor on the real nvidia-ml-py and a stand-in for the driver's library, in every state that hurts."""

import json
import sys
import time

import pytest

from tests.forked_commands import run_devkit
from tests.nvml_stub import stub_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a Linux library")
DEADLINE_S = 2.0
PLENTY_S = 30.0
"""Where it is not about time: a busy machine may take long to start two programs."""


def examine(stub, *, deadline_s=PLENTY_S, **settings):
    done = run_devkit("doctor", "--json", "--timeout", str(deadline_s), **stub_environment(stub, **settings))
    document = json.loads(done.stdout)
    findings = {row["code"]: row["findings"][0] for row in document["outcomes"] if row["status"] == "found"}
    return document, findings


def test_eight_healthy_gpus(stub):
    _, findings = examine(stub, gpus=8)
    assert not {code for code in findings if code.startswith(("DRV", "GPU"))}


@pytest.mark.parametrize(
    ("fail", "code", "says"),
    [
        pytest.param("nvmlInit_v2=9", "DRV001", "no driver is loaded", id="driver not loaded"),
        pytest.param("nvmlInit_v2=18", "DRV002", "different versions", id="library and module differ"),
        pytest.param("nvmlInit_v2=15", "DRV003", "lost", id="a lost GPU at the start"),
        pytest.param("nvmlInit_v2=4", "DRV003", "cannot use the GPU", id="no permission"),
        pytest.param("nvmlInit_v2=999", "DRV003", "Unknown Error", id="unknown error"),
        pytest.param("nvmlInit_v2=segv", "DRV003", "crashes", id="a segmentation fault"),
        pytest.param("nvmlDeviceGetName@3=15", "GPU002", "GPU 3 of 8 is lost", id="one lost GPU of eight"),
    ],
)
def test_each_failure_has_its_code(stub, fail, code, says):
    document, findings = examine(stub, gpus=8, fail=fail)
    assert says in findings[code]["message"]
    assert findings[code]["follows_from"] is None
    assert code in document["root_causes"]


@pytest.mark.full
@pytest.mark.parametrize("fail", ["nvmlInit_v2=hang", "nvmlDeviceGetName@5=hang"], ids=["at the start", "at one GPU"])
def test_a_hang_ends_at_the_deadline_with_the_report(stub, fail):
    run_devkit("--version")  # the process that forks commands takes seconds to start
    started = time.monotonic()
    document, findings = examine(stub, deadline_s=DEADLINE_S, gpus=8, fail=fail)
    assert time.monotonic() - started < DEADLINE_S + 8
    assert document["verdict"] == "problems"
    assert {"DRV003", "GPU002"} & set(findings)
