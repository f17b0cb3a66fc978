"""Mutants of the source: how many of a sample the tests notice. Each is one small change within one function.

The tests run once, and the lines that each of them passes are noted. Then each mutant gets a fork of that process, in which
its function has other code, and the tests that pass the changed statement run until one fails; those that pass the fewest
lines come first. A test that fails or hangs in a fork without a mutant too doesn't count. `--record` keeps the counts and the
survivors; areas may be tried in parts, each with its own tests.
"""

import argparse
import ast
import functools
import gc
import importlib
import json
import math
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import RESULTS, record

if TYPE_CHECKING:
    from _typeshed import TraceFunction

ROOT = Path(__file__).resolve().parents[1]
AREAS = {
    "doctor": ("devkit/doctor/checks", "devkit/doctor/runner.py"),
    "solver": ("devkit/solver",),
    "render": ("devkit/render",),
    "checkpoint": ("devkit/workload/finetune/checkpoint.py",),
}
SLOWEST_S = 10.0
"""Tests that take longer are left out; one that takes ten times longer with a mutant than without has noticed it."""
SWAPS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv},
}


def list_files(paths: tuple[str, ...]) -> list[Path]:
    """The modules of an area."""
    return [file for path in paths for file in sorted(Path(path).rglob("*.py")) or [Path(path)]]


def mutations(statement: ast.stmt, node: ast.AST) -> Iterator[tuple[str, Callable[[], object]]]:
    """What may be changed at a node, in a few words, and what changes it."""
    where = f"line {getattr(node, 'lineno', 0)}"
    match node:
        case ast.Compare() if type(node.ops[0]) in SWAPS:
            swap = SWAPS[type(node.ops[0])]
            yield f"{where}: {swap.__name__}", functools.partial(node.ops.__setitem__, 0, swap())
        case ast.BoolOp() | ast.BinOp() if type(node.op) in SWAPS:
            swap = SWAPS[type(node.op)]
            yield f"{where}: {swap.__name__}", functools.partial(setattr, node, "op", swap())
        case ast.Constant(value=bool() | int() as value):
            changed = not value if isinstance(value, bool) else value + 1
            yield f"{where}: {changed}", functools.partial(setattr, node, "value", changed)
        case ast.If() | ast.IfExp():
            turned = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            yield f"{where}: not", functools.partial(setattr, node, "test", turned)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            none = ast.copy_location(ast.Constant(None), node)
            yield f"{where}: return None", functools.partial(setattr, node, "value", none)
        case ast.Expr(value=ast.Call()):
            none = ast.copy_location(ast.Constant(None), node)
            yield f"{where}: no call", functools.partial(setattr, node, "value", none)
        case _:
            pass


def list_nodes(function: ast.FunctionDef) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """The nodes of a function's body, each with the innermost statement that it is part of."""
    waiting: list[tuple[ast.stmt, ast.AST]] = [(each, each) for each in reversed(function.body)]
    while waiting:
        statement, node = waiting.pop()
        yield statement, node
        children = ast.iter_child_nodes(node)
        waiting += [(child if isinstance(child, ast.stmt) else statement, child) for child in children]


def list_functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """The functions of a module and of its classes, without the functions within them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
        else:
            yield from list_functions(node)


def code_of(module: CodeType, line: int) -> CodeType | None:
    """The code of the function that begins at that line of a module."""
    for constant in module.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_firstlineno == line and not constant.co_name.startswith("<") and constant.co_flags & 1:
                return constant
            if found := code_of(constant, line):
                return found
    return None


@dataclass(frozen=True)
class Mutant:
    """A function's code with one change, and the lines of the statement in which it is."""

    place: str
    file: str
    lines: range
    code: CodeType = field(repr=False)


def list_mutants(path: Path) -> Iterator[Callable[[], Mutant | None]]:
    """All mutants of a file, each made when it is called; None where the change makes no difference."""
    for number, function in enumerate(list_functions(ast.parse(path.read_text()))):
        for index, (statement, node) in enumerate(list_nodes(function)):
            if any(True for _ in mutations(statement, node)):
                yield functools.partial(make_mutant, path, number, index)


def make_mutant(path: Path, number: int, index: int) -> Mutant | None:
    tree = ast.parse(path.read_text())
    function = list(list_functions(tree))[number]
    line = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    original = code_of(compile(tree, str(path), "exec"), line)
    statement, node = list(list_nodes(function))[index]
    last = max(statement.lineno, statement.body[0].lineno - 1) if hasattr(statement, "body") else statement.end_lineno
    lines = range(statement.lineno, (last or statement.lineno) + 1)
    [(what, change)] = mutations(statement, node)
    change()
    code = code_of(compile(ast.fix_missing_locations(tree), str(path), "exec"), line)
    if original is None or code is None or code == original or code.co_freevars != original.co_freevars:
        return None
    return Mutant(f"{path.relative_to(ROOT)} {code.co_qualname}, {what}", str(path), lines, code)


class Notes:
    """Each test with how long it took and the lines that it passed, kept in a file where one is named."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.written_at = path, time.monotonic()
        self.tests: dict[str, tuple[float, dict[str, list[int]]]] = {}
        if path and path.exists():
            self.tests = json.loads(path.read_text())

    def write(self, every_s: float = 0) -> None:
        if self.path and time.monotonic() - self.written_at >= every_s:
            self.path.write_text(json.dumps(self.tests))
            self.written_at = time.monotonic()


class Sample:
    """A plugin of pytest that tries mutants after the tests have run."""

    def __init__(self, count: int, seed: int, areas: list[str], jobs: int, kept: Path | None) -> None:
        self.draw, self.count, self.jobs, self.kept = random.Random(seed), count, jobs, kept
        self.areas = {name: tuple(str(ROOT / path) for path in AREAS[name]) for name in areas}
        self.tests: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.took: dict[int, float] = {}
        self.passed: dict[int, int] = {}
        self.passes_unchanged: dict[int, bool] = {}
        self.has_failed = False
        self.rows: list[dict[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.has_failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = session.items
        for paths in self.areas.values():
            for file in list_files(paths):
                importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        notes = Notes(self.kept)
        for number, item in enumerate(self.items):
            if item.nodeid not in notes.tests:
                notes.tests[item.nodeid] = self.note_lines(number)
                notes.write(every_s=60)
            took, lines = notes.tests[item.nodeid]
            self.took[number], self.passed[number] = took, sum(map(len, lines.values()))
            for name, passed in lines.items() if took < SLOWEST_S else ():
                for line in passed:
                    self.tests[str(ROOT / name), line].add(number)
        notes.write()
        found = gc.get_objects()
        self.caches = [each for each in found if type(each) is functools._lru_cache_wrapper]
        self.functions: dict[tuple[str, int], list[FunctionType]] = defaultdict(list)
        for each in found:
            if type(each) is FunctionType and each.__code__.co_filename.startswith(str(ROOT)):
                self.functions[each.__code__.co_filename, each.__code__.co_firstlineno].append(each)
        gc.freeze()
        for area, paths in self.areas.items():
            self.try_area(area, paths)
        return True

    def note_lines(self, number: int) -> tuple[float, dict[str, list[int]]]:
        """Run a test and note how long it takes, and the lines of each file that it passes; endless for one that fails."""
        watched = tuple(path for paths in self.areas.values() for path in paths)
        passed: set[tuple[str, int]] = set()

        def note_line(frame: FrameType, event: str, _: object) -> "TraceFunction":
            passed.add((frame.f_code.co_filename, frame.f_lineno))
            return note_line

        def note_call(frame: FrameType, event: str, _: object) -> "TraceFunction | None":
            return note_line if frame.f_code.co_filename.startswith(watched) else None

        began, self.has_failed = time.process_time(), False
        threading.settrace(note_call)
        sys.settrace(note_call)
        self.run(number)
        sys.settrace(None)
        threading.settrace(None)
        lines: dict[str, list[int]] = defaultdict(list)
        for file, line in sorted(passed):
            lines[str(Path(file).relative_to(ROOT))].append(line)
        return math.inf if self.has_failed else time.process_time() - began, lines

    def run(self, number: int) -> None:
        self.items[number].config.hook.pytest_runtest_protocol(item=self.items[number], nextitem=None)

    def try_area(self, area: str, paths: tuple[str, ...]) -> None:
        makers = [maker for file in list_files(paths) for maker in list_mutants(file)]
        self.draw.shuffle(makers)
        mutants: list[Mutant] = []
        while makers and len(mutants) < self.count:
            if mutant := makers.pop()():
                mutants.append(mutant)
        running: dict[int, tuple[Mutant, list[int], int]] = {}
        waiting = [(mutant, self.tests_of(mutant)) for mutant in mutants]
        while waiting or running:
            while waiting and len(running) < self.jobs:
                mutant, tests = waiting.pop(0)
                pid, reader = self.fork(tests, mutant)
                running[pid] = (mutant, tests, reader)
            pid, status = os.wait()
            if pid not in running:
                continue
            mutant, tests, reader = running.pop(pid)
            with os.fdopen(reader) as stream:
                begun = len(stream.read())
            if status and not self.does_pass_unchanged(tests[begun - 1]):
                waiting.append((mutant, tests[begun:]))
                continue
            self.rows.append({"area": area, "mutant": mutant.place, "is": "noticed" if status else "survived"})
            if not status:
                shown = f"{len(self.tests_of(mutant))} tests" if self.tests_of(mutant) else "not passed by a test"
                print(f"survived: {mutant.place} ({shown})", flush=True, file=sys.__stdout__)

    def tests_of(self, mutant: Mutant) -> list[int]:
        """The tests that pass the changed statement, those that pass the fewest others first, without those that fail
        in a fork without a mutant.
        """
        found = set().union(*(self.tests.get((mutant.file, line), set()) for line in mutant.lines))
        return sorted((each for each in found if self.passes_unchanged.get(each, True)), key=self.passed.__getitem__)

    def does_pass_unchanged(self, number: int) -> bool:
        if number not in self.passes_unchanged:
            pid, reader = self.fork([number], None)
            self.passes_unchanged[number] = os.waitpid(pid, 0)[1] == 0
            os.close(reader)
            if not self.passes_unchanged[number]:
                print(f"left out: {self.items[number].nodeid}", flush=True, file=sys.__stdout__)
        return self.passes_unchanged[number]

    def fork(self, tests: list[int], mutant: Mutant | None) -> tuple[int, int]:
        """Run tests in a fork until one fails; it writes a character for each that it begins."""
        reader, writer = os.pipe()
        child = os.fork()
        if child:
            os.close(writer)
            return child, reader
        os.close(reader)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if mutant:
            for function in self.functions[mutant.file, mutant.code.co_firstlineno]:
                function.__code__ = mutant.code
        for cache in self.caches:
            cache.cache_clear()
        self.has_failed = False
        for number in tests:
            os.write(writer, b".")
            signal.alarm(int(10 * self.took[number]) + 10)
            self.run(number)
            if self.has_failed:
                break
        os._exit(self.has_failed)


def main() -> int:
    """Try the mutants and print the survivors; 1 where fewer than 90 % are noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=30, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="forks at once")
    parser.add_argument(
        "--notes", type=Path, help="keep what was noted of the tests here; tests noted there are not run"
    )
    parser.add_argument("--area", action="append", choices=AREAS, help="default: all; repeat")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("tests", nargs="+", help="what pytest runs")
    options = parser.parse_args()
    sample = Sample(options.each, options.seed, options.area or list(AREAS), options.jobs, options.notes)
    pytest.main(["-q", "-p", "no:cacheprovider", "--tb=no", "--capture=sys", *options.tests], plugins=[sample])
    path = RESULTS / "mutants.json"
    result: dict[str, Any] = json.loads(path.read_text())["areas"] if path.exists() else {}
    for area in {row["area"] for row in sample.rows}:
        rows = [row for row in sample.rows if row["area"] == area]
        survivors = [row["mutant"] for row in rows if row["is"] == "survived"]
        noticed = len(rows) - len(survivors)
        result[area] = {"seed": options.seed, "sampled": len(rows), "noticed": noticed, "survivors": survivors}
        print(f"{area}: {noticed} of {len(rows)} noticed")
    if options.record:
        print(f"recorded in {record('mutants', {'areas': result})}")
    survivors = [row["mutant"] for row in sample.rows if row["is"] == "survived"]
    return int(len(survivors) > 0.1 * len(sample.rows))


if __name__ == "__main__":
    raise SystemExit(main())
