"""Storage of the job: claims, /dev/shm in memory, the hub's token; and a pod to copy files in and out."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

from devkit.errors import DevkitError
from devkit.export.kubernetes.manifest import Commented, Manifest, build_labels
from devkit.export.kubernetes.resources import build_tolerations, format_quantity
from devkit.export.kubernetes.settings import AccessMode, KubernetesSettings, parse_node_selector
from devkit.export.task import COMPILE_CACHE, TOKEN_FOLDER, TOKEN_PATH, USER_ID, MountRole, Task, Volume

TOKEN_KEY = "token"  # noqa: S105 - the key under which the Secret holds it
FILES_POD_TTL_S = 6 * 3600
"""The lifetime of the pod for copying, unless it is removed before."""

_NO_ESCALATION = {"allowPrivilegeEscalation": False}


def build_pod_security(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build the security context of a pod: what the restricted Pod Security Standard requires.

    A foreign image runs as its own user, which is mostly root, unless the settings name another.
    Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    user = settings.user or (None if task.is_foreign_image else USER_ID)
    if user is None:
        return seccomp
    why = (
        "Requested."
        if settings.user
        else "The image's user dev. For an image built for another one: --set user=NUMBER."
    )
    return {
        "runAsNonRoot": True,
        "runAsUser": Commented(user, why),
        "runAsGroup": user,
        "fsGroup": Commented(user, "New storage belongs to root; its group becomes the user's."),
        "fsGroupChangePolicy": Commented("OnRootMismatch", "Once, and not file by file at every start."),
        **seccomp,
    }


def build_container_security(task: Task, settings: KubernetesSettings, *, pins_memory: bool = False) -> Manifest:
    """Build the security context of a container. Root of a foreign image keeps the capabilities to install packages."""
    if task.is_foreign_image and settings.user is None:
        return {**_NO_ESCALATION}
    capabilities: Manifest = {"drop": ["ALL"]}
    if pins_memory:
        capabilities["add"] = Commented(
            ["IPC_LOCK"], "RDMA pins memory; the restricted Pod Security Standard refuses it."
        )
    return {**_NO_ESCALATION, "capabilities": capabilities}


def name_claim(task: Task, volume: Volume) -> str:
    """Return the claim's name: the user's own, or that of a new one."""
    return volume.source or f"{task.name}-{volume.role}"


def is_node_folder(volume: Volume) -> bool:
    """True for a folder of the nodes: storage that the user names with a path, by a path."""
    return volume.role is MountRole.OWN and volume.source.startswith("/")


def build_new_claims(task: Task, settings: KubernetesSettings) -> list[Manifest]:
    """Build a PersistentVolumeClaim for each new storage. Raises DevkitError for an access mode that cannot work.

    Source: https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes
    """
    mode = settings.access_mode or (AccessMode.MANY_NODES if task.nodes > 1 else AccessMode.ONE_NODE)
    if task.nodes > 1 and mode is not AccessMode.MANY_NODES:
        raise DevkitError(
            f"access mode {mode} lets one node mount what {task.nodes} nodes must share",
            "Give --set access_mode=ReadWriteMany and a --storage-class that offers it (NFS, CephFS, EFS, Filestore, …).",
        )
    why = "Every node mounts it." if mode is AccessMode.MANY_NODES else "One node at a time mounts it."
    claims = []
    for volume in (each for each in task.volumes if not each.source):
        spec: Manifest = {"accessModes": [Commented(str(mode), why)]}
        if settings.storage_class:
            spec["storageClassName"] = settings.storage_class
        size = Commented(format_quantity(volume.size_bytes), f"{volume.because}.")
        spec["resources"] = {"requests": {"storage": size}}
        metadata = {"name": name_claim(task, volume), "labels": build_labels(task, str(volume.role))}
        claims.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    return claims


def build_pod_volumes(task: Task, settings: KubernetesSettings) -> list[Any]:
    """Build the volumes of each pod of the job."""
    volumes: list[Any] = [*_build_claim_volumes(task)]
    size = format_quantity(task.shm_bytes)
    shm = {"medium": "Memory", "sizeLimit": size}
    why = "Without it /dev/shm has 64 MiB, and loader workers and NCCL fail. It is memory, in the container's limit."
    volumes.append(Commented({"name": "shm", "emptyDir": shm}, why))
    volumes.append({"name": "compile-cache", "emptyDir": {}})
    if task.needs_token:
        secret = {
            "secretName": settings.token_secret,
            "optional": Commented(True, "Models that anybody may read need no token."),
            "defaultMode": Commented(0o440, "For the pod's group alone: 0440."),
            "items": [{"key": TOKEN_KEY, "path": TOKEN_PATH.rpartition("/")[2]}],
        }
        volumes.append({"name": "hub-token", "secret": secret})
    return volumes


def build_volume_mounts(task: Task) -> list[Manifest]:
    """Build the mounts, at the paths of the dev container."""
    mounts = _build_claim_mounts(task)
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - inside the container
    mounts.append({"name": "compile-cache", "mountPath": COMPILE_CACHE})
    if task.needs_token:
        mounts.append({"name": "hub-token", "mountPath": TOKEN_FOLDER, "readOnly": True})
    return mounts


def build_files_pod(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build a pod without a GPU that mounts the job's storage, to copy the project in and the result out."""
    container = {
        "name": "files",
        "image": task.image,
        "command": ["sleep", str(FILES_POD_TTL_S)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": build_container_security(task, settings),
        "volumeMounts": _build_claim_mounts(task),
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": Commented(FILES_POD_TTL_S, "It ends by itself, unless it is removed before."),
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "securityContext": build_pod_security(task, settings),
    }
    if settings.node_selector:
        zone = "In the zone of the job: zonal storage is created where it is mounted first. The pod takes no GPU."
        spec["nodeSelector"] = Commented(parse_node_selector(settings), zone)
        spec["tolerations"] = build_tolerations(task, settings)
    spec |= {"containers": [container], "volumes": _build_claim_volumes(task)}
    if settings.pull_secret:
        spec["imagePullSecrets"] = [{"name": settings.pull_secret}]
    metadata = {"name": f"{task.name}-files", "labels": build_labels(task, "files")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _build_claim_volumes(task: Task) -> list[Manifest]:
    return [
        {"name": name, "hostPath": {"path": volume.source}}
        if is_node_folder(volume)
        else {"name": name, "persistentVolumeClaim": {"claimName": name_claim(task, volume)}}
        for name, volume in _name_volumes(task)
    ]


def _build_claim_mounts(task: Task) -> list[Manifest]:
    """Build the mounts of claims. One claim for several volumes has a folder for each."""
    claims = Counter(name_claim(task, volume) for volume in task.volumes if volume.role is not MountRole.OWN)
    found: list[Manifest] = []
    for name, volume in _name_volumes(task):
        is_shared = volume.role is not MountRole.OWN and claims[name_claim(task, volume)] > 1
        found.append({"name": name, "mountPath": volume.path} | ({"subPath": name} if is_shared else {}))
    return found


def _name_volumes(task: Task) -> Iterator[tuple[str, Volume]]:
    """Yield the volumes with their names in a pod."""
    numbers = count(1)
    for volume in task.volumes:
        yield f"{volume.role}-{next(numbers)}" if volume.role is MountRole.OWN else str(volume.role), volume
