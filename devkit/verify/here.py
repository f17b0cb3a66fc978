"""The proof in place: in a child process, started again after a crash for the stages that are left."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import devkit
from devkit.probe.host import Host
from devkit.text import human_seconds
from devkit.verify.child import ChildEnd, ProofChild
from devkit.verify.interpreter import proof_python
from devkit.verify.report import VerificationReport, Where
from devkit.workload.settings import Depth
from devkit.workload.stage import DEVICE_LOST, StageResult, StageSpec, StageStatus, skipped_for_need, stages_of

Progress = Callable[[str], None]
Command = Callable[[Sequence[str]], Sequence[str]]

# This very devkit, under whichever Python has torch, and nothing else of this environment.
_START = """
import importlib.util, sys
folder = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("devkit", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["devkit"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from devkit.workload.proof import main
sys.exit(main())
"""


def proof_command(python: str) -> Command:
    """How to start the proof with `python`: a function from the proof's arguments to a command line."""
    folder = str(Path(devkit.__file__).parent)
    return lambda arguments: [python, "-P", "-u", "-X", "faulthandler", "-c", _START, folder, *arguments]


def prove_here(
    host: Host,
    *,
    depth: Depth,
    timeout_s: float,
    progress: Progress,
    command: Command | None = None,
    only: tuple[str, ...] = (),
    model: str = "",
) -> VerificationReport:
    """Run the proof on this machine, for at most `timeout_s` seconds; of its stages `only` these where some are named.

    `model` is a model of the user's to be proved too.

    A crash or hang costs the stage it happens in and those that need it; the others still run.
    `command` replaces how the proof is started. Raises DevkitError when no Python here has torch.
    """
    started = command or proof_command(proof_python(host))
    chosen = tuple(stage for stage in stages_of(depth) if stage.name in only or not only)
    run = _Run(chosen, timeout_s, progress)
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    ends_at = time.monotonic() + timeout_s
    # The folder is this process's, because the child may not live to clean it up.
    with tempfile.TemporaryDirectory(prefix="devkit-verify-") as scratch:
        while run.pending:
            with ProofChild(started([*_arguments(depth, run), f"--scratch={scratch}", f"--model={model}"])) as child:
                for event in child.events(ends_at=ends_at):
                    run.take(event)
                run.close(child.end(ends_at=ends_at))
    stages = tuple(run.results[stage.name] for stage in run.stages)
    return VerificationReport(
        Where.HERE, run.device, run.environment, stages, run.log, inputs=run.inputs, taken_at=taken_at
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
        self.progress(f"{result.name} {result.status} in {human_seconds(result.ms / 1000)}{because}")

    def close(self, end: ChildEnd) -> None:
        """Judge the end of a process: with stages left over it was a crash, a hang, or a lost device."""
        if not self.pending:
            return
        self.log = end.log
        lost_device = end.code == DEVICE_LOST and not end.timed_out and not self._current
        if not (lost_device and len(self.results) > self._known):
            self._blame(self._current or self.pending[0], end)
        for stage in self.stages:
            if stage.name not in self.results:
                self._skip(stage, end)
        self._known = len(self.results)

    def _blame(self, name: str, end: ChildEnd) -> None:
        reason = end.words
        if end.timed_out:
            reason = f"no result within {human_seconds(self.timeout_s)}; {reason}"
        elif last := _last_words(end.log):
            reason = f"{reason}: {last}"
        ms = (time.monotonic() - self._since) * 1000 if self._current else 0.0
        self._finish(StageResult(name, StageStatus.FAILED, reason=reason, ms=ms))

    def _skip(self, stage: StageSpec, end: ChildEnd) -> None:
        skipped = skipped_for_need(stage, self.results)
        if skipped is None and end.timed_out:
            skipped = StageResult(stage.name, StageStatus.SKIPPED, reason="the time ran out")
        if skipped is not None:
            self._finish(skipped)


def _last_words(log: Sequence[str]) -> str:
    """The line that tells most: Python's own fatal error if there is one, else the last that is not blank."""
    lines = [line.strip() for line in log if line.strip()]
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    return (fatal or lines or [""])[-1]
