"""The check that a project's container starts on a machine without a GPU."""

from collections.abc import Iterator
from itertools import pairwise

from devkit.doctor.applies import has_nvidia_gpu, is_in_container, is_local, known
from devkit.doctor.checks.project_units import Unit, placed, units_of
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
from devkit.facts.model import DevContainer, Engine, Facts, GpuRequest, RequestForm


@check(
    "PRJ011",
    "The container can start on this machine",
    covers=("J05",),
    symptoms=(
        'could not select device driver "nvidia" with capabilities: [[gpu]]',
        "failed to discover GPU vendor from CDI: no known GPU vendor found",
        "unresolvable CDI devices nvidia.com/gpu=all",
    ),
)
def container_can_start_here(facts: Facts) -> Iterator[Finding]:
    """A machine without an NVIDIA GPU has files that do not insist on one.

    Why it matters: engines have no optional GPU: a flag or a reservation stops the start on every laptop, in CI and in
    clouds without one.
    How it is seen: a request that is always used, on a machine that has no NVIDIA GPU. One of several dev containers,
    or a service behind a profile, may insist: there is something else to start.
    Source: docker/compose issue 12514; microsoft/vscode-remote-release issue 9385.
    """
    if is_in_container(facts):
        raise NotApplicable("only the host can show this; run devkit doctor there too")
    units = units_of(facts)
    if known(has_nvidia_gpu(facts)):
        raise NotApplicable("this machine has an NVIDIA GPU")
    if isinstance(facts.engine, Engine) and not is_local(facts.engine):
        raise NotApplicable("the engine runs on another machine")
    has_other = any(unit.dev is not None and not _hard(unit) for unit in units)
    for unit in units:
        hard = _hard(unit)
        if hard and not (unit.dev is not None and has_other):
            yield _insists(unit, hard[0])
        if unit.dev is not None:
            yield from _commands_insist(unit.dev)


def _commands_insist(dev: DevContainer) -> Iterator[Finding]:
    for command in dev.commands:
        if command.needs_gpu:
            yield Finding(
                Severity.ERROR if command.stage == "initializeCommand" else Severity.WARNING,
                f"{command.stage} needs a GPU and fails without one: "
                + (
                    "the container is not started"
                    if command.stage == "initializeCommand"
                    else "later commands are left out"
                ),
                Fix("Let it pass without a GPU, such as by `nvidia-smi || true`.", where=Side.PROJECT),
                subject=placed(command.path, command.line),
                evidence=(f"{placed(command.path, command.line)}: {command.stage}", "no NVIDIA GPU on this machine"),
                location=Location(command.path, command.line),
            )


def _hard(unit: Unit) -> list[GpuRequest]:
    """Requests that a plain start uses: neither behind a variable nor behind a profile."""
    if unit.dev is None and unit.setting("profiles") is not None:
        return []
    return [request for request in unit.requests if not request.condition]


def _insists(unit: Unit, request: GpuRequest) -> Finding:
    return Finding(
        Severity.ERROR,
        f"{unit.name} insists on an NVIDIA GPU ({request.form.value}), and does not start on a machine without one",
        Fix(
            'Ask by hostRequirements: { "gpu": "optional" } instead.'
            if not unit.is_compose
            else "Move the request into a Compose file of its own, and name that one only on machines with a GPU.",
            where=Side.PROJECT,
            docs="https://github.com/docker/compose/issues/12514",
            repairs=_repairs(unit.dev) if unit.dev is not None and not unit.is_compose else (),
        ),
        subject=placed(request.path, request.line),
        evidence=(f"{placed(request.path, request.line)}: {request.form.value}", "no NVIDIA GPU on this machine"),
        confidence=Confidence.LIKELY if request.form is RequestForm.RUNTIME else Confidence.CERTAIN,
        location=Location(request.path, request.line),
    )


def _repairs(dev: DevContainer) -> tuple[Repair, ...]:
    """`--gpus all` becomes an optional GPU, which says the same; no other request can be said in that way."""
    items = [argument.text for argument in dev.run_args]
    places = _places_of_flag(items)
    if len(dev.requests) != 1 or not places:
        return ()
    # From behind, so that the numbers before stay right.
    each = [Repair(RepairKind.REMOVE, dev.path, ("runArgs", str(place))) for place in reversed(places)]
    removal = each if len(places) < len(items) else [Repair(RepairKind.REMOVE, dev.path, ("runArgs",))]
    return (*removal, Repair(RepairKind.SET, dev.path, ("hostRequirements", "gpu"), '"optional"'))


def _places_of_flag(items: list[str]) -> list[int]:
    if "--gpus=all" in items:
        return [items.index("--gpus=all")]
    pair = ("--gpus", "all")
    place = next((number for number, both in enumerate(pairwise(items)) if both == pair), None)
    return [] if place is None else [place, place + 1]
