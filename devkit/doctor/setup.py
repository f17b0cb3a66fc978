"""What a machine needs for GPUs in containers: the parts that are ready, and the steps for those that are not."""

from collections.abc import Iterator
from dataclasses import dataclass

from devkit.doctor.fixes import find_host_side
from devkit.doctor.model import Fix, Severity, Side
from devkit.doctor.preconditions import has_nvidia_gpu
from devkit.doctor.problems import decode_fix_rows, render_fix
from devkit.doctor.report.report import Report
from devkit.facts.engine import Engine, EngineKind, Toolkit
from devkit.facts.gpu import NvmlAnswer
from devkit.facts.model import Facts
from devkit.facts.values import Release

_ENGINES = {EngineKind.DOCKER: "Docker", EngineKind.DOCKER_DESKTOP: "Docker Desktop", EngineKind.PODMAN: "Podman"}


@dataclass(frozen=True)
class Setup:
    """The parts that are ready, each with its version, and the steps for the others; none of them is run."""

    ready: tuple[str, ...]
    steps: tuple[Fix, ...]


def plan_setup(facts: Facts, report: Report) -> Setup:
    """Find which of driver, engine and Container Toolkit are missing or faulty, and what installs or repairs them.

    A part that a root error of the report is about gets the fix of that finding; one that is not there is installed.
    """
    if has_nvidia_gpu(facts) is False:
        return Setup(("this machine has no NVIDIA GPU, so it needs no driver or Container Toolkit",), ())
    ready, steps = [], []
    driver = f"driver {facts.nvml.driver}" if isinstance(facts.nvml, NvmlAnswer) else ""
    kind, engine = None, ""
    if isinstance(facts.engine, Engine):
        kind, number = facts.engine.kind, facts.engine.version
        engine = f"{_ENGINES[kind]} {number}" if isinstance(number, Release) else _ENGINES[kind]
    version = facts.toolkit.version if isinstance(facts.toolkit, Toolkit) else None
    toolkit = f"Container Toolkit {version}" if isinstance(version, Release) else ""
    if kind is EngineKind.DOCKER_DESKTOP:
        toolkit = "Container Toolkit: part of Docker Desktop"
    parts = (
        (("DRV", "WSL"), driver, tuple(_install("install-driver", facts, wanted="for its GPU"))),
        (("ENG",), engine, tuple(_install("install-engine", facts))),
        (("CTK", "CDI"), toolkit, tuple(_install("install-toolkit", facts))),
    )
    for prefixes, description, installation in parts:
        faults = [
            each.finding.fix
            for each in report.roots
            if each.check.code.startswith(prefixes) and each.finding.severity is Severity.ERROR
        ]
        if faults:
            steps += faults
        elif description:
            ready.append(description)
        else:
            steps += installation
    is_podman = kind is EngineKind.PODMAN
    run = "podman run --rm --device nvidia.com/gpu=all" if is_podman else "docker run --rm --gpus all"
    trial = Fix("Try it.", (f"{run} ubuntu nvidia-smi", "devkit doctor"), where=find_host_side(facts))
    return Setup(tuple(ready), (*steps, trial))


def _install(name: str, facts: Facts, **values: str) -> Iterator[Fix]:
    """Yield the fix of this name, where devkit runs on the side that it is for."""
    fix = render_fix(decode_fix_rows(name), values, facts)
    if name == "install-driver" or find_host_side(facts) is not Side.WINDOWS:
        yield fix
