"""What stands around the driver: stubs, a CUDA Toolkit, images of another processor, a Jetson."""

import pytest

from devkit.facts.model import CudaFolder, LocalImage, Package, Tegra, Torch
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import changed, gpu, healthy, inside, r, without_gpu
from tests.doctor.running import build_full_report

STUBS = "/usr/local/cuda/lib64/stubs"
NOT_READ = Unknown("not read here")


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
    ("CUD005", stubs(), "passed", "neither"),
    ("CUD005", stubs(STUBS), f"warning: {STUBS}", "a folder that programs may find"),
    ("CUD005", stubs(STUBS, first_libcuda=f"{STUBS}/libcuda.so.1"), "error", "the stub comes first"),
    ("CUD005", stubs("/opt/stubs-of-mine"), "passed", "a folder that is only named alike"),
    ("CUD006", toolkit("12.8", **NO_TORCH), "passed", "a toolkit that knows the GPU"),
    ("CUD006", toolkit("11.8", **K80), "passed", "the last CUDA for Kepler"),
    ("CUD006", toolkit("12.0", **K80), "warning: Tesla K80", "the first without Kepler"),
    ("CUD006", toolkit("12.8", **BLACKWELL), "passed", "the first for Blackwell"),
    ("CUD006", toolkit("12.6", **BLACKWELL), "warning", "the last without Blackwell"),
    ("CUD006", toolkit("12.6", **TORCH_AND_BLACKWELL), "note", "torch brings its own CUDA"),
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
    ("CUD010", changed(inside(), NO_JETSON), "skipped", "no Jetson"),
    ("CUD010", changed(healthy(), NO_JETSON), "skipped", "a host that is no Jetson"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_what_stands_around_the_driver(code):
    assert list_wrong(code, CASES) == []


def test_a_toolkit_beside_a_healthy_torch_disturbs_nobody():
    assert build_full_report(toolkit("13.2.51")).root_causes == ()
