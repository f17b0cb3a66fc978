"""Settings of a job on Kubernetes alone: the table [job.kubernetes], and flags; names, labels and taints in them."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from devkit.errors import DevkitError
from devkit.export.task import Task
from devkit.export.values import MAX_LABEL_LENGTH, validate_dns_label
from devkit.facts.settings import SettingInfo, format_flag, validate_ranges

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAX_SUBDOMAIN_LENGTH = 253


def validate_subdomain(name: str, flag: str) -> str:
    """Return `name` if it is a DNS subdomain (RFC 1123), as names of objects must be. Raises DevkitError.

    Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names
    """
    if _SUBDOMAIN.fullmatch(name) and len(name) <= MAX_SUBDOMAIN_LENGTH:
        return name
    raise DevkitError(
        f"{flag} {name!r} is no name of an object: a-z, 0-9, hyphens and dots, none of those two at the ends",
        "kubectl get shows the names that are there.",
    )


def validate_label_key(name: str, flag: str) -> str:
    """Return `name` if it is the key of a label or a resource: NAME, or DOMAIN/NAME. Raises DevkitError.

    Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
    """
    domain, mark, last = name.rpartition("/")
    is_valid = bool(last) and _VALUE.fullmatch(last) and (not mark or _SUBDOMAIN.fullmatch(domain))
    if is_valid and len(domain) <= MAX_SUBDOMAIN_LENGTH:
        return name
    raise DevkitError(f"{flag} {name!r} is no key: NAME or DOMAIN/NAME", "Such as nvidia.com/gpu.product.")


def parse_label(text: str, flag: str) -> tuple[str, str]:
    """Parse NAME=VALUE. Raises DevkitError."""
    name, mark, value = text.partition("=")
    if mark and _VALUE.fullmatch(value):
        return validate_label_key(name, flag), value
    raise DevkitError(
        f"{flag} {text!r} is no label: NAME=VALUE, the value of at most 63 letters, digits, dots, dashes",
        "kubectl get nodes --show-labels shows those that are there.",
    )


def parse_toleration(text: str, flag: str) -> dict[str, str]:
    """Parse a taint as kubectl prints it, KEY or KEY=VALUE, with or without :EFFECT, into its toleration.

    Raises DevkitError. Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    taint, mark, effect = text.partition(":")
    if mark and effect not in _EFFECTS:
        raise DevkitError(f"{flag} {text!r} has an unknown effect", f"Write one of {', '.join(_EFFECTS)}.")
    toleration = {"key": validate_label_key(taint.partition("=")[0], flag), "operator": "Exists"}
    if "=" in taint:
        toleration |= {"operator": "Equal", "value": parse_label(taint, flag)[1]}
    return toleration | ({"effect": effect} if mark else {})


class JobKind(StrEnum):
    """The kind of object that starts the pods, and restarts them."""

    JOB = "job"
    TRAINJOB = "trainjob"
    PYTORCHJOB = "pytorchjob"
    JOBSET = "jobset"
    RAYJOB = "rayjob"


class AccessMode(StrEnum):
    """The access mode of new storage.

    Source: https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes
    """

    ONE_NODE = "ReadWriteOnce"
    MANY_NODES = "ReadWriteMany"
    ONE_POD = "ReadWriteOncePod"


class WorkspaceEntry(StrEnum):
    """The way into a workspace: kubectl, and editors that attach to pods; DevPod; or Coder."""

    KUBECTL = "kubectl"
    DEVPOD = "devpod"
    CODER = "coder"


class Exporter(StrEnum):
    """The installer of the GPU exporter, or the way in which Prometheus scrapes it already."""

    OPERATOR = "operator"
    CHART = "chart"
    SCRAPED = "scraped"
    SCRAPED_HONORED = "scraped-honored"


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """The settings of Kubernetes alone. "", None and () leave the choice to devkit."""

    namespace: Annotated[str, SettingInfo("Namespace. Without it, that of your kubectl context.")] = ""
    kind: Annotated[
        JobKind | None, SettingInfo("Kind of object: job for one node, trainjob for several, unless said otherwise.")
    ] = None
    queue: Annotated[str, SettingInfo("Kueue's LocalQueue.")] = ""
    gpu_resource: Annotated[
        str, SettingInfo("Resource to request, instead of the vendor's.", example="nvidia.com/mig-1g.10gb")
    ] = ""
    gpu_group: Annotated[
        int | None,
        SettingInfo(
            "Group that may open AMD's devices on the nodes: stat --format %g /dev/kfd.", at_least=1, at_most=2**31 - 1
        ),
    ] = None
    device_class: Annotated[
        str,
        SettingInfo("Request GPUs by dynamic resource allocation, with this DeviceClass.", example="gpu.nvidia.com"),
    ] = ""
    node_selector: Annotated[
        tuple[str, ...], SettingInfo("Label that nodes must have. Repeat.", example="NAME=VALUE")
    ] = ()
    toleration: Annotated[
        tuple[str, ...],
        SettingInfo("Taint to tolerate: KEY, KEY=VALUE, each with :EFFECT or without. Repeat.", example="TAINT"),
    ] = ()
    topology: Annotated[
        str, SettingInfo("Node label whose value all nodes must share.", example="topology.kubernetes.io/zone")
    ] = ""
    topology_preferred: Annotated[
        bool, SettingInfo("Nodes outside of one topology domain will do where no domain has enough.")
    ] = False
    runtime: Annotated[
        str,
        SettingInfo("ClusterTrainingRuntime of a TrainJob, instead of its own runtime.", example="torch-distributed"),
    ] = ""
    storage_class: Annotated[str, SettingInfo("StorageClass of new storage. Without it, the cluster's default.")] = ""
    access_mode: Annotated[
        AccessMode | None, SettingInfo("Access mode of new storage: one node, or all of the job's.")
    ] = None
    token_secret: Annotated[str, SettingInfo("Secret with the hub's token under the key `token`.")] = "devkit-hub"  # noqa: S105
    pull_secret: Annotated[str, SettingInfo("Secret that the image is pulled with.")] = ""
    user: Annotated[
        int | None,
        SettingInfo(
            "User of the pods, by number; else dev of the project's image, or a foreign image's own.", at_least=1
        ),
    ] = None
    label: Annotated[
        tuple[str, ...], SettingInfo("Label of the job and its pods, such as a team's. Repeat.", example="NAME=VALUE")
    ] = ()
    annotation: Annotated[tuple[str, ...], SettingInfo("Annotation of the pods. Repeat.", example="NAME=VALUE")] = ()
    scheduler: Annotated[
        str, SettingInfo("Scheduler of the pods, such as volcano or kai-scheduler.", example="NAME")
    ] = ""
    rdma: Annotated[
        tuple[str, ...],
        SettingInfo(
            "Network device for NCCL that each pod requests: rdma/hca, vpc.amazonaws.com/efa=4. Repeat.",
            example="RESOURCE=COUNT",
        ),
    ] = ()
    host_network: Annotated[bool, SettingInfo("Pods use the node's network, as some RDMA set-ups require.")] = False
    service_account: Annotated[str, SettingInfo("ServiceAccount of the pods.")] = ""
    priority_class: Annotated[str, SettingInfo("PriorityClass of the pods.")] = ""
    workspace: Annotated[
        WorkspaceEntry | None,
        SettingInfo("Also write a workspace: the dev container itself, for kubectl and editors, DevPod or Coder."),
    ] = None
    idle: Annotated[str, SettingInfo("Time without work after which a workspace ends.", example="2h")] = "2h"
    workspace_size: Annotated[
        str, SettingInfo("Size of a workspace's volume: home, project, caches.", example="100Gi")
    ] = "100Gi"
    node_checks: Annotated[bool, SettingInfo("Also write checks of the nodes.")] = True
    monitoring: Annotated[bool, SettingInfo("Also write rules and a dashboard for Prometheus and Grafana.")] = True
    verify_nodes: Annotated[
        int | None,
        SettingInfo("Nodes that checks/verify proves; as many as the job has, unless said otherwise.", at_least=1),
    ] = None
    runtime_class: Annotated[
        str,
        SettingInfo("RuntimeClass of the doctor's pods, which request no GPU and should see all.", example="nvidia"),
    ] = ""
    exporter: Annotated[
        Exporter | None,
        SettingInfo(
            "The GPUs' exporter: of NVIDIA's operator, of its own chart, or scraped already: then the pods' names are"
            " in exported_pod, or in pod where labels are honored."
        ),
    ] = None
    prometheus_label: Annotated[
        str, SettingInfo("Label by which Prometheus picks its rules and monitors.", example="NAME=VALUE")
    ] = "release=kube-prometheus-stack"


_OBJECTS = (
    "queue",
    "device_class",
    "runtime",
    "storage_class",
    "token_secret",
    "pull_secret",
    "service_account",
    "priority_class",
    "runtime_class",
    "scheduler",
)
"""Settings that name an object of the cluster."""


def validate_kubernetes_settings(settings: KubernetesSettings) -> KubernetesSettings:
    """Return the settings. Raises DevkitError for those that no cluster accepts."""
    validate_ranges(settings)
    for name in _OBJECTS:
        if text := getattr(settings, name):
            validate_subdomain(text, format_flag(name))
    if settings.namespace:
        validate_dns_label(settings.namespace, "--namespace", longest=MAX_LABEL_LENGTH)
    for name in ("gpu_resource", "topology"):
        if text := getattr(settings, name):
            validate_label_key(text, format_flag(name))
    if settings.device_class and settings.gpu_resource:
        raise DevkitError(
            "--device-class and --gpu-resource both say how to ask for a GPU",
            "Keep the one that the cluster has: kubectl get deviceclasses; kubectl describe nodes.",
        )
    for text in settings.label:
        parse_label(text, "--label")
    for text in settings.annotation:
        validate_label_key(text.partition("=")[0], "--annotation")
    parse_rdma_devices(settings)
    # Parsing raises what is wrong with them.
    parse_node_selector(settings)
    parse_tolerations(settings)
    return settings


def parse_rdma_devices(settings: KubernetesSettings) -> dict[str, int]:
    """Parse the network devices of a pod: the resource, and how many of it. Raises DevkitError."""
    found = {}
    for text in settings.rdma:
        name, _, count = text.partition("=")
        if not re.fullmatch(r"[1-9]\d{0,2}", count or "1") or "/" not in name:
            raise DevkitError(
                f"--rdma {text!r} is no resource: DOMAIN/NAME=COUNT", "kubectl describe nodes shows them."
            )
        found[validate_label_key(name, "--rdma")] = int(count or 1)
    return found


def parse_node_selector(settings: KubernetesSettings) -> dict[str, str]:
    """Parse the labels that nodes must have."""
    return dict(parse_label(text, "--node-selector") for text in settings.node_selector)


def parse_tolerations(settings: KubernetesSettings) -> list[dict[str, str]]:
    """Parse the taints that nodes may have."""
    return [parse_toleration(text, "--toleration") for text in settings.toleration]


def choose_job_kind(task: Task, settings: KubernetesSettings) -> JobKind:
    """Return the kind of the settings, or the default one for the number of nodes."""
    return settings.kind or (JobKind.TRAINJOB if task.nodes > 1 else JobKind.JOB)
