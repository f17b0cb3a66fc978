"""Checks of the NVIDIA Container Toolkit: installed, connected to the engine, configured, without known faults."""

from collections.abc import Iterator
from shlex import quote

from devkit.compat.version_tables import RowConfidence, load_tables
from devkit.doctor.checks.cascades import CDI_CODES, CONTAINER_START_CODES
from devkit.doctor.checks.cdi import CDI_GPU_KIND, has_cdi_gpus
from devkit.doctor.fixes import (
    TOOLKIT_GUIDE,
    TOOLKIT_TROUBLESHOOTING,
    configure_runtime,
    find_host_side,
    list_commands,
    refresh_cdi,
    restart_engine,
)
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import (
    is_in_wsl,
    require,
    require_engine_side,
    require_nvidia_gpu,
    require_toolkit,
    require_toolkit_engine,
    require_toolkit_version,
)
from devkit.doctor.problems import Problem, problem
from devkit.facts.model import Engine, EngineKind, Facts, Smoke, Tegra
from devkit.facts.values import Release, Unknown
from devkit.text import format_count, join_words

_LONGEST = 200

_HELP_LINES = ("Run 'docker", "See 'docker", "See 'podman")
"""What the commands print below an error. Source: docker/cli, cli/command/container/run.go."""

_SMI_FAILURES = ("Failed to initialize", "couldn't communicate", "No devices", "Unknown Error", "Unable to determine")

_ADVICE = {
    "starts, but finds no GPU in it": (
        "Where settings look right, regenerate the CDI specification and request the GPU by its CDI name.",
        ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "docker run --device nvidia.com/gpu=all ..."),
    ),
    "starts, but may not open /dev/nvidiactl": (
        "The device rules or SELinux refuse it: see no-cgroups in config.toml, and try --security-opt=label=disable.",
        ("nvidia-ctk config", "getenforce"),
    ),
    "gets the GPU, but not the driver's library libcuda.so.1": (
        "Ask for the capabilities compute and utility.",
        ("NVIDIA_DRIVER_CAPABILITIES=compute,utility",),
    ),
}

_CDI_HOOKS = ("nvidia-cdi-hook", "nvidia-ctk")
"""Programs of the toolkit that a specification calls. Source: nvidia-container-toolkit, pkg/nvcdi."""

_MODES = ("auto", "legacy", "csv", "cdi", "jit-cdi")
"""Source: nvidia-container-toolkit, internal/modifier/factory.go and internal/info/auto.go."""

_MAKE_CHAR_LINKS = "sudo nvidia-ctk system create-dev-char-symlinks --create-all"

_CHAR_LINKS_RULE = (
    'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia",'
    ' RUN+="/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"'
)
"""Source: NVIDIA/nvidia-container-toolkit issue 48."""

_PLAIN_RUNTIMES = ("runc", "crun", "youki", "runsc")

_TOOLKIT = "nvidia-container-toolkit"


def gives_gpus_by_cdi_alone(facts: Facts, engine: Engine) -> bool:
    """Say if this machine was set up for CDI without the hook: it has a specification, and the toolkit's base package."""
    if engine.kind is EngineKind.PODMAN or engine.hook_on_path is not False or isinstance(facts.cdi, Unknown):
        return False
    return has_toolkit(facts) and any(spec.kind.endswith("/gpu") or "nvidia" in spec.path for spec in facts.cdi)


def has_toolkit(facts: Facts) -> bool:
    """Say if nvidia-ctk is installed here, whether or not it says its version."""
    return not isinstance(facts.toolkit, Unknown) and facts.toolkit.version is not None


def has_nvidia_runtime(engine: Engine) -> bool:
    """Say if the engine has a container runtime named nvidia."""
    return any(runtime.name == "nvidia" for runtime in engine.runtimes)


def _format_offers(facts: Facts, engine: Engine) -> str:
    runtimes = join_words(runtime.name for runtime in engine.runtimes) or "none"
    return f"engine's runtimes: {runtimes}; its CDI GPUs: {'some' if has_cdi_gpus(facts, engine) else 'none'}"


@check(
    "CTK001",
    causes=(
        "CTK002",
        "CTK003",
        "CTK004",
        "CTK005",
        "CTK009",
        "CTK010",
        "CTK011",
        "CTK014",
        "CTK015",
        *CDI_CODES,
        *CONTAINER_START_CODES,
    ),
)
def toolkit_installed(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    has_runtime = has_nvidia_runtime(engine) and engine.kind is not EngineKind.PODMAN
    leftovers = () if has_toolkit(facts) else tuple(_list_leftovers(facts, engine))
    has_other_way = has_cdi_gpus(facts, engine)
    # Editors ask with `--gpus` where they see a runtime named nvidia, which then needs the hook.
    needs_hook = has_runtime and engine.hook_on_path is False and not has_gpus_by_cdi(engine)
    if not leftovers and (has_other_way or has_runtime) and not needs_hook:
        return
    offers = _format_offers(facts, engine)
    if require_toolkit(facts).version is None:
        yield problem(
            "removed" if leftovers else "missing", evidence=("nvidia-ctk: no such program", *leftovers, offers)
        )
    elif (
        engine.hook_on_path is False
        and engine.kind is EngineKind.DOCKER
        and (needs_hook or not gives_gpus_by_cdi_alone(facts, engine))
    ):
        yield problem(
            "no-hook-but-other-way" if has_other_way else "no-hook",
            evidence=("nvidia-container-runtime-hook is not on the daemon's PATH", offers),
        )


def _list_leftovers(facts: Facts, engine: Engine) -> Iterator[str]:
    """List what still names programs of a toolkit that is gone."""
    for runtime in engine.runtimes:
        if runtime.name == "nvidia" and runtime.program == "":
            yield f"runtime nvidia: {runtime.path} is not there"
    for spec in () if isinstance(facts.cdi, Unknown) else facts.cdi:
        missing = () if isinstance(spec.missing_paths, Unknown) else spec.missing_paths
        if programs := [path for path in missing if path.rpartition("/")[2] in _CDI_HOOKS]:
            yield f"{spec.path}: {programs[0]} is not there"


@check("CTK002", causes=("CTK003", "CTK004", *CONTAINER_START_CODES))
def engine_offers_gpus(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    if has_cdi_gpus(facts, engine):
        return
    if engine.kind is not EngineKind.PODMAN and (has_nvidia_runtime(engine) or engine.hook_on_path is not False):
        return
    yield problem(
        "no-cdi-device" if engine.kind is EngineKind.PODMAN else "no-way",
        evidence=(_format_offers(facts, engine), f"CDI folders: {', '.join(engine.cdi_spec_dirs) or 'none'}"),
    )


@check("CTK003", causes=CONTAINER_START_CODES)
def runtime_registered(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    toolkit = require_toolkit(facts)
    if engine.kind is EngineKind.PODMAN:
        raise NotApplicable("Podman takes GPUs by CDI and needs no runtime")
    if has_nvidia_runtime(engine):
        return
    waiting = [file.path for file in toolkit.daemon_files if file.registers_nvidia is True and not file.error]
    if not waiting and has_cdi_gpus(facts, engine):
        return
    runtimes = join_words(runtime.name for runtime in engine.runtimes) or "none"
    evidence = (f"engine's runtimes: {runtimes}", *(f"{path} registers nvidia" for path in waiting))
    # A rootless daemon reads another file than the system's.
    confidence = Confidence.CERTAIN if len(toolkit.daemon_files) < 2 else Confidence.LIKELY
    if waiting:
        yield problem("not-loaded", path=waiting[0], evidence=evidence, confidence=confidence)
    else:
        yield problem("not-registered", evidence=evidence, confidence=confidence)


@check("CTK004", causes=("CON007",))
def gpus_survive_daemon_reload(facts: Facts) -> Iterator[Finding]:
    engine = require_toolkit_engine(facts)
    version = require_toolkit_version(facts)
    if engine.kind is not EngineKind.DOCKER or engine.is_rootless:
        raise NotApplicable("only a Docker daemon run by root injects GPUs by the legacy hook")
    mode = require(require_toolkit(facts).mode)
    is_legacy = mode == "legacy" or (mode == "auto" and is_legacy_by_default(version))
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
            where=find_host_side(facts),
            root=True,
            restart=Restart.ENGINE,
            docs=TOOLKIT_TROUBLESHOOTING,
        ),
        evidence=(
            f"cgroup driver {engine.cgroup_driver}",
            f"Container Toolkit {version}, mode {mode}",
            "the engine lists no CDI GPU",
        ),
        confidence=Confidence.LIKELY,
    )


def is_legacy_by_default(version: Release) -> bool:
    """Say if the mode auto of this toolkit means legacy on a machine with ordinary GPUs, by the version table."""
    rows = [row for row in load_tables().engines.container_toolkits if row.version <= version]
    newest = max(rows, key=lambda row: row.version, default=None)
    return newest is None or newest.default_mode.startswith("legacy")


@check("CTK005", causes=CONTAINER_START_CODES)
def no_cgroups_setting_fits_engine(facts: Facts) -> Iterator[Finding]:
    engine = require_toolkit_engine(facts)
    require_toolkit_version(facts)
    no_cgroups = require(require_toolkit(facts).no_cgroups)
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
            where=find_host_side(facts),
            root=True,
            restart=Restart.ENGINE,
            docs=TOOLKIT_TROUBLESHOOTING,
        ),
        evidence=(f"config.toml: no-cgroups = {str(no_cgroups).lower()}", f"the engine is {kind}"),
    )


@check("CTK006")
def toolkit_is_patched(facts: Facts) -> Iterator[Finding]:
    require_engine_side(facts)
    version = require_toolkit_version(facts)
    holes = [row for row in load_tables().engines.vulnerabilities if version < row.fixed_in]
    if not holes:
        return
    floor = max(row.fixed_in for row in holes)
    yield Finding(
        Severity.WARNING,
        f"Container Toolkit {version} has {format_count(len(holes), 'known security hole')}; {floor} is the first without",
        Fix(
            f"Update the toolkit to {floor} or newer.",
            list_commands(facts, "install_toolkit"),
            where=find_host_side(facts),
            root=True,
            docs=TOOLKIT_GUIDE,
        ),
        evidence=(f"nvidia-ctk {version}", f"open: {', '.join(row.id for row in holes)}"),
    )


@check("CTK007", causes=("CDI001", "CDI003", *CONTAINER_START_CODES))
def driver_root_is_right(facts: Facts) -> Iterator[Finding]:
    require_toolkit_engine(facts)
    toolkit = require_toolkit(facts)
    root = require(toolkit.driver_root)
    if root in ("", "/") or isinstance(facts.driver, Unknown) or facts.driver.libnvidia_ml is None:
        return
    yield Finding(
        Severity.ERROR,
        f"the toolkit looks for the driver under {root}, but its libraries are the host's own",
        Fix(
            "Set the driver root to /.",
            ("sudo nvidia-ctk config --in-place --set nvidia-container-cli.root=/",),
            where=find_host_side(facts),
            root=True,
            docs=TOOLKIT_TROUBLESHOOTING,
        ),
        evidence=(f'config.toml: root = "{root}"',),
        confidence=Confidence.LIKELY,
    )


@check("CTK008", causes=("CTK009", "CTK010", "CTK015", *CONTAINER_START_CODES))
def toolkit_config_is_valid(facts: Facts) -> Iterator[Finding]:
    require_toolkit_engine(facts)
    toolkit = require_toolkit(facts)
    error = require(toolkit.config_error)
    newest = max(row.version for row in load_tables().engines.container_toolkits)
    is_known_release = isinstance(toolkit.version, Release) and toolkit.version <= newest
    if error:
        message = f"the Container Toolkit cannot read its settings: {error}"
        fix: tuple[str, ...] = (
            f"sudo cp {quote(toolkit.config_path)} {quote(toolkit.config_path)}.bak",
            f"sudo nvidia-ctk config default --output={quote(toolkit.config_path)}",
        )
    elif isinstance(toolkit.mode, str) and toolkit.mode not in _MODES:
        message = (
            f"the toolkit's mode is {toolkit.mode!r}, which is none: containers of the nvidia runtime do not start"
        )
        fix = ("sudo nvidia-ctk config --in-place --set nvidia-container-runtime.mode=auto",)
    else:
        return
    yield Finding(
        Severity.ERROR if error or is_known_release else Severity.WARNING,
        message,
        Fix(
            "Repair the line, or write the default settings again." if error else "Set the mode back to auto.",
            fix,
            where=find_host_side(facts),
            root=True,
            docs=TOOLKIT_TROUBLESHOOTING,
        ),
        subject=toolkit.config_path,
        evidence=(error or f'{toolkit.config_path}: mode = "{toolkit.mode}"',),
        confidence=Confidence.CERTAIN if error or is_known_release else Confidence.POSSIBLE,
    )


@check("CTK009", causes=CONTAINER_START_CODES)
def ldconfig_exists(facts: Facts) -> Iterator[Finding]:
    require_toolkit_engine(facts)
    toolkit = require_toolkit(facts)
    if require(toolkit.ldconfig_exists):
        return
    yield Finding(
        Severity.ERROR,
        f"the toolkit is configured to run {toolkit.ldconfig}, which does not exist: GPU containers do not start",
        Fix(
            "Name the ldconfig of this machine."
            if isinstance(toolkit.default_ldconfig, str)
            else "Install ldconfig, which this machine does not have in /sbin, or name the one that it has.",
            (
                f"sudo nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig=@{quote(toolkit.default_ldconfig)}",
            )
            if isinstance(toolkit.default_ldconfig, str)
            else (),
            where=find_host_side(facts),
            root=True,
            docs=TOOLKIT_TROUBLESHOOTING,
        ),
        subject=toolkit.config_path,
        evidence=(f'config.toml: ldconfig = "@{toolkit.ldconfig}"',),
    )


@check("CTK010", causes=CONTAINER_START_CODES)
def toolkit_mode_allows_gpus_flag(facts: Facts) -> Iterator[Finding]:
    engine = require_toolkit_engine(facts)
    mode = require(require_toolkit(facts).mode)
    if engine.kind is not EngineKind.DOCKER:
        raise NotApplicable("only Docker calls the hook")
    if mode not in ("cdi", "csv") or require(engine.hook_on_path) is False or has_gpus_by_cdi(engine):
        return
    if mode == "csv" and not isinstance(facts.system, Unknown) and isinstance(facts.system.tegra, Tegra):
        yield Finding(
            Severity.NOTE,
            "the toolkit's mode is csv, as a Jetson needs it: `--gpus` and Compose's `gpus:` are refused",
            Fix("Ask by `runtime: nvidia` or `--runtime nvidia`.", where=Side.PROJECT, docs=TOOLKIT_TROUBLESHOOTING),
            subject=require_toolkit(facts).config_path,
            evidence=('config.toml: mode = "csv"', f"board: {facts.system.tegra.model or 'a Tegra'}"),
        )
        return
    has_cdi = has_cdi_gpus(facts, engine)
    # The runtime resolves the same specifications in mode cdi, and finds nothing to give in mode csv off a Jetson.
    ways = ["`runtime: nvidia`"] if has_cdi and mode == "cdi" and has_nvidia_runtime(engine) else []
    ways += ["`--device nvidia.com/gpu=all`"] if has_cdi else []
    yield Finding(
        Severity.WARNING if ways else Severity.ERROR,
        f"the toolkit's mode is {mode}, in which `--gpus` and Compose's `gpus:` are refused",
        Fix(
            f"Set the mode back to auto{', or ask by ' if ways else ''}{' or '.join(ways)}{' instead' if ways else ''}.",
            ("sudo nvidia-ctk config --in-place --set nvidia-container-runtime.mode=auto",),
            where=find_host_side(facts),
            root=True,
            docs=TOOLKIT_TROUBLESHOOTING,
        ),
        subject=require_toolkit(facts).config_path,
        evidence=(f'config.toml: mode = "{mode}"', f"the hook is on the daemon's PATH, Docker {engine.version}"),
        confidence=Confidence.LIKELY,
    )


def has_gpus_by_cdi(engine: Engine) -> bool:
    """Say if this Docker serves `--gpus` by CDI: it is new enough, and knows the devices."""
    if engine.kind is not EngineKind.DOCKER or isinstance(engine.version, Unknown):
        return False
    if isinstance(engine.cdi_devices, Unknown) or not any(one.startswith(CDI_GPU_KIND) for one in engine.cdi_devices):
        return False
    return engine.version >= load_tables().engines.features["docker", "gpus-by-cdi"].version


@check("CTK011", causes=CONTAINER_START_CODES)
def toolkit_has_no_known_fault(facts: Facts) -> Iterator[Finding]:
    engine = require_toolkit_engine(facts)
    version = require_toolkit_version(facts)
    if engine.kind is not EngineKind.DOCKER:
        raise NotApplicable("Podman takes GPUs by CDI, past the faults of the hook")
    for fault in load_tables().engines.faults:
        is_meant = fault.program == _TOOLKIT and fault.since <= version < fault.fixed_in
        if is_meant and _is_shown_here(fault.when, facts, engine):
            is_sure = fault.confidence is not RowConfidence.INFERRED
            hint = ", or go back to the release before it" if fault.confidence is RowConfidence.INFERRED else ""
            yield Finding(
                Severity.ERROR if is_sure else Severity.WARNING,
                f"Container Toolkit {version} {fault.summary}",
                Fix(
                    f"Update the toolkit to {fault.fixed_in} or newer{hint}.",
                    (*list_commands(facts, "install_toolkit"), *restart_engine(facts, engine)),
                    where=find_host_side(facts),
                    root=True,
                    restart=Restart.ENGINE,
                    docs=TOOLKIT_GUIDE,
                ),
                evidence=(f"nvidia-ctk {version}", f"fault of {fault.since} until before {fault.fixed_in}"),
                confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
            )


def _is_shown_here(when: str, facts: Facts, engine: Engine) -> bool:
    """Say if this is the kind of machine on which the fault shows. CDI bypasses what the hook gets wrong."""
    match when:
        case "cgroup-v2":
            return engine.cgroup_version == "2"
        case "no-cgroups":
            return engine.is_rootless and require_toolkit(facts).no_cgroups is True
        case "rootless":
            return engine.is_rootless and not has_cdi_gpus(facts, engine)
        case "maxwell":
            capabilities = [gpu.capability for gpu in facts.gpus]
            return any(not isinstance(one, Unknown) and one.major == 5 for one in capabilities)
        case _:
            return False


@check("CTK012", causes=("CON007",))
def runc_passes_device_names(facts: Facts) -> Iterator[Finding]:
    engine = require_toolkit_engine(facts)
    if engine.cgroup_driver != "systemd" or engine.is_rootless:
        raise NotApplicable("systemd does not manage the devices of containers here")
    runc = require(engine.runc)
    faults = [fault for fault in load_tables().engines.faults if fault.program == "runc"]
    fault = next((fault for fault in faults if fault.since <= runc < fault.fixed_in), None)
    if fault is None or require(require_toolkit(facts).char_links):
        return
    yield Finding(
        Severity.WARNING,
        f"runc {runc} {fault.summary}: containers lose the GPU at the next `systemctl daemon-reload`",
        Fix(
            f"Update runc to {fault.fixed_in} or newer, or make the links, now and at every boot.",
            (_MAKE_CHAR_LINKS, f"echo '{_CHAR_LINKS_RULE}' | sudo tee /lib/udev/rules.d/71-nvidia-dev-char.rules"),
            where=find_host_side(facts),
            root=True,
            docs=TOOLKIT_TROUBLESHOOTING,
        ),
        evidence=(f"runc {runc}", "/dev/char/195:255 is not there", f"cgroup driver {engine.cgroup_driver}"),
        confidence=Confidence.LIKELY,
    )


@check("CTK014", causes=("CTK015", "CTK010", *CONTAINER_START_CODES))
def runtime_is_toolkits(facts: Facts) -> Iterator[Finding]:
    engine = require_toolkit_engine(facts)
    runtime = next((runtime for runtime in engine.runtimes if runtime.name == "nvidia"), None)
    if runtime is None or engine.kind is EngineKind.PODMAN:
        raise NotApplicable("the engine has no runtime named nvidia")
    program = require(runtime.program)
    base = (program or runtime.path).rpartition("/")[2]
    if program and base not in _PLAIN_RUNTIMES:
        return
    is_incomplete = has_toolkit(facts) and not require_toolkit(facts).runtime_path
    name = f"nvidia is registered as {runtime.path}"
    is_default = engine.default_runtime == "nvidia"
    yield Finding(
        Severity.ERROR,
        f"{name}, which gives no GPU: containers start without one and without an error"
        if program
        else f"{name}, which is not there: {'no container starts' if is_default else '`runtime: nvidia` does not start'}",
        Fix(
            "Register the toolkit's own program, and restart the engine."
            if has_toolkit(facts)
            else "Install the toolkit, connect it to the engine, and restart that.",
            (
                *(() if has_toolkit(facts) else list_commands(facts, "install_toolkit")),
                *(list_commands(facts, "reinstall_toolkit") if is_incomplete else ()),
                *configure_runtime(facts, engine),
            ),
            where=find_host_side(facts),
            root=True,
            restart=Restart.ENGINE,
            docs=TOOLKIT_GUIDE,
        ),
        subject=runtime.path,
        evidence=(f"engine: runtime nvidia, path {runtime.path}", f"found at: {program or 'nowhere'}"),
    )


@check("CTK015", causes=CONTAINER_START_CODES)
def toolkit_programs_exist(facts: Facts) -> Iterator[Finding]:
    engine = require_toolkit_engine(facts)
    toolkit = require_toolkit(facts)
    require_toolkit_version(facts)
    if engine.kind is EngineKind.PODMAN:
        raise NotApplicable("Podman takes GPUs by CDI, past these programs")
    if (
        toolkit.low_level_runtime == ""
        and has_nvidia_runtime(engine)
        and not isinstance(toolkit.low_level_runtimes, Unknown)
    ):
        names = join_words(toolkit.low_level_runtimes)
        yield Finding(
            Severity.ERROR,
            f"the nvidia runtime hands over to {names}, of which none is there: `runtime: nvidia` does not start",
            Fix(
                "Name the runtime that this machine has.",
                ("sudo nvidia-ctk config --in-place --set nvidia-container-runtime.runtimes=runc",),
                where=find_host_side(facts),
                root=True,
                docs=TOOLKIT_TROUBLESHOOTING,
            ),
            subject=toolkit.config_path,
            evidence=(f"{toolkit.config_path}: runtimes = {list(toolkit.low_level_runtimes)}",),
        )
    if toolkit.cli_path == "" and require(engine.hook_on_path) and not has_gpus_by_cdi(engine):
        yield Finding(
            Severity.ERROR,
            "nvidia-container-cli, which the toolkit's hook calls, is not installed: `--gpus` does not start containers",
            Fix(
                "Install the package again that holds it.",
                list_commands(facts, "reinstall_toolkit"),
                where=find_host_side(facts),
                root=True,
                docs=TOOLKIT_GUIDE,
            ),
            subject="nvidia-container-cli",
            evidence=("nvidia-container-runtime-hook is on the daemon's PATH", "nvidia-container-cli: no such program"),
        )


@check("CTK016")
def enroot_gives_gpus(facts: Facts) -> Iterator[Finding]:
    require_nvidia_gpu(facts)
    toolkit = require_toolkit(facts)
    hook = require(toolkit.enroot_hook)
    if hook is None:
        raise NotApplicable("Enroot is not installed")
    if not hook:
        yield Finding(
            Severity.WARNING,
            "Enroot has no hook 98-nvidia.sh: containers of Slurm jobs start without a GPU",
            Fix("Install Enroot again with its settings, or name the folder of the hooks in enroot.conf.", root=True),
            evidence=("/etc/enroot/hooks.d/98-nvidia.sh: no such file",),
            confidence=Confidence.POSSIBLE,
        )
    if require(toolkit.cli_path) == "":
        yield Finding(
            Severity.ERROR,
            "Enroot's hook calls nvidia-container-cli, which is not installed: no job's container gets a GPU",
            Fix(
                "Install the toolkit, whose libnvidia-container-tools holds it, on every node.",
                list_commands(facts, "install_toolkit"),
                where=find_host_side(facts),
                root=True,
                docs=TOOLKIT_GUIDE,
            ),
            subject="nvidia-container-cli",
            evidence=(hook or "Enroot is installed", "nvidia-container-cli: no such program"),
        )


@check("CTK017")
def nerdctl_has_gpus(facts: Facts) -> Iterator[Finding]:
    require_nvidia_gpu(facts)
    if require(facts.clients).named("nerdctl") is None:
        raise NotApplicable("nerdctl is not installed")
    if require(require_toolkit(facts).cli_path) or any(spec.kind == CDI_GPU_KIND for spec in require(facts.cdi)):
        return
    yield Finding(
        Severity.WARNING if isinstance(facts.engine, Engine) else Severity.ERROR,
        "nerdctl has no way to the GPUs: neither nvidia-container-cli nor a CDI specification is there",
        Fix(
            "Install the Container Toolkit, and describe the GPUs.",
            (
                *list_commands(facts, "install_toolkit"),
                "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            ),
            where=find_host_side(facts),
            root=True,
            docs=TOOLKIT_GUIDE,
        ),
        subject="nerdctl",
        evidence=("nvidia-container-cli: no such program", "no CDI specification of nvidia.com/gpu"),
    )


@check("CTK013")
def smoke_container_gets_gpu(facts: Facts) -> Iterator[Finding]:
    smoke = require(facts.smoke)
    require_nvidia_gpu(facts)
    if smoke.left_behind and isinstance(smoke.left_behind, str):
        yield Finding(
            Severity.WARNING,
            f"the probe container {smoke.left_behind} could not be removed",
            Fix("Remove it.", (f"docker rm --force {quote(smoke.left_behind)}",), where=Side.HOST),
            subject=smoke.left_behind,
            evidence=(f"docker ps --all still lists {smoke.left_behind}",),
        )
    if smoke.timed_out is True:
        yield _failure_finding(facts, smoke, "did not end in time", Confidence.LIKELY)
    elif smoke.code != 0:
        yield _refusal_finding(facts, smoke)
    elif not isinstance(smoke.device_nodes, Unknown) and not isinstance(smoke.nvidiactl, Unknown):
        has_node = "/dev/dxg" in smoke.device_nodes if is_in_wsl(facts) else smoke.nvidiactl != "absent"
        smi = smoke.nvidia_smi if isinstance(smoke.nvidia_smi, str) else ""
        if not has_node:
            yield _failure_finding(facts, smoke, "starts, but finds no GPU in it", Confidence.CERTAIN)
        elif smoke.nvidiactl == "refused" and not is_in_wsl(facts):
            yield _failure_finding(facts, smoke, "starts, but may not open /dev/nvidiactl", Confidence.CERTAIN)
        elif smoke.libcuda == "":
            what = "gets the GPU, but not the driver's library libcuda.so.1"
            yield _failure_finding(facts, smoke, what, Confidence.LIKELY)
        elif any(sign in smi for sign in _SMI_FAILURES):
            what = f"gets the GPU, but nvidia-smi in it says: {smi[:_LONGEST]}"
            yield _failure_finding(facts, smoke, what, Confidence.CERTAIN)


def _failure_finding(facts: Facts, smoke: Smoke, what: str, confidence: Confidence) -> Finding:
    summary, commands = _ADVICE.get(
        what, ("Run the same by hand and read the engine's answer.", (f"docker {_format_command(smoke)} nvidia-smi",))
    )
    seen: tuple[str, ...] = ()
    if not isinstance(smoke.device_nodes, Unknown):
        seen = (
            f"nodes: {', '.join(smoke.device_nodes) or 'none'}; /dev/nvidiactl: {smoke.nvidiactl}",
            f"libcuda.so.1: {smoke.libcuda or 'not there'}; nvidia-smi: {smoke.nvidia_smi or 'not there'}",
        )
    return Finding(
        Severity.ERROR,
        f"a container that asks for the GPU {what}",
        Fix(summary, commands, where=find_host_side(facts), docs=TOOLKIT_TROUBLESHOOTING),
        subject=smoke.image,
        evidence=(*_list_evidence(smoke), *seen),
        confidence=confidence,
    )


def _format_command(smoke: Smoke) -> str:
    options = {"cdi": "--device nvidia.com/gpu=all", "runtime": "--runtime=nvidia"}.get(smoke.request, "--gpus all")
    return f"run {options} {smoke.image}"


def _list_evidence(smoke: Smoke) -> tuple[str, ...]:
    reason = _find_reason(smoke)
    return (f"{_format_command(smoke)}: status {smoke.code}", *((reason,) if reason else ()))


def _find_reason(smoke: Smoke) -> str:
    """Find why the engine did not start the container: its cause comes last, before what the command adds for help."""
    lines = [line for line in smoke.err.splitlines() if line.strip() and not line.startswith(_HELP_LINES)]
    return " ".join(" ".join(lines).split())


def _shorten(reason: str) -> str:
    """Keep the end of a long reason: engines put what happened first in front of why."""
    if len(reason) <= _LONGEST:
        return reason
    kept = reason[-_LONGEST:]
    return f"…{kept.partition(': ')[2] or kept}"


def _refusal_finding(facts: Facts, smoke: Smoke) -> Finding:
    """The engine's own words, explained where they are known."""
    from devkit.doctor.known_errors import find_known_errors  # it knows all checks

    found = find_known_errors(smoke.err, is_ours=True)
    if not found:
        return _failure_finding(facts, smoke, f"does not start: {_shorten(_find_reason(smoke))}", Confidence.CERTAIN)
    best = found[0]
    return Finding(
        Severity.ERROR,
        f"a container that asks for the GPU does not start: {best.cause.rstrip('.')}",
        best.fix,
        subject=smoke.image,
        evidence=_list_evidence(smoke),
        confidence=best.confidence,
        follows_from=None,
    )
