"""Requests from flags, and flags that make none."""

import pytest

from devkit.errors import DevkitError
from devkit.solver.plan import Vendor
from devkit.solver.request import build_machine_from_flags, build_request, parse_torch
from tests.cases import cases

HERE = (build_machine_from_flags(),)


@pytest.mark.parametrize(
    ("requested", "says"),
    [
        pytest.param({"torch": "abc"}, "--torch 'abc' is not a version", id="torch in words"),
        pytest.param({"torch": "2"}, "is not a version", id="a torch major alone"),
        pytest.param({"torch": "2.14+rocm6"}, "is not a version", id="a ROCm major alone"),
        pytest.param({"torch": "2.14+xpu"}, "is not a version", id="a variant that is not planned for"),
        pytest.param({"pins": ("torch==x",)}, "--torch 'x' is not a version", id="torch pinned to a word"),
        pytest.param({"cuda": "cu130"}, "--cuda 'cu130' is not a version", id="a label for a CUDA version"),
        pytest.param({"python": "python3"}, "--python 'python3' is not a version", id="a program for a Python"),
        pytest.param({"cuda": "12.7"}, "--cuda 12.7: no such version", id="a CUDA that was never released"),
        pytest.param({"python": "2.7"}, "--python 2.7: no such version", id="a Python before any wheel"),
        pytest.param({"pins": ("transformers>=5",)}, "does not have the form NAME==VERSION", id="a range for a pin"),
        pytest.param({"pins": ("a==1\nRUN evil",)}, "does not have the form NAME==VERSION", id="a pin with more lines"),
        pytest.param({"image": "x y"}, "is not an image reference", id="an image with a space"),
        pytest.param({"image": "a\nRUN b"}, "is not an image reference", id="an image with more lines"),
        pytest.param({"features": ("telepathy",)}, "unknown feature 'telepathy'", id="an unknown feature"),
        pytest.param({"vendor": "cpu", "cuda": "13.0"}, "does not apply to a CPU plan", id="CUDA on the CPU"),
        pytest.param({"vendor": "cpu", "torch": "2.14+cu126"}, "be used together", id="a CUDA build on the CPU"),
        pytest.param({"vendor": "nvidia", "torch": "2.14+cpu"}, "be used together", id="a CPU build on the GPU"),
        pytest.param({"vendor": "rocm", "torch": "2.14+cu126"}, "be used together", id="a CUDA build under ROCm"),
        pytest.param({"vendor": "nvidia", "torch": "2.14+rocm7.14"}, "be used together", id="ROCm under NVIDIA"),
        pytest.param({"vendor": "rocm", "cuda": "13.0"}, "does not apply to a ROCm plan", id="CUDA under ROCm"),
        pytest.param({"vendor": "rocm", "features": ("nvcc",)}, "requests CUDA's compiler", id="nvcc under ROCm"),
    ],
)
def test_refused(requested, says):
    with pytest.raises(DevkitError) as raised:
        build_request(machines=HERE, **requested)
    assert says in raised.value.message
    assert raised.value.hint


def test_taken():
    request = build_request(
        machines=HERE, vendor="auto", python="3.12.4", pins=("Hugging.Face_hub==2.4.0", "torch==2.14.1"), cuda="13"
    )
    assert (request.vendor, request.python, request.torch, request.cuda) == (None, "3.12", "2.14.1", "13")
    assert request.pins == (("hugging-face-hub", "2.4.0"),)
    assert build_request(machines=HERE, vendor="nvidia").vendor is Vendor.NVIDIA


@pytest.mark.parametrize(
    ("text", "parts"),
    [("2.14", ("2.14", "")), ("2.14.1+cu126", ("2.14.1", "cu126")), ("2.14+cpu", ("2.14", "cpu")), (None, ("", ""))],
)
def test_parse_torch(text, parts):
    assert parse_torch(text) == parts


@cases(
    "flags, machine, notes",
    {
        "a Jetson is Arm": ({"gpus": ("Jetson Orin Nano",)}, "aarch64", 0),
        "so is a Grace superchip": ({"gpus": ("GB200",)}, "aarch64", 0),
        "a GPU for both": ({"gpus": ("H100",)}, "x86_64", 0),
        "what the user says stands, with a warning": ({"gpus": ("GB200",), "machine": "x86_64"}, "x86_64", 1),
        "and needs none where it is right": ({"gpus": ("GB200",), "machine": "aarch64"}, "aarch64", 0),
    },
)
def test_a_gpu_that_is_sold_with_one_processor_says_which(flags, machine, notes):
    found = build_machine_from_flags(**flags)
    assert (found.machine, len(found.notes)) == (machine, notes)


@cases(
    "machine, requested, says",
    {
        "ROCm on an NVIDIA driver": ({"driver": "580.95.05"}, {"vendor": "rocm"}, "driver 580.95.05"),
        "ROCm on an NVIDIA GPU": ({"gpus": ("RTX 4090",)}, {"vendor": "rocm"}, "GeForce RTX 4090"),
        "GPUs of both makers": ({"gpus": ("MI300X", "H100")}, {}, "serves AMD GPUs"),
        "AMD on NVIDIA's driver": ({"gpus": ("MI300X",), "driver": "580.95.05"}, {}, "serves AMD GPUs"),
        "CUDA on AMD": ({"gpus": ("MI300X",)}, {"vendor": "nvidia"}, "does not serve AMD Instinct MI300X"),
    },
)
def test_a_plan_is_for_the_gpus_of_one_maker(machine, requested, says):
    with pytest.raises(DevkitError) as raised:
        build_request(machines=(build_machine_from_flags(**machine),), **requested)
    assert says in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    ("alias", "name"), [("4-bit", "nf4"), ("QLoRA", "nf4"), ("8-bit", "llm-int8"), ("flash-attn", "flash-attention-2")]
)
def test_features_have_the_names_that_people_use(alias, name):
    assert build_request(machines=HERE, features=(alias, name)).features == (name,)


def test_graphics_needs_no_torch_and_brings_the_loaders():
    found = build_request(machines=HERE, features=("vulkan",), apt=("libgl1", "libglu1-mesa"))
    assert found.features == ("graphics",)
    assert {"libvulkan1", "libegl1"} < set(found.apt)
    assert (found.apt.count("libgl1"), found.apt[-1]) == (1, "libglu1-mesa")
