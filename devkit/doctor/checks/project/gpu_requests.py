"""Checks of the project's GPU requests: valid, supported by Compose and the dev container CLI, made once, met."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.cdi import has_cdi_gpus
from devkit.doctor.checks.container.inside import REQUIRED_CAPABILITIES
from devkit.doctor.checks.project.containers import (
    ProjectContainer,
    find_gpu_evidence,
    find_project_containers,
    require_project_containers,
)
from devkit.doctor.checks.toolkit import has_nvidia_runtime
from devkit.doctor.checks.trials import judge_trials
from devkit.doctor.model import Confidence, Location, NotApplicable, Repair, RepairKind, Severity, check, cite
from devkit.doctor.preconditions import (
    has_nvidia_gpu,
    is_in_container,
    is_local_engine,
    require,
    require_container,
    require_driver,
    require_gpu_engine,
    require_host,
    require_nvml,
    require_some,
    require_visible_gpu,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.program_failures import report_failure
from devkit.facts.engine import Compose, Engine, EngineKind, ResolvedService
from devkit.facts.gpu import Gpu
from devkit.facts.model import Facts
from devkit.facts.project import DevContainer, GpuRequest, HostRequirement, RequestForm, Service, Setting
from devkit.facts.runs import ProgramFailure, Way
from devkit.facts.values import Release, Unknown
from devkit.text import format_count, join_words

_FEATURE = {
    RequestForm.GPUS_KEY: "gpus-attribute",
    RequestForm.CDI: "cdi-devices",
    RequestForm.RESERVATION: "device-reservations",
}
_FORMS = {
    RequestForm.GPUS_FLAG: "--gpus",
    RequestForm.RUNTIME: "the runtime nvidia",
    RequestForm.CDI: "a CDI device",
    RequestForm.RESERVATION: "a device reservation",
    RequestForm.GPUS_KEY: "the key gpus",
}
GPU_RESERVATION = '[{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]'
"""The request that every Compose since 1.28 understands, as JSON."""
_ONE_STRING = re.compile(r"^(--?[a-z][\w-]*)\s+(\S.*)$", re.DOTALL)
_SEVERAL = re.compile(r"^(?:\"?)device=[^\",]+,")
_LEAST_SHM_BYTES = 1 << 20
"""A size below is a number without its unit."""
_GPU_VALUE = re.compile(r"^(?:all|\d+)$")


def _spell_item(dev: DevContainer, place: int, text: str) -> tuple[Repair, ...]:
    """Replace one item of runArgs. No repair where a value was blanked: it would be lost."""
    item = json.dumps(text, ensure_ascii=False)
    if "…" in text or "redacted" in text:
        return ()
    return (Repair(RepairKind.SET, dev.path, ("runArgs", str(place)), item),)


@check("PRJ002", causes=("PRJ005", "PRJ041"))
def run_args_are_split(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        if container.dev is None or container.is_compose:
            continue
        items = [argument.text for argument in container.dev.run_args]
        evidence = (f"runArgs: {json.dumps(items, ensure_ascii=False)}",)
        for place, argument in enumerate(container.dev.run_args):
            place_of_item = Location(container.dev.path, argument.line)
            before = items[place - 1] if place else ""
            if found := _ONE_STRING.match(argument.text):
                repairs = _spell_item(container.dev, place, f"{found[1]}={found[2].strip()}")
                yield problem(
                    "one-item", found_at=place_of_item, evidence=evidence, repairs=repairs, item=argument.text
                )
            elif _GPU_VALUE.match(argument.text) and not before.startswith("-"):
                yield problem("lost-value", found_at=place_of_item, evidence=evidence, item=argument.text)


@check("PRJ003", causes=("PRJ039", "PRJ041"))
def gpu_lists_are_quoted(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        if container.dev is None or container.is_compose:
            continue
        for request in container.dev.requests:
            if request.form is RequestForm.GPUS_FLAG and _SEVERAL.match(request.count) and '"' not in request.count:
                quoted = f'"{request.count}"'
                items = [argument.text for argument in container.dev.run_args]
                place = next(number for number, item in enumerate(items) if request.count in item)
                yield problem(
                    "unquoted",
                    found_at=request,
                    evidence=(f"--gpus {request.count}",),
                    repairs=_spell_item(container.dev, place, items[place].replace(request.count, quoted)),
                    count=request.count,
                    quoted=json.dumps(quoted),
                )


def find_gpu_host_requirement(container: ProjectContainer) -> HostRequirement | None:
    """Find hostRequirements.gpu, if its value takes effect in the dev container CLI."""
    found = next((one for one in container.dev.host_requirements if one.name == "gpu"), None) if container.dev else None
    if found is None or found.value == "false" or found.kind == "null":
        return None
    return found


def has_devcontainer_cli_gpu_flag(facts: Facts) -> bool | None:
    """Say if the dev container CLI's own test finds GPU support here; None where its command fails or is not known.

    It runs `docker info -f {{.Runtimes.nvidia}}` and looks for nvidia-container-runtime in the answer: nothing else.
    """
    if not isinstance(facts.engine, Engine) or facts.engine.kind is EngineKind.PODMAN:
        return None
    return any(one.name == "nvidia" and "nvidia-container-runtime" in one.path for one in facts.engine.runtimes)


@check("PRJ004", causes=("PRJ041",))
def gpu_is_requested_once(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        # Requests that are always used and do not belong together, as a list of single devices in one file does.
        # The runtime nvidia leaves a container alone that already has NVIDIA's hook, so it may accompany any other.
        found: dict[object, GpuRequest] = {}
        for request in container.requests:
            if not request.condition and request.form is not RequestForm.RUNTIME:
                together = (
                    (request.form, request.path) if request.device_ids else (request.form, request.path, request.line)
                )
                found[together] = request
        certain = list(found.values())
        requirement = find_gpu_host_requirement(container)
        if len(certain) > 1:
            files = list(dict.fromkeys(request.path for request in certain))
            yield problem(
                "added-over-files" if len(files) > 1 else "repeated",
                found_at=certain[-1],
                evidence=map(_format_request, certain),
                count=len(certain),
                forms=join_words(_FORMS[request.form] for request in certain),
                first=files[0],
                last=files[-1],
            )
        elif certain and requirement is not None and has_devcontainer_cli_gpu_flag(facts):
            yield problem(
                "also-by-requirement",
                found_at=requirement,
                evidence=(_format_request(certain[0]), cite(requirement, f"hostRequirements.gpu {requirement.value}")),
                repairs=(Repair(RepairKind.REMOVE, requirement.path, ("hostRequirements", "gpu")),),
                form=_FORMS[certain[0].form],
            )


def _format_request(request: GpuRequest) -> str:
    what = request.count or ", ".join(request.device_ids) or request.driver
    return cite(request, f"{request.form.value} {what}")


@check("PRJ005", causes=("CON006", "PRJ041"))
def gpu_work_requests_gpu(facts: Facts) -> Iterator[Problem]:
    containers = [container for container in require_project_containers(facts) if container.is_started_by_files]
    skip_if(not require(has_nvidia_gpu(facts)), "this machine has no GPU for a container to request")
    # Beside a dev container with a GPU, another one without is there for machines that have none.
    has_other = any(container.dev and _is_gpu_requested(container) for container in containers)
    for container in containers:
        shows = find_gpu_evidence(container)
        if shows is None or _is_gpu_requested(container) or (container.dev is not None and has_other):
            continue
        if container.service is not None and any(each.name == "extends" for each in container.service.settings):
            continue  # The host chooses the file that it extends, which may ask.
        brings = shows.value if isinstance(shows, Setting) else shows.name
        dev = None if container.service else container.dev
        yield problem(
            "unrequested-by-service" if dev is None else "unrequested",
            found_at=container.location,
            evidence=(cite(shows, brings), "no request for a GPU"),
            repairs=(Repair(RepairKind.SET, dev.path, ("hostRequirements", "gpu"), '"optional"'),) if dev else (),
            container=container.name,
            brings=brings,
            reservation=GPU_RESERVATION,
        )


def _is_gpu_requested(container: ProjectContainer) -> bool:
    return bool(container.requests) or find_gpu_host_requirement(container) is not None


@check("PRJ006", require_host, causes=("CON006",))
def devcontainer_cli_detects_gpu(facts: Facts) -> Iterator[Problem]:
    requirements = [
        (container, requirement)
        for container in require_project_containers(facts)
        if (requirement := find_gpu_host_requirement(container)) is not None
    ]
    skip_if(not requirements, "no devcontainer.json uses hostRequirements.gpu")
    if not isinstance(facts.engine, Engine):
        raise NotApplicable("no container engine responds")
    skip_if(not is_local_engine(facts.engine), "the engine runs on another machine")
    engine = facts.engine
    adds, has_gpu = has_devcontainer_cli_gpu_flag(facts), has_nvidia_gpu(facts)
    is_desktop = engine.kind is EngineKind.DOCKER_DESKTOP
    for container, requirement in requirements:
        removal = Repair(RepairKind.REMOVE, requirement.path, ("hostRequirements", "gpu"))
        runs_by_args = container.dev is not None and not container.is_compose and not container.dev.run_args
        stated = f"hostRequirements.gpu: {requirement.value or requirement.kind}"
        if engine.kind is EngineKind.PODMAN:
            by_cdi = Repair(RepairKind.SET, requirement.path, ("runArgs",), '["--device", "nvidia.com/gpu=all"]')
            repairs = (removal, by_cdi) if runs_by_args and not container.requests else (removal,)
            yield problem("podman", found_at=requirement, evidence=("the engine is Podman", stated), repairs=repairs)
        elif adds and has_gpu is False:
            evidence = ("docker info: Runtimes.nvidia is nvidia-container-runtime", "this machine has no NVIDIA GPU")
            name = "runtime-without-gpu-optional" if requirement.value == "optional" else "runtime-without-gpu"
            yield problem(name, found_at=requirement, evidence=evidence)
        elif not adds and has_gpu is True and (is_desktop or has_cdi_gpus(facts, engine)) and not container.requests:
            by_flag = Repair(RepairKind.SET, requirement.path, ("runArgs",), '["--gpus", "all"]')
            runtimes = ", ".join(runtime.name for runtime in engine.runtimes)
            yield problem(
                "other-runtime" if has_nvidia_runtime(engine) else "no-runtime",
                found_at=requirement,
                evidence=(f"docker info: runtimes {runtimes}", stated),
                repairs=(by_flag, removal) if runs_by_args else (),
                how="Docker Desktop exposes GPUs" if is_desktop else "the engine has CDI devices",
            )


@check("PRJ007")
def compose_file_requests_gpu(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        requirement = find_gpu_host_requirement(container)
        if requirement is None or not container.is_compose or container.requests or container.service is None:
            continue
        fills_count = (
            isinstance(facts.compose, Compose)
            and facts.compose.version >= load_tables().engines.features["compose", "gpus-attribute"].version
        )
        evidence = (cite(requirement, "hostRequirements.gpu"), f"{container.service.path}: no request")
        yield problem("no-driver" if fills_count else "no-count", found_at=requirement, evidence=evidence)


@check("PRJ011")
def container_can_start_here(facts: Facts) -> Iterator[Problem]:
    skip_if(is_in_container(facts), "only the host can show this; run devkit doctor there, too")
    containers = require_project_containers(facts)
    skip_if(require(has_nvidia_gpu(facts)), "this machine has an NVIDIA GPU")
    if isinstance(facts.engine, Engine) and not is_local_engine(facts.engine):
        raise NotApplicable("the engine runs on another machine")
    has_other = any(container.dev is not None and not _unconditional_requests(container) for container in containers)
    for container in containers:
        unconditional = _unconditional_requests(container)
        if unconditional and not (container.dev is not None and has_other):
            first, dev = unconditional[0], None if container.is_compose else container.dev
            yield problem(
                "compose-insists" if container.is_compose else "insists",
                found_at=first,
                evidence=(cite(first, first.form.value), "this machine has no NVIDIA GPU"),
                confidence=Confidence.LIKELY if first.form is RequestForm.RUNTIME else None,
                repairs=_optional_gpu_repairs(dev) if dev else (),
                container=container.name,
                form=first.form.value,
            )
        for command in container.dev.commands if container.dev is not None else ():
            if command.needs_gpu:
                name = "first-command-fails" if command.stage == "initializeCommand" else "command-fails"
                evidence = (cite(command, command.stage), "this machine has no NVIDIA GPU")
                yield problem(name, found_at=command, evidence=evidence, stage=command.stage)


def _unconditional_requests(container: ProjectContainer) -> list[GpuRequest]:
    """Requests that a plain start uses: neither behind a variable nor behind a profile."""
    if container.dev is None and container.setting("profiles") is not None:
        return []
    return [request for request in container.requests if not request.condition]


def _optional_gpu_repairs(dev: DevContainer) -> tuple[Repair, ...]:
    """`--gpus all` becomes an optional GPU, which says the same; no other request can be said in that way."""
    items = [argument.text for argument in dev.run_args]
    if "--gpus=all" in items:
        places = [items.index("--gpus=all")]
    else:
        pairs = enumerate(pairwise(items))
        places = next(([number, number + 1] for number, pair in pairs if pair == ("--gpus", "all")), [])
    if len(dev.requests) != 1 or not places:
        return ()
    # From behind, so that the numbers before stay right.
    each = [Repair(RepairKind.REMOVE, dev.path, ("runArgs", str(place))) for place in reversed(places)]
    removal = each if len(places) < len(items) else [Repair(RepairKind.REMOVE, dev.path, ("runArgs",))]
    return (*removal, Repair(RepairKind.SET, dev.path, ("hostRequirements", "gpu"), '"optional"'))


@check("PRJ012", causes=("PRJ005",))
def compose_supports_request_form(facts: Facts) -> Iterator[Problem]:
    services = [each.service for each in require_project_containers(facts) if each.service is not None]
    skip_if(not services, "the project has no Compose file")
    if not any(service.requests for service in services):
        return
    compose = require_some(facts.compose, "no Compose plugin is installed for a comparison")
    for service in services:
        for request in service.requests:
            name = _FEATURE.get(request.form, "")
            feature = load_tables().engines.features.get(("compose", name))
            if feature is not None and compose.version < feature.version and not request.condition:
                yield problem(
                    name,
                    found_at=request,
                    evidence=(cite(request, request.form.value), f"Compose {compose.version}"),
                    needed=feature.version,
                    compose=compose.version,
                )


@check("PRJ034")
def gpu_services_have_dev_container(facts: Facts) -> Iterator[Problem]:
    project = require_some(facts.project, "no project folder was checked")
    if project.dev_containers:
        return
    others = () if isinstance(project.other_services, Unknown) else project.other_services
    by_file: dict[str, list[Service]] = {}
    for service in (*project.services, *others):
        if service.requests:
            by_file.setdefault(service.files[0], []).append(service)
    for path, services in by_file.items():
        first = services[0]
        yield problem(
            "several-services" if len(services) > 1 else "one-service",
            found_at=first,
            evidence=(cite(first, first.requests[0].form.value),),
            path=path,
            services=join_words([service.name for service in services]),
            first=first.name,
        )


@check("PRJ031", causes=("DRV003", "PYT006", "CON002"))
def device_nodes_have_libraries(facts: Facts) -> Iterator[Problem]:
    container = require_container(facts)
    require_visible_gpu(facts)
    driver = require_driver(facts)
    requested = {name.strip() for name in (container.driver_capabilities or "all").split(",")}
    if "all" not in requested and not set(REQUIRED_CAPABILITIES) <= requested:
        raise NotApplicable("this container requested fewer libraries")
    has_nodes = driver.nvidiactl == "open" and any(node.startswith("/dev/nvidia") for node in driver.device_nodes)
    if not has_nodes or require(driver.libcuda) is not None or require(driver.libnvidia_ml) is not None:
        return
    version = str(driver.loaded) if isinstance(driver.loaded, Release) else ""
    yield problem(
        "no-libraries" if version.partition(".")[0].isdigit() else "no-libraries-of-unknown-driver",
        evidence=(f"device nodes: {', '.join(driver.device_nodes)}", "libcuda.so.1 and libnvidia-ml.so.1 are absent"),
        version=version,
        branch=version.partition(".")[0],
    )


@check("PRJ038", causes=("PRJ039", "PRJ041"))
def compose_accepts_project(facts: Facts) -> Iterator[Problem]:
    if isinstance(facts.compose_config, ProgramFailure):
        yield report_failure(facts.compose_config)
    else:
        require(facts.compose_config)


@check("PRJ042")
def programs_of_project_run(facts: Facts) -> Iterator[Problem]:
    for failure in require(facts.programs):
        if failure.needed_by:
            yield replace(report_failure(failure, is_whole=True), severity=Severity.WARNING)


@check("PRJ041")
def project_containers_start(facts: Facts) -> Iterator[Problem]:
    trials = require(facts.trials)
    found = tuple(judge_trials(facts, tuple(each for each in trials.tried if each.way is Way.PROJECT)))
    if trials.untried and not found:
        raise NotApplicable(f"parts of the project that were not tried: {join_words(trials.untried)}", is_lost=True)
    is_tried = any(each.way is Way.PROJECT for each in trials.tried)
    skip_if(not is_tried and not trials.noted, "no container of the project was tried")
    yield from found
    told = " ".join(line for each in found for line in each.evidence)
    for each in (setting for setting in trials.noted if setting not in told):
        noted = report_failure(ProgramFailure("the project", (), "the project's files", settings=(each,)))
        yield replace(noted, severity=Severity.WARNING)


@check("PRJ039", require_host, causes=("CON006", "PRJ041"))
def requests_fit_machine(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    answer = require_nvml(facts)
    services = tuple(_list_gpu_services(facts))
    skip_if(not services, "no file requests a GPU")
    for service in services:
        values: dict[str, Any] = {"service": service.name, "present": format_count(len(answer.gpus), "GPU")}
        unknown = [each for each in service.device_ids if not _is_known_device(facts, engine, each)]
        if unknown:
            yield problem("no-such-device", evidence=_list_devices(facts), ids=join_words(unknown), **values)
        elif service.gpu_count > len(answer.gpus):
            yield problem("too-many", evidence=_list_devices(facts), count=service.gpu_count, **values)
        if service.runtime == "nvidia" and engine.kind is EngineKind.DOCKER and not has_nvidia_runtime(engine):
            evidence = (f"engine's runtimes: {join_words(each.name for each in engine.runtimes)}",)
            yield problem("no-runtime", evidence=evidence, **values)
        if service.shm_bytes is not None and service.shm_bytes < _LEAST_SHM_BYTES:
            yield problem("bytes", evidence=(f"shm_size: {service.shm_bytes} B",), size=service.shm_bytes, **values)


def _list_gpu_services(facts: Facts) -> Iterator[ResolvedService]:
    """Yield what asks for a GPU: services as Compose resolves them, or else as the files say; then dev containers."""
    is_resolved = isinstance(facts.compose_config, tuple)
    if isinstance(facts.compose_config, tuple):
        yield from (each for each in facts.compose_config if each.device_ids or each.gpu_count or each.runtime)
    for container in find_project_containers(facts):
        if is_resolved and container.dev is None:
            continue
        for request in container.requests:
            if request.condition or "$" in f"{request.count}{request.device_ids}":
                continue
            listed = request.count.strip('"').removeprefix("device=") if "device=" in request.count else ""
            ids = (*request.device_ids, *filter(None, listed.split(",")))
            count = int(request.count) if request.count.isdecimal() else 0
            runtime = "nvidia" if request.form is RequestForm.RUNTIME else ""
            yield ResolvedService(container.name, runtime, ids, count, None, None)


def _is_known_device(facts: Facts, engine: Engine, name: str) -> bool:
    """Say if a GPU has this index, UUID or CDI name. A MIG device, and what nobody listed, counts as known."""
    gpus = require_nvml(facts).gpus
    if name.isdecimal():
        return int(name) < len(gpus)
    if name.startswith("GPU-"):
        uuids = [gpu.uuid for gpu in gpus if isinstance(gpu, Gpu) and isinstance(gpu.uuid, str)]
        return len(uuids) < len(gpus) or any(uuid.startswith(name) for uuid in uuids)
    if name.startswith("nvidia.com/gpu=") and isinstance(engine.cdi_devices, tuple) and engine.cdi_devices:
        return name in engine.cdi_devices
    return True


def _list_devices(facts: Facts) -> tuple[str, ...]:
    return tuple(f"GPU {gpu.index}: {gpu.name}, {gpu.uuid}" for gpu in facts.gpus if isinstance(gpu.uuid, str))
