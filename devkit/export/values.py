"""Names, sizes and durations as people and engines write them: DNS labels, "64Gi", "500G", "90m", "1-12:00:00".

Text of users is quoted in generated files, so that the reader of YAML, a comment or a shell gets it back as it was.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable

from devkit.errors import DevkitError

GIB = 1 << 30
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")


def parse_size(text: str, flag: str) -> int:
    """Parse "64Gi", "500G" or a plain number of bytes. Raises DevkitError, naming `flag`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise DevkitError(f"{flag} is {text!r}, which is not a size", "Write it as 64Gi, 500G or 1Ti.")
    unit = match[2].lower()
    if match[3]:
        return round(float(match[1]) * (1 << 10 * tuple(_UNITS).index(unit)))
    return round(float(match[1]) * _UNITS[unit])


def parse_duration(text: str, flag: str) -> int:
    """Parse "90m", "24h", "2d", "HH:MM:SS" or Slurm's "D-HH:MM:SS" into seconds. Raises DevkitError, naming `flag`."""
    plain = text.strip().lower()
    clock = _TIME.fullmatch(plain)
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    else:
        parts = re.findall(r"(\d+)([smhd])", plain) if re.fullmatch(r"(?:\d+[smhd])+", plain) else []
        total = sum(int(count) * _SECONDS[unit] for count, unit in parts)
    if total <= 0:
        raise DevkitError(f"{flag} is {text!r}, which is not a duration", "Write it as 90m, 24h, 2d or 1-12:00:00.")
    return total


def round_up_to_gib(count: int) -> int:
    """Return the bytes in GiB, rounded up."""
    return -(-count // GIB)


def format_slurm_time(seconds: int) -> str:
    """Format a duration for Slurm: D-HH:MM:SS, or HH:MM:SS below a day."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days}-{clock}" if days else clock


MAX_LABEL_LENGTH = 63
MAX_JOB_NAME_LENGTH = 52
"""A Job's own name is shorter: its pods add a dash and ten letters.
Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#creating-an-indexed-job"""
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def validate_dns_label(name: str, flag: str, *, longest: int = MAX_JOB_NAME_LENGTH) -> str:
    """Return `name` if it is a DNS label (RFC 1123), as Kubernetes requires. Raises DevkitError that proposes one."""
    if _DNS_LABEL.fullmatch(name) and len(name) <= longest:
        return name
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:longest].strip("-")
    hint = f"Such as {label}." if label else "Use a-z, 0-9 and hyphens."
    raise DevkitError(
        f"{flag} {name!r} is not a DNS label: at most {longest} of a-z, 0-9 and hyphens, no hyphen at the ends", hint
    )


_UNPRINTABLE = re.compile(r"[\x7f-\x9f\ud800-\udfff\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON keeps and YAML does not: not printable, or a line break to YAML 1.1.
Source: https://yaml.org/spec/1.2.2/#51-character-set, https://yaml.org/spec/1.1/#id871136"""
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})
"""Words that readers of YAML 1.1, such as Kubernetes' own, may not take for strings."""
_PLAIN_LINES = re.compile(r"[\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")


def quote_yaml(text: str) -> str:
    """Quote as a double-quoted YAML scalar: a JSON string, with the rest of YAML's line breaks escaped."""
    written = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", written)


def format_yaml(text: str) -> str:
    """Format a YAML scalar that is this text to every reader, those of YAML 1.1 included: quoted unless it is plain."""
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return text if is_plain else quote_yaml(text)


def render_yaml_block(text: str, indent: int) -> str:
    """Render text as a literal block below a key, `indent` spaces deep; quoted where a block cannot hold it."""
    if not _PLAIN_LINES.fullmatch(text) or text[:1] in ("", " ", "\n") or text.rstrip("\n") == "":
        return quote_yaml(text)
    chomping = "|" if text.endswith("\n") and not text.endswith("\n\n") else "|+" if text.endswith("\n") else "|-"
    lines = text[:-1].split("\n") if text.endswith("\n") else text.split("\n")
    shift = " " * indent
    return chomping + "".join(f"\n{shift}{line}" if line else "\n" for line in lines)


def format_comment_line(text: str) -> str:
    """Format text for a comment, which ends with its line."""
    return "".join(char if char.isprintable() else " " for char in text)


def fold_shell_command(words: Iterable[str], *, indent: int, quote: Callable[[str], str] = shlex.quote) -> str:
    """Quote words for a POSIX shell, each long option with its values on its own line, `indent` spaces deep."""
    lines: list[str] = []
    for word in words:
        if not lines or word.startswith("--"):
            lines.append(quote(word))
        else:
            lines[-1] += f" {quote(word)}"
    return f" \\\n{' ' * indent}".join(lines)
