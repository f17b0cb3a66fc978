"""Tasks as the exporters get them, for tests that look at one of their outputs."""

from dataclasses import replace

from devkit.export.targets import ExportContext
from devkit.export.task import Accelerator, Task, Volume, VolumeRole
from devkit.export.values import GIB
from devkit.solver.plan import Vendor
from tests.render.plans import CPU_PLAN, GPU_PLAN
from tests.render.test_artifacts import PLAIN

PLANS = {
    Vendor.NVIDIA: GPU_PLAN,
    Vendor.ROCM: replace(GPU_PLAN, vendor=Vendor.ROCM, cuda=None, variant="rocm7.2"),
    Vendor.CPU: CPU_PLAN,
}


def context(vendor: Vendor = Vendor.NVIDIA) -> ExportContext:
    return ExportContext(PLANS[vendor], PLAIN)


def task(vendor: Vendor = Vendor.NVIDIA, **changed: object) -> Task:
    """A job of one node with two GPUs of the vendor, none for the CPU."""
    count = 0 if vendor is Vendor.CPU else 2
    made = Task(
        name="tune",
        project="tune",
        image="registry.example.org/ml/tune:1",
        command=("devkit", "finetune", "--output", "output"),
        environment=(("HF_TOKEN_PATH", "/home/dev/.config/huggingface/token"),),
        workspace="/workspaces/tune",
        output="/workspaces/tune/output",
        nodes=1,
        accelerator=Accelerator(vendor=vendor, name="", count=count, memory_bytes=0),
        cpus=16,
        memory_bytes=64 * GIB,
        shm_bytes=8 * GIB,
        volumes=tuple(
            Volume(role=role, path=f"/{role}", source=str(role), size_bytes=10 * GIB, because="requested")
            for role in VolumeRole
        ),
        time_s=86400,
        grace_s=120,
        is_spot=False,
        needs_token=True,
    )
    return replace(made, **changed)
