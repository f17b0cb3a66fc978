"""Whether an engine is there to start the dev container, judged by the doctor before anything is started."""

import time
from dataclasses import dataclass

from devkit import __version__
from devkit.doctor.model import Finding, Severity
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import run_checks
from devkit.errors import DevkitError
from devkit.facts.model import Container, Engine, EngineFailure, EngineKind
from devkit.facts.values import Unknown
from devkit.probe.engine.client import read_compose
from devkit.probe.engine.daemon import read_engine
from devkit.probe.gather import gather_facts
from devkit.probe.host import Host
from devkit.probe.machine.environment import read_container

ENGINE_DEADLINE_S = 8.0
DOCKER_COMPOSE = ("docker", "compose")
PODMAN_COMPOSE = ("podman", "compose")


@dataclass(frozen=True)
class WorkingEngine:
    """An engine that answered, the Compose command that talks to it, and the program that inspects its containers."""

    facts: Engine
    compose: tuple[str, ...]

    @property
    def program(self) -> str:
        """docker or podman."""
        return self.compose[0]


def require_engine(host: Host) -> WorkingEngine:
    """The engine, when it answers and has Compose. Raises DevkitError with the doctor's message and fix when not."""
    engine = read_engine(host, deadline_s=ENGINE_DEADLINE_S)
    if isinstance(engine, Engine) and (compose := _compose(host, engine)):
        return WorkingEngine(engine, compose)
    error = _why_not(host, engine)
    if isinstance(read_container(host), Container):
        error.hint += "\nthis is the inside of a container; to prove it itself: devkit verify --here"
    raise error


def _compose(host: Host, engine: Engine) -> tuple[str, ...]:
    if read_compose(host) is not None:
        return DOCKER_COMPOSE
    if engine.kind is EngineKind.PODMAN and host.run([*PODMAN_COMPOSE, "version"]).code == 0:
        return PODMAN_COMPOSE
    return ()


def _why_not(host: Host, engine: Engine | EngineFailure | Unknown) -> DevkitError:
    # All the checks, with their imports, for the bad day only.
    from devkit.doctor.registry import CHECKS

    facts = gather_facts(host)
    report = build_report(facts, run_checks(CHECKS, facts, clock=time.monotonic), devkit=__version__)
    errors = [shown for shown in report.roots if shown.finding.severity is Severity.ERROR]
    findings = [shown.finding for shown in errors if shown.check.code.startswith("ENG")]
    if findings:
        return DevkitError(findings[0].message, _hint(findings[0]))
    match engine:
        case Engine():
            return DevkitError(f"{engine.kind} answers, but has no Compose command", "install the Compose plugin")
        case EngineFailure():
            said = f"no container engine answers at {engine.endpoint.url}: {engine.message or engine.end}"
            return DevkitError(said, "find out why: devkit doctor")
        case Unknown():
            return DevkitError(
                f"the container engine could not be asked: {engine.reason}", "find out why: devkit doctor"
            )


def _hint(finding: Finding) -> str:
    return "\n".join((finding.fix.summary, *finding.fix.commands))
