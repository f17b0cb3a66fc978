"""What the quick commands must not load into their own process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "peft", "bitsandbytes", "accelerate")
LATER = ("jinja2", "docker", "pynvml", "tomlkit")
"""Light, but of no use for printing help."""

SCRIPT = """
import io, json, sys
sys.argv = ["devkit", *{words!r}]
sys.stdout = io.StringIO()
from devkit.cli import main
try:
    main()
except SystemExit:
    pass
sys.__stdout__.write(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def loaded_by(*words: str, cwd: Path | None = None) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(words=words)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=cwd,
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("words", [("--help",), ("--version",)], ids=["help", "version"])
def test_help_loads_click_alone(words):
    assert not loaded_by(*words) & {*HEAVY, *LATER}


@pytest.mark.parametrize(
    "words",
    [
        ("doctor",),
        ("doctor", "--list", "--json"),
        ("verify", "--help"),
        ("init", "--help"),
    ],
    ids=["doctor", "list of checks", "help of verify", "help of init"],
)
def test_a_quick_command_never_loads_torch_into_its_process(words):
    assert not loaded_by(*words) & {*HEAVY}
