"""Builds a request from what the user typed, and refuses what cannot be a request at all."""

import re

from packaging.utils import canonicalize_name

from devkit.compat.load import tables
from devkit.errors import DevkitError
from devkit.facts.values import Release
from devkit.solver.machine import version
from devkit.solver.model import Machine, Request, Vendor

_TORCH = re.compile(r"(\d+\.\d+(?:\.\d+)?)(?:\+(cu\d{3}|cpu))?")
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
    _readable(torch=wanted_torch, cuda=cuda, python=python, image=image, features=features)
    _consistent(vendor=vendor, variant=torch_wanted(wanted_torch)[1], cuda=cuda)
    return Request(
        machines=machines,
        vendor=Vendor(vendor) if vendor and vendor != "auto" else None,
        torch=wanted_torch,
        cuda=cuda,
        python=".".join(python.split(".")[:2]) if python else None,
        image=image,
        pins=tuple(sorted(pairs.items())),
        features=features,
    )


def torch_wanted(text: str | None) -> tuple[str, str]:
    """The version and the variant in "2.14.1+cu126"; "" for what is left open."""
    found = _TORCH.fullmatch(text or "")
    return (found[1], found[2] or "") if found else ("", "")


def _readable(
    *, torch: str | None, cuda: str | None, python: str | None, image: str | None, features: tuple[str, ...]
) -> None:
    """Wishes that say something at all."""
    if torch is not None and not _TORCH.fullmatch(torch):
        raise DevkitError(f"--torch {torch!r} is not a version", "Such as 2.14, 2.14.1 or 2.14.1+cu126.")
    for flag, text in (("--cuda", cuda), ("--python", python)):
        if text is not None:
            version(flag, text)
    _existing(torch=torch, cuda=cuda, python=python)
    if image is not None and not _IMAGE.fullmatch(image):
        raise DevkitError(f"--image {image!r} is not an image reference", "Such as python:3.12-slim-bookworm.")
    known = tables().stack.features
    for name in features:
        if name not in known:
            raise DevkitError(f"unknown feature {name!r}", f"Known: {', '.join(known)}.")


def _existing(*, torch: str | None, cuda: str | None, python: str | None) -> None:
    """Versions that the tables know at all."""
    minor = ".".join(python.split(".")[:2]) if python else None
    releases, toolkits = tables().torch.releases, tables().driver.toolkits
    for flag, text, known in (
        ("--torch", torch_wanted(torch)[0], {row.version for row in releases}),
        ("--cuda", cuda, {row.cuda for row in toolkits} | {row.version for row in toolkits}),
        ("--python", minor, {Release.read(each) for row in releases for each in row.pythons}),
    ):
        wished = Release.read(text) if text else None
        if wished is None or wished in known:
            continue
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
    if (vendor == "nvidia" and variant == "cpu") or (vendor == "cpu" and variant.startswith("cu")):
        raise DevkitError(f"--vendor {vendor} and a +{variant} torch exclude each other", "Leave one of them out.")


def _pin(text: str) -> tuple[str, str]:
    found = _PIN.fullmatch(text.strip())
    if found is None:
        raise DevkitError(f"--pin {text!r} is not NAME==VERSION", "Such as --pin transformers==4.57.6.")
    return canonicalize_name(found[1]), found[2]
