"""Mutants of the source: how many of a sample the tests notice. Each is one small change within one function.

Each mutant is written into a copy of the repository, in which the tests of its area run until one fails, first those of
`make test`, then those of `make test-all`. A run that takes too long has noticed it. `--record` keeps counts and survivors.
"""

import argparse
import ast
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import RESULTS, record

ROOT = Path(__file__).resolve().parents[1]


def name_files(folder: str, names: str) -> tuple[str, ...]:
    """The paths of modules of a folder."""
    return tuple(f"{folder}/{name}.py" for name in names.split())


AREAS = {
    "doctor": (("devkit/doctor",), ("tests/doctor", "tests/cli/test_doctor.py", "tests/cli/test_explain.py")),
    "solver": (("devkit/solver",), ("tests/solver", "tests/cli/test_plan.py", "tests/cli/test_plan_resolution.py")),
    "probe": (
        ("devkit/probe",),
        ("tests/probe", "tests/doctor/test_machines.py", "tests/cli/test_explain_releases.py"),
    ),
    "render": (
        ("devkit/render",),
        ("tests/render", "tests/cli/test_init.py", "tests/cli/test_update.py", "tests/cli/test_plan_resolution.py"),
    ),
    "export": (("devkit/export",), ("tests/export", "tests/cli/test_export.py")),
    "estimate": (("devkit/estimate",), ("tests/estimate", "tests/cli/test_estimate.py", "tests/export/test_sizing.py")),
    "cli": (("devkit/cli",), ("tests/cli",)),
    # What SECURITY.md promises: fewer modules, and the tests that hold each promise.
    "resolver": (
        name_files("devkit", "probe/uv_resolver probe/package_indexes user_folder"),
        name_files("tests", "probe/test_uv_resolver cli/test_private_indexes cli/test_explain_releases"),
    ),
    "journal": (
        name_files("devkit", "render/changes render/files render/diffs whole_files folder_lock"),
        name_files("tests", "test_whole_files test_folder_lock cli/test_hostile_folder cli/test_update")
        + name_files("tests/render", "test_write test_diffs test_repair"),
    ),
    "redaction": (
        name_files("devkit", "facts/secrets render/diffs"),
        name_files("tests", "render/test_diffs facts/test_redact cli/test_planted_secrets"),
    ),
    "sinks": (
        (
            *(*name_files("devkit", "text cli/output cli/terminal"), "devkit/doctor/report"),
            *name_files("devkit", "render/html formats/shell export/values"),
        ),
        name_files("tests/doctor", "test_report test_report_formats test_first_screen test_hostile_facts")
        + name_files("tests", "test_text formats/test_shell export/test_values render/test_report_page")
        + name_files("tests", "render/test_injection cli/test_terminal cli/test_planted_secrets cli/test_hostile_text"),
    ),
}
"""The source of each area, and the tests that may notice a change in it: fewer than all, so the share is a lower bound."""
TIERS = {"make test": "not full and not nightly", "make test-all": "full and not engine"}
DEADLINE_S = 600.0
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


def list_mutants(paths: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Every mutant of an area: its file, its function's place among those of the file, and its number within that."""
    found = []
    for file in list_files(paths):
        for place, function in enumerate(list_functions(ast.parse(file.read_text(encoding="utf-8")))):
            count = sum(len(list(mutations(*each))) for each in list_nodes(function))
            found += [(str(file), place, number) for number in range(count)]
    return found


def mutate(file: str, place: int, number: int) -> tuple[str, str]:
    """The source with that mutant, and what it changes in a few words."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    function = list(list_functions(tree))[place]
    words, change = [change for each in list_nodes(function) for change in mutations(*each)][number]
    change()
    return ast.unparse(ast.fix_missing_locations(tree)), f"{file}: {function.name}, {words}"


def list_tests(area: str, words: Iterable[str] = ()) -> list[str]:
    """The test modules of an area, first those that name these words most often."""
    paths = (Path(each) for each in AREAS[area][1])
    modules = [module for path in paths for module in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    texts = {module: module.read_text(encoding="utf-8") for module in modules}
    return sorted(map(str, modules), key=lambda module: -sum(texts[Path(module)].count(word) for word in words))


def list_words(mutant: tuple[str, int, int]) -> list[str]:
    """The names under which tests may know the mutated function: its own, its module's, and its decorators' strings."""
    file, place, _ = mutant
    function = list(list_functions(ast.parse(Path(file).read_text(encoding="utf-8"))))[place]
    strings = [
        node.value for each in function.decorator_list for node in ast.walk(each) if isinstance(node, ast.Constant)
    ]
    return [function.name, Path(file).stem, *(each for each in strings if isinstance(each, str))]


def find_failing(copy: Path, tests: list[str], marks: str) -> str:
    """Run these tests in a copy, of those with such marks, until one fails; its name, "" where all pass."""
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", marks, *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            argv, cwd=copy, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "the deadline"
    if done.returncode in (0, 5):  # 5: no test has such marks
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return named[1] if named else f"exit status {done.returncode}"


def notice(copy: Path, area: str, mutant: tuple[str, int, int], tiers: dict[str, str]) -> dict[str, str]:
    """Run the tests of the area on the mutant; "by" is the tier that noticed it, "" for none."""
    text, what = mutate(*mutant)
    target = copy / mutant[0]
    original = target.read_text(encoding="utf-8")
    target.write_text(text, encoding="utf-8")
    tests = list_tests(area, list_words(mutant))
    by = failing = ""
    try:
        # Most are noticed by the first modules: the others need not be collected for them.
        for tier, part in ((tier, part) for tier in tiers for part in (tests[:2], tests[2:]) if part):
            if failing := find_failing(copy, part, tiers[tier]):
                by = tier
                break
    finally:
        target.write_text(original, encoding="utf-8")
    print(f"{by or 'SURVIVED':14} {what}  {failing}", flush=True)
    return {"area": area, "mutant": what, "by": by}


def main() -> int:
    """Try the mutants and print the survivors; 1 where `make test` notices fewer than 85 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=15, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--area", action="append", choices=AREAS, help="default: all; repeat")
    parser.add_argument("--quick", action="store_true", help="only the tests of make test")
    parser.add_argument("--keep", type=Path, help="a file of what was tried, which a run that was ended goes on from")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    areas = options.area or list(AREAS)
    tiers = {"make test": TIERS["make test"]} if options.quick else TIERS
    wanted = [
        (area, mutant)
        for area in areas
        for mutant in random.Random(f"{options.seed} {area}").sample(list_mutants(AREAS[area][0]), options.each)
    ]
    kept = options.keep.read_text(encoding="utf-8").splitlines() if options.keep and options.keep.exists() else []
    tried: dict[tuple[str, int, int], dict[str, str]] = {tuple(at): row for at, row in map(json.loads, kept)}
    with tempfile.TemporaryDirectory(prefix="devkit-mutants-") as scratch:
        copies: SimpleQueue[Path] = SimpleQueue()
        ignored = shutil.ignore_patterns(".venv", ".git", "build", ".cache", "__pycache__", ".*_cache", ".hypothesis")
        for number in range(options.jobs):
            copies.put(Path(shutil.copytree(ROOT, Path(scratch, str(number)), ignore=ignored, symlinks=True)))

        def try_one(each: tuple[str, tuple[str, int, int]]) -> dict[str, str]:
            if each[1] in tried:
                return tried[each[1]]
            copy = copies.get()
            try:
                row = notice(copy, *each, tiers)
            finally:
                copies.put(copy)
            if options.keep:
                with options.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([each[1], row]) + "\n")
            return row

        def try_none(area: str, tier: str) -> str:
            copy = copies.get()
            try:
                return find_failing(copy, list_tests(area), tiers[tier])
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(options.jobs) as pool:
            begun = {row["area"] for row in tried.values()}
            pairs = [(area, tier) for tier in tiers for area in areas if area not in begun]
            for (area, tier), failing in zip(pairs, pool.map(try_none, *zip(*pairs, strict=True)), strict=True):
                if failing:
                    parser.error(f"the tests of {area} in {tier} fail without a mutant: {failing}")
            rows = list(pool.map(try_one, wanted))
    result = {}
    for area in areas:
        by = [row["by"] for row in rows if row["area"] == area]
        survivors = [row["mutant"] for row in rows if row["area"] == area and not row["by"]]
        quick = by.count("make test")
        result[area] = {"seed": options.seed, "sampled": len(by), "make test": quick, "survivors": survivors}
        print(f"{area}: make test notices {quick} of {len(by)}, with make test-all {len(by) - len(survivors)}")
    if options.record:
        known = json.loads((RESULTS / "mutants.json").read_text(encoding="utf-8"))["areas"]
        print(f"recorded in {record('mutants', {'areas': {**known, **result}})}")
    return int(sum(row["by"] == "make test" for row in rows) < 0.85 * len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
