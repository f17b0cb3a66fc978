"""Checks of CDI specifications: readable, of a version that the engine knows, and of the current driver."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import (
    an_nvidia_gpu,
    beside_the_engine,
    engine_of,
    gpu_engine,
    known,
    loaded_driver,
)
from devkit.doctor.checks.chains import ATTEMPTS
from devkit.doctor.checks.toolkit import GPU_KIND, has_cdi_gpus
from devkit.doctor.machine import CDI_GUIDE, host_side, refresh_cdi
from devkit.doctor.model import Finding, Fix, NotApplicable, Severity, check
from devkit.facts.model import CdiSpec, EngineKind, Facts
from devkit.facts.values import Release

CDI_070 = Release.read("0.7.0")
"""The first version that older engines refuse. Source: NVIDIA, Container Toolkit 1.19.1 release notes."""


def gpu_specs(facts: Facts) -> tuple[CdiSpec, ...]:
    """The specifications for NVIDIA GPUs, those that cannot be read included."""
    beside_the_engine(facts)
    an_nvidia_gpu(facts)
    specs = known(facts.cdi)
    found = tuple(spec for spec in specs if spec.kind == GPU_KIND or (spec.error and "nvidia" in spec.path))
    if not found:
        raise NotApplicable("there is no CDI specification for nvidia.com/gpu")
    return found


@check(
    "CDI001",
    "CDI specifications are of the loaded driver",
    covers=("F13",),
    symptoms=("stale CDI spec", "libcuda.so mount"),
    causes=("CDI004", *ATTEMPTS),
)
def cdi_is_current(facts: Facts) -> Iterator[Finding]:
    """The library versions inside each CDI specification are the loaded driver's.

    Why it matters: after a driver update an old specification mounts libraries that are gone, and containers fail to
    start, or mix two versions.
    How it is seen: versions in the specification's library paths against /sys/module/nvidia/version.
    Source: NVIDIA, Container Toolkit, "Support for CDI", on regenerating after a driver change.
    """
    specs = gpu_specs(facts)
    release = loaded_driver(facts)
    for spec in specs:
        if spec.driver is not None and spec.driver != release:
            yield Finding(
                Severity.ERROR,
                f"{spec.path} describes driver {spec.driver}, but {release} is loaded",
                Fix(
                    "Write the CDI specification anew, and recreate containers that were made with the old one.",
                    rewrite(facts, spec),
                    where=host_side(facts),
                    root=True,
                    docs=CDI_GUIDE,
                ),
                subject=spec.path,
                evidence=(f"{spec.path}: libraries of {spec.driver}", f"/sys/module/nvidia/version: {release}"),
            )


def rewrite(facts: Facts, spec: CdiSpec) -> tuple[str, ...]:
    """How this one specification is written anew."""
    commands = refresh_cdi(facts)
    return tuple(command.replace("/etc/cdi/nvidia.yaml", spec.path) for command in commands)


@check(
    "CDI002",
    "The engine can read the CDI specifications",
    covers=("F08", "F09"),
    symptoms=("unresolvable CDI devices nvidia.com/gpu=all", "cdiVersion 0.7.0"),
    causes=ATTEMPTS,
)
def engine_reads_cdi_version(facts: Facts) -> Iterator[Finding]:
    """The engine is new enough for the version that the CDI specifications are written in.

    Why it matters: Container Toolkit 1.19.1 writes version 0.7.0, which older engines skip without a word; a GPU
    that worked yesterday is then "unresolvable".
    How it is seen: cdiVersion in each specification against the engine's version and the table of engine features.
    Source: NVIDIA, Container Toolkit 1.19.1 release notes; NVIDIA/nvidia-container-toolkit issue 1940.
    """
    specs = gpu_specs(facts)
    engine = gpu_engine(facts)
    name = "podman" if engine.kind is EngineKind.PODMAN else "docker"
    floor = tables().engines.features[name, "cdi-spec-0.7"]
    version = known(engine.version)
    if version >= floor.version:
        return
    for spec in specs:
        if not spec.error and _is_070(spec):
            yield Finding(
                Severity.ERROR if name == "podman" else Severity.WARNING,
                f"{spec.path} is CDI {spec.cdi_version}, which {name} {version} cannot read; {floor.version} can",
                Fix(
                    f"Update {name}, or write the specification in the older version.",
                    (
                        "sudo nvidia-ctk cdi generate --feature-flag no-additional-gids-for-device-nodes"
                        f" --output={spec.path}",
                    ),
                    where=host_side(facts),
                    root=True,
                    docs=CDI_GUIDE,
                ),
                subject=spec.path,
                evidence=(f"{spec.path}: cdiVersion {spec.cdi_version}", f"{name} {version}"),
            )


def _is_070(spec: CdiSpec) -> bool:
    try:
        return Release.read(spec.cdi_version) >= CDI_070
    except ValueError:
        return False


@check(
    "CDI003",
    "CDI specifications are readable and name GPUs",
    covers=("F08", "F12"),
    symptoms=("unresolvable CDI devices", "invalid device, empty device edits"),
    causes=("CTK002", *ATTEMPTS),
)
def cdi_is_readable(facts: Facts) -> Iterator[Finding]:
    """Every CDI specification for NVIDIA GPUs can be read by this user, parses, and names at least one device.

    Why it matters: an engine skips a file that it cannot read or parse; a rootless engine reads with your rights.
    How it is seen: devkit reads and parses the files as this user.
    Source: NVIDIA/nvidia-container-toolkit issue 146; kaito-project/kaito issue 2326.
    """
    specs = gpu_specs(facts)
    engine = engine_of(facts)
    # A rootless Podman has no other way to a GPU, and no other eyes than the user's.
    is_only_way = engine.kind is EngineKind.PODMAN and engine.is_rootless and not has_cdi_gpus(facts, engine)
    for spec in specs:
        if spec.error or not spec.devices:
            yield Finding(
                Severity.ERROR if is_only_way else Severity.WARNING,
                f"{spec.path} cannot be used: {spec.error or 'it names no device'}",
                Fix(
                    "Write the CDI specification anew, readable by every user.",
                    (*rewrite(facts, spec), f"sudo chmod 644 {spec.path}"),
                    where=host_side(facts),
                    root=True,
                    docs=CDI_GUIDE,
                ),
                subject=spec.path,
                evidence=(f"{spec.path}: {spec.error or 'no devices'}",),
            )
