"""The proof in place: in a child process, started again after a crash for the stages that are left."""

import json
import queue
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import devkit
from devkit.errors import DevkitError
from devkit.facts.values import Release, Unknown
from devkit.probe.host import Host
from devkit.probe.machine.python import find_workload_python
from devkit.text import format_duration
from devkit.verify.process import KILL_GRACE_S, MAX_LOG_LINES, kill_group, read_lines_in_background, start_process
from devkit.verify.report import ProofLocation, VerificationReport
from devkit.workload.proof.stages import (
    DEVICE_LOST_EXIT_CODE,
    Depth,
    StageResult,
    StageSpec,
    StageStatus,
    select_stages,
    skip_for_failed_need,
)

# The proof's child process: its events, its end, and its certain death at the deadline.

_SLICE_S = 0.1
_LAST_WORDS_S = 3.0


@dataclass(frozen=True)
class ProcessExit:
    """How the process ended. `code` is its exit status, negative for a signal; `log` the last lines of its stderr."""

    code: int
    timed_out: bool
    log: tuple[str, ...]

    @property
    def description(self) -> str:
        """The end in words: "the process was ended by SIGSEGV"."""
        if self.timed_out:
            return "the time ran out and the process was killed"
        if self.code < 0:
            return f"the process was ended by {_signal_name(-self.code)}"
        return f"the process ended with exit status {self.code}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name}, most often because memory ran out" if name == "SIGKILL" else name


class ProofProcess:
    """A running proof, as a context: leaving it, by whatever way, kills the whole process group."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = start_process(argv)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._log: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self._timed_out = False
        self._output = read_lines_in_background(
            self._process.stdout, self._lines.put, at_end=lambda: self._lines.put(None)
        )
        self._errors = read_lines_in_background(self._process.stderr, self._log.append)

    def __enter__(self) -> "ProofProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_group(self._process)

    def events(self, *, ends_at: float) -> Iterator[dict[str, Any]]:
        """Events until the process ends or the monotonic clock reads `ends_at`. Other output is passed over."""
        reads_until = ends_at
        while (left_s := reads_until - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=min(_SLICE_S, left_s))
            except queue.Empty:
                if self._process.poll() is not None and reads_until == ends_at:
                    # Its last words may still lie in the pipe; but what it leaves behind may hold that open.
                    kill_group(self._process)
                    reads_until = min(ends_at, time.monotonic() + _LAST_WORDS_S)
                continue
            if line is None:
                return
            if (event := _event(line)) is not None:
                yield event
        self._timed_out = self._process.poll() is None

    def wait(self, *, ends_at: float) -> ProcessExit:
        """Wait for the process, at most to `ends_at`, then kill what is left of its group."""
        if not self._timed_out:
            try:
                self._process.wait(max(0.0, ends_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._timed_out = True
        died = kill_group(self._process)
        self._errors.join(KILL_GRACE_S)
        log = tuple(self._log)
        if not died:
            log = (*log, "the process did not die of SIGKILL: the driver holds it in the kernel")
        return ProcessExit(self._process.returncode if died else 0, self._timed_out, log)


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


# Which Python runs the proof: the one that has torch.

INSTALL_COMMAND = "pip install 'devkit-gpu[workload]'"
MIN_PYTHON = Release.parse("3.11")

_LOOK = (
    "import importlib.util, platform; "
    "print(platform.python_version(), 'torch' if importlib.util.find_spec('torch') else '-')"
)


@dataclass(frozen=True)
class _Answer:
    version: Release
    has_torch: bool


def find_proof_python(host: Host) -> str:
    """The active virtual environment's Python if torch is there, else devkit's own if torch is there.

    Raises DevkitError when neither has torch, or its Python is too old to run the proof.
    """
    active = find_workload_python(host)
    executables = [host.python] if isinstance(active, Unknown) else [active.executable, host.python]
    for executable in dict.fromkeys(executables):
        answer = _ask(host, executable)
        if answer is None or not answer.has_torch:
            continue
        if answer.version < MIN_PYTHON:
            raise DevkitError(
                f"{executable} has torch, but is Python {answer.version}; the proof needs {MIN_PYTHON} or newer",
                f"activate an environment with Python {MIN_PYTHON} or newer, then: {INSTALL_COMMAND}",
            )
        return executable
    raise DevkitError(f"torch is not installed for {executables[0]}", INSTALL_COMMAND)


def _ask(host: Host, executable: str) -> _Answer | None:
    done = host.run([executable, "-P", "-c", _LOOK])
    if done.code != 0:
        # Before Python 3.11 there is no -P.
        done = host.run([executable, "-I", "-c", _LOOK])
    words = done.out.split()
    return _Answer(Release.parse(words[0]), words[1] == "torch") if done.code == 0 and len(words) == 2 else None


Progress = Callable[[str], None]
ProofCommand = Callable[[Sequence[str]], Sequence[str]]

# This very devkit, under whichever Python has torch, and nothing else of this environment.
_START = """
import importlib.util, sys
folder = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("devkit", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["devkit"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from devkit.workload.proof.program import main
sys.exit(main())
"""


def build_proof_command(python: str) -> ProofCommand:
    """How to start the proof with `python`: a function from the proof's arguments to a command line."""
    folder = str(Path(devkit.__file__).parent)
    return lambda arguments: [python, "-P", "-u", "-X", "faulthandler", "-c", _START, folder, *arguments]


def prove_here(
    host: Host,
    *,
    depth: Depth,
    timeout_s: float,
    progress: Progress,
    command: ProofCommand | None = None,
    only: tuple[str, ...] = (),
    model: str = "",
) -> VerificationReport:
    """Run the proof on this machine, for at most `timeout_s` seconds; of its stages `only` these where some are named.

    `model` is a model of the user's to be proved too.

    A crash or hang costs the stage it happens in and those that need it; the others still run.
    `command` replaces how the proof is started. Raises DevkitError when no Python here has torch.
    """
    started = command or build_proof_command(find_proof_python(host))
    chosen = tuple(stage for stage in select_stages(depth) if stage.name in only or not only)
    run = _Run(chosen, timeout_s, progress)
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    ends_at = time.monotonic() + timeout_s
    # The folder is this process's, because the child may not live to clean it up.
    with tempfile.TemporaryDirectory(prefix="devkit-verify-") as scratch:
        while run.pending:
            with ProofProcess(started([*_arguments(depth, run), f"--scratch={scratch}", f"--model={model}"])) as child:
                for event in child.events(ends_at=ends_at):
                    run.take(event)
                run.close(child.wait(ends_at=ends_at))
    stages = tuple(run.results[stage.name] for stage in run.stages)
    return VerificationReport(
        ProofLocation.HERE, run.device, run.environment, stages, run.log, inputs=run.inputs, taken_at=taken_at
    )


def _arguments(depth: Depth, run: "_Run") -> list[str]:
    failed = [name for name, result in run.results.items() if result.status is StageStatus.FAILED]
    return [f"--depth={depth}", f"--stages={','.join(run.pending)}", f"--failed={','.join(failed)}"]


@dataclass
class _Run:
    """What the events have said so far."""

    stages: tuple[StageSpec, ...]
    timeout_s: float
    progress: Progress
    results: dict[str, StageResult] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=lambda: {"kind": "unknown"})
    environment: dict[str, Any] = field(default_factory=lambda: {"devkit": devkit.__version__})
    inputs: dict[str, Any] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    _current: str = ""
    _since: float = 0.0
    _known: int = 0

    @property
    def pending(self) -> list[str]:
        """The stages without a result, in order."""
        return [stage.name for stage in self.stages if stage.name not in self.results]

    def take(self, event: dict[str, Any]) -> None:
        """Note one event. An unknown one is passed over."""
        match event:
            case {"event": "environment", "environment": dict() as found}:
                self.environment |= found
            case {"event": "inputs", "inputs": dict() as found}:
                self.inputs = found
            case {"event": "device", "device": dict() as found}:
                self.device = found
                self.progress(
                    f"device: {found['kind']}, {found['name']} ({found['reason']}); "
                    f"precision: {found['precision']} ({found['precision_reason']})"
                )
            case {"event": "started", "stage": str(name)}:
                self._current, self._since = name, time.monotonic()
                self.progress(f"{name} …")
            case {"event": "finished", "stage": dict() as document}:
                self._finish(StageResult.from_document(document))
            case _:
                return

    def _finish(self, result: StageResult) -> None:
        self.results[result.name] = result
        self._current = ""
        because = f": {result.reason}" if result.reason else ""
        self.progress(f"{result.name} {result.status} in {format_duration(result.ms / 1000)}{because}")

    def close(self, end: ProcessExit) -> None:
        """Judge the end of a process: with stages left over it was a crash, a hang, or a lost device."""
        if not self.pending:
            return
        self.log = end.log
        lost_device = end.code == DEVICE_LOST_EXIT_CODE and not end.timed_out and not self._current
        if not (lost_device and len(self.results) > self._known):
            self._blame(self._current or self.pending[0], end)
        for stage in self.stages:
            if stage.name not in self.results:
                self._skip(stage, end)
        self._known = len(self.results)

    def _blame(self, name: str, end: ProcessExit) -> None:
        reason = end.description
        if end.timed_out:
            reason = f"no result within {format_duration(self.timeout_s)}; {reason}"
        elif last := _last_words(end.log):
            reason = f"{reason}: {last}"
        ms = (time.monotonic() - self._since) * 1000 if self._current else 0.0
        self._finish(StageResult(name, StageStatus.FAILED, reason=reason, ms=ms))

    def _skip(self, stage: StageSpec, end: ProcessExit) -> None:
        skipped = skip_for_failed_need(stage, self.results)
        if skipped is None and end.timed_out:
            skipped = StageResult(stage.name, StageStatus.SKIPPED, reason="the time ran out")
        if skipped is not None:
            self._finish(skipped)


def _last_words(log: Sequence[str]) -> str:
    """The line that tells most: Python's own fatal error if there is one, else the last that is not blank."""
    lines = [line.strip() for line in log if line.strip()]
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    return (fatal or lines or [""])[-1]
