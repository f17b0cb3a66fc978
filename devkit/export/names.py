"""Names of jobs and objects: DNS labels, which most engines require."""

import re

from devkit.errors import DevkitError

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
        f"{flag} {name!r} is no DNS label: at most {longest} of a-z, 0-9 and hyphens, no hyphen at the ends", hint
    )
