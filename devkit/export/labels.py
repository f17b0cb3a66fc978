"""Names that engines take: DNS labels (RFC 1123), asked for by Kubernetes, and good enough elsewhere."""

import re

from devkit.errors import DevkitError

LONGEST = 63
LONGEST_JOB = 52
"""A Job's own name is shorter: its pods add a dash and ten letters.
Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#creating-an-indexed-job"""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def checked_label(name: str, flag: str, *, longest: int = LONGEST_JOB) -> str:
    """`name` when it is a DNS label. Raises DevkitError that proposes one."""
    if _LABEL.fullmatch(name) and len(name) <= longest:
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:longest].strip("-")
    hint = f"Such as {plain}." if plain else "Use a-z, 0-9 and hyphens."
    raise DevkitError(
        f"{flag} {name!r} is no DNS label: at most {longest} of a-z, 0-9 and hyphens, no hyphen at the ends", hint
    )
