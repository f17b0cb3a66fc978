"""Checks of what CUDA itself says, where `devkit doctor --deep` started it."""

from collections.abc import Iterator

from devkit.doctor.applies import a_gpu_in_this_container, is_in_container, known
from devkit.doctor.cuda_codes import CODES, Meaning
from devkit.doctor.machine import host_side
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.facts.model import CudaCall, CudaStop, Facts, StepEnd
from devkit.facts.values import Unknown

_NO_LIBRARY = Meaning(
    "the driver's libcuda is not here",
    "Install the driver with its CUDA library.",
    in_container="Ask for the GPU with the driver capability compute, and recreate the container.",
)
_HANGS = Meaning(
    "the driver does not come back: a GPU that fell off the bus, or a GPU of many that wakes up slowly",
    "Look for Xid lines in the kernel log, switch persistence on, and reboot if it stays so.",
    ("journalctl -k -b | grep -i xid",),
    confidence=Confidence.POSSIBLE,
)
_CRASHES = Meaning(
    "the library does not fit the driver, or is damaged",
    "Reinstall the driver's libraries, and remove copies of libcuda from elsewhere.",
    ("ldconfig -p | grep libcuda",),
    in_container="Recreate the container, and remove copies of libcuda from the image.",
    confidence=Confidence.POSSIBLE,
)
_OTHER = Meaning("the driver refused", "Look the code up in NVIDIA's list of CUresult, and at the kernel log.")


@check(
    "CUD011",
    "CUDA starts",
    covers=("F11", "H09", "G03", "G04"),
    symptoms=(
        "cuInit failed",
        "CUDA_ERROR_NO_DEVICE",
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "CUDA_ERROR_UNKNOWN",
    ),
    causes=("PYT017", "PYT018", "PYT019"),
)
def cuda_starts(facts: Facts) -> Iterator[Finding]:
    """cuInit, the first call of every CUDA program, succeeds in a process of its own.

    Why it matters: nvidia-smi proves only the management library. Compute has its own kernel module and device node,
    and each of its failures has a number that torch turns into the same few sentences.
    How it is seen: with --deep, a child process loads libcuda and calls cuInit; its return value, or that it hung or
    crashed, and the libcuda by the process's own map.
    Source: NVIDIA, CUDA Driver API, cuInit and CUresult; NVIDIA/nvidia-container-toolkit issues 908 and 1967.
    """
    a_gpu_in_this_container(facts)
    answer = known(facts.deep).cuda
    if isinstance(answer, Unknown):
        raise NotApplicable(answer.reason)
    if isinstance(answer, CudaCall):
        if answer.code != 0:
            name = f" ({answer.name})" if isinstance(answer.name, str) and answer.name else ""
            yield _finding(facts, CODES.get(answer.code, _OTHER), f"cuInit returns {answer.code}{name}", answer.libcuda)
        return
    yield _stopped(facts, answer)


def _stopped(facts: Facts, stop: CudaStop) -> Finding:
    match stop.end:
        case StepEnd.TIMED_OUT:
            return _finding(facts, _HANGS, f"{stop.call} hangs", stop.libcuda, stop.message)
        case StepEnd.CRASHED:
            return _finding(facts, _CRASHES, f"{stop.call} crashes", stop.libcuda, stop.message)
        case _:
            return _finding(facts, _NO_LIBRARY, "libcuda cannot be loaded", stop.libcuda, stop.message)


def _finding(facts: Facts, meaning: Meaning, what: str, libcuda: str, *readings: str) -> Finding:
    inside = is_in_container(facts)
    # Inside a container the commands are the host's, where the advice is not about the image alone.
    return Finding(
        Severity.ERROR,
        f"{what}: {meaning.why}",
        Fix(
            meaning.in_container or meaning.advice if inside else meaning.advice,
            () if inside and meaning.in_container else meaning.commands,
            where=Side.CONTAINER if inside else host_side(facts),
            root=meaning.needs_root,
            docs="https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html",
        ),
        evidence=(what, *readings, f"libcuda: {libcuda or 'not loaded'}"),
        confidence=meaning.confidence,
    )
