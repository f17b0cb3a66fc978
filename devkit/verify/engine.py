"""Whether an engine is there to start the dev container, judged by the doctor before anything is started."""

import time
from dataclasses import dataclass, replace

from devkit.doctor.model import Severity
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import run_checks
from devkit.errors import DevkitError
from devkit.facts.engine import Engine, EngineEnd, EngineFailure, EngineKind
from devkit.facts.values import Unknown
from devkit.probe.circumstances import detect_container
from devkit.probe.engine.client import read_compose, resolve_endpoint
from devkit.probe.engine.daemon import read_engine
from devkit.probe.gather import gather_facts
from devkit.probe.host import Host
from devkit.release import __version__

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
        error.hint += "\nthis is a container: run it on the host, or prove the container itself: devkit verify --here"
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
