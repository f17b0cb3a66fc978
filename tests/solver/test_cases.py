"""Failures and successes that people reported, each with the verdict they met. The ids end with the report."""

import pytest

from devkit.compat.gpus import offers_forward_compatibility
from devkit.compat.rules import CodeSupport, forward_package, has_kernels
from devkit.facts.values import ComputeCapability, Release
from devkit.solver.model import Conflict, Plan

RTX_5090, V100, P40 = "RTX 5090", "V100", "Tesla P40"

TORCH = [
    ("hc09", "570.124.06", RTX_5090, "2.6.0+cu124", "A1", "pytorch/pytorch/issues/167244"),
    ("hc10", "590.48.01", RTX_5090, "2.5.1+cu121", "A5", "HybridRobotics/berkeley-humanoid-lite/issues/49"),
    ("hc11", "570.124.06", RTX_5090, "2.1.2+cu118", "A5", "pBFSLab/DeepPrep/issues/233"),
    ("hc12", "570.124.06", RTX_5090, "2.7.0+cu128", "ok", "Hellod035/LeggedLab/issues/26"),
    ("hc13", "570.124.06", "GTX 1080 Ti", "2.7.1+cu128", "A1", "astral-sh/uv/issues/14742"),
    ("hc14", "580.95.05", V100, "2.11.0+cu130", "A1", "unslothai/unsloth/pull/5876"),
    ("hc15", "580.95.05", V100, "2.10.0+cu128", "ok", "unslothai/unsloth/pull/5876"),
    ("hc16", "580.95.05", V100, "2.11.0+cu128", "A1", "pytorch/pytorch/issues/172352"),
    ("hc17", "580.95.05", "GTX 1060 6GB", "2.14.0+cu130", "A1", "hvoss-tech/AutoForge/pull/59"),
    ("hc18", "580.95.05", "GTX 1060 6GB", "2.14.0+cu126", "ok", "hvoss-tech/AutoForge/pull/59"),
    ("hc19", "580.95.05", P40, "2.15.0+cu126", "W2", "pytorch/pytorch/issues/190385"),
    ("hc20", "580.95.05", "P100", "2.12.1+cu130", "A1", "Differentiable-Electron-Crystallography/diffBloch/issues/144"),
    ("hc21", "570.124.06", "GTX 1080", "2.8.0+cu128", "A1", "jhj0517/Whisper-WebUI/issues/653"),
    ("hc22", "570.133.07", "8.6", "2.9.0+cu130", "R4", "pytorch/pytorch/pull/162531"),
    ("hc23", "550.90.07", "9.0", "2.9.0+cu130", "R4", "sgl-project/sglang/issues/11395"),
    ("hc24", "470.86", "RTX 3050 Laptop", "2.1.0+cu121", "R4", "lllyasviel/Fooocus/issues/1313"),
    ("hc25", "470.86", "RTX 3050 Laptop", "2.1.0+cu118", "minor", "lllyasviel/Fooocus/issues/1313"),
]


@pytest.mark.parametrize(
    ("driver", "gpu", "torch", "verdict"),
    [pytest.param(*case[1:5], id=f"{case[0]}: torch {case[3]} on {case[2]}, {case[5]}") for case in TORCH],
)
def test_torch_on_a_gpu(ask, driver, gpu, torch, verdict):
    answer = ask(driver=driver, gpus=(gpu,), torch=torch)
    if verdict in ("ok", "minor"):
        assert isinstance(answer, Plan), answer
        assert f"{answer.torch}+{answer.variant}" == torch
        assert any("minor version compatibility" in warning for warning in answer.warnings) is (verdict == "minor")
    else:
        assert isinstance(answer, Conflict)
        assert answer.blockers[0].rule == verdict
        assert answer.nearest is not None


IMAGES = [
    ("hc01", "550.144.03", "linux", "8.6", "12.8.1-base-ubuntu22.04", "I2", "theroyallab/tabbyAPI/issues/324"),
    ("hc02", "535.247.01", "linux", "8.6", "12.8.1-base-ubuntu22.04", "I2", "MauriceNino/dashdot/issues/1226"),
    ("hc03", "551.78", "wsl2", "8.6", "12.8.1-base-ubuntu22.04", "I2", "SyneRBI/PETRIC2/issues/27"),
    ("hc04", "525.147.05", "linux", "8.6", "12.5.0-base-ubuntu22.04", "I2", "lightgbm-org/LightGBM/pull/6539"),
    ("hc05", "535.183.01", "linux", "A100", "12.5.0-base-ubuntu22.04", "ok", "lightgbm-org/LightGBM/pull/6539"),
    ("hc06", "550.142", "linux", "8.6", "12.6.0-base-ubuntu22.04", "I2", "ggml-org/llama.cpp/issues/9665"),
    ("hc08", "515.86.01", "linux", "8.6", "11.0-base-ubuntu20.04", "I1", "NVIDIA/nvidia-docker/issues/1735"),
]


@pytest.mark.parametrize(
    ("driver", "platform", "gpu", "tag", "verdict"),
    [pytest.param(*case[1:6], id=f"{case[0]}: {case[4]} on driver {case[1]}, {case[6]}") for case in IMAGES],
)
def test_image_on_a_driver(ask, driver, platform, gpu, tag, verdict):
    answer = ask(driver=driver, platform=platform, gpus=(gpu,), image=f"nvidia/cuda:{tag}")
    if verdict == "ok":
        assert isinstance(answer, Plan), answer
    else:
        assert answer.blockers[0].rule == verdict


FORWARD = [
    ("hc30", "525.147.05", "RTX 3060", "12.1", False, "mistralai/mistral-inference/issues/144"),
    ("hc31", "525.147.05", "RTX 3090", "12.1", False, "AIR-DISCOVER/ICRA2024-Sim2Real-AXS/issues/5"),
    ("hc32", "460.80", "GTX 1650", "11.3", False, "DeepVAC/TorchPod/issues/43"),
    ("hc33", "535.183.01", "H100", "13.0", True, "NVIDIA-NeMo/labs-molt/pull/44"),
    ("hc34", "595.58.03", "H100", "13.0", False, "NVIDIA-NeMo/labs-molt/pull/44"),
]


@pytest.mark.parametrize(
    ("driver", "gpu", "cuda", "works"),
    [pytest.param(*case[1:5], id=f"{case[0]}: cuda-compat {case[3]} on {case[2]}, {case[5]}") for case in FORWARD],
)
def test_forward_compatibility(driver, gpu, cuda, works):
    package = forward_package(Release.read(driver), Release.read(cuda))
    assert (package is not None and offers_forward_compatibility(gpu)) is works


@pytest.mark.parametrize(
    ("gpu", "torch"),
    [
        pytest.param("GB10", "2.13.0+cu130", id="hc35: GB10, pytorch/pytorch/issues/172629"),
        pytest.param("Jetson AGX Orin", "2.11.0+cu130", id="hc37: Orin, nvidia-holoscan/holohub/pull/1687"),
    ],
)
def test_torch_on_aarch64(ask, gpu, torch):
    assert isinstance(ask(driver="580.95.05", gpus=(gpu,), machine="aarch64", torch=torch), Plan)


def test_hc36_code_for_another_gpu_of_the_family_pytorch_fbgemm_issues_6151():
    assert has_kernels(ComputeCapability(10, 3), ["8.0", "9.0a", "10.0a"]) is CodeSupport.NONE


def test_hc38_flash_attention_2_on_a_t4_flash_attention_issues_762(ask):
    answer = ask(driver="550.54.15", gpus=("T4",), features=("flash-attention-2",))
    assert answer.blockers[0].rule == "F1"


def test_hc39_bitsandbytes_without_a_library_bitsandbytes_issues_1688(ask):
    answer = ask(driver="575.57.08", gpus=("8.6",), torch="2.8.0+cu129", pins=("bitsandbytes==0.46.0",))
    assert answer.blockers[0].rule == "B1"
    assert isinstance(ask(driver="575.57.08", gpus=("8.6",), torch="2.8.0+cu129", pins=("bitsandbytes==0.46.1",)), Plan)


def test_hc40_a_c_library_too_old_pytorch_issues_156215(ask):
    answer = ask(driver="535.183.01", gpus=("8.6",), glibc="2.27", torch="2.7.0+cu118")
    assert answer.blockers[0].rule == "W6"
    assert isinstance(ask(driver="535.183.01", gpus=("8.6",), glibc="2.28", torch="2.7.0+cu118"), Plan)
