"""Where a damaged answer on a healthy machine may lead to an error that the doctor is certain of, and why."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Allowed:
    """`code` may be found when `question` about something that matches `what` is answered with one of `faults`."""

    code: str
    question: str
    what: str
    faults: str
    because: str


OTHER_NUMBER = "with every digit 9|with numbers of 5000 digits|a number alone|cut after|one character short"
BROKEN = "a number alone|binary|cut after|UTF-16 without|nested|noise|one character short|twice|Latin-1|zeros|repeated|one line"

ALLOWED = (
    Allowed("CDI001", "read", "/cdi/", OTHER_NUMBER, "it then names another driver's libraries"),
    Allowed("CDI009", "read", "/cdi/", "every digit 9", "its GPUs then have one name, which two files describe"),
    Allowed("CUD004", "read", "torch/version.py", OTHER_NUMBER, "torch then is of another CUDA"),
    Allowed("PYT003", "read", "torch/version.py", OTHER_NUMBER, "torch then is of another CUDA"),
    Allowed("DRV002", "read", "/sys/module/nvidia/version", "digit 9", "the module then is another release"),
    Allowed("PYT010", "read", "dist-info/WHEEL", OTHER_NUMBER, "the wheel then asks for another C library"),
    Allowed("PYT010", "run", "getconf", OTHER_NUMBER, "the C library then is older: 2.3 is a version, too"),
    Allowed("ENG005", "run", "compose version", "a number alone", "Compose 0 is a version, too"),
    Allowed("CTK002", "run", "ask_engine", "digit 9", "the engine then speaks another API"),
    Allowed("ENG006", "read", "daemon.json", BROKEN, "the daemon would not start with it either"),
    Allowed(
        "ENG001", "read", "contexts/meta", BROKEN + "|blank|empty|without line|unreadable|vanishing", "nor could docker"
    ),
    Allowed("CTK008", "read", "config.toml", BROKEN + "|without line ends", "the toolkit would refuse it, too"),
    Allowed("GPU002", "run", "ask_nvml", "crashed", "a signal of its own in NVML is the failure"),
    Allowed("DRV003", "run", "ask_nvml", "crashed|timed out half way", "NVML had been called"),
    Allowed("ENG001", "run", "ask_engine", "timed out half way", "the engine had been connected to"),
    Allowed("HUB007", "run", "ask_hub", "timed out", "the hub then did not answer in time"),
    Allowed("STO002", "free_bytes", "", "none|one byte", "the disk then is full"),
    Allowed("CDI003", "read", "/var/run/cdi/nvidia.yaml", "", "Podman of this user reads the same file, its only way"),
    Allowed("DRV012", "run", "modinfo", OTHER_NUMBER, "the module on the disk then is another release"),
    Allowed("DRV006", "stat", "/dev/nvidia", "character|closed", "the device then is closed to this user"),
    Allowed("CTK009", "stat", "ldconfig.real", "absent", "the toolkit then names a program that is not there"),
    Allowed("CTK014", "stat", "nvidia-container-runtime$", "", "the runtime's program then cannot be started"),
    Allowed("CTK015", "stat", "/usr/bin/(runc|nvidia-container-cli)", "", "the toolkit then cannot start it"),
    Allowed("CDI010", "run", "ask_engine", "digit 9", "the engine then speaks another API, and lists no device"),
    Allowed(
        "ENG016", "stat", "/run/systemd/system", "", "systemd then does not run, to which the engine leaves containers"
    ),
    Allowed("ENG006", "stat", "daemon.json", "directory", "no daemon reads a folder"),
    Allowed("PYT003", "list", "bitsandbytes", "half", "the library then is not there"),
    Allowed("DRV014", "link", "libcuda.so.1", "absent", "the library then is not there"),
    Allowed("WSL003", "list", "/usr/lib/wsl/lib", "half", "the library then is not there"),
)


def is_allowed(code, question, what, fault):
    """Whether this damage really is this failure."""
    shown = " ".join(what) if isinstance(what, tuple) else what
    return any(
        code == row.code and question == row.question and re.search(row.what, shown) and re.search(row.faults, fault)
        for row in ALLOWED
    )
