"""The ways to give a container its GPU: which of them a project gets, and how each names the GPUs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from devkit.errors import DevkitError
from devkit.solver.model import Plan

ENGINES = ("docker", "podman")

_INDEX = re.compile(r"\d{1,3}", re.ASCII)
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{4,36}", re.ASCII)
_MIG = re.compile(r"\d{1,3}:\d{1,2}|MIG-[0-9a-fA-F-]{4,36}", re.ASCII)


@dataclass(frozen=True)
class Overlay:
    """One way to a GPU, which gpu.<mode>.yml holds, for the plans of one vendor and for some engines.

    One line of the file names the GPUs: `every` for all of them, otherwise `some` with a comma-separated list of
    `each`. "" where there is none to name. `machine` is the only kind of processor it is for, "" for every kind.
    """

    mode: str
    vendor: str
    engines: tuple[str, ...]
    every: str = ""
    some: str = ""
    each: str = ""
    machine: str = ""

    def naming(self, devices: Sequence[str]) -> str:
        """The line that names these GPUs; () are all."""
        if not devices or not self.some:
            return self.every
        return self.some % ",".join(self.each % device for device in devices)


CPU = Overlay("cpu", "", ENGINES)
OVERLAYS = (
    Overlay("nvidia", "nvidia", ("docker",), "count: all", "device_ids: [%s]", '"%s"'),
    Overlay(
        "cdi", "nvidia", ("docker",), 'device_ids: ["nvidia.com/gpu=all"]', "device_ids: [%s]", '"nvidia.com/gpu=%s"'
    ),
    Overlay("podman", "nvidia", ("podman",), 'devices: ["nvidia.com/gpu=all"]', "devices: [%s]", '"nvidia.com/gpu=%s"'),
    Overlay(
        "jetson", "nvidia", ("docker",), "- NVIDIA_VISIBLE_DEVICES=all", "- NVIDIA_VISIBLE_DEVICES=%s", "%s", "aarch64"
    ),
    Overlay("rocm", "rocm", ENGINES, "- ROCR_VISIBLE_DEVICES", "- ROCR_VISIBLE_DEVICES=%s", "%s"),
)
"""Every way to a GPU. A file never asks for another vendor's."""


def overlays_of(plan: Plan, engine: str) -> tuple[Overlay, ...]:
    """The overlays that a plan's project needs: without a GPU first, then each that fits the vendor and the engine.

    `engine` is docker or podman; "" is either. Raises DevkitError for another.
    """
    if engine not in ("", *ENGINES):
        raise DevkitError(f"target.engine is {engine!r}", 'It can be "docker" or "podman", or left out for both.')
    fitting = [overlay for overlay in OVERLAYS if overlay.vendor == plan.vendor.value]
    return (
        CPU,
        *(
            overlay
            for overlay in fitting
            if (not engine or engine in overlay.engines) and overlay.machine in ("", *plan.architectures)
        ),
    )


def checked_devices(devices: Sequence[str], vendor: str, engine: str = "") -> tuple[str, ...]:
    """The GPUs to pass on, as given. Raises DevkitError for a name that no engine takes, and for one given twice."""
    forms = (_INDEX, _UUID) if vendor == "rocm" else (_INDEX, _UUID, _MIG)
    for device in devices:
        if not any(form.fullmatch(device) for form in forms):
            migs = "" if vendor == "rocm" else ", a MIG slice such as 0:1, or its MIG-… UUID"
            raise DevkitError(f"{device!r} names no GPU", f"Give an index such as 0, a GPU-… UUID{migs}.")
        if engine == "podman" and ":" in device:
            # Compose parts a device's name at its colons before Podman sees it.
            raise DevkitError(f"Podman takes no MIG slice by the name {device}", "Give the slice's MIG-… UUID.")
        if devices.count(device) > 1:
            raise DevkitError(f"the GPU {device} is given twice", "Name each GPU once.")
    return tuple(devices)
