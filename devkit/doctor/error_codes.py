"""Meanings of CUDA error codes and texts, and of what the NVIDIA driver reports of GPUs and their fabric."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from devkit.doctor.model import Confidence
from devkit.facts.decode import decode_fields
from devkit.formats.documents import load


@dataclass(frozen=True)
class CudaErrorMeaning:
    """The cause of a CUDA error, and what to do. `in_container` replaces `advice` inside a container.

    `code` is the CUresult, and `texts` are parts of the error's text.
    """

    why: str
    advice: str
    commands: tuple[str, ...] = ()
    in_container: str = ""
    confidence: Confidence = Confidence.LIKELY
    needs_root: bool = False
    code: int | None = None
    texts: tuple[str, ...] = ()


CUDA_SYSTEM_NOT_READY = 802


@cache
def load_cuda_errors() -> tuple[CudaErrorMeaning, ...]:
    """Return the known errors, those with the most specific texts first."""
    return tuple(
        CudaErrorMeaning(**decode_fields(row, CudaErrorMeaning)) for row in load("devkit.doctor", "error_codes")["cuda"]
    )


def find_cuda_code(code: int) -> CudaErrorMeaning | None:
    """Find the meaning of a CUresult; None for one that is not known."""
    return next((meaning for meaning in load_cuda_errors() if meaning.code == code), None)


def find_cuda_error(text: str) -> CudaErrorMeaning | None:
    """Find the meaning of an error's text; None when no known text is in it."""
    lowered = text.lower()
    known = load_cuda_errors()
    return next((meaning for meaning in known if any(words.lower() in lowered for words in meaning.texts)), None)


@dataclass(frozen=True)
class XidMeaning:
    """The meaning of one Xid number, and what to do first, as NVIDIA's catalog puts it: "reset the GPU", or "nothing"."""

    summary: str
    remedy: str


XID_FALLEN_OFF_THE_BUS = 79
XID_CLEANUP = 45
"""Reported for every program on a GPU after another fault; says nothing more beside one."""
XID_RECOVERY_CHANGED = 154
XID_ROW_REMAP_FAILED = 64


@cache
def load_xids() -> Mapping[int, XidMeaning]:
    """Return the meaning of each known Xid number."""
    return {
        int(number): XidMeaning(summary, remedy)
        for remedy, rows in load("devkit.doctor", "error_codes")["xid"].items()
        for number, summary in rows.items()
    }


def explain_recovery(action: str) -> str:
    """Return what the driver requests with a recovery action; an unknown one as it is."""
    return str(load("devkit.doctor", "error_codes")["recovery"].get(action, action))


def explain_fabric_fault(fault: str) -> str:
    """Return what is wrong with a GPU that has a fault in the NVLink fabric; an unknown one as it is."""
    return str(load("devkit.doctor", "error_codes")["fabric"].get(fault, fault))
