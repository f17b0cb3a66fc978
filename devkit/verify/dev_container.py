"""The proof inside the project's dev container: find an engine, build it, start it, prove, and leave the engine as it was.

Also measures the image that was built for the dev container. An engine that does not answer is judged by the doctor.
"""

import json
import shlex
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Any

from devkit.doctor.model import Severity
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import run_checks
from devkit.errors import DevkitError
from devkit.facts.engine import Engine, EngineEnd, EngineFailure, EngineKind
from devkit.facts.values import Unknown
from devkit.formats.jsonc import parse_jsonc
from devkit.probe.circumstances import detect_container
from devkit.probe.engine.client import read_compose, resolve_endpoint
from devkit.probe.engine.daemon import read_engine
from devkit.probe.gather import gather_facts
from devkit.probe.host import Host
from devkit.release import GENERATED_MARK, __version__
from devkit.text import format_duration
from devkit.verify.process import CompletedCommand, Progress, run_streaming
from devkit.verify.report import ProofLocation, ProofRequest, VerificationReport
from devkit.workload.proof.stages import StageResult, StageStatus

ENGINE_DEADLINE_S = 5.0
_DIAGNOSIS_DEADLINE_S = 1.5
"""Together below ten seconds, also where the engine hangs."""
_DIAGNOSED = ("system", "wsl", "container", "clients", "compose")
"""The facts that the checks of an engine's failure need besides the failure."""
DOCKER_COMPOSE = ("docker", "compose")
PODMAN_COMPOSE = ("podman", "compose")


@dataclass(frozen=True)
class WorkingEngine:
    """An engine that answered, the Compose command that talks to it, and the program that inspects its containers."""

    facts: Engine
    compose: tuple[str, ...]

    @property
    def program(self) -> str:
        """The engine's own program: docker or podman."""
        return self.compose[0]


def require_engine(host: Host) -> WorkingEngine:
    """Return the engine if it answers and has Compose. Raises DevkitError with the doctor's message and fix if not."""
    engine = read_engine(host, deadline_s=ENGINE_DEADLINE_S)
    if isinstance(engine, Engine):
        if read_compose(host) is not None:
            return WorkingEngine(engine, DOCKER_COMPOSE)
        if engine.kind is EngineKind.PODMAN and host.run([*PODMAN_COMPOSE, "version"]).code == 0:
            return WorkingEngine(engine, PODMAN_COMPOSE)
    error = _diagnose(host, engine)
    if detect_container(host):
        error.hint += (
            "\nThis is a container: run the command on the host. To prove fine-tuning here: devkit verify --here"
        )
    raise error


def explain_hanging_engine(host: Host, deadline_s: float) -> DevkitError:
    """Return the doctor's finding on an engine that a program waited for in vain."""
    message = f"the engine did not respond within {deadline_s:g} s"
    return _diagnose(host, EngineFailure(EngineEnd.TIMED_OUT, resolve_endpoint(host).endpoint, message))


def _diagnose(host: Host, engine: Engine | EngineFailure | Unknown) -> DevkitError:
    # The checks are imported only when something is wrong: that takes time.
    from devkit.doctor.registry import CHECKS

    facts = replace(gather_facts(host, deadline_s=_DIAGNOSIS_DEADLINE_S, only=_DIAGNOSED), engine=engine)
    checks = [check for check in CHECKS if check.code.startswith("ENG")]
    report = build_report(facts, run_checks(checks, facts, clock=time.monotonic), devkit=__version__)
    # The doctor only warns about an engine that is not installed, but commands that need one still stop.
    for root in report.roots:
        if root.finding.severity is Severity.ERROR or root.check.code == "ENG001":
            fix = root.finding.fix
            return DevkitError(
                root.finding.message, "\n".join((fix.summary, *(fix.commands or filter(None, (fix.docs,)))))
            )
    match engine:
        case Engine():
            return DevkitError(f"{engine.kind} responds, but has no Compose command", "install the Compose plugin")
        case EngineFailure():
            reason = f"no container engine responds at {engine.endpoint.url}: {engine.message or engine.end}"
        case Unknown():
            reason = f"the container engine could not be queried: {engine.reason}"
    return DevkitError(reason, "find out why: devkit doctor")


SERVICE = "dev"
COMPOSE_FILE = Path(".devcontainer/docker-compose.yml")
HOST_SCRIPTS = (
    ("sh", (), Path(".devcontainer/gpu.sh")),
    ("powershell", ("-NoProfile", "-ExecutionPolicy", "Bypass", "-File"), Path(".devcontainer/gpu.ps1")),
)
"""A shell, its options, and the script that detects the host's GPU in it; the first shell that is installed is used."""
DEVCONTAINER_FILE = Path(".devcontainer/devcontainer.json")
LIFECYCLE_COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")

_QUERY_DEADLINE_S = 30.0
_SCRIPT_DEADLINE_S = 60.0
_DOWN_DEADLINE_S = 90.0
_EXEC_MARGIN_S = 30.0
"""Time that the engine may take on top of the proof's own deadline."""


class PriorState(StrEnum):
    """The state of the dev container before the proof, to which it is returned."""

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

    def compose_command(self, *arguments: str) -> list[str]:
        """Return a Compose command line for this dev container."""
        return [*self.engine.compose, "--file", str(self.folder / COMPOSE_FILE), *arguments]

    def container_ids(self, *options: str) -> str:
        """Return the service's container ids by `docker compose ps` with `options`; "" for none."""
        command = self.compose_command("ps", "--quiet", *options, SERVICE)
        return self.host.run(command, deadline_s=_QUERY_DEADLINE_S).out.strip()


def prove_in_container(host: Host, folder: Path, request: ProofRequest) -> VerificationReport:
    """Build and start the dev container of `folder` and run the proof inside.

    A dev container that is already running is proved as it is and left running; otherwise it is taken down again.
    Raises DevkitError when the project has no dev container of devkit's, or no engine can start it.
    """
    _require_generated(folder)
    progress = request.progress
    project = ComposeProject(folder.resolve(), host, require_engine(host), progress)
    # The project's own script detects how this host provides a GPU, as it does for an editor.
    for shell, options, script in HOST_SCRIPTS:
        path = project.folder / script
        if shutil.which(shell) and path.exists():
            done = host.run([shell, *options, str(path)], deadline_s=_SCRIPT_DEADLINE_S)
            for line in (done.out + done.err).splitlines():
                progress(line)
            break
    else:
        progress("no shell here: the container starts according to .devcontainer/.env, or on the CPU")
    if project.container_ids("--status", "running"):
        before = PriorState.RUNNING
    else:
        before = PriorState.STOPPED if project.container_ids("--all") else PriorState.ABSENT
    try:
        return _prove(project, before, request)
    finally:
        if before is PriorState.RUNNING:
            progress("the dev container ran before and is left running")
        else:
            command = "stop" if before is PriorState.STOPPED else "down"
            progress(f"compose {command} …")
            down = host.run(project.compose_command(command), deadline_s=_DOWN_DEADLINE_S)
            if down.code != 0:
                progress(f"compose {command} ended with status {down.code}: {down.err.strip()[-300:]}")


def _require_generated(folder: Path) -> None:
    file = folder / COMPOSE_FILE
    try:
        first_lines = file.read_text(encoding="utf-8", errors="replace")[:200]
    except OSError:
        first_lines = ""
    places = (DEVCONTAINER_FILE, Path(".devcontainer.json"))
    own = next((folder / each for each in places if (folder / each).is_file()), None)
    if not first_lines and own is None:
        raise DevkitError(
            f"{file} does not exist, so there is no dev container to verify",
            f"write one: devkit init {folder}\nor run the proof on this machine: devkit verify --here",
        )
    if GENERATED_MARK not in first_lines:
        raise DevkitError(
            f"{file if first_lines else own} was not written by devkit",
            f"prove your own container from inside: devkit verify --here\nor see whether it starts: devkit up {folder}",
        )


def _prove(project: ComposeProject, before: PriorState, request: ProofRequest) -> VerificationReport:
    stages: list[StageResult] = []

    def report_failure(done: CompletedCommand) -> VerificationReport:
        log = done.log or tuple(done.out.splitlines()[-20:])
        environment = _describe_host(project)
        return VerificationReport(ProofLocation.CONTAINER, {"kind": "unknown"}, environment, tuple(stages), log)

    if before is PriorState.RUNNING:
        stages.append(StageResult("build", StageStatus.SKIPPED, reason="the dev container was already running"))
    else:
        for name, arguments in (("build", ("build",)), ("start", ("up", "--detach", "--wait"))):
            stage, done = _run_stage(project, name, [(f"compose {' '.join(arguments)}", arguments)])
            stages.append(stage)
            if done.code != 0:
                return report_failure(done)
    if before is PriorState.ABSENT and (commands := list_opening_commands(project.folder)):
        shown = (command[-1] if command[0] == "sh" else shlex.join(command) for command in commands)
        words = (("exec", "-T", SERVICE, *command) for command in commands)
        stages.append(_run_stage(project, "open", zip(shown, words, strict=True))[0])
    flags = {"--timeout": f"{request.timeout_s:g}", "--model": request.model, "--command": request.command}
    own = [word for flag, value in flags.items() if value for word in (flag, value)]
    inside = ("devkit", "verify", "--here", "--json", f"--{request.depth}", *own)
    timeout_s = request.timeout_s + _EXEC_MARGIN_S
    command = project.compose_command("exec", "-T", SERVICE, *inside)
    done = run_streaming(command, progress=project.progress, timeout_s=timeout_s)
    try:
        report = VerificationReport.from_document(json.loads(done.out))
    except ValueError:
        reason = f"devkit verify --here ended with status {done.code} and no report: {done.last_line}"
        if done.code is None:
            reason = f"no report from inside after {format_duration(timeout_s)}"
        elif done.code in (126, 127):
            reason = f"devkit is not installed in the dev container: {done.last_line}"
        stages.append(StageResult("proof", StageStatus.FAILED, reason=reason))
        return report_failure(done)
    return replace(
        report,
        where=ProofLocation.CONTAINER,
        environment={**report.environment, **_describe_host(project)},
        stages=(*stages, *report.stages),
    )


def list_opening_commands(folder: Path) -> list[list[str]]:
    """List the command lines that an editor runs inside once it has created the dev container of `folder`.

    Source: https://containers.dev/implementors/json_reference/#lifecycle-scripts.
    """
    try:
        document = parse_jsonc((folder / DEVCONTAINER_FILE).read_text(encoding="utf-8")).to_python()
    except (OSError, ValueError):
        return []
    known: dict[str, Any] = document if isinstance(document, dict) else {}
    return [words for key in LIFECYCLE_COMMANDS for words in list_commands(known.get(key))]


def list_commands(command: Any) -> list[list[str]]:  # noqa: ANN401 - JSON
    """List the command lines of a lifecycle command: a text for the shell, a list of words, or an object of them."""
    each = command.values() if isinstance(command, dict) else (command,)
    return [
        ["sh", "-c", one] if isinstance(one, str) else [str(word) for word in one]
        for one in each
        if one and isinstance(one, (str, list))
    ]


def _run_stage(
    project: ComposeProject, name: str, commands: Iterable[tuple[str, Sequence[str]]]
) -> tuple[StageResult, CompletedCommand]:
    """Run Compose's commands, each with the words that are shown, up to the first that fails, which is returned."""
    start, status, reason = perf_counter(), StageStatus.PASSED, ""
    for shown, arguments in commands:
        project.progress(f"{shown} …")
        done = run_streaming(project.compose_command(*arguments), progress=project.progress)
        if done.code != 0:
            status, reason = StageStatus.FAILED, f"{shown} ended with status {done.code}: {done.last_line}"
            break
    ms = (perf_counter() - start) * 1000
    return StageResult(name, status, {"exit_status": done.code or 0}, {"exit_status": "0"}, reason, ms), done


def _describe_host(project: ComposeProject) -> dict[str, Any]:
    """Return what only the host knows: the engine and the exact image that was proved.

    The digests are those in registries: an image that was built here and never pushed has none.
    """

    def inspect(*arguments: str) -> str:
        return project.host.run([project.engine.program, *arguments], deadline_s=_QUERY_DEADLINE_S).out.strip()

    engine = project.engine.facts
    facts: dict[str, Any] = {"engine": engine.kind.value}
    if not isinstance(engine.version, Unknown):
        facts["engine_version"] = engine.version.text
    if container_ids := project.container_ids("--all"):
        image = inspect("inspect", "--format", "{{.Image}}", container_ids.splitlines()[0])
        try:
            digests = json.loads(inspect("image", "inspect", "--format", "{{json .RepoDigests}}", image))
        except ValueError:
            digests = None
        facts["image_id"] = image
        facts["image_digests"] = [str(digest) for digest in digests] if isinstance(digests, list) else []
    return facts
