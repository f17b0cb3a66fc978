"""Nobody has to scroll: short files, short functions."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES = 300
FUNCTION_LINES = 40
TRAINING_LOOP_LINES = 80
TRAINING_LOOPS: set[tuple[str, str]] = set()
"""A training loop reads best in one piece; each is named here."""


def sources() -> Iterator[Path]:
    yield from sorted((ROOT / "devkit").rglob("*.py"))
    yield from sorted((ROOT / "tests" / "engine").rglob("*.py"))


def test_no_file_is_longer_than_300_lines():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources()
        if (lines := len(path.read_text().splitlines())) > FILE_LINES
    }
    assert not long


def test_no_function_is_longer_than_40_lines():
    long = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            name = str(path.relative_to(ROOT))
            limit = TRAINING_LOOP_LINES if (name, node.name) in TRAINING_LOOPS else FUNCTION_LINES
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > limit:
                long[f"{name}:{node.lineno} {node.name}"] = lines
    assert not long


def test_every_named_training_loop_exists():
    for name, function in TRAINING_LOOPS:
        assert f"def {function}(" in (ROOT / name).read_text()


def test_no_file_has_a_name_that_says_nothing():
    empty_words = {"utils", "util", "helpers", "helper", "manager", "core", "base", "common", "misc"}
    assert not [path for path in sources() if path.stem in empty_words]
