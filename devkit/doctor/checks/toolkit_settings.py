"""Checks of how the NVIDIA Container Toolkit is set, and whether it is patched."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import beside_the_engine, known, toolkit_engine, toolkit_of, toolkit_version
from devkit.doctor.checks.chains import ATTEMPTS
from devkit.doctor.checks.toolkit import has_cdi_gpus
from devkit.doctor.containers import default_is_legacy
from devkit.doctor.machine import (
    INSTALL_TOOLKIT,
    TOOLKIT_GUIDE,
    TROUBLESHOOTING,
    family_of,
    host_side,
    refresh_cdi,
    restart_engine,
)
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
from devkit.facts.model import EngineKind, Facts
from devkit.facts.values import Unknown
from devkit.text import count_of


@check(
    "CTK004",
    "Containers keep their GPU when systemd reloads",
    covers=("F01",),
    symptoms=("Failed to initialize NVML: Unknown Error", "systemctl daemon-reload"),
    causes=("CON007",),
)
def gpus_survive_daemon_reload(facts: Facts) -> Iterator[Finding]:
    """The way GPUs are injected is known to the container runtime, so that a systemd reload does not take them away.

    Why it matters: with the legacy hook and the systemd cgroup driver, any `systemctl daemon-reload` (package
    upgrades do it) rewrites the device rules; running containers then fail with "NVML: Unknown Error".
    How it is seen: cgroup driver systemd, the toolkit in legacy mode, and no CDI devices in the engine.
    Source: NVIDIA/nvidia-container-toolkit issues 48 and 1227; NVIDIA, Container Toolkit, "Troubleshooting".
    """
    engine = toolkit_engine(facts)
    version = toolkit_version(facts)
    if engine.kind is not EngineKind.DOCKER or engine.is_rootless:
        raise NotApplicable("only a Docker daemon run by root injects GPUs by the legacy hook")
    mode = known(toolkit_of(facts).mode)
    is_legacy = mode == "legacy" or (mode == "auto" and default_is_legacy(version))
    if engine.cgroup_driver != "systemd" or not is_legacy or has_cdi_gpus(facts, engine):
        return
    yield Finding(
        Severity.WARNING,
        "running containers will lose their GPU at the next `systemctl daemon-reload`",
        Fix(
            "Give GPUs by CDI: write the specification and switch CDI on in Docker. A container that has lost its GPU"
            " must be recreated.",
            (
                *refresh_cdi(facts),
                "sudo nvidia-ctk runtime configure --runtime=docker --cdi.enabled",
                *restart_engine(facts, engine),
            ),
            where=host_side(facts),
            root=True,
            restart=Restart.ENGINE,
            docs=TROUBLESHOOTING,
        ),
        evidence=(
            f"cgroup driver {engine.cgroup_driver}",
            f"Container Toolkit {version}, mode {mode}",
            "the engine lists no CDI GPU",
        ),
        confidence=Confidence.LIKELY,
    )


@check(
    "CTK005",
    "The toolkit's no-cgroups setting fits the engine",
    covers=("F05", "F06"),
    causes=ATTEMPTS,
    symptoms=(
        "bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
        "Failed to initialize NVML: Insufficient Permissions",
    ),
)
def no_cgroups_fits_engine(facts: Facts) -> Iterator[Finding]:
    """no-cgroups is on for a rootless engine, which may not edit device rules, and off for one run by root.

    Why it matters: off under a rootless engine, containers fail to start with a bpf_prog_query error; on under root,
    they start and then may not use the GPU.
    How it is seen: config.toml of the toolkit against the engine's security options. CDI needs neither.
    Source: NVIDIA/nvidia-container-toolkit issue 139; NVIDIA/nvidia-docker issue 1608.
    """
    engine = toolkit_engine(facts)
    toolkit_version(facts)
    no_cgroups = known(toolkit_of(facts).no_cgroups)
    if engine.kind is EngineKind.PODMAN:
        raise NotApplicable("Podman takes GPUs by CDI, which needs no such setting")
    if no_cgroups is engine.is_rootless:
        return
    spared = has_cdi_gpus(facts, engine)
    if spared and engine.is_rootless:
        return
    kind = "rootless" if engine.is_rootless else "run by root"
    yield Finding(
        Severity.WARNING if spared else Severity.ERROR,
        f"the toolkit's no-cgroups is {str(no_cgroups).lower()}, but this Docker is {kind}: containers"
        + (" fail to start with a GPU" if engine.is_rootless else " may not use the GPU they get"),
        Fix(
            f"Set no-cgroups to {str(engine.is_rootless).lower()}. Where rootless and rootful Docker share a machine,"
            " give GPUs by CDI instead.",
            (
                "sudo nvidia-ctk config --in-place --set"
                f" nvidia-container-cli.no-cgroups={str(engine.is_rootless).lower()}",
                *restart_engine(facts, engine),
            ),
            where=host_side(facts),
            root=True,
            restart=Restart.ENGINE,
            docs=TROUBLESHOOTING,
        ),
        evidence=(f"config.toml: no-cgroups = {str(no_cgroups).lower()}", f"the engine is {kind}"),
    )


@check(
    "CTK006",
    "The NVIDIA Container Toolkit has its security fixes",
    symptoms=("CVE-2025-23266", "CVE-2024-0132", "container escape"),
)
def toolkit_is_patched(facts: Facts) -> Iterator[Finding]:
    """The installed Container Toolkit is not older than the fixes of its known holes.

    Why it matters: several of them let a container take over the host.
    How it is seen: the version of nvidia-ctk against the table of vulnerabilities.
    Source: NVIDIA security bulletins; NVIDIA, Container Toolkit release notes.
    """
    beside_the_engine(facts)
    version = toolkit_version(facts)
    holes = [row for row in tables().engines.vulnerabilities if version < row.fixed_in]
    if not holes:
        return
    floor = max(row.fixed_in for row in holes)
    yield Finding(
        Severity.WARNING,
        f"Container Toolkit {version} has {count_of(len(holes), 'known security hole')}; {floor} is the first without",
        Fix(
            f"Update the toolkit to {floor} or newer.",
            INSTALL_TOOLKIT.get(family_of(facts), ()),
            where=host_side(facts),
            root=True,
            docs=TOOLKIT_GUIDE,
        ),
        evidence=(f"nvidia-ctk {version}", f"open: {', '.join(row.id for row in holes)}"),
    )


@check(
    "CTK007",
    "The toolkit looks for the driver where it is",
    covers=("F04",),
    symptoms=("load library failed: libnvidia-ml.so.1", "/run/nvidia/driver"),
    causes=("CDI001", "CDI003", *ATTEMPTS),
)
def driver_root_is_right(facts: Facts) -> Iterator[Finding]:
    """The toolkit's driver root is the host's own, where the driver's libraries are on the host.

    Why it matters: a root left behind by the GPU Operator makes the toolkit look in a folder that is gone, and every
    GPU container fails with "libnvidia-ml.so.1: cannot open shared object file".
    How it is seen: `root` in config.toml, while libnvidia-ml.so.1 is in the host's library cache.
    Source: NVIDIA/nvidia-container-toolkit issue 154.
    """
    toolkit_engine(facts)
    toolkit = toolkit_of(facts)
    root = known(toolkit.driver_root)
    if root in ("", "/") or not _has_host_library(facts):
        return
    yield Finding(
        Severity.ERROR,
        f"the toolkit looks for the driver under {root}, but its libraries are the host's own",
        Fix(
            "Set the driver root to /.",
            ("sudo nvidia-ctk config --in-place --set nvidia-container-cli.root=/",),
            where=host_side(facts),
            root=True,
            docs=TROUBLESHOOTING,
        ),
        evidence=(f'config.toml: root = "{root}"',),
        confidence=Confidence.LIKELY,
    )


def _has_host_library(facts: Facts) -> bool:
    return not isinstance(facts.driver, Unknown) and facts.driver.libnvidia_ml is not None
