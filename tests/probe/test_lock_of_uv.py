"""Whether a uv.lock was made from its pyproject.toml, beside what uv itself says of it."""

import os
import subprocess
import sys
import tomllib

import pytest

from devkit.probe.dependencies.lock_files import fits_uv
from devkit.probe.project.reader import read_local_dependencies
from devkit.probe.uv_resolver import find_uv
from tests.wheels import make_index, make_wheel

PYPROJECT = """[project]
name = "own"
version = "1"
requires-python = ">=3.10"
dependencies = ["torch>=2", 'numpy ; sys_platform == "linux"']
[project.optional-dependencies]
train = ["peft==0.21.2"]
all = ["own[train]"]
[dependency-groups]
dev = ["pytest", {include-group = "lint"}]
lint = ["ruff"]
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("numpy ;", "numpy>=1 ;"),
        ('"torch>=2"', '"torch >= 2.0, <9"'),
        ('"torch>=2", ', ""),
        ("peft==0.21.2", "peft==0.21.3"),
        ("peft==0.21.2", "peft[x]==0.21.2"),
        ('"own[', '"Own['),
        ('"pytest"', '"pytest", "peft"'),
        ('lint = ["ruff"]', 'lint = ["ruff<9"]'),
        ("numpy ;", "NumPy  ;"),
    ],
)
def test_a_lock_of_uv_counts_where_uv_itself_says_that_it_fits(tmp_path, old, new):
    (wheels := tmp_path / "wheels").mkdir()
    names = {"torch": "2.15.0", "numpy": "2.5", "peft": "0.21.2", "pytest": "9", "ruff": "1"}
    index = make_index(tmp_path / "simple", [make_wheel(wheels, *each) for each in names.items()])
    (folder := tmp_path / "project").mkdir()
    environment = {**os.environ, "UV_DEFAULT_INDEX": index, "UV_CACHE_DIR": str(tmp_path / "cache")}
    command = [find_uv(), "lock", f"--directory={folder}", f"--python={sys.executable}", "--no-python-downloads"]
    (folder / "pyproject.toml").write_text(PYPROJECT)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert old in PYPROJECT
    (folder / "pyproject.toml").write_text(text := PYPROJECT.replace(old, new))
    done = subprocess.run([*command, "--check", "--offline"], env=environment, capture_output=True)
    assert fits_uv(tomllib.loads(text), (folder / "uv.lock").read_text()) == (done.returncode == 0), done.stderr
    found = read_local_dependencies(str(folder))
    assert (found.lock, found.set_aside) == (("uv.lock", ()) if done.returncode == 0 else ("", ("uv.lock",)))
