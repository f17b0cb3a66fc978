"""The NVIDIA driver's numbered fault reports, and what NVIDIA recommends for each."""

from collections.abc import Mapping
from enum import StrEnum

from devkit.facts.record import record


class Remedy(StrEnum):
    """What to do first about a report, as NVIDIA's catalogue puts it."""

    RESTART_PROGRAM = "restart the program"
    RESET_GPU = "reset the GPU"
    RESTART_MACHINE = "restart the machine"
    CHECK_POWER = "check the power cables"
    CHECK_LINK = "check the NVLink connection"
    NOTHING = "nothing"


@record
class Meaning:
    """What one number says, and the first remedy."""

    says: str
    remedy: Remedy


SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
"""Read in the catalogue of 2025-10 for Ampere and newer; older GPUs share the numbers below."""

FALLEN_OFF_THE_BUS = 79
CLEANUP = 45
"""Reported for every program on a GPU after another fault; says nothing of its own beside one."""
RECOVERY_CHANGED = 154
ROW_NOT_REPLACED = 64

_PROGRAM: Mapping[int, str] = {
    8: "the GPU stopped processing",
    11: "invalid command stream",
    13: "exception in a kernel, such as an access out of bounds",
    25: "invalid command stream",
    31: "access to GPU memory that is not mapped",
    32: "invalid command stream",
    39: "exception in a copy engine",
    40: "exception in a copy engine",
    41: "exception in a copy engine",
    43: "the GPU stopped processing after a fault of the program",
    45: "a program's work was removed",
    68: "exception in the video decoder",
    69: "wrong use of the graphics engine",
    80: "corrupted command stream",
    94: "memory error, contained to one program",
}

_RESET: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "uncorrectable memory error",
    62: "the power controller halted",
    64: "a bad row of memory could not be replaced",
    95: "memory error, not contained to one program",
    109: "a context switch timed out",
    110: "security fault",
    119: "the GPU's system processor (GSP) does not answer",
    120: "error in the GPU's system processor (GSP)",
    136: "an NVLink could not be trained",
    140: "unrecovered memory error",
    143: "the GPU could not be initialised",
    155: "NVLink error",
    156: "a bad part of the GPU is to be retired",
    158: "fatal timeout",
}

_LINK: Mapping[int, str] = {
    74: "NVLink error",
    **dict.fromkeys(range(144, 151), "NVLink error"),
}

_NOTHING: Mapping[int, str] = {
    37: "firmware error, dealt with",
    44: "fault during a context switch, dealt with",
    63: "a bad row or page of memory is to be replaced",
    92: "many corrected memory errors",
    93: "the infoROM is nearly worn out",
    121: "corrected error of the link to the processor",
    137: "NVLink access error, dealt with",
    141: "fault in a CUDA fast path, dealt with",
}

XIDS: Mapping[int, Meaning] = {
    **{number: Meaning(says, Remedy.RESTART_PROGRAM) for number, says in _PROGRAM.items()},
    **{number: Meaning(says, Remedy.RESET_GPU) for number, says in _RESET.items()},
    **{number: Meaning(says, Remedy.CHECK_LINK) for number, says in _LINK.items()},
    **{number: Meaning(says, Remedy.NOTHING) for number, says in _NOTHING.items()},
    54: Meaning("the auxiliary power cable is not connected", Remedy.CHECK_POWER),
    FALLEN_OFF_THE_BUS: Meaning("the GPU has fallen off the bus", Remedy.RESTART_MACHINE),
    151: Meaning("key rotation failed", Remedy.RESTART_MACHINE),
}
"""By number. Source: SOURCE; numbers that the catalogue calls unused, or leaves to support, are not listed."""
