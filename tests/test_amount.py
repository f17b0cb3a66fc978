"""What is tried in parts is tried whole in the end, and nothing is left without a test meanwhile."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import amount
from tests.amount import TURNS, every, is_tried
from tests.conftest import pytest_collection_modifyitems
from tests.engine import turns

ROOT = Path(__file__).resolve().parents[1]
TEN = list(range(10))


@pytest.fixture
def asked_for_a_part(monkeypatch):
    monkeypatch.setattr(amount, "LONG", False)
    return lambda turn: monkeypatch.setattr(amount, "TURN", turn)


@pytest.mark.parametrize("first", [0, 1, 7])
@pytest.mark.parametrize("part", [1, 2, 3, 5, 20])
def test_each_case_has_its_turn_and_no_turn_is_without_cases(asked_for_a_part, part, first):
    tried = []
    for turn in range(part):
        asked_for_a_part(turn)
        cases = every(part, TEN, first=first)
        assert cases
        assert len(cases) <= -(-len(TEN) // min(part, len(TEN)))
        tried += cases
    assert set(tried) == set(TEN)


def test_of_one_case_every_turn_tries_it_and_of_none_there_is_none(asked_for_a_part):
    asked_for_a_part(3)
    assert every(2, ["one"]) == ["one"]
    assert every(2, []) == []


def test_all_are_tried_when_all_are_asked_for(monkeypatch):
    monkeypatch.setattr(amount, "LONG", True)
    assert every(3, TEN, first=1) == TEN


@pytest.mark.parametrize("number", [0, 2, 5])
@pytest.mark.parametrize("parts", [1, 3, 6])
def test_a_part_has_its_turn_once_in_so_many_commits_and_always_when_all_are_asked_for(
    asked_for_a_part, monkeypatch, number, parts
):
    tried = []
    for turn in range(parts):
        asked_for_a_part(turn)
        tried.append(is_tried(number, parts))
    assert sum(tried) == 1 and tried[number % parts]
    monkeypatch.setattr(amount, "LONG", True)
    assert is_tried(number + 1, parts)


CASES = [f"a.py::test_cases[{number}]" for number in range(5)]
TOGETHER = ["b.py::test_one", "b.py::test_other[1]", "b.py::test_other[2]"]
NUMBERED = pytest.mark.turns(3, first=1).mark
ITEMS = {**dict.fromkeys(CASES, NUMBERED), "a.py::test_one": pytest.mark.turns(3).mark, "a.py::test_always": None}
OF_MODULES = dict.fromkeys(TOGETHER, pytest.mark.turns(3).mark)


class Item:
    """What the hook sees of a test."""

    def __init__(self, name, own, of_module):
        self.nodeid = name
        self.own_markers = [own] if own else []
        self.closest = own or of_module

    def get_closest_marker(self, name):
        """Return the mark of the test, or else of its module."""
        return self.closest


def collect(*words, keyword=""):
    """What pytest would run of `ITEMS` and `OF_MODULES`."""
    items = [Item(name, own, None) for name, own in ITEMS.items()]
    items += [Item(name, None, mark) for name, mark in OF_MODULES.items()]
    deselected: list[Item] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    config = SimpleNamespace(option=SimpleNamespace(keyword=keyword), args=words, hook=hook)
    pytest_collection_modifyitems(config, items)
    assert len(items) + len(deselected) == len(ITEMS) + len(OF_MODULES)
    return [item.nodeid for item in items]


def test_each_marked_test_and_case_has_its_turn(asked_for_a_part):
    turns = []
    for turn in range(3):
        asked_for_a_part(turn)
        turns.append(collect("tests"))
    assert [[name for name in tried if name in CASES] for tried in turns] == [CASES[2::3], CASES[::3], CASES[1::3]]
    assert sum("a.py::test_one" in tried for tried in turns) == 1
    assert all("a.py::test_always" in tried for tried in turns)
    assert sorted([name for name in tried if name in TOGETHER] for tried in turns) == [[], [], TOGETHER]


def test_marked_tests_are_all_tried_when_they_are_asked_for(asked_for_a_part, monkeypatch):
    asked_for_a_part(0)
    everything = [*ITEMS, *OF_MODULES]
    assert collect(keyword="cases") == collect("tests", CASES[0]) == everything
    monkeypatch.setattr(amount, "LONG", True)
    assert collect("tests") == everything


@pytest.mark.parametrize("part", list(range(1, 11)))
def test_no_part_is_tried_more_often_than_another(part):
    assert TURNS % part == 0


def turn_in(folder: Path, **settings: str) -> str:
    """What the module prints for scripts, beside a folder's `tests`."""
    env = {name: value for name, value in os.environ.items() if name != "DEVKIT_TURN"} | settings
    argv = [sys.executable, "-m", "tests.amount"]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_the_turn_is_the_one_asked_for_or_that_of_the_commit(tmp_path):
    assert turn_in(ROOT, DEVKIT_TURN="17") == "17"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").touch()
    (tmp_path / "tests/amount.py").write_text((ROOT / "tests/amount.py").read_text())
    nowhere = {"PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    assert turn_in(tmp_path, **nowhere) == "0"
    git = ["git", "-c", "user.name=Dev", "-c", "user.email=dev@example.org", "-C", tmp_path]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "one"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert turn_in(tmp_path, **nowhere) == turn_in(tmp_path, **nowhere) == str(int(head[:6], 16) % TURNS)


@pytest.mark.parametrize("name", sorted(frozenset().union(*turns.PARTS)))
def test_every_long_test_on_engines_is_still_there(name):
    folder = ROOT / "tests/engine"
    assert (folder / name).is_file() or any(f"def {name}(" in file.read_text() for file in folder.glob("test_*.py"))


def test_every_long_test_on_engines_has_its_turn(monkeypatch):
    monkeypatch.setattr(turns, "LONG", False)
    for tried in range(len(turns.PARTS)):
        monkeypatch.setattr(turns, "TRIED", tried)
        for name in frozenset().union(*turns.PARTS):
            assert turns.has(name) == (name in turns.PARTS[tried])
        assert turns.has("test_dev_container.py")
    assert TURNS % len(turns.PARTS) == 0


def test_nothing_is_left_to_those_who_ask_for_all():
    """What no commit tries, nobody does."""
    alone = re.compile(r"skipif\(\s*not (amount\.)?LONG")
    files = [file for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__)]
    assert [str(file) for file in files if alone.search(file.read_text(encoding="utf-8"))] == []
