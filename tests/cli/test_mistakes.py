"""Typical mistakes: each gets one line and a hint, exit code 2, and leaves nothing behind."""

import json
from pathlib import Path

import pytest

from devkit import INSTALL_WORKLOAD_COMMAND
from devkit.cli import COMMANDS, exit_codes
from tests.forked_commands import run_devkit


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["docter"], "No such command 'docter'. Did you mean doctor?", id="a misspelled command"),
        pytest.param(["fintune", "--model", "m"], "Did you mean finetune?", id="a misspelled command with flags"),
        pytest.param(
            ["plan", "--driver", "12.8"],
            "--driver 12.8 is a CUDA version, not a driver's",
            id="CUDA given as the driver",
        ),
        pytest.param(["init", "--driver", "13", "x"], "--driver 13 is a CUDA version", id="the same of init"),
        pytest.param(
            ["verify", "--here", "--model", "nothere"], "there is no model nothere: no such folder", id="no model"
        ),
        pytest.param(["doctor", "--jsn"], "Did you mean", id="a misspelled flag"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(tmp_path, words, says):
    done = run_devkit(*words, cwd=tmp_path, HF_HOME=str(tmp_path / "hf"))
    assert (done.returncode, done.stdout) == (exit_codes.WRONG_INPUT, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_word_like_no_command_gets_no_suggestion():
    assert "Did you mean" not in run_devkit("zzz").stderr


def test_init_where_no_folder_can_be_made_says_so_before_it_lists_files():
    done = run_devkit("init", "/proc/x", "--vendor", "cpu", "--yes")
    assert (done.returncode, done.stdout) == (exit_codes.WRONG_INPUT, "")
    assert done.stderr.startswith("Error: cannot make /proc/x")


def test_a_bundle_without_an_engine_leaves_no_folder(tmp_path):
    project = tmp_path / "project"
    assert run_devkit("init", str(project), "--vendor", "cpu", "--yes").returncode == 0
    done = run_devkit(
        "bundle",
        str(project),
        "--output",
        str(tmp_path / "out.tar"),
        DOCKER_HOST="unix:///nowhere.sock",
        PATH="/nowhere",
    )
    assert done.returncode == exit_codes.WRONG_INPUT
    assert sorted(each.name for each in tmp_path.iterdir()) == ["project"]


def test_one_driver_that_differs_is_one_difference(tmp_path):
    from tests.hosts.golden import expected_document

    document = json.dumps(expected_document("ubuntu-4090-ok"))
    files = []
    for name, text in (("a", document), ("b", document), ("c", document.replace("580.95.05", "580.105.08"))):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(text)
    shown = run_devkit("compare", *map(str, files), COLUMNS="100").stdout
    assert shown.count("580.105.08") == 1
    assert "driver.loaded, driver.on_disk, nvml.driver is 580.105.08" in " ".join(shown.split())


def test_a_gpu_without_bf16_is_not_said_to_fit():
    shown = run_devkit("estimate", "llama-3.2-1b", "--gpu", "T4", COLUMNS="120").stdout
    assert shown.startswith("no bf16 in hardware, so give --dtype fp16; fits in memory: Tesla T4")


def test_the_plan_is_installed_by_one_command(tmp_path):
    done = run_devkit("plan", "--gpu", "RTX 4090", "--driver", "580.95.05", "--pip", cwd=tmp_path)
    first, torch, *others = done.stdout.splitlines()
    assert first == "--extra-index-url https://download.pytorch.org/whl/cu130"
    assert torch.startswith("torch==")
    assert torch.endswith("+cu130")
    assert {line.partition("==")[0] for line in others} >= {"transformers", "peft", "accelerate", "bitsandbytes"}
    refused = run_devkit("plan", "--gpu", "RTX 4090", "--torch", "2.1.0", "--driver", "390.1", "--pip", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (exit_codes.ANSWER_IS_NO, "")
    assert "conflict" in refused.stderr


def test_the_hint_for_missing_packages_names_that_command(tmp_path):
    from devkit.facts.values import Release
    from devkit.workload.interpreter import Interpreter

    lacks = Interpreter("/opt/python", Release.parse("3.12"), (), is_own=True).lacks(("torch",))
    assert lacks.hint == f"{INSTALL_WORKLOAD_COMMAND} --python /opt/python"
    assert INSTALL_WORKLOAD_COMMAND.split()[1] in COMMANDS


def test_what_no_package_index_has_is_named_in_no_hint():
    root = Path(__file__).resolve().parents[2] / "devkit"
    hints = [path.name for path in root.rglob("*.py") if "install 'devkit" in path.read_text(encoding="utf-8")]
    assert hints == []
