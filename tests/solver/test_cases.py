"""Reports that speak of one rule alone; verdicts.toml holds those that speak of a machine and a request."""

import pytest

from devkit.compat.gpus import has_forward_compatibility
from devkit.compat.rules import CodeSupport, check_gpu_code, find_forward_package
from devkit.facts.values import ComputeCapability, Release

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
    package = find_forward_package(Release.parse(driver), Release.parse(cuda))
    assert (package is not None and has_forward_compatibility(gpu)) is works


def test_hc36_code_for_another_gpu_of_the_family_pytorch_fbgemm_issues_6151():
    assert check_gpu_code(ComputeCapability(10, 3), ["8.0", "9.0a", "10.0a"]) is CodeSupport.NONE
