"""Tasks as the exporters get them, for tests that look at one of their outputs."""

from dataclasses import replace

import pytest

from devkit.export.kubernetes.settings import JobKind
from devkit.export.task import Task, Volume, VolumeRole
from devkit.export.values import GIB
from devkit.solver.plan import Vendor
from tests.export.launchers.tasks import ONE, gpus

TUNE = replace(
    ONE,
    name="tune",
    project="tune",
    image="registry.example.org/ml/tune:1",
    command=("devkit", "finetune", "--output", "output"),
    workspace="/workspaces/tune",
    output="/workspaces/tune/output",
    cpus=16,
    memory_bytes=64 * GIB,
    volumes=tuple(
        Volume(role=role, path=f"/{role}", source=str(role), size_bytes=10 * GIB, because="requested")
        for role in VolumeRole
    ),
)
every_kind = pytest.mark.parametrize("kind", [pytest.param(kind, id=str(kind)) for kind in JobKind])


def task(vendor: Vendor = Vendor.NVIDIA, **changed: object) -> Task:
    """A job of one node with two GPUs of the vendor, none for the CPU."""
    return replace(TUNE, accelerator=gpus(0 if vendor is Vendor.CPU else 2, "", vendor), **changed)
