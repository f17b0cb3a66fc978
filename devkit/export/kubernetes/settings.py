"""Settings specific to Kubernetes: the table [job.kubernetes], and flags; names, labels and taints in them."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from devkit.errors import DevkitError
from devkit.export.values import MAX_LABEL_LENGTH, validate_dns_label
from devkit.facts.settings import SettingInfo, format_option, validate_ranges

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
        f"{flag} {name!r} is not a valid object name: use a-z, 0-9, hyphens and dots, and start and end with a letter or digit",
        "List the names with kubectl get.",
    )


def validate_label_key(name: str, flag: str) -> str:
    """Return `name` if it is the key of a label or a resource: NAME, or DOMAIN/NAME. Raises DevkitError.

    Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
    """
    domain, mark, last = name.rpartition("/")
    is_valid = bool(last) and _VALUE.fullmatch(last) and (not mark or _SUBDOMAIN.fullmatch(domain))
    if is_valid and len(domain) <= MAX_SUBDOMAIN_LENGTH:
        return name
    raise DevkitError(f"{flag} {name!r} is not a key: expected NAME or DOMAIN/NAME", "Such as nvidia.com/gpu.product.")


def parse_label(text: str, flag: str) -> tuple[str, str]:
    """Parse NAME=VALUE. Raises DevkitError."""
    name, mark, value = text.partition("=")
    if mark and _VALUE.fullmatch(value):
        return validate_label_key(name, flag), value
    raise DevkitError(
        f"{flag} {text!r} is not a label: expected NAME=VALUE, with a value of at most 63 letters, digits, dots, dashes",
        "List the labels: kubectl get nodes --show-labels.",
    )


@dataclass(frozen=True)
class Toleration:
    """A toleration of a taint. `value` is None for any, `effect` "" for all."""

    key: str
    value: str | None
    effect: str
    because: str = ""


def parse_toleration(text: str, flag: str) -> Toleration:
    """Parse a taint as kubectl prints it, KEY or KEY=VALUE, with or without :EFFECT. Raises DevkitError.

    Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    taint, mark, effect = text.partition(":")
    if mark and effect not in _EFFECTS:
        raise DevkitError(f"{flag} {text!r} has an unknown effect", f"Write one of {', '.join(_EFFECTS)}.")
    key, has_value, _ = taint.partition("=")
    return Toleration(validate_label_key(key, flag), parse_label(taint, flag)[1] if has_value else None, effect)


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


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """The settings specific to Kubernetes. "", None and () leave the choice to devkit."""

    namespace: Annotated[str, SettingInfo("Namespace. Default: the namespace of your kubectl context.")] = ""
    kind: Annotated[JobKind | None, SettingInfo("Kind of object. Default: job for one node, trainjob for several.")] = (
        None
    )
    queue: Annotated[str, SettingInfo("Kueue's LocalQueue.")] = ""
    gpu_resource: Annotated[
        str,
        SettingInfo("Resource to request, instead of the vendor's.", example="nvidia.com/mig-1g.10gb", has_flag=False),
    ] = ""
    node_selector: Annotated[
        tuple[str, ...], SettingInfo("Label that a node must have. May be repeated.", example="NAME=VALUE")
    ] = ()
    toleration: Annotated[
        tuple[str, ...],
        SettingInfo(
            "Taint to tolerate: KEY or KEY=VALUE, with or without :EFFECT. May be repeated.",
            example="TAINT",
            has_flag=False,
        ),
    ] = ()
    storage_class: Annotated[
        str, SettingInfo("StorageClass for new storage. Default: the cluster's.", has_flag=False)
    ] = ""
    pull_secret: Annotated[str, SettingInfo("Secret for pulling the image.", has_flag=False)] = ""
    access_mode: Annotated[
        AccessMode | None,
        SettingInfo("Access mode for new storage: ReadWriteOnce, ReadWriteMany or ReadWriteOncePod.", has_flag=False),
    ] = None
    token_secret: Annotated[str, SettingInfo("Secret with the hub's token under the key `token`.", has_flag=False)] = (
        "devkit-hub"  # noqa: S105 - its name
    )
    label: Annotated[
        tuple[str, ...], SettingInfo("Label NAME=VALUE for the job and its pods. May be repeated.", has_flag=False)
    ] = ()
    annotation: Annotated[
        tuple[str, ...],
        SettingInfo("Annotation NAME=VALUE for the pods, such as Kueue's topology. May be repeated.", has_flag=False),
    ] = ()
    service_account: Annotated[str, SettingInfo("ServiceAccount for the pods.", has_flag=False)] = ""
    priority_class: Annotated[str, SettingInfo("PriorityClass for the pods.", has_flag=False)] = ""
    scheduler: Annotated[
        str, SettingInfo("Scheduler for the pods, such as volcano or kai-scheduler.", has_flag=False)
    ] = ""
    rdma: Annotated[
        tuple[str, ...],
        SettingInfo(
            "Network device for NCCL that each pod requests: rdma/hca or vpc.amazonaws.com/efa=4. May be repeated.",
            has_flag=False,
        ),
    ] = ()
    host_network: Annotated[
        bool, SettingInfo("Use the node's network in pods, as some RDMA setups require: true or false.", has_flag=False)
    ] = False
    user: Annotated[
        int | None,
        SettingInfo(
            "Numeric user ID for the pods. Default: dev in the project's image, or a foreign image's own user.",
            at_least=1,
            has_flag=False,
        ),
    ] = None
    gpu_group: Annotated[
        int | None,
        SettingInfo(
            "Group that can open AMD devices on the nodes, as shown by stat --format %g /dev/kfd.",
            at_least=1,
            at_most=2**31 - 1,
            has_flag=False,
        ),
    ] = None


_OBJECTS = (
    "queue",
    "storage_class",
    "token_secret",
    "pull_secret",
    "service_account",
    "priority_class",
    "scheduler",
)
"""Settings that name an object of the cluster."""


def validate_kubernetes_settings(settings: KubernetesSettings) -> KubernetesSettings:
    """Return the settings. Raises DevkitError for those that no cluster accepts."""
    validate_ranges(settings)
    for name in _OBJECTS:
        if text := getattr(settings, name):
            validate_subdomain(text, format_option(KubernetesSettings, name))
    if settings.namespace:
        validate_dns_label(settings.namespace, "--namespace", longest=MAX_LABEL_LENGTH)
    if settings.gpu_resource:
        validate_label_key(settings.gpu_resource, "--set gpu_resource")
    for text in settings.annotation:
        validate_label_key(text.partition("=")[0], "--set annotation")
    return settings


def parse_rdma_devices(settings: KubernetesSettings) -> dict[str, int]:
    """Parse the network devices of a pod: the resource, and how many of it. Raises DevkitError."""
    found = {}
    for text in settings.rdma:
        name, _, count = text.partition("=")
        if not re.fullmatch(r"[1-9]\d{0,2}", count or "1") or "/" not in name:
            raise DevkitError(
                f"--set rdma={text!r} is not a resource: expected DOMAIN/NAME=COUNT",
                "List them: kubectl describe nodes.",
            )
        found[validate_label_key(name, "--set rdma")] = int(count or 1)
    return found
