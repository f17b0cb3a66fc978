"""Checks of requests for GPUs in Compose files: that this Compose knows them, and that they are whole."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import known
from devkit.doctor.checks.project_units import placed, units_of
from devkit.doctor.machine import INSTALL_COMPOSE, family_of, host_side
from devkit.doctor.model import Finding, Fix, Location, NotApplicable, Repair, RepairKind, Severity, Side, check
from devkit.facts.model import Facts, GpuRequest, RequestForm, Service

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


def _services(facts: Facts) -> tuple[Service, ...]:
    services = tuple(unit.service for unit in units_of(facts) if unit.service is not None)
    if not services:
        raise NotApplicable("the project has no Compose file")
    return services


@check(
    "PRJ012",
    "Compose knows the form in which its files ask for a GPU",
    covers=("J06",),
    symptoms=(
        "Additional properties are not allowed ('gpus' was unexpected)",
        "services.dev additional properties 'gpus' not allowed",
        'error gathering device information while adding custom device "nvidia.com/gpu=all": no such file or directory',
        "deploy.resources.limits value Additional properties are not allowed ('devices' was unexpected)",
    ),
    causes=("PRJ005",),
)
def compose_knows_the_form(facts: Facts) -> Iterator[Finding]:
    """The Compose on this machine is as new as the files' way to ask, and the request stands where Compose reads one.

    Why it matters: `gpus: all` and CDI names under `devices` are newer than the reservation. An older Compose refuses
    the first, and takes the second for a path: "no such file or directory". Under `limits` no Compose takes devices.
    How it is seen: the forms in the files, and the version of `docker compose` against the version table.
    Source: Compose specification, "services"; docker/compose issues 8142 and 12197, pull request 12184.
    """
    services = _services(facts)
    for service in services:
        if service.misplaced_devices is not None:
            yield _misplaced(service)
    if not any(service.requests for service in services):
        return
    compose = known(facts.compose)
    if compose is None:
        raise NotApplicable("there is no Compose plugin to compare with")
    for service in services:
        for request in service.requests:
            feature = tables().engines.features.get(("compose", _FEATURE.get(request.form, "")))
            if feature is not None and compose.version < feature.version and not request.condition:
                yield Finding(
                    Severity.ERROR,
                    f"{_CALLED[request.form]} need{'s' if request.form is RequestForm.GPUS_KEY else ''} Docker Compose"
                    f" {feature.version}, and this is {compose.version}",
                    Fix(
                        "Use the long form, which every Compose since 1.28 takes, or update the Compose plugin.",
                        INSTALL_COMPOSE.get(family_of(facts), ()),
                        where=host_side(facts),
                        root=True,
                        docs=_GUIDE,
                        repairs=_long_form(service, request),
                    ),
                    subject=placed(request.path, request.line),
                    evidence=(
                        f"{placed(request.path, request.line)}: {request.form.value}",
                        f"Compose {compose.version}",
                    ),
                    location=Location(request.path, request.line),
                )


def _long_form(service: Service, request: GpuRequest) -> tuple[Repair, ...]:
    if request.form is not RequestForm.GPUS_KEY or request.count != "all" or len(service.requests) > 1:
        return ()
    above = request.key[:2]
    value = '[{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]'
    return (
        Repair(RepairKind.SET, request.path, (*above, "deploy", "resources", "reservations", "devices"), value),
        Repair(RepairKind.REMOVE, request.path, request.key),
    )


def _misplaced(service: Service) -> Finding:
    place = service.misplaced_devices
    path, line = (place.path, place.line) if place else (service.path, service.line)
    return Finding(
        Severity.ERROR,
        f"service {service.name} lists devices under deploy.resources.limits, where Compose allows none",
        Fix("Move the list to deploy.resources.reservations.", where=Side.PROJECT, docs=_GUIDE),
        subject=placed(path, line),
        evidence=(f"{placed(path, line)}: deploy.resources.limits.devices",),
        location=Location(path, line),
    )


@check(
    "PRJ013",
    "Each device reservation is whole",
    covers=("J07",),
    symptoms=(
        'invalid "count" and "device_ids", these attributes are exclusive',
        "missing required capabilities",
        "capabilities is required",
    ),
)
def reservations_are_whole(facts: Facts) -> Iterator[Finding]:
    """A reservation names its capabilities, and either a count or devices.

    Why it matters: `capabilities` is mandatory, and `count` beside `device_ids` contradicts itself; Compose refuses
    both before anything starts.
    How it is seen: the fields of each reservation. Schemas let count and device_ids pass together.
    Source: Compose deploy specification, "devices"; docker/docs pull request 12315; compose-spec/compose-go pull
    request 689.
    """
    for service in _services(facts):
        for request in service.requests:
            if request.count and request.device_ids:
                yield _exclusive(request)
            if request.form is RequestForm.RESERVATION and not request.capabilities:
                yield _without_capabilities(request)


def _exclusive(request: GpuRequest) -> Finding:
    ids = ", ".join(request.device_ids)
    # Whoever listed devices chose among them; a count that says the same, or all, is the careless one.
    return Finding(
        Severity.ERROR,
        f"the reservation has count {request.count} and device_ids {ids}, which exclude each other",
        Fix(
            "Keep device_ids for these devices, or count for any.",
            where=Side.PROJECT,
            docs=_GUIDE,
            repairs=(Repair(RepairKind.REMOVE, request.path, (*request.key, "count")),),
        ),
        subject=placed(request.path, request.line),
        evidence=(f"{placed(request.path, request.line)}: count {request.count}, device_ids {ids}",),
        location=Location(request.path, request.line),
    )


def _without_capabilities(request: GpuRequest) -> Finding:
    return Finding(
        Severity.ERROR,
        "the reservation has no capabilities, without which Compose refuses it",
        Fix(
            "Add capabilities: [gpu].",
            where=Side.PROJECT,
            docs=_GUIDE,
            repairs=(Repair(RepairKind.SET, request.path, (*request.key, "capabilities"), '["gpu"]'),),
        ),
        subject=placed(request.path, request.line),
        evidence=(f"{placed(request.path, request.line)}: capabilities missing",),
        location=Location(request.path, request.line),
    )
