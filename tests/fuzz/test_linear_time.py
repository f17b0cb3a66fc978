"""Twice the text takes twice the time: no reader of a project's files takes quadratic time for any repeated piece."""

import contextlib
import itertools
import time

import pytest

from devkit.doctor.known_errors import find_known_errors
from devkit.facts.secrets import redact_tokens
from devkit.formats.jsonc import InvalidJsonc, parse_jsonc
from devkit.formats.shell import parse_commands
from devkit.probe.project.reader import read_dependencies, read_project
from tests.fuzz.test_dependencies import FOLDER, OneFolder

CHARACTERS = 8_000
MAX_RATIO = 2.5
SHORTEST_S = 0.08
"""Below it the time is that of starting, and of other work of the machine."""

BEGINNINGS = {
    "requirements.txt": ("", "torch", "torch; ", "--hash", "-r ", "git+https://", "torch @ ", "-e "),
    "pyproject.toml": ("", "a = ", "a = '''", '[project]\nname="x"\ndependencies = ["', "["),
    "setup.py": ("", "from setuptools import setup\nsetup(install_requires=['", "x = ", "x = '''"),
    "setup.cfg": ("", "[options]\ninstall_requires =\n  ", "[options]\ninstall_requires = "),
    "Pipfile": ("", "[packages]\na = '"),
    "environment.yml": ("", "dependencies:\n- ", "dependencies:\n- pip:\n  - "),
    "Dockerfile": (
        "",
        "FROM ",
        *(f"FROM x\n{word} " for word in ("RUN", "ENV", "LABEL", "COPY", "USER", "RUN pip install")),
    ),
    "compose.yaml": ("", *(f"services:\n a:\n  {key}: ['" for key in ("command", "volumes", "environment", "devices"))),
    ".devcontainer/devcontainer.json": ("", '{"image": "', '{"image": "x", "postCreateCommand": "', '{"a": '),
    ".env": ("", "A=", "export ", "COMPOSE_FILE="),
    ".gitmodules": ("", '[submodule "', "path = "),
    "README.md": ("", "```\napt install ", "pip install ", "# "),
}
_PIECES = r"""a " ' \ \a # / // /* */ - $ ${ ${a:- $( ( [ { } [a] a[ ; && @ a@ a/ git+a:// < >=1, . a. ../ 1. %2B
a= a, ` == 'a', \" """
UNITS = (
    *_PIECES.split(),
    *(
        " ",
        "a ",
        "\n",
        "\r",
        "\t",
        "a\n",
        "\\\n",
        " #",
        "--a ",
        " --hash=",
        "a=b ",
        "A=b\n",
        "a && ",
        "pip install a && ",
    ),
    *("<<A ", "- ", "-\n", ": ", "a: \n", "&a ", "*a ", "\0", "\u2028", '"a" ', "FROM x\n", "ARG A=b\n", "RUN a\n"),
)
SLOW_ONCE = (
    ("requirements.txt", "torch", " "),
    ("requirements.txt", "", "\n"),
    ("pyproject.toml", "", "a."),
    ("Dockerfile", "FROM x\nRUN ", "${a:-"),
    ("Dockerfile", "FROM x\nLABEL ", "a"),
    ("Dockerfile", "FROM x\nLABEL ", '\\"'),
    (".env", "", "\n"),
    ("README.md", "", "pip install a\n"),
)
ALL = tuple(
    (name, begin, unit) for name, begins in BEGINNINGS.items() for begin, unit in itertools.product(begins, UNITS)
)
TEXT_READERS = {
    "parse_jsonc": lambda text: _ignoring(InvalidJsonc, parse_jsonc, text),
    "parse_commands": lambda text: list(parse_commands(text)),
    "redact_tokens": redact_tokens,
    "find_known_errors": find_known_errors,
}


def _ignoring(error, function, text):
    with contextlib.suppress(error):
        function(text)


def _read_project(name, text):
    host = OneFolder({name: text, "run.py": ""})  # a guide counts beside a program
    read_dependencies(host, project=FOLDER)
    read_project(host, project=FOLDER)


def _measure(read, text, *, times):
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        read(text)
        best = min(best, time.process_time() - began)
    return best


def is_linear(read, begin, unit):
    """Whether twice the text takes at most 2.5 times the time, and again so for four times the text if it does not."""
    texts = [f"{begin}{unit * (count * CHARACTERS // len(unit))}x" for count in (1, 2, 4)]
    first, second = (_measure(read, text, times=1) for text in texts[:2])
    if second < SHORTEST_S or second < MAX_RATIO * first:
        return True
    first, second, fourth = (_measure(read, text, times=2) for text in texts)
    return second < MAX_RATIO * first or fourth < MAX_RATIO * second


def test_no_repeated_piece_of_a_file_takes_quadratic_time():
    slow = [
        case
        for case in (*SLOW_ONCE, *ALL[::40])
        if not is_linear(lambda text, case=case: _read_project(case[0], text), *case[1:])
    ]
    assert not slow


@pytest.mark.parametrize("name", TEXT_READERS)
def test_no_repeated_piece_of_a_text_takes_quadratic_time(name):
    slow = [unit for unit in UNITS[::4] if not is_linear(TEXT_READERS[name], "CUDA error: ", unit)]
    assert not slow
