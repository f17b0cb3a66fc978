"""Hostile files, one at a time, before the commands that read them: seconds and megabytes of each, and how it ended.

A command may take 10 s of processor time and 500 MB for any input, and answers with an exit code of its own: never a
traceback, never a signal. A child is killed after 20 s of it, or after 15 s in which it takes none, and gets no more
than 6 GB, so that the machine survives. Commands that import torch run in forks of a process that has it imported, and
may take so much more than they take for a harmless input, which is measured first.
"""

import argparse
import atexit
import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import RESULTS, record
from tests import forked_commands

NAME = "hostile_inputs"
MAX_SECONDS, MAX_MEGABYTES = 10, 500
KILLED_AFTER_S, MAX_ADDRESS_SPACE = 20, 6 << 30
HARMLESS_COST: dict[str, tuple[float, float]] = {}
"""Seconds and megabytes of the commands that import torch, for a harmless input."""
MEBIBYTE = 1 << 20
FIXED = ("--vendor=cpu", "--torch=2.13.0", "--python=3.11", "--machine=x86_64", "--glibc=2.36", "--no-resolve")
PROJECT = (("doctor", "--project", "{}", "--json"), ("init", "{}", "--yes", *FIXED))
UPDATE = (*PROJECT, ("update", "{}", "--check", "--no-resolve"))
FACTS = (
    ("doctor", "--facts", "{}/input"),
    ("plan", "--facts", "{}/input", "--no-resolve"),
    ("fleet", "compare", "{}/input", "{}/input"),
    ("estimate", "meta-llama/Llama-3.1-8B", "--facts", "{}/input"),
)
REPORT = (("fleet", "compare", "{}/input", "{}/input"),)
LOG = (("explain", "-"),)
CONFIG = (("estimate", "{}/config.json"), ("estimate", "{}"))
JOB = (("export", "kubernetes", "{}"), ("export", "slurm", "{}"))
FLEET = (("fleet", "doctor", "--hosts-file", "{}/input", "--ssh", "false", "--timeout", "1"),)
CASE = (("explain", "{}/input"), ("explain", "{}/input", "--facts", "{}/input"))
MODEL_AND_STEPS = ("--model", "{}/model", "--output", "{}/tuned", "--steps", "1", "--batch", "1")
TRAINING = (("finetune", *MODEL_AND_STEPS, "--data", "{}/data.jsonl"),)
TABLE = (("finetune", *MODEL_AND_STEPS, "--data", "{}/data.parquet"),)
SETTINGS = (("finetune", *MODEL_AND_STEPS, "--data", "{}/data.jsonl", "--settings", "{}/run.toml"),)
ANSWER = (("generate", "--model", "{}/model", "--prompt", "hello", "--max-new-tokens", "2"),)
TUNED = (*TRAINING, *ANSWER)
ADAPTED = (
    ("generate", "--model", "{}/model", "--adapter", "{}/adapter", "--prompt", "hello", "--max-new-tokens", "2"),
)
PROMPTS = (("generate", "--model", "{}/model", "--file", "{}/prompts.jsonl", "--max-new-tokens", "2"),)
PIPED = (("generate", "--model", "{}/model", "--max-new-tokens", "2"),)
WORKLOAD = {"finetune", "generate"}
"""Commands that import torch: what they take is counted from what they take for a harmless input."""

Write = Callable[[Path], object]


@dataclass(frozen=True)
class Hostile:
    """An input: its name, the commands that read it, and what writes it into an empty folder."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    write: Write


def of(commands: tuple[tuple[str, ...], ...], writes: dict[str, Write]) -> tuple[Hostile, ...]:
    """Return the inputs of these names, each with what writes it, for these commands."""
    return tuple(Hostile(name, commands, write) for name, write in writes.items())


def text(path: str, *parts: str | Iterable[str]) -> Write:
    """Return what writes the parts into a file, some of them lazily."""

    def write(folder: Path) -> None:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w", encoding="utf-8") as file:
            for part in parts:
                if isinstance(part, str):
                    file.write(part)
                else:
                    file.writelines(part)

    return write


def raw(path: str, content: bytes) -> Write:
    """Return what writes these bytes into a file."""
    return lambda folder: _parent(folder / path).write_bytes(content)


def several(*writes: Write) -> Write:
    """Return what writes all of these."""
    return lambda folder: [write(folder) for write in writes]


def large(
    path: str, begin: str = "", end: str = "", *, item: str = '"aaaaaaaaaaaaaaaaaaa",\n', megabytes: int = 200
) -> Write:
    """Return what writes a file of many megabytes of one item."""
    chunk = item * (MEBIBYTE // len(item))
    return text(path, begin, (chunk for _ in range(megabytes)), item.rstrip(",\n"), end)


def fifo(path: str) -> Write:
    """Return what makes a named pipe, which holds up whoever opens it."""
    return lambda folder: os.mkfifo(_parent(folder / path))


def unix_socket(path: str) -> Write:
    """Return what makes a socket."""

    def write(folder: Path) -> None:
        _parent(folder / path)
        with socket.socket(socket.AF_UNIX) as listener:
            here = Path.cwd()
            os.chdir((folder / path).parent)
            listener.bind((folder / path).name)
            os.chdir(here)

    return write


def link(path: str, target: str) -> Write:
    """Return what makes a symbolic link."""
    return lambda folder: _parent(folder / path).symlink_to(target)


def directory(path: str) -> Write:
    """Return what makes a folder."""
    return lambda folder: (folder / path).mkdir(parents=True)


def safetensors(header: bytes, claimed: int) -> Write:
    """Return what writes a model's folder whose weights claim a header of another size than they have."""
    return several(
        text("config.json", json.dumps({"model_type": "llama", "hidden_size": 64})),
        raw("model.safetensors", claimed.to_bytes(8, "little") + header),
    )


MADE = Path(tempfile.gettempdir(), f"hostile-inputs-{os.environ.setdefault('HOSTILE_INPUTS', str(os.getpid()))}")
"""A small model with an adapter, and data to train on, made once by `make_harmless`."""


def make_harmless() -> None:
    """Make a model and an adapter for it, in a process of its own: what it takes would count for every child."""
    script = """
import sys
from pathlib import Path
from tests.workload.small_models import CHATML, save_model
from devkit.cli import run_command_line
folder = Path(sys.argv.pop())
save_model(folder / "model", chat_template=CHATML)
(folder / "data.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\\n' * 9)
sys.argv[1:] = ["finetune", f"--model={folder}/model", f"--data={folder}/data.jsonl", f"--output={folder}/run", "--steps=1"]
code = run_command_line()
(folder / "run/adapter").resolve().rename(folder / "adapter")
sys.exit(code)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script, str(MADE)], check=True, stdout=subprocess.DEVNULL, env=environment)


def harmless(*more: Write, without: str = "") -> Write:
    """Return what copies the small model, its adapter and its data, and then writes something hostile over them."""

    def write(folder: Path) -> None:
        shutil.copytree(MADE, folder, dirs_exist_ok=True)
        if without:
            (folder / without).unlink()
        for each in more:
            each(folder)

    return write


def with_config(path: str, **changed: object) -> Write:
    """Return what changes values of a JSON file."""

    def write(folder: Path) -> None:
        file = folder / path
        file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))

    return write


def sparse(path: str, size: int) -> Write:
    """Return what makes a file that takes no room and claims to be that large."""

    def write(folder: Path) -> None:
        with _parent(folder / path).open("wb") as file:
            file.truncate(size)

    return write


def weights(path: str, header: bytes, claimed: int | None = None, rest: bytes = b"") -> Write:
    """Return what writes a safetensors file with this header."""
    return raw(path, (len(header) if claimed is None else claimed).to_bytes(8, "little") + header + rest)


def parquet_bomb(megabytes: int = 2000) -> Write:
    """Return what writes a small Parquet file whose one row unpacks to a large text."""

    def write(folder: Path) -> None:
        script = (
            "import sys, pyarrow as arrow, pyarrow.parquet as parquet\n"
            "rows = arrow.DictionaryArray.from_arrays(arrow.array([0] * int(sys.argv[2])), arrow.array(['a' * (1 << 20)]))\n"
            "parquet.write_table(arrow.table({'text': rows.cast(arrow.string()) if 0 else rows}), sys.argv[1])\n"
        )
        subprocess.run([sys.executable, "-c", script, str(folder / "data.parquet"), str(megabytes)], check=True)

    return write


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def doubled(count: int, word: str = "ARG", name: str = "A") -> str:
    """Return variables each of which holds the one before it twice."""
    lines = [f"{word} {name}0={'x' * 64}"]
    return (
        "\n".join([*lines, *(f"{word} {name}{n}=${{{name}{n - 1}}}${{{name}{n - 1}}}" for n in range(1, count))]) + "\n"
    )


def aliases(count: int = 40) -> str:
    """Return YAML in which each anchor holds the one before it nine times."""
    rows = ["a0: &a0 [x, x]"]
    return "\n".join([*rows, *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, count))]) + "\n"


def merges(count: int = 40) -> str:
    """Return YAML in which each mapping merges the one before it nine times."""
    rows = ["a0: &a0 {k: v}"]
    return (
        "\n".join(
            [*rows, *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: v}}" for n in range(1, count))]
        )
        + "\n"
    )


def project_table(lines: str) -> str:
    """Return a pyproject.toml."""
    return f'[project]\nname = "hostile"\nversion = "1"\n{lines}'


def _swap(commands: tuple[tuple[str, ...], ...], old: str, new: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(word.replace(old, new) for word in command) for command in commands)


DEEP = 100_000
MILLION = 1_000_000
FROM = "FROM python:3.11\n"
DEV = ".devcontainer/devcontainer.json"

INPUTS = (
    *of(
        PROJECT,
        {
            # Requirements.
            "requirements: one line, a name of 900 kB": text("requirements.txt", "a" * 900_000),
            "requirements: one line of specifiers": text("requirements.txt", "torch", ">=1," * 200_000, ">=1"),
            "requirements: one line of spaces": text("requirements.txt", "torch", " " * 900_000, "x"),
            "requirements: one line of hashes": text(
                "requirements.txt", "torch==2.9.0", f" --hash=sha256:{'a' * 64}" * 11_000
            ),
            "requirements: one line of nested markers": text(
                "requirements.txt", "torch; ", "(" * 400_000, "os_name=='x'", ")" * 400_000
            ),
            "requirements: one line of markers with or": text(
                "requirements.txt", "torch; os_name=='x'", " or os_name=='x'" * 50_000
            ),
            "requirements: one line of brackets": text("requirements.txt", "torch[" * 150_000),
            "requirements: one line of extras": text("requirements.txt", "torch[", "a," * 400_000, "a]"),
            "requirements: one line of dashes": text("requirements.txt", "--", "a-" * 450_000),
            "requirements: one line of an address": text(
                "requirements.txt", "git+https://", "a/" * 400_000, "@" * 100_000
            ),
            "requirements: one line of at signs": text("requirements.txt", "https://", "a@" * 400_000),
            "requirements: one line of comments": text("requirements.txt", "torch", " #" * 450_000),
            "requirements: 100,000 lines with markers": text("requirements.txt", 'p; python_version < "3"\n' * 40_000),
            "requirements: 60,000 lines": text("requirements.txt", (f"package{n}==1\n" for n in range(50_000))),
            "requirements: 100,000 continued lines": text("requirements.txt", "a\\\n" * 300_000),
            "requirements: includes itself": text("requirements.txt", "-r requirements.txt\n" * 1000),
            "requirements: two include each other": several(
                text("requirements.txt", "-r b.txt\n"), text("b.txt", "-r requirements.txt\n")
            ),
            "requirements: a chain of 1,000": several(
                text("requirements.txt", "-r r0.txt\n"),
                *(text(f"r{n}.txt", f"-r r{n + 1}.txt\np{n}\n") for n in range(1000)),
            ),
            "requirements: 100 that include all": several(
                *(
                    text(f"requirements{n}.txt", "".join(f"-r requirements{m}.txt\n" for m in range(100)))
                    for n in range(100)
                )
            ),
            "requirements: 200 MB": large("requirements.txt", item="a\n"),
            "requirements: NUL bytes": raw("requirements.txt", b"\0" * 900_000),
            "requirements: UTF-16": raw("requirements.txt", "torch\n".encode("utf-16") * 100),
            "requirements: a named pipe": fifo("requirements.txt"),
            "requirements: /dev/zero": link("requirements.txt", "/dev/zero"),
            # pyproject.toml and setup.py.
            "pyproject: deep lists": text("pyproject.toml", "a = ", "[" * DEEP, "]" * DEEP),
            "pyproject: deep tables in a line": text("pyproject.toml", "a = ", "{a=" * DEEP, "1", "}" * DEEP),
            "pyproject: a key of many parts": text("pyproject.toml", "a." * 400_000, "a = 1"),
            "pyproject: many tables": text("pyproject.toml", (f"[a.b{n}]\n" for n in range(80_000))),
            "pyproject: 50,000 dependencies": text(
                "pyproject.toml",
                project_table(f"dependencies = [{', '.join(f'{chr(34)}p{n}>=1{chr(34)}' for n in range(50_000))}]"),
            ),
            "pyproject: extras in a loop": text(
                "pyproject.toml",
                project_table(
                    "[project.optional-dependencies]\n"
                    + "".join(f'e{n} = ["hostile[e{(n + 1) % 500},e{(n * 7) % 500}]"]\n' for n in range(500))
                ),
            ),
            "pyproject: groups in a loop": text(
                "pyproject.toml",
                project_table(
                    "[dependency-groups]\n"
                    + "".join(
                        f"dev{n} = [" + ", ".join(f'{{include-group = "dev{m}"}}' for m in range(100)) + "]\n"
                        for n in range(100)
                    )
                ),
            ),
            "pyproject: groups that double": text(
                "pyproject.toml",
                project_table(
                    "[dependency-groups]\ndev = ["
                    + '{include-group = "g0"}]\n'
                    + "".join(
                        f'g{n} = [{{include-group = "g{n + 1}"}}, {{include-group = "g{n + 1}"}}]\n' for n in range(40)
                    )
                    + 'g40 = ["x"]\n'
                ),
            ),
            "pyproject: 200 MB": large("pyproject.toml", "a = [", "]"),
            "pyproject: an integer of 900,000 digits": text("pyproject.toml", "a = ", "9" * 900_000),
            "setup.py: deep brackets": text("setup.py", "x = ", "[" * DEEP, "]" * DEEP),
            "setup.py: a long sum": text(
                "setup.py", "from setuptools import setup\nsetup(install_requires=[", "'a'+" * 100_000, "'a'])"
            ),
            "setup.py: minus signs": text("setup.py", "x = ", "-" * 300_000, "1"),
            "setup.py: lists that double": text(
                "setup.py",
                "from setuptools import setup\na0 = ['x']\n",
                "".join(f"a{n} = a{n - 1} + a{n - 1}\n" for n in range(1, 60)),
                "setup(install_requires=a59)",
            ),
            "setup.py: texts that multiply": text(
                "setup.py", "from setuptools import setup\nsetup(install_requires=['x' * 10**10])"
            ),
            "setup.cfg: one option": text(
                "setup.cfg", "[options]\ninstall_requires =\n", (f"  p{n}\n" for n in range(80_000))
            ),
            # Locks and environments.
            "uv.lock: 14 MB": several(
                text("pyproject.toml", project_table("")),
                text(
                    "uv.lock", "version = 1\n", (f'[[package]]\nname = "p{n}"\nversion = "1"\n' for n in range(300_000))
                ),
            ),
            "poetry.lock: 14 MB": several(
                text("pyproject.toml", '[tool.poetry]\nname = "x"\n'),
                text("poetry.lock", (f'[[package]]\nname = "p{n}"\nversion = "1"\n' for n in range(300_000))),
            ),
            "Pipfile.lock: deep": several(
                text("Pipfile", "[packages]\n"), text("Pipfile.lock", '{"default": ', "[" * DEEP, "]" * DEEP, "}")
            ),
            "Pipfile.lock: 14 MB": several(
                text("Pipfile", "[packages]\n"),
                text(
                    "Pipfile.lock",
                    '{"default": {',
                    (f'"p{n}": {{"version": "==1"}},' for n in range(400_000)),
                    '"z": {}}}',
                ),
            ),
            "environment.yml: aliases": text("environment.yml", aliases(), "dependencies: *a39\n"),
            "environment.yml: merges": text("environment.yml", merges(), "dependencies: []\n"),
            "environment.yml: deep": text("environment.yml", "dependencies: ", "[" * DEEP, "]" * DEEP),
            "environment.yml: deep by indentation": text("environment.yml", *("-" + " " for _ in range(400_000)), "x"),
            "environment.yml: 60,000 packages": text(
                "environment.yml", "dependencies:\n", (f"- p{n}=1\n" for n in range(60_000))
            ),
            # Dockerfiles.
            "Dockerfile: ARGs that double": text("Dockerfile", doubled(40), FROM),
            "Dockerfile: ENVs that double": text("Dockerfile", FROM, doubled(40, "ENV")),
            "Dockerfile: a FROM of doubled ARGs": text("Dockerfile", doubled(26), "FROM ${A25}\nRUN echo ${A25}\n"),
            "Dockerfile: ARGs times RUNs": text(
                "Dockerfile", FROM, f"ARG A={'x' * 100_000}\n", "RUN echo ${A}${A}${A}\n" * 30_000
            ),
            "Dockerfile: nested defaults": text("Dockerfile", "FROM ", "${A:-" * 150_000, "}" * 150_000),
            "Dockerfile: dollars": text("Dockerfile", FROM, "RUN ", "$" * 900_000),
            "Dockerfile: braces never closed": text("Dockerfile", FROM, "RUN ", "${a:-" * 180_000),
            "Dockerfile: quotes never closed": text("Dockerfile", FROM, "RUN ", '"\\' * 450_000),
            "Dockerfile: a command of 900 kB": text("Dockerfile", FROM, "RUN pip install ", "a " * 450_000),
            "Dockerfile: a command of spaces": text("Dockerfile", FROM, "RUN pip install torch", " " * 900_000, "x"),
            "Dockerfile: a flag of 900 kB": text("Dockerfile", FROM, "RUN ", "--mount=a " * 90_000, "x"),
            "Dockerfile: here-documents never closed": text("Dockerfile", FROM, "RUN ", "<<A " * 200_000, "\nx\n" * 10),
            "Dockerfile: 50,000 stages": text("Dockerfile", (f"FROM python AS s{n}\n" for n in range(40_000))),
            "Dockerfile: 60,000 commands": text("Dockerfile", FROM, "RUN pip install x\n" * 55_000),
            "Dockerfile: 60,000 variables": text("Dockerfile", FROM, (f"ENV A{n}=b\n" for n in range(60_000))),
            "Dockerfile: one LABEL": text("Dockerfile", FROM, "LABEL ", 'a="b" ' * 150_000),
            "Dockerfile: one ENV": text("Dockerfile", FROM, "ENV ", "A=b" * 300_000),
            "Dockerfile: continued lines": text("Dockerfile", FROM, "RUN a\\\n" * 150_000),
            "Dockerfile: copies with a million patterns": several(
                text("Dockerfile", FROM, "COPY .env /x\n" * 1000),
                text(".env", "TOKEN=1\n"),
                text(".dockerignore", "a\n" * 500_000),
            ),
            "Dockerfile: a named pipe": fifo("Dockerfile"),
            # Compose.
            "compose: aliases": text("compose.yaml", aliases(), "services: {a: {image: x, command: *a39}}\n"),
            "compose: merges": text("compose.yaml", merges(), "services: {a: {<<: *a39, image: x}}\n"),
            "compose: includes itself": text(
                "compose.yaml", "include: [compose.yaml, compose.yaml]\nservices: {a: {image: x}}\n"
            ),
            "compose: includes that double": several(
                text("compose.yaml", "include: [c0.yaml, c0.yaml]\n"),
                *(
                    text(f"c{n}.yaml", f"include: [c{n + 1}.yaml, c{n + 1}.yaml, c{n + 1}.yaml, c{n + 1}.yaml]\n")
                    for n in range(12)
                ),
            ),
            "compose: extends itself": text(
                "compose.yaml", "services:\n  a: {extends: {service: b}}\n  b: {extends: {service: a}}\n"
            ),
            "compose: 30,000 services": text(
                "compose.yaml", "services:\n", (f"  s{n}: {{image: x}}\n" for n in range(14_000))
            ),
            "compose: 2,000 services with GPUs": text(
                "compose.yaml",
                "services:\n",
                (f"  s{n}: {{image: x, gpus: all, devices: [nvidia.com/gpu=all]}}\n" for n in range(2_000)),
            ),
            "compose: one service with 10,000 devices": text(
                "compose.yaml", "services:\n  s:\n    image: x\n    devices:\n", "    - nvidia.com/gpu=all\n" * 10_000
            ),
            "compose: deep": text("compose.yaml", "services: ", "{a: " * DEEP, "}" * DEEP),
            "compose: a value of braces": text("compose.yaml", "services: {a: {image: '", "${" * 400_000, "'}}\n"),
            # Dev containers.
            "devcontainer.json: deep": text(DEV, '{"a": ', "[" * DEEP, "]" * DEEP, "}"),
            "devcontainer.json: comments never closed": text(DEV, '{"image": "x"}', "/*" * 450_000),
            "devcontainer.json: slashes": text(DEV, '{"image": "x"}', "/" * 900_000),
            "devcontainer.json: 100,000 comments": text(DEV, "{\n", "// a\n" * 100_000, '"image": "x"}'),
            "devcontainer.json: 100,000 members": text(
                DEV, "{", (f'"a{n}": 1,' for n in range(80_000)), '"image": "x"}'
            ),
            "devcontainer.json: 40,000 runArgs": text(
                DEV, '{"image": "x", "runArgs": [', '"--gpus=all",' * 40_000, '"--gpus=all"]}'
            ),
            "devcontainer.json: a command of 900 kB": text(
                DEV, '{"image": "x", "postCreateCommand": "', "pip install torch && " * 45_000, 'true"}'
            ),
            "devcontainer.json: an image of 900 kB": text(DEV, '{"image": "', "a/" * 450_000, '"}'),
            "devcontainer.json: 200 MB": large(DEV, '{"a": [', "]}"),
            "devcontainer.json: a number of 900,000 digits": text(
                DEV, '{"image": "x", "forwardPorts": [', "9" * 900_000, "]}"
            ),
            "devcontainer.json: a named pipe": fifo(DEV),
            "devcontainer.json: a socket": unix_socket(DEV),
            # Ignore files and .env.
            ".gitignore: a million lines": text(".gitignore", (f"a{n}\n" for n in range(MILLION))),
            ".gitignore: patterns of stars": text(".gitignore", f"{'*a' * 400}b\n" * 1000),
            ".gitignore: 200 MB": large(".gitignore", item="a\n"),
            ".gitignore: a named pipe": fifo(".gitignore"),
            ".gitignore: a link to /dev/zero": link(".gitignore", "/dev/zero"),
            ".gitignore: a link that leads out": link(".gitignore", "/etc/hostname"),
            ".devcontainer/.gitignore: a link inside": several(
                text("mine", "x\n"), directory(".devcontainer"), link(".devcontainer/.gitignore", "../mine")
            ),
            ".devcontainer/.dockerignore: a million lines": text(".devcontainer/.dockerignore", "a\n" * MILLION),
            ".env: a million lines": text(".env", (f"A{n}=b\n" for n in range(100_000))),
            ".env: one line of spaces": text(".env", " " * 900_000),
            ".env: empty lines": text(".env", "\n" * 900_000),
            ".devcontainer: a named pipe": fifo(".devcontainer"),
            ".devcontainer: a link that leads out": link(".devcontainer", "/etc"),
            ".devcontainer: a link to itself": link(".devcontainer", ".devcontainer"),
            ".devcontainer: 20,000 files": several(
                *(text(f".devcontainer/d{n}/devcontainer.json", "{}") for n in range(5_000))
            ),
        },
    ),
    *of(
        UPDATE,
        {
            # devkit's own files.
            "devkit.toml: 200 MB": large("devkit.toml", "a = [", "]"),
            "devkit.toml: deep": text("devkit.toml", "a = ", "[" * DEEP, "]" * DEEP),
            "devkit.toml: 100,000 pins": text("devkit.toml", "[pins]\n", (f'p{n} = "1"\n' for n in range(100_000))),
            "devkit.toml: a named pipe": fifo("devkit.toml"),
            "devkit.toml: UTF-16": raw("devkit.toml", 'name = "x"\n'.encode("utf-16")),
            "devkit.lock: 200 MB": several(text("devkit.toml", ""), large("devkit.lock", '{"files": [', "]}")),
            "devkit.lock: deep": several(text("devkit.toml", ""), text("devkit.lock", "[" * DEEP, "]" * DEEP)),
            "devkit.lock: a million files": several(
                text("devkit.toml", ""),
                text(
                    "devkit.lock",
                    '{"schema": "devkit.lock/1", "files": {',
                    (f'"f{n}": "{n}",' for n in range(300_000)),
                    '"z": ""}}',
                ),
            ),
            "devkit.lock: a named pipe": several(text("devkit.toml", ""), fifo("devkit.lock")),
            "devkit.lock: an integer of a million digits": several(
                text("devkit.toml", ""), text("devkit.lock", '{"schema": ', "9" * MILLION, "}")
            ),
        },
    ),
    *of(
        PROJECT,
        {
            # Programs.
            "imports: 50,000 in a file": text("main.py", (f"import a{n}\n" for n in range(60_000))),
            "imports: deep brackets": text("main.py", "x = ", "(" * DEEP, ")" * DEEP),
            "imports: 5,000 programs": several(*(text(f"m{n}.py", "import torch\n") for n in range(5_000))),
            "imports: a named pipe": several(fifo("main.py"), fifo("setup.py")),
            "imports: 200 MB": large("main.py", item="import a\n"),
        },
    ),
    *of(
        FACTS,
        {
            # Facts and reports.
            "facts: 200 MB": large("input", '{"schema": "devkit.facts/1", "a": [', "]}"),
            "facts: deep": text("input", "[" * DEEP, "]" * DEEP),
            "facts: an integer of a million digits": text("input", '{"schema": ', "9" * MILLION, "}"),
            "facts: a named pipe": fifo("input"),
            "facts: /dev/zero": link("input", "/dev/zero"),
            "facts: NUL bytes": raw("input", b"\0" * MEBIBYTE),
            "facts: a folder": directory("input"),
        },
    ),
    *of(
        REPORT,
        {
            "reports: 200 MB": large("input", '{"schema": "devkit.verify/1", "stages": [', "]}"),
            "reports: deep": text("input", '{"a":' * DEEP, "1", "}" * DEEP),
            "reports: a named pipe": fifo("input"),
            "reports: /dev/zero": link("input", "/dev/zero"),
            "reports: a million lines": text("input", "{}\n" * MILLION),
        },
    ),
    *of(
        LOG,
        {
            # Logs.
            "logs: 200 MB": large("stdin", item="RuntimeError: CUDA error: invalid device function\n"),
            "logs: one line of 20 MB": text("stdin", "CUDA error " * 2_000_000),
            "logs: one line of spaces": text("stdin", "x", " " * 20_000_000),
            "logs: 300,000 different lines": text(
                "stdin", (f"ImportError: lib{n}.so.{n}: cannot open shared object file\n" for n in range(300_000))
            ),
            "logs: /dev/zero": link("stdin", "/dev/zero"),
            "logs: digits": text("stdin", "1." * 5_000_000),
            "logs: escapes": text("stdin", "\x1b[" * 5_000_000),
        },
    ),
    *of(
        TRAINING,
        {
            # Data for training.
            "data: one line of 200 MB": harmless(
                text("data.jsonl", '{"text": "', ("a" * MEBIBYTE for _ in range(200)), '"}')
            ),
            "data: deep": harmless(text("data.jsonl", '{"a":' * DEEP, "1", "}" * DEEP)),
            "data: an integer of a million digits": harmless(text("data.jsonl", '{"text": ', "9" * MILLION, "}")),
            "data: NUL bytes": harmless(raw("data.jsonl", b"\0" * MEBIBYTE)),
            "data: UTF-16": harmless(raw("data.jsonl", '{"text": "a"}\n'.encode("utf-16") * 1000)),
            "data: one object with a million keys": harmless(
                text("data.jsonl", "{", (f'"k{n}": 1,' for n in range(MILLION)), '"text": "a"}')
            ),
            "data: a million roles that no template knows": harmless(
                text(
                    "data.jsonl",
                    '{"messages": [',
                    '{"role": "x", "content": ""},' * MILLION,
                    '{"role": "assistant", "content": "a"}]}',
                )
            ),
            "data: a named pipe": harmless(fifo("data.jsonl"), without="data.jsonl"),
            "data: a socket": harmless(unix_socket("data.jsonl"), without="data.jsonl"),
            "data: /dev/zero": harmless(link("data.jsonl", "/dev/zero"), without="data.jsonl"),
            "data: a link to itself": harmless(link("data.jsonl", "data.jsonl"), without="data.jsonl"),
            "data: a sparse file of 1 TB": harmless(sparse("data.jsonl", 1 << 40)),
        },
    ),
    *of(
        _swap(TRAINING, "data.jsonl", "data.json"),
        {
            "data: .json, deep in its first line": harmless(text("data.json", '{"a":' * DEEP, "1", "}" * DEEP)),
            "data: .json of 200 MB of empty lists": harmless(large("data.json", "[", "]", item="[],")),
        },
    ),
    *of(
        _swap(TRAINING, "data.jsonl", "data.csv"),
        {
            "data: .csv with NULs": harmless(raw("data.csv", b"text\n" + b"\0" * MEBIBYTE)),
        },
    ),
    *of(
        TABLE,
        {
            "data: Parquet that unpacks to 2 GB": harmless(parquet_bomb()),
            "data: Parquet whose footer lies": harmless(
                raw("data.parquet", b"PAR1" + b"\x15\x04" * 50_000 + (1 << 30).to_bytes(4, "little") + b"PAR1")
            ),
            "data: Parquet, a named pipe": harmless(fifo("data.parquet")),
        },
    ),
    *of(
        _swap(TRAINING, "data.jsonl", "many"),
        {
            "data: a folder of 20,000 empty files": harmless(*(text(f"many/{n}.jsonl", "") for n in range(20_000))),
        },
    ),
    *of(
        TUNED,
        {
            # Models and adapters.
            "template: loops in loops": harmless(
                text(
                    "model/chat_template.jinja",
                    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                )
            ),
            "template: a text of 10 GB at once": harmless(text("model/chat_template.jinja", "{{ 'a' * 10**10 }}")),
            "template: a text of 10 GB in parts": harmless(
                text("model/chat_template.jinja", "{% for a in range(99999) %}{{ 'a' * 100000 }}{% endfor %}")
            ),
            "template: a list of 10 GB": harmless(
                text("model/chat_template.jinja", "{% set a = [0] * 10**9 %}{{ a }}")
            ),
            "template: a number of a billion digits": harmless(
                text("model/chat_template.jinja", "{{ 9 ** (10 ** 9) }}")
            ),
            "template: attributes that lead out": harmless(
                text("model/chat_template.jinja", "{{ cycler.__init__.__globals__.os.popen('id').read() }}")
            ),
            "template: deep brackets": harmless(
                text("model/chat_template.jinja", "{{ ", "(" * DEEP, "1", ")" * DEEP, " }}")
            ),
            "template: 200 MB": harmless(large("model/chat_template.jinja", item="{{ 1 }}")),
            "template: a macro that calls itself": harmless(
                text("model/chat_template.jinja", "{% macro a() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}")
            ),
            "tokenizer.json: 200 MB": harmless(large("model/tokenizer.json", '{"a": [', "]}")),
            "tokenizer.json: deep": harmless(text("model/tokenizer.json", "[" * DEEP, "]" * DEEP)),
            "tokenizer.json: a named pipe": harmless(fifo("model/tokenizer.json"), without="model/tokenizer.json"),
            "tokenizer.json: nothing": harmless(text("model/tokenizer.json", "{}")),
            "tokenizer_config.json: deep": harmless(text("model/tokenizer_config.json", "[" * DEEP, "]" * DEEP)),
            "tokenizer_config.json: 200 MB": harmless(large("model/tokenizer_config.json", '{"a": [', "]}")),
            "special_tokens_map.json: a named pipe": harmless(fifo("model/special_tokens_map.json")),
            "generation_config.json: deep": harmless(text("model/generation_config.json", "[" * DEEP, "]" * DEEP)),
        },
    ),
    *(
        Hostile(f"config.json: {name} of {value:,}", TUNED, harmless(with_config("model/config.json", **{name: value})))
        for name in (
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            "num_hidden_layers",
            "num_attention_heads",
            "head_dim",
        )
        for value in (10**6, 10**12)
    ),
    *of(
        TUNED,
        {
            "config.json: a width that is a text": harmless(with_config("model/config.json", hidden_size="x")),
            "config.json: no width": harmless(with_config("model/config.json", hidden_size=0)),
            "config.json: heads below zero": harmless(with_config("model/config.json", num_attention_heads=-1)),
            "config.json: token ids beyond the vocabulary": harmless(
                with_config("model/config.json", pad_token_id=10**12, bos_token_id=-(10**12))
            ),
            "weights: a header of 2^62 bytes": harmless(weights("model/model.safetensors", b"{}", 1 << 62)),
            "weights: places that overlap": harmless(
                weights(
                    "model/model.safetensors",
                    json.dumps(
                        {f"t{n}": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} for n in range(9)}
                    ).encode(),
                    rest=bytes(16),
                )
            ),
            "weights: a shape of 10^18": harmless(
                weights(
                    "model/model.safetensors",
                    b'{"model.norm.weight": {"dtype": "F32", "shape": [1000000000, 1000000000], "data_offsets": [0, 16]}}',
                    rest=bytes(16),
                )
            ),
            "weights: 100,000 tensors of nothing": harmless(
                weights(
                    "model/model.safetensors",
                    json.dumps(
                        {
                            f"model.layers.{n}.x": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                            for n in range(100_000)
                        }
                    ).encode(),
                )
            ),
            "weights: a named pipe": harmless(fifo("model/model.safetensors"), without="model/model.safetensors"),
            "weights: 1,000,000 shards": harmless(
                text(
                    "model/model.safetensors.index.json",
                    '{"weight_map": {',
                    (f'"t{n}": "{n}.safetensors",' for n in range(200_000)),
                    '"z": "z"}}',
                )
            ),
        },
    ),
    *of(
        (("generate", "--adapter", "{}/adapter", "--prompt", "hello"),),
        {
            "adapter: a base outside of the folder": harmless(
                with_config("adapter/adapter_config.json", base_model_name_or_path="../../../../etc")
            ),
        },
    ),
    *of(
        ADAPTED,
        {
            "adapter: a rank of 10^9": harmless(with_config("adapter/adapter_config.json", r=10**9)),
            "adapter: targets that backtrack": harmless(
                with_config("adapter/adapter_config.json", target_modules="(([a-z._0-9]+)+)+!")
            ),
            "adapter: a pattern that backtracks": harmless(
                with_config("adapter/adapter_config.json", rank_pattern={"(([a-z._0-9]+)+)+!": 4})
            ),
            "adapter: layers that backtrack": harmless(
                with_config("adapter/adapter_config.json", layers_to_transform=[0], layers_pattern="(([a-z._0-9]+)+)+!")
            ),
            "adapter: a million targets": harmless(
                with_config("adapter/adapter_config.json", target_modules=[f"t{n}" for n in range(60_000)])
            ),
            "adapter: code of its own": harmless(
                with_config(
                    "adapter/adapter_config.json",
                    auto_mapping={"base_model_class": "os", "parent_library": "antigravity"},
                )
            ),
            "adapter: a template of 200 MB": harmless(large("adapter/chat_template.jinja", item="{{ 1 }}")),
            "adapter: a header that lies": harmless(
                weights(
                    "adapter/adapter_model.safetensors",
                    b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 99999999999]}}',
                )
            ),
        },
    ),
    *of(
        SETTINGS,
        {
            # Settings of a run, and prompts.
            "run.toml: 200 MB": harmless(large("run.toml", "a = [", "]")),
            "run.toml: deep": harmless(text("run.toml", "a = ", "[" * DEEP, "]" * DEEP)),
            "run.toml: a named pipe": harmless(fifo("run.toml")),
            "run.toml: /dev/zero": harmless(link("run.toml", "/dev/zero")),
        },
    ),
    *(
        Hostile(f"run.toml: {name} = {value}", SETTINGS, harmless(text("run.toml", f"{name} = {value}\n")))
        for name, value in (
            ("rank", 10**9),
            ("rank", 10**30),
            ("sequence", 10**18),
            ("alpha", 10**30),
            ("learning_rate", "inf"),
            ("learning_rate", "nan"),
            ("weight_decay", "1e308"),
            ("warmup", "nan"),
            ("timeout", 10**12),
        )
    ),
    *of(
        PROMPTS,
        {
            "prompts: one line of 200 MB": harmless(
                text("prompts.jsonl", '"', ("a" * MEBIBYTE for _ in range(200)), '"')
            ),
            "prompts: deep": harmless(text("prompts.jsonl", "[" * DEEP, "]" * DEEP)),
            "prompts: a named pipe": harmless(fifo("prompts.jsonl")),
            "prompts: /dev/zero": harmless(link("prompts.jsonl", "/dev/zero")),
        },
    ),
    *of(
        PIPED,
        {
            "prompts: standard input without end": harmless(link("stdin", "/dev/zero")),
            "prompts: NUL bytes on standard input": harmless(raw("stdin", b"\0" * MEBIBYTE)),
        },
    ),
    *of(
        FLEET,
        {
            # Hosts and logs of others.
            "hosts: 200 MB": large("input", item="a\n"),
            "hosts: a named pipe": fifo("input"),
            "hosts: /dev/zero": link("input", "/dev/zero"),
            "hosts: options and newlines": text("input", "-oProxyCommand=touch hostile\n../../x\n\x1b[2J\n"),
        },
    ),
    *of(
        CASE,
        {
            "explain a file: 200 MB": large("input", item="RuntimeError: CUDA error: invalid device function\n"),
            "explain a file: a named pipe": fifo("input"),
            "explain a file: /dev/zero": link("input", "/dev/zero"),
        },
    ),
    *of(
        CONFIG,
        {
            # Models, jobs and tables.
            "config.json: 200 MB": large("config.json", '{"a": [', "]}"),
            "config.json: deep": text("config.json", "[" * DEEP, "]" * DEEP),
            "config.json: numbers without end": text(
                "config.json",
                json.dumps(
                    {
                        "model_type": "llama",
                        "hidden_size": 10**30,
                        "num_hidden_layers": 10**9,
                        "num_attention_heads": 10**9,
                        "vocab_size": 10**30,
                        "intermediate_size": 10**30,
                    }
                ),
            ),
            "config.json: a billion layers": text(
                "config.json",
                json.dumps(
                    {
                        "model_type": "llama",
                        "hidden_size": 4096,
                        "num_hidden_layers": 10**8,
                        "num_attention_heads": 32,
                        "vocab_size": 32000,
                        "intermediate_size": 11008,
                    }
                ),
            ),
            "config.json: a named pipe": fifo("config.json"),
            "safetensors: a header of 2^62 bytes": safetensors(b"{}", 1 << 62),
            "safetensors: a deep header": safetensors(b"[" * DEEP, DEEP),
        },
    ),
    *of(
        JOB,
        {
            "job: 200 MB": large("devkit.toml", "[job]\na = [", "]"),
            "job: deep": text("devkit.toml", "[job]\na = ", "[" * DEEP, "]" * DEEP),
        },
    ),
)


@dataclass(frozen=True)
class Ended:
    """How one command ended, and what it took."""

    code: int
    seconds: float
    wall_s: float
    megabytes: float
    said: str
    hangs: bool

    @property
    def problem(self) -> str:
        """The bound that was passed; "" for none."""
        problems = {
            "hangs": self.hangs,
            f"killed after {KILLED_AFTER_S} s": self.code == -signal.SIGKILL and not self.hangs,
            f"more than {MAX_SECONDS} s": self.seconds > MAX_SECONDS,
            f"more than {MAX_MEGABYTES} MB": self.megabytes > MAX_MEGABYTES,
            f"exit code {self.code}": self.code not in (0, 1, 2),
            "traceback": "Traceback" in self.said,
        }
        return ", ".join(name for name, is_so in problems.items() if is_so)


def run(command: tuple[str, ...], folder: Path, *, checkout: Path) -> Ended:
    """Run one command on the folder in a process group of its own, and measure it with its children."""
    words = [word.replace("{}", str(folder)) for word in command]
    given = folder / "stdin"
    # A home of its own keeps what devkit remembers of earlier runs out of this one.
    env = {**os.environ, "HOME": str(folder.parent / "home"), "PYTHONPATH": str(checkout), "NO_COLOR": "1"}
    with (
        tempfile.TemporaryFile() as output,
        given.open("rb") if given.exists() else Path(os.devnull).open("rb") as text,
    ):
        began = time.monotonic()
        if command[0] in WORKLOAD:
            pid = _fork({"name": "devkit", "argv": words, "cwd": folder.parent, "env": env}, text, output)
        else:
            pid = subprocess.Popen(
                [sys.executable, "-m", "devkit", *words],
                stdin=text,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder.parent,
                env=env,
                start_new_session=True,
                preexec_fn=_limit,
            ).pid
        code, used, hangs = _wait(pid)
        wall_s = time.monotonic() - began
        output.seek(0)
        said = output.read(4 * MEBIBYTE).decode(errors="replace")
    seconds, megabytes = HARMLESS_COST.get(command[0], (0.0, 0.0))
    seconds, megabytes = used.ru_utime + used.ru_stime - seconds, used.ru_maxrss / 1024 - megabytes
    return Ended(code, max(0.0, seconds), wall_s, max(0.0, megabytes), said, hangs)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (KILLED_AFTER_S,) * 2)


def _fork(order: dict[str, Any], given: BinaryIO, output: BinaryIO) -> int:
    """Run a command in a fork of this process, which has torch imported. Returns its number."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            os.setsid()
            _limit()
            code = forked_commands.run(order, [os.dup(each.fileno()) for each in (given, output, output)])
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return child


def _wait(pid: int) -> tuple[int, resource.struct_rusage, bool]:
    """Wait for the end; a process that takes no processor time for ten seconds hangs, and is killed."""
    ticks, changed_at, hangs = -1, time.monotonic(), False
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), used, hangs
        now = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        if now > ticks + 5:
            ticks, changed_at = now, time.monotonic()
        if time.monotonic() - changed_at > MAX_SECONDS + 5 and not hangs:
            hangs = True
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.02)


def measure(hostile: Hostile, *, checkout: Path, where: Path | None = None) -> dict[str, Any]:
    """Write the input, run its commands, and return the worst of each measure."""
    with tempfile.TemporaryDirectory(dir=where) as outer:
        folder = Path(outer, "project")
        folder.mkdir()
        Path(outer, "home").mkdir()
        hostile.write(folder)
        ended = {" ".join(command): run(command, folder, checkout=checkout) for command in hostile.commands}
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "name": hostile.name,
        "seconds": round(max(each.seconds for each in ended.values()), 1),
        "megabytes": round(max(each.megabytes for each in ended.values())),
        "problems": [
            f"{command}: {each.problem}; {_last_lines(each.said)}" for command, each in ended.items() if each.problem
        ],
        "ended": [
            f"{command.split()[0]} ended with {each.code}: {_last_lines(each.said)}" for command, each in ended.items()
        ],
    }


def measure_harmless(is_wanted: bool, checkout: Path) -> None:
    """Measure what the commands that import torch take for a harmless input, in the process that will run them."""
    if not is_wanted:
        return
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer, "project")
        harmless()(folder)
        Path(outer, "home").mkdir()
        for command in (*TRAINING, *ADAPTED):
            ended = run(command, folder, checkout=checkout)
            if ended.code:
                raise RuntimeError(ended.said)
            HARMLESS_COST[command[0]] = ended.seconds, ended.megabytes


def _measure_number(number: int, *, checkout: Path, where: Path | None) -> dict[str, Any]:
    return measure(INPUTS[number], checkout=checkout, where=where)


def _last_lines(said: str) -> str:
    return " | ".join(line.strip() for line in said.strip().splitlines()[-2:])[-300:]


def main() -> int:
    """Measure the inputs and print a row for each; 1 where one of them is beyond the bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="inputs whose name contains this; repeat")
    parser.add_argument("--checkout", type=Path, default=Path(__file__).parents[1], help="the devkit to run")
    parser.add_argument("--jobs", type=int, default=2, help="so many at once: processor time is what counts")
    parser.add_argument("--show", action="store_true", help="print how each command ended, too")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--where", type=Path, help="folder for the inputs")
    options = parser.parse_args()
    numbers = [
        number for number, hostile in enumerate(INPUTS) if any(each in hostile.name for each in options.only or ("",))
    ]
    with_torch = [number for number in numbers if WORKLOAD & {command[0] for command in INPUTS[number].commands}]
    rows = []
    for chosen, start in ((with_torch, "forkserver"), ([each for each in numbers if each not in with_torch], "fork")):
        if not chosen:
            continue
        context = multiprocessing.get_context(start)
        if chosen is with_torch:
            atexit.register(shutil.rmtree, MADE)
            make_harmless()
            context.set_forkserver_preload(list(forked_commands.WORKLOAD))
        pool = ProcessPoolExecutor(
            options.jobs, context, measure_harmless, (chosen is with_torch, options.checkout.resolve())
        )
        for row in pool.map(partial(_measure_number, checkout=options.checkout.resolve(), where=options.where), chosen):
            rows.append(row)
            print(f"{row['seconds']:6} s {row['megabytes']:6} MB  {row['name']}", flush=True)
            ended = row.pop("ended")
            for problem in (*row["problems"], *(ended if options.show else ())):
                print(f"{'':19}{problem}", flush=True)
            if options.record:
                _record(row)
    bad = [row for row in rows if row["problems"]]
    print(f"{len(rows)} inputs, {len(bad)} beyond the bounds")
    return 1 if bad else 0


def _record(row: dict[str, Any]) -> None:
    """Record a row: the inputs may be measured in parts."""
    path = RESULTS / f"{NAME}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    rows[row["name"]] = {name: value for name, value in row.items() if name != "name"}
    ordered = {hostile.name: rows[hostile.name] for hostile in INPUTS if hostile.name in rows}
    record(NAME, {"bounds": {"seconds": MAX_SECONDS, "megabytes": MAX_MEGABYTES}, "rows": ordered})


if __name__ == "__main__":
    raise SystemExit(main())
