"""The proof inside the project's dev container: build it, start it, prove, and leave the engine as it was."""

import json
import re
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
from devkit.text import format_duration
from devkit.verify.engine import WorkingEngine, require_engine
from devkit.verify.process import CompletedCommand, run_streaming
from devkit.verify.report import ProofLocation, VerificationReport
from devkit.workload.proof.stages import Depth, StageResult, StageStatus

Progress = Callable[[str], None]

SERVICE = "dev"
COMPOSE_FILE = Path(".devcontainer/docker-compose.yml")
HOST_SCRIPTS = (
    ("sh", (), Path(".devcontainer/gpu.sh")),
    ("powershell", ("-NoProfile", "-ExecutionPolicy", "Bypass", "-File"), Path(".devcontainer/gpu.ps1")),
)
"""A shell, its options, and the script that looks at the host in it; the first shell that is here is taken."""
GENERATED_MARK = "Written by devkit"

_ASK_DEADLINE_S = 30.0
_SCRIPT_DEADLINE_S = 60.0
_DOWN_DEADLINE_S = 90.0
_EXEC_MARGIN_S = 30.0
"""What the engine may take on top of the proof's own deadline."""


class PriorState(StrEnum):
    """What there was of the dev container before; it shall be the same afterwards."""

    RUNNING = "running"
    STOPPED = "stopped"
    ABSENT = "absent"


@dataclass(frozen=True)
class ComposeProject:
    """A project's dev container, as devkit wrote it, and the engine that runs it."""

    folder: Path
    host: Host
    engine: WorkingEngine
    progress: Progress

    def compose_command(self, *words: str) -> list[str]:
        """A Compose command line on this dev container."""
        return [*self.engine.compose, "--file", str(self.folder / COMPOSE_FILE), *words]

    def container_ids(self, *words: str) -> str:
        """The service's container id by `docker compose ps` with `words`; "" for none."""
        return self.host.run(
            self.compose_command("ps", "--quiet", *words, SERVICE), deadline_s=_ASK_DEADLINE_S
        ).out.strip()


def prove_in_container(
    folder: Path, host: Host, *, depth: Depth, timeout_s: float, progress: Progress, model: str = ""
) -> VerificationReport:
    """Build and start the dev container of `folder` and run the proof inside, for at most `timeout_s` seconds.

    A dev container that runs already is proved as it is and left running; otherwise it is taken down again.
    `model` is named as the container sees it.
    Raises DevkitError when the project has none of devkit's, or no engine can start it.
    """
    _require_devkits(folder)
    container = ComposeProject(folder.resolve(), host, require_engine(host), progress)
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
    if GENERATED_MARK not in first_lines:
        raise DevkitError(
            f"{file} was not written by devkit", "prove a container of your own from inside: devkit verify --here"
        )


def _look_at_host(container: ComposeProject) -> None:
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


def _before(container: ComposeProject) -> PriorState:
    if container.container_ids("--status", "running"):
        return PriorState.RUNNING
    return PriorState.STOPPED if container.container_ids("--all") else PriorState.ABSENT


def _put_back(container: ComposeProject, before: PriorState) -> None:
    words = {PriorState.RUNNING: (), PriorState.STOPPED: ("stop",), PriorState.ABSENT: ("down",)}[before]
    if not words:
        container.progress("the dev container ran before and is left running")
        return
    container.progress(f"compose {words[0]} …")
    done = container.host.run(container.compose_command(*words), deadline_s=_DOWN_DEADLINE_S)
    if done.code != 0:
        container.progress(f"compose {words[0]} ended with status {done.code}: {done.err.strip()[-300:]}")


def _prove(
    container: ComposeProject, before: PriorState, *, depth: Depth, timeout_s: float, model: str
) -> VerificationReport:
    stages: list[StageResult] = []
    if before is PriorState.RUNNING:
        stages.append(StageResult("build", StageStatus.SKIPPED, reason="the dev container was already running"))
    else:
        for name, words in (("build", ("build",)), ("start", ("up", "--detach", "--wait"))):
            result, done = _step(container, name, words)
            stages.append(result)
            if result.status is StageStatus.FAILED:
                return _failed(container, stages, done)
    own = ("--model", model) if model else ()
    inside = ("devkit", "verify", "--here", "--json", f"--{depth}", "--timeout", f"{timeout_s:g}", *own)
    done = run_streaming(
        container.compose_command("exec", "-T", SERVICE, *inside),
        progress=container.progress,
        timeout_s=timeout_s + _EXEC_MARGIN_S,
    )
    try:
        report = VerificationReport.from_document(json.loads(done.out))
    except ValueError:
        stages.append(StageResult("proof", StageStatus.FAILED, reason=_no_report(done, timeout_s)))
        return _failed(container, stages, done)
    return report.with_host_environment(_host_environment(container), tuple(stages))


def _step(container: ComposeProject, name: str, words: tuple[str, ...]) -> tuple[StageResult, CompletedCommand]:
    container.progress(f"compose {' '.join(words)} …")
    start = perf_counter()
    done = run_streaming(container.compose_command(*words), progress=container.progress)
    ms = (perf_counter() - start) * 1000
    if done.code == 0:
        return StageResult(name, StageStatus.PASSED, {"exit_status": 0}, {"exit_status": "0"}, ms=ms), done
    reason = f"compose {words[0]} ended with status {done.code}: {done.last_line}"
    return StageResult(
        name, StageStatus.FAILED, {"exit_status": done.code or 0}, {"exit_status": "0"}, reason, ms
    ), done


def _no_report(done: CompletedCommand, timeout_s: float) -> str:
    if done.code is None:
        return f"no report from inside within {format_duration(timeout_s + _EXEC_MARGIN_S)}"
    if done.code in (126, 127):
        return f"devkit is not installed in the dev container: {done.last_line}"
    return f"devkit verify --here ended with status {done.code} and no report: {done.last_line}"


def _failed(container: ComposeProject, stages: list[StageResult], done: CompletedCommand) -> VerificationReport:
    log = done.log or tuple(done.out.splitlines()[-20:])
    return VerificationReport(
        ProofLocation.CONTAINER, {"kind": "unknown"}, _host_environment(container), tuple(stages), log
    )


def _host_environment(container: ComposeProject) -> dict[str, Any]:
    """What only the host knows: the engine, and the exact image that was proved."""
    engine = container.engine.facts
    facts: dict[str, Any] = {"engine": engine.kind.value}
    if not isinstance(engine.version, Unknown):
        facts["engine_version"] = engine.version.text
    if container_id := container.container_ids("--all"):
        asked = [container.engine.program, "inspect", "--format", "{{.Image}}", container_id.splitlines()[0]]
        image = container.host.run(asked, deadline_s=_ASK_DEADLINE_S).out.strip()
        facts["image_id"] = image
        facts["image_digests"] = _digests(container, image)
    return facts


def _digests(container: ComposeProject, image: str) -> list[str]:
    """The image's digests in registries; an image that was built here and never pushed has none."""
    asked = [container.engine.program, "image", "inspect", "--format", "{{json .RepoDigests}}", image]
    try:
        found = json.loads(container.host.run(asked, deadline_s=_ASK_DEADLINE_S).out)
    except ValueError:
        return []
    return [str(digest) for digest in found] if isinstance(found, list) else []


# How large the dev container's image is, and which step of its Dockerfile made it so, as the engine has it.

BASE_IMAGE = "base image"
_DEADLINE_S = 30.0
_STEPS = (
    ("system packages", re.compile(r"dpkg-query|ca\.crt|update-ca-certificates")),
    ("Python environment", re.compile(r"-m venv /opt/venv")),
    ("uv", re.compile(r"&& pip install ")),
    ("torch", re.compile(r"the plan needs torch")),
    ("packages of the plan", re.compile(r"/mnt/requirements\.(?:txt|lock)")),
    ("packages of the project", re.compile(r"/mnt/work")),
    ("devkit", re.compile(r"devkit[-_]gpu")),
    ("user and folders", re.compile(r"useradd|WORKDIR|ENV|CMD|USER|ARG|LABEL")),
)
"""What a layer is for, by words of the instruction that made it; the first that fits counts."""


@dataclass(frozen=True)
class ImageReport:
    """An image, and the bytes of each part on the disk, unpacked, in the order of the Dockerfile."""

    image: str
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """The size of the image."""
        return sum(size for _, size in self.parts)


def measure_image(folder: Path, host: Host) -> ImageReport | Unknown:
    """The sizes of the image that was built for `folder` on this machine, or why there are none."""
    try:
        engine = require_engine(host)
    except DevkitError as error:
        return Unknown(error.message)
    image = _image_of(folder, host, engine)
    if isinstance(image, Unknown):
        return image
    words = ["history", "--no-trunc", "--human=false", "--format", "{{.Size}}\t{{.CreatedBy}}", image]
    done = host.run([engine.program, *words], deadline_s=_DEADLINE_S)
    if done.code != 0:
        return Unknown(f"{image} is not built on this machine")
    return ImageReport(image, parse_image_history(done.out))


def parse_image_history(history: str) -> tuple[tuple[str, int], ...]:
    """The parts of an image from its history, newest layer first, each line with bytes, a tab, and the instruction."""
    layers = [line.partition("\t") for line in reversed(history.splitlines()) if line.strip()]
    names = [_part_of(instruction) for _, _, instruction in layers]
    first = next((at for at, name in enumerate(names) if name == _STEPS[0][0]), len(layers))
    found: dict[str, int] = {}
    for at, (size, _, _) in enumerate(layers):
        if size_bytes := int(float(size)):
            name = BASE_IMAGE if at < first else names[at]
            found[name] = found.get(name, 0) + size_bytes
    return tuple(found.items())


def _part_of(instruction: str) -> str:
    return next((name for name, words in _STEPS if words.search(instruction)), "other steps")


def _image_of(folder: Path, host: Host, engine: WorkingEngine) -> str | Unknown:
    argv = [*engine.compose, "--file", str(folder / COMPOSE_FILE), "config", "--format", "json"]
    done = host.run(argv, deadline_s=_DEADLINE_S)
    try:
        document = json.loads(done.out)
        return str(document["services"][SERVICE].get("image") or f"{document['name']}-{SERVICE}")
    except (ValueError, KeyError, TypeError, AttributeError):
        return Unknown(f"{' '.join(engine.compose)} cannot read {COMPOSE_FILE}: {done.err.strip()[-300:]}")
