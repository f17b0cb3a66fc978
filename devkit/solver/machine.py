"""What a plan needs to know of a machine: taken from saved facts, or from flags."""

import re
from typing import NoReturn

from devkit.compat.amd import NamedAmdGpu, find_amd_gpu
from devkit.compat.gpus import NamedGpu, closest_gpus, find_gpu
from devkit.errors import DevkitError
from devkit.facts.amd import Amd
from devkit.facts.engine import Toolkit
from devkit.facts.gpu import Driver, FailedGpu, NvmlAnswer
from devkit.facts.model import Facts
from devkit.facts.system import Platform, System
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.solver.model import Machine

MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
"""What systems call their processor -> what wheels call it."""

FLAGS = "the flags"
"""The origin of a machine that was described on the command line."""

NamedGpus = tuple[tuple[str, ComputeCapability], ...]

_VERSION = re.compile(r"\d+(\.\d+){0,3}")


def machine_from_facts(facts: Facts, *, origin: str = "this machine") -> Machine:
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
        machine=MACHINES.get(system.machine.lower(), system.machine) if system else "x86_64",
        platform="wsl2" if system and system.platform in (Platform.WSL2, Platform.WINDOWS) else "linux",
        # The image brings its own C library; the host's does not matter.
        glibc=None,
        origin=origin,
        notes=notes,
        amd_gpus=amd_gpus,
        toolkit=_toolkit(facts),
    )


def machine_from_flags(
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
        driver=version("--driver", driver) if driver else None,
        cuda=None,
        gpus=tuple((gpu.name, gpu.capability) for gpu in named if isinstance(gpu, NamedGpu)),
        machine=machine or "x86_64",
        platform=platform or "linux",
        glibc=version("--glibc", glibc) if glibc else None,
        origin=FLAGS,
        amd_gpus=tuple((gpu.name, gpu.target) for gpu in named if isinstance(gpu, NamedAmdGpu)),
    )


def version(flag: str, text: str) -> Release:
    """The version given to a flag. Raises DevkitError when it is not one."""
    if not _VERSION.fullmatch(text.strip()):
        raise DevkitError(f"{flag} {text!r} is not a version", "Give numbers with dots, such as 570.124.06 or 13.0.")
    return Release.read(text)


def _unknown(text: str) -> NoReturn:
    names = closest_gpus(text)
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
