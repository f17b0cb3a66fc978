"""Run every probe side by side and gather the facts of one machine."""

import importlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from devkit.facts.engine import Engine, EngineKind
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.probe.engine.cdi import SPEC_FOLDERS, read_cdi
from devkit.probe.engine.client import read_clients, read_compose
from devkit.probe.engine.compose_config import read_compose_config
from devkit.probe.engine.containers import read_facts_inside
from devkit.probe.engine.daemon import read_engine
from devkit.probe.engine.program_trials import read_program_failures
from devkit.probe.engine.toolkit import read_toolkit
from devkit.probe.gpu.driver import read_driver
from devkit.probe.gpu.nvml import read_nvml
from devkit.probe.host import Host
from devkit.probe.hub import read_hub
from devkit.probe.machine.environment import read_container, read_wsl
from devkit.probe.machine.operating_system import read_system
from devkit.probe.machine.python import read_python
from devkit.probe.machine.resources import read_limits, read_storage
from devkit.probe.project.reader import read_project
from devkit.release import __version__

_TO_JUDGE_S = 0.5
"""Kept back from the deadline, to kill a late child and to judge what it left behind."""

_FILES_FOR_ALL = 64
"""Open files that suffice for all probes at once."""

_CDI_OF_ENGINE = "cdi, with the engine's own folders"
_STORAGE_OF_ENGINE = "storage, with the engine's own folder"

Probe = tuple[str, Callable[[], object]]
"""A field of `Facts` and what reads it."""


def gather_facts(
    host: Host,
    *,
    deadline_s: float = 5.0,
    project: str | None = None,
    only: Collection[str] = (),
    meanwhile: Callable[[], object] | None = None,
) -> Facts:
    """Read one machine within `deadline_s` seconds. `project` is the workspace (default: the current directory).

    `meanwhile` is called once the probes are under way: whatever else a command must prepare costs no time then.
    `only` names the fields to read, where a command needs no more; the others are `Unknown` then.
    A probe that is late or fails costs only its own facts: they are lost.
    """
    workspace = project or str(Path.cwd())
    ends_at = time.monotonic() + deadline_s
    child_s = max(deadline_s - _TO_JUDGE_S, deadline_s / 2)
    # Those that wait for a child process first.
    probes: tuple[Probe, ...] = (
        ("engine", partial(read_engine, host, deadline_s=child_s)),
        ("nvml", partial(read_nvml, host, deadline_s=child_s)),
        ("compose", partial(read_compose, host)),
        ("toolkit", partial(read_toolkit, host)),
        ("driver", partial(read_driver, host)),
        ("amd", partial(_read_late, "amd", "read_amd", host) if host.list("/sys/class/kfd") else lambda: None),
        ("system", partial(read_system, host)),
        ("python", partial(read_python, host)),
        ("cdi", partial(read_cdi, host)),
        ("wsl", partial(read_wsl, host)),
        ("container", partial(read_container, host)),
        ("storage", partial(read_storage, host, project=workspace)),
        ("kernel_log", partial(_read_late, "kernel_log", "read_kernel_log", host)),
        ("clients", partial(read_clients, host)),
        ("programs", partial(read_program_failures, host, project=workspace)),
        ("limits", partial(read_limits, host)),
        ("project", partial(read_project, host, project=workspace)),
        ("compose_config", partial(read_compose_config, host, project=workspace)),
        ("hub", partial(read_hub, host)),
    )
    wanted = tuple((field, probe) for field, probe in probes if not only or field in only)
    follow = partial(_followers, host, workspace, ends_at, only)
    unread: dict[str, Any] = {field: Unknown("not read by this command") for field, _ in probes}
    readings = unread | _side_by_side(wanted, deadline_s=deadline_s, follow=follow, meanwhile=meanwhile)
    readings["cdi"] = readings.pop(_CDI_OF_ENGINE, readings["cdi"])
    readings["storage"] = readings.pop(_STORAGE_OF_ENGINE, readings["storage"])
    readings["deep"] = Unknown("only read with --deep")
    readings["trials"] = Unknown("trials are off (--trial)")
    taken_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    return Facts(taken_at=taken_at, devkit=__version__, **readings)


def _read_late(module: str, reader: str, host: Host) -> object:
    """Read with a module that takes longer to load than most probes take to read, and that a plan does not need."""
    return getattr(importlib.import_module(f"devkit.probe.gpu.{module}"), reader)(host)


def _followers(
    host: Host, project: str, ends_at: float, only: Collection[str], field: str, reading: object
) -> Iterator[Probe]:
    """Yield the probes that need the engine's answer: its own CDI folders, and the inside of the dev container."""
    if field != "engine":
        return
    # A Docker daemon on this machine may look for CDI specifications in other folders.
    folders: tuple[str, ...] = ()
    if isinstance(reading, Engine) and reading.kind is EngineKind.DOCKER and reading.endpoint.url.startswith("unix://"):
        folders = tuple(folder for folder in reading.cdi_spec_dirs if folder not in SPEC_FOLDERS)
    if folders and (not only or "cdi" in only):
        yield _CDI_OF_ENGINE, partial(read_cdi, host, engine_folders=folders)
    if isinstance(reading, Engine) and (not only or "storage" in only) and host.stat(reading.root_dir) is not None:
        yield _STORAGE_OF_ENGINE, partial(read_storage, host, project=project, engine_folder=reading.root_dir)
    if not only:
        left_s = max(0.1, ends_at - time.monotonic() - _TO_JUDGE_S)
        yield "inside", partial(read_facts_inside, host, reading, project=project, deadline_s=left_s)


def _has_tight_limits() -> bool:
    """Return whether the process may run out of memory or open files where all probes run at once."""
    if sys.platform == "win32":
        return False
    resource = importlib.import_module("resource")  # Windows has no such module
    has_few_files = 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _FILES_FOR_ALL
    return bool(has_few_files or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY)


def _side_by_side(
    probes: tuple[Probe, ...],
    *,
    deadline_s: float,
    follow: Callable[[str, object], Iterable[Probe]] = lambda _field, _reading: (),
    meanwhile: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Run the probes in threads and return what each read by the deadline. `follow` names the probes to run after a reading."""
    readings: dict[str, Any] = {}

    def lose(field: str, why: str) -> Unknown:
        return Unknown(f"{field.replace('_', ' ')}: {why}", is_lost=True)

    late = f"no answer within {deadline_s:g} s"

    def take(field: str, probe: Callable[[], object]) -> None:
        try:
            readings[field] = probe()
        except Exception as error:  # noqa: BLE001 - one probe's bug must not cost the report
            readings[field] = lose(field, f"probe crashed: {type(error).__name__}: {error}")
        for next_field, next_probe in follow(field, readings[field]):
            readings[next_field] = lose(next_field, late)
            take(next_field, next_probe)

    # Daemon threads, not an executor: a thread stuck on a dead network drive must not hold up the exit.
    threads = [threading.Thread(target=take, args=pair, name=pair[0], daemon=True) for pair in probes]
    ends_at = time.monotonic() + deadline_s
    # Each thread reserves address space for its stack and for malloc, and opens files: under a limit they run one by one.
    is_alone = _has_tight_limits()
    for thread in threads:
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # a limit on memory or on threads
            readings[thread.name] = lose(thread.name, str(error) or "the process has no memory left")
            continue
        if is_alone:
            thread.join(max(0.0, ends_at - time.monotonic()))
    if meanwhile is not None:
        meanwhile()
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, ends_at - time.monotonic()))
    # A late thread may still write; what is judged must stand still.
    return {**{field: lose(field, late) for field, _ in probes}, **readings}
