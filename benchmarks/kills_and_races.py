"""Commands that write: killed, on a full disk, and two of them at once in one folder. Each runs in a process of its own.

Half of the kills come before a change of the disk drawn at random, the others at a random moment. After a kill or on a
full disk each file is old or new, and the same command again ends with what it leaves undisturbed. Of two at once each
ends with 0, or with 2 and who holds the folder; what is left is what one of them leaves after the other. A training
that was killed resumes to the same adapter, byte for byte. Full disks need root. Only `fetch` uses a network.
"""

import argparse
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import RESULTS, record
from tests.repositories import write_repository

ROOT = Path(__file__).resolve().parents[1]
STEPS = (
    *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock", "shutil.rmtree", "os.chmod"),
    *("os.symlink", "shutil.copyfile"),
)
"""Audit events before which the command is killed; reading opens files, too, and is left out."""
PROGRAM = """
import sys
from benchmarks import kills_and_races
kills_and_races.run_counted(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
"""
TRAINING = ("finetune", "--json", "--batch=4", "--steps=5", "--save-every=2", "--set=dropout=0.2", "--seed=3")
JOB = ("--settings", "run.toml", "--gpu", "RTX 4090", "--image", "registry.example.org/tide:1", "--yes")
PLATFORM = ("--set=machine=x86_64", "--set=glibc=2.36", "--no-resolve", "--yes")
CPU = ("--vendor=cpu", "--torch=2.13.0", "--python=3.11", *PLATFORM)
RTX_4090 = ("--gpu=RTX 4090", "--driver=570.124.06")
GPU = (*RTX_4090, *PLATFORM)
FACTS = str(ROOT / "tests/hosts/ubuntu-4090-ok/facts.json")
Command = tuple[str, ...]
"""Words for devkit; "bundle" alone stands for `build_bundle` with a program in docker's place, "append" for an edit."""
UNFINISHED = re.compile(r"\.devkit-(new|partial|before|part)\b|\.\d+-\d+$|\.tmp-")
"""In the names of what is not yet, or no longer, a file of the user's."""
ENDED_LINE = re.compile(r"finished the changes of an interrupted devkit|an earlier devkit was interrupted")
WAIT_S = 300.0


def kill_before(change: int, folder: str) -> Callable[[], int]:
    """End this process with SIGKILL before its change of that number in the folder. Returns what counts the changes."""
    done = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        if event not in STEPS:
            return
        is_read = event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        is_elsewhere = event == "open" and not str(arguments[0]).startswith(folder)
        if not is_read and not is_elsewhere:
            if done == change:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1

    sys.addaudithook(count)
    return lambda: done


def run_counted(folder: str, killed_at: int, words: list[str]) -> None:
    """Run devkit in this process, killed before a change; -1 for none, which prints how many there were."""
    from devkit.cli import run_command_line
    from devkit.errors import DevkitError

    count = kill_before(killed_at, folder)
    sys.argv = ["devkit", *words]
    try:
        code = bundle() if words == ["bundle"] else run_command_line()
    except DevkitError as error:
        code = print(error, file=sys.stderr) or 2
    if killed_at < 0:
        print(f"\nchanges of the disk: {count()}", file=sys.stderr)
    sys.stdout.flush()
    sys.exit(code)


def start(command: Command, root: Path, *, killed_at: int = -1) -> subprocess.Popen[str]:
    """Start devkit in the folder, in a process with a hash seed of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": str(random.randrange(2**32)), "PYTHONPATH": str(ROOT)}
    environment |= {"HOME": str(root.parent / "home"), "HF_HOME": str(root / "hub"), "UV_CACHE_DIR": str(root / "uv")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root.parent), str(killed_at), *command],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(command: Command, root: Path, *, killed_at: int = -1, after_s: float = WAIT_S) -> tuple[int, str]:
    """Run devkit to its end, which SIGKILL brings after that time; its code, negative for a signal, and its stderr."""
    with start(command, root, killed_at=killed_at) as child:
        try:
            said = child.communicate(timeout=after_s)[1]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            said = child.communicate()[1]
        return child.returncode, said


def tree(root: Path) -> dict[str, bytes]:
    """Return the files of a folder, without the cache of uv."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and "uv" not in path.relative_to(root).parts)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


class Scenario:
    """A command in a folder that is made once. `old`, `new` are its files before and after the command undisturbed."""

    def __init__(self, scratch: Path, repository: str | None, before: tuple[Command, ...], command: Command) -> None:
        self.scratch, self.command = scratch, command
        self.made = scratch / "made"
        (self.made / "project").mkdir(parents=True)
        if repository is not None:
            write_repository(repository, self.made / "project")
        Path(self.made, "project/run.toml").write_text('model = "meta-llama/Llama-3.2-1B"\ndata = ["chats.jsonl"]\n')
        for each in before:
            if each[0] == "append":
                with Path(self.made, "project", each[1]).open("a") as file:
                    file.write(each[2])
                continue
            code, said = run(each, self.made / "project")
            if code not in (0, 1):
                raise RuntimeError(f"{each} ended with {code}: {said}")
        self.old = tree(self.made / "project")
        whole = self.copy("whole")
        began = time.monotonic()
        self.code, said = run(command, whole)
        self.seconds = time.monotonic() - began
        self.changes = int(said.rpartition("changes of the disk: ")[2])
        self.new = tree(whole)
        if self.new == self.old:
            raise RuntimeError(f"{command} changes nothing: {said}")

    def copy(self, name: str) -> Path:
        """Copy the folder that the command starts from."""
        return shutil.copytree(self.made, self.scratch / name, symlinks=True) / "project"

    def judge(self, root: Path, then: dict[str, bytes]) -> tuple[dict[str, Any], str]:
        """Run the command again; what was half written, lost or is not as it should be, and what the command said."""
        halves = [
            path
            for path, content in then.items()
            if not UNFINISHED.search(path) and content not in (self.old.get(path), self.new.get(path))
        ]
        lost = sorted(path for path in self.old if path in self.new and path not in then)
        code, said = run(self.command, root)
        after = tree(root)
        # `fetch` removes what a killed one left when an hour has passed: another may still be writing.
        paths = (path for path in after.keys() | self.new.keys() if ".tmp-" not in path)
        differ = sorted(path for path in paths if after.get(path) != self.new.get(path))
        wrong = {"half written": halves, "lost": lost, "differ": differ} if halves or lost or differ else {}
        # The doctor also judges the disk, which may be a problem.
        has_ended = code in (self.code, int(self.command[0] == "doctor"))
        return wrong | ({} if has_ended and not wrong else {"code": code, "said": said[-300:]}), said

    def kill(self, count: int) -> dict[str, Any]:
        """Kill the command so many times."""
        steps = random.sample(range(self.changes), min(self.changes, count - count // 2))
        wrong, kills, told = [], 0, 0
        for number in range(count):
            root = self.copy(f"kill-{number}")
            if number < len(steps):
                at: dict[str, Any] = {"killed_at": steps[number]}
            else:
                at = {"after_s": random.uniform(0.0, self.seconds)}
            kills += run(self.command, root, **at)[0] == -signal.SIGKILL
            found, said = self.judge(root, tree(root))
            told += bool(ENDED_LINE.search(said))
            if found:
                wrong.append({**at, **found})
            shutil.rmtree(root.parent)
        return {"kills": kills, "told by the next run": told, "wrong": wrong}

    def fill(self, count: int) -> dict[str, Any]:
        """Run the command on so many disks, each with less room than its new files take."""
        changed = [content for path, content in self.new.items() if content != self.old.get(path)]
        blocks = sum(-(-len(content) // 4096) for content in changed)
        wrong, full = [], 0
        for number in range(count):
            folder = self.scratch / f"disk-{number}"
            folder.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", folder], check=True)
            try:
                shutil.copytree(self.made, folder, symlinks=True, dirs_exist_ok=True)
                root = folder / "project"
                disk = os.statvfs(folder)
                size = disk.f_blocks - disk.f_bfree + random.randrange(max(1, blocks))
                subprocess.run(["mount", "-o", f"remount,size={size * 4}k", folder], check=True)
                code, said = run(self.command, root)
                full += code not in (0, self.code)
                then = tree(root)
                subprocess.run(["mount", "-o", "remount,size=256m", folder], check=True)
                found, _ = self.judge(root, then)
                if found or "Traceback" in said:
                    wrong.append({"KiB": size * 4, "first": said[-300:], **found})
            finally:
                subprocess.run(["umount", folder], check=True)
        return {"disks": count, "refused": full, "wrong": wrong}


def kill_training(scratch: Path, *, world: int, limit: int) -> dict[str, Any]:
    """Kill the first process of a training before each of its changes, and resume. Returns the counts, and what differs."""
    from devkit.workload.finetune.checkpoint import list_checkpoints, verify_checkpoint
    from tests.workload.finetune import zygote as forks
    from tests.workload.finetune.run_factory import RunFactory

    forks.WAIT_S = 600.0  # a busy machine is no hang
    scratch.mkdir(parents=True)
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


def bundle() -> int:
    """Build a bundle in the working folder, with a program in docker's place."""
    from devkit.verify.bundle import BundleBuilder, build_bundle, discard_unfinished, prepare_partial_folder
    from devkit.verify.dev_container import WorkingEngine
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
    discard_unfinished(folder)
    build_bundle(BundleBuilder(BUNDLE, engine, folder, None, lambda line: None), output)
    return 0


def race(scratch: Path, first: Command, second: Command, before: tuple[Command, ...], *, count: int) -> dict[str, Any]:
    """Run two commands at once. Returns how they ended, and the runs with another tree than one after the other."""
    expected = [
        Scenario(scratch / str(number), None, (*before, *order[:-1]), order[-1]).new
        for number, order in enumerate(((first, second), (second, first), (first,), (second,)))
    ]
    made = Scenario(scratch / "start", None, before, first)
    ended: collections.Counter[str] = collections.Counter()
    wrong = []
    for number in range(count):
        root = made.copy(f"race-{number}")
        children = []
        for command in (first, second):
            children.append(start(command, root))
            time.sleep(0.02 * (number % 10))
        said = [child.communicate()[1] for child in children]
        codes = tuple(child.returncode for child in children)
        waited = ", one waited" if any("Waiting for" in each for each in said) else ""
        ended[f"exit codes {codes[0]} and {codes[1]}{waited}"] += 1
        explained = all(
            code == 0 or (code == 2 and "is writing to" in text) for code, text in zip(codes, said, strict=True)
        )
        if tree(root) not in expected or not explained:
            wrong.append({"number": number, "codes": codes, "said": [text[-300:] for text in said]})
        shutil.rmtree(root.parent)
    return {"races": count, "ended": ended, "wrong": wrong}


def list_scenarios() -> dict[str, tuple[str | None, tuple[Command, ...], Command]]:
    """The commands that write: the repository and the commands before them, and the command itself."""
    init, slurm = ("init", ".", *GPU), ("export", "slurm", ".", "--partition=gpu", *JOB)
    return {
        "init, a new project": (None, (), ("init", ".", *CPU)),
        "init, another plan": (None, (("init", ".", *CPU),), init),
        "update": (
            None,
            (("init", ".", *CPU), ("append", "devkit.toml", '\n[project]\napt = ["jq"]\n')),
            ("update", ".", "--yes", "--no-resolve"),
        ),
        **{
            f"init, a dev container of others: {name}": (name, (), ("init", ".", *RTX_4090, "--yes"))
            for name in ("seed", "with-features", "compose-with-anchors")
        },
        "doctor --fix": ("seed", (), ("doctor", "--fix", "--yes", "--no-trial", "--project", ".")),
        "export kubernetes": (None, (init,), ("export", "kubernetes", ".", *JOB)),
        "export slurm, another job": (None, (init, slurm), (*slurm, "--gpus=4")),
        "bundle": (None, (), ("bundle",)),
        "bundle in place of an older one": (None, (("bundle",),), ("bundle",)),
        "saved facts": (
            None,
            (("append", "facts.json", "older"),),
            ("doctor", "--facts", FACTS, "--save-facts", "facts.json"),
        ),
        "report": (
            None,
            (("doctor", "--facts", FACTS, "--format=html", "--output=report.html"),),
            ("doctor", "--facts", FACTS, "--strict", "--verbose", "--format=html", "--output=report.html"),
        ),
        "fetch": (None, (), ("fetch", "smollm2-135m")),
    }


def main() -> int:
    """Kill, fill and race, and record the counts; 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="so many of each scenario, and at most of each training")
    parser.add_argument("--disks", type=int, default=6, help="so many of each scenario without `fetch`")
    parser.add_argument("--races", type=int, default=20, help="so many of each of three pairs")
    parser.add_argument("--only", default="", help="scenarios whose name contains this; the others stay as recorded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    random.seed(options.seed)
    cpu, gpu = ("init", ".", *CPU), ("init", ".", *GPU)
    pairs = {
        "init with init": (cpu, cpu, ()),
        "init with init of another plan": (cpu, gpu, ()),
        "init of another plan with update": (gpu, ("update", ".", "--yes", "--no-resolve"), (cpu,)),
    }
    result: dict[str, Any] = {}

    def keep(name: str, found: dict[str, Any]) -> None:
        result[name] = found
        print(f"{name}: {found}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for number, (name, of) in enumerate(list_scenarios().items()):
            if options.only in name:
                scenario = Scenario(scratch / str(number), *of)
                found = scenario.kill(options.kills)
                if name != "fetch" and os.geteuid() == 0:
                    disks = scenario.fill(options.disks)
                    found |= {**disks, "wrong": found["wrong"] + disks["wrong"]}
                keep(name, found)
        for name, (first, second, before) in pairs.items():
            if options.only in name:
                keep(name, race(scratch / name, first, second, before, count=options.races))
        for world, name in ((1, "finetune"), (2, "finetune, two processes that share the model")):
            if options.only in name:
                keep(name, kill_training(scratch / name, world=world, limit=options.kills))
    path = RESULTS / "kills_and_races.json"
    names = {*list_scenarios(), *pairs, "finetune", "finetune, two processes that share the model"}
    earlier = json.loads(path.read_text())["scenarios"] if path.exists() else {}
    result = {**{name: found for name, found in earlier.items() if name in names}, **result}
    wrong = sum(len(found["wrong"]) for found in result.values())
    total = {kind: sum(found.get(kind, 0) for found in result.values()) for kind in ("kills", "disks", "races")}
    print(f"{total['kills']} kills, {total['disks']} full disks and {total['races']} races, {wrong} wrong")
    if options.record:
        print(f"recorded in {record('kills_and_races', {**total, 'wrong': wrong, 'scenarios': result})}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
