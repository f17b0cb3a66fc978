"""What stands around the driver: stubs, a CUDA Toolkit, images of another processor, a Jetson."""

import pytest

from devkit.facts.engine import LocalImage
from devkit.facts.machine import CudaFolder, Package, Tegra, Torch
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import changed, gpu, healthy, inside, r, windows_guest, without_gpu
from tests.doctor.running import build_full_report

RTX_4090 = "NVIDIA GeForce RTX 4090"
H100 = "NVIDIA H100 80GB HBM3"
STUBS = "/usr/local/cuda/lib64/stubs"
NOT_READ = Unknown("not read here")


def required(requirement, driver, cuda, name=RTX_4090):
    """An image that requires this, on a GPU and a driver that says that it runs CUDA up to this version."""
    changes = {"container.require_cuda": requirement, "nvml.driver": r(driver), "nvml.cuda": r(cuda)}
    return changed(inside(), changes | {"nvml.gpus.0.name": name})


def compat(name, copy, driver):
    """An image with libcuda for forward compatibility."""
    copied = {"container.compat_libcuda": "/usr/local/cuda-12.9/compat/libcuda.so.1", "driver.libcuda": r(copy)}
    loaded = {"driver.loaded": r(driver), "nvml.driver": r(driver), "nvml.gpus.0.name": name}
    return changed(inside(), copied | loaded)


def torch_on(driver, says, torch, cuda, facts=None):
    says = r(says) if isinstance(says, str) else says
    torch = Torch(torch, r(cuda), None)
    return changed(facts or inside(), {"nvml.driver": r(driver), "nvml.cuda": says, "python.torch": torch})


OTHER_LIBCUDA = {"driver.libcuda": r("570.86.15")}
EXEMPT = "cuda>=12.8 brand=tesla,driver>=535,driver<536"


def stubs(*folders, first_libcuda="/usr/lib/libcuda.so.1"):
    return changed(inside(), {"python.ld_library_path": folders, "driver.libcuda_paths": (first_libcuda,)})


def toolkit(version, **changes):
    read = r(version) if isinstance(version, str) else version
    return changed(inside(), {"python.cuda_toolkit": CudaFolder("/usr/local/cuda", "PATH", read), **changes})


NO_TORCH = {"python.torch": None, "python.packages": ()}
K80 = {"nvml.gpus": (gpu(name="Tesla K80", capability="3.7"),)} | NO_TORCH
TORCH_AND_BLACKWELL = {"nvml.gpus": (gpu(name="NVIDIA GeForce RTX 5090", capability="12.0"),)}
BLACKWELL = TORCH_AND_BLACKWELL | NO_TORCH
OLDER_IMAGE = changed(inside(), {"container.require_cuda": "cuda>=12.4 brand=tesla", **BLACKWELL})
DEEPSPEED = {"python.packages": (Package("deepspeed", "0.18.2", "", ()),)}
WITHOUT_TOOLKIT = {
    "no toolkit": changed(inside(), {"python.cuda_toolkit": None}),
    "a toolkit that was not read": changed(inside(), {"python.cuda_toolkit": NOT_READ}),
    "a toolkit without a version": toolkit(Unknown("it does not say")),
}


def images(machine, is_dev_container=True, **changes):
    image = LocalImage("dev", machine, is_dev_container=is_dev_container)
    return changed(healthy(), {"engine.images": (image,), **changes})


def jetson(version, cuda, release="36.4.7"):
    tegra = Tegra("NVIDIA Jetson Orin Nano", r(release) if release else None)
    torch = Torch(version, r(cuda) if cuda else None, None)
    return changed(without_gpu(), {"system.tegra": tegra, "system.machine": "aarch64", "python.torch": torch})


JETSON_INDEX = "pip install --force-reinstall torch 'numpy<2' --index-url"
NO_JETSON = {"system.tegra": None}

CASES = [
    ("CUD001", required("cuda>=12.8", "580.95.05", "13.0"), "passed", "newer driver"),
    ("CUD001", required("cuda>=12.8", "570.124.06", "12.8"), "passed", "exactly the version"),
    ("CUD001", required("cuda>=12.8", "550.144.03", "12.4"), "warning: 12.8 | 12.4", "an older minor"),
    ("CUD001", required("cuda>=13.0", "570.124.06", "12.8"), "error: would only move the failure", "an older major"),
    (
        "CUD001",
        required("cuda>=13.2", "580.95.05", "13.0"),
        "warning: NVIDIA_DISABLE_REQUIRE=1 is safe",
        "a newer minor",
    ),
    ("CUD001", required(EXEMPT, "535.183.01", "12.2", H100), "passed", "a data center GPU on an exempt branch"),
    ("CUD001", required(EXEMPT, "535.183.01", "12.2"), "warning", "GeForce on the same branch"),
    ("CUD001", required(EXEMPT, "545.23.08", "12.3", H100), "warning", "a data center GPU on another branch"),
    ("CUD001", required("driver>=470", "450.80.02", "11.0", "NVIDIA A100"), "passed", "no condition on CUDA"),
    ("CUD002", compat(RTX_4090, "575.57.08", "570.124.06"), "error: error 804", "newer copy on GeForce"),
    ("CUD002", compat(H100, "575.57.08", "570.124.06"), "passed", "newer copy on a data center GPU"),
    ("CUD002", compat(H100, "575.57.08", "580.95.05"), "error: error 803", "older copy on any GPU"),
    ("CUD002", compat(RTX_4090, "570.124.06", "570.124.06"), "passed", "the driver's own version"),
    ("CUD003", inside(), "passed", "libcuda of this driver"),
    (
        "CUD003",
        changed(inside(), OTHER_LIBCUDA),
        "error: error 803 | 570.86.15 | where: image",
        "of a different driver",
    ),
    ("CUD003", changed(healthy(), OTHER_LIBCUDA), "error: where: host", "of a different driver on a host"),
    (
        "CUD004",
        torch_on("570.124.06", "12.8", "2.9.1+cu130", "13.0"),
        "error: pip install --force-reinstall torch== | where: container",
        "CUDA 13 on a CUDA 12 driver",
    ),
    ("CUD004", torch_on("580.65.06", "13.0", "2.9.1+cu130", "13.0"), "passed", "the first driver of CUDA 13"),
    ("CUD004", torch_on("525.60.13", "12.0", "2.9.1+cu128", "12.8"), "passed", "exactly the floor of CUDA 12"),
    ("CUD004", torch_on("525.60.11", "12.0", "2.9.1+cu128", "12.8"), "error", "just below the floor of CUDA 12"),
    ("CUD004", torch_on("470.256.02", "11.4", "2.9.1+cu128", "12.8"), "error", "CUDA 12 on a CUDA 11 driver"),
    ("CUD004", torch_on("580.95.05", "13.0", "2.6.0+cu118", "11.8"), "passed", "an old torch on a new driver"),
    ("CUD004", torch_on("390.157", "9.1", "2.9.1+cu130", "13.0"), "error: where: host", "too old for every wheel"),
    (
        "CUD004",
        torch_on("390.157", "9.1", "2.9.1+cu130", "13.0", windows_guest()),
        "error: Do not install one inside WSL | where: windows",
        "a driver of Windows that is too old for every wheel",
    ),
    ("CUD004", torch_on("551.78", NOT_READ, "2.9.1+cu128", "12.8", windows_guest()), "passed", "by Windows's numbers"),
    (
        "CUD004",
        torch_on("551.78", NOT_READ, "2.9.1+cu130", "13.0", windows_guest()),
        "error: update the Windows driver to 580",
        "too new by Windows's numbers",
    ),
    ("CUD005", stubs(STUBS), f"warning: {STUBS}", "a folder that programs may find"),
    ("CUD005", stubs(STUBS, first_libcuda=f"{STUBS}/libcuda.so.1"), "error", "the stub comes first"),
    ("CUD005", stubs("/opt/stubs-of-mine"), "passed", "a folder that is only named alike"),
    ("CUD006", toolkit("12.8", **NO_TORCH), "passed", "a toolkit that knows the GPU"),
    ("CUD006", toolkit("11.8", **K80), "passed", "the last CUDA for Kepler"),
    ("CUD006", toolkit("12.0", **K80), "warning: Tesla K80", "the first without Kepler"),
    ("CUD006", toolkit("12.8", **BLACKWELL), "passed", "the first for Blackwell"),
    ("CUD006", toolkit("12.6", **BLACKWELL), "warning", "the last without Blackwell"),
    ("CUD006", toolkit("12.6", **TORCH_AND_BLACKWELL), "note", "torch includes its own CUDA"),
    ("CUD006", OLDER_IMAGE, "warning: 12.4", "an image for an older CUDA, by what it requires"),
    ("CUD007", toolkit("12.8.93"), "passed", "older than the driver's CUDA"),
    ("CUD007", toolkit("13.0.88"), "passed", "a patch of the driver's CUDA"),
    ("CUD007", toolkit("13.2.51"), "note: 13.2", "newer within the major"),
    ("CUD007", toolkit("14.0"), "warning: 14.0", "a newer major"),
    ("CUD008", toolkit("12.4"), "passed", "another minor"),
    ("CUD008", toolkit("13.0"), "note", "another major where nothing is built"),
    ("CUD008", toolkit("13.0", **DEEPSPEED), "warning: 13.0 | 12.8", "another major under DeepSpeed"),
    ("CUD008", toolkit("13.0", container=None, **DEEPSPEED), "note", "a host's own toolkit"),
    *(
        (code, facts, "skipped", name)
        for code in ("CUD006", "CUD007", "CUD008")
        for name, facts in WITHOUT_TOOLKIT.items()
    ),
    ("CUD009", images("amd64"), "passed", "this processor"),
    ("CUD009", images("x86_64"), "passed", "this processor as Podman names it"),
    ("CUD009", images("arm64"), "warning: linux/amd64", "another processor"),
    ("CUD009", images("amd64", **{"engine.machine": "aarch64"}), "warning: linux/arm64", "another than the engine's"),
    ("CUD009", images(""), "passed", "an image that does not say"),
    ("CUD009", images("arm64", is_dev_container=False), "passed", "another's image, emulated on purpose"),
    ("CUD009", images("arm64", is_dev_container=NOT_READ), "passed", "an image of unknown use"),
    ("CUD009", changed(healthy(), {"engine.images": NOT_READ}), "skipped", "images that were not listed"),
    ("CUD010", jetson("2.5.0a0+872d972e41.nv24.8", "12.6"), "passed", "NVIDIA's build"),
    ("CUD010", jetson("2.8.0", "12.6"), "passed", "a build of the Jetson community"),
    ("CUD010", jetson("2.9.1+cu126", "12.6"), f"error: {JETSON_INDEX}", "a build for servers on JetPack 6"),
    ("CUD010", jetson("2.9.1+cu126", "12.6", "35.4.1"), "error: never --index-url", "JetPack 5 has no known index"),
    ("CUD010", jetson("2.9.1+cpu", None), "error", "a CPU build"),
    ("CUD010", jetson("2.9.1+cu130", "13.0", "38.2"), "passed", "a build for servers on JetPack 7"),
    ("CUD010", jetson("2.9.1+cu126", "12.6", ""), "warning", "a release that the container hides"),
    ("CUD010", inside(), "skipped", "a board that was not looked for"),
    ("CUD010", changed(inside(), NO_JETSON), "skipped", "not a Jetson"),
    ("CUD010", changed(healthy(), NO_JETSON), "skipped", "a host that is no Jetson"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_what_stands_around_the_driver(code):
    assert list_wrong(code, CASES) == []


def test_a_toolkit_beside_a_healthy_torch_disturbs_nobody():
    assert build_full_report(toolkit("13.2.51")).root_causes == ()
