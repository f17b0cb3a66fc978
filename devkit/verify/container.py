"""The proof inside the project's dev container: build it, start it, prove, and leave the engine as it was."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Any

from devkit.errors import DevkitError
from devkit.facts.values import Unknown
from devkit.probe.host import Host
from devkit.text import human_seconds
from devkit.verify.engine import WorkingEngine, working_engine
from devkit.verify.process import Streamed, stream
from devkit.verify.report import VerificationReport, Where
from devkit.workload.settings import Depth
from devkit.workload.stage import StageResult, StageStatus

Progress = Callable[[str], None]

SERVICE = "dev"
COMPOSE_FILE = Path(".devcontainer/docker-compose.yml")
HOST_SCRIPTS = (
    ("sh", (), Path(".devcontainer/gpu.sh")),
    ("powershell", ("-NoProfile", "-ExecutionPolicy", "Bypass", "-File"), Path(".devcontainer/gpu.ps1")),
)
"""A shell, its options, and the script that looks at the host in it; the first shell that is here is taken."""
MARK = "Written by devkit"

_ASK_DEADLINE_S = 30.0
_SCRIPT_DEADLINE_S = 60.0
_DOWN_DEADLINE_S = 90.0
_EXEC_MARGIN_S = 30.0
"""What the engine may take on top of the proof's own deadline."""


class Before(StrEnum):
    """What there was of the dev container before; it shall be the same afterwards."""

    RUNNING = "running"
    STOPPED = "stopped"
    ABSENT = "absent"


@dataclass(frozen=True)
class DevContainer:
    """A project's dev container, as devkit wrote it, and the engine that runs it."""

    folder: Path
    host: Host
    engine: WorkingEngine
    progress: Progress

    def compose(self, *words: str) -> list[str]:
        """A Compose command line on this dev container."""
        return [*self.engine.compose, "--file", str(self.folder / COMPOSE_FILE), *words]

    def ids(self, *words: str) -> str:
        """The service's container id by `docker compose ps` with `words`; "" for none."""
        return self.host.run(self.compose("ps", "--quiet", *words, SERVICE), deadline_s=_ASK_DEADLINE_S).out.strip()


def prove_in_container(
    folder: Path, host: Host, *, depth: Depth, timeout_s: float, progress: Progress, model: str = ""
) -> VerificationReport:
    """Build and start the dev container of `folder` and run the proof inside, for at most `timeout_s` seconds.

    A dev container that runs already is proved as it is and left running; otherwise it is taken down again.
    `model` is named as the container sees it.
    Raises DevkitError when the project has none of devkit's, or no engine can start it.
    """
    _require_devkits(folder)
    container = DevContainer(folder.resolve(), host, working_engine(host), progress)
    _look_at_host(container)
    before = _before(container)
    try:
        return _prove(container, before, depth=depth, timeout_s=timeout_s, model=model)
    finally:
        _put_back(container, before)


def _require_devkits(folder: Path) -> None:
    file = folder / COMPOSE_FILE
    try:
        first_lines = file.read_text(encoding="utf-8", errors="replace")[:200]
    except OSError:
        raise DevkitError(
            f"{file} does not exist, so there is no dev container to prove",
            f"write one: devkit init {folder}\nor prove this machine itself: devkit verify --here",
        ) from None
    if MARK not in first_lines:
        raise DevkitError(
            f"{file} was not written by devkit", "prove a container of your own from inside: devkit verify --here"
        )


def _look_at_host(container: DevContainer) -> None:
    """Let the project's own script find out how this host passes on a GPU, as an editor would before the start."""
    here = [
        [shell, *options, str(container.folder / script)]
        for shell, options, script in HOST_SCRIPTS
        if shutil.which(shell) and (container.folder / script).exists()
    ]
    if not here:
        container.progress("no shell here: the container starts as .devcontainer/.env says, or on the CPU")
        return
    done = container.host.run(here[0], deadline_s=_SCRIPT_DEADLINE_S)
    for line in (done.out + done.err).splitlines():
        container.progress(line)


def _before(container: DevContainer) -> Before:
    if container.ids("--status", "running"):
        return Before.RUNNING
    return Before.STOPPED if container.ids("--all") else Before.ABSENT


def _put_back(container: DevContainer, before: Before) -> None:
    words = {Before.RUNNING: (), Before.STOPPED: ("stop",), Before.ABSENT: ("down",)}[before]
    if not words:
        container.progress("the dev container ran before and is left running")
        return
    container.progress(f"compose {words[0]} …")
    done = container.host.run(container.compose(*words), deadline_s=_DOWN_DEADLINE_S)
    if done.code != 0:
        container.progress(f"compose {words[0]} ended with status {done.code}: {done.err.strip()[-300:]}")


def _prove(
    container: DevContainer, before: Before, *, depth: Depth, timeout_s: float, model: str
) -> VerificationReport:
    stages: list[StageResult] = []
    if before is Before.RUNNING:
        stages.append(StageResult("build", StageStatus.SKIPPED, reason="the dev container was already running"))
    else:
        for name, words in (("build", ("build",)), ("start", ("up", "--detach", "--wait"))):
            result, done = _step(container, name, words)
            stages.append(result)
            if result.status is StageStatus.FAILED:
                return _failed(container, stages, done)
    own = ("--model", model) if model else ()
    inside = ("devkit", "verify", "--here", "--json", f"--{depth}", "--timeout", f"{timeout_s:g}", *own)
    done = stream(
        container.compose("exec", "-T", SERVICE, *inside),
        progress=container.progress,
        timeout_s=timeout_s + _EXEC_MARGIN_S,
    )
    try:
        report = VerificationReport.from_document(json.loads(done.out))
    except ValueError:
        stages.append(StageResult("proof", StageStatus.FAILED, reason=_no_report(done, timeout_s)))
        return _failed(container, stages, done)
    return report.moved_into_container(_host_environment(container), tuple(stages))


def _step(container: DevContainer, name: str, words: tuple[str, ...]) -> tuple[StageResult, Streamed]:
    container.progress(f"compose {' '.join(words)} …")
    start = perf_counter()
    done = stream(container.compose(*words), progress=container.progress)
    ms = (perf_counter() - start) * 1000
    if done.code == 0:
        return StageResult(name, StageStatus.PASSED, {"exit_status": 0}, {"exit_status": "0"}, ms=ms), done
    reason = f"compose {words[0]} ended with status {done.code}: {done.last_line}"
    return StageResult(
        name, StageStatus.FAILED, {"exit_status": done.code or 0}, {"exit_status": "0"}, reason, ms
    ), done


def _no_report(done: Streamed, timeout_s: float) -> str:
    if done.code is None:
        return f"no report from inside within {human_seconds(timeout_s + _EXEC_MARGIN_S)}"
    if done.code in (126, 127):
        return f"devkit is not installed in the dev container: {done.last_line}"
    return f"devkit verify --here ended with status {done.code} and no report: {done.last_line}"


def _failed(container: DevContainer, stages: list[StageResult], done: Streamed) -> VerificationReport:
    log = done.log or tuple(done.out.splitlines()[-20:])
    return VerificationReport(Where.CONTAINER, {"kind": "unknown"}, _host_environment(container), tuple(stages), log)


def _host_environment(container: DevContainer) -> dict[str, Any]:
    """What only the host knows: the engine, and the exact image that was proved."""
    engine = container.engine.facts
    facts: dict[str, Any] = {"engine": engine.kind.value}
    if not isinstance(engine.version, Unknown):
        facts["engine_version"] = engine.version.text
    if container_id := container.ids("--all"):
        asked = [container.engine.program, "inspect", "--format", "{{.Image}}", container_id.splitlines()[0]]
        image = container.host.run(asked, deadline_s=_ASK_DEADLINE_S).out.strip()
        facts["image_id"] = image
        facts["image_digests"] = _digests(container, image)
    return facts


def _digests(container: DevContainer, image: str) -> list[str]:
    """The image's digests in registries; an image that was built here and never pushed has none."""
    asked = [container.engine.program, "image", "inspect", "--format", "{{json .RepoDigests}}", image]
    try:
        found = json.loads(container.host.run(asked, deadline_s=_ASK_DEADLINE_S).out)
    except ValueError:
        return []
    return [str(digest) for digest in found] if isinstance(found, list) else []
