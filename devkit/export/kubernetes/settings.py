"""What a job is asked to be on Kubernetes, beyond what it is anywhere: the table [job.kubernetes], and flags."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from devkit.errors import DevkitError
from devkit.export.job_settings import MAX_LABEL_LENGTH, validate_dns_label
from devkit.facts.settings import SettingInfo, format_flag, validate_ranges

# Names, labels, taints and resources as the API takes them.

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAX_SUBDOMAIN_LENGTH = 253


def validate_subdomain(name: str, flag: str) -> str:
    """`name` when objects may be called so: a DNS subdomain (RFC 1123). Raises DevkitError.

    Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names
    """
    if _SUBDOMAIN.fullmatch(name) and len(name) <= MAX_SUBDOMAIN_LENGTH:
        return name
    raise DevkitError(
        f"{flag} {name!r} is no name of an object: a-z, 0-9, hyphens and dots, none of those two at the ends",
        "kubectl get shows the names that are there.",
    )


def validate_label_key(name: str, flag: str) -> str:
    """`name` when it is the key of a label or the name of a resource: NAME, or DOMAIN/NAME. Raises DevkitError.

    Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
    """
    domain, mark, last = name.rpartition("/")
    is_fine = bool(last) and _VALUE.fullmatch(last) and (not mark or _SUBDOMAIN.fullmatch(domain))
    if is_fine and len(domain) <= MAX_SUBDOMAIN_LENGTH:
        return name
    raise DevkitError(f"{flag} {name!r} is no key: NAME or DOMAIN/NAME", "Such as nvidia.com/gpu.product.")


def parse_label(text: str, flag: str) -> tuple[str, str]:
    """Key and value of NAME=VALUE. Raises DevkitError."""
    name, mark, value = text.partition("=")
    if mark and _VALUE.fullmatch(value):
        return validate_label_key(name, flag), value
    raise DevkitError(
        f"{flag} {text!r} is no label: NAME=VALUE, the value of at most 63 letters, digits, dots, dashes",
        "kubectl get nodes --show-labels shows those that are there.",
    )


def parse_toleration(text: str, flag: str) -> dict[str, str]:
    """The toleration of a taint as kubectl prints it: KEY, KEY=VALUE, each with :EFFECT or without.

    Raises DevkitError. Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    taint, mark, effect = text.partition(":")
    if mark and effect not in _EFFECTS:
        raise DevkitError(f"{flag} {text!r} has no effect that there is", f"Write one of {', '.join(_EFFECTS)}.")
    found = {"key": validate_label_key(taint.partition("=")[0], flag), "operator": "Exists"}
    if "=" in taint:
        found |= {"operator": "Equal", "value": parse_label(taint, flag)[1]}
    return found | ({"effect": effect} if mark else {})


class JobKind(StrEnum):
    """Who starts the pods, and starts them again."""

    JOB = "job"
    TRAINJOB = "trainjob"
    PYTORCHJOB = "pytorchjob"
    JOBSET = "jobset"


class AccessMode(StrEnum):
    """How many nodes may mount new storage.

    Source: https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes
    """

    ONE_NODE = "ReadWriteOnce"
    MANY_NODES = "ReadWriteMany"
    ONE_POD = "ReadWriteOncePod"


class Exporter(StrEnum):
    """Who installed the GPUs' exporter, or how Prometheus asks it already."""

    OPERATOR = "operator"
    CHART = "chart"
    SCRAPED = "scraped"
    SCRAPED_HONORED = "scraped-honored"


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """The wishes that only a cluster understands. "", None and () leave the choice to devkit."""

    namespace: Annotated[str, SettingInfo("Namespace. Without it, that of your kubectl context.")] = ""
    kind: Annotated[
        JobKind | None, SettingInfo("Kind of object: job for one node, trainjob for several, unless said otherwise.")
    ] = None
    queue: Annotated[str, SettingInfo("Kueue's LocalQueue.")] = ""
    gpu_resource: Annotated[
        str, SettingInfo("Resource to ask for, in place of the vendor's.", example="nvidia.com/mig-1g.10gb")
    ] = ""
    gpu_group: Annotated[
        int | None,
        SettingInfo(
            "Group that may open AMD's devices on the nodes: stat --format %g /dev/kfd.", at_least=1, at_most=2**31 - 1
        ),
    ] = None
    device_class: Annotated[
        str, SettingInfo("Ask by dynamic resource allocation, for this DeviceClass.", example="gpu.nvidia.com")
    ] = ""
    node_selector: Annotated[
        tuple[str, ...], SettingInfo("Label that nodes must have. Repeat.", example="NAME=VALUE")
    ] = ()
    toleration: Annotated[
        tuple[str, ...],
        SettingInfo("Taint to bear: KEY, KEY=VALUE, each with :EFFECT or without. Repeat.", example="TAINT"),
    ] = ()
    topology: Annotated[
        str, SettingInfo("Node label of which all nodes must share one value.", example="topology.kubernetes.io/zone")
    ] = ""
    runtime: Annotated[
        str,
        SettingInfo("ClusterTrainingRuntime of a TrainJob, in place of one of its own.", example="torch-distributed"),
    ] = ""
    storage_class: Annotated[str, SettingInfo("StorageClass of new storage. Without it, the cluster's default.")] = ""
    access_mode: Annotated[
        AccessMode | None, SettingInfo("How many nodes may mount new storage: one, or all of the job's.")
    ] = None
    token_secret: Annotated[str, SettingInfo("Secret with the hub's token under the key `token`.")] = "devkit-hub"  # noqa: S105
    pull_secret: Annotated[str, SettingInfo("Secret that the image is pulled with.")] = ""
    service_account: Annotated[str, SettingInfo("ServiceAccount of the pods.")] = ""
    priority_class: Annotated[str, SettingInfo("PriorityClass of the pods.")] = ""
    node_checks: Annotated[bool, SettingInfo("Write the checks of the nodes, too.")] = True
    monitoring: Annotated[bool, SettingInfo("Write rules and a dashboard for Prometheus and Grafana, too.")] = True
    verify_nodes: Annotated[
        int | None,
        SettingInfo("Nodes that checks/verify proves; as many as the job has, unless said otherwise.", at_least=1),
    ] = None
    runtime_class: Annotated[
        str, SettingInfo("RuntimeClass of the doctor's pods, which take no GPU and are to see all.", example="nvidia")
    ] = ""
    exporter: Annotated[
        Exporter | None,
        SettingInfo(
            "The GPUs' exporter: of NVIDIA's operator, of its own chart, or scraped already: then the pods' names stand"
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
)
"""Settings that name an object of the cluster."""


def validate_kubernetes_settings(settings: KubernetesSettings) -> KubernetesSettings:
    """`settings` when a cluster could take them at all. Raises DevkitError for what no cluster takes."""
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
    # Whoever reads these raises what is wrong with them.
    parse_node_selector(settings)
    parse_tolerations(settings)
    return settings


def parse_node_selector(settings: KubernetesSettings) -> dict[str, str]:
    """The labels that nodes must have."""
    return dict(parse_label(text, "--node-selector") for text in settings.node_selector)


def parse_tolerations(settings: KubernetesSettings) -> list[dict[str, str]]:
    """The taints that nodes may have."""
    return [parse_toleration(text, "--toleration") for text in settings.toleration]
