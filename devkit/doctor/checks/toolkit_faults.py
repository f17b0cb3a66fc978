"""Checks of what is wrong with the NVIDIA Container Toolkit itself: its settings file, its mode, its release."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.compat.rows import Confidence as Trust
from devkit.compat.rows import EngineFault
from devkit.doctor.applies import known, toolkit_engine, toolkit_of, toolkit_version
from devkit.doctor.checks.chains import ATTEMPTS
from devkit.doctor.checks.toolkit import has_cdi_gpus, has_nvidia_runtime
from devkit.doctor.containers import gives_gpus_by_cdi
from devkit.doctor.machine import (
    INSTALL_TOOLKIT,
    TOOLKIT_GUIDE,
    TROUBLESHOOTING,
    Family,
    family_of,
    host_side,
    restart_engine,
)
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, check
from devkit.facts.model import Engine, EngineKind, Facts
from devkit.facts.values import Unknown

TOOLKIT = "nvidia-container-toolkit"
CONFIG = "/etc/nvidia-container-runtime/config.toml"


@check(
    "CTK008",
    "The toolkit's settings file is valid",
    covers=("F04",),
    symptoms=("unable to load config file", "could not parse config"),
    causes=("CTK009", "CTK010", *ATTEMPTS),
)
def settings_are_valid(facts: Facts) -> Iterator[Finding]:
    """config.toml of the Container Toolkit is TOML.

    Why it matters: the hook and the runtime read it at the start of every container; a stray character ends each GPU
    container before it begins.
    How it is seen: devkit parses the file.
    Source: NVIDIA, Container Toolkit, "Troubleshooting".
    """
    toolkit_engine(facts)
    error = known(toolkit_of(facts).config_error)
    if not error:
        return
    yield Finding(
        Severity.ERROR,
        f"the Container Toolkit cannot read its settings: {error}",
        Fix(
            "Repair the line, or write the default settings anew.",
            (f"sudo cp {CONFIG} {CONFIG}.bak", f"sudo nvidia-ctk config default --output={CONFIG}"),
            where=host_side(facts),
            root=True,
            docs=TROUBLESHOOTING,
        ),
        subject=CONFIG,
        evidence=(error,),
    )


@check(
    "CTK009",
    "The toolkit finds ldconfig",
    covers=("F04",),
    symptoms=("ldcache error: open failed: /sbin/ldconfig.real: no such file or directory",),
    causes=ATTEMPTS,
)
def ldconfig_is_there(facts: Facts) -> Iterator[Finding]:
    """The ldconfig that config.toml names for the host exists.

    Why it matters: the hook runs it for every container; Debian and Ubuntu call it ldconfig.real, other distributions
    do not, so a copied settings file ends every GPU container.
    How it is seen: `ldconfig` in config.toml, where the @ stands for the host, and whether that file is there.
    Source: NVIDIA/nvidia-container-toolkit issue 154; NVIDIA/nvidia-docker issue 614.
    """
    toolkit_engine(facts)
    toolkit = toolkit_of(facts)
    if known(toolkit.ldconfig_exists):
        return
    yield Finding(
        Severity.ERROR,
        f"the toolkit is told to run {toolkit.ldconfig}, which is not there: GPU containers do not start",
        Fix(
            "Name the ldconfig of this distribution.",
            (f"sudo nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig=@{_ldconfig(facts)}",),
            where=host_side(facts),
            root=True,
            docs=TROUBLESHOOTING,
        ),
        subject=CONFIG,
        evidence=(f'config.toml: ldconfig = "@{toolkit.ldconfig}"',),
    )


def _ldconfig(facts: Facts) -> str:
    return "/sbin/ldconfig.real" if family_of(facts) in (Family.UBUNTU, Family.DEBIAN) else "/sbin/ldconfig"


@check(
    "CTK010",
    "The toolkit's mode allows --gpus",
    covers=("F10",),
    symptoms=(
        "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported."
        " Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead.",
    ),
    causes=ATTEMPTS,
)
def mode_allows_gpus(facts: Facts) -> Iterator[Finding]:
    """The mode in config.toml lets the hook serve `docker run --gpus` and Compose's device requests.

    Why it matters: in the modes cdi and csv the hook refuses to work, so `--gpus all` ends with an error that speaks of
    the runtime, while `--runtime=nvidia` and CDI names work.
    How it is seen: `mode`, and whether Docker would use the hook: from 29.2 on it answers such requests by CDI first.
    Source: dstackai/dstack issue 2306, quoting the hook; moby/moby pull request 50228.
    """
    engine = toolkit_engine(facts)
    mode = known(toolkit_of(facts).mode)
    if engine.kind is not EngineKind.DOCKER:
        raise NotApplicable("only Docker calls the hook")
    if mode not in ("cdi", "csv") or known(engine.hook_on_path) is False or gives_gpus_by_cdi(engine):
        return
    yield Finding(
        Severity.WARNING,
        f"the toolkit's mode is {mode}, in which `--gpus` and Compose's `gpus:` are refused",
        Fix(
            f"Set the mode back to auto, or ask by {_other_ways(facts, engine)} instead.",
            ("sudo nvidia-ctk config --in-place --set nvidia-container-runtime.mode=auto",),
            where=host_side(facts),
            root=True,
            docs=TROUBLESHOOTING,
        ),
        subject=CONFIG,
        evidence=(f'config.toml: mode = "{mode}"', f"the hook is on the daemon's PATH, Docker {engine.version}"),
        confidence=Confidence.LIKELY,
    )


def _other_ways(facts: Facts, engine: Engine) -> str:
    ways = ["`runtime: nvidia`"] if has_nvidia_runtime(engine) else []
    return " or ".join([*ways, "`--device nvidia.com/gpu=all`"] if has_cdi_gpus(facts, engine) else ways or ["CDI"])


@check(
    "CTK011",
    "The installed toolkit is no release with a known fault for this machine",
    covers=("F05", "F11", "F15"),
    symptoms=(
        "bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
        "nvidia-container-cli: container error: cgroup subsystem devices not found",
        "cu->cuInit(0) failed -> CUDA_ERROR_UNKNOWN",
    ),
    causes=ATTEMPTS,
)
def release_has_no_fault_here(facts: Facts) -> Iterator[Finding]:
    """The release of the Container Toolkit is none that is known to fail on machines of this kind.

    Why it matters: settings are right, and containers fail all the same; only another release helps.
    How it is seen: the version against a table of faults, each with the kind of machine that shows it: rootless
    engines, control groups of version 2, Maxwell GPUs.
    Source: NVIDIA, Container Toolkit release notes; NVIDIA/nvidia-container-toolkit issues 7, 106, 1487 and 1967.
    """
    engine = toolkit_engine(facts)
    version = toolkit_version(facts)
    if engine.kind is not EngineKind.DOCKER:
        raise NotApplicable("Podman takes GPUs by CDI, past the faults of the hook")
    for fault in tables().engines.faults:
        is_meant = fault.program == TOOLKIT and fault.since <= version < fault.fixed_in
        if is_meant and _shows(fault.when, facts, engine):
            is_sure = fault.confidence is not Trust.INFERRED
            yield Finding(
                Severity.ERROR if is_sure else Severity.WARNING,
                f"Container Toolkit {version} {fault.summary}",
                _another_release(facts, engine, fault),
                evidence=(f"nvidia-ctk {version}", f"fault of {fault.since} until before {fault.fixed_in}"),
                confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
            )


def _shows(when: str, facts: Facts, engine: Engine) -> bool:
    """Whether this is the kind of machine on which the fault shows. CDI bypasses what the hook gets wrong."""
    match when:
        case "cgroup-v2":
            return engine.cgroup_version == "2"
        case "no-cgroups":
            return engine.is_rootless and toolkit_of(facts).no_cgroups is True
        case "rootless":
            return engine.is_rootless and not has_cdi_gpus(facts, engine)
        case "maxwell":
            capabilities = [gpu.capability for gpu in facts.gpus]
            return any(not isinstance(one, Unknown) and one.major == 5 for one in capabilities)
        case _:
            return False


def _another_release(facts: Facts, engine: Engine, fault: EngineFault) -> Fix:
    hint = ", or go back to the release before it" if fault.confidence is Trust.INFERRED else ""
    return Fix(
        f"Update the toolkit to {fault.fixed_in} or newer{hint}.",
        (*INSTALL_TOOLKIT.get(family_of(facts), ()), *restart_engine(facts, engine)),
        where=host_side(facts),
        root=True,
        restart=Restart.ENGINE,
        docs=TOOLKIT_GUIDE,
    )


@check(
    "CTK012",
    "runc can name GPU devices to systemd",
    covers=("F02",),
    symptoms=("Failed to initialize NVML: Unknown Error",),
    causes=("CON007",),
)
def runc_names_devices(facts: Facts) -> Iterator[Finding]:
    """This runc needs no links in /dev/char for the GPU's nodes, or the links are there.

    Why it matters: some releases leave devices without such a link out of what they tell systemd. Then even containers
    with explicit devices or CDI lose their GPU at the next `systemctl daemon-reload`.
    How it is seen: the engine's runc against the table of faults, the cgroup driver, and /dev/char/195:255.
    Source: opencontainers/runc issues 3671 and 3708; NVIDIA, Container Toolkit, "Troubleshooting".
    """
    engine = toolkit_engine(facts)
    if engine.cgroup_driver != "systemd" or engine.is_rootless:
        raise NotApplicable("systemd does not manage the devices of containers here")
    runc = known(engine.runc)
    faults = [fault for fault in tables().engines.faults if fault.program == "runc"]
    fault = next((fault for fault in faults if fault.since <= runc < fault.fixed_in), None)
    if fault is None or known(toolkit_of(facts).char_links):
        return
    yield Finding(
        Severity.WARNING,
        f"runc {runc} {fault.summary}: containers lose the GPU at the next `systemctl daemon-reload`",
        Fix(
            f"Update runc to {fault.fixed_in} or newer, or make the links, at every boot.",
            ("sudo nvidia-ctk system create-dev-char-symlinks --create-all",),
            where=host_side(facts),
            root=True,
            docs=TROUBLESHOOTING,
        ),
        evidence=(f"runc {runc}", "/dev/char/195:255 is not there", f"cgroup driver {engine.cgroup_driver}"),
        confidence=Confidence.LIKELY,
    )
