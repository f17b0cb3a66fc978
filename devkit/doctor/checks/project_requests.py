"""Checks of how the project's files ask for a GPU: in words that engines take, once, and at all."""

import json
import re
from collections.abc import Iterator

from devkit.doctor.applies import has_nvidia_gpu, known
from devkit.doctor.checks.project_host import RESERVATION, cli_adds_gpu, wished_gpu
from devkit.doctor.checks.project_units import Unit, placed, units_of, wants_gpu
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
from devkit.facts.model import DevContainer, Facts, GpuRequest, RequestForm, Requirement, Setting
from devkit.text import listed

_ONE_STRING = re.compile(r"^(--?[a-z][\w-]*)\s+(\S.*)$", re.DOTALL)
_SEVERAL = re.compile(r"^(?:\"?)device=[^\",]+,")
_GPU_VALUE = re.compile(r"^(?:all|\d+)$")


@check(
    "PRJ002",
    "Each item of runArgs is one word of the command line",
    covers=("J01",),
    symptoms=("unknown flag: --gpus all", "Unable to find image 'all:latest' locally", "pull access denied for all"),
    causes=("PRJ005",),
)
def run_args_are_words(facts: Facts) -> Iterator[Finding]:
    """An option and its value are two items of runArgs, or one with an equals sign.

    Why it matters: no shell takes the items apart: "--gpus all" is one unknown flag, and "all" left alone is taken for
    the image.
    How it is seen: items that begin with a dash and hold a space, and a GPU count without its option before it.
    Source: microsoft/vscode-remote-release issues 6989 and 2366; timothygrant80/cisTEM issue 472.
    """
    for unit in units_of(facts):
        if unit.dev is None or unit.is_compose:
            continue
        words = _words(unit.dev)
        items = [argument.text for argument in unit.dev.run_args]
        for place, argument in enumerate(unit.dev.run_args):
            is_one_string = bool(_ONE_STRING.match(argument.text))
            before = items[place - 1] if place else ""
            is_lost = bool(_GPU_VALUE.match(argument.text)) and not before.startswith("-")
            if is_one_string or is_lost:
                yield Finding(
                    Severity.ERROR,
                    f"runArgs has {argument.text!r} as one item: "
                    + ("the engine knows no such flag" if is_one_string else "the engine takes it for an image"),
                    Fix(
                        "Make it two items." if is_one_string else 'Write "--gpus" before it, or take it out as well.',
                        where=Side.PROJECT,
                        repairs=_set_run_args(unit.dev, words) if is_one_string else (),
                    ),
                    subject=placed(unit.dev.path, argument.line),
                    evidence=(f"runArgs: {json.dumps(items, ensure_ascii=False)}",),
                    location=Location(unit.dev.path, argument.line),
                )


def _words(dev: DevContainer) -> list[str]:
    words: list[str] = []
    for argument in dev.run_args:
        found = _ONE_STRING.match(argument.text)
        words += [found[1], found[2].strip()] if found else [argument.text]
    return words


def _set_run_args(dev: DevContainer, words: list[str]) -> tuple[Repair, ...]:
    """No repair where a value was blanked: it would be lost."""
    if any("…" in word for word in words):
        return ()
    return (Repair(RepairKind.SET, dev.path, ("runArgs",), json.dumps(words, ensure_ascii=False)),)


@check(
    "PRJ003",
    "Several GPUs are named within quotes of their own",
    symptoms=("cannot set both Count and DeviceIDs on device request",),
)
def gpu_lists_are_quoted(facts: Facts) -> Iterator[Finding]:
    """A list of GPUs in `--gpus` has quotes inside of the item: "\\"device=0,1\\"".

    Why it matters: the engine reads the value as comma-separated fields; without the inner quotes the second GPU is
    taken for a count, and nothing starts: "cannot set both Count and DeviceIDs on device request".
    How it is seen: `--gpus` with device= and a comma, and no quote before it.
    Source: NVIDIA/nvidia-docker issues 1026 and 1257.
    """
    for unit in units_of(facts):
        if unit.dev is None or unit.is_compose:
            continue
        for request in unit.dev.requests:
            if request.form is RequestForm.GPUS_FLAG and _SEVERAL.match(request.count) and '"' not in request.count:
                quoted = f'"{request.count}"'
                words = [word.replace(request.count, quoted) for word in _words(unit.dev)]
                yield Finding(
                    Severity.ERROR,
                    f"--gpus {request.count} lacks the inner quotes that a list needs, so no container starts",
                    Fix(
                        f"Write {json.dumps(quoted)}: the quotes belong to the value.",
                        where=Side.PROJECT,
                        docs="https://github.com/NVIDIA/nvidia-docker/issues/1257",
                        repairs=_set_run_args(unit.dev, words),
                    ),
                    subject=placed(request.path, request.line),
                    evidence=(f"--gpus {request.count}",),
                    location=Location(request.path, request.line),
                )


@check(
    "PRJ004",
    "The GPU is asked for once",
    symptoms=("two device requests", "GPU requested twice", "nvidia-container-cli runs twice"),
)
def gpu_is_asked_for_once(facts: Facts) -> Iterator[Finding]:
    """A container asks for its GPU in one place: a flag, the Compose file, or hostRequirements.

    Why it matters: nothing joins two requests. The dev container tool adds its own flag to yours, Compose appends lists
    of devices over files, and each request runs NVIDIA's hook anew; a subset that you chose becomes all GPUs again.
    How it is seen: more than one request that is always used, and hostRequirements.gpu beside another request where the
    tool would add a flag on this machine.
    Source: devcontainers/cli, singleContainer.ts and dockerCompose.ts; Compose specification, "Merge".
    """
    for unit in units_of(facts):
        certain = _separate(unit.requests)
        wish = wished_gpu(unit)
        if len(certain) > 1:
            yield _twice(certain)
        elif certain and wish is not None and cli_adds_gpu(facts):
            yield Finding(
                Severity.WARNING,
                f"the GPU is asked for twice: by {_name(certain[0])} and by hostRequirements.gpu",
                Fix(
                    "Keep the explicit request, and remove hostRequirements.gpu.",
                    where=Side.PROJECT,
                    repairs=(Repair(RepairKind.REMOVE, wish.path, ("hostRequirements", "gpu")),),
                ),
                subject=placed(wish.path, wish.line),
                evidence=(_shown(certain[0]), f"{placed(wish.path, wish.line)}: hostRequirements.gpu {wish.value}"),
                location=Location(wish.path, wish.line),
            )


def _separate(requests: tuple[GpuRequest, ...]) -> list[GpuRequest]:
    """Requests that are always used and do not belong together, as a list of single devices in one file does.

    The runtime nvidia leaves a container alone that already has NVIDIA's hook, so it stands beside any other.
    """
    found: dict[object, GpuRequest] = {}
    for request in requests:
        if not request.condition and request.form is not RequestForm.RUNTIME:
            together = (
                (request.form, request.path) if request.device_ids else (request.form, request.path, request.line)
            )
            found[together] = request
    return list(found.values())


def _twice(requests: list[GpuRequest]) -> Finding:
    last = requests[-1]
    files = list(dict.fromkeys(request.path for request in requests))
    over_files = len(files) > 1
    return Finding(
        Severity.WARNING,
        f"the GPU is asked for {len(requests)} times: by {listed(_name(request) for request in requests)}"
        + (f"; {files[-1]} adds to {files[0]} instead of replacing it" if over_files else ""),
        Fix(
            "Mark the later list with !override (Compose 2.24.4 and newer), or leave the earlier one out."
            if over_files
            else "Keep one of them.",
            where=Side.PROJECT,
            docs="https://docs.docker.com/reference/compose-file/merge/",
            repairs=() if over_files else _without(last),
        ),
        subject=placed(last.path, last.line),
        evidence=tuple(_shown(request) for request in requests),
        location=Location(last.path, last.line),
    )


def _without(request: GpuRequest) -> tuple[Repair, ...]:
    return () if request.key == ("runArgs",) else (Repair(RepairKind.REMOVE, request.path, request.key),)


def _name(request: GpuRequest) -> str:
    names = {
        RequestForm.GPUS_FLAG: "--gpus",
        RequestForm.RUNTIME: "the runtime nvidia",
        RequestForm.CDI: "a CDI device",
        RequestForm.RESERVATION: "a device reservation",
        RequestForm.GPUS_KEY: "the key gpus",
    }
    return names[request.form]


def _shown(request: GpuRequest) -> str:
    what = request.count or ", ".join(request.device_ids) or request.driver
    return f"{placed(request.path, request.line)}: {request.form.value} {what}".rstrip()


@check(
    "PRJ005",
    "A container for GPU work asks for a GPU",
    covers=("J02",),
    symptoms=("VS Code dev container has no GPU", "Found no NVIDIA driver on your system", "nvidia-smi: not found"),
    causes=("CON006",),
)
def gpu_work_asks_for_gpu(facts: Facts) -> Iterator[Finding]:
    """The files of a container with torch for CUDA ask the engine for a GPU.

    Why it matters: engines give no GPU unasked. On the command line it works with `--gpus all`; the editor's container
    of the same image has none, and torch finds no driver.
    How it is seen: a package or image for CUDA on one side; on the other no --gpus, no runtime, no CDI device, no
    reservation, no hostRequirements.gpu. Only judged where this machine has a GPU to give.
    Source: microsoft/vscode-remote-release issue 9385; Docker, "Enable GPU access with Docker Compose".
    """
    units = [unit for unit in units_of(facts) if unit.is_started_by_files]
    if not known(has_nvidia_gpu(facts)):
        raise NotApplicable("there is no GPU on this machine that a container could ask for")
    # Beside a dev container with a GPU, another one without is there for machines that have none.
    has_other = any(unit.dev and _asks(unit) for unit in units)
    for unit in units:
        shows = wants_gpu(unit)
        if shows is None or _asks(unit) or (unit.dev is not None and has_other):
            continue
        yield Finding(
            Severity.WARNING,
            f"{unit.name} has {_what(shows)} and asks for no GPU, so torch will find none",
            _ask(unit),
            subject=placed(unit.location.path, unit.location.line),
            evidence=(f"{placed(shows.path, shows.line)}: {_what(shows)}", "no request for a GPU"),
            confidence=Confidence.LIKELY,
            location=unit.location,
        )


def _asks(unit: Unit) -> bool:
    return bool(unit.requests) or wished_gpu(unit) is not None


def _what(shows: Requirement | Setting) -> str:
    return shows.value if isinstance(shows, Setting) else shows.name


def _ask(unit: Unit) -> Fix:
    if unit.service is not None:
        key = ("services", unit.service.name, "deploy", "resources", "reservations", "devices")
        return Fix(
            "Reserve the GPU in the Compose file; hosts without one need a file of their own.",
            where=Side.PROJECT,
            docs="https://docs.docker.com/compose/how-tos/gpu-support/",
            repairs=(Repair(RepairKind.SET, unit.service.path, key, RESERVATION),),
        )
    path = unit.dev.path if unit.dev else unit.name
    return Fix(
        'Add hostRequirements: { "gpu": "optional" }, which hosts without a GPU pass over; or runArgs with --gpus.',
        where=Side.PROJECT,
        repairs=(Repair(RepairKind.SET, path, ("hostRequirements", "gpu"), '"optional"'),),
    )
