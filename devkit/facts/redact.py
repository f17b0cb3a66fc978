"""Facts without names of people, machines or boards, so they can be shown to strangers."""

import dataclasses
import functools
import re
from collections.abc import Iterator

from devkit.facts.machine import System
from devkit.facts.model import Facts
from devkit.facts.secrets import CACHED_TEXTS, T, is_random, redact_tokens, rewrite_texts

_LONG_WORD = re.compile(r"(?<![\w/.])[A-Za-z0-9_+/=-]{20,}(?![\w/.])")
MAX_DOUBTFUL = 5
"""Lines that are shown; a text with more is read once more anyway."""

_UUID = re.compile(r"((?:GPU|MIG)-(?:GPU-)?[0-9a-fA-F]{8})(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SERIAL = re.compile(
    r"(?i)(?<![a-z])(serial(?:[ _-]?(?:number|no))?\.?[ \t]*[:=#]?[ \t]*)(?=[a-z-]*[0-9])[0-9a-z-]{6,}"
)
_HOME = re.compile(
    r"((?:^|(?<=[^\w.-]))(?:/(?:[\w.-]+/){0,3}(?:home|[Uu]sers)/|[A-Za-z]:[\\/]+Users[\\/]+))"
    r"([^/\\:,;'\"\s]+)"
)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}")
_PERSON = re.compile(
    r"(?i)(?<![\w-])((?:user|username|login|logname|sudo_user|owner|host|hostname|nodename|nodelist|node|machine)[\"']?\s*[:=]\s*[\"']?)"
    r"(?=[\w.-]*[a-z])([\w][\w.-]+)(?![\w(/])"
)
_PROMPT = re.compile(
    r"(?<![\w.+/@-])([a-z_][\w-]*)@(?!sha\d|v\d|main\b|master\b|latest\b)([A-Za-z][\w-]+)(?=[\s:~$#\])]|$)"
)
_ADDRESS = re.compile(
    r"""(?ix)
    (?<![\w.=+-])(?:192\.168|172\.(?:1[6-9]|2\d|3[01])|169\.254)(?:\.\d{1,3}){2}(?![\w.]*\w)
    |(?:(?<=//)|(?<=@)|(?<=[(\[])|(?<=(?<!=)=)|(?<=\bfrom[ ])|(?<=\bto[ ])|(?<=\bon[ ])|(?<=\bat[ ])|(?<=\bip[ ])|(?<=\bhost[ ])
      |(?<=\baddr[ ])|(?<=\baddress[ ])|(?<=\bpeer[ ])|(?<=\bserver[ ])|(?<=\bping[ ])|(?<=\bssh[ ])|(?<=\bconnect[ ])|(?<=:[ ]))
      (?!127\.|0\.0\.0\.0|255\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)
    |(?<![\w.=+-])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?=:\d{2,5}\b)
    """
)
"""Addresses of machines: those of private networks, and any with a port or behind a word that introduces one.

Versions such as 10.3.5.147 have the same form.
"""
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

_NOT_NAMES = frozenset(
    (
        *("none", "null", "true", "false", "unknown", "name", "user", "host", "container", "image", "project"),
        *("redacted", "wsl", "windows", "linux", "not", "is", "has", "the", "address", "x86_64", "aarch64", "amd64"),
        *("arm64",),
    )
)
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "host"})
_PLAIN_WORDS = frozenset(
    (
        *("user", "proxy", "root", "host", "localhost", "ubuntu", "debian", "fedora", "centos", "rocky", "arch"),
        *("nixos", "linux", "windows", "vscode", "runner", "admin", "Public", "shared", "linuxbrew", "dev", "lib"),
        *("usr", "var", "etc", "proc", "sys", "run", "tmp", "opt", "bin", "srv", "mnt", "media", "home", "data"),
        *("work", "workspace", "project", "docker", "podman", "nvidia", "gpu", "cuda", "torch", "python", "amd64"),
        *("x86_64", "server", "desktop", "laptop", "default"),
    )
)
"""Names that say nothing of a person or a machine, and occur as separate words: `/dev` is not a user's folder."""


@dataclasses.dataclass(frozen=True)
class Redaction:
    """The words to redact for one machine. Build it with `build_redaction`."""

    words: tuple[tuple[str, str], ...]
    """Names of people and machines, each with its replacement."""

    def redact_text(self, text: str) -> str:
        """Return `text` without tokens, logins, addresses, home folders, names, and the last digits of device numbers."""
        return _blanked(text, self.words)

    def of(self, value: T) -> T:
        """Return a record with every text in it redacted."""
        return rewrite_texts(value, self.redact_text)


@functools.lru_cache(maxsize=CACHED_TEXTS)
def _blanked(text: str, words: tuple[tuple[str, str], ...]) -> str:
    # Facts and findings say many things more than once.
    text = _MAIL.sub("mail", redact_tokens(text))
    text = _ADDRESS.sub("address", text)
    text = _PROMPT.sub("user@host", text)
    text = _PERSON.sub(_blank_name, text)
    text = _UUID.sub(r"\1", text)
    text = _SERIAL.sub(r"\1redacted", text)
    text = _HOME.sub(r"\1user", text)
    for word, stand_in in words:
        # A name is blanked inside "name-devcontainer-1" and "name_data" too, not inside of another word.
        text = re.sub(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", stand_in, text)
    return text


def count_removed(before: str, after: str) -> int:
    """Count the places at which a redaction changed a text."""
    import difflib

    def split(text: str) -> list[str]:
        return re.findall(r"\w+|\W", text)

    total = 0
    for old, new in zip(before.split("\n"), after.split("\n"), strict=False):
        if old != new:
            changes = difflib.SequenceMatcher(None, split(old), split(new), autojunk=False).get_opcodes()
            total += sum(kind != "equal" for kind, *_ in changes)
    return total


def find_doubtful_lines(text: str) -> tuple[str, ...]:
    """Find lines of a redacted text that may still hold a secret: a long word of letters and digits that nothing explains."""
    lines = (line for line in text.splitlines() if any(is_random(word) for word in _LONG_WORD.findall(line)))
    return tuple(dict.fromkeys(lines))[:MAX_DOUBTFUL]


def _blank_name(found: re.Match[str]) -> str:
    if not _is_name(found[2]) or found[2].lower() in _NOT_NAMES:
        return found[0]
    return found[1] + ("user" if re.match(r"(?i)user|log|sudo|owner", found[1]) else "host")


def build_redaction(facts: Facts) -> Redaction:
    """Find what identifies somebody in these facts: users with a home folder, this machine, and remote engines."""
    texts = tuple(_texts(facts))
    people = {match[2] for text in texts for match in _HOME.finditer(text)}
    remote = {match[0].rpartition("@")[2] for text in texts for match in _REMOTE.finditer(text)} - _HERE
    machines = {match[1] for text in texts for match in _LOG_LINE.finditer(text)}
    systems = [side.system for side in (facts, facts.inside) if isinstance(side, Facts)]
    machines |= {each.host_name for each in systems if isinstance(each, System) and isinstance(each.host_name, str)}
    hosts = {name for found in (*remote, *machines) for name in (found, found.partition(".")[0])}
    found = {**dict.fromkeys(hosts, "host"), **dict.fromkeys(people, "user")}
    # The longest first: a short name may be part of a long one.
    return Redaction(tuple(sorted(((n, s) for n, s in found.items() if _is_name(n)), key=lambda pair: -len(pair[0]))))


def redact_facts(facts: Facts) -> Facts:
    """Return the facts with user and host names, home folders, tokens, email addresses and device numbers redacted.

    A user name is one that occurs in a home path; it is redacted wherever else it occurs as a word.
    GPUs stay distinguishable: the first eight digits of a UUID remain.
    """
    return build_redaction(facts).of(facts)


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
