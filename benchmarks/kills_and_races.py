"""Commands that write, killed at each of their changes of the disk, and two of them at once in one folder.

After a kill each file is old or new, and the same command again leaves what it leaves undisturbed. Of two at once each
ends with 0, or with 2 and who holds the folder; what is left is what one of them leaves after the other. Without a
network; each command runs in a fork of this process, so that a few hundred of them take minutes.
"""

import argparse
import contextlib
import importlib
import io
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import devkit
from benchmarks.machine import record
from devkit.cli import run_command_line

STEPS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock", "shutil.rmtree", "os.chmod")
"""Audit events before which the command is killed; reading opens files, too, and is left out."""
CPU = ("--vendor=cpu", "--torch=2.13.0", "--python=3.11", "--machine=x86_64", "--glibc=2.36", "--no-resolve", "--yes")
GPU = ("--gpu=RTX 4090", "--driver=570.124.06", "--machine=x86_64", "--glibc=2.36", "--no-resolve", "--yes")
FOREIGN = Path(__file__).parents[1] / "tests/repositories"


def run(words: tuple[str, ...], root: Path, *, killed_at: int | None = None, output: Path | None = None) -> int:
    """Run devkit in a fork; a negative code is the signal that ended it. Its last change is killed before it is made."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.environ["HOME"] = str(root.parent / "home")
    left = killed_at

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        is_read = event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        is_elsewhere = event == "open" and not str(arguments[0]).startswith(str(root.parent))
        if left is not None and event in STEPS and not is_read and not is_elsewhere:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    stream: io.TextIOBase = output.open("w") if output else io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        sys.argv = ["devkit", *words]
        sys.stdin = io.StringIO()
        os.chdir(root)
        sys.addaudithook(count)
        code = 3
        with contextlib.suppress(BaseException):
            code = run_command_line()
        stream.flush()
    os._exit(code)


def tree(root: Path) -> dict[str, bytes]:
    """Return the files of a folder, without what was staged."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def prepare(start: Path | None, words: tuple[str, ...] | None, root: Path) -> None:
    """Make the folder that a scenario starts from."""
    if start is None:
        root.mkdir(parents=True)
    else:
        shutil.copytree(start, root, symlinks=True)
    if words is not None and (code := run(words, root)):
        raise RuntimeError(f"{words} ended with {code}")


def kill_each(
    start: Path | None, before: tuple[str, ...] | None, words: tuple[str, ...], scratch: Path, *, limit: int
) -> dict[str, object]:
    """Kill the command before each of its changes, and run it again. Returns the counts, and the steps that differ."""
    whole = scratch / "whole" / "project"
    prepare(start, before, whole)
    old = tree(whole)
    run(words, whole)
    new = tree(whole)
    kills, wrong = 0, []
    for step in range(limit):
        root = scratch / str(step) / "project"
        prepare(start, before, root)
        if run(words, root, killed_at=step) >= 0:
            break
        kills += 1
        halves = [
            path
            for path, content in tree(root).items()
            if not path.endswith(".devkit-new") and content not in (old.get(path), new.get(path))
        ]
        code = run(words, root)
        after = tree(root)
        if halves or after != new:
            differ = sorted(path for path in after.keys() | new.keys() if after.get(path) != new.get(path))
            wrong.append({"step": step, "half written": halves, "code": code, "differ": differ})
        shutil.rmtree(root.parent)
    return {"kills": kills, "wrong": wrong}


def race(
    first: tuple[str, ...], second: tuple[str, ...], before: tuple[str, ...] | None, scratch: Path, *, count: int
) -> dict[str, object]:
    """Run two commands at once. Returns how they ended, and the runs with another tree than one after the other."""
    expected = []
    for order in ((first, second), (second, first), (first,), (second,)):
        root = scratch / f"expected{len(expected)}" / "project"
        prepare(None, before, root)
        for words in order:
            run(words, root)
        expected.append(tree(root))
    ended: dict[str, int] = {}
    wrong = []
    for number in range(count):
        root = scratch / str(number) / "project"
        prepare(None, before, root)
        children = []
        for name, words in (("a", first), ("b", second)):
            child = os.fork()
            if child == 0:
                os._exit(run(words, root, output=root.parent / name) & 0xFF)
            children.append(child)
            time.sleep(0.002 * (number % 20))
        codes = tuple(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        said = [(root.parent / name).read_text() for name in "ab"]
        key = f"exit codes {codes[0]} and {codes[1]}" + (
            ", one waited" if any("Waiting for" in each for each in said) else ""
        )
        ended[key] = ended.get(key, 0) + 1
        explained = all(
            code == 0 or (code == 2 and "is writing to" in text) for code, text in zip(codes, said, strict=True)
        )
        if tree(root) not in expected or not explained:
            wrong.append({"number": number, "codes": codes, "said": [text[-300:] for text in said]})
        shutil.rmtree(root.parent)
    return {"races": count, "ended": ended, "wrong": wrong}


def main() -> int:
    """Kill and race, and record the counts; 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="at most so many of one scenario")
    parser.add_argument("--races", type=int, default=50, help="so many of each of four pairs")
    options = parser.parse_args()
    kills: dict[str, Callable[[Path], dict[str, object]]] = {}

    def add(name: str, start: Path | None, before: tuple[str, ...] | None, words: tuple[str, ...]) -> None:
        kills[name] = lambda scratch: kill_each(start, before, words, scratch, limit=options.kills)

    add("init, a new project", None, None, ("init", ".", *CPU))
    add("init, another plan", None, ("init", ".", *CPU), ("init", ".", *GPU))
    add("update after a change of devkit.toml", None, ("init", ".", *CPU), ("update", ".", "--yes", "--no-resolve"))
    for name in ("seed", "with-features", "compose-with-anchors"):
        add(f"init, a dev container of others: {name}", FOREIGN / name, None, ("init", ".", *GPU))
    add("doctor --fix", FOREIGN / "seed", None, ("doctor", "--fix", "--yes", "--project", "."))
    add("template", None, None, ("template", ".", "--only", "pytorch-cuda"))
    pairs = {
        "init with init": (("init", ".", *CPU), ("init", ".", *CPU), None),
        "init with init of another plan": (("init", ".", *CPU), ("init", ".", *GPU), None),
        "init of another plan with update": (
            ("init", ".", *GPU),
            ("update", ".", "--yes", "--no-resolve"),
            ("init", ".", *CPU),
        ),
        "template with template": (("template", ".", "--only", "pytorch-cuda"),) * 2 + (None,),
    }
    for module in pkgutil.walk_packages(devkit.__path__, "devkit."):
        if not module.name.startswith(("devkit.workload", "devkit.verify", "devkit.__main__", "devkit.probe.children")):
            importlib.import_module(module.name)
    result: dict[str, object] = {}
    is_bad = False
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, kill) in enumerate(kills.items()):
            found = kill(Path(scratch, f"kills{number}"))
            print(f"{name}: {found['kills']} kills, {len(found['wrong'])} wrong {found['wrong'][:3]}", flush=True)
            result[name], is_bad = found, is_bad or bool(found["wrong"])
        for number, (name, (first, second, before)) in enumerate(pairs.items()):
            found = race(first, second, before, Path(scratch, f"races{number}"), count=options.races)
            print(f"{name}: {found['ended']}, {len(found['wrong'])} wrong {found['wrong'][:2]}", flush=True)
            result[name], is_bad = found, is_bad or bool(found["wrong"])
    print(f"recorded in {record('kills_and_races', result)}")
    return 1 if is_bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
