"""Checks of Jetson boards, whose GPU and driver are part of the board and of its system image."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import known, python_of, system_of
from devkit.doctor.install import install, workload_side
from devkit.doctor.limits import FIRST_GENERIC_L4T, JETSON_INDEXES
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.facts.model import Facts, Tegra
from devkit.facts.values import Release, Unknown


@check(
    "CUD010",
    "On a Jetson, torch is a build for its JetPack",
    covers=("G10",),
    symptoms=("NvRmMemInitNvmap failed", "libnvdla_runtime.so: cannot open shared object file", "nvidia-smi on Jetson"),
    causes=("PYT001", "PYT002"),
)
def torch_fits_the_jetson(facts: Facts) -> Iterator[Finding]:
    """On a Jetson with JetPack 6 or older, torch comes from NVIDIA's or the community's Jetson builds.

    Why it matters: until JetPack 7 the CUDA libraries of a Jetson differ from those of an Arm server. The wheels of the
    ordinary indexes install and import, and then find no GPU or end at the library level.
    How it is seen: /proc/device-tree/model and /etc/nv_tegra_release, and the version of torch: Jetson builds carry
    "nv" in it or come from an index of their own with a plain version.
    Source: conda-forge/pytorch-cpu-feedstock issue 303; pinokiocomputer/pinokio issue 1027; dusty-nv/jetson-containers
    issue 1460; NVIDIA, Installing PyTorch for Jetson Platform.
    """
    tegra = known(system_of(facts).tegra)
    if tegra is None:
        raise NotApplicable("this is no Jetson")
    torch = known(python_of(facts).torch)
    if torch is None:
        raise NotApplicable("torch is not installed in this Python")
    if _takes_ordinary_wheels(tegra) or not _is_ordinary(torch.version, torch.cuda):
        return
    yield Finding(
        Severity.ERROR if isinstance(tegra.release, Release) else Severity.WARNING,
        f"torch {torch.version} is a build for Arm servers, but {tegra.model or 'this Jetson'}"
        f" ({_named(tegra)}) needs one for its JetPack",
        Fix(
            "Install torch for this JetPack from NVIDIA's Jetson index, or use an image of dusty-nv/jetson-containers"
            " or NVIDIA's l4t-pytorch with --runtime nvidia. JetPack 7 takes the ordinary cu130 wheels.",
            _from_jetson_index(facts, tegra),
            where=workload_side(facts),
            docs="https://docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform/",
        ),
        evidence=(f"board: {tegra.model or 'not named'}", _named(tegra), f"torch {torch.version}"),
        confidence=Confidence.LIKELY if isinstance(tegra.release, Release) else Confidence.POSSIBLE,
    )


def _from_jetson_index(facts: Facts, tegra: Tegra) -> tuple[str, ...]:
    index = JETSON_INDEXES.value.get(tegra.release.major) if isinstance(tegra.release, Release) else None
    return (install(facts, "torch", "numpy<2", index=index, replace=True),) if index else ()


def _takes_ordinary_wheels(tegra: Tegra) -> bool:
    return isinstance(tegra.release, Release) and tegra.release.major >= FIRST_GENERIC_L4T.value


def _is_ordinary(version: str, cuda: Release | Unknown | None) -> bool:
    """Whether a torch is of PyTorch's own indexes: +cpu, +cu126 …; Jetson builds say 2.5.0a0+…nv24.08 or nothing."""
    label = version.partition("+")[2]
    return label == "cpu" or label in tables().torch.indexes or (not label and cuda is None)


def _named(tegra: Tegra) -> str:
    return f"L4T {tegra.release}" if isinstance(tegra.release, Release) else "L4T release not known"
