"""Checks of Python: packages, frameworks, and libraries that shadow others."""

from dataclasses import replace

import pytest

from devkit.doctor.wheels import find_compatible_wheel, format_wheel_install_command
from devkit.facts.machine import Copy, Library, Package, Torch
from devkit.facts.values import NOT_READ, Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import changed, gpu, inside, r, without_gpu
from tests.doctor.running import build_full_report, find_all

LINUX = "cp312-cp312-manylinux_2_28_x86_64"
WHO_KNOWS = Unknown("not read here")


def package(name, version, tag="py3-none-any", requires=()):
    return Package(name, version, tag, requires)


def with_packages(*packages, **changes):
    return changed(inside(), {"python.packages": packages, **changes})


# torch, and what it runs on.


def with_torch(version, cuda, **changes):
    return changed(inside(), {"python.torch": Torch(version, r(cuda) if cuda else None, None)} | changes)


def torch_on(version, cuda, name, capability):
    return with_torch(version, cuda, **{"nvml.gpus": (gpu(name=name, capability=capability),)})


def flash_attention(version):
    return with_packages(*inside().python.packages, Package("flash-attn", version, ""))


def seeing(value, *gpus):
    return changed(inside(), {"python.cuda_visible_devices": value, "nvml.gpus": gpus or (gpu(0), gpu(1))})


WITH_OLD_GPU = (gpu(0), gpu(1, "NVIDIA GeForce GTX 1080", "6.1"))
MIXED = with_torch("2.9.1+cu128", "12.8", **{"nvml.gpus": WITH_OLD_GPU})
CPU_BUILD = with_torch("2.9.1+cpu", None)
FITTING = format_wheel_install_command(CPU_BUILD, find_compatible_wheel(CPU_BUILD))
ON_ARM = with_torch("2.9.1", None, **{"system.machine": "aarch64"})
UNREAD_UUID = replace(gpu(0), uuid=Unknown("hidden"))


# Packages.


def pair(torch, numpy, **changes):
    return with_packages(package("torch", torch), package("numpy", numpy), **changes)


TORCH = package("torch", "2.9.1+cu128", LINUX, ('triton==3.5.1; platform_system == "Linux"',))


def beside_torch(*requires, name="peft", torch=TORCH):
    """A package that requires this, beside torch."""
    return with_packages(torch, package(name, "1", requires=requires))


def stack(transformers="5.0.0", bitsandbytes="0.49.2", accelerate="1.10.1", peft="0.18.0"):
    versions = {"transformers": transformers, "bitsandbytes": bitsandbytes, "accelerate": accelerate, "peft": peft}
    return with_packages(*(package(name, version) for name, version in versions.items() if version))


USERS = "/home/dev/.local/lib/python3.12/site-packages"
OWN = "/venv/lib/python3.12/site-packages"


def copies(*versions, user_site=""):
    found = tuple(Copy("torch", version, folder) for version, folder in zip(versions, (USERS, OWN), strict=False))
    return changed(inside(), {"python.copies": found, "python.user_site": user_site})


def libraries(glibc="2.36", stdcxx="6.0.30", tag=LINUX):
    library = Library("/usr/lib/libstdc++.so.6", r(stdcxx)) if isinstance(stdcxx, str) else stdcxx
    version = r(glibc) if isinstance(glibc, str) else glibc
    return with_packages(package("torch", "2.9.1+cu128", tag), **{"system.glibc": version, "python.libstdcxx": library})


LOWEST_COUNTS = "cp312-cp312-manylinux_2_17_x86_64.manylinux_2_28_x86_64"

# JAX and TensorFlow, by their package names and versions.


def frameworks(packages, *, driver="580.95.05", capability="8.9"):
    cuda = r("12.4" if driver < "58" else "13.0")
    changes = {"nvml.driver": r(driver), "nvml.cuda": cuda, "nvml.gpus": (gpu(capability=capability),)}
    return with_packages(*(Package(name, version, ()) for name, version in packages.items()), **changes)


JAX = {"jaxlib": "0.7.2", "jax-cuda12-plugin": "0.7.2"}
JAX_13 = {"jaxlib": "0.7.2", "jax-cuda13-plugin": "0.7.2"}
TENSORFLOW = {"tensorflow": "2.20.0"}

# bitsandbytes, and libraries that come before torch's.


def bitsandbytes(version, *shipped, override=None):
    libraries = {"python.bitsandbytes_cuda": shipped} if shipped else {}
    own = {"python.packages.0.version": version, "python.bnb_cuda_version": override}
    return changed(inside(), own | libraries)


def shadow(name, version, wheel="nvidia-nvjitlink-cu12", wheel_version="12.8.93"):
    path = f"/usr/local/cuda/lib64/{name}"
    shadowing = (Library(path, r(version) if version else WHO_KNOWS),)
    changes = {"python.shadowing": shadowing, "python.shadowing_libraries": (path,)}
    return with_packages(*((package(wheel, wheel_version),) if wheel else ()), **changes)


def cudnn(version, name="libcudnn.so.9"):
    return shadow(name, version, "nvidia-cudnn-cu12", "9.10.2.21")


def on_path(folder, library):
    return changed(
        inside(), {"python.ld_library_path": (folder,), "python.shadowing_libraries": (f"{folder}/{library}",)}
    )


def nvrtc(version, capability, name="nvidia-cuda-nvrtc-cu12"):
    return with_packages(package(name, version), **{"nvml.gpus": (gpu(name="a GPU", capability=capability),)})


def capable(capability):
    return changed(inside(), {"nvml.gpus": (gpu(capability=capability),)})


TWO_KINDS = (gpu(0), gpu(1, "NVIDIA GeForce GTX 1650", "7.5"))


def ordered(order, selected="0", gpus=TWO_KINDS):
    return changed(seeing(selected, *gpus), {"python.cuda_device_order": order})


NO_GPU_HERE = changed(without_gpu(), {"python.torch": Torch("2.9.1+cu128", r("12.8"), None)})
OF_GPUS = ("PYT005", "PYT011", "PYT012", "PYT013", "PYT014", "PYT016")

# A container that was started to try its GPU.


CASES = [
    ("PYT001", inside(), "passed", "a build for CUDA"),
    ("PYT001", CPU_BUILD, f"error: {FITTING}", "a CPU build is replaced by a wheel that fits"),
    ("PYT001", changed(CPU_BUILD, {"container": None}), "warning", "a CPU build on a host"),
    ("PYT001", ON_ARM, "error: aarch64", "on aarch64 the default index is named"),
    ("PYT002", torch_on("2.6.0+cu124", "12.4", "RTX 5090", "12.0"), "error: sm_120", "Blackwell before its wheels"),
    ("PYT002", torch_on("2.7.1+cu128", "12.8", "RTX 5090", "12.0"), "passed", "Blackwell in its first wheels"),
    ("PYT002", torch_on("2.10.0+cu128", "12.8", "V100", "7.0"), "passed", "Volta in its last cu128 wheel"),
    ("PYT002", torch_on("9.9.9+cu999", "99.9", "H100", "9.0"), "skipped", "a torch that no table knows"),
    ("PYT002", MIXED, "error: GPU 1", "every GPU is looked at, not only the first"),
    ("PYT003", bitsandbytes("0.49.2", "12.6", "12.8"), "passed", "the very version"),
    ("PYT003", bitsandbytes("0.49.2", "12.1", "12.6"), "warning: export BNB_CUDA_VERSION=126", "the same major"),
    ("PYT003", bitsandbytes("0.49.2", "11.8", "13.0"), "error", "other majors only"),
    ("PYT003", bitsandbytes("0.49.2", "12.1", "12.6", override="126"), "passed", "told another"),
    ("PYT003", bitsandbytes("0.50.0", "12.1", "12.6"), "passed", "newer releases find the nearest"),
    ("PYT004", flash_attention("2.8.3+cu12torch2.9cxx11abiTRUE"), "passed", "built for this torch"),
    ("PYT004", flash_attention("2.8.3+cu12torch2.8cxx11abiTRUE"), "error: 2.8", "built for the torch before"),
    ("PYT004", flash_attention("2.8.3+cu13torch2.9cxx11abiTRUE"), "error", "built for a different CUDA"),
    ("PYT004", flash_attention("2.8.3"), "skipped", "built here"),
    (
        "PYT005",
        on_path("/usr/local/cuda-12.1/lib64", "libnvJitLink.so.12"),
        "warning: /usr/local/cuda-12.1/lib64",
        "old",
    ),
    ("PYT005", on_path(f"{OWN}/nvidia/cublas/lib", "libcublas.so.12"), "passed", "a library of torch's own wheels"),
    ("PYT005", shadow("libnvJitLink.so.12", "12.1.105"), "warning: 12.1.105", "another release"),
    ("PYT005", shadow("libnvJitLink.so.12", "12.8.93"), "passed", "the very same release"),
    ("PYT005", shadow("libnvJitLink.so.12", ""), "warning", "a release that cannot be read"),
    (
        "PYT005",
        shadow("libcublasLt.so.12", "12.8.4.1", "nvidia-cublas-cu12", "12.8.4.1"),
        "passed",
        "of the same wheel",
    ),
    ("PYT005", shadow("libnvJitLink.so.13", "13.0.88", "nvidia-nvjitlink", "13.0.88"), "passed", "CUDA 13: no suffix"),
    ("PYT005", shadow("libcudnn.so.9", "9.1.0"), "passed", "cuDNN has a check of its own"),
    ("PYT011", cudnn("9.1.0", "libcudnn_cnn.so.9"), "warning: 9.1.0 | 9.10.2", "another cuDNN"),
    ("PYT011", cudnn("9.10.2"), "passed", "the same cuDNN"),
    ("PYT011", shadow("libcudnn.so.9", "9.1.0", wheel=""), "skipped", "a cuDNN without a rival"),
    ("PYT011", cudnn("12.8.90", "libcudart.so.12"), "passed", "other libraries are not cuDNN"),
    ("PYT006", seeing("0"), "passed", "the first"),
    ("PYT006", seeing("0,1"), "passed", "both"),
    ("PYT006", seeing("0,2"), "warning", "one that does not exist, last"),
    ("PYT006", seeing("2,0"), "error: 2", "one that does not exist, first"),
    ("PYT006", seeing(""), "warning", "empty"),
    ("PYT006", seeing("-1"), "warning", "hidden on purpose"),
    ("PYT006", seeing("GPU-00000001"), "passed", "the start of a UUID"),
    ("PYT006", seeing("GPU-ffffffff"), "error", "a UUID of another machine"),
    ("PYT006", seeing("MIG-7"), "error", "a MIG instance that is gone"),
    ("PYT006", seeing("GPU-1234", UNREAD_UUID), "passed", "any UUID, where the GPU's is hidden"),
    ("PYT006", seeing("MIG-1234", UNREAD_UUID), "passed", "any MIG UUID, where the GPU's is hidden"),
    ("PYT006", seeing("nonsense", UNREAD_UUID), "error", "no UUID, where the GPU's is hidden"),
    ("PYT007", with_packages(TORCH, package("triton", "3.5.1")), "passed", "the very version that torch pins"),
    (
        "PYT007",
        with_packages(TORCH, package("triton", "3.4.0")),
        "warning: 3.5.1 | 3.4.0",
        "another version than pinned",
    ),
    ("PYT007", with_packages(TORCH), "passed", "a package that is missing altogether is pip's own story"),
    ("PYT007", beside_torch("torch==2.9.1"), "passed", "a local label"),
    ("PYT007", beside_torch("torch==2.9.1+cu128"), "passed", "a pinned local label"),
    ("PYT007", beside_torch("torch==2.8.0", name="torchvision"), "warning: torchvision", "left behind"),
    ("PYT007", beside_torch("torch>=2.9", torch=package("torch", "2.9.0a0+git1")), "passed", "a vendor's pre-release"),
    ("PYT007", beside_torch('torch<2; sys_platform == "win32"'), "passed", "another system"),
    ("PYT007", beside_torch("torch<<2"), "passed", "a requirement nobody can read"),
    ("PYT007", beside_torch('torch<2; odd == "x"'), "passed", "an odd marker"),
    ("PYT007", beside_torch("torch<2", torch=package("torch", "no version")), "passed", "an unreadable version"),
    ("PYT007", with_packages(TORCH, package("peft", "1", requires=NOT_READ)), "passed", "requirements not read"),
    ("PYT007", pair("2.2.2+cu121", "2.0.0"), "warning: pip install 'numpy<2'", "NumPy 2 is put back, not torch"),
    (
        "PYT007",
        pair("2.2.2+cu121", "2.1.3", **{"python.installer": "uv"}),
        "warning: uv pip install 'numpy<2'",
        "by uv",
    ),
    ("PYT007", pair("2.2.2+cu121", "1.26.4"), "passed", "NumPy 1, torch 2.2"),
    ("PYT007", pair("2.3.0+cu121", "2.0.0"), "passed", "NumPy 2, torch 2.3"),
    ("PYT007", with_packages(), "skipped", "nothing installed"),
    ("PYT008", stack(), "passed", "everything new enough"),
    ("PYT008", stack(bitsandbytes="0.46.1"), "passed", "bitsandbytes at the floor"),
    ("PYT008", stack(bitsandbytes="0.46.0"), "warning: bitsandbytes | 0.46.1", "bitsandbytes below the floor"),
    ("PYT008", stack(accelerate=""), "warning: accelerate", "no accelerate"),
    ("PYT008", stack(accelerate="1.1.0"), "passed", "accelerate at the floor"),
    ("PYT008", stack(peft=""), "passed", "no peft: only adapters need it"),
    ("PYT008", stack(peft="0.17.1"), "warning: peft", "an old peft"),
    ("PYT008", stack("4.57.6", accelerate="0.26.0", peft="0.5.0"), "passed", "the floors of transformers 4"),
    ("PYT008", stack("4.57.6", accelerate="0.25.0"), "warning: accelerate", "below the floor of transformers 4"),
    ("PYT008", stack("5.24.0", peft="0.19.0"), "warning: peft", "the newest floor at or below the release"),
    ("PYT008", stack(bitsandbytes=""), "skipped", "no bitsandbytes, no quantized models"),
    ("PYT008", stack(transformers=""), "skipped", "no transformers"),
    ("PYT008", stack("4.40.0"), "skipped", "older than the tables"),
    ("PYT008", stack("6.0.0"), "skipped", "a major that the tables do not know"),
    ("PYT009", copies(), "passed", "none"),
    ("PYT009", copies("2.9.1", "2.9.1"), "passed", "the same version"),
    ("PYT009", copies("2.9.1", "2.8.0"), "warning: pip uninstall -y torch", "another copy is removed"),
    (
        "PYT009",
        copies("2.9.1", "2.8.0", user_site=USERS),
        "warning: export PYTHONNOUSERSITE=1",
        "the user's own folder",
    ),
    ("PYT009", changed(inside(), {"python.copies": WHO_KNOWS}), "skipped", "not read"),
    ("PYT010", libraries(), "passed", "both newer"),
    ("PYT010", libraries(glibc="2.28"), "passed", "glibc at the tag"),
    ("PYT010", libraries(glibc="2.27"), "error: 2.28 | 2.27", "glibc below the tag"),
    ("PYT010", libraries(stdcxx="6.0.24"), "passed", "libstdc++ at the policy"),
    ("PYT010", libraries(stdcxx="6.0.22"), "warning", "libstdc++ below the policy"),
    ("PYT010", libraries(stdcxx=None), "passed", "no libstdc++ found"),
    ("PYT010", libraries(stdcxx=WHO_KNOWS), "passed", "libstdc++ not read"),
    ("PYT010", libraries(stdcxx=Library("/l", WHO_KNOWS)), "passed", "libstdc++ without a version"),
    ("PYT010", libraries(glibc=WHO_KNOWS), "passed", "glibc not read"),
    ("PYT010", libraries(glibc="2.27", tag=LOWEST_COUNTS), "passed", "the lowest platform of a tag counts"),
    ("PYT010", libraries(tag="py3-none-any"), "skipped", "wheels without a platform say nothing"),
    ("PYT012", nvrtc("12.8.93", "12.0"), "passed", "the first that knows Blackwell"),
    ("PYT012", nvrtc("12.6.77", "12.0"), "warning: 12.6", "the last that does not"),
    ("PYT012", nvrtc("13.0.88", "7.0", "nvidia-cuda-nvrtc"), "warning", "CUDA 13 dropped Volta"),
    ("PYT012", nvrtc("12.9.86", "7.0"), "passed", "CUDA 12.9 still has it"),
    ("PYT012", nvrtc("12.6.77", "99.0"), "passed", "a GPU that the tables do not know"),
    ("PYT012", inside(), "skipped", "no NVRTC"),
    ("PYT013", capable("8.0"), "passed", "Ampere has bfloat16"),
    ("PYT013", capable("7.5"), "note", "Turing has not"),
    ("PYT014", capable("7.5"), "passed", "Turing multiplies 8-bit integers"),
    ("PYT014", capable("7.0"), "note", "Volta does not"),
    ("PYT015", ordered(None), "note: PCI_BUS_ID", "two kinds by number"),
    ("PYT015", ordered("PCI_BUS_ID"), "passed", "in the order of nvidia-smi"),
    ("PYT015", ordered(WHO_KNOWS), "skipped", "an order that was not read"),
    ("PYT015", ordered(None, "GPU-00000000"), "skipped", "by UUID"),
    ("PYT015", ordered(None, None), "skipped", "nothing selected"),
    ("PYT015", ordered(None, "1", (gpu(0), gpu(1))), "skipped", "one kind"),
    ("PYT016", bitsandbytes("0.50.2", override=None), "skipped", "unset"),
    ("PYT016", bitsandbytes("0.50.2", override="128"), "passed", "torch's own"),
    ("PYT016", bitsandbytes("0.50.2", override="126"), "passed", "another of the major that is there"),
    ("PYT016", bitsandbytes("0.50.2", override="124"), "error: 124", "of the major, but not in the package"),
    ("PYT016", bitsandbytes("0.50.2", override="118"), "error", "of another major"),
    ("PYT016", bitsandbytes("0.49.2", override=""), "skipped", "empty counts as unset to older releases"),
    ("PYT016", bitsandbytes("0.50.2", override=""), "error", "empty is refused by newer releases"),
    ("PYT016", bitsandbytes("0.50.2", override="12.8"), "error", "with a dot"),
    ("PYT016", bitsandbytes("0.50.2", override=WHO_KNOWS), "skipped", "not read"),
    *((code, NO_GPU_HERE, "skipped", "a laptop without GPU hears nothing of GPUs") for code in OF_GPUS),
    ("PYT025", frameworks(JAX), "passed", "JAX with its plugin"),
    ("PYT025", frameworks(JAX | {"jaxlib": "0.7.1"}), "warning: 0.7.1 | 0.7.2", "a plugin of another release"),
    ("PYT025", frameworks({"jaxlib": "0.7.2"}), "warning", "no plugin"),
    (
        "PYT025",
        frameworks({"jaxlib": "0.7.2"}, driver="550.54.15"),
        "warning: pip install --upgrade 'jax[cuda12]==0.7.2'",
        "no plugin on an older driver",
    ),
    ("PYT025", frameworks({"jaxlib": "0.4.30+cuda12.cudnn89"}), "skipped", "a build with CUDA in it"),
    ("PYT025", frameworks(JAX_13, driver="550.54.15"), "error", "CUDA 13 on 550"),
    ("PYT025", frameworks(JAX, driver="550.54.15"), "passed", "CUDA 12 on 550"),
    ("PYT025", frameworks(JAX_13, capability="7.0"), "error: pip install --upgrade 'jax[cuda12]'", "CUDA 13 on V100"),
    ("PYT025", frameworks(TENSORFLOW), "passed", "TensorFlow on Ada"),
    (
        "PYT025",
        frameworks(TENSORFLOW, capability="12.0"),
        "error: it has no code for compute capability 12.0 | never pip install",
        "TensorFlow on RTX 50: no build is promised",
    ),
    ("PYT025", frameworks({"tensorflow": "2.17.0+nv25.1"}, capability="12.0"), "skipped", "NVIDIA's own build"),
    ("PYT025", frameworks({"tensorflow": "2.17.0"}, capability="5.0"), "error", "TensorFlow 2.17 on Maxwell"),
    ("PYT025", frameworks({"tensorflow": "2.3.0"}), "skipped", "a release that the tables do not know"),
    ("PYT025", frameworks({"numpy": "2.4.0"}), "skipped", "neither"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_environment(code):
    assert list_wrong(code, CASES) == []


def test_the_advised_wheel_runs_on_the_oldest_gpu():
    assert find_compatible_wheel(MIXED).label == "cu126"


def test_each_old_gpu_is_named():
    gpus = (gpu(0, capability="7.0"), gpu(1, capability="8.0"), gpu(2, capability="6.1"))
    findings = find_all("PYT013", changed(inside(), {"nvml.gpus": gpus}))
    assert [finding.subject for finding in findings] == ["GPU 0", "GPU 2"]


def test_missing_kernels_silence_what_is_built_on_torch():
    changes = {
        "driver.pci_gpus.0.device_id": "0x2b85",
        "container.c_compiler": "",
        "python.packages.0.version": "0.49.2",
    }
    report = build_full_report(changed(torch_on("2.6.0+cu124", "12.4", "NVIDIA GeForce RTX 5090", "12.0"), changes))
    assert report.root_causes == ("PYT002",)
    assert {shown.check.code for shown in report.following("PYT002")} == {"PYT003", "CON004"}
