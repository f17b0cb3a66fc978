"""The manifests of a job as text: what their templates need, decided for one task."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator

from devkit.errors import DevkitError
from devkit.export.kubernetes.settings import (
    AccessMode,
    JobKind,
    KubernetesSettings,
    Toleration,
    parse_label,
    parse_rdma_devices,
    parse_toleration,
)
from devkit.export.task import (
    COMPILE_CACHE,
    RENDEZVOUS_PORT,
    REQUESTED,
    TOKEN_FOLDER,
    USER_ID,
    MountRole,
    Task,
    Volume,
    build_rendezvous_variables,
)
from devkit.export.values import format_yaml
from devkit.release import __version__
from devkit.render.files import Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Vendor
from devkit.text import wrap_text

RETRIES = 3
"""Attempts after failures that may not recur: a lost GPU, node or network."""
JOB_TTL_S = 7 * 86400
"""The time that a finished job is kept, with its pods' logs."""
FILES_POD_TTL_S = 6 * 3600
"""The lifetime of the pod for copying, unless it is removed before."""
INDEX_PLACEHOLDER = "\0"
"""Placeholder of a rank: the pod's index, which no manifest can know.
Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode"""
GENERATED_NOTICE = (
    f"Written by devkit {__version__}. To change it, edit [job] and [job.kubernetes] in devkit.toml and export again."
)
GPU_RESOURCES = {Vendor.NVIDIA: "nvidia.com/gpu", Vendor.ROCM: "amd.com/gpu"}
"""The resources of the vendors' device plugins, and the taints by which clusters reserve nodes for pods that request them.
Sources: https://github.com/NVIDIA/k8s-device-plugin, https://github.com/ROCm/k8s-device-plugin,
https://docs.cloud.google.com/kubernetes-engine/docs/how-to/gpus (GKE adds the toleration automatically)"""
SPOT_LABELS = (
    ("cloud.google.com/gke-spot", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("karpenter.sh/capacity-type", "spot"),
)
"""Labels of spot nodes, by cloud or autoscaler.
Sources: https://docs.cloud.google.com/kubernetes-engine/docs/concepts/spot-vms,
https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html,
https://learn.microsoft.com/azure/aks/spot-node-pool, https://karpenter.sh/docs/concepts/scheduling/"""
SPOT_TAINTS = ("cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority", "spot")
"""Taints of spot nodes: the first is GKE's advice, the second is set by AKS, the third by hand in many clusters."""
MIG_RESOURCE = re.compile(r"nvidia\.com/mig-(\d+)g\.(\d+)gb.*")
SHARED_SUFFIX = ".shared"
"""How the device plugin's resources end whose GPUs are shared by time-slicing or MPS, where it renames them (renameByDefault).
Source: https://github.com/NVIDIA/k8s-device-plugin#shared-access-to-gpus"""


def render_manifests(task: Task, settings: KubernetesSettings, kind: JobKind) -> list[Artifact]:
    """Render the folders, each for `kubectl apply -k`."""
    values = _build_values(task, settings, kind)
    about = "The job. Its storage is in a separate folder, so `kubectl delete -k` keeps the checkpoints."
    artifacts = _render_folder("", about, f"{kind}.yaml", "job.yaml", values)
    if values["new_volumes"]:
        artifacts += _render_folder("storage", "The job's storage.", "claims.yaml", "claims.yaml", values)
    about = "A pod without a GPU that mounts the job's storage, to copy the project in and the result out."
    return [*artifacts, *_render_folder("files", about, "files.yaml", "pod.yaml", values)]


def _render_folder(folder: str, about: str, template: str, name: str, values: dict[str, object]) -> list[Artifact]:
    """Render a file of objects and its kustomization; the topmost folder is "".

    The order matters for a TrainJob alone: kubectl warns of sortOptions at each `apply -k`.
    """
    text = render_template(f"kubernetes/{template}.j2", **values)
    kustomization = render_template(
        "kubernetes/kustomization.yaml.j2", about=about, file=name, keeps_order=template == "trainjob.yaml", **values
    )
    prefix = f"{folder}/" if folder else ""
    files = {"kustomization.yaml": kustomization, name: text}
    return [Artifact.from_text(f"{prefix}{each}", content) for each, content in files.items()]


def build_labels(task: Task, component: str) -> dict[str, str]:
    """Build the labels of an object of the job.

    Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/
    """
    return {
        "app.kubernetes.io/name": task.project,
        "app.kubernetes.io/instance": task.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "devkit",
    }


def _build_values(task: Task, settings: KubernetesSettings, kind: JobKind) -> dict[str, object]:
    """Build what the templates of all kinds need."""
    environment = dict(task.environment)  # the last of a name counts, and a list with a name twice cannot be merged
    own_labels = dict(parse_label(text, "--set label") for text in settings.label)
    tolerations = _list_tolerations(task, settings)
    script = ["python", "/etc/devkit/nodes.py", str(task.nodes), str(task.accelerator.count), *task.command]
    gpu_resource = find_gpu_resource(task, settings)
    devices = ({gpu_resource: task.accelerator.count} if gpu_resource else {}) | parse_rdma_devices(settings)
    size = format_quantity(task.memory_bytes + task.shm_bytes)
    reasons = {each.field: each.because for each in task.reasons}
    why = reasons.get("memory", REQUESTED)
    cpu, cpu_reason = _choose_cpu_request(task, reasons.get("cpus", REQUESTED))

    def list_labels(component: str) -> list[tuple[str, str]]:
        return list(((own_labels if component == "training" else {}) | build_labels(task, component)).items())

    return {
        "task": task,
        "settings": settings,
        "notice": GENERATED_NOTICE,
        "yaml": format_yaml,
        "comment": lambda text: wrap_text(text, width=110, indent="# "),
        "quantity": format_quantity,
        "index": INDEX_PLACEHOLDER,
        "port": RENDEZVOUS_PORT,
        "retries": RETRIES,
        "ttl_s": JOB_TTL_S,
        "files_ttl_s": FILES_POD_TTL_S,
        "compile_cache": COMPILE_CACHE,
        "token_folder": TOKEN_FOLDER,
        "spot_labels": SPOT_LABELS,
        "labels_of": list_labels,
        "annotations": [text.partition("=")[::2] for text in settings.annotation],
        "command": [escape_variables(word) for word in task.command],
        "entrypoint": shlex.join(script),
        "environment_of_task": [(name, escape_variables(value)) for name, value in environment.items()],
        "sets_nccl_debug": task.nodes > 1 and task.accelerator.count > 0 and "NCCL_DEBUG" not in environment,
        "rank": _list_rank_variables(task, kind),
        "user": settings.user or (0 if task.is_foreign_image else USER_ID),
        # Root of a foreign image keeps the capabilities to install packages.
        "keeps_capabilities": task.is_foreign_image and settings.user is None,
        "mounts": list(_list_mounts(task)),
        "new_volumes": [each for each in task.volumes if not each.source],
        "access_mode": choose_access_mode(task, settings),
        "node_selector": dict(parse_label(text, "--node-selector") for text in settings.node_selector),
        "tolerations": tolerations,
        "is_nvidia": gpu_resource != "" and task.accelerator.vendor is Vendor.NVIDIA,
        "devices": list(devices.items()),
        "memory": size,
        "memory_reason": f"{format_quantity(task.memory_bytes)} for the processes, {why}; "
        f"{format_quantity(task.shm_bytes)} for shared memory, which counts as the container's. The request and the limit "
        "are the same, because a node that runs out of memory first evicts pods that use more than they request.",
        "cpu": cpu,
        "cpu_reason": f"{cpu_reason} There is no limit, because it would slow loaders while cores are idle.",
        "shm": format_quantity(task.shm_bytes),
    }


def _list_rank_variables(task: Task, kind: JobKind) -> list[tuple[str, str]]:
    """List the variables that tell the processes how to find each other, except those that a controller sets."""
    is_alone = task.nodes == 1
    match kind:
        case JobKind.JOB:
            address, rank = f"{task.name}-0.{task.name}", "0" if is_alone else INDEX_PLACEHOLDER
        case JobKind.JOBSET:
            address, rank = f"{task.name}-node-0-0.{task.name}", INDEX_PLACEHOLDER
        case JobKind.RAYJOB:
            # The script sets the other two, since it alone knows the nodes.
            variables = build_rendezvous_variables(task, address="", rank="")
            found = [each for each in variables if each[0] not in ("PET_NODE_RANK", "PET_MASTER_ADDR")]
            return [*found, ("RAY_LOG_TO_STDERR", "1")]
        case JobKind.PYTORCHJOB:
            # The operator sets RANK and WORLD_SIZE even for one process.
            return [] if task.is_distributed else [("LOCAL_RANK", "0")]
        case JobKind.TRAINJOB:
            return []
    return list(build_rendezvous_variables(task, address="localhost" if is_alone else address, rank=rank))


def escape_variables(text: str) -> str:
    """Escape text for the kubelet, which expands $(NAME) and turns $$ into $.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#Container
    """
    return re.sub(r"\$(?=[$(])", "$$", text)


def is_node_folder(volume: Volume) -> bool:
    """True for a folder of the nodes: storage that the user names with a path, by a path."""
    return volume.role is MountRole.OWN and volume.source.startswith("/")


def _list_mounts(task: Task) -> Iterator[dict[str, object]]:
    """Yield the storage of the pods, with names: a claim, or else a folder of the node.

    A shared claim has a folder for each of its volumes.
    """
    claims = {each: each.source or f"{task.name}-{each.role}" for each in task.volumes}
    uses = Counter(claim for volume, claim in claims.items() if volume.role is not MountRole.OWN)
    for number, (volume, claim) in enumerate(claims.items()):
        is_own = volume.role is MountRole.OWN
        yield {
            "name": f"{volume.role}-{number}" if is_own else str(volume.role),
            "path": volume.path,
            "claim": claim,
            "folder": volume.source if is_node_folder(volume) else "",
            "is_shared": not is_own and uses[claim] > 1,
        }


def choose_access_mode(task: Task, settings: KubernetesSettings) -> AccessMode:
    """Return the access mode of new storage. Raises DevkitError for one that cannot work.

    Source: https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes
    """
    mode = settings.access_mode or (AccessMode.MANY_NODES if task.nodes > 1 else AccessMode.ONE_NODE)
    if task.nodes > 1 and mode is not AccessMode.MANY_NODES:
        raise DevkitError(
            f"access_mode {mode} allows only one node to mount it, but {task.nodes} nodes must share it",
            "Give --set access_mode=ReadWriteMany and a --set storage_class that offers it (NFS, CephFS, EFS, Filestore, …).",
        )
    return mode


def _list_tolerations(task: Task, settings: KubernetesSettings) -> list[Toleration]:
    found = []
    if task.accelerator.count:
        why = "Clusters reserve GPU nodes with this taint."
        found.append(Toleration(GPU_RESOURCES[task.accelerator.vendor], None, "NoSchedule", why))
    if task.is_spot:
        found += [Toleration(taint, None, "NoSchedule") for taint in SPOT_TAINTS]
    return found + [parse_toleration(text, "--set toleration") for text in settings.toleration]


def find_gpu_resource(task: Task, settings: KubernetesSettings) -> str:
    """Return the resource to request; "" without GPUs. Raises DevkitError."""
    count = task.accelerator.count
    if not count:
        if settings.gpu_resource:
            raise DevkitError(
                f"{settings.gpu_resource} is requested, but no GPU", "Give --gpus 1, or plan for machines with GPUs."
            )
        return ""
    resource = settings.gpu_resource or GPU_RESOURCES[task.accelerator.vendor]
    is_shared = resource.endswith(SHARED_SUFFIX)
    if (is_shared or MIG_RESOURCE.fullmatch(resource)) and count > 1:
        # https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (application considerations)
        because = "several shares may be on the same GPU" if is_shared else "a process sees only one MIG instance"
        raise DevkitError(
            f"--gpus {count} of {resource} do not work together: {because}", "Give --gpus 1, or request whole GPUs."
        )
    return resource


def _choose_cpu_request(task: Task, because: str) -> tuple[str, str]:
    """Choose the request for cores, with its reason: those that were set, or an eighth less than recommended."""
    if because == REQUESTED:
        return str(task.cpus), "Requested."
    whole, thousandths = divmod(task.cpus * 875, 1000)
    less = f"Of {task.cpus}: {because}. A node with exactly that many reserves some for itself, so the pod would never fit."
    return f"{task.cpus * 875}m" if thousandths else str(whole), less


def format_quantity(size_bytes: int) -> str:
    """Format a size for the API: 64Gi, or bytes where that would round.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    for exponent, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi")):
        if size_bytes % (1 << exponent) == 0:
            return f"{size_bytes >> exponent}{unit}"
    return str(size_bytes)
