"""Names, sizes and durations as people and engines write them: DNS labels, "64Gi", "500G", "90m", "1-12:00:00"."""

import re

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
