"""Checks of the project's GPU requests: valid, supported by Compose and the dev container CLI, made once, met."""

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.cdi import has_cdi_gpus
from devkit.doctor.checks.container.inside import REQUIRED_CAPABILITIES
from devkit.doctor.checks.project.containers import (
    ProjectContainer,
    build_file_finding,
    find_gpu_evidence,
    format_location,
    require_project_containers,
)
from devkit.doctor.checks.toolkit import has_nvidia_runtime
from devkit.doctor.fixes import CDI_GUIDE, find_host_side, list_commands
from devkit.doctor.model import (
    Confidence,
    Finding,
    Fix,
    Location,
    NotApplicable,
    Repair,
    RepairKind,
    Severity,
    Side,
    check,
)
from devkit.doctor.preconditions import (
    has_nvidia_gpu,
    is_in_container,
    is_local_engine,
    require,
    require_container,
    require_driver,
    require_host,
    require_visible_gpu,
)
from devkit.facts.model import (
    Compose,
    DevContainer,
    Engine,
    EngineKind,
    Facts,
    GpuRequest,
    HostRequirement,
    RequestForm,
    Requirement,
    Service,
    Setting,
)
from devkit.facts.values import Release, Unknown
from devkit.text import join_words

_GUIDE = "https://docs.docker.com/compose/how-tos/gpu-support/"

_FEATURE = {
    RequestForm.GPUS_KEY: "gpus-attribute",
    RequestForm.CDI: "cdi-devices",
    RequestForm.RESERVATION: "device-reservations",
}

_CALLED = {
    RequestForm.GPUS_KEY: "the key gpus",
    RequestForm.CDI: "CDI names under devices",
    RequestForm.RESERVATION: "device reservations",
}

GPU_RESERVATION = '[{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]'
"""The request that every Compose since 1.28 understands, as JSON."""

_CLI_SOURCE = "https://github.com/devcontainers/cli/blob/main/src/spec-node/utils.ts"

_ONE_STRING = re.compile(r"^(--?[a-z][\w-]*)\s+(\S.*)$", re.DOTALL)

_SEVERAL = re.compile(r"^(?:\"?)device=[^\",]+,")

_GPU_VALUE = re.compile(r"^(?:all|\d+)$")


def _spell_item(dev: DevContainer, place: int, text: str) -> tuple[Repair, ...]:
    """Replace one item of runArgs. No repair where a value was blanked: it would be lost."""
    item = json.dumps(text, ensure_ascii=False)
    return () if "…" in text else (Repair(RepairKind.SET, dev.path, ("runArgs", str(place)), item),)


@check("PRJ002", causes=("PRJ005",))
def run_args_are_split(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        if container.dev is None or container.is_compose:
            continue
        items = [argument.text for argument in container.dev.run_args]
        for place, argument in enumerate(container.dev.run_args):
            one_string = _ONE_STRING.match(argument.text)
            before = items[place - 1] if place else ""
            is_lost = bool(_GPU_VALUE.match(argument.text)) and not before.startswith("-")
            if one_string or is_lost:
                yield build_file_finding(
                    Location(container.dev.path, argument.line),
                    Severity.ERROR,
                    f"runArgs has {argument.text!r} as one item: "
                    + ("the engine knows no such flag" if one_string else "the engine takes it for an image"),
                    Fix(
                        "Make it two items, or one with an equals sign."
                        if one_string
                        else 'Write "--gpus" before it, or take it out as well.',
                        where=Side.PROJECT,
                        repairs=_spell_item(container.dev, place, f"{one_string[1]}={one_string[2].strip()}")
                        if one_string
                        else (),
                    ),
                    evidence=(f"runArgs: {json.dumps(items, ensure_ascii=False)}",),
                )


@check("PRJ003")
def gpu_lists_are_quoted(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        if container.dev is None or container.is_compose:
            continue
        for request in container.dev.requests:
            if request.form is RequestForm.GPUS_FLAG and _SEVERAL.match(request.count) and '"' not in request.count:
                quoted = f'"{request.count}"'
                items = [argument.text for argument in container.dev.run_args]
                place = next(number for number, item in enumerate(items) if request.count in item)
                yield build_file_finding(
                    request,
                    Severity.ERROR,
                    f"--gpus {request.count} lacks the inner quotes that a list needs, so no container starts",
                    Fix(
                        f"Write {json.dumps(quoted)}: the quotes belong to the value.",
                        where=Side.PROJECT,
                        docs="https://github.com/NVIDIA/nvidia-docker/issues/1257",
                        repairs=_spell_item(container.dev, place, items[place].replace(request.count, quoted)),
                    ),
                    evidence=(f"--gpus {request.count}",),
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


@check("PRJ004")
def gpu_is_requested_once(facts: Facts) -> Iterator[Finding]:
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
            last = certain[-1]
            files = list(dict.fromkeys(request.path for request in certain))
            over_files = len(files) > 1
            yield build_file_finding(
                last,
                Severity.WARNING,
                f"the GPU is requested {len(certain)} times: by {join_words(_format_form(request) for request in certain)}"
                + (f"; {files[-1]} adds to {files[0]} instead of replacing it" if over_files else ""),
                Fix(
                    "Mark the later list with !override (Compose 2.24.4 and newer), or leave the earlier one out."
                    if over_files
                    else "Keep one of them.",
                    where=Side.PROJECT,
                    docs="https://docs.docker.com/reference/compose-file/merge/",
                ),
                evidence=tuple(_format_request(request) for request in certain),
            )
        elif certain and requirement is not None and has_devcontainer_cli_gpu_flag(facts):
            yield build_file_finding(
                requirement,
                Severity.WARNING,
                f"the GPU is requested twice: by {_format_form(certain[0])} and by hostRequirements.gpu",
                Fix(
                    "Keep the explicit request, and remove hostRequirements.gpu.",
                    where=Side.PROJECT,
                    repairs=(Repair(RepairKind.REMOVE, requirement.path, ("hostRequirements", "gpu")),),
                ),
                evidence=(
                    _format_request(certain[0]),
                    f"{format_location(requirement.path, requirement.line)}: hostRequirements.gpu {requirement.value}",
                ),
            )


def _format_form(request: GpuRequest) -> str:
    names = {
        RequestForm.GPUS_FLAG: "--gpus",
        RequestForm.RUNTIME: "the runtime nvidia",
        RequestForm.CDI: "a CDI device",
        RequestForm.RESERVATION: "a device reservation",
        RequestForm.GPUS_KEY: "the key gpus",
    }
    return names[request.form]


def _format_request(request: GpuRequest) -> str:
    what = request.count or ", ".join(request.device_ids) or request.driver
    return f"{format_location(request.path, request.line)}: {request.form.value} {what}".rstrip()


@check("PRJ005", causes=("CON006",))
def gpu_work_requests_gpu(facts: Facts) -> Iterator[Finding]:
    containers = [container for container in require_project_containers(facts) if container.is_started_by_files]
    if not require(has_nvidia_gpu(facts)):
        raise NotApplicable("there is no GPU on this machine that a container could ask for")
    # Beside a dev container with a GPU, another one without is there for machines that have none.
    has_other = any(container.dev and _is_gpu_requested(container) for container in containers)
    for container in containers:
        shows = find_gpu_evidence(container)
        if shows is None or _is_gpu_requested(container) or (container.dev is not None and has_other):
            continue
        if container.service is not None and any(each.name == "extends" for each in container.service.settings):
            continue  # The host chooses the file that it extends, which may ask.
        yield build_file_finding(
            container.location,
            Severity.WARNING,
            f"{container.name} has {_format_evidence(shows)} and asks for no GPU, so torch will find none",
            _request_fix(container),
            evidence=(f"{format_location(shows.path, shows.line)}: {_format_evidence(shows)}", "no request for a GPU"),
            confidence=Confidence.LIKELY,
        )


def _is_gpu_requested(container: ProjectContainer) -> bool:
    return bool(container.requests) or find_gpu_host_requirement(container) is not None


def _format_evidence(shows: Requirement | Setting) -> str:
    return shows.value if isinstance(shows, Setting) else shows.name


def _request_fix(container: ProjectContainer) -> Fix:
    if container.service is not None:
        return Fix(
            f"Reserve the GPU in the Compose file: devices: {GPU_RESERVATION} under deploy.resources.reservations. Hosts"
            " without one need a file of their own, which devkit init writes for a dev container.",
            where=Side.PROJECT,
            docs="https://docs.docker.com/compose/how-tos/gpu-support/",
        )
    path = container.dev.path if container.dev else container.name
    return Fix(
        'Add hostRequirements: { "gpu": "optional" }, which hosts without a GPU pass over; or runArgs with --gpus.',
        where=Side.PROJECT,
        repairs=(Repair(RepairKind.SET, path, ("hostRequirements", "gpu"), '"optional"'),),
    )


@check("PRJ006", causes=("CON006",))
def devcontainer_cli_detects_gpu(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    requirements = [
        (container, requirement)
        for container in require_project_containers(facts)
        if (requirement := find_gpu_host_requirement(container)) is not None
    ]
    if not requirements:
        raise NotApplicable("no devcontainer.json asks by hostRequirements.gpu")
    if not isinstance(facts.engine, Engine):
        raise NotApplicable("no container engine answers")
    if not is_local_engine(facts.engine):
        raise NotApplicable("the engine runs on another machine")
    engine = facts.engine
    for container, requirement in requirements:
        found = _compare_with_engine(facts, engine, container, requirement)
        if found is not None:
            yield found


def _compare_with_engine(
    facts: Facts, engine: Engine, container: ProjectContainer, requirement: HostRequirement
) -> Finding | None:
    if engine.kind is EngineKind.PODMAN:
        dev = container.dev
        repairs = [Repair(RepairKind.REMOVE, requirement.path, ("hostRequirements", "gpu"))]
        if dev is not None and not (container.is_compose or container.requests or dev.run_args):
            repairs.append(Repair(RepairKind.SET, dev.path, ("runArgs",), '["--device", "nvidia.com/gpu=all"]'))
        return build_file_finding(
            requirement,
            Severity.ERROR,
            "hostRequirements.gpu does not work with Podman: the dev container tool asks `podman info` for a field that"
            " it does not have, and stops",
            Fix(
                "Ask for the GPU by its CDI name, and remove hostRequirements.gpu.",
                where=Side.PROJECT,
                docs="https://github.com/microsoft/vscode-remote-release/issues/10908",
                repairs=tuple(repairs),
            ),
            evidence=("the engine is Podman", f"hostRequirements.gpu: {requirement.value or requirement.kind}"),
            confidence=Confidence.LIKELY,
        )
    adds, has_gpu = has_devcontainer_cli_gpu_flag(facts), has_nvidia_gpu(facts)
    if adds and has_gpu is False:
        return build_file_finding(
            requirement,
            Severity.ERROR,
            "the engine still has the nvidia runtime, but this machine has no NVIDIA GPU: the dev container tool adds"
            " --gpus all all the same, and the container does not start"
            + (" although the GPU is optional" if requirement.value == "optional" else ""),
            Fix(
                "Start it with --gpu-availability none, or take the runtime out of the engine's settings.",
                ("devcontainer up --gpu-availability none --workspace-folder .",),
                docs=_CLI_SOURCE,
            ),
            evidence=("docker info: Runtimes.nvidia is nvidia-container-runtime", "no NVIDIA GPU on this machine"),
        )
    is_desktop = engine.kind is EngineKind.DOCKER_DESKTOP
    if not adds and has_gpu is True and (is_desktop or has_cdi_gpus(facts, engine)) and not container.requests:
        how = "Docker Desktop passes GPUs on" if is_desktop else "the engine has CDI devices"
        has_runtime = has_nvidia_runtime(engine)
        runtimes = ", ".join(runtime.name for runtime in engine.runtimes)
        return build_file_finding(
            requirement,
            Severity.WARNING,
            f"{how}, but the dev container tool looks for a runtime named nvidia alone"
            + (" with NVIDIA's program behind it" if has_runtime else "")
            + ": hostRequirements.gpu starts the container without a GPU",
            Fix(
                "Ask for the GPU outright instead, or start with --gpu-availability all.",
                ("devcontainer up --gpu-availability all --workspace-folder .",),
                where=Side.PROJECT,
                docs=_CLI_SOURCE,
                repairs=()
                if container.dev is None or container.is_compose or container.dev.run_args
                else (
                    Repair(RepairKind.SET, requirement.path, ("runArgs",), '["--gpus", "all"]'),
                    Repair(RepairKind.REMOVE, requirement.path, ("hostRequirements", "gpu")),
                ),
            ),
            evidence=(
                f"docker info: runtimes {runtimes}",
                f"hostRequirements.gpu: {requirement.value or requirement.kind}",
            ),
        )
    return None


@check("PRJ007")
def compose_file_requests_gpu(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        requirement = find_gpu_host_requirement(container)
        if requirement is None or not container.is_compose or container.requests or container.service is None:
            continue
        fills_count = (
            isinstance(facts.compose, Compose)
            and facts.compose.version >= load_tables().engines.features["compose", "gpus-attribute"].version
        )
        yield build_file_finding(
            requirement,
            Severity.NOTE if fills_count else Severity.WARNING,
            "hostRequirements.gpu gives a Compose service the capability gpu without driver or count"
            + ("; editors other than VS Code give it nothing" if fills_count else ", which may end in no GPU at all"),
            Fix(
                "Put the whole reservation into the Compose file, and remove hostRequirements.gpu.",
                where=Side.PROJECT,
                docs="https://docs.docker.com/compose/how-tos/gpu-support/",
            ),
            evidence=(
                f"{format_location(requirement.path, requirement.line)}: hostRequirements.gpu",
                f"{container.service.path}: no request",
            ),
            confidence=Confidence.LIKELY,
        )


@check("PRJ011")
def container_can_start_here(facts: Facts) -> Iterator[Finding]:
    if is_in_container(facts):
        raise NotApplicable("only the host can show this; run devkit doctor there too")
    containers = require_project_containers(facts)
    if require(has_nvidia_gpu(facts)):
        raise NotApplicable("this machine has an NVIDIA GPU")
    if isinstance(facts.engine, Engine) and not is_local_engine(facts.engine):
        raise NotApplicable("the engine runs on another machine")
    has_other = any(container.dev is not None and not _unconditional_requests(container) for container in containers)
    for container in containers:
        unconditional = _unconditional_requests(container)
        if unconditional and not (container.dev is not None and has_other):
            yield build_file_finding(
                unconditional[0],
                Severity.ERROR,
                f"{container.name} insists on an NVIDIA GPU ({unconditional[0].form.value}), and does not start on a machine without one",
                Fix(
                    'Ask by hostRequirements: { "gpu": "optional" } instead.'
                    if not container.is_compose
                    else "Move the request into a Compose file of its own, and name that one only on machines with a GPU.",
                    where=Side.PROJECT,
                    docs="https://github.com/docker/compose/issues/12514",
                    repairs=_optional_gpu_repairs(container.dev)
                    if container.dev is not None and not container.is_compose
                    else (),
                ),
                evidence=(
                    f"{format_location(unconditional[0].path, unconditional[0].line)}: {unconditional[0].form.value}",
                    "no NVIDIA GPU on this machine",
                ),
                confidence=Confidence.LIKELY if unconditional[0].form is RequestForm.RUNTIME else Confidence.CERTAIN,
            )
        if container.dev is not None:
            for command in container.dev.commands:
                if command.needs_gpu:
                    yield build_file_finding(
                        command,
                        Severity.ERROR if command.stage == "initializeCommand" else Severity.WARNING,
                        f"{command.stage} needs a GPU and fails without one: "
                        + (
                            "the container is not started"
                            if command.stage == "initializeCommand"
                            else "later commands are left out"
                        ),
                        Fix("Let it pass without a GPU, such as by `nvidia-smi || true`.", where=Side.PROJECT),
                        evidence=(
                            f"{format_location(command.path, command.line)}: {command.stage}",
                            "no NVIDIA GPU on this machine",
                        ),
                    )


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


def _require_services(facts: Facts) -> tuple[Service, ...]:
    services = tuple(
        container.service for container in require_project_containers(facts) if container.service is not None
    )
    if not services:
        raise NotApplicable("the project has no Compose file")
    return services


@check("PRJ012", causes=("PRJ005",))
def compose_supports_request_form(facts: Facts) -> Iterator[Finding]:
    services = _require_services(facts)
    for service in services:
        if service.misplaced_devices is not None:
            place = service.misplaced_devices
            path, line = (place.path, place.line) if place else (service.path, service.line)
            yield build_file_finding(
                Location(path, line),
                Severity.ERROR,
                f"service {service.name} lists devices under deploy.resources.limits, where Compose allows none",
                Fix("Move the list to deploy.resources.reservations.", where=Side.PROJECT, docs=_GUIDE),
                evidence=(f"{format_location(path, line)}: deploy.resources.limits.devices",),
            )
    if not any(service.requests for service in services):
        return
    compose = require(facts.compose)
    if compose is None:
        raise NotApplicable("there is no Compose plugin to compare with")
    for service in services:
        for request in service.requests:
            feature = load_tables().engines.features.get(("compose", _FEATURE.get(request.form, "")))
            if feature is not None and compose.version < feature.version and not request.condition:
                yield build_file_finding(
                    request,
                    Severity.ERROR,
                    f"{_CALLED[request.form]} need{'s' if request.form is RequestForm.GPUS_KEY else ''} Docker Compose"
                    f" {feature.version}, and this is {compose.version}",
                    Fix(
                        "Use the long form, which every Compose since 1.28 takes, or update the Compose plugin.",
                        list_commands(facts, "install_compose"),
                        where=find_host_side(facts),
                        root=True,
                        docs=_GUIDE,
                    ),
                    evidence=(
                        f"{format_location(request.path, request.line)}: {request.form.value}",
                        f"Compose {compose.version}",
                    ),
                )


@check("PRJ013")
def reservations_are_complete(facts: Facts) -> Iterator[Finding]:
    for service in _require_services(facts):
        for request in service.requests:
            if request.count and request.device_ids:
                ids = ", ".join(request.device_ids)
                yield build_file_finding(
                    request,
                    Severity.ERROR,
                    f"the reservation has count {request.count} and device_ids {ids}, which exclude each other",
                    Fix(
                        "Keep device_ids for these devices, or count for any.",
                        where=Side.PROJECT,
                        docs=_GUIDE,
                    ),
                    evidence=(
                        f"{format_location(request.path, request.line)}: count {request.count}, device_ids {ids}",
                    ),
                )
            if request.form is RequestForm.RESERVATION and not request.capabilities:
                yield build_file_finding(
                    request,
                    Severity.ERROR,
                    "the reservation has no capabilities, without which Compose refuses it",
                    Fix(
                        "Add capabilities: [gpu].",
                        where=Side.PROJECT,
                        docs=_GUIDE,
                    ),
                    evidence=(f"{format_location(request.path, request.line)}: capabilities missing",),
                )


@check("PRJ034")
def gpu_services_have_dev_container(facts: Facts) -> Iterator[Finding]:
    project = require(facts.project)
    if project is None:
        raise NotApplicable("no project folder was looked into")
    if project.dev_containers:
        return
    others = () if isinstance(project.other_services, Unknown) else project.other_services
    by_file: dict[str, list[Service]] = {}
    for service in (*project.services, *others):
        if service.requests:
            by_file.setdefault(service.files[0], []).append(service)
    for path, services in by_file.items():
        first, names = services[0], join_words([service.name for service in services])
        yield build_file_finding(
            first,
            Severity.NOTE,
            f"{path} has the {'services' if len(services) > 1 else 'service'} {names} with a GPU, and no dev container starts one",
            Fix(
                "Let devkit write a dev container for one, which changes no file of yours.",
                (shlex.join(["devkit", "init", "--compose", path, "--service", first.name]),),
                where=Side.PROJECT,
                docs="https://containers.dev/guide/dockerfile#docker-compose-image",
            ),
            evidence=(f"{format_location(first.path, first.line)}: {first.requests[0].form.value}",),
        )


@check("PRJ031", causes=("DRV003", "PYT006", "CON002"))
def device_nodes_have_libraries(facts: Facts) -> Iterator[Finding]:
    container = require_container(facts)
    require_visible_gpu(facts)
    driver = require_driver(facts)
    requested = {name.strip() for name in (container.driver_capabilities or "all").split(",")}
    if "all" not in requested and not set(REQUIRED_CAPABILITIES) <= requested:
        raise NotApplicable("this container requested fewer libraries")
    has_nodes = driver.nvidiactl == "open" and any(node.startswith("/dev/nvidia") for node in driver.device_nodes)
    if not has_nodes or require(driver.libcuda) is not None or require(driver.libnvidia_ml) is not None:
        return
    version = str(driver.loaded) if isinstance(driver.loaded, Release) else "of the host's driver"
    branch = version.partition(".")[0]
    yield Finding(
        Severity.ERROR,
        "the GPU's device nodes are in this container, and neither libcuda nor NVML of its driver is",
        Fix(
            "Give the GPU by the Container Toolkit or by CDI, which mount the libraries. Where only device nodes can be"
            f" had, put the libraries of exactly version {version} into the image.",
            (f"apt-get install --no-install-recommends libnvidia-compute-{branch}={version}-*",)
            if branch.isdigit()
            else (),
            where=Side.IMAGE,
            docs=CDI_GUIDE,
        ),
        evidence=(f"device nodes: {', '.join(driver.device_nodes)}", "libcuda.so.1 and libnvidia-ml.so.1 are absent"),
    )
