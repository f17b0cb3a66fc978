"""Names, labels, taints and resources as the API takes them."""

import re

from devkit.errors import DevkitError

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
LONGEST_SUBDOMAIN = 253


def checked_subdomain(name: str, flag: str) -> str:
    """`name` when objects may be called so: a DNS subdomain (RFC 1123). Raises DevkitError.

    Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names
    """
    if _SUBDOMAIN.fullmatch(name) and len(name) <= LONGEST_SUBDOMAIN:
        return name
    raise DevkitError(
        f"{flag} {name!r} is no name of an object: a-z, 0-9, hyphens and dots, none of those two at the ends",
        "kubectl get shows the names that are there.",
    )


def checked_key(name: str, flag: str) -> str:
    """`name` when it is the key of a label or the name of a resource: NAME, or DOMAIN/NAME. Raises DevkitError.

    Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
    """
    domain, mark, last = name.rpartition("/")
    is_fine = bool(last) and _VALUE.fullmatch(last) and (not mark or _SUBDOMAIN.fullmatch(domain))
    if is_fine and len(domain) <= LONGEST_SUBDOMAIN:
        return name
    raise DevkitError(f"{flag} {name!r} is no key: NAME or DOMAIN/NAME", "Such as nvidia.com/gpu.product.")


def label_of(text: str, flag: str) -> tuple[str, str]:
    """Key and value of NAME=VALUE. Raises DevkitError."""
    name, mark, value = text.partition("=")
    if mark and _VALUE.fullmatch(value):
        return checked_key(name, flag), value
    raise DevkitError(
        f"{flag} {text!r} is no label: NAME=VALUE, the value of at most 63 letters, digits, dots, dashes",
        "kubectl get nodes --show-labels shows those that are there.",
    )


def toleration_of(text: str, flag: str) -> dict[str, str]:
    """The toleration of a taint as kubectl prints it: KEY, KEY=VALUE, each with :EFFECT or without.

    Raises DevkitError. Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    taint, mark, effect = text.partition(":")
    if mark and effect not in _EFFECTS:
        raise DevkitError(f"{flag} {text!r} has no effect that there is", f"Write one of {', '.join(_EFFECTS)}.")
    found = {"key": checked_key(taint.partition("=")[0], flag), "operator": "Exists"}
    if "=" in taint:
        found |= {"operator": "Equal", "value": label_of(taint, flag)[1]}
    return found | ({"effect": effect} if mark else {})
