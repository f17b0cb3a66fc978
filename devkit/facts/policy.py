"""What a project's [policy] in devkit.toml allows, and which images keep to it."""

import re
from collections.abc import Iterable, Mapping

from devkit.facts.record import record

DOCKER_HUB = "docker.io"
_LABEL = re.compile(r"[A-Za-z0-9](?:[\w./-]*[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9][\w.-]*(?::\d+)?(?:/[\w.-]+)*/?", re.ASCII)
_KINDS = {
    "registries": "a list of strings",
    "indexes": "a list of strings",
    "mirrors": "a table of strings",
    "required_labels": "a table of strings",
    "allow_root": "true or false",
    "allow_privileged": "true or false",
}


class WrongPolicy(ValueError):  # noqa: N818 - named for what was read, as a user would say it
    """A [policy] that says nothing devkit could keep to. `key` is the wrong one; `wanted` what it should be."""

    def __init__(self, key: str, wanted: str) -> None:
        super().__init__(f"policy.{key} must be {wanted}" if wanted else f"policy.{key} is not known")
        self.key = key
        self.wanted = wanted


@record
class Policy:
    """The rules. Empty `registries` and `indexes` allow all; `mirrors` maps what is named to where it is taken from.

    Prefixes hold for whole parts of a name: docker.io/library allows docker.io/library/python, and no
    docker.io/library2. Root and privileged containers are forbidden unless allowed.
    """

    registries: tuple[str, ...] = ()
    mirrors: tuple[tuple[str, str], ...] = ()
    indexes: tuple[str, ...] = ()
    allow_root: bool = False
    allow_privileged: bool = False
    required_labels: tuple[tuple[str, str], ...] = ()

    def allows_image(self, image: str) -> bool:
        """Whether an image is of an allowed registry; `scratch`, which is none, always is."""
        return (
            not self.registries or image == "scratch" or _is_below(full_name(image), map(full_prefix, self.registries))
        )

    def mirrored(self, image: str) -> str:
        """The image under the name where it is to be taken from: that of its longest mirrored prefix."""
        whole = full_name(image)
        for named, mirror in sorted(self.mirrors, key=lambda pair: -len(full_prefix(pair[0]))):
            if _is_below(whole, (full_prefix(named),)):
                return mirror.rstrip("/") + whole[len(full_prefix(named)) :]
        return image

    def allows_index(self, url: str) -> bool:
        """Whether packages may come from an index."""
        return not self.indexes or _is_below(url.rstrip("/"), (allowed.rstrip("/") for allowed in self.indexes))


NO_POLICY = Policy()
"""Allows every image and index, and asks for nothing of what is rendered."""


def full_name(image: str) -> str:
    """An image with its registry, as engines complete it: python:3.12 is docker.io/library/python:3.12.

    Source: distribution/reference, "Normalized" (a first part with a dot, a colon or the name localhost is a host).
    """
    host, slash, rest = image.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        return f"{DOCKER_HUB}/{image if slash else f'library/{image}'}"
    host = host.lower()
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = DOCKER_HUB
    return f"{host}/library/{rest}" if host == DOCKER_HUB and "/" not in rest else f"{host}/{rest}"


def full_prefix(prefix: str) -> str:
    """The beginning of full names that a prefix stands for: nvidia is docker.io/nvidia, ghcr.io itself."""
    prefix = prefix.strip("/")
    host, _, rest = prefix.partition("/")
    if "." in host or ":" in host or host == "localhost":
        host = DOCKER_HUB if host.lower() == "index.docker.io" else host.lower()
        return f"{host}/{rest}" if rest else host
    return f"{DOCKER_HUB}/{prefix}"


def policy_from(table: object) -> Policy:
    """The policy in a [policy] table as TOML has it. Raises WrongPolicy."""
    if not isinstance(table, Mapping):
        raise WrongPolicy("", "a table")
    found: dict[str, object] = {}
    for key, value in table.items():
        if key not in _KINDS:
            raise WrongPolicy(str(key), "")
        if not _is_of(_KINDS[key], value):
            raise WrongPolicy(str(key), _KINDS[key])
        found[key] = tuple(value) if isinstance(value, list) else tuple(value.items()) if _is_table(value) else value
    policy = Policy(**found)  # type: ignore[arg-type]
    _check_labels(policy)
    _check_prefixes("registries", policy.registries)
    _check_prefixes("mirrors", (name for pair in policy.mirrors for name in pair))
    return policy


def _check_labels(policy: Policy) -> None:
    for name, value in policy.required_labels:
        if not _LABEL.fullmatch(name) or any(ord(letter) < ord(" ") for letter in value):
            raise WrongPolicy(f"required_labels.{name}", "a label's name and a value of one line")


def _check_prefixes(key: str, prefixes: Iterable[str]) -> None:
    for prefix in prefixes:
        if not _PREFIX.fullmatch(prefix):
            raise WrongPolicy(key, "names of registries or parts of them")


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_of(kind: str, value: object) -> bool:
    if kind == "true or false":
        return isinstance(value, bool)
    if kind == "a list of strings":
        return isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    return isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values())


def _is_below(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a name is one of the prefixes, or goes on after one with a new part, a tag or a digest."""
    for prefix in prefixes:
        # After a host alone, a colon begins a port: another registry.
        ends = "/:@" if "/" in prefix else "/"
        if name == prefix or (name.startswith(prefix) and name[len(prefix)] in ends):
            return True
    return False
