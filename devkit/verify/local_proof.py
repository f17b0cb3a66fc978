"""The proof on this machine: in a child process, which is started again after a crash for the remaining stages."""

import json
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from devkit.errors import DevkitError
from devkit.probe.host import Host
from devkit.release import __version__
from devkit.text import format_duration, join_words
from devkit.verify.process import CompletedCommand, Progress, run_streaming
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
            command_line, left_s = program.build_command(arguments), max(0.0, ends_at - time.monotonic())
            run.finish_process(run_streaming(command_line, on_output=run.read, timeout_s=left_s, grace_s=0))
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

    def read(self, line: str) -> None:
        """Record the event in a line of the proof's output. Unknown ones and other output are ignored."""
        try:
            event = json.loads(line) if line.startswith("{") else None
        except ValueError:
            return
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

    def finish_process(self, end: CompletedCommand) -> None:
        """Judge the end of a process: with stages pending it was a crash, a hang, or a lost device."""
        if not self.pending:
            return
        self.log = end.log
        lost_device = end.code == DEVICE_LOST_EXIT_CODE and not self._current
        # A lost device fails no further stage, unless the process made no progress: then it would start forever.
        if not (lost_device and len(self.results) > self._count_before):
            self._fail_current(end)
        for stage in self.stages:
            if stage.name in self.results:
                continue
            skipped = skip_for_failed_need(stage, self.results)
            if skipped is None and end.code is None:
                skipped = StageResult(stage.name, StageStatus.SKIPPED, reason="the time ran out")
            if skipped is not None:
                self._finish_stage(skipped)
        self._count_before = len(self.results)

    def _fail_current(self, end: CompletedCommand) -> None:
        """Fail the running stage with the most informative line of the log, such as Python's own fatal error."""
        lines = [line.strip() for line in end.log if line.strip()]
        if end.code is None:
            reason = f"no result within {format_duration(self.timeout_s)}; the time ran out and the process was killed"
        else:
            said = [line for line in lines if line.startswith("Fatal Python error")] or lines
            reason = ": ".join((f"the process {_describe_exit(end.code)}", *said[-1:]))
        ms = (time.monotonic() - self._started_at) * 1000 if self._current else 0.0
        self._finish_stage(StageResult(self._current or self.pending[0], StageStatus.FAILED, reason=reason, ms=ms))


def _describe_exit(code: int) -> str:
    """Describe how a process ended by its exit status, negative for a signal: "was ended by SIGSEGV"."""
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (", usually because memory ran out" if name == "SIGKILL" else "")
