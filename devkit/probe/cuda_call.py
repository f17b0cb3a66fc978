"""What the CUDA driver library says, asked in a child process that may hang or crash without harm."""

from typing import Any

from devkit.facts.model import CudaCall, CudaStop, StepEnd
from devkit.facts.values import Release, Unknown
from devkit.probe.children import asking, last_line, lines_of, signal_name, signal_number
from devkit.probe.host import TIMED_OUT, Done, Host


def read_cuda(host: Host, *, deadline_s: float) -> CudaCall | CudaStop | Unknown:
    """How cuInit ends on this machine, and which libcuda answered."""
    done = host.run(asking(host, "ask_cuda"), deadline_s=deadline_s)
    words: dict[str, Any] = {}
    for line in lines_of(done):
        words.update(line)
    call, libcuda = str(words.get("call", "")), str(words.get("libcuda", ""))
    if isinstance(code := words.get("init"), int):
        return CudaCall(
            code=code,
            libcuda=libcuda,
            cuda=_cuda(words.get("cuda")),
            device_count=words.get("count", Unknown("cuDeviceGetCount was not reached")),
            name=str(words.get("name", "")),
        )
    if "error" in words:
        return CudaStop(StepEnd.FAILED, call, str(words["error"]), libcuda)
    return _stopped(done, call, libcuda, deadline_s=deadline_s)


def _stopped(done: Done, call: str, libcuda: str, *, deadline_s: float) -> CudaStop | Unknown:
    if call and done.code == TIMED_OUT:
        return CudaStop(StepEnd.TIMED_OUT, call, f"{call} did not return within {deadline_s:g} s", libcuda)
    if call and (number := signal_number(done.code)):
        return CudaStop(StepEnd.CRASHED, call, f"{signal_name(number)} in {call}", libcuda)
    return Unknown(f"the CUDA child ended with status {done.code}: {last_line(done)}")


def _cuda(number: object) -> Release | Unknown:
    """13.0 from 13000."""
    if not isinstance(number, int):
        return Unknown("cuDriverGetVersion did not say")
    return Release.read(f"{number // 1000}.{number % 1000 // 10}")
