"""Builds a request from what the user typed, and refuses what cannot be a request at all."""

import re
from collections.abc import Iterable

from devkit.compat.load import tables
from devkit.compat.specifiers import canonical_name
from devkit.errors import DevkitError
from devkit.facts.values import Release
from devkit.solver.machine import version
from devkit.solver.model import Constraint, Machine, Request, Vendor

_TORCH = re.compile(r"(\d+\.\d+(?:\.\d+)?)(?:\+(cu\d{3}|cpu|rocm\d+\.\d+(?:\.\d+)?))?")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([A-Za-z0-9][A-Za-z0-9.+!_-]*)")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]*")


def request_of(
    *,
    machines: tuple[Machine, ...],
    vendor: str | None = None,
    torch: str | None = None,
    cuda: str | None = None,
    python: str | None = None,
    image: str | None = None,
    pins: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
) -> Request:
    """The request in the solver's terms. `vendor` None or "auto" leaves it to the machines.

    Raises DevkitError for text that is no version, no NAME==VERSION pair or no image reference, and for a version
    that does not exist. One that exists and does not fit is a conflict, which `solve` answers.
    """
    pairs = dict(_pin(text) for text in pins)
    pinned_torch = pairs.pop("torch", None)
    wanted_torch = torch or pinned_torch
    _readable(torch=wanted_torch, cuda=cuda, python=python, image=image)
    variant = torch_wanted(wanted_torch)[1]
    _consistent(vendor=vendor, variant=variant, cuda=cuda)
    named = tuple(dict.fromkeys(_feature(name) for name in features))
    _one_vendor(machines, vendor=vendor, variant=variant, features=named)
    return Request(
        machines=machines,
        vendor=Vendor(vendor) if vendor and vendor != "auto" else None,
        torch=wanted_torch,
        cuda=cuda,
        python=".".join(python.split(".")[:2]) if python else None,
        image=image,
        pins=tuple(sorted(pairs.items())),
        features=named,
    )


def torch_wanted(text: str | None) -> tuple[str, str]:
    """The version and the variant in "2.14.1+cu126"; "" for what is left open."""
    found = _TORCH.fullmatch(text or "")
    return (found[1], found[2] or "") if found else ("", "")


def asked_variant(request: Request) -> str:
    """The build that --torch or the project's files name, such as cu126; "" for none."""
    named = [torch_wanted(request.torch)[1]]
    named += [_variant_of(each) for each in request.constraints if each.name == "torch"]
    return next(filter(None, named), "")


def _variant_of(constraint: Constraint) -> str:
    """The local part of "==2.4.1+cu121"."""
    found = re.fullmatch(r"===?\s*[\d.]+\+([a-z0-9.]+)", constraint.specifier.strip())
    return found[1] if found else ""


def _readable(*, torch: str | None, cuda: str | None, python: str | None, image: str | None) -> None:
    """Wishes that say something at all."""
    if torch is not None and not _TORCH.fullmatch(torch):
        raise DevkitError(f"--torch {torch!r} is not a version", "Such as 2.14, 2.14.1 or 2.14.1+cu126.")
    for flag, text in (("--cuda", cuda), ("--python", python)):
        if text is not None:
            version(flag, text)
    if torch:
        _exists("--torch", torch, torch_wanted(torch)[0], (row.version for row in tables().torch.releases))
    if cuda:
        toolkits = tables().driver.toolkits
        _exists("--cuda", cuda, cuda, (release for row in toolkits for release in (row.cuda, row.version)))
    if python:
        pythons = (Release.read(each) for row in tables().torch.releases for each in row.pythons)
        _exists("--python", python, ".".join(python.split(".")[:2]), pythons)
    if image is not None and not _IMAGE.fullmatch(image):
        raise DevkitError(f"--image {image!r} is not an image reference", "Such as python:3.12-slim-bookworm.")


def _exists(flag: str, text: str, wanted: str, releases: Iterable[Release]) -> None:
    """A version that the tables know at all."""
    known = set(releases)
    wished = Release.read(wanted)
    if wished in known:
        return
    ordered = sorted(known)
    near = [str(release) for release in ordered if release.numbers[:2] == wished.numbers[:2]]
    raise DevkitError(
        f"{flag} {text}: no such version is known",
        f"Known as of {tables().torch.as_of}: {', '.join(near) or f'{ordered[0]} to {ordered[-1]}'}.",
    )


def _consistent(*, vendor: str | None, variant: str, cuda: str | None) -> None:
    """Wishes that contradict each other whatever the machine."""
    if "cpu" in (vendor, variant) and cuda:
        raise DevkitError("--cuda makes no sense for a CPU plan", "Leave out --cuda, or --vendor cpu.")
    if (vendor == "rocm" or variant.startswith("rocm")) and cuda:
        raise DevkitError("--cuda makes no sense for a ROCm plan", "Leave out --cuda, or --vendor rocm.")
    if vendor in (None, "auto") or not variant:
        return
    builds = {"nvidia": "cu", "rocm": "rocm", "cpu": "cpu"}
    if not variant.startswith(builds[vendor]) or (vendor == "nvidia" and variant == "cpu"):
        raise DevkitError(f"--vendor {vendor} and a +{variant} torch exclude each other", "Leave one of them out.")


def _one_vendor(machines: tuple[Machine, ...], *, vendor: str | None, variant: str, features: tuple[str, ...]) -> None:
    """A plan computes on the GPUs of one vendor: a wheel serves no other's."""
    nvidia = [machine for machine in machines if machine.driver or machine.gpus]
    amd = [machine for machine in machines if machine.amd_gpus]
    is_rocm = vendor == "rocm" or variant.startswith("rocm") or (vendor in (None, "auto") and bool(amd))
    hint = 'Name the AMD GPU alone, as in --vendor rocm --gpu "MI300X", or leave out --vendor rocm.'
    if is_rocm and nvidia:
        has = f"driver {nvidia[0].driver}" if nvidia[0].driver else nvidia[0].gpus[0][0]
        raise DevkitError(f"a ROCm plan serves AMD GPUs; {nvidia[0].origin} name NVIDIA's ({has})", hint)
    if amd and vendor == "nvidia":
        raise DevkitError(f"--vendor nvidia does not serve {amd[0].amd_gpus[0][0]}", "Leave out --vendor nvidia.")
    if is_rocm and "nvcc" in features:
        raise DevkitError("--feature nvcc is CUDA's compiler, and this plan is for ROCm", "Leave out --feature nvcc.")


def _feature(name: str) -> str:
    """A feature by its name or an alias. Raises DevkitError for an unknown one."""
    known = tables().stack.features
    for row in known.values():
        if name.lower() in (row.name, *row.aliases):
            return row.name
    raise DevkitError(f"unknown feature {name!r}", f"Known: {', '.join(known)}.")


def _pin(text: str) -> tuple[str, str]:
    found = _PIN.fullmatch(text.strip())
    if found is None:
        raise DevkitError(f"--pin {text!r} is not NAME==VERSION", "Such as --pin transformers==4.57.6.")
    return canonical_name(found[1]), found[2]
