"""Requests from flags and facts: the machines to plan for, and the versions that the user named."""

import re
from collections.abc import Iterable

from devkit.compat.gpus import NamedAmdGpu, NamedGpu, find_amd_gpu, find_closest_gpus, find_gpu
from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.engine import Toolkit
from devkit.facts.gpu import Amd, Driver, FailedGpu, NvmlAnswer
from devkit.facts.machine import Platform, System
from devkit.facts.model import Facts
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.solver.plan import FLAGS_ORIGIN, LATEST, TORCH_VERSION, Machine, Request, Vendor, parse_torch

ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
"""Names of processors as systems spell them -> as wheels spell them."""

_DAY = re.compile(r"20\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])", re.ASCII)
_VERSION = re.compile(r"\d+(\.\d+){0,3}")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([A-Za-z0-9][A-Za-z0-9.+!_-]*)")
_DEBIAN_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
"""Source: https://www.debian.org/doc/debian-policy/ch-controlfields.html#source"""
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
    apt: tuple[str, ...] = (),
    as_of: str | None = None,
) -> Request:
    """Build the request that flags describe. `vendor` None or "auto" leaves it to the machines.

    Raises:
        DevkitError: for text that is not a version, NAME==VERSION pair or image reference, for a version that does
            not exist, and for flags that exclude each other. A version that exists and does not fit is a conflict,
            which `solve` answers.
    """
    pairs = {}
    for text in pins:
        pin = _PIN.fullmatch(text.strip())
        if pin is None:
            raise DevkitError(
                f"--pin {text.removesuffix('==')!r} does not have the form NAME==VERSION",
                "Such as transformers==4.57.6.",
            )
        pairs[canonicalize_name(pin[1])] = pin[2]
    pinned_torch = pairs.pop("torch", None)
    torch = torch or pinned_torch
    _validate_versions(torch=torch, cuda=cuda, python=python, image=image)
    variant = parse_torch(torch)[1]
    if "cpu" in (vendor, variant) and cuda:
        raise DevkitError("--cuda does not apply to a CPU plan", "Remove --cuda, or --vendor cpu.")
    if (vendor == "rocm" or variant.startswith("rocm")) and cuda:
        raise DevkitError("--cuda does not apply to a ROCm plan", "Remove --cuda, or --vendor rocm.")
    builds = {"nvidia": "cu", "rocm": "rocm", "cpu": "cpu"}.get(vendor or "")
    if builds and variant and (not variant.startswith(builds) or (vendor == "nvidia" and variant == "cpu")):
        raise DevkitError(f"--vendor {vendor} and a +{variant} torch cannot be used together", "Remove one of them.")
    if as_of and as_of != LATEST and not _DAY.fullmatch(as_of):
        raise DevkitError(f"--as-of {as_of!r} is not a date", f"Examples: --as-of 2023-07-24, --as-of {LATEST}.")
    for name in apt:
        if not _DEBIAN_PACKAGE.fullmatch(name):
            raise DevkitError(f"--apt {name!r} is not the name of a Debian package", "Example: --apt libsndfile1.")
    known = load_tables().stack.features
    by_alias = {alias: row.name for row in known.values() for alias in (row.name, *row.aliases)}
    for name in features:
        if name.lower() not in by_alias:
            raise DevkitError(f"unknown feature {name!r}", f"Known: {', '.join(known)}.")
    named = tuple(dict.fromkeys(by_alias[name.lower()] for name in features))
    _validate_machines(machines, vendor=vendor, variant=variant, features=named)
    return Request(
        machines=machines,
        vendor=Vendor(vendor) if vendor and vendor != "auto" else None,
        torch=torch,
        cuda=cuda,
        python=".".join(python.split(".")[:2]) if python else None,
        image=image,
        pins=tuple(sorted(pairs.items())),
        features=named,
        apt=tuple(dict.fromkeys((*(package for name in named for package in known[name].apt), *apt))),
        as_of=as_of or "",
    )


def build_machine_from_flags(
    *,
    driver: str | None = None,
    gpus: tuple[str, ...] = (),
    machine: str | None = None,
    platform: str | None = None,
    glibc: str | None = None,
) -> Machine:
    """Build the machine that flags describe. Without `machine` it is the GPU's, where that is sold with one alone.

    Raises: DevkitError for an unknown GPU or text that is not a version.
    """
    named = []
    for text in gpus:
        gpu = find_gpu(text) or find_amd_gpu(text)
        if gpu is None:
            names = find_closest_gpus(text)
            close = f"Close names: {', '.join(names)}.\n" if names else ""
            raise DevkitError(
                f"unknown GPU {text!r}",
                f"{close}Alternatively, give its compute capability, such as --gpu 9.0 (H100) or --gpu sm_120, or for AMD, --gpu gfx942.",
            )
        named.append(gpu)
    models = [gpu.model for gpu in named if isinstance(gpu, NamedGpu) and gpu.model]
    sold_with = {model.machine: model.name for model in models if model.machine}
    notes = [f"{name} is sold only with {each}; --machine is {machine}" for each, name in sold_with.items()]
    return Machine(
        driver=_parse_version("--driver", driver) if driver else None,
        cuda=None,
        gpus=tuple((gpu.name, gpu.capability) for gpu in named if isinstance(gpu, NamedGpu)),
        machine=machine or next(iter(sold_with), "x86_64"),
        platform="wsl2" if platform == "windows" else platform or "linux",
        glibc=_parse_version("--glibc", glibc) if glibc else None,
        origin=FLAGS_ORIGIN,
        notes=tuple(notes) if machine is not None and machine not in sold_with else (),
        amd_gpus=tuple((gpu.name, gpu.target) for gpu in named if isinstance(gpu, NamedAmdGpu)),
    )


def build_machine_from_facts(facts: Facts, *, origin: str = "this machine") -> Machine:
    """Build the machine that `facts` describe; a GPU that does not answer is left out, and noted."""
    system = facts.system if isinstance(facts.system, System) else None
    answer = facts.nvml if isinstance(facts.nvml, NvmlAnswer) else None
    toolkit = facts.toolkit.version if isinstance(facts.toolkit, Toolkit) else None
    loaded = facts.driver.loaded if isinstance(facts.driver, Driver) else None
    driver = next((each for each in (answer and answer.driver, loaded) if isinstance(each, Release)), None)
    gpus: list[tuple[str, ComputeCapability]] = []
    amd_gpus: list[tuple[str, str]] = []
    notes: list[str] = []
    for gpu in answer.gpus if answer else ():
        if isinstance(gpu, FailedGpu):
            notes.append(f"GPU {gpu.index} does not answer ({gpu.message}) and is ignored: run `devkit doctor`")
            continue
        known = find_gpu(gpu.name)
        if not isinstance(gpu.capability, Unknown):
            gpus.append((gpu.name, gpu.capability))
        elif known is not None:
            gpus.append((gpu.name, known.capability))
        else:
            notes.append(f"GPU {gpu.index} ({gpu.name}) is ignored: its compute capability is unknown")
    if not gpus:
        if (
            isinstance(facts.driver, Driver)
            and not isinstance(facts.driver.pci_gpus, Unknown)
            and facts.driver.pci_gpus
        ):
            notes.append("an NVIDIA GPU is on the PCI bus, but the driver does not report it: run `devkit doctor`")
        # Next to an NVIDIA GPU it is usually the processor's own graphics; --vendor rocm asks for it.
        for amd in facts.amd.gpus if isinstance(facts.amd, Amd) and driver is None else ():
            if find_amd_gpu(amd.target) is not None:
                amd_gpus.append((amd.name or amd.target, amd.target))
                continue
            shown = amd.name or f"PCI {amd.device_id}"
            notes.append(f"the AMD GPU {shown} ({amd.target}) is ignored: no ROCm build of torch supports it")
    return Machine(
        driver=driver,
        cuda=answer.cuda if answer and isinstance(answer.cuda, Release) else None,
        gpus=tuple(gpus),
        machine=ARCHITECTURES.get(system.machine.lower(), system.machine) if system else "x86_64",
        platform="wsl2" if system and system.platform in (Platform.WSL2, Platform.WINDOWS) else "linux",
        # The image brings its own C library; the host's does not matter.
        glibc=None,
        origin=origin,
        notes=tuple(notes),
        amd_gpus=tuple(amd_gpus),
        toolkit=toolkit if isinstance(toolkit, Release) else None,
    )


def _parse_version(flag: str, text: str) -> Release:
    if not _VERSION.fullmatch(text.strip()):
        example = {"--driver": "570.124.06", "--python": "3.12", "--glibc": "2.36"}.get(flag, "13.0")
        raise DevkitError(f"{flag} {text!r} is not a version", f"Give numbers with dots, such as {example}.")
    return Release.parse(text)


def _validate_versions(*, torch: str | None, cuda: str | None, python: str | None, image: str | None) -> None:
    """Refuse text that is not a version or image, and versions that the tables do not know at all."""
    tables = load_tables()
    if torch is not None and not TORCH_VERSION.fullmatch(torch):
        raise DevkitError(f"--torch {torch!r} is not a version", "Examples: 2.14, 2.14.1, 2.14.1+cu126.")
    for flag, text in (("--cuda", cuda), ("--python", python)):
        if text is not None:
            _parse_version(flag, text)
    if cuda:
        toolkits = tables.driver.toolkits
        _validate_known("--cuda", cuda, cuda, (release for row in toolkits for release in (row.cuda, row.version)))
    if python:
        pythons = (Release.parse(each) for row in tables.torch.releases for each in row.pythons)
        _validate_known("--python", python, ".".join(python.split(".")[:2]), pythons)
    if image is not None and not _IMAGE.fullmatch(image):
        raise DevkitError(f"--image {image!r} is not an image reference", "Example: python:3.12-slim-bookworm.")


def _validate_known(flag: str, text: str, version: str, releases: Iterable[Release]) -> None:
    wanted, known = Release.parse(version), sorted(set(releases))
    if wanted in known:
        return
    near = [str(release) for release in known if release.numbers[:2] == wanted.numbers[:2]]
    raise DevkitError(
        f"{flag} {text}: no such version is known",
        f"Known as of {load_tables().torch.as_of}: {', '.join(near) or f'{known[0]} to {known[-1]}'}.",
    )


def _validate_machines(
    machines: tuple[Machine, ...], *, vendor: str | None, variant: str, features: tuple[str, ...]
) -> None:
    """Refuse GPUs of two vendors: a torch wheel is built for one of them."""
    nvidia = [machine for machine in machines if machine.driver or machine.gpus]
    amd = [machine for machine in machines if machine.amd_gpus]
    is_rocm = vendor == "rocm" or variant.startswith("rocm") or (vendor in (None, "auto") and bool(amd))
    if is_rocm and nvidia:
        has = f"driver {nvidia[0].driver}" if nvidia[0].driver else nvidia[0].gpus[0][0]
        verb = "specify" if nvidia[0].origin == FLAGS_ORIGIN else "has"
        raise DevkitError(
            f"a ROCm plan serves AMD GPUs, but {nvidia[0].origin} {verb} NVIDIA GPUs ({has})",
            'Specify only the AMD GPU, as in --vendor rocm --gpu "MI300X", or remove --vendor rocm.',
        )
    if amd and vendor == "nvidia":
        raise DevkitError(f"--vendor nvidia does not serve {amd[0].amd_gpus[0][0]}", "Remove --vendor nvidia.")
    if is_rocm and "nvcc" in features:
        raise DevkitError(
            "--feature nvcc requests CUDA's compiler, but this plan is for ROCm", "Remove --feature nvcc."
        )
