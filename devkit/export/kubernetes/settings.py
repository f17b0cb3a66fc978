"""What a job is asked to be on Kubernetes, beyond what it is anywhere: the table [job.kubernetes], and flags."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from devkit.errors import DevkitError
from devkit.export.kubernetes.names import checked_key, checked_subdomain, label_of, toleration_of
from devkit.export.labels import LONGEST, checked_label
from devkit.facts.said import Said, check_ranges, flag_of


class Kind(StrEnum):
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

    namespace: Annotated[str, Said("Namespace. Without it, that of your kubectl context.")] = ""
    kind: Annotated[
        Kind | None, Said("Kind of object: job for one node, trainjob for several, unless said otherwise.")
    ] = None
    queue: Annotated[str, Said("Kueue's LocalQueue.")] = ""
    gpu_resource: Annotated[
        str, Said("Resource to ask for, in place of the vendor's.", example="nvidia.com/mig-1g.10gb")
    ] = ""
    gpu_group: Annotated[
        int | None,
        Said(
            "Group that may open AMD's devices on the nodes: stat --format %g /dev/kfd.", at_least=1, at_most=2**31 - 1
        ),
    ] = None
    device_class: Annotated[
        str, Said("Ask by dynamic resource allocation, for this DeviceClass.", example="gpu.nvidia.com")
    ] = ""
    node_selector: Annotated[tuple[str, ...], Said("Label that nodes must have. Repeat.", example="NAME=VALUE")] = ()
    toleration: Annotated[
        tuple[str, ...], Said("Taint to bear: KEY, KEY=VALUE, each with :EFFECT or without. Repeat.", example="TAINT")
    ] = ()
    topology: Annotated[
        str, Said("Node label of which all nodes must share one value.", example="topology.kubernetes.io/zone")
    ] = ""
    runtime: Annotated[
        str, Said("ClusterTrainingRuntime of a TrainJob, in place of one of its own.", example="torch-distributed")
    ] = ""
    storage_class: Annotated[str, Said("StorageClass of new storage. Without it, the cluster's default.")] = ""
    access_mode: Annotated[
        AccessMode | None, Said("How many nodes may mount new storage: one, or all of the job's.")
    ] = None
    token_secret: Annotated[str, Said("Secret with the hub's token under the key `token`.")] = "devkit-hub"  # noqa: S105
    pull_secret: Annotated[str, Said("Secret that the image is pulled with.")] = ""
    service_account: Annotated[str, Said("ServiceAccount of the pods.")] = ""
    priority_class: Annotated[str, Said("PriorityClass of the pods.")] = ""
    node_checks: Annotated[bool, Said("Write the checks of the nodes, too.")] = True
    monitoring: Annotated[bool, Said("Write rules and a dashboard for Prometheus and Grafana, too.")] = True
    verify_nodes: Annotated[
        int | None, Said("Nodes that checks/verify proves; as many as the job has, unless said otherwise.", at_least=1)
    ] = None
    runtime_class: Annotated[
        str, Said("RuntimeClass of the doctor's pods, which take no GPU and are to see all.", example="nvidia")
    ] = ""
    exporter: Annotated[
        Exporter | None,
        Said(
            "The GPUs' exporter: of NVIDIA's operator, of its own chart, or scraped already: then the pods' names stand"
            " in exported_pod, or in pod where labels are honored."
        ),
    ] = None
    prometheus_label: Annotated[
        str, Said("Label by which Prometheus picks its rules and monitors.", example="NAME=VALUE")
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


def checked(settings: KubernetesSettings) -> KubernetesSettings:
    """`settings` when a cluster could take them at all. Raises DevkitError for what no cluster takes."""
    check_ranges(settings)
    for name in _OBJECTS:
        if text := getattr(settings, name):
            checked_subdomain(text, flag_of(name))
    if settings.namespace:
        checked_label(settings.namespace, "--namespace", longest=LONGEST)
    for name in ("gpu_resource", "topology"):
        if text := getattr(settings, name):
            checked_key(text, flag_of(name))
    if settings.device_class and settings.gpu_resource:
        raise DevkitError(
            "--device-class and --gpu-resource both say how to ask for a GPU",
            "Keep the one that the cluster has: kubectl get deviceclasses; kubectl describe nodes.",
        )
    # Whoever reads these raises what is wrong with them.
    selected(settings)
    tolerated(settings)
    return settings


def selected(settings: KubernetesSettings) -> dict[str, str]:
    """The labels that nodes must have."""
    return dict(label_of(text, "--node-selector") for text in settings.node_selector)


def tolerated(settings: KubernetesSettings) -> list[dict[str, str]]:
    """The taints that nodes may have."""
    return [toleration_of(text, "--toleration") for text in settings.toleration]
