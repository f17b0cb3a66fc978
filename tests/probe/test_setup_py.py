"""What setup.py hands to setup(), as far as its text says it. Nothing of it runs."""

import time

import pytest

from .test_dependencies import asked, read, unread

TABLE = """\
import re
_deps = [
    "accelerate>=1.9.0",
    "huggingface-hub>=0.33.4,<1.0",
    "torch>=2.6.0",
    "black[jupyter]",
]
deps = {b: a for a, b in (re.findall(r"^(([^!=<>~ ]+)(?:[!=<>~ ].*)?$)", x)[0] for x in _deps)}


def deps_list(*pkgs):
    return [deps[pkg] for pkg in pkgs]


extras = {}
extras["quality"] = deps_list("black")
extras["torch"] = deps_list("torch")
extras["all"] = extras["quality"] + ["rich"]
install_requires = [
    deps["accelerate"],
    deps["huggingface-hub"],
]
setup(name="p", install_requires=install_requires, extras_require=extras)
"""
"""The pattern of transformers and its kin, as in https://github.com/huggingface/alignment-handbook (Apache-2.0)."""


def needs(folder, text, **choice):
    found = read(folder, {"setup.py": text}, **choice)
    return [need.text for need in found.needs], found


def test_hugging_faces_table_of_requirements_is_read_with_its_extras(tmp_path):
    found = read(tmp_path, {"setup.py": TABLE}, extras=("all",))
    assert [(need.line, need.text) for need in found.needs] == [
        (20, "accelerate>=1.9.0"),
        (21, "huggingface-hub<1.0,>=0.33.4"),
        (16, "black[jupyter]"),
        (18, "rich"),
    ]
    assert (found.extras, found.available.extras) == (("all",), ("quality", "torch"))
    assert (unread(found), found.is_computed) == ({}, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "N = ['a>=1']\nN += ['b']\nN.append('c')\nN.extend(['d'])\nN = N + ['e']\nsetup(install_requires=N)",
            "a>=1 b c d e",
            id="a list that grows",
        ),
        pytest.param("N = ('a', *('b', 'c'))\nsetup(install_requires=N)", "a b c", id="tuples in one another"),
        pytest.param("V = '1'\nsetup(install_requires=['a==' + V])", "a==1", id="a text put together"),
        pytest.param("setup(install_requires='\\na\\n# no\\nb==1')", "a b==1", id="lines"),
        pytest.param("O = dict(install_requires=['a'])\nsetup(**O)", "a", id="its keywords as a dictionary"),
        pytest.param(
            "N: list[str] = ['a']\nimport setuptools\nsetuptools.setup(install_requires=N)", "a", id="annotated"
        ),
        pytest.param("D = {'x': ['a', 'b']}\nsetup(install_requires=D['x'])", "a b", id="a dictionary of lists"),
    ],
)
def test_what_literals_are_put_together_to_is_read(tmp_path, text, expected):
    found, dependencies = needs(tmp_path, text)
    assert found == expected.split()
    assert not dependencies.is_computed


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("setup(install_requires=open('requirements.txt').read().splitlines())", id="at once"),
        pytest.param(
            "def load(path):\n    with open(path) as file:\n        return list(file)\n"
            "def ours():\n    return load('requirements.txt')\nN = ours()\nsetup(install_requires=N)",
            id="through functions",
        ),
    ],
)
def test_a_list_that_setup_py_reads_is_read_from_its_file(tmp_path, text):
    found = read(tmp_path, {"setup.py": text, "requirements.txt": "rich\n"})
    assert asked(found) == {"requirements.txt:1": "rich"}
    assert (unread(found), found.is_computed) == ({}, False)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        pytest.param(
            "N = ['torch==2.4.1', open('x').read()]\nsetup(install_requires=N)", 1, ["torch==2.4.1"], id="one"
        ),
        pytest.param("N = ['a']\nif x:\n    N.append('b')\nsetup(install_requires=N)", 2, ["a"], id="on a condition"),
        pytest.param("if x:\n    N = ['b']\nsetup(install_requires=N)", 1, [], id="by a branch"),
        pytest.param("setup(install_requires=[f() for f in g])", 1, [], id="by calls"),
        pytest.param("setup(**load())", 1, [], id="all of it"),
        pytest.param("def f(n):\n    return f(n)\nsetup(install_requires=f('a'))", 3, [], id="without end"),
        pytest.param("N = M\nM = N\nsetup(install_requires=[N])", 1, [], id="in a circle"),
        pytest.param(
            "N = ['a']\nif X:\n    N = ['b', 'c', 'd']\nelse:\n    N = ['b', 'd']\nsetup(install_requires=N)",
            2,
            ["b", "d"],
            id="either of two lists",
        ),
    ],
)
def test_what_only_running_it_tells_is_named_and_left_to_the_build(tmp_path, text, line, expected):
    found, dependencies = needs(tmp_path, text)
    assert found == expected
    assert f"setup.py:{line}" in unread(dependencies)
    assert dependencies.is_computed


def test_setup_py_is_parsed_and_never_run(tmp_path):
    text = (
        "import os\nos.mkdir('ran')\nfrom setuptools import setup\n"
        "setup(name='p', python_requires='>=3.9', install_requires=[__import__('os').mkdir('ran')])\n"
    )
    _, found = needs(tmp_path, text)
    assert found.python[0].specifier == ">=3.9"
    assert found.builds_itself
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("growth", ["N = N + N\n", "N += N\n", "N.extend(N)\n", "N = [x + x for x in N]\n"])
def test_a_list_that_doubles_again_and_again_takes_no_time(tmp_path, growth):
    began = time.monotonic()
    _, found = needs(tmp_path, f"N = ['a' * 10, 'b']\n{growth * 60}setup(install_requires=N)")
    assert found.is_computed
    assert time.monotonic() - began < 2
