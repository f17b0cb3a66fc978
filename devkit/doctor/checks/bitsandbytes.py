"""Checks of bitsandbytes: the library that it loads is one for torch's CUDA."""

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from devkit.compat.rules import BitsandbytesChoice, LibraryChoice, bitsandbytes_library
from devkit.doctor.applies import cuda_of_torch, known, python_of
from devkit.doctor.checks.stack import installed
from devkit.doctor.install import upgrade, workload_side
from devkit.doctor.limits import BITSANDBYTES_FALLS_BACK
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.facts.model import Facts, Package
from devkit.facts.values import Release
from devkit.text import listed


def _package(facts: Facts) -> Package:
    package = installed(facts).get("bitsandbytes")
    if package is None:
        raise NotApplicable("bitsandbytes is not installed in this Python")
    return package


def _falls_back(package: Package) -> bool:
    """Whether this release takes the nearest library of the same CUDA major by itself."""
    try:
        return Version(package.version) >= Version(BITSANDBYTES_FALLS_BACK.value)
    except InvalidVersion:
        return False


@check(
    "PYT003",
    "bitsandbytes has a library for torch's CUDA",
    covers=("H02",),
    symptoms=(
        "CUDA Setup failed despite GPU being available",
        "No compatible CUDA binary found",
        "Configured CUDA binary not found at libbitsandbytes_cuda129.so",
    ),
    causes=("PYT018",),
)
def bitsandbytes_fits_torch(facts: Facts) -> Iterator[Finding]:
    """The installed bitsandbytes carries a library for the CUDA version that torch was built with.

    Why it matters: QLoRA needs it. bitsandbytes imports without it and fails at the first 4-bit layer.
    How it is seen: the names of the libraries in the installed package against torch's CUDA version. From 0.50.0 on
    bitsandbytes takes the nearest library of the same major by itself; before, BNB_CUDA_VERSION must name it.
    Source: bitsandbytes, `cextension.py` of 0.49.2 and 0.50.0, and installation guide.
    """
    cuda = cuda_of_torch(facts)
    package = _package(facts)
    shipped = python_of(facts).bitsandbytes_cuda
    if not shipped:
        raise NotApplicable("the CUDA libraries of bitsandbytes were not found")
    chosen = bitsandbytes_library(cuda, shipped)
    if chosen.choice is LibraryChoice.EXACT:
        return
    if chosen.choice is LibraryChoice.OVERRIDE and (_falls_back(package) or _names_it(facts, chosen)):
        return
    is_missing = chosen.choice is LibraryChoice.MISSING
    yield Finding(
        Severity.ERROR if is_missing else Severity.WARNING,
        f"bitsandbytes {package.version} has no library for CUDA {cuda} of torch"
        + ("" if is_missing else f"; the one for {chosen.cuda} serves only when told to"),
        Fix(
            "Update bitsandbytes." + ("" if is_missing else " Or choose the library of the same CUDA major."),
            (
                upgrade(facts, "bitsandbytes"),
                *(() if is_missing else (f"export BNB_CUDA_VERSION={chosen.cuda.replace('.', '')}",)),
            ),
            where=workload_side(facts),
        ),
        evidence=(f"libraries for CUDA {listed(shipped)}", f"torch is built with CUDA {cuda}"),
        confidence=Confidence.CERTAIN if is_missing else Confidence.LIKELY,
    )


def _names_it(facts: Facts, chosen: BitsandbytesChoice) -> bool:
    return python_of(facts).bnb_cuda_version == chosen.cuda.replace(".", "")


@check(
    "PYT016",
    "BNB_CUDA_VERSION names a library that fits torch, or is unset",
    covers=("H02",),
    symptoms=("BNB_CUDA_VERSION environment variable detected; loading libbitsandbytes_cuda118.so",),
    causes=("PYT018",),
)
def no_stale_override(facts: Facts) -> Iterator[Finding]:
    """BNB_CUDA_VERSION, where it is set, names a library of the CUDA major of torch that the package carries.

    Why it matters: the variable, left in a profile or Dockerfile from another setup, switches the choice off. A library
    of another major does not load, and bitsandbytes then only pretends to be there.
    How it is seen: the variable against torch's CUDA and the libraries in the package.
    Source: bitsandbytes, `cextension.py`; bitsandbytes-foundation/bitsandbytes issue 1559.
    """
    cuda = cuda_of_torch(facts)
    package = _package(facts)
    python = python_of(facts)
    override = known(python.bnb_cuda_version)
    if override is None or (not override and not _falls_back(package)):
        raise NotApplicable("BNB_CUDA_VERSION is not set")
    problem = _problem(override, cuda, python.bitsandbytes_cuda)
    if not problem:
        return
    yield Finding(
        Severity.ERROR,
        f"BNB_CUDA_VERSION={override} {problem}: bitsandbytes does not load",
        Fix(
            "Unset it; look for the line that sets it in the Dockerfile, Compose file or shell profile.",
            ("unset BNB_CUDA_VERSION",),
            where=workload_side(facts),
        ),
        evidence=(
            f"BNB_CUDA_VERSION={override}",
            f"libraries for CUDA {listed(python.bitsandbytes_cuda) or 'none found'}",
            f"torch is built with CUDA {cuda}",
        ),
    )


def _problem(override: str, cuda: Release, shipped: tuple[str, ...]) -> str:
    if not override.isdigit():
        return "is not a number such as 128"
    named = f"{override[:-1]}.{override[-1]}"
    if named.partition(".")[0] != str(cuda.major):
        return f"names the library for CUDA {named}, but torch has CUDA {cuda}"
    if shipped and named not in shipped:
        return f"names a library for CUDA {named}, which the package does not carry"
    return ""
