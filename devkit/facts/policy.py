"""Parsing of the [policy] table of devkit.toml."""

import re
from collections.abc import Iterable, Mapping

from devkit.facts.decode import InvalidValue, UnknownKey, decode_fields
from devkit.facts.project import Policy

_LABEL = re.compile(r"[A-Za-z0-9](?:[\w./-]*[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9][\w.-]*(?::\d+)?(?:/[\w.-]+)*/?", re.ASCII)


class InvalidPolicy(ValueError):  # noqa: N818 - named for what was read, as a user would say it
    """A [policy] that devkit cannot enforce. `key` is the wrong one; `wanted` says what it should be, "" if unknown."""

    def __init__(self, key: str, wanted: str) -> None:
        super().__init__(f"policy.{key} must be {wanted}" if wanted else f"policy.{key} is not known")
        self.key = key
        self.wanted = wanted


def parse_policy(table: object) -> Policy:
    """Parse a [policy] table of devkit.toml. Raises InvalidPolicy."""
    if not isinstance(table, Mapping):
        raise InvalidPolicy("", "a table")
    try:
        policy = Policy(**decode_fields(table, Policy))
    except UnknownKey as error:
        raise InvalidPolicy(error.key, "") from None
    except InvalidValue as error:
        raise InvalidPolicy(str(error.path[0]), error.expected) from None
    for key, names in (("registries", policy.registries), ("indexes", policy.indexes)):
        if "" in names:
            raise InvalidPolicy(key, "a list of strings")
    for name, value in policy.required_labels:
        if not _LABEL.fullmatch(name) or any(ord(letter) < ord(" ") for letter in value):
            raise InvalidPolicy(f"required_labels.{name}", "a label's name and a value of one line")
    _validate_prefixes("registries", policy.registries)
    _validate_prefixes("mirrors", (name for pair in policy.mirrors for name in pair))
    return policy


def _validate_prefixes(key: str, prefixes: Iterable[str]) -> None:
    for prefix in prefixes:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidPolicy(key, "names of registries or parts of them")
