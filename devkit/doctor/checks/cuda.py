"""Checks of CUDA: driver, driver library, image and torch fit each other."""

from collections.abc import Iterator

from devkit.compat.rules import CudaSupport, oldest_driver
from devkit.doctor.applies import (
    a_gpu_in_this_container,
    container_of,
    cuda_of_torch,
    driver_of,
    is_in_container,
    known,
    loaded_driver,
    torch_of,
)
from devkit.doctor.checks.requirement import unmet
from devkit.doctor.install import install_wheel
from devkit.doctor.machine import driver_side, update_driver
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.wheels import DriverCuda, all_offer_forward_compatibility, driver_cuda_of, fitting_wheel
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown

COMPATIBILITY_GUIDE = "https://docs.nvidia.com/deploy/cuda-compatibility/"


def _driver(facts: Facts) -> DriverCuda:
    a_gpu_in_this_container(facts)
    driver = driver_cuda_of(facts)
    if driver is None:
        raise NotApplicable("the driver's version is not known")
    return driver


@check(
    "CUD001",
    "The driver meets the image's CUDA requirement",
    symptoms=("requirement error: unsatisfied condition: cuda>=12.8, please update your driver",),
)
def image_requirement_met(facts: Facts) -> Iterator[Finding]:
    """The driver satisfies NVIDIA_REQUIRE_CUDA, which CUDA images carry.

    Why it matters: the toolkit's legacy mode refuses to start such an image, so it starts for one teammate and not
    for the next. CDI checks nothing, and the first CUDA call fails instead.
    How it is seen: the variable's conditions against the driver's CUDA version, its branch, and the kind of GPU.
    Source: NVIDIA/nvidia-container-toolkit issue 152; libnvidia-container, requirement syntax.
    """
    driver = _driver(facts)
    requirement = container_of(facts).require_cuda
    if not requirement:
        raise NotApplicable("the image sets no NVIDIA_REQUIRE_CUDA")
    wanted = unmet(requirement, driver, tuple(gpu.name for gpu in facts.gpus))
    if wanted is None:
        return
    newest = f"CUDA {driver.cuda}" if driver.cuda else "an older CUDA"
    support = driver.runs(wanted)
    still_runs = support in (CudaSupport.FULL, CudaSupport.MINOR)
    advice = (
        " Minor version compatibility holds for this driver, so NVIDIA_DISABLE_REQUIRE=1 is safe here; code that must"
        " compile PTX still needs the newer driver."
        if still_runs
        else " NVIDIA_DISABLE_REQUIRE would only move the failure to the first CUDA call."
    )
    yield Finding(
        Severity.WARNING if still_runs else Severity.ERROR,
        f"the image requires a driver for CUDA {wanted}, but driver {driver.release} is for {newest}",
        Fix(
            f"Use an image without CUDA (torch wheels carry their own) or one for {newest},"
            f" or update the driver.{advice}",
            where=Side.IMAGE,
            docs=COMPATIBILITY_GUIDE,
        ),
        evidence=(f"NVIDIA_REQUIRE_CUDA={requirement[:120]}", f"driver {driver.release}"),
        confidence=Confidence.CERTAIN if driver.says else Confidence.LIKELY,
    )


@check(
    "CUD002",
    "No forward-compatibility libcuda is loaded that this GPU refuses",
    covers=("G03",),
    symptoms=("Error 804: forward compatibility was attempted on non supported HW", "cuda-compat"),
    causes=("CUD003", "PYT006", "CUD011", "PYT017"),
)
def compat_libcuda_is_accepted(facts: Facts) -> Iterator[Finding]:
    """When the image's cuda-compat libcuda comes first, the GPU is of a kind that accepts it.

    Why it matters: on GeForce and most workstation GPUs it ends every CUDA program with error 804; on any GPU an
    older copy than the driver ends it with error 803.
    How it is seen: the path of the first libcuda.so.1, its version, the driver's version, and the GPUs' names.
    Source: NVIDIA, CUDA Compatibility, "Forward compatibility"; NVIDIA/nvidia-docker issue 1294.
    """
    driver = _driver(facts)
    path = container_of(facts).compat_libcuda
    if not path:
        return
    copy = known(facts.driver).libcuda
    if isinstance(copy, Release) and copy == driver.release:
        return
    is_older = isinstance(copy, Release) and copy < driver.release
    if not is_older and (not facts.gpus or all_offer_forward_compatibility(facts.gpus)):
        return
    names = ", ".join(sorted({gpu.name for gpu in facts.gpus})) or "the GPU"
    yield Finding(
        Severity.ERROR,
        f"the image's {path} is older than driver {driver.release}: CUDA ends with error 803"
        if is_older
        else f"{path} is loaded first, but {names} does not support forward compatibility: CUDA ends with error 804",
        Fix(
            "Take the compat folder out of LD_LIBRARY_PATH and the loader's configuration, or remove the package"
            " cuda-compat from the image. The host's libcuda then serves.",
            ("apt-get purge -y 'cuda-compat-*' && ldconfig",),
            where=Side.IMAGE,
            root=True,
            docs=COMPATIBILITY_GUIDE,
        ),
        subject=path,
        evidence=(f"first libcuda.so.1: {path}", f"driver {driver.release}"),
        confidence=Confidence.LIKELY,
    )


@check(
    "CUD003",
    "libcuda is of the loaded driver",
    covers=("G04",),
    symptoms=("Error 803: system has unsupported display driver / cuda driver combination",),
    causes=("CUD011", "PYT017"),
)
def libcuda_matches_module(facts: Facts) -> Iterator[Finding]:
    """The libcuda.so.1 that programs load has the version of the kernel module.

    Why it matters: any other version ends CUDA with error 803. It happens after an upgrade without a reboot, and with
    copies left behind in an image or by an installer.
    How it is seen: the version in the file name of the first libcuda.so.1 against /sys/module/nvidia/version.
    Source: NVIDIA/nvidia-docker issue 1256.
    """
    driver = driver_of(facts)
    release = loaded_driver(facts)
    if is_in_container(facts) and container_of(facts).compat_libcuda:
        raise NotApplicable("a forward-compatibility libcuda comes first")
    library = known(driver.libcuda)
    if library is None:
        raise NotApplicable("no libcuda.so.1 is found here")
    if library == release:
        return
    paths = () if isinstance(driver.libcuda_paths, Unknown) else driver.libcuda_paths
    yield Finding(
        Severity.ERROR,
        f"libcuda is {library}, but the loaded NVIDIA module is {release}: CUDA ends with error 803",
        _repair_libcuda(facts, release),
        subject=paths[0] if paths else "",
        evidence=(f"/sys/module/nvidia/version: {release}", *(f"found {path}" for path in paths)),
    )


def _repair_libcuda(facts: Facts, release: Release) -> Fix:
    if is_in_container(facts):
        return Fix(
            "Recreate the container, so that it gets the libraries of the driver that runs now. If it is the same"
            " after that, the image carries its own libcuda: remove it there.",
            where=Side.IMAGE,
        )
    return Fix(
        f"Reboot if the driver was just updated; otherwise remove every libcuda that is not of {release}.",
        ("ldconfig -p | grep libcuda", "sudo reboot"),
        root=True,
        restart=Restart.HOST,
    )


@check(
    "CUD004",
    "The driver is new enough for torch's CUDA",
    covers=("G01", "G02"),
    symptoms=(
        "The NVIDIA driver on your system is too old (found version 12080)",
        "CUDA error 35",
        "CUDA driver version is insufficient for CUDA runtime version",
        "nvidia-smi shows another CUDA Version than torch.version.cuda",
    ),
    causes=("PYT006", "PYT017", "PYT018", "PYT019"),
)
def driver_runs_torch_cuda(facts: Facts) -> Iterator[Finding]:
    """The driver runs the CUDA version that torch was built with, in full or by minor version compatibility.

    The "CUDA Version" of nvidia-smi is the newest that the driver runs, not one that is installed: it need not be
    torch's, and nothing is wrong while both have one major.

    Why it matters: torch imports, finds no GPU, and warns that the driver is too old.
    How it is seen: torch's CUDA in its version file against the driver, by rules R1, R2, R4 and R5 of the
    compatibility tables. A CUDA version that differs within its major is fine.
    Source: NVIDIA, CUDA Compatibility, "Minor version compatibility" and "Forward compatibility".
    """
    driver = _driver(facts)
    torch, cuda = torch_of(facts), cuda_of_torch(facts)
    has_compat = is_in_container(facts) and bool(container_of(facts).compat_libcuda)
    forward = has_compat and all_offer_forward_compatibility(facts.gpus)
    if driver.runs(cuda, has_forward_gpus=forward) is not CudaSupport.NO:
        return
    floor = oldest_driver(cuda, platform=driver.platform)
    yield Finding(
        Severity.ERROR,
        f"torch {torch.version} needs CUDA {cuda}, but driver {driver.release} is too old for it",
        _older_cuda_or_newer_driver(facts, floor),
        evidence=(
            f"torch {torch.version}, built with CUDA {cuda}",
            f"driver {driver.release}, for CUDA up to {driver.cuda or 'a version before the tables'}",
            f"CUDA {cuda} needs driver {floor} or newer" if floor else f"no driver is known for CUDA {cuda}",
        ),
    )


def _older_cuda_or_newer_driver(facts: Facts, floor: Release | None) -> Fix:
    """The cheaper repair first: another wheel needs neither root nor a reboot."""
    wanted = f"{floor} or newer" if floor else "that runs it"
    wheel = fitting_wheel(facts)
    if wheel is None:
        return update_driver(facts, wanted)
    place = "on Windows" if driver_side(facts) is Side.WINDOWS else "on the host"
    return Fix(
        f"Install torch {wheel.version} for {wheel.label}, which this driver runs; or update the driver {place} to"
        f" {wanted}.",
        (install_wheel(facts, wheel),),
        where=Side.CONTAINER if is_in_container(facts) else Side.HOST,
        docs=COMPATIBILITY_GUIDE,
    )
