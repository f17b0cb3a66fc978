"""Checks of the NVIDIA Container Toolkit: installed, connected to the engine, configured, without known faults."""

from collections.abc import Iterator
from dataclasses import replace

from devkit.compat.version_tables import RowConfidence, load_tables
from devkit.doctor.checks.cascades import CDI_CODES, CONTAINER_START_CODES, TOOLKIT_CODES
from devkit.doctor.checks.cdi import CDI_GPU_KIND, has_cdi_gpus
from devkit.doctor.checks.trials import judge_trials
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    needs_compose,
    require,
    require_engine_side,
    require_host,
    require_nvidia_gpu,
    require_some,
    require_toolkit,
    require_toolkit_engine,
    require_toolkit_version,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.program_failures import report_failure
from devkit.facts.engine import Engine, EngineKind
from devkit.facts.machine import Tegra
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown
from devkit.text import format_count, join_words

_CDI_HOOKS = ("nvidia-cdi-hook", "nvidia-ctk")
"""Programs of the toolkit that a specification calls. Source: nvidia-container-toolkit, pkg/nvcdi."""
_MODES = ("auto", "legacy", "csv", "cdi", "jit-cdi")
"""Source: nvidia-container-toolkit, internal/modifier/factory.go and internal/info/auto.go."""
_PLAIN_RUNTIMES = ("runc", "crun", "youki", "runsc")
_TOOLKIT = "nvidia-container-toolkit"
_NO_CLI = "nvidia-container-cli: no such program"


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
    leftovers: list[str] = []  # what still names programs of a toolkit that is gone
    if not has_toolkit(facts):
        gone = (each for each in engine.runtimes if each.name == "nvidia" and each.program == "")
        leftovers += [f"runtime nvidia: {each.path} does not exist" for each in gone]
        for spec in () if isinstance(facts.cdi, Unknown) else facts.cdi:
            missing = () if isinstance(spec.missing_paths, Unknown) else spec.missing_paths
            if programs := [path for path in missing if path.rpartition("/")[2] in _CDI_HOOKS]:
                leftovers.append(f"{spec.path}: {programs[0]} is not there")
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
    skip_if(engine.kind is EngineKind.PODMAN, "Podman uses CDI for GPUs and does not need a runtime")
    if has_nvidia_runtime(engine):
        return
    waiting = [file.path for file in toolkit.daemon_files if file.registers_nvidia is True and not file.error]
    if not waiting and has_cdi_gpus(facts, engine):
        return
    runtimes = join_words(runtime.name for runtime in engine.runtimes) or "none"
    evidence = (f"engine's runtimes: {runtimes}", *(f"{path} registers nvidia" for path in waiting))
    # A rootless daemon reads a different file than the system's.
    confidence = Confidence.CERTAIN if len(toolkit.daemon_files) < 2 else Confidence.LIKELY
    if waiting:
        yield problem("not-loaded", path=waiting[0], evidence=evidence, confidence=confidence)
    else:
        yield problem("not-registered", evidence=evidence, confidence=confidence)


@check("CTK004", causes=("CON007",))
def gpus_survive_daemon_reload(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    version = require_toolkit_version(facts)
    if engine.kind is not EngineKind.DOCKER or engine.is_rootless:
        raise NotApplicable("only a Docker daemon that root runs injects GPUs through the legacy hook")
    mode = require(require_toolkit(facts).mode)
    is_legacy = mode == "legacy" or (mode == "auto" and is_legacy_by_default(version))
    if engine.cgroup_driver == "systemd" and is_legacy and not has_cdi_gpus(facts, engine):
        evidence = (
            f"cgroup driver {engine.cgroup_driver}",
            f"Container Toolkit {version}, mode {mode}",
            "the engine does not list a CDI GPU",
        )
        yield problem("legacy-hook", evidence=evidence)


def is_legacy_by_default(version: Release) -> bool:
    """Say if the mode auto of this toolkit means legacy on a machine with ordinary GPUs, by the version table."""
    rows = [row for row in load_tables().engines.container_toolkits if row.version <= version]
    newest = max(rows, key=lambda row: row.version, default=None)
    return newest is None or newest.default_mode.startswith("legacy")


@check("CTK005", causes=CONTAINER_START_CODES)
def no_cgroups_setting_fits_engine(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    require_toolkit_version(facts)
    no_cgroups = require(require_toolkit(facts).no_cgroups)
    skip_if(engine.kind is EngineKind.PODMAN, "Podman uses CDI for GPUs, which does not need this setting")
    if no_cgroups is engine.is_rootless:
        return
    has_cdi = has_cdi_gpus(facts, engine)
    if not engine.is_rootless:
        evidence = ("config.toml: no-cgroups = true", "root runs the engine")
        yield problem("on-for-root", severity=Severity.WARNING if has_cdi else None, evidence=evidence)
    elif not has_cdi:
        yield problem("off-for-rootless", evidence=("config.toml: no-cgroups = false", "the engine is rootless"))


@check("CTK019", causes=CONTAINER_START_CODES)
def containers_may_name_gpus(facts: Facts) -> Iterator[Problem]:
    engine, toolkit = require_toolkit_engine(facts), require_toolkit(facts)
    skip_if(engine.kind is EngineKind.PODMAN, "Podman uses CDI for GPUs, which does not need this setting")
    if require(toolkit.pods) is not None:
        raise NotApplicable("on a Kubernetes node, the device plugin may pass GPUs as mounts")
    if require(toolkit.accepts_variable) is False:
        severity = Severity.WARNING if has_cdi_gpus(facts, engine) else None
        evidence = (f"{toolkit.config_path}: accept-nvidia-visible-devices-envvar-when-unprivileged = false",)
        yield problem("refused", severity=severity, evidence=evidence, path=toolkit.config_path)


@check("CTK006", require_engine_side)
def toolkit_is_patched(facts: Facts) -> Iterator[Problem]:
    version = require_toolkit_version(facts)
    holes = [row for row in load_tables().engines.vulnerabilities if version < row.fixed_in]
    if holes:
        yield problem(
            "not-patched",
            version=version,
            holes=format_count(len(holes), "known security hole"),
            floor=max(row.fixed_in for row in holes),
            evidence=(f"nvidia-ctk {version}", f"open: {', '.join(row.id for row in holes)}"),
        )


@check("CTK007", require_toolkit_engine, causes=("CDI001", "CDI003", *CONTAINER_START_CODES))
def driver_root_is_right(facts: Facts) -> Iterator[Problem]:
    root = require(require_toolkit(facts).driver_root)
    if root not in ("", "/") and not isinstance(facts.driver, Unknown) and facts.driver.libnvidia_ml is not None:
        yield problem("other-root", root=root, evidence=(f'config.toml: root = "{root}"',))


@check("CTK008", require_toolkit_engine, causes=("CTK009", "CTK010", "CTK015", *CONTAINER_START_CODES))
def toolkit_config_is_valid(facts: Facts) -> Iterator[Problem]:
    toolkit = require_toolkit(facts)
    error, path = require(toolkit.config_error), toolkit.config_path
    if error:
        yield problem("not-valid", error=error, path=path, evidence=(error,))
    elif isinstance(toolkit.mode, str) and toolkit.mode not in _MODES:
        newest = max(row.version for row in load_tables().engines.container_toolkits)
        is_known_release = isinstance(toolkit.version, Release) and toolkit.version <= newest
        yield problem(
            "unknown-mode",
            severity=None if is_known_release else Severity.WARNING,
            confidence=None if is_known_release else Confidence.POSSIBLE,
            mode=toolkit.mode,
            subject=path,
            evidence=(f'{path}: mode = "{toolkit.mode}"',),
        )


@check("CTK009", require_toolkit_engine, causes=CONTAINER_START_CODES)
def ldconfig_exists(facts: Facts) -> Iterator[Problem]:
    toolkit = require_toolkit(facts)
    if not require(toolkit.ldconfig_exists):
        yield problem(
            "no-ldconfig",
            ldconfig=toolkit.ldconfig,
            right="" if isinstance(toolkit.default_ldconfig, Unknown) else toolkit.default_ldconfig,
            subject=toolkit.config_path,
            evidence=(f'config.toml: ldconfig = "@{toolkit.ldconfig}"',),
        )


@check("CTK010", causes=CONTAINER_START_CODES)
def toolkit_mode_allows_gpus_flag(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    mode = require(require_toolkit(facts).mode)
    skip_if(engine.kind is not EngineKind.DOCKER, "only Docker calls the hook")
    if mode not in ("cdi", "csv") or require(engine.hook_on_path) is False or has_gpus_by_cdi(engine):
        return
    path, setting = require_toolkit(facts).config_path, f'config.toml: mode = "{mode}"'
    if mode == "csv" and not isinstance(facts.system, Unknown) and isinstance(facts.system.tegra, Tegra):
        yield problem("jetson", subject=path, evidence=(setting, f"board: {facts.system.tegra.model or 'a Tegra'}"))
        return
    has_cdi = has_cdi_gpus(facts, engine)
    # The runtime resolves the same specifications in mode cdi, and finds nothing to give in mode csv off a Jetson.
    ways = ["`runtime: nvidia`"] if has_cdi and mode == "cdi" and has_nvidia_runtime(engine) else []
    ways += ["`--device nvidia.com/gpu=all`"] if has_cdi else []
    yield problem(
        "refused",
        severity=Severity.WARNING if ways else None,
        mode=mode,
        ways=" or ".join(ways),
        subject=path,
        evidence=(setting, f"the hook is on the daemon's PATH, Docker {engine.version}"),
    )


def has_gpus_by_cdi(engine: Engine) -> bool:
    """Say if this Docker serves `--gpus` by CDI: it is new enough, and knows the devices."""
    if engine.kind is not EngineKind.DOCKER or isinstance(engine.version, Unknown):
        return False
    if isinstance(engine.cdi_devices, Unknown) or not any(one.startswith(CDI_GPU_KIND) for one in engine.cdi_devices):
        return False
    return engine.version >= load_tables().engines.features["docker", "gpus-by-cdi"].version


@check("CTK011", causes=CONTAINER_START_CODES)
def toolkit_has_no_known_fault(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    version = require_toolkit_version(facts)
    skip_if(engine.kind is not EngineKind.DOCKER, "Podman uses CDI for GPUs, which avoids the hook's faults")
    for fault in load_tables().engines.faults:
        is_meant = fault.program == _TOOLKIT and fault.since <= version < fault.fixed_in
        if is_meant and _is_shown_here(fault.when, facts, engine):
            yield problem(
                "inferred-fault" if fault.confidence is RowConfidence.INFERRED else "known-fault",
                version=version,
                fault=fault.summary,
                fixed_in=fault.fixed_in,
                evidence=(f"nvidia-ctk {version}", f"fault of {fault.since} until before {fault.fixed_in}"),
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
def runc_passes_device_names(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    if engine.cgroup_driver != "systemd" or engine.is_rootless:
        raise NotApplicable("systemd does not manage container devices here")
    runc = require(engine.runc)
    faults = [fault for fault in load_tables().engines.faults if fault.program == "runc"]
    fault = next((fault for fault in faults if fault.since <= runc < fault.fixed_in), None)
    if fault is not None and not require(require_toolkit(facts).char_links):
        evidence = (f"runc {runc}", "/dev/char/195:255 is not there", f"cgroup driver {engine.cgroup_driver}")
        yield problem("no-links", runc=runc, fault=fault.summary, fixed_in=fault.fixed_in, evidence=evidence)


@check("CTK014", causes=("CTK015", "CTK010", *CONTAINER_START_CODES))
def runtime_is_toolkits(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    runtime = next((runtime for runtime in engine.runtimes if runtime.name == "nvidia"), None)
    if runtime is None or engine.kind is EngineKind.PODMAN:
        raise NotApplicable("the engine has no runtime named nvidia")
    program = require(runtime.program)
    base = (program or runtime.path).rpartition("/")[2]
    if program and base not in _PLAIN_RUNTIMES:
        return
    missing = "default-gone" if engine.default_runtime == "nvidia" else "gone"
    has_program = has_toolkit(facts) and require_toolkit(facts).runtime_path
    yield problem(
        "not-toolkits" if program else missing,
        path=runtime.path,
        toolkit="whole" if has_program else "incomplete" if has_toolkit(facts) else "missing",
        evidence=(f"engine: runtime nvidia, path {runtime.path}", f"found at: {program or 'nowhere'}"),
    )


@check("CTK015", causes=CONTAINER_START_CODES)
def toolkit_programs_exist(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    toolkit = require_toolkit(facts)
    require_toolkit_version(facts)
    skip_if(engine.kind is EngineKind.PODMAN, "Podman uses CDI for GPUs, without these programs")
    names, path = toolkit.low_level_runtimes, toolkit.config_path
    if toolkit.low_level_runtime == "" and has_nvidia_runtime(engine) and not isinstance(names, Unknown):
        evidence = [f"{path}: runtimes = {list(names)}"]
        yield problem("no-low-level-runtime", names=join_words(names), subject=path, evidence=evidence)
    if toolkit.cli_path == "" and require(engine.hook_on_path) and not has_gpus_by_cdi(engine):
        evidence = ["nvidia-container-runtime-hook is on the daemon's PATH", _NO_CLI]
        named = toolkit.cli_setting if isinstance(toolkit.cli_setting, str) else ""
        evidence += [f"{path}: nvidia-container-cli.path = {named}"] if named else []
        name = "cli-named-wrongly" if named else "no-cli"
        yield problem(name, subject="nvidia-container-cli", evidence=evidence, named=named, path=path)


@check("CTK016", require_nvidia_gpu)
def enroot_gives_gpus(facts: Facts) -> Iterator[Problem]:
    toolkit = require_toolkit(facts)
    hook = require_some(toolkit.enroot_hook, "Enroot is not installed")
    if not hook:
        yield problem("no-enroot-hook", evidence=("/etc/enroot/hooks.d/98-nvidia.sh: no such file",))
    if require(toolkit.cli_path) == "":
        evidence = (hook or "Enroot is installed", _NO_CLI)
        yield problem("no-cli-for-enroot", subject="nvidia-container-cli", evidence=evidence)


@check("CTK017", require_nvidia_gpu)
def nerdctl_has_gpus(facts: Facts) -> Iterator[Problem]:
    if require(facts.clients).named("nerdctl") is None:
        raise NotApplicable("nerdctl is not installed")
    if require(require_toolkit(facts).cli_path) or any(spec.kind == CDI_GPU_KIND for spec in require(facts.cdi)):
        return
    yield problem(
        "no-way-for-nerdctl",
        severity=Severity.WARNING if isinstance(facts.engine, Engine) else None,
        subject="nerdctl",
        evidence=(_NO_CLI, "no CDI specification of nvidia.com/gpu"),
    )


@check("CTK013")
def container_gets_gpus(facts: Facts) -> Iterator[Problem]:
    trials = require(facts.trials)
    require_nvidia_gpu(facts)
    tried = tuple(each for each in trials.tried if each.is_for_gpu)
    skip_if(not tried, "no container was tried with the GPUs")
    yield from judge_trials(facts, tried)


@check("CTK018", require_host, causes=("ENG005", *TOOLKIT_CODES, *CDI_CODES, *CONTAINER_START_CODES))
def programs_of_gpu_containers_run(facts: Facts) -> Iterator[Problem]:
    for failure in require(facts.programs):
        if not failure.needed_by:
            # Without a plugin of the docker command, other containers still get their GPUs.
            name = failure.program.rpartition("/")[2]
            is_needed = name == "docker-compose" and needs_compose(facts)
            severity = Severity.WARNING if name.startswith("docker-") and not is_needed else None
            yield replace(report_failure(failure, is_whole=True), severity=severity)
