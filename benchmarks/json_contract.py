"""Compare the JSON documents of two checkouts of devkit: what a refactoring changed of what others read.

    git worktree add /tmp/before 1904574
    python -m benchmarks.json_contract /tmp/before .

Both judge and plan for every recorded machine from the same saved facts, plan for six GPUs under four drivers, estimate three models,
and explain the error texts of the failure catalog. Printed are documents whose shape differs, and of each field how many values differ
and how many of these are distinct. Times, dates and durations are left out; checks are matched by their codes.
"""

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VARIES = {"ms", "taken_at", "devkit"}
GPUS = ("RTX 4090", "H100", "Tesla T4", "RTX 5090", "Tesla P40", "MI300X")
DRIVERS = ("535.54.03", "550.54.14", "570.124.06", "580.65.06")
MODELS = ("llama-3.1-8b", "qwen2.5-0.5b", "mistral-7b")
RUN = """
import contextlib, io, json, sys
sys.path.insert(0, sys.argv[1])
import click
from devkit.cli import devkit
for line in sys.stdin:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = devkit(json.loads(line), standalone_mode=False)
        except click.exceptions.Exit as end:
            code = end.exit_code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    out.flush()
    print(json.dumps([code, out.buffer.getvalue().decode()]), file=sys.__stdout__)
"""


def commands(folder: Path) -> Iterator[list[str]]:
    """Every command to compare; saved facts are written into `folder`."""
    from tests.hosts import MACHINES
    from tests.hosts.golden import expected_document

    yield ["doctor", "--list", "--json"]
    for name in MACHINES:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(expected_document(name)), encoding="utf-8")
        yield ["doctor", "--facts", str(path), "--json"]
        yield ["plan", "--facts", str(path), "--json"]
    for gpu in GPUS:
        yield from (["plan", "--gpu", gpu, "--driver", driver, "--json"] for driver in DRIVERS)
    for model in MODELS:
        yield from (
            ["estimate", model, "--method", method, "--gpu", "H100", "--json"] for method in ("full", "lora", "qlora")
        )
        yield ["estimate", model, "--inference", "--json"]
    for text in load_catalog_texts():
        yield ["explain", text, "--json"]


def load_catalog_texts() -> list[str]:
    """Error texts as people paste them, of the tests of `devkit explain`."""
    table = tomllib.loads((ROOT / "tests" / "doctor" / "pasted_errors.toml").read_text(encoding="utf-8"))
    return [row["text"] for row in table["error"]]


def answers(tree: Path, lines: list[str]) -> list[tuple[object, object]]:
    argv = [sys.executable, "-P", "-c", RUN, str(tree.resolve())]
    done = subprocess.run(
        argv, input="".join(lines), capture_output=True, text=True, check=True, cwd=tempfile.gettempdir()
    )
    found = []
    for line in done.stdout.splitlines():
        code, text = json.loads(line)
        found.append((code, json.loads(text) if text.startswith("{") else text))
    return found


def differences(before: object, after: object, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Path, old and new value of everything that differs."""
    if (
        isinstance(before, list)
        and all(isinstance(each, dict) and "code" in each for each in before)
        and path != ".matches"
    ):
        before = {each["code"]: each for each in before}
        after = {each["code"]: each for each in after} if isinstance(after, list) else after
        path += ".*"
        for code in before.keys() & after.keys() if isinstance(after, dict) else ():
            yield from differences(before[code], after[code], path)
        yield from (
            (f"{path} new code", "", code)
            for code in (after.keys() if isinstance(after, dict) else set()) - before.keys()
        )
        yield from (
            (f"{path} lost code", code, "")
            for code in before.keys() - (after.keys() if isinstance(after, dict) else set())
        )
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in sorted((before.keys() | after.keys()) - VARIES):
            if key in before and key in after:
                yield from differences(before[key], after[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}", repr(before.get(key)), repr(after.get(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for old, new in zip(before, after, strict=True):
            yield from differences(old, new, f"{path}.*")
    elif before != after or type(before) is not type(after):
        yield path, str(before), str(after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--show", metavar="FIELD", default=None, help="also print the distinct differences of this field"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = [json.dumps(words) + "\n" for words in commands(Path(folder))]
        old, new = answers(given.before, lines), answers(given.after, lines)
    found: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for before, after in zip(old, new, strict=True):
        for path, was, is_now in differences(
            {"exit code": before[0], "": before[1]}, {"exit code": after[0], "": after[1]}
        ):
            found[path].append((was, is_now))
    equal = sum(before == after for before, after in zip(old, new, strict=True))
    print(f"{len(lines)} documents, {equal} equal")
    for path, pairs in sorted(found.items(), key=lambda each: -len(each[1])):
        print(f"{len(pairs):6} values, {len(set(pairs)):4} distinct: {path}")
        if path == given.show:
            for was, is_now in sorted(set(pairs)):
                print(f"  - {was}\n  + {is_now}")


if __name__ == "__main__":
    main()
