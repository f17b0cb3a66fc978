"""The compatibility rules at their boundaries, the age of the tables, and specifiers."""

import pytest

from devkit.compat.gpus import has_forward_compatibility
from devkit.compat.rules import (
    CodeSupport,
    CudaSupport,
    LibraryChoice,
    can_compile_ptx,
    check_cuda_support,
    check_gpu_code,
    find_bitsandbytes_library,
    find_forward_package,
    find_newest_cuda,
    find_oldest_driver,
)
from devkit.compat.specifiers import satisfies, satisfies_python, split_requirement
from devkit.compat.version_tables import format_stale_warning
from devkit.facts.values import ComputeCapability, Release
from tests.cases import cases

# The compatibility rules, each at its boundary and on both sides of it.


FULL, MINOR, FORWARD, NO = CudaSupport
WSL = {"platform": "wsl2"}


@cases(
    "driver, cuda, more, support",
    {
        "the driver's own CUDA": ("570.124.06", "12.8", {}, FULL),
        "an older major on a newer driver": ("580.95.05", "11.8", {}, FULL),
        "one minor newer than the driver": ("570.124.06", "12.9", {}, MINOR),
        "exactly the floor of CUDA 12": ("525.60.13", "12.8", {}, MINOR),
        "one below the floor of CUDA 12": ("525.60.12", "12.8", {}, NO),
        "exactly the floor of CUDA 13": ("580.65.06", "13.0", {}, FULL),
        "one below the floor of CUDA 13": ("580.65.05", "13.0", {}, NO),
        "CUDA 13.2 on the floor of CUDA 13": ("580.65.06", "13.2", {}, MINOR),
        "the last branch before CUDA 13": ("575.57.08", "13.0", {}, NO),
        "exactly the floor of CUDA 11": ("450.80.02", "11.8", {}, MINOR),
        "one below the floor of CUDA 11": ("450.80.01", "11.8", {}, NO),
        "CUDA 11.0 came with a driver below the floor of its family": ("450.36.06", "11.0", {}, FULL),
        "older than the driver CUDA 11.0 came with": ("450.36.05", "11.0", {}, NO),
        "a bare branch means its newest driver": ("580", "13.0", {}, FULL),
        "a bare branch of the major before": ("570", "13.0", {}, NO),
        "a branch newer than the tables": ("700.10", "13.5", {}, FULL),
        "a branch older than the tables": ("390.157", "11.8", {}, NO),
        "the Windows driver of CUDA 12.4": ("551.78", "12.4", WSL, FULL),
        "its number would mean the same on Linux": ("551.78", "12.8", WSL, MINOR),
        "exactly the Windows floor of CUDA 12": ("528.33", "12.8", WSL, MINOR),
        "one below the Windows floor of CUDA 12": ("528.32", "12.8", WSL, NO),
        "the Windows driver of CUDA 12.0": ("527.41", "12.0", WSL, FULL),
        "a Windows number between Linux branches": ("581.29", "13.0", WSL, FULL),
        "the last Windows branch before CUDA 13": ("577.00", "13.0", WSL, NO),
        "a Windows branch known by its toolkit alone": ("472.50", "11.4", WSL, FULL),
        "a listed branch on data-center GPUs": ("535.183.01", "13.0", {"has_forward_gpus": True}, FORWARD),
        "a listed branch on GeForce": ("535.183.01", "13.0", {"has_forward_gpus": False}, NO),
        "a branch that cuda-compat 13.0 does not list": ("560.35.03", "13.0", {"has_forward_gpus": True}, NO),
        "minor version compatibility needs no cuda-compat": ("550.54.15", "12.8", {"has_forward_gpus": True}, MINOR),
        "what the tables say of a driver": ("565.57", "12.8", {}, MINOR),
        "what the driver says outranks the tables": ("565.57", "12.8", {"driver_says": Release.parse("12.8")}, FULL),
    },
)
def test_runs_cuda(driver, cuda, more, support):
    assert check_cuda_support(Release.parse(driver), Release.parse(cuda), **more) is support


def test_forward_compatibility_never_serves_wsl():
    assert find_forward_package(Release.parse("535.183"), Release.parse("13.0"), platform="wsl2") is None


def test_a_newer_driver_never_runs_less():
    order = [NO, MINOR, FULL]
    cudas = [Release.parse(text) for text in ("11.0", "11.8", "12.0", "12.4", "12.8", "13.0", "13.2", "13.5")]
    drivers = [Release.parse(f"{branch}.{minor}") for branch in range(400, 640, 5) for minor in ("10", "99.99")]
    for platform in ("linux", "wsl2"):
        for cuda in cudas:
            ranks = [order.index(check_cuda_support(driver, cuda, platform=platform)) for driver in drivers]
            assert ranks == sorted(ranks), (platform, str(cuda))


@pytest.mark.parametrize(
    ("driver", "gpu", "cuda", "works"),
    [
        # As reported in mistralai/mistral-inference 144, DeepVAC/TorchPod 43 and NVIDIA-NeMo/labs-molt 44.
        pytest.param("525.147.05", "RTX 3060", "12.1", False, id="hc30: a GeForce of a listed branch"),
        pytest.param("460.80", "GTX 1650", "11.3", False, id="hc32: a GeForce of a branch that is not listed"),
        pytest.param("535.183.01", "H100", "13.0", True, id="hc33: a data-center GPU of a listed branch"),
        pytest.param("595.58.03", "H100", "13.0", False, id="hc34: a driver that runs it anyway"),
    ],
)
def test_cuda_compat_serves_a_gpu_of_the_data_center_on_a_listed_branch(driver, gpu, cuda, works):
    package = find_forward_package(Release.parse(driver), Release.parse(cuda))
    assert (package is not None and has_forward_compatibility(gpu)) is works


def test_cuda_of_a_driver():
    assert str(find_newest_cuda(Release.parse("550.54.14"))) == "12.4"
    assert str(find_newest_cuda(Release.parse("576.57"), platform="wsl2")) == "12.9"
    assert find_newest_cuda(Release.parse("390.157")) is None


def test_an_unknown_cuda_family_has_no_floor():
    assert find_oldest_driver(Release.parse("9.2")) is None


@pytest.mark.parametrize(
    ("capability", "sass", "ptx", "support"),
    [
        pytest.param("8.9", ["8.0"], [], CodeSupport.NATIVE, id="machine code of an older minor"),
        pytest.param("8.0", ["8.6"], [], CodeSupport.NONE, id="machine code of a newer minor"),
        pytest.param("9.0", ["8.0", "8.6"], [], CodeSupport.NONE, id="machine code never crosses majors"),
        pytest.param("12.0", ["9.0", "10.0"], [], CodeSupport.NONE, id="Blackwell's two majors are apart"),
        pytest.param("12.1", ["12.0"], [], CodeSupport.NATIVE, id="GB10 runs code for 12.0"),
        pytest.param("9.0", ["9.0a"], [], CodeSupport.NATIVE, id="architecture-specific code on its own"),
        pytest.param("10.3", ["10.0a"], [], CodeSupport.NONE, id="architecture-specific code on a sibling"),
        pytest.param("10.3", ["10.0f"], [], CodeSupport.NATIVE, id="family-specific code on a sibling"),
        pytest.param("12.0", ["10.0f"], [], CodeSupport.NONE, id="family-specific code in another family"),
        pytest.param("12.0", ["9.0"], ["9.0"], CodeSupport.PTX, id="PTX crosses majors"),
        pytest.param("8.0", ["9.0"], ["9.0"], CodeSupport.NONE, id="PTX never goes back"),
        pytest.param("12.0", [], ["9.0a"], CodeSupport.NONE, id="architecture-specific PTX does not go forward"),
        pytest.param("9.0", ["sm_90"], [], CodeSupport.NATIVE, id="the names of nvcc"),
    ],
)
def test_has_kernels(capability, sass, ptx, support):
    assert check_gpu_code(ComputeCapability.parse(capability), sass, ptx) is support


def test_ptx_is_no_help_when_the_driver_cannot_compile_it():
    capability = ComputeCapability(12, 0)
    assert check_gpu_code(capability, ["9.0"], ["9.0"], driver_compiles=False) is CodeSupport.NONE


@pytest.mark.parametrize(
    ("driver", "cuda", "compiles"),
    [
        pytest.param("580.126.09", "13.2", False, id="hc26: 580 and PTX of 13.2"),
        pytest.param("590.48.01", "13.2", False, id="hc27: 590 and PTX of 13.2"),
        pytest.param("570.124.06", "12.9", False, id="hc28: 570 and PTX of 12.9"),
        pytest.param("460.80", "11.3", False, id="hc29: 460 and PTX of 11.3"),
        pytest.param("595.45.04", "13.2", True, id="595 and PTX of 13.2"),
        pytest.param("575.51.03", "12.9", True, id="575 and PTX of 12.9"),
    ],
)
def test_compiles_ptx(driver, cuda, compiles):
    assert can_compile_ptx(Release.parse(driver), Release.parse(cuda)) is compiles


@pytest.mark.parametrize(
    ("cuda", "shipped", "choice", "library"),
    [
        pytest.param("12.8", ["12.6", "12.8"], LibraryChoice.EXACT, "12.8", id="the same CUDA"),
        pytest.param(
            "12.9", ["11.8", "12.6", "12.8", "13.0"], LibraryChoice.OVERRIDE, "12.8", id="the next older minor"
        ),
        pytest.param("13.0", ["12.8", "13.2"], LibraryChoice.OVERRIDE, "13.2", id="only a newer minor"),
        pytest.param("13.0", ["11.8", "12.8"], LibraryChoice.MISSING, "", id="no library of the major"),
        pytest.param("12.10", ["12.1", "12.9"], LibraryChoice.OVERRIDE, "12.9", id="12.10 is not 12.1"),
    ],
)
def test_bitsandbytes_library(cuda, shipped, choice, library):
    found = find_bitsandbytes_library(Release.parse(cuda), shipped)
    assert (found.choice, found.cuda) == (choice, library)


# How old the tables are, without a clock.


@pytest.mark.parametrize(
    ("today", "is_stale"),
    [("2026-11-21", False), ("2027-05-20", False), ("2027-05-21", True), ("2026-01-01", False)],
    ids=["the same day", "180 days", "181 days", "a clock that is behind"],
)
def test_tables_are_stale_after_half_a_year(today, is_stale):
    assert (format_stale_warning("2026-11-21", today) is not None) is is_stale


# Specifiers: what cannot be read refuses nothing.


@pytest.mark.parametrize(
    ("version", "specifier", "met"),
    [
        pytest.param("2.4.1+cu121", "==2.4.1+cu121", True, id="a local build by its name"),
        pytest.param("2.4.1+cu124", "==2.4.1+cu121", False, id="another local build"),
        pytest.param("2.4.1+cu124", "==2.4.1", True, id="any local build"),
        pytest.param("2.4.1", "==2.4.*", True, id="a wildcard"),
        pytest.param("2.4.1", "===2.4.1", True, id="the very text"),
        pytest.param("2.4.1", "", True, id="no specifier"),
        pytest.param("2.4.1", "latest", True, id="what is no specifier refuses nothing"),
        pytest.param("main", ">=2", True, id="what is no version is refused by nothing"),
    ],
)
def test_meets(version, specifier, met):
    assert satisfies(version, specifier) is met


@pytest.mark.parametrize(
    ("python", "specifier", "met"),
    [
        pytest.param("3.11", ">=3.9,<3.12", True, id="within"),
        pytest.param("3.12", ">=3.9,<3.12", False, id="above"),
        pytest.param("3.11", ">=3.11.4", True, id="some patch release is new enough"),
        pytest.param("3.11", "==3.11.4", True, id="one patch release"),
        pytest.param("3.11", "==3.11", True, id="the minor alone"),
        pytest.param("3.1", "==3.11.4", False, id="3.1 is not 3.11"),
        pytest.param("3.11", "!=3.11.4", True, id="all but one patch release"),
        pytest.param("3.11", "~=3.11", True, id="a compatible release"),
        pytest.param("3.12", ">=3.9,<=3.12", False, id="no patch release but the first"),
    ],
)
def test_meets_python(python, specifier, met):
    assert satisfies_python(python, specifier) is met


def test_a_requirement_line_has_a_name_and_a_specifier():
    assert split_requirement("huggingface-hub>=0.34.0,<1.0") == ("huggingface-hub", ">=0.34.0,<1.0")
    assert split_requirement("numpy<2") == ("numpy", "<2")
