"""Checks of virtual GPUs: their licence, and whether their profile can compute at all."""

import re
from collections.abc import Iterator

from devkit.doctor.checks.chains import TRIED
from devkit.doctor.gpus import GpuState, name_of, read_states
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.facts.model import Facts

LICENSING_GUIDE = "https://docs.nvidia.com/vgpu/latest/grid-licensing-user-guide/"
_WITHOUT_CUDA = re.compile(r"-\d+([AB])\d?$")
_LICENSED = "licensed"
_UNTOLD = ("unknown", "uninitialised")


def _vgpus(facts: Facts) -> tuple[GpuState, ...]:
    found = tuple(state for state in read_states(facts, "virtualisation") if state[1].virtualisation == "vgpu")
    if not found:
        raise NotApplicable("no GPU here is a virtual one")
    return found


@check(
    "GPU025",
    "Virtual GPUs are licensed",
    covers=("C07",),
    symptoms=(
        "License Status: Unlicensed",
        "vGPU Software Licensed Product",
        "nvidia-gridd: Failed to acquire license",
    ),
)
def vgpu_is_licensed(facts: Facts) -> Iterator[Finding]:
    """Each virtual GPU has got its licence.

    Why it matters: an unlicensed one starts at full speed, and is slowed down after a grace period, in the middle of
    the work. Nothing else looks wrong.
    How it is seen: NVML's licence state of GPUs whose virtualisation mode is vGPU guest.
    Source: NVIDIA, Virtual GPU Client Licensing User Guide; NVIDIA, NVML API reference, nvmlGridLicensableFeature_t.
    """
    states = [(gpu, health) for gpu, health in _vgpus(facts) if isinstance(health.licence, str)]
    told = [(gpu, str(health.licence)) for gpu, health in states if health.licence not in _UNTOLD]
    if not told:
        raise NotApplicable("the driver does not say whether the virtual GPU is licensed")
    for gpu, licence in told:
        if licence == _LICENSED:
            continue
        is_restricted = licence == "unlicensed-restricted"
        yield Finding(
            Severity.ERROR if is_restricted else Severity.WARNING,
            f"{name_of(gpu)} {gpu.name} has no licence: it "
            + ("is slowed down now" if is_restricted else "is slowed down after a while"),
            Fix(
                "Put the client token of your licence server in place, set FeatureType in gridd.conf (0 lets the driver"
                " choose), and restart the service.",
                (
                    "ls -l /etc/nvidia/ClientConfigToken/",
                    "grep FeatureType /etc/nvidia/gridd.conf",
                    "sudo systemctl restart nvidia-gridd",
                    "journalctl -u nvidia-gridd -b | tail",
                ),
                root=True,
                docs=LICENSING_GUIDE,
            ),
            subject=name_of(gpu),
            evidence=(f"{name_of(gpu)}: licence {licence}",),
        )


@check(
    "GPU026",
    "Virtual GPUs have a profile that can compute",
    covers=("C08",),
    symptoms=("CUDA is not available on a vGPU", "cudaErrorNotSupported: operation not supported"),
    causes=TRIED,
)
def vgpu_profile_computes(facts: Facts) -> Iterator[Finding]:
    """The profile of each virtual GPU is of the C or Q series, which CUDA runs on.

    Why it matters: the A and B series are made for applications and desktops. Driver and nvidia-smi work, CUDA does
    not.
    How it is seen: the letter behind the memory in the GPU's name, such as the B of "NVIDIA A40-8B", on GPUs whose
    virtualisation mode is vGPU guest. The name is a sign, not a proof, so that this is only a warning.
    Source: NVIDIA, Virtual GPU Software User Guide, "NVIDIA vGPU types".
    """
    for gpu, _ in _vgpus(facts):
        series = _WITHOUT_CUDA.search(gpu.name)
        if series is None:
            continue
        yield Finding(
            Severity.WARNING,
            f"{name_of(gpu)} {gpu.name} has a profile of the {series[1]} series, which most likely has no CUDA",
            Fix(
                "Ask whoever runs the hypervisor for a profile of the C or Q series. For unified memory the hypervisor"
                " must also switch it on for this machine (enable_uvm=1).",
                docs="https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/",
            ),
            subject=name_of(gpu),
            evidence=(f"name {gpu.name}, virtualisation vgpu",),
            confidence=Confidence.POSSIBLE,
        )
