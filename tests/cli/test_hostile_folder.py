"""Commands in the folder of a stranger's project: nothing of it is run, and what it says is text."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import devkit
from devkit.cli.init import format_next_step
from devkit.facts.dependencies import NO_DEPENDENCIES
from devkit.probe.host import run_program
from devkit.render.devkit_lock import find_version

NOTES = "open('owned', 'w').close()\n"
posix = pytest.mark.skipif(sys.platform == "win32", reason="programs of these tests are scripts of sh")


def starts_of_python():
    """Each list that begins with an interpreter, in the whole package."""
    for file in sorted(Path(devkit.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.List) and len(node.elts) > 1:
                first, second = (ast.unparse(each) for each in node.elts[:2])
                if first.endswith("executable") or first == "self.python":
                    yield f"{file.name}:{node.lineno}", second


def test_no_python_imports_from_the_working_folder():
    """Where a module or a text is run, Python looks into the working folder first, unless -P or -I says no."""
    found = [(place, second) for place, second in starts_of_python() if second in ("'-m'", "'-c'")]
    # The user's own package manager, as the user would run it.
    assert [place for place, _ in found if not place.startswith("plan.py")] == []


@posix
@pytest.mark.parametrize("search", ["", "/usr/bin:", ".:/usr/bin", "/usr/bin:bin"])
def test_no_program_of_the_working_folder_is_run(tmp_path, monkeypatch, search):
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        (folder / "nvidia-smi").write_text("#!/bin/sh\ntouch owned\n")
        (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", search)
    run_program(["nvidia-smi"], deadline_s=5)
    assert not (tmp_path / "owned").exists()


@pytest.mark.full
@posix
@pytest.mark.parametrize(
    ("start", "variables"),
    [
        pytest.param(["-m", "devkit"], {}, id="python -m"),
        pytest.param(["-P", "-m", "devkit"], {"PYTHONPATH": ":lib:", "PATH": ".:bin:"}, id="relative entries"),
        pytest.param(["-P", "-m", "devkit"], {"PATH": ""}, id="no PATH"),
    ],
)
def test_no_module_and_no_program_of_the_working_folder_is_loaded(tmp_path, start, variables):
    for folder in (tmp_path, tmp_path / "lib", tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        for name in ("click", "json", "subprocess", "jinja2", "yaml", "packaging"):
            (folder / f"{name}.py").write_text(NOTES)
        (folder / "llama-server").write_text("#!/bin/sh\ntouch owned\n")
        (folder / "llama-server").chmod(0o755)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    own = str(Path(devkit.__file__).parents[1])
    variables = {**os.environ, **variables, "PYTHONPATH": variables.get("PYTHONPATH", "") + own}
    for words in (["doctor", "--project", ".", "--timeout", "1"], ["serve", "m.gguf"]):
        argv = [sys.executable, *start, *words]
        done = subprocess.run(argv, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1, 2), done.stderr
    assert "llama-server is not installed" in done.stderr
    assert not (tmp_path / "owned").exists()


@posix
def test_what_a_repository_s_settings_name_is_not_run(tmp_path, monkeypatch):
    """A file monitor runs with each look at the index, a transport where an object is missing."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    root, owned = tmp_path / "project", tmp_path / "owned"
    program = f"echo $0 >> {owned}; false"
    for words in (
        ("init", "--quiet", str(root)),
        ("-C", str(root), "config", "core.fsmonitor", program),
        ("-C", str(root), "config", "core.sshCommand", program),
        ("-C", str(root), "config", "protocol.allow", "always"),
        ("-C", str(root), "config", "remote.origin.url", "ssh://example.org/x"),
        ("-C", str(root), "config", "remote.origin.promisor", "true"),
        ("-C", str(root), "config", "core.repositoryformatversion", "1"),
        ("-C", str(root), "config", "extensions.partialClone", "origin"),
    ):
        subprocess.run(["git", *words], check=True)
    (root / ".gitignore").write_text(".devcontainer\n")
    assert find_version(root, "0" * 40) is None
    assert "because .gitignore:1 ignores them" in format_next_step(
        root, NO_DEPENDENCIES, (), [".devcontainer/Dockerfile"]
    )
    assert not owned.exists(), owned.read_text()
