"""`devkit doctor --log`: a log joined with the diagnosis of the machine that it comes from."""

import json

import pytest
from click.testing import CliRunner

from devkit.cli.doctor import doctor
from devkit.errors import DevkitError
from tests.hosts.golden import facts_file

ERROR_35 = "CUDA driver version is insufficient for CUDA runtime version"
NO_DEVICE_DRIVER = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
NO_GPU = "RuntimeError: No CUDA GPUs are available"
NVML = "Failed to initialize NVML: Driver/library version mismatch"


@pytest.fixture
def ask(tmp_path):
    """Judges a recorded machine with a log."""

    def judge(machine, log, *arguments):
        file = tmp_path / "train.log"
        file.write_text(log)
        return CliRunner().invoke(doctor, ["--facts", str(facts_file(machine)), "--log", str(file), *arguments])

    return judge


@pytest.mark.parametrize(
    ("machine", "log", "code", "evidence"),
    [
        pytest.param("toolkit-missing", NO_DEVICE_DRIVER, "CTK001", "CTK001 finds", id="no toolkit"),
        pytest.param("driver-lib-mismatch", NVML, "DRV002", "DRV002 finds", id="an update without a reboot"),
        pytest.param("in-container-no-gpu-injected", NO_GPU, "CON001", "CON001 finds", id="no GPU was given"),
        pytest.param(
            "in-container-no-gpu-injected", ERROR_35, "CON001", "CON001 finds", id="error 35 without a driver"
        ),
        pytest.param("in-container-ok", NO_GPU, "PYT006", "", id="a GPU was given"),
    ],
)
def test_a_log_is_explained_by_the_diagnosis_of_its_machine(ask, machine, log, code, evidence):
    text = ask(machine, f"start\n{log}\n").stdout
    assert "\nlog:\n" in text
    assert "seen in line 2: " in text
    document = json.loads(ask(machine, log, "--json").stdout)
    match = document["log"][0]
    assert match["code"] == code
    assert evidence in " ".join(match["speaks_for"])
    assert document["schema"] == "devkit.doctor/1"


def test_a_log_without_an_error_says_so(ask):
    assert "log: no known error" in ask("ubuntu-4090-ok", "loss 0.1\n").stdout
    assert json.loads(ask("ubuntu-4090-ok", "loss 0.1\n", "--json").stdout)["log"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--log", "nowhere.log"], "cannot read nowhere.log", id="no such file"),
        pytest.param(["--log", __file__, "--format", "sarif"], "--log has no sarif form", id="a form for machines"),
    ],
)
def test_what_cannot_be_joined_is_said(arguments, message):
    result = CliRunner().invoke(doctor, ["--facts", str(facts_file("ubuntu-4090-ok")), *arguments])
    assert isinstance(result.exception, DevkitError)
    assert result.exception.message.startswith(message)
