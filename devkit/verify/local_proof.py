"""The proof on this machine: in a child process, which is started again after a crash for the remaining stages."""

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
from types import TracebackType
from typing import Any

from devkit.errors import DevkitError
from devkit.probe.host import Host
from devkit.release import __version__
from devkit.text import format_duration, join_words
from devkit.verify.process import (
    KILL_GRACE_S,
    MAX_LOG_LINES,
    Progress,
    kill_group,
    read_lines_in_background,
    start_process,
)
from devkit.verify.report import BECAUSE, PROGRAM, ProofLocation, VerificationReport
from devkit.workload.interpreter import MIN_PYTHON, Interpreter, build_module_command, find_torch_interpreter
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import (
    DEVICE_LOST_EXIT_CODE,
    STANDALONE_STAGES,
    Depth,
    StageResult,
    StageSpec,
    StageStatus,
    select_stages,
    skip_for_failed_need,
)

_SLICE_S = 0.1
_DRAIN_S = 3.0
"""Time to read what an ended process left in the pipe."""

ProofCommand = Callable[[Sequence[str]], Sequence[str]]
"""Turns the proof's arguments into a command line."""


@dataclass(frozen=True)
class ProofProgram:
    """A program that proves: its command line, all of its stages, and why it is not the full proof, "" if it is."""

    build_command: ProofCommand
    stages: tuple[StageSpec, ...]
    not_full_because: str = ""


def choose_program(interpreter: Interpreter, depth: Depth) -> ProofProgram:
    """Return the full proof if this Python and its packages can run it, else the proof that needs only torch."""
    if interpreter.version >= MIN_PYTHON and not interpreter.missing:
        return ProofProgram(build_proof_command(interpreter.executable), select_stages(depth))
    because = f"the project's environment has no {join_words(interpreter.missing)}"
    if interpreter.version < MIN_PYTHON:
        because = f"the project's Python is {interpreter.version}, and the full proof needs {MIN_PYTHON}"
    program = [interpreter.executable, "-u", "-X", "faulthandler", standalone.__file__]
    return ProofProgram(lambda arguments: [*program, *arguments], STANDALONE_STAGES, because)


def build_proof_command(python: str) -> ProofCommand:
    """Return a function from the proof's arguments to the command line that starts the proof with `python`.

    Nothing of devkit's own environment is importable there.
    """
    flags = ("-u", "-X", "faulthandler")
    program = build_module_command(python, "devkit.workload.proof.program", *flags, with_requirements=False)
    return lambda arguments: [*program, *arguments]


def prove_here(
    host: Host,
    *,
    depth: Depth,
    timeout_s: float,
    progress: Progress,
    command: ProofCommand | None = None,
    model: str = "",
) -> VerificationReport:
    """Run the proof on this machine, for at most `timeout_s` seconds.

    A crash or hang fails the stage it happens in and skips those that need it; the others still run.

    Args:
        command: replaces the command that starts the proof.
        model: a model of the user's to be proved, too.

    Raises: DevkitError when no Python here has torch.
    """
    program = (
        ProofProgram(command, select_stages(depth)) if command else choose_program(find_torch_interpreter(host), depth)
    )
    if program.not_full_because:
        progress(f"the proof that needs only torch: {program.not_full_because}")
        if model:
            raise DevkitError(f"this needs the full proof, but {program.not_full_because}", "Leave --model out.")
    run = _ProofRun(program.stages, timeout_s, progress)
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    ends_at = time.monotonic() + timeout_s
    # The folder belongs to this process, because the child may not live to remove it.
    with tempfile.TemporaryDirectory(prefix="devkit-verify-") as scratch:
        while run.pending:
            failed = [name for name, result in run.results.items() if result.status is StageStatus.FAILED]
            arguments = [f"--depth={depth}", f"--stages={','.join(run.pending)}", f"--failed={','.join(failed)}"]
            arguments += [f"--scratch={scratch}", f"--model={model}"]
            with ProofProcess(program.build_command(arguments)) as process:
                for event in process.events(ends_at=ends_at):
                    run.record(event)
                run.finish_process(process.wait(ends_at=ends_at))
    stages = tuple(run.results[stage.name] for stage in run.stages)
    inputs = run.inputs | (
        {PROGRAM: "standalone", BECAUSE: program.not_full_because} if program.not_full_because else {}
    )
    return VerificationReport(
        ProofLocation.HERE, run.device, run.environment, stages, run.log, inputs=inputs, taken_at=taken_at
    )


@dataclass
class _ProofRun:
    """The results so far, from the events of one process after the other."""

    stages: tuple[StageSpec, ...]
    timeout_s: float
    progress: Progress
    results: dict[str, StageResult] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=lambda: {"kind": "unknown"})
    environment: dict[str, Any] = field(default_factory=lambda: {"devkit": __version__})
    inputs: dict[str, Any] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    _current: str = ""
    _started_at: float = 0.0
    _count_before: int = 0
    """The number of results when the last process ended."""

    @property
    def pending(self) -> list[str]:
        """The names of the stages without a result, in order."""
        return [stage.name for stage in self.stages if stage.name not in self.results]

    def record(self, event: dict[str, Any]) -> None:
        """Record one event. Unknown ones are ignored."""
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
                self._current, self._started_at = name, time.monotonic()
                self.progress(f"{name} …")
            case {"event": "finished", "stage": dict() as document}:
                self._finish_stage(StageResult.from_document(document))
            case _:
                return

    def _finish_stage(self, result: StageResult) -> None:
        self.results[result.name] = result
        self._current = ""
        because = f": {result.reason}" if result.reason else ""
        self.progress(f"{result.name} {result.status} in {format_duration(result.ms / 1000)}{because}")

    def finish_process(self, end: "ProcessExit") -> None:
        """Judge the end of a process: with stages pending it was a crash, a hang, or a lost device."""
        if not self.pending:
            return
        self.log = end.log
        lost_device = end.code == DEVICE_LOST_EXIT_CODE and not end.timed_out and not self._current
        # A lost device fails no further stage, unless the process made no progress: then it would start forever.
        if not (lost_device and len(self.results) > self._count_before):
            self._fail_current(end)
        for stage in self.stages:
            if stage.name in self.results:
                continue
            skipped = skip_for_failed_need(stage, self.results)
            if skipped is None and end.timed_out:
                skipped = StageResult(stage.name, StageStatus.SKIPPED, reason="the time ran out")
            if skipped is not None:
                self._finish_stage(skipped)
        self._count_before = len(self.results)

    def _fail_current(self, end: "ProcessExit") -> None:
        """Fail the running stage with the most informative line of the log, such as Python's own fatal error."""
        reason = end.description
        lines = [line.strip() for line in end.log if line.strip()]
        if end.timed_out:
            reason = f"no result within {format_duration(self.timeout_s)}; {reason}"
        elif lines:
            reason += f": {([line for line in lines if line.startswith('Fatal Python error')] or lines)[-1]}"
        ms = (time.monotonic() - self._started_at) * 1000 if self._current else 0.0
        self._finish_stage(StageResult(self._current or self.pending[0], StageStatus.FAILED, reason=reason, ms=ms))


@dataclass(frozen=True)
class ProcessExit:
    """The end of a process. `code` is its exit status, negative for a signal; `log` the last lines of its stderr."""

    code: int
    timed_out: bool
    log: tuple[str, ...]

    @property
    def description(self) -> str:
        """A description of how the process ended, such as "the process was ended by SIGSEGV"."""
        if self.timed_out:
            return "the time ran out and the process was killed"
        if self.code >= 0:
            return f"the process ended with exit status {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"the process was ended by {name}" + (", usually because memory ran out" if name == "SIGKILL" else "")


class ProofProcess:
    """A running proof, as a context: leaving it in any way kills the whole process group."""

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
        """Yield events until the process ends or the monotonic clock reads `ends_at`. Other output is ignored."""
        reads_until = ends_at
        while (left_s := reads_until - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=min(_SLICE_S, left_s))
            except queue.Empty:
                if self._process.poll() is not None and reads_until == ends_at:
                    # Its last lines may still be in the pipe; but a process that it left behind may keep that open.
                    kill_group(self._process)
                    reads_until = min(ends_at, time.monotonic() + _DRAIN_S)
                continue
            if line is None:
                return
            try:
                event = json.loads(line) if line.startswith("{") else None
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield event
        self._timed_out = self._process.poll() is None

    def wait(self, *, ends_at: float) -> ProcessExit:
        """Wait for the process, at most until `ends_at`, then kill what is left of its group."""
        if not self._timed_out:
            try:
                self._process.wait(max(0.0, ends_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._timed_out = True
        died = kill_group(self._process)
        self._errors.join(KILL_GRACE_S)
        log = tuple(self._log)
        if not died:
            log = (*log, "SIGKILL did not end the process: the driver holds it in the kernel")
        return ProcessExit(self._process.returncode if died else 0, self._timed_out, log)
