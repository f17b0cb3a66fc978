"""Hand-made plans, so that these tests do not move when the version tables do: no base image here is a row of them."""

from dataclasses import replace

from devkit.solver.plan import Plan, Reason, Vendor


def reason(field: str, value: str, because: str) -> Reason:
    return Reason(field, value, because, "https://example.org", "confirmed")


GPU_PLAN = Plan(
    vendor=Vendor.NVIDIA,
    base_image="python:3.12.9-slim-bookworm",
    python="3.12",
    torch="2.13.0",
    variant="cu130",
    cuda="13.0",
    torch_index="https://download.pytorch.org/whl/cu130",
    packages=(("torch", "2.13.0"), ("transformers", "5.23.0"), ("peft", "0.21.2")),
    gpu_request="all",
    architectures=("sm_89",),
    reasons=(
        reason("base_image", "python:3.12.9-slim-bookworm", "torch's wheels carry CUDA, so a slim image is enough"),
        reason("python", "3.12", "every package of this plan has wheels for it"),
        reason("torch", "2.13.0", "the newest with kernels for every GPU of the plan"),
        reason("torch_index", "cu130", "driver 580.95.05 runs CUDA 13.0"),
        reason("peft", "0.21.2", "the newest that fits"),
    ),
    warnings=(),
    data_as_of="2026-11-21",
)

CPU_PLAN = replace(
    GPU_PLAN,
    vendor=Vendor.CPU,
    base_image="python:3.11.9-slim-bookworm",
    python="3.11",
    variant="cpu",
    cuda=None,
    torch_index="https://download.pytorch.org/whl/cpu",
    gpu_request="none",
    architectures=(),
)

UBUNTU_PLAN = replace(GPU_PLAN, base_image="ubuntu:24.04")

ARM_PLAN = replace(GPU_PLAN, architectures=("x86_64", "aarch64"))

ROCM_PLAN = replace(
    GPU_PLAN,
    vendor=Vendor.ROCM,
    variant="rocm7.1",
    cuda=None,
    torch_index="https://download.pytorch.org/whl/rocm7.1",
    architectures=("x86_64",),
)
