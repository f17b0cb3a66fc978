"""The workload's smoke with the newest torch that `devkit plan` chooses: the other tests have the one of .ci/constraints.txt.

`DEVKIT_NEWEST_TORCH=1` installs its build for the CPU, with triton beside it, which a CUDA build brings; an interpreter
that has both may be named instead.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "ask-about-a-text"
CHOSEN = os.environ.get("DEVKIT_NEWEST_TORCH", "")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.workload,
    pytest.mark.skipif(
        not CHOSEN, reason="downloads the newest torch: DEVKIT_NEWEST_TORCH=1 (or an interpreter) runs it"
    ),
]


def run(*argv: str | Path, folder: Path, text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **more}
    done = subprocess.run([*map(str, argv)], cwd=folder, env=environment, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with what `devkit plan --pip` names."""
    if CHOSEN != "1":
        return Path(CHOSEN)
    folder = tmp_path_factory.mktemp("newest")
    minor = ".".join(map(str, sys.version_info[:2]))
    plan = run(
        sys.executable, "-m", "devkit", "plan", "--vendor", "cpu", "--python", minor, "--pip", folder=folder
    ).stdout
    run("uv", "venv", "--quiet", "--python", sys.executable, "env", folder=folder)
    made = folder / "env/bin/python"
    run("uv", "pip", "install", "--quiet", "--python", made, "--requirements", "-", "triton", folder=folder, text=plan)
    return made


def test_training_and_generation_end_without_a_word_of_leaks(python: Path, tmp_path: Path):
    folder = tmp_path / EXAMPLE.name
    shutil.copytree(EXAMPLE, folder)
    run(python, "make_model.py", "model", folder=folder)
    words = ("--model", "model", "--data", "text.jsonl", "--output", "run", "--steps", "2", "--optimizer", "adamw-8bit")
    devkit = (sys.executable, "-m", "devkit")
    trained = run(*devkit, "finetune", *words, folder=folder, DEVKIT_PYTHON=f"{python}")
    assert "done: loss" in trained.stdout
    asked = ("generate", "--adapter", "run/adapter", "--prompt", "Who")
    answered = run(*devkit, *asked, folder=folder, DEVKIT_PYTHON=f"{python}")
    for done in (trained, answered):
        assert "nanobind" not in done.stdout + done.stderr
