"""Whether an engine is there to start the dev container, judged by the doctor before anything is started."""

import time

from devkit import __version__
from devkit.doctor.model import Finding
from devkit.doctor.report import report_of
from devkit.doctor.run import run
from devkit.errors import DevkitError
from devkit.facts.model import Container, Engine
from devkit.facts.values import Unknown
from devkit.probe.container import read_container
from devkit.probe.docker import read_compose, read_engine
from devkit.probe.gather import gather
from devkit.probe.host import Host

ENGINE_DEADLINE_S = 8.0


def working_engine(host: Host) -> Engine:
    """The engine, when it answers and has Compose. Raises DevkitError with the doctor's message and fix when not."""
    engine = read_engine(host, deadline_s=ENGINE_DEADLINE_S)
    if isinstance(engine, Engine) and read_compose(host) is not None:
        return engine
    if isinstance(read_container(host), Container):
        raise DevkitError(
            "this is the inside of a container, where no container engine answers",
            "prove this container itself: devkit verify --here",
        )
    raise _why_not(host, engine.reason if isinstance(engine, Unknown) else "")


def _why_not(host: Host, reason: str) -> DevkitError:
    from devkit.doctor.registry import CHECKS  # a hundred checks' worth of imports, for the bad day only

    facts = gather(host)
    report = report_of(facts, run(CHECKS, facts, clock=time.monotonic), devkit=__version__)
    findings = [shown.finding for shown in report.roots if shown.check.code.startswith("ENG")]
    if findings:
        return DevkitError(findings[0].message, _hint(findings[0]))
    return DevkitError(
        f"no container engine with Compose answers{': ' + reason if reason else ''}", "find out why: devkit doctor"
    )


def _hint(finding: Finding) -> str:
    return "\n".join((finding.fix.summary, *finding.fix.commands))
