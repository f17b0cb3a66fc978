"""Commands that write, killed at each of their changes of the disk, and two of them at once in one folder.

After a kill each file is old or new, and the same command again leaves what it leaves undisturbed. Of two at once each
ends with 0, or with 2 and who holds the folder; what is left is what one of them leaves after the other. A training
that was killed resumes to the same adapter, byte for byte. Without a network; each command runs in a fork of a process
that has everything imported, so that a few hundred of them take minutes.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import pkgutil
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import devkit
from benchmarks.machine import RESULTS, record
from devkit.cli import run_command_line
from tests.repositories import write_repository

STEPS = (
    *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock", "shutil.rmtree", "os.chmod"),
    *("os.symlink", "shutil.copyfile"),
)
"""Audit events before which the command is killed; reading opens files, too, and is left out."""
TRAINING = ("finetune", "--json", "--batch=4", "--steps=5", "--save-every=2", "--set=dropout=0.2", "--seed=3")
JOB = ("--settings", "run.toml", "--gpu", "RTX 4090", "--image", "registry.example.org/tide:1", "--yes")
CPU = ("--vendor=cpu", "--torch=2.13.0", "--python=3.11", "--machine=x86_64", "--glibc=2.36", "--no-resolve", "--yes")
GPU = ("--gpu=RTX 4090", "--driver=570.124.06", "--machine=x86_64", "--glibc=2.36", "--no-resolve", "--yes")
Command = tuple[str, ...] | Callable[[], object]
"""Words for devkit, or what is to be done in the folder."""
UNFINISHED = re.compile(r"\.devkit-(new|partial|before|part)\b")
"""In the names of what is not yet, or no longer, a file of the user's."""


def kill_before(change: int, folder: str) -> None:
    """End this process with SIGKILL before its change of that number in the folder."""
    left = change

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event not in STEPS:
            return
        is_read = event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        is_elsewhere = event == "open" and not str(arguments[0]).startswith(folder)
        if not is_read and not is_elsewhere:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(count)


def run(command: Command, root: Path, *, killed_at: int | None = None, output: Path | None = None) -> int:
    """Run devkit in a fork; a negative code is the signal that ended it. Its last change is killed before it is made."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.environ["HOME"] = str(root.parent / "home")
    stream: io.TextIOBase = output.open("w") if output else io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        sys.stdin = io.StringIO()
        os.chdir(root)
        if killed_at is not None:
            kill_before(killed_at, str(root.parent))
        code = 3
        with contextlib.suppress(BaseException):
            if callable(command):
                command()
                code = 0
            else:
                sys.argv = ["devkit", *command]
                code = run_command_line()
        stream.flush()
    os._exit(code)


def tree(root: Path) -> dict[str, bytes]:
    """Return the files of a folder, without what was staged."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def prepare(repository: str | None, command: Command | None, root: Path) -> None:
    """Make the folder that a scenario starts from."""
    root.mkdir(parents=True)
    if repository is not None:
        write_repository(repository, root)
    if command is not None and (code := run(command, root)):
        raise RuntimeError(f"{command} ended with {code}")


def kill_each(
    repository: str | None, before: Command | None, command: Command, scratch: Path, *, limit: int
) -> dict[str, Any]:
    """Kill the command before each of its changes, and run it again. Returns the counts, and the steps that differ."""
    whole = scratch / "whole" / "project"
    prepare(repository, before, whole)
    old = tree(whole)
    run(command, whole)
    new = tree(whole)
    kills, wrong = 0, []
    for step in range(limit):
        root = scratch / str(step) / "project"
        prepare(repository, before, root)
        if run(command, root, killed_at=step) >= 0:
            break
        kills += 1
        halves = [
            path
            for path, content in tree(root).items()
            if not UNFINISHED.search(path) and content not in (old.get(path), new.get(path))
        ]
        code = run(command, root)
        after = tree(root)
        if halves or after != new:
            differ = sorted(path for path in after.keys() | new.keys() if after.get(path) != new.get(path))
            wrong.append({"step": step, "half written": halves, "code": code, "differ": differ})
        shutil.rmtree(root.parent)
    return {"kills": kills, "wrong": wrong}


def kill_training(scratch: Path, *, world: int, limit: int) -> dict[str, Any]:
    """Kill the first process of a training before each of its changes, and resume. Returns the counts, and what differs."""
    from devkit.workload.finetune.checkpoint import list_checkpoints, verify_checkpoint
    from tests.workload.finetune import zygote as forks
    from tests.workload.finetune.run_factory import RunFactory

    forks.WAIT_S = 600.0  # a busy machine is no hang
    scratch.mkdir()
    factory = RunFactory(scratch)
    words = [*TRAINING, "--model", str(factory.base), "--data", str(factory.texts)]
    if world > 1:
        words += ["--sharding", "zero3"]
    kills, wrong = 0, []
    with forks.Zygote(scratch) as zygote:

        def train(output: Path, killed_at: int | None = None) -> list[int]:
            fault = {} if killed_at is None else {"killed before a change": [killed_at, str(output)]}
            return zygote.start([*words, "--output", str(output)], world=world, places={0: {"faults": fault}}).ended()

        train(scratch / "whole")
        expected = tree(scratch / "whole" / "adapter")
        for step in range(limit):
            output = scratch / str(step)
            if train(output, step)[0] != -signal.SIGKILL:
                break
            kills += 1
            for _, checkpoint in list_checkpoints(output):
                verify_checkpoint(checkpoint)
            codes = train(output)
            left = [path.name for path in output.iterdir() if ".tmp-" in path.name or ".old-" in path.name]
            if any(codes) or left or tree(output / "adapter") != expected:
                wrong.append({"step": step, "codes": codes, "left": left})
            shutil.rmtree(output)
    return {"kills": kills, "wrong": wrong}


def bundle() -> None:
    """Build a bundle in the working folder, with a program in docker's place."""
    from devkit.verify.bundle import BundleBuilder, build_bundle, prepare_partial_folder
    from devkit.verify.engine import WorkingEngine
    from tests.doctor.machines import healthy
    from tests.verify.test_bundle import BUNDLE, PROGRAM

    program = Path.cwd().parent / "bin/docker"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    output = Path.cwd() / "bundle"
    engine = WorkingEngine(healthy().engine, ("docker", "compose"))
    folder = prepare_partial_folder(output, force=True)
    build_bundle(BundleBuilder(BUNDLE, engine, folder, None, lambda line: None), output)


def make_job() -> None:
    """Make a project with a dev container and the settings of a run in the working folder."""
    Path("run.toml").write_text('model = "meta-llama/Llama-3.2-1B"\ndata = ["chats.jsonl"]\noutput = "tuned"\n')
    call("init", ".", *GPU)


def change_settings() -> None:
    """Make a dev container, and then the change of its settings that an update has to carry out."""
    call("init", ".", *CPU)
    settings = Path("devkit.toml")
    settings.write_text(settings.read_text() + '\n[project]\napt = ["jq"]\n')


def export_job() -> None:
    """Make such a project, and export its job."""
    make_job()
    call("export", "slurm", ".", "--partition=gpu", *JOB)


def call(*words: str) -> None:
    """Run devkit in this process."""
    sys.argv = ["devkit", *words]
    if code := run_command_line():
        raise RuntimeError(f"{words} ended with {code}")


def race(first: Command, second: Command, before: Command | None, scratch: Path, *, count: int) -> dict[str, Any]:
    """Run two commands at once. Returns how they ended, and the runs with another tree than one after the other."""
    expected = []
    for order in ((first, second), (second, first), (first,), (second,)):
        root = scratch / f"expected{len(expected)}" / "project"
        prepare(None, before, root)
        for command in order:
            run(command, root)
        expected.append(tree(root))
    ended: dict[str, int] = {}
    wrong = []
    for number in range(count):
        root = scratch / str(number) / "project"
        prepare(None, before, root)
        children = []
        for name, command in (("a", first), ("b", second)):
            child = os.fork()
            if child == 0:
                os._exit(run(command, root, output=root.parent / name) & 0xFF)
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
    parser.add_argument("--only", default="", help="scenarios whose name contains this; the others stay as recorded")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--races", type=int, default=50, help="so many of each of four pairs")
    options = parser.parse_args()
    scenarios: dict[str, Callable[[Path], dict[str, Any]]] = {}

    def add(name: str, repository: str | None, before: Command | None, command: Command) -> None:
        scenarios[name] = lambda scratch: kill_each(repository, before, command, scratch, limit=options.kills)

    add("init, a new project", None, None, ("init", ".", *CPU))
    add("init, another plan", None, ("init", ".", *CPU), ("init", ".", *GPU))
    add("update after a change of devkit.toml", None, change_settings, ("update", ".", "--yes", "--no-resolve"))
    for name in ("seed", "with-features", "compose-with-anchors"):
        add(f"init, a dev container of others: {name}", name, None, ("init", ".", *GPU))
    add("doctor --fix", "seed", None, ("doctor", "--fix", "--yes", "--project", "."))
    add("template", None, None, ("template", ".", "--only", "pytorch-cuda"))
    add("export kubernetes", None, make_job, ("export", "kubernetes", ".", *JOB))
    add("export slurm, another job", None, export_job, ("export", "slurm", ".", "--partition=gpu", "--gpus=4", *JOB))
    add("bundle", None, None, bundle)
    add("bundle in place of an older one", None, bundle, bundle)
    for world, name in ((1, "finetune"), (2, "finetune, two processes that share the model")):
        scenarios[name] = lambda scratch, world=world: kill_training(scratch, world=world, limit=options.kills)
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
    for name, (first, second, before) in pairs.items():
        scenarios[name] = lambda scratch, of=(first, second, before): race(*of, scratch, count=options.races)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, measure) in enumerate(scenarios.items()):
            if options.only in name:
                found = result[name] = measure(Path(scratch, str(number)))
                print(f"{name}: {found}", flush=True)
    path = RESULTS / "kills_and_races.json"
    before = json.loads(path.read_text())["scenarios"] if path.exists() else {}
    result = {**{name: found for name, found in before.items() if name in scenarios}, **result}
    wrong = sum(len(found["wrong"]) for found in result.values())
    total = {kind: sum(found.get(kind, 0) for found in result.values()) for kind in ("kills", "races")}
    print(f"{total['kills']} kills and {total['races']} races, {wrong} wrong")
    if options.record:
        print(f"recorded in {record('kills_and_races', {**total, 'wrong': wrong, 'scenarios': result})}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
