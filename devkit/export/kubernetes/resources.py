"""Resources of a pod: GPUs by resource or MIG resource; memory and cores; tolerations."""

import re
from typing import Any

from devkit.errors import DevkitError
from devkit.export.kubernetes.manifest import Commented, Manifest
from devkit.export.kubernetes.settings import KubernetesSettings, parse_rdma_devices, parse_tolerations
from devkit.export.task import REQUESTED, Task
from devkit.solver.plan import Vendor

GPU_RESOURCES = {Vendor.NVIDIA: "nvidia.com/gpu", Vendor.ROCM: "amd.com/gpu"}
"""The resources of the vendors' device plugins.
Sources: https://github.com/NVIDIA/k8s-device-plugin, https://github.com/ROCm/k8s-device-plugin"""
SPOT_TAINTS = ("cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority", "spot")
"""Taints of spot nodes: the first is GKE's advice, the second is set by AKS, the third by hand in many clusters."""
_MIG = re.compile(r"nvidia\.com/mig-(\d+)g\.(\d+)gb.*")


SHARED = ".shared"
"""How the device plugin's resources end whose GPUs are shared by time-slicing or MPS, where it renames them (renameByDefault).
Source: https://github.com/NVIDIA/k8s-device-plugin#shared-access-to-gpus"""


def find_gpu_resource(task: Task, settings: KubernetesSettings) -> str:
    """Return the resource to request; "" without GPUs. Raises DevkitError."""
    count = task.accelerator.count
    if not count:
        if settings.gpu_resource:
            raise DevkitError(
                f"{settings.gpu_resource} is requested, and no GPU", "Give --gpus 1, or plan for machines with GPUs."
            )
        return ""
    resource = settings.gpu_resource or GPU_RESOURCES[task.accelerator.vendor]
    is_shared = resource.endswith(SHARED)
    if (is_shared or _MIG.fullmatch(resource)) and count > 1:
        # https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (application considerations)
        because = "several shares may be of one GPU" if is_shared else "a process sees one MIG instance only"
        raise DevkitError(
            f"--gpus {count} of {resource} do not work together: {because}",
            "Give --gpus 1, or request whole GPUs.",
        )
    return resource


def build_resources(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build the `resources` of the container. Shared memory is added: it counts as the container's."""
    needed_bytes = task.memory_bytes + task.shm_bytes
    memory = Commented(
        format_quantity(needed_bytes),
        f"{format_quantity(task.memory_bytes)} for the processes, {_reason(task, 'memory')}; {format_quantity(task.shm_bytes)} for "
        "shared memory, which counts as the container's. Request and limit are the same: a node that runs out of "
        "memory evicts those first that use more than they request.",
    )
    found: Manifest = {
        "requests": {
            "cpu": _build_cpu_request(task),
            "memory": memory,
        },
        "limits": {"memory": format_quantity(needed_bytes)},
    }
    resource = find_gpu_resource(task, settings)
    if resource:
        found["limits"][resource] = task.accelerator.count
    found["limits"] |= parse_rdma_devices(settings)
    return found


def _build_cpu_request(task: Task) -> Commented:
    """Build the request for cores: those of --cpus, or an eighth less than recommended."""
    because = _reason(task, "cpus")
    no_limit = "No limit: it would slow loaders while cores are idle."
    if because == REQUESTED:
        return Commented(task.cpus, f"Requested. {no_limit}")
    less = f"Of {task.cpus}: {because}. A node with exactly that many reserves some for itself, and would never fit."
    whole, thousandths = divmod(task.cpus * 875, 1000)
    return Commented(f"{task.cpus * 875}m" if thousandths else whole, f"{less} {no_limit}")


def build_tolerations(task: Task, settings: KubernetesSettings) -> list[Any]:
    """Build the tolerations of the pods: clusters reserve GPU nodes by a taint with the name of the resource.

    Source: https://docs.cloud.google.com/kubernetes-engine/docs/how-to/gpus (GKE adds it by itself)
    """
    found: list[Any] = []
    if task.accelerator.count:
        taint = {"key": GPU_RESOURCES[task.accelerator.vendor], "operator": "Exists", "effect": "NoSchedule"}
        found.append(Commented(taint, "Clusters reserve GPU nodes by this taint."))
    if task.is_spot:
        found += [{"key": taint, "operator": "Exists", "effect": "NoSchedule"} for taint in SPOT_TAINTS]
    return found + parse_tolerations(settings)


def list_gpu_notes(task: Task, settings: KubernetesSettings) -> tuple[str, ...]:
    """List notes on the nodes of the pods, and on the permissions of devices there, which are unknown here.

    Source: https://github.com/ROCm/k8s-device-plugin/issues/39
    """
    is_amd = task.accelerator.vendor is Vendor.ROCM and task.accelerator.count
    if is_amd and settings.gpu_group is None:
        group = (
            "on most nodes /dev/kfd opens to one group alone: --set gpu_group=NUMBER, the answer of stat -c %g /dev/kfd"
        )
        return (*_list_placement_notes(task, settings), group)
    return _list_placement_notes(task, settings)


def _list_placement_notes(task: Task, settings: KubernetesSettings) -> tuple[str, ...]:
    name, mig = task.accelerator.name, _MIG.fullmatch(settings.gpu_resource)
    if mig:
        return (f"the estimate knows nothing of MIG: that instance has {mig[2]} GB of {name or 'its GPU'}",)
    if settings.gpu_resource.endswith(SHARED):
        gpu = name or "NAME"
        return (f'the GPU is shared, and its memory is not divided: estimate a share, such as --gpu "{gpu}/4" of four',)
    if not name or settings.node_selector:
        return ()
    if task.accelerator.vendor is Vendor.NVIDIA:
        return (
            f"nothing binds the pods to {name}: see kubectl get nodes -L nvidia.com/gpu.product, "
            "then give --node-selector nvidia.com/gpu.product=VALUE",
        )
    return (f"nothing binds the pods to {name}: give --node-selector with a label of its nodes",)


def format_quantity(size_bytes: int) -> str:
    """Format a size for the API: 64Gi, or bytes where that would round.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    for exponent, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi")):
        if size_bytes % (1 << exponent) == 0:
            return f"{size_bytes >> exponent}{unit}"
    return str(size_bytes)


def _reason(task: Task, name: str) -> str:
    return next((reason.because for reason in task.reasons if reason.field == name), REQUESTED)
