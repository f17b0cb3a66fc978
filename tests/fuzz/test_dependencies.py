"""Every format that names packages, on texts that nobody would write: requirements or a note, and no exception."""

import time

import pytest
from hypothesis import given

from devkit.facts.dependencies import Dependencies
from devkit.probe.host import Stat
from devkit.probe.project.reader import read_dependencies
from devkit.solver.project import list_project_constraints
from tests.fuzz.profile import FUZZ, SLOWEST_S
from tests.fuzz.texts import nearly
from tests.probe.test_dependencies import POETRY_LOCK, UV_LOCK

FOLDER = "/project"
PYPROJECT = """\
[project]
name = "p"
requires-python = ">=3.11"
dependencies = ["torch==2.4.1; python_version < '3.12'", "lib"]
[project.optional-dependencies]
train = ["peft"]
[dependency-groups]
dev = ["pytest", {include-group = "dev"}]
[tool.uv]
default-groups = "all"
[tool.uv.sources]
lib = {git = "https://user:secret@example.org/lib", tag = "v1"}
"""
SOUND = {
    "requirements.txt": "-r more.txt\n--index-url https://a:secret@b/c\ntorch==2.4.1+cu121 \\\n  --hash=sha256:aa\n"
    "-e .\ngit+https://a:secret@b/c.git@main#egg=c\nx[y]>=1; python_version < '3'\n",
    "pyproject.toml": PYPROJECT,
    "uv.lock": UV_LOCK,
    "poetry.lock": POETRY_LOCK,
    "pdm.lock": '[[package]]\nname = "torch"\nversion = "2"\ndependencies = ["a>=1", "b"]\n',
    "Pipfile": '[packages]\ntorch = {version = "==2", extras = ["a"]}\n[requires]\npython_version = "3.11"\n',
    "Pipfile.lock": '{"default": {"torch": {"version": "==2.4.1", "markers": "os_name == \'posix\'"}}}',
    "environment.yml": "dependencies:\n  - python=3.11\n  - a::pytorch=2.4=b\n  - pip:\n    - torch<3\n    - -r x\n",
    "setup.cfg": "[options]\npython_requires = >=3.10\ninstall_requires =\n    torch==2.4.1; os_name == 'posix'\n",
    "setup.py": "NEEDS = ['torch==2']\nDEPS = {a: b for a, b in (f(x) for x in NEEDS)}\ndef pick(*names):\n"
    "    return [DEPS[each] for each in names]\nNEEDS += pick('torch')\nif x:\n    NEEDS.append('a')\n"
    "setup(install_requires=NEEDS + ['b'], extras_require={'c': pick('torch')}, python_requires='>=3', **x)\n",
    ".python-version": "# ours\ncpython-3.11.4\n",
}
POETRY = (
    '[tool.poetry.dependencies]\npython = "^3.11"\ntorch = [{version = "^2 || ~3.1", markers = "os_name == \'a\'"}]\n'
)


class OneFolder:
    """A machine that holds nothing but the files of one project."""

    def __init__(self, files):
        self._files = {f"{FOLDER}/{name}": text for name, text in files.items()}

    def read(self, path):
        return self._files.get(path)

    def list(self, path):
        return tuple(sorted(name.rpartition("/")[2] for name in self._files)) if path == FOLDER else ()

    def stat(self, path):
        kind = "directory" if path == FOLDER else "file"
        return Stat(kind, 0o644, 0, 0, len(self._files.get(path, ""))) if path in (FOLDER, *self._files) else None

    def link(self, path):
        return path if path in (FOLDER, *self._files) else None


def of_text(name, text):
    beside = {"pyproject.toml": POETRY} if name == "poetry.lock" else {}
    beside |= {"Pipfile": ""} if name == "Pipfile.lock" else {}
    return read_dependencies(OneFolder(beside | {name: text}), project=FOLDER)


def test_every_sound_text_says_something():
    for name, text in SOUND.items():
        found = of_text(name, text)
        assert found.needs or found.python, name
        assert "secret" not in repr(found)


@pytest.mark.parametrize("name", [*SOUND, "Poetry in pyproject.toml"])
def test_a_damaged_file_says_requirements_or_is_noted(name):
    sound = SOUND.get(name, POETRY)
    name = name if name in SOUND else "pyproject.toml"

    @FUZZ
    @given(nearly(sound))
    def is_read(text):
        started_s = time.thread_time()
        found = of_text(name, text)
        list_project_constraints(found, machines=("x86_64",), python="3.12")
        assert time.thread_time() - started_s < SLOWEST_S
        assert isinstance(found, Dependencies)
        assert all(each.line >= 1 for each in (*found.needs, *found.unread, *found.left_out, *found.indexes))

    is_read()
