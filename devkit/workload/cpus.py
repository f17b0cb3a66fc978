"""How many CPU cores this process may really use; a container's quota is less than the machine has."""

import os
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(quota_file: Path = CGROUP_QUOTA) -> int:
    """Cores by affinity, lowered to the cgroup v2 quota (whole cores, at least 1)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(affinity, _quota(quota_file) or affinity))


def _quota(path: Path) -> int | None:
    """Whole cores of "max 100000" or "150000 100000" (microseconds per period); None for no limit."""
    try:
        granted, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    return None if granted == "max" else max(1, int(granted) // int(period))
