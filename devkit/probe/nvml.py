"""What NVML says, asked in a child process that may hang or crash without harm."""

import time
from dataclasses import dataclass, field
from typing import Any

from devkit.facts.model import FailedGpu, Gpu, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.probe.children import asking, last_line, lines_of, signal_name, signal_number
from devkit.probe.gpu_health import health_of
from devkit.probe.host import TIMED_OUT, Host

LIBRARY_NOT_FOUND = 12
TIMEOUT = 10
UNKNOWN = 999
"""NVML return values, as in nvml.h."""

_HUNG_SHARE = 0.5
"""A call that ran for less of an attempt was one of many slow ones: GPUs without persistence wake up one by one."""
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
        return self.code == TIMED_OUT and self.waited_s >= self.deadline_s * _HUNG_SHARE


def read_nvml(host: Host, *, deadline_s: float) -> NvmlAnswer | NvmlFailure | Unknown:
    """The driver and every GPU as NVML sees them, within `deadline_s` seconds.

    A GPU on which NVML hangs or crashes becomes a `FailedGpu`, and the GPUs behind it are asked anew in another child.
    """
    ends_at = time.monotonic() + deadline_s
    said = _ask(host, first_gpu=0, deadline_s=deadline_s * _SHARE_OF_THE_REST)
    system, count, gpus = said.words.get("system", {}), said.words.get("count"), said.gpus
    if count is None:
        return _failure(said)
    while len(gpus) < count:
        if said.hung or said.code != TIMED_OUT:
            gpus[len(gpus)] = _condemned(len(gpus), said)
        left_s = ends_at - time.monotonic()
        if left_s < _SHORTEST_ATTEMPT_S or len(gpus) == count:
            break
        said = _ask(host, first_gpu=len(gpus), deadline_s=left_s * _SHARE_OF_THE_REST)
        gpus.update(said.gpus)
    for index in range(len(gpus), count):
        gpus[index] = FailedGpu(index, TIMEOUT, f"not asked: NVML used up the {deadline_s:g} s it was given")
    return NvmlAnswer(_driver(system), _cuda(system), tuple(gpus[index] for index in range(count)))


def _ask(host: Host, *, first_gpu: int, deadline_s: float) -> _Transcript:
    done = host.run(asking(host, "ask_nvml", *([str(first_gpu)] if first_gpu else [])), deadline_s=deadline_s)
    said = _Transcript(done.code, last_line(done), deadline_s)
    for words in lines_of(done):
        said.words.update(words)
        if gpu := words.get("gpu"):
            said.gpus[gpu["index"]] = _gpu(gpu)
        elif failed := words.get("failed"):
            said.gpus[failed["index"]] = FailedGpu(failed["index"], failed["code"], failed["message"])
    if done.code == TIMED_OUT:
        said.waited_s = max(0.0, deadline_s - said.words.get("at_s", 0.0))
    return said


def _failure(said: _Transcript) -> NvmlFailure | Unknown:
    """Why NVML gave no answer at all."""
    if error := said.words.get("error"):
        if error["code"] is None:
            return Unknown(error["message"])
        end = NvmlEnd.LIBRARY_NOT_FOUND if error["code"] == LIBRARY_NOT_FOUND else NvmlEnd.ERROR
        return NvmlFailure(end, error["code"], error["message"], error["call"])
    if said.code == TIMED_OUT:
        return NvmlFailure(NvmlEnd.TIMED_OUT, 0, f"{said.call} did not return within {said.waited_s:.1f} s", said.call)
    if said.call and (number := signal_number(said.code)):
        return NvmlFailure(NvmlEnd.CRASHED, number, f"{signal_name(number)} in {said.call}", said.call)
    return Unknown(f"the NVML child ended with status {said.code}: {said.last_words}")


def _condemned(index: int, said: _Transcript) -> FailedGpu:
    """The GPU at which a child stopped."""
    if said.code == TIMED_OUT:
        return FailedGpu(index, TIMEOUT, f"{said.call} did not return within {said.waited_s:.1f} s")
    if number := signal_number(said.code):
        return FailedGpu(index, UNKNOWN, f"NVML crashed with {signal_name(number)} in {said.call}")
    if error := said.words.get("error"):
        return FailedGpu(index, error["code"] or UNKNOWN, f"{error['call']}: {error['message']}")
    return FailedGpu(index, UNKNOWN, f"the NVML child ended with status {said.code} in {said.call}: {said.last_words}")


def _gpu(said: dict[str, Any]) -> Gpu:
    total, free = _pair(said["memory"])
    capability: ComputeCapability | Unknown = Unknown(said["capability"].get("unknown", ""))
    if "value" in said["capability"]:
        capability = ComputeCapability(*said["capability"]["value"])
    mig = said["mig"]
    return Gpu(
        index=said["index"],
        uuid=said["uuid"]["value"] if "value" in said["uuid"] else Unknown(said["uuid"]["unknown"]),
        name=said["name"],
        capability=capability,
        memory_bytes=total,
        free_bytes=free,
        mig_enabled=bool(mig["value"][0]) if "value" in mig else Unknown(mig["unknown"]),
        mig_instances=tuple(said["mig_instances"]),
        health=health_of(said.get("health")),
    )


def _pair(memory: dict[str, Any]) -> tuple[int | Unknown, int | Unknown]:
    if "value" not in memory:
        reason = Unknown(memory["unknown"])
        return reason, reason
    total, free = memory["value"]
    return total, free


def _driver(system: dict[str, Any]) -> Release | Unknown:
    driver = system.get("driver", {})
    return Release.read(driver["value"]) if "value" in driver else Unknown(driver.get("unknown", "NVML did not say"))


def _cuda(system: dict[str, Any]) -> Release | Unknown:
    cuda = system.get("cuda", {})
    if "value" not in cuda:
        return Unknown(cuda.get("unknown", "NVML did not say"))
    return Release.read(f"{cuda['value'] // 1000}.{cuda['value'] % 1000 // 10}")
