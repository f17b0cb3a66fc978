"""Shell commands: one lexer for what the doctor reads in Dockerfiles and for what init changes in them."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.formats.shell import command_from_words, find_package_install, parse_commands, unquote
from devkit.probe.project.dockerfile import parse_dockerfile
from devkit.render.adopt.dev_container import TorchPin, pin_dockerfile
from tests.cases import cases

PLAN = TorchPin("2.9.1", "cu128", "https://download.pytorch.org/whl/cu128")
INDEX = f"--extra-index-url {PLAN.index}"


def read(command):
    """The GPU packages that the doctor reads in a RUN."""
    (stage,) = parse_dockerfile(f"FROM x\nRUN {command}\n", path="Dockerfile", arguments={}).stages
    return [(install.tool, [one.name for one in install.requirements]) for install in stage.installs]


def pinned(command):
    """The RUN with init's pins."""
    return pin_dockerfile(f"FROM x\nRUN {command}\n", PLAN).removeprefix("FROM x\nRUN ").removesuffix("\n")


@cases(
    "command, installs, after",
    {
        # The doctor's lexer had taken a comment for a command.
        "a comment": ("echo ok # pip install torch", [], "echo ok # pip install torch"),
        "an option with a value": (
            "pip install --no-binary bitsandbytes torch",
            [("pip", ["torch"])],
            f"pip install {INDEX} --no-binary bitsandbytes torch==2.9.1+cu128",
        ),
        # The doctor's table of options had conda's -n for uv, too, where it has no value.
        "uv's -n": (
            "uv pip install -n torch",
            [("uv", ["torch"])],
            "uv pip install --torch-backend=cu128 -n torch==2.9.1",
        ),
        "pip that another tool starts": (
            "poetry run pip install torch",
            [("pip", ["torch"])],
            f"poetry run pip install {INDEX} torch==2.9.1+cu128",
        ),
        "a long way to pip": (
            "sudo -H env A=1 PIP=2 B=3 C=4 D=5 pip install 'torch'",
            [("pip", ["torch"])],
            f"sudo -H env A=1 PIP=2 B=3 C=4 D=5 pip install {INDEX} 'torch==2.9.1+cu128'",
        ),
        "an environment of conda": ("conda install -n torch numpy", [], "conda install -n torch numpy"),
    },
)
def test_doctor_and_init_see_the_same_packages(command, installs, after):
    assert read(command) == installs
    assert pinned(command) == after


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        pytest.param("a && b || c; d | e & f", ["a", "b?", "c", "d", "e", "f"], id="every operator"),
        pytest.param("( nvidia-smi ) || true", ["nvidia-smi", "true"], id="a group"),
        pytest.param("a \\\n  b\n# no\nc # no\nd", ["a b", "c", "d"], id="lines and comments"),
        pytest.param("X=1 sudo env Y='a b' pip install t", ["pip install t"], id="assignments before a program"),
        pytest.param("echo it's; pip install t", ["echo it", "s", "pip install t"], id="a quotation mark alone"),
        pytest.param("if true; then x; fi", ["if true", "x", "fi"], id="a condition"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_commands_and_what_forgives_them(text, commands):
    found = [" ".join(one.values) + ("?" if one.is_forgiven else "") for one in parse_commands(text)]
    assert found == commands


def test_words_know_their_place():
    text = "RUN pip install 'torch==2.9'"
    (command,) = parse_commands(text)
    assert all(text[word.start : word.end] == word.text for word in command.words)
    install = find_package_install(command)
    assert [(word.text, word.value) for word in install.packages] == [("'torch==2.9'", "torch==2.9")]


def test_options_give_their_values_in_the_next_word_or_after_an_equals_sign():
    (command,) = parse_commands(
        "/usr/bin/python -m pip install -r a.txt --requirement=b.txt -e . -r -U x --index-url", 0
    )
    install = find_package_install(command)
    assert command.program == "python"
    assert install.option_values("-r", "--requirement") == ("a.txt", "b.txt", "-U")
    assert install.option_values("-e", "--index-url") == ()
    assert [word.value for word in install.packages] == [".", "x"]
    (of_list,) = command_from_words(["mamba", "create", "", "-n", "env", "numpy"])
    assert find_package_install(of_list).tool == "conda"
    assert find_package_install(of_list).packages[0].value == "numpy"
    for text in ("git add x", "pip a b c d e install x", "pip create x", "pipdeptree install x"):
        assert find_package_install(next(parse_commands(text))) is None
    assert [each.values for each in parse_commands("no a b; c", 3, 6)] == [("a", "b")]
    assert unquote('"a\\\nb\\$c\\d"\\e') == "ab$c\\de"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=6).filter(lambda word: "\n" not in word), min_size=1, max_size=4))
def test_quoted_words_come_back_as_they_were(words):
    quoted = [shlex.quote(word) for word in words]
    assert [unquote(word) for word in quoted] == words
    text = " ".join(["program", *quoted])
    (command,) = parse_commands(text)
    assert list(command.values) == ["program", *words]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab \t\n;&|()'\"\\#$={}-", max_size=30))
def test_no_text_breaks_the_lexer(text):
    for command in parse_commands(text):
        assert command.values
        assert all(text[word.start : word.end] == word.text for word in command.words)
