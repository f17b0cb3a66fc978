"""What NVML says, asked in a child process that may hang or crash without harm."""

import time
from dataclasses import dataclass, field
from typing import Any

from devkit.facts.model import FailedGpu, Gpu, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.probe.children import asking, crash_number, last_line, lines_of, signal_name
from devkit.probe.gpu_health import health_of, reading
from devkit.probe.host import TIMED_OUT, Host
from devkit.probe.shapes import number, part, text, texts

LIBRARY_NOT_FOUND = 12
TIMEOUT = 10
UNKNOWN = 999
"""NVML return values, as in nvml.h."""

IMPORTING = "import pynvml"
"""What the child says it does before it calls NVML."""

MOST_GPUS = 1024
"""No machine has as many; a library that counts more does not know what it says."""

_HUNG_SHARE = 0.5
"""A call that ran for less of an attempt was one of many slow ones: GPUs without persistence wake up one by one."""
_SHORTEST_HANG_S = 0.3
"""Nor is a call stuck that was given less: it may wake a GPU up, on a busy machine."""
_SHARE_OF_THE_REST = 0.6
_SHORTEST_ATTEMPT_S = 0.4


@dataclass
class _Transcript:
    """What one child said before it ended, one way or another."""

    code: int
    last_words: str
    deadline_s: float
    words: dict[str, Any] = field(default_factory=dict)
    """The latest value of every key it printed."""
    gpus: dict[int, Gpu | FailedGpu] = field(default_factory=dict)
    waited_s: float = 0.0
    """How long the last call had been running when the child was killed."""

    @property
    def call(self) -> str:
        """The NVML function that ran last."""
        return str(self.words.get("call", ""))

    @property
    def hung(self) -> bool:
        """Whether the last call was stuck, rather than one of many slow ones."""
        return self.code == TIMED_OUT and self.waited_s >= max(_SHORTEST_HANG_S, self.deadline_s * _HUNG_SHARE)


def read_nvml(host: Host, *, deadline_s: float) -> NvmlAnswer | NvmlFailure | Unknown:
    """The driver and every GPU as NVML sees them, within `deadline_s` seconds.

    A GPU on which NVML hangs or crashes becomes a `FailedGpu`, and the GPUs behind it are asked anew in another child.
    """
    ends_at = time.monotonic() + deadline_s
    said = _ask(host, first_gpu=0, deadline_s=deadline_s * _SHARE_OF_THE_REST)
    system, count, gpus = part(said.words, "system"), number(said.words, "count"), said.gpus
    if count is None:
        return _failure(said)
    if not 0 <= count <= MOST_GPUS:
        return Unknown(f"NVML counts {count} GPUs, which no machine has")
    while (index := _first_missing(gpus, count)) < count:
        if said.hung or said.code != TIMED_OUT:
            gpus[index] = _condemned(index, said)
            index = _first_missing(gpus, count)
        left_s = ends_at - time.monotonic()
        if left_s < _SHORTEST_ATTEMPT_S or index == count:
            break
        said = _ask(host, first_gpu=index, deadline_s=left_s * _SHARE_OF_THE_REST)
        gpus.update(said.gpus)
    not_asked = f"not asked: NVML used up the {deadline_s:g} s it was given"
    answered = tuple(gpus.get(index, FailedGpu(index, TIMEOUT, not_asked)) for index in range(count))
    return NvmlAnswer(_driver(system), _cuda(system), answered)


def _first_missing(gpus: dict[int, Gpu | FailedGpu], count: int) -> int:
    return next((index for index in range(count) if index not in gpus), count)


def _ask(host: Host, *, first_gpu: int, deadline_s: float) -> _Transcript:
    done = host.run(asking(host, "ask_nvml", *([str(first_gpu)] if first_gpu else [])), deadline_s=deadline_s)
    said = _Transcript(done.code, last_line(done), deadline_s)
    for words in lines_of(done):
        said.words.update(words)
        gpu, failed = part(words, "gpu"), part(words, "failed")
        if (index := number(gpu, "index")) is not None:
            said.gpus[index] = _gpu(index, gpu)
        elif (index := number(failed, "index")) is not None:
            code = number(failed, "code")
            said.gpus[index] = FailedGpu(index, UNKNOWN if code is None else code, text(failed, "message"))
    if done.code == TIMED_OUT:
        at_s = said.words.get("at_s")
        said.waited_s = max(0.0, deadline_s - (at_s if isinstance(at_s, int | float) else 0.0))
    return said


def _failure(said: _Transcript) -> NvmlFailure | Unknown:
    """Why NVML gave no answer at all."""
    if error := part(said.words, "error"):
        code = number(error, "code")
        if code is None:
            return Unknown(text(error, "message"))
        end = NvmlEnd.LIBRARY_NOT_FOUND if code == LIBRARY_NOT_FOUND else NvmlEnd.ERROR
        return NvmlFailure(end, code, text(error, "message"), text(error, "call"))
    if said.code == TIMED_OUT and said.call in ("", IMPORTING):
        return Unknown(f"the NVML child had not yet begun after {said.deadline_s:.1f} s")
    if said.code == TIMED_OUT:
        return NvmlFailure(NvmlEnd.TIMED_OUT, 0, f"{said.call} did not return within {said.waited_s:.1f} s", said.call)
    if said.call and (ended_by := crash_number(said.code)):
        return NvmlFailure(NvmlEnd.CRASHED, ended_by, f"{signal_name(ended_by)} in {said.call}", said.call)
    return Unknown(f"the NVML child ended with status {said.code}: {said.last_words}")


def _condemned(index: int, said: _Transcript) -> FailedGpu:
    """The GPU at which a child stopped."""
    if said.code == TIMED_OUT:
        return FailedGpu(index, TIMEOUT, f"{said.call} did not return within {said.waited_s:.1f} s")
    if ended_by := crash_number(said.code):
        return FailedGpu(index, UNKNOWN, f"NVML crashed with {signal_name(ended_by)} in {said.call}")
    if error := part(said.words, "error"):
        return FailedGpu(index, number(error, "code") or UNKNOWN, f"{text(error, 'call')}: {text(error, 'message')}")
    return FailedGpu(index, TIMEOUT, f"the NVML child ended with status {said.code} in {said.call}: {said.last_words}")


def _gpu(index: int, said: dict[str, Any]) -> Gpu:
    return Gpu(
        index=index,
        uuid=reading(said, "uuid", str),
        name=text(said, "name"),
        capability=reading(said, "capability", lambda pair: ComputeCapability.read(f"{pair[0]}.{pair[1]}")),
        memory_bytes=reading(said, "memory", lambda pair: int(pair[0])),
        free_bytes=reading(said, "memory", lambda pair: int(pair[1])),
        mig_enabled=reading(said, "mig", lambda pair: bool(pair[0])),
        mig_instances=texts(said, "mig_instances"),
        health=health_of(part(said, "health")),
    )


def _driver(system: dict[str, Any]) -> Release | Unknown:
    return reading(system, "driver", lambda version: Release.read(str(version)))


def _cuda(system: dict[str, Any]) -> Release | Unknown:
    return reading(system, "cuda", lambda number: Release.read(f"{number // 1000}.{number % 1000 // 10}"))
