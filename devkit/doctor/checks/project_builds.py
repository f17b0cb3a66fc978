"""Checks of what happens while the image is built: no GPU is there, and nobody is there to choose."""

import re
from collections.abc import Iterator

from devkit.doctor.checks.project_units import Unit, placed, torch_installs, units_of
from devkit.doctor.model import Confidence, Finding, Fix, Location, Severity, Side, check
from devkit.facts.model import Facts, Install, Requirement, Stage
from devkit.text import listed

_BUILDKIT = "https://github.com/moby/buildkit/issues/1436"
_COMPILED = ("apex", "pytorch3d", "detectron2", "gsplat", "nvdiffrast", "tinycudann", "mamba-ssm")
"""Packages that come as source and compile CUDA code by torch.utils.cpp_extension."""
_PINNED = re.compile(r"===?|~=|^url$|^git$|^@|\$")


def _installs(facts: Facts) -> Iterator[tuple[Unit, Install]]:
    """Each installation of the Dockerfiles once."""
    seen: set[tuple[str, int]] = set()
    for unit in units_of(facts):
        for install in unit.installs:
            if (install.path, install.line) not in seen:
                seen.add((install.path, install.line))
                yield unit, install


@check(
    "PRJ024",
    "The build names the torch index itself",
    symptoms=("--torch-backend=auto installs CPU torch in docker build", "torch.cuda.is_available() is False"),
)
def build_names_index(facts: Facts) -> Iterator[Finding]:
    """A Dockerfile gives uv a torch backend such as cu128, and never auto.

    Why it matters: auto looks for a driver, and a build has none: uv then takes the wheels for the CPU. The image is
    built without complaint, and torch.cuda.is_available() is False for ever.
    How it is seen: --torch-backend=auto or UV_TORCH_BACKEND=auto in a RUN or ENV of a Dockerfile.
    Source: uv, "Using uv with PyTorch", automatic backend selection; tgm-team/tgm issue 73; moby/buildkit issue 1436.
    """
    for unit, install in _installs(facts):
        by_variable = unit.value("UV_TORCH_BACKEND") == "auto" and install.tool == "uv" and not install.backend
        is_built = any(install in stage.installs for stage in unit.stages)
        if is_built and (install.backend == "auto" or by_variable):
            yield Finding(
                Severity.ERROR,
                "the build lets uv choose the torch backend; without a driver in the build it chooses the CPU",
                Fix(
                    "Name the backend that this machine's driver runs; devkit plan says which.",
                    ("devkit plan --why torch_index",),
                    where=Side.PROJECT,
                    docs="https://docs.astral.sh/uv/guides/integration/pytorch/#automatic-backend-selection",
                ),
                subject=placed(install.path, install.line),
                evidence=(f"{placed(install.path, install.line)}: torch backend auto",),
                confidence=Confidence.LIKELY,
                location=Location(install.path, install.line),
            )


@check(
    "PRJ025",
    "The build needs no GPU",
    covers=("E13",),
    symptoms=(
        "RuntimeError: Found no NVIDIA driver on your system (during docker build)",
        "/bin/sh: 1: nvidia-smi: not found",
        "IndexError: list index out of range in _get_cuda_arch_flags",
    ),
)
def build_needs_no_gpu(facts: Facts) -> Iterator[Finding]:
    """No step of a Dockerfile asks for a GPU, and extensions are told which GPUs they are for.

    Why it matters: BuildKit has no --gpus. A test of torch.cuda fails the build, and an extension that asks torch for
    the GPU's architecture finds none: TORCH_CUDA_ARCH_LIST tells it instead.
    How it is seen: nvidia-smi or torch.cuda in a RUN that ends with it, and packages that compile CUDA code by way of
    torch without TORCH_CUDA_ARCH_LIST before them.
    Source: moby/buildkit issue 1436; pytorch/pytorch issue 28955; rahul-goel/fused-ssim issue 19;
    open-edge-platform/anomalib issue 584.
    """
    seen: set[str] = set()
    for unit in units_of(facts):
        for stage in unit.stages:
            for found in (*_gpu_uses(stage), *_extensions(unit, stage)):
                if found.subject not in seen:
                    seen.add(found.subject)
                    yield found


def _gpu_uses(stage: Stage) -> Iterator[Finding]:
    for use in stage.gpu_uses:
        fails = "printed" not in use.name
        yield Finding(
            Severity.ERROR if fails else Severity.NOTE,
            f"a step of the build uses {use.name.partition(',')[0]}, and a build has no GPU"
            + (": it fails" if fails else ", so what it prints says nothing"),
            Fix(
                "Test the GPU when the container starts, such as in postStartCommand.",
                ('"postStartCommand": "devkit doctor"',),
                where=Side.PROJECT,
                docs=_BUILDKIT,
            ),
            subject=placed(use.path, use.line),
            evidence=(f"{placed(use.path, use.line)}: {use.value}",),
            confidence=Confidence.LIKELY,
            location=Location(use.path, use.line),
        )


def _extensions(unit: Unit, stage: Stage) -> Iterator[Finding]:
    if unit.value("TORCH_CUDA_ARCH_LIST") or any(one.name == "TORCH_CUDA_ARCH_LIST" for one in stage.variables):
        return
    for install in stage.installs:
        names = [one.name for one in install.requirements if one.name in _COMPILED]
        if names:
            yield Finding(
                Severity.WARNING,
                f"{listed(names)} compiles CUDA code in the build without TORCH_CUDA_ARCH_LIST: there is no GPU to ask",
                Fix(
                    "Set the compute capabilities that it is for, before that step.",
                    ('ENV TORCH_CUDA_ARCH_LIST="8.9"',),
                    where=Side.PROJECT,
                    docs="https://docs.pytorch.org/docs/stable/cpp_extension.html",
                ),
                subject=placed(install.path, install.line),
                evidence=(f"{placed(install.path, install.line)}: {listed(names)}", "TORCH_CUDA_ARCH_LIST is not set"),
                confidence=Confidence.LIKELY,
                location=Location(install.path, install.line),
            )


@check(
    "PRJ026",
    "torch is pinned",
    symptoms=("torch was upgraded on rebuild", "The NVIDIA driver on your system is too old"),
)
def torch_is_pinned(facts: Facts) -> Iterator[Finding]:
    """The image installs one version of torch, named in a Dockerfile, a requirement file or a lock.

    Why it matters: an unpinned torch is the newest one on the day of the build, for the newest CUDA; the next rebuild
    may need another driver than this machine has, and two people's containers differ.
    How it is seen: torch without == in what the image installs, while no lock and no other line pins it.
    Source: PyTorch, release notes on CUDA versions per release; pip, "Repeatable installs".
    """
    for unit in units_of(facts):
        found = [one for install in torch_installs(unit) for one in install.requirements if one.name == "torch"]
        if not found or unit.project.locks or _is_pinned(unit):
            continue
        first = found[0]
        yield Finding(
            Severity.WARNING,
            f"torch{first.specifier or ''} is not pinned: every rebuild may bring another CUDA",
            Fix(
                "Pin torch and its index to what this machine's driver runs; devkit plan says which.",
                ("devkit plan",),
                where=Side.PROJECT,
                docs="https://pytorch.org/get-started/previous-versions/",
            ),
            subject=placed(first.path, first.line),
            evidence=(_shown(first),),
            location=Location(first.path, first.line),
        )


def _is_pinned(unit: Unit) -> bool:
    """Whether any line pins torch, one for the CPU too: the others must agree with it then."""
    requirements = [one for install in unit.installs for one in install.requirements]
    return any(one.name == "torch" and _PINNED.search(one.specifier) for one in requirements)


def _shown(requirement: Requirement) -> str:
    return f"{placed(requirement.path, requirement.line)}: {requirement.name}{requirement.specifier}"
