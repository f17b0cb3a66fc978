"""Builds a request from what the user typed, and refuses what cannot be a request at all."""

import re
from collections.abc import Iterable
from typing import NoReturn

from devkit.compat.gpus import NamedAmdGpu, NamedGpu, find_amd_gpu, find_closest_gpus, find_gpu
from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.engine import Toolkit
from devkit.facts.gpu import Amd, Driver, FailedGpu, NvmlAnswer
from devkit.facts.machine import Platform, System
from devkit.facts.model import Facts
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.solver.plan import Constraint, Machine, Request, Vendor

# What a plan needs to know of a machine: taken from saved facts, or from flags.

ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
"""What systems call their processor -> what wheels call it."""

FLAGS_ORIGIN = "the flags"
"""The origin of a machine that was described on the command line."""

NamedGpus = tuple[tuple[str, ComputeCapability], ...]

_VERSION = re.compile(r"\d+(\.\d+){0,3}")


def build_machine_from_facts(facts: Facts, *, origin: str = "this machine") -> Machine:
    """The machine that `facts` describe; a GPU that does not answer is left out, and noted."""
    system = facts.system if isinstance(facts.system, System) else None
    answer = facts.nvml if isinstance(facts.nvml, NvmlAnswer) else None
    gpus, notes = _gpus(answer)
    driver = _driver(facts, answer)
    amd_gpus: tuple[tuple[str, str], ...] = ()
    if not gpus:
        notes += _unseen_gpus(facts)
        # Beside a GPU of NVIDIA's it is most often the processor's own graphics; --vendor rocm asks for it.
        amd_gpus, amd_notes = _amd_gpus(facts) if driver is None else ((), ())
        notes += amd_notes
    return Machine(
        driver=driver,
        cuda=answer.cuda if answer and isinstance(answer.cuda, Release) else None,
        gpus=gpus,
        machine=ARCHITECTURES.get(system.machine.lower(), system.machine) if system else "x86_64",
        platform="wsl2" if system and system.platform in (Platform.WSL2, Platform.WINDOWS) else "linux",
        # The image brings its own C library; the host's does not matter.
        glibc=None,
        origin=origin,
        notes=notes,
        amd_gpus=amd_gpus,
        toolkit=_toolkit(facts),
    )


def build_machine_from_flags(
    *,
    driver: str | None = None,
    gpus: tuple[str, ...] = (),
    machine: str | None = None,
    platform: str | None = None,
    glibc: str | None = None,
) -> Machine:
    """A machine as described on the command line. Raises DevkitError for an unknown GPU or a version that is none."""
    named = [find_gpu(text) or find_amd_gpu(text) or _unknown(text) for text in gpus]
    return Machine(
        driver=parse_version("--driver", driver) if driver else None,
        cuda=None,
        gpus=tuple((gpu.name, gpu.capability) for gpu in named if isinstance(gpu, NamedGpu)),
        machine=machine or "x86_64",
        platform=platform or "linux",
        glibc=parse_version("--glibc", glibc) if glibc else None,
        origin=FLAGS_ORIGIN,
        amd_gpus=tuple((gpu.name, gpu.target) for gpu in named if isinstance(gpu, NamedAmdGpu)),
    )


def parse_version(flag: str, text: str) -> Release:
    """The version given to a flag. Raises DevkitError when it is not one."""
    if not _VERSION.fullmatch(text.strip()):
        raise DevkitError(f"{flag} {text!r} is not a version", "Give numbers with dots, such as 570.124.06 or 13.0.")
    return Release.parse(text)


def _unknown(text: str) -> NoReturn:
    names = find_closest_gpus(text)
    known = f"Close names: {', '.join(names)}.\n" if names else ""
    raise DevkitError(
        f"unknown GPU {text!r}",
        f"{known}Or give its compute capability, such as --gpu 9.0 (H100) or --gpu sm_120, or for AMD --gpu gfx942.",
    )


def _gpus(answer: NvmlAnswer | None) -> tuple[NamedGpus, tuple[str, ...]]:
    gpus: list[tuple[str, ComputeCapability]] = []
    notes: list[str] = []
    for gpu in answer.gpus if answer else ():
        if isinstance(gpu, FailedGpu):
            notes.append(f"GPU {gpu.index} does not answer ({gpu.message}) and is left out: run `devkit doctor`")
            continue
        capability = gpu.capability
        if isinstance(capability, Unknown):
            found = find_gpu(gpu.name)
            if found is None:
                notes.append(f"GPU {gpu.index} ({gpu.name}) is left out: its compute capability is not known")
                continue
            capability = found.capability
        gpus.append((gpu.name, capability))
    return tuple(gpus), tuple(notes)


def _amd_gpus(facts: Facts) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """AMD's GPUs that a ROCm build of torch knows; the others, such as a processor's own graphics, are noted."""
    gpus: list[tuple[str, str]] = []
    notes: list[str] = []
    for gpu in facts.amd.gpus if isinstance(facts.amd, Amd) else ():
        if find_amd_gpu(gpu.target) is None:
            shown = gpu.name or f"PCI {gpu.device_id}"
            notes.append(f"the AMD GPU {shown} ({gpu.target}) is left out: no ROCm build of torch has code for it")
            continue
        gpus.append((gpu.name or gpu.target, gpu.target))
    return tuple(gpus), tuple(notes)


def _toolkit(facts: Facts) -> Release | None:
    found = facts.toolkit.version if isinstance(facts.toolkit, Toolkit) else None
    return found if isinstance(found, Release) else None


def _driver(facts: Facts, answer: NvmlAnswer | None) -> Release | None:
    if answer and isinstance(answer.driver, Release):
        return answer.driver
    loaded = facts.driver.loaded if isinstance(facts.driver, Driver) else None
    return loaded if isinstance(loaded, Release) else None


def _unseen_gpus(facts: Facts) -> tuple[str, ...]:
    if not isinstance(facts.driver, Driver) or isinstance(facts.driver.pci_gpus, Unknown) or not facts.driver.pci_gpus:
        return ()
    return ("an NVIDIA GPU is on the PCI bus, but the driver does not show it: run `devkit doctor`",)


_TORCH = re.compile(r"(\d+\.\d+(?:\.\d+)?)(?:\+(cu\d{3}|cpu|rocm\d+\.\d+(?:\.\d+)?))?")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([A-Za-z0-9][A-Za-z0-9.+!_-]*)")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]*")


def build_request(
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
    variant = parse_torch(wanted_torch)[1]
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


def parse_torch(text: str | None) -> tuple[str, str]:
    """The version and the variant in "2.14.1+cu126"; "" for what is left open."""
    found = _TORCH.fullmatch(text or "")
    return (found[1], found[2] or "") if found else ("", "")


def find_requested_variant(request: Request) -> str:
    """The build that --torch or the project's files name, such as cu126; "" for none."""
    named = [parse_torch(request.torch)[1]]
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
            parse_version(flag, text)
    if torch:
        _exists("--torch", torch, parse_torch(torch)[0], (row.version for row in load_tables().torch.releases))
    if cuda:
        toolkits = load_tables().driver.toolkits
        _exists("--cuda", cuda, cuda, (release for row in toolkits for release in (row.cuda, row.version)))
    if python:
        pythons = (Release.parse(each) for row in load_tables().torch.releases for each in row.pythons)
        _exists("--python", python, ".".join(python.split(".")[:2]), pythons)
    if image is not None and not _IMAGE.fullmatch(image):
        raise DevkitError(f"--image {image!r} is not an image reference", "Such as python:3.12-slim-bookworm.")


def _exists(flag: str, text: str, wanted: str, releases: Iterable[Release]) -> None:
    """A version that the tables know at all."""
    known = set(releases)
    wished = Release.parse(wanted)
    if wished in known:
        return
    ordered = sorted(known)
    near = [str(release) for release in ordered if release.numbers[:2] == wished.numbers[:2]]
    raise DevkitError(
        f"{flag} {text}: no such version is known",
        f"Known as of {load_tables().torch.as_of}: {', '.join(near) or f'{ordered[0]} to {ordered[-1]}'}.",
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
    known = load_tables().stack.features
    for row in known.values():
        if name.lower() in (row.name, *row.aliases):
            return row.name
    raise DevkitError(f"unknown feature {name!r}", f"Known: {', '.join(known)}.")


def _pin(text: str) -> tuple[str, str]:
    found = _PIN.fullmatch(text.strip())
    if found is None:
        raise DevkitError(f"--pin {text!r} is not NAME==VERSION", "Such as --pin transformers==4.57.6.")
    return canonicalize_name(found[1]), found[2]
