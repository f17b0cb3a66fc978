"""What a shell completes, by the scripts that `devkit completion` prints."""

import shutil
import subprocess

import pytest

from tests.forked_commands import run_devkit


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_every_shell_has_a_script(shell):
    done = run_devkit("completion", shell)
    assert done.returncode == 0
    assert "_DEVKIT_COMPLETE" in done.stdout
    if shell != "powershell" and shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        pytest.param("devkit doc", "doctor", id="a command"),
        pytest.param("devkit doctor --sm", "--smoke", id="a flag"),
        pytest.param("devkit doctor --only CTK00", "CTK001", id="the code of a check"),
        pytest.param("devkit explain drv", "DRV001", id="a code in small letters"),
        pytest.param("devkit plan --gpu 4090", "NVIDIA GeForce RTX 4090", id="a GPU"),
        pytest.param("devkit estimate smollm2", "HuggingFaceTB/SmolLM2-135M", id="a model"),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "powershell"])
def test_names_are_completed(shell, words, completed):
    *before, last = words.split()
    listed = {
        "bash": {"COMP_WORDS": words, "COMP_CWORD": str(len(before))},
        "powershell": {"COMP_WORDS": "\n".join([*before, last]), "COMP_CWORD": last},
    }[shell]
    done = run_devkit(_DEVKIT_COMPLETE=f"{shell}_complete", **listed)
    assert completed in done.stdout, done.stderr


def test_an_unknown_shell_is_refused():
    assert run_devkit("completion", "tcsh").returncode == 2
