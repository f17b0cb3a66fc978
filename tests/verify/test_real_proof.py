"""The real proof in its real process: no network, and libraries that are broken from the start."""

import pytest

from devkit.probe.host import LocalHost
from devkit.verify.here import prove_here
from devkit.verify.report import ProofRequest, ProofVerdict
from devkit.workload.proof.stages import Depth
from tests.verify.stages import NOT_ON_A_CPU

pytestmark = pytest.mark.workload

NO_NETWORK = """
import os, socket
def refuse(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6):
        os.write(2, f"the proof went to the network: {address}".encode())
        os._exit(9)
    return connect(self, address)
connect = socket.socket.connect
socket.socket.connect = refuse
"""


@pytest.fixture
def shadow(tmp_path, monkeypatch):
    """Write a module that hides the installed one from the proof's process."""

    def hide(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return hide


def prove(depth=Depth.QUICK, timeout_s=240.0):
    return prove_here(LocalHost(), ProofRequest(depth, timeout_s, lambda line: None))


def statuses(report):
    return {stage.name: stage.status.value for stage in report.stages}


@pytest.mark.full
def test_the_proof_passes_here_without_touching_the_network(shadow):
    shadow("sitecustomize", NO_NETWORK)
    report = prove(Depth.STANDARD)
    assert report.verdict is ProofVerdict.PASSED, report.conclusion
    skipped = {"nccl", "own-model"} if report.device["kind"] == "cuda" else NOT_ON_A_CPU
    assert {name: status for name, status in statuses(report).items() if status != "passed"} == dict.fromkeys(
        skipped, "skipped"
    )
    assert report.inputs["depth"] == "standard"
    assert report.device["kind"] in ("cpu", "cuda", "mps")
    assert {"devkit", "python", "torch", "transformers", "peft"} <= set(report.environment)
    assert report.conclusion.startswith("proved on ")


@pytest.mark.full
@pytest.mark.parametrize(
    "text", [pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", id="crashes while it is imported")]
)
def test_a_broken_bitsandbytes_fails_qlora_alone(shadow, text):
    shadow("bitsandbytes", text)
    found = statuses(prove(Depth.STANDARD))
    assert found["bitsandbytes"] == "failed"
    assert found["qlora-memorizes"] == found["qlora-frozen"] == "skipped"
    others = {name: status for name, status in found.items() if not name.startswith(("qlora", "bits"))}
    assert {name for name, status in others.items() if status != "passed"} <= NOT_ON_A_CPU


@pytest.mark.full
def test_a_torch_that_cannot_be_imported_is_the_finding(shadow):
    shadow("torch", "raise OSError('libcudnn.so.9: cannot open shared object file: No such file or directory')")
    report = prove()
    assert statuses(report)["torch"] == "failed"
    assert "libcudnn.so.9" in report.stages[0].reason
    assert {stage.status.value for stage in report.stages[1:]} == {"skipped"}
