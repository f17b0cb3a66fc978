"""The deep tier: CUDA, torch and the hub really tried, each in a separate process that may hang or crash."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from devkit.facts.runs import CudaCall, CudaStop, Deep, Step, StepEnd, TorchCall, TorchDevice
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.probe.children.protocol import (
    CHILDREN_FOLDER,
    build_child_command,
    find_last_line,
    find_signal,
    format_signal,
    merge_json_lines,
    parse_json_lines,
)
from devkit.probe.host import TIMED_OUT, Host
from devkit.probe.hub import read_hub_call
from devkit.probe.machine.interpreter import find_workload_python

# torch and the packages built on it, tried in child processes of the workload's own Python.
TORCH_PARTS = ("torch", "bitsandbytes", "triton", "flash_attn")
_FIRST_SAFE_PATH = (3, 11)
"""Python's -P came with it."""
_SHORTEST_ATTEMPT_S = 2.0

_STEP_ENDS = {"worked": StepEnd.WORKED, "failed": StepEnd.FAILED, "skipped": StepEnd.SKIPPED}

CUDA_SHARE = 0.3
"""Of the deadline. cuInit takes seconds on a machine with many GPUs and no persistence daemon, importing torch more."""
HUB_DEADLINE_S = 10.0
"""For three small requests."""


@dataclass
class _Notes:
    """The lines of all children together."""

    words: dict[str, Any] = field(default_factory=dict)
    devices: list[TorchDevice] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    part: str = ""
    running: str = ""
    """The step that was announced last and has not ended."""

    def take(self, line: dict[str, Any]) -> None:
        """Take one line of a child."""
        self.words.update(line)
        self.part = line.get("part", self.part)
        if "step" in line:
            self.running = str(line["step"])
        for key, end in _STEP_ENDS.items():
            if key in line:
                name = self.running = str(line[key])
                self.steps[name] = Step(name, end, str(line.get("detail", "")))
                self.running = ""
        if "device" in line:
            device = line["device"]
            capability = ComputeCapability(*device["capability"])
            has_bf16 = device.get("bf16", Unknown("no multiplication worked on it"))
            self.devices.append(TorchDevice(device["index"], device["name"], capability, has_bf16))


def read_deep(host: Host, *, deadline_s: float) -> Deep | Unknown:
    """Try CUDA, then torch and what is built on it, and the hub meanwhile, within `deadline_s` seconds."""
    ends_at = time.monotonic() + deadline_s
    with ThreadPoolExecutor(max_workers=1) as beside:
        hub = beside.submit(read_hub_call, host, deadline_s=min(HUB_DEADLINE_S, deadline_s))
        cuda = read_cuda(host, deadline_s=deadline_s * CUDA_SHARE)
        if isinstance(cuda, CudaStop) and cuda.end is StepEnd.TIMED_OUT:
            return Deep(cuda, Unknown(f"{cuda.call} hangs, and torch would wait for it, too"), hub.result())
        return Deep(cuda, read_torch(host, deadline_s=ends_at - time.monotonic()), hub.result())


def read_cuda(host: Host, *, deadline_s: float) -> CudaCall | CudaStop | Unknown:
    """Read how cuInit ends on this machine, and which libcuda it is."""
    done = host.run(build_child_command(host, "ask_cuda"), deadline_s=deadline_s)
    words = merge_json_lines(done)
    call, libcuda = str(words.get("call", "")), str(words.get("libcuda", ""))
    if isinstance(code := words.get("init"), int):
        version = words.get("cuda")  # 13000 is 13.0
        return CudaCall(
            code=code,
            libcuda=libcuda,
            cuda=Release.parse(f"{version // 1000}.{version % 1000 // 10}")
            if isinstance(version, int)
            else Unknown("cuDriverGetVersion did not say"),
            device_count=words.get("count", Unknown("cuDeviceGetCount was not reached")),
            name=str(words.get("name", "")),
        )
    if "error" in words:
        return CudaStop(StepEnd.FAILED, call, str(words["error"]), libcuda)
    if call and done.code == TIMED_OUT:
        return CudaStop(StepEnd.TIMED_OUT, call, f"{call} did not return within {deadline_s:g} s", libcuda)
    if call and (number := find_signal(done.code)):
        return CudaStop(StepEnd.CRASHED, call, f"{format_signal(number)} in {call}", libcuda)
    return Unknown(f"the CUDA child ended with status {done.code}: {find_last_line(done)}")


def read_torch(host: Host, *, deadline_s: float) -> TorchCall | Unknown | None:
    """Try torch and the packages built on it, within `deadline_s` seconds; None when torch is not installed.

    A part that takes its child down is left out of the next child, so that what comes after it is still tried.
    """
    python = find_workload_python(host)
    if isinstance(python, Unknown):
        return python
    safe_path = ["-P"] if python.version.numbers[:2] >= _FIRST_SAFE_PATH else []
    command = [python.executable, *safe_path, str(CHILDREN_FOLDER / "ask_torch.py")]
    ends_at, parts, notes = time.monotonic() + deadline_s, list(TORCH_PARTS), _Notes()
    while parts and (left_s := ends_at - time.monotonic()) > _SHORTEST_ATTEMPT_S:
        done = host.run([*command, *parts], deadline_s=left_s)
        notes.part = ""
        for line in parse_json_lines(done):
            notes.take(line)
        if "absent" in notes.words:
            return None
        if not notes.part:
            return Unknown(f"the torch child ended with status {done.code}: {find_last_line(done)}")
        if not notes.running:
            break
        if done.code == TIMED_OUT:
            end, detail = StepEnd.TIMED_OUT, f"did not end within {left_s:.0f} s"
        elif number := find_signal(done.code):
            end, detail = StepEnd.CRASHED, format_signal(number)
        else:
            end, detail = StepEnd.CRASHED, f"the process ended with status {done.code}: {find_last_line(done)}"
        notes.steps[notes.running] = Step(notes.running, end, detail)
        parts = parts[parts.index(notes.part) + 1 :] if "torch" in notes.words else []
    reply = notes.words.get("torch", {})
    not_imported = Unknown("torch could not be imported")
    cuda = reply.get("cuda") if reply else not_imported
    return TorchCall(
        version=str(reply.get("version", "")),
        cuda=Release.parse(cuda) if isinstance(cuda, str) else cuda,
        architectures=tuple(reply.get("architectures", ())),
        cxx11_abi=reply.get("cxx11_abi", not_imported),
        is_available=notes.words.get("available", Unknown("torch.cuda.is_available was not reached")),
        devices=tuple(notes.devices),
        bitsandbytes_library=notes.words.get("bitsandbytes", "") if reply else not_imported,
        steps=tuple(notes.steps.values()),
    )
