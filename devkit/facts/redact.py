"""Facts without what names a person, a machine or a board, so that they can be shown to strangers."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from devkit.facts.model import Facts, System

SECRETS = (
    re.compile(r"(?<![A-Za-z0-9])(?:hf|api_org)_[A-Za-z0-9]{10,}"),
    re.compile(r"(?<![A-Za-z0-9])gh[opusr]_[A-Za-z0-9]{20,}|(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{20,}"),
    re.compile(r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{10,}"),
    re.compile(r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"(?<![A-Za-z0-9])nvapi-[A-Za-z0-9_-]{16,}"),
    re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])"),
    re.compile(r"(?<![A-Za-z0-9])xox[abprs]-[A-Za-z0-9-]{10,}"),
    re.compile(r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"),
    re.compile(r"(?<![A-Za-z0-9])dckr_pat_[A-Za-z0-9_-]{10,}"),
    re.compile(r"(?<![A-Za-z0-9])pypi-[A-Za-z0-9_-]{16,}"),
    re.compile(r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{30,}"),
    re.compile(
        r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}|(?<![A-Za-z0-9])ya29\.[A-Za-z0-9_-]{20,}|(?<![A-Za-z0-9])GOCSPX-[\w-]{20,}"
    ),
    re.compile(r"(?<![A-Za-z0-9])(?:gsk|xai|r8|dapi|tvly|pplx|fw|key)(?:_|-)?[A-Za-z0-9]{32,}"),
    re.compile(r"(?<![A-Za-z0-9])(?:dop|doo|dor)_v1_[0-9a-f]{32,}|(?<![A-Za-z0-9])hv[sb]\.[A-Za-z0-9_-]{20,}"),
    re.compile(
        r"(?<![A-Za-z0-9])(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}|(?<![A-Za-z0-9])SG\.[\w-]{16,}\.[\w-]{16,}"
    ),
    re.compile(r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"),
    re.compile(r"hooks\.slack\.com/services/[\w/]{20,}|discord(?:app)?\.com/api/webhooks/[\w/-]{20,}"),
    re.compile(r"(?<![A-Za-z0-9])xapp-[A-Za-z0-9-]{10,}|(?<![A-Za-z0-9])gl(?:rt|dt|ptt|cbt)-[A-Za-z0-9_-]{10,}"),
    re.compile(r"(?<![A-Za-z0-9])ATATT3x[A-Za-z0-9_=-]{20,}|(?<![A-Za-z0-9])ATCTT3x[A-Za-z0-9_=-]{20,}"),
    re.compile(r"(?<=AccountKey=)[A-Za-z0-9+/=]{40,}|(?<=[?&]sig=)[A-Za-z0-9%+/=]{20,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]*(?:-----END [A-Z ]*PRIVATE KEY-----)?"),
    re.compile(r"(?i)(?<=authorization: )(?:basic|bearer|token) [A-Za-z0-9._~+/=-]{8,}"),
    # hf_, ghp_, glpat- and sk- in base64, as a secret of Kubernetes or a login of Docker holds them.
    re.compile(r"(?<![A-Za-z0-9+/])(?:aGZf|Z2hwX|Z2xwYXQt|c2st)[A-Za-z0-9+/=]{16,}"),
    re.compile(r"(?<=\"auth\": \")[A-Za-z0-9+/=]{8,}"),
    re.compile(r"(?<=\bpassword )[^\s$<]{8,}"),
)
"""Shapes of access tokens: model hubs, code hosts, clouds, chat, JSON web tokens, registries, keys, headers, netrc."""

_UUID = re.compile(r"((?:GPU|MIG)-(?:GPU-)?[0-9a-fA-F]{8})(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SERIAL = re.compile(
    r"(?i)(?<![a-z])(serial(?:[ _-]?(?:number|no))?\.?[ \t]*[:=#]?[ \t]*)(?=[a-z-]*[0-9])[0-9a-z-]{6,}"
)
_HOME = re.compile(
    r"((?:^|(?<=[^\w.-]))(?:/var/home/|/home/|/Users/|[A-Za-z]:[\\/]+Users[\\/]+|/mnt/[a-z]/Users/))"
    r"([^/\\:,;'\"\s]+)"
)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}")
_REMOTE = re.compile(
    r"(?<=tcp://)[^/:\s]+|(?<=tcp://\[)[^\]\s]+|(?<=ssh://)(?:[^/@\s]+@)?[^/:\s]+"
    r"|(?<=://)[\w.-]+(?=:\d)"
)
"""Engines elsewhere; and proxies and mirrors, which name a port where the public places of the web have none."""

_LOG_LINE = re.compile(
    r"(?m)^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?) "
    r"([\w.-]+) (?=[\w./-]+(?:\[\d+\])?: )"
)
"""A line of the system's log: the machine's name is between the time and the program."""

_HERE = frozenset({"localhost", "127.0.0.1", "::1", "host"})
_PLAIN_WORDS = frozenset(
    {
        "user",
        "proxy",
        "root",
        "host",
        "localhost",
        "ubuntu",
        "debian",
        "fedora",
        "centos",
        "rocky",
        "arch",
        "nixos",
        "linux",
        "windows",
        "vscode",
        "runner",
        "admin",
        "Public",
        "shared",
        "linuxbrew",
        "dev",
        "lib",
        "usr",
        "var",
        "etc",
        "proc",
        "sys",
        "run",
        "tmp",
        "opt",
        "bin",
        "srv",
        "mnt",
        "media",
        "home",
        "data",
        "work",
        "workspace",
        "project",
        "docker",
        "podman",
        "nvidia",
        "gpu",
        "cuda",
        "torch",
        "python",
        "amd64",
        "x86_64",
        "server",
        "desktop",
        "laptop",
        "default",
    }
)
"""Names that say nothing of a person or a machine, and occur as words of their own: `/dev` is no user's folder."""


@dataclasses.dataclass(frozen=True)
class Redaction:
    """The words to redact for one machine. Build it with `build_redaction`."""

    words: tuple[tuple[str, str], ...]
    """Names of people and machines, each with its replacement."""

    def redact_text(self, text: str) -> str:
        """Return `text` without tokens, logins, addresses, home folders, names, and the last digits of device numbers."""
        return _blanked(text, self.words)

    def of(self, value: Any) -> Any:  # noqa: ANN401 - what came in, rewritten
        """Return a record with every text in it redacted."""
        return _rewritten(value, self.redact_text)


@functools.lru_cache(maxsize=4096)
def _blanked(text: str, words: tuple[tuple[str, str], ...]) -> str:
    # Facts and findings say many things more than once.
    text = _MAIL.sub("mail", _without_tokens(text))
    text = _UUID.sub(r"\1", text)
    text = _SERIAL.sub(r"\1redacted", text)
    text = _HOME.sub(r"\1user", text)
    for word, stand_in in words:
        # A name is blanked inside "name-devcontainer-1" and "name_data" too, not inside of another word.
        text = re.sub(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", stand_in, text)
    return text


def redact_tokens(value: Any) -> Any:  # noqa: ANN401 - what came in, rewritten
    """Return a record without access tokens and logins, and otherwise unchanged: for whoever uses the machine."""
    return _rewritten(value, _without_tokens)


@functools.lru_cache(maxsize=4096)
def _without_tokens(text: str) -> str:
    for secret in SECRETS:
        text = secret.sub("redacted", text)
    return _LOGIN.sub("", text)


def build_redaction(facts: Facts) -> Redaction:
    """Find what identifies somebody in these facts: users with a home folder, this machine, and remote engines."""
    texts = tuple(_texts(facts))
    people = {match[2] for text in texts for match in _HOME.finditer(text)}
    remote = {match[0].rpartition("@")[2] for text in texts for match in _REMOTE.finditer(text)} - _HERE
    machines = {match[1] for text in texts for match in _LOG_LINE.finditer(text)}
    systems = [side.system for side in (facts, facts.inside) if isinstance(side, Facts)]
    machines |= {each.host_name for each in systems if isinstance(each, System) and isinstance(each.host_name, str)}
    hosts = {name for found in (*remote, *machines) for name in (found, found.partition(".")[0]) if _is_name(name)}
    found = {**dict.fromkeys(hosts, "host"), **dict.fromkeys(people, "user")}
    # The longest first: a short name may be part of a long one.
    return Redaction(tuple(sorted(((n, s) for n, s in found.items() if _is_name(n)), key=lambda pair: -len(pair[0]))))


def redact_facts(facts: Facts) -> Facts:
    """Return the facts with user and host names, home folders, tokens, mail addresses and device numbers redacted.

    A user name is one that occurs in a home path; it is redacted wherever else it occurs as a word.
    GPUs stay distinguishable: the first eight digits of a UUID remain.
    """
    blanked: Facts = build_redaction(facts).of(facts)
    return blanked


def _is_name(word: str) -> bool:
    """A number is none, nor is a single letter: both stand in too much that says nothing of anybody."""
    return len(word) > 1 and word not in _PLAIN_WORDS and not re.fullmatch(r"[\d.:]+", word)


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
