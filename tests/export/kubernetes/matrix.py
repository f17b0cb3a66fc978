"""Jobs of every kind, on every vendor's GPUs, with every option at least once: what the validators look at."""

from dataclasses import replace

import pytest

from devkit.export.kubernetes.settings import AccessMode, JobKind
from devkit.export.task import Task
from devkit.solver.plan import Vendor

from .sample_jobs import task

FULL = {
    "namespace": "ml-team",
    "queue": "team-queue",
    "node_selector": ("nvidia.com/gpu.product=NVIDIA-A10G",),
    "toleration": ("spot=true:NoSchedule", "dedicated"),
    "storage_class": "fast-rwx",
    "access_mode": AccessMode.MANY_NODES,
    "pull_secret": "registry",
    "service_account": "trainer",
}
OPTIONS = {
    "as it comes": {},
    "everything asked for": FULL,
    "its own storage": {"storage_class": "gp3"},
    "a priority and networks": {"priority_class": "high", "rdma": ("rdma/hca",), "host_network": True},
}


def new_storage(made: Task) -> Task:
    return replace(made, volumes=tuple(replace(volume, source="") for volume in made.volumes))


def jobs() -> dict[str, tuple[Task, dict[str, object]]]:
    """Task and options by a name that reads as a sentence."""
    found = {}
    for kind in JobKind:
        for nodes in (1, 3):
            for name, options in OPTIONS.items():
                made = task(nodes=nodes, is_spot=name == "everything asked for")
                if name == "its own storage":
                    made = new_storage(made)
                found[f"a {kind} of {nodes}, {name}"] = (made, options | {"kind": kind})
        for vendor in (Vendor.ROCM, Vendor.CPU):
            found[f"a {kind} on {vendor}"] = (task(vendor, nodes=2, is_spot=True), {"kind": kind, "gpu_group": 109})
        alone = task()
        alone = replace(alone, accelerator=replace(alone.accelerator, count=1))
        found[f"a {kind} on one MIG instance"] = (alone, {"kind": kind, "gpu_resource": "nvidia.com/mig-1g.10gb"})
    return found


JOBS = jobs()
every_job = pytest.mark.parametrize(
    ("made_task", "options"), [pytest.param(*case, id=name) for name, case in JOBS.items()]
)
every_kinds_jobs = pytest.mark.parametrize(
    "jobs",
    [pytest.param({name: JOBS[name] for name in JOBS if str(kind) in name.split()}, id=str(kind)) for kind in JobKind],
)
