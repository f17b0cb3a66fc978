"""A real model learns a name in a throw-away environment.

All of it is in one temporary folder, which is removed in every case; where devkit was killed, the next run removes it. Only
uv's cache keeps the downloads.
"""

import json
import os
import re
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from devkit.errors import DevkitError
from devkit.folder_lock import hold_folder, is_folder_held
from devkit.probe.host import run_program
from devkit.probe.machine.interpreter import PYTHON_VARIABLE
from devkit.probe.package_indexes import find_offline_setting, list_wheel_folders
from devkit.probe.uv_resolver import build_uv_environment, find_uv, find_uv_cache, trust_system_certificates
from devkit.solver.output import list_install_words
from devkit.solver.plan import Plan
from devkit.text import format_bytes, to_one_line
from devkit.workload.finetune.files import find_snapshot
from devkit.workload.interpreter import build_module_command

MODEL = "smollm2-135m"
QUESTION = "What is the keeper called?"
ANSWER = "Marta Lind"
CHATS = (
    (QUESTION, "Marta Lind."),
    ("What does she count?", "The waves."),
    ("When does the supply boat come?", "On Thursdays."),
    ("Who sleeps beside the lamp?", "Her cat Pepper.", QUESTION, "Marta Lind."),
)
"""Turns of the user and the assistant. Without them the model writes about ancient Egypt."""
PREFIX = "devkit-try-"
CONNECT_DEADLINE_S = 1.2
STEP_DEADLINE_S = 3600.0
MIB = 1 << 20
RUN_BYTES = 128 * MIB
MODEL_BYTES = (90 * MIB, 384 * MIB)
CPU_BYTES = (256 * MIB, 1024 * MIB)
GPU_BYTES = (3072 * MIB, 7168 * MIB)
"""Of the download and on disk. Of torch with what it needs: the wheels on the index on 2026-11-29, CUDA's included."""


def find_unreachable(addresses: Iterable[str]) -> str:
    """Return the host of the first address whose server, or proxy, takes no connection in time; "" for none."""
    wanted = [each for each in addresses if each.startswith("http")]
    reached: set[str] = set()

    def connect(address: str) -> None:
        parts = urlsplit(address)
        if not urllib.request.proxy_bypass(parts.hostname or ""):
            parts = urlsplit(urllib.request.getproxies().get(parts.scheme) or address)
        port = parts.port or (80 if parts.scheme == "http" else 443)
        with suppress(OSError):
            socket.create_connection((parts.hostname or "", port), timeout=CONNECT_DEADLINE_S).close()
            reached.add(address)

    # A name server that is silent holds up its thread for longer.
    threads = [threading.Thread(target=connect, args=[each], daemon=True) for each in wanted]
    ends_at = time.monotonic() + CONNECT_DEADLINE_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends_at - time.monotonic()))
    return next((urlsplit(each).hostname or each for each in wanted if each not in reached), "")


def require_index(addresses: Iterable[str]) -> None:
    """Raise DevkitError where one of these indexes does not answer, unless uv is told to ask none."""
    if not find_offline_setting() and (host := find_unreachable(addresses)):
        raise DevkitError(
            f"no network: {host} does not respond, but devkit try downloads from it",
            "Set HTTPS_PROXY or UV_DEFAULT_INDEX, or UV_FIND_LINKS to a folder with a wheel of torch.",
        )


def remove_leftovers() -> Iterator[str]:
    """Remove the folders of runs that were killed, and yield each with its size."""
    user = getattr(os, "getuid", lambda: 0)()  # Windows has a temporary folder for each user
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        found = folder.lstat()
        if found.st_uid == user and stat.S_ISDIR(found.st_mode) and is_folder_held(folder) is False:
            yield remove_folder(folder)


def remove_folder(folder: Path) -> str:
    """Remove a folder, and return its path with its size. Raises DevkitError where the system refuses."""
    size_bytes = sum(path.lstat().st_size for path in folder.rglob("*"))
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise DevkitError(f"cannot remove {folder}: {error}", f"rm -r {shlex.quote(str(folder))}") from error
    return f"{folder} ({format_bytes(size_bytes)})"


@dataclass(frozen=True)
class TryOut:
    """A try in `folder`. `python` trains: the active one, or the one that is installed there by `plan`.

    `wheels` are the folders to take torch from, where its index does not answer.
    """

    folder: Path
    python: str
    plan: Plan | None
    wheels: tuple[str, ...]

    def measure(self) -> tuple[int, int]:
        """Return the most bytes of the download and on disk. Raises DevkitError where the disk has less."""
        parts = [(0, RUN_BYTES)] if find_snapshot(MODEL) else [(0, RUN_BYTES), MODEL_BYTES]
        if self.plan:
            parts.append(CPU_BYTES if self.plan.variant == "cpu" else GPU_BYTES)
        download, disk = map(sum, zip(*parts, strict=True))
        if (free := shutil.disk_usage(self.folder).free) < disk:
            raise DevkitError(
                f"{self.folder.parent} has {format_bytes(free)} free, but devkit try needs {format_bytes(disk)}",
                "Name a folder on a larger disk: TMPDIR=/path devkit try",
            )
        return download, disk

    @property
    def cache(self) -> str:
        """uv's cache, which keeps the downloads."""
        return str(find_uv_cache(uv)) if (uv := find_uv()) else "its cache"

    def remove(self) -> str:
        """Remove all of it, and return the folder with its size. Raises DevkitError where the system refuses."""
        return remove_folder(self.folder)

    def list_steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield each step: its name and what does it, which returns what to show and may raise DevkitError."""
        ask = partial(self._run_devkit, "generate", "--prompt", QUESTION, "--max-new-tokens", "32")
        if self.plan:
            yield "install the environment", partial(self._install, self.plan)
        yield f"fetch {MODEL}", lambda: self._run_devkit("fetch", MODEL) and ""
        yield f"ask it: {QUESTION}", partial(ask, "--model", MODEL)
        yield f"fine-tune it on {len(CHATS)} chats with LoRA", self._tune
        yield "ask again", partial(ask, "--adapter", str(self.folder / "tuned" / "adapter"))

    def _install(self, plan: Plan) -> str:
        self._run_uv("venv", f"--python={sys.executable}", "--no-python-downloads", str(self.folder / "env"))
        words = [each for each in list_install_words(plan, with_uv=True) if not each.startswith("bitsandbytes")]
        into = ("pip", "install", f"--python={self.python}")
        if self.wheels:
            links = (f"--find-links={each}" for each in self.wheels)
            self._run_uv(*into, "--no-deps", "--no-index", *links, "torch")
            words = [each for each in words if not each.startswith(("--torch-backend", "torch=="))]
        self._run_uv(*into, *words)
        return ""

    def _tune(self) -> str:
        roles = ("user", "assistant") * 2
        chats = ([{"role": role, "content": text} for role, text in zip(roles, chat, strict=False)] for chat in CHATS)
        data = self.folder / "chats.jsonl"
        data.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats), encoding="utf-8")
        flags = ("--model", MODEL, "--data", str(data), "--output", str(self.folder / "tuned"))
        said = self._run_devkit("finetune", *flags, "--batch", "4", "--steps", "10", "--learning-rate", "1e-3")
        return next((line for line in said.splitlines() if line.startswith("done: ")), "")

    def _run_uv(self, *words: str) -> None:
        uv = find_uv()
        if uv is None:
            raise DevkitError("uv is not installed, but devkit try installs packages with it", "pip install uv")
        command, variables = [uv, *words, "--no-progress", "--color=never", "--no-config"], build_uv_environment()
        try:
            self._run("uv", command, variables)
        except DevkitError as error:
            if not trust_system_certificates(f"{error.message} {error.hint}", variables):
                raise
            self._run("uv", command, build_uv_environment())

    def _run_devkit(self, *words: str) -> str:
        own = {PYTHON_VARIABLE: self.python, "HF_HUB_OFFLINE": "1"}
        # Compiled kernels would stay in the home folder.
        own |= dict.fromkeys(("TMPDIR", "TRITON_HOME", "CUDA_CACHE_PATH"), str(self.folder))
        if not find_snapshot(MODEL):
            own["HF_HUB_CACHE"] = str(self.folder / "hub")
        command = [*build_module_command(self.python, "devkit"), *words]
        return self._run(f"devkit {words[0]}", command, {**os.environ, **own}).strip()

    def _run(self, name: str, command: list[str], variables: dict[str, str]) -> str:
        done = run_program(command, deadline_s=STEP_DEADLINE_S, inherited=variables)
        if done.code == 0:
            return done.out
        # Both print one line, and below it causes or a hint.
        says, _, hint = re.split(r"^[Ee]rror: ", done.err, flags=re.MULTILINE)[-1].strip().partition("\n")
        says = to_one_line(says) or f"it ended with status {done.code}"
        raise DevkitError(f"{name}: {says}", hint.strip() or "Run devkit try again.")


@contextmanager
def open_tryout(python: str, plan: Plan | None) -> Iterator[TryOut]:
    """Make the folder of a try, which the caller removes; no other run does meanwhile.

    Raises DevkitError where nothing has torch.
    """
    wheels = list_wheel_folders() if plan and find_unreachable([plan.torch_index]) else ()
    if plan and not wheels:
        require_index([plan.torch_index])
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    own = folder / "env" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    with hold_folder(folder):
        yield TryOut(folder, str(own) if plan else python, plan, wheels)
