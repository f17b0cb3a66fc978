"""Facts without what names a person, a machine or a board, so that they can be shown to strangers."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from devkit.facts.model import Facts

SECRETS = (
    re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{10,}"),
    re.compile(r"\bgh[opusr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"),
    re.compile(r"\bglpat-[A-Za-z0-9_-]{10,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bnvapi-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"),
)
"""Shapes of access tokens: model hubs, code hosts, clouds, chat, JSON web tokens."""

_UUID = re.compile(r"\b((?:GPU|MIG)-(?:GPU-)?[0-9a-fA-F]{8})(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HOME = re.compile(
    r"((?:^|(?<=[^\w.-]))(?:/home/|/Users/|[A-Za-z]:[\\/]+Users[\\/]+|/mnt/[a-z]/Users/))([^/\\:,;'\"\s]+)"
)
_LOGIN = re.compile(r"(?<=://)([^/@\s]+)@")
_REMOTE = re.compile(r"(?<=tcp://)[^/:\s]+|(?<=tcp://\[)[^\]\s]+|(?<=ssh://)(?:[^/@\s]+@)?[^/:\s]+")
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "host"})
_COMMON_ACCOUNTS = frozenset({"user", "root", "ubuntu", "vscode", "runner", "admin", "Public", "shared", "linuxbrew"})
"""Names that say nothing of a person, and occur as words of their own."""


def redacted(facts: Facts) -> Facts:
    """The same facts with user names, home folders, remote hosts, tokens and the tails of device UUIDs blanked.

    A user name is one that stands in a home path; it is blanked wherever else it occurs as a word.
    GPUs stay distinguishable: the first eight digits of a UUID remain.
    """
    texts = tuple(_texts(facts))
    people = {match[2] for text in texts for match in _HOME.finditer(text)} - _COMMON_ACCOUNTS
    hosts = {match[0].rpartition("@")[2] for text in texts for match in _REMOTE.finditer(text)} - _HERE
    blanked: Facts = _rewritten(
        facts, partial(_blanked, words={**dict.fromkeys(people, "user"), **dict.fromkeys(hosts, "host")})
    )
    return blanked


def _blanked(text: str, *, words: dict[str, str]) -> str:
    for secret in SECRETS:
        text = secret.sub("redacted", text)
    text = _LOGIN.sub("", text)
    text = _UUID.sub(r"\1", text)
    text = _HOME.sub(r"\1user", text)
    for word, stand_in in words.items():
        text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", stand_in, text)
    return text


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _texts(getattr(value, field.name))


def _rewritten(value: Any, rewrite: Callable[[str], str]) -> Any:  # noqa: ANN401 - what came in, rewritten
    if type(value) is str:
        return rewrite(value)
    if isinstance(value, tuple):
        return tuple(_rewritten(item, rewrite) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: _rewritten(getattr(value, field.name), rewrite) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    return value
