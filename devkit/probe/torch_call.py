"""How torch and what is built on it fare when they are tried, in child processes of the workload's own Python."""

import time
from dataclasses import dataclass, field
from typing import Any

from devkit.facts.model import Step, StepEnd, TorchCall, TorchDevice
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.probe.children import FOLDER, last_line, lines_of, signal_name, signal_number
from devkit.probe.host import TIMED_OUT, Done, Host
from devkit.probe.python import WorkloadPython, workload_python

PARTS = ("torch", "bitsandbytes", "triton", "flash_attn")

_FIRST_SAFE_PATH = (3, 11)
"""Python's -P came with it."""
_SHORTEST_ATTEMPT_S = 2.0


@dataclass
class _Notes:
    """What all children said together."""

    words: dict[str, Any] = field(default_factory=dict)
    devices: list[TorchDevice] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    part: str = ""
    running: str = ""
    """The step that was announced last and has not ended."""

    def take(self, line: dict[str, Any]) -> None:
        """One line of a child."""
        self.words.update(line)
        self.part = line.get("part", self.part)
        if "step" in line:
            self.running = str(line["step"])
        for key, end in _ENDS.items():
            if key in line:
                name = self.running = str(line[key])
                self.steps[name] = Step(name, end, str(line.get("detail", "")))
                self.running = ""
        if "device" in line:
            self.devices.append(_device(line["device"]))


_ENDS = {"worked": StepEnd.WORKED, "failed": StepEnd.FAILED, "skipped": StepEnd.SKIPPED}


def read_torch(host: Host, *, deadline_s: float) -> TorchCall | Unknown | None:
    """What worked and what did not, within `deadline_s` seconds; None when torch is not installed.

    A part that takes its child down is left out of the next child, so that what comes after it is tried all the same.
    """
    python = workload_python(host)
    if isinstance(python, Unknown):
        return python
    ends_at, parts, notes = time.monotonic() + deadline_s, list(PARTS), _Notes()
    while parts and (left_s := ends_at - time.monotonic()) > _SHORTEST_ATTEMPT_S:
        done = host.run(_command(python, parts), deadline_s=left_s)
        notes.part = ""
        for line in lines_of(done):
            notes.take(line)
        if "absent" in notes.words:
            return None
        if not notes.part:
            return Unknown(f"the torch child ended with status {done.code}: {last_line(done)}")
        if not notes.running:
            break
        notes.steps[notes.running] = _broken_off(notes.running, done, left_s)
        parts = parts[parts.index(notes.part) + 1 :] if "torch" in notes.words else []
    return _call(notes)


def _command(python: WorkloadPython, parts: list[str]) -> list[str]:
    safe_path = ["-P"] if python.version.numbers[:2] >= _FIRST_SAFE_PATH else []
    return [python.executable, *safe_path, str(FOLDER / "ask_torch.py"), *parts]


def _broken_off(step: str, done: Done, deadline_s: float) -> Step:
    if done.code == TIMED_OUT:
        return Step(step, StepEnd.TIMED_OUT, f"did not end within {deadline_s:.0f} s")
    if number := signal_number(done.code):
        return Step(step, StepEnd.CRASHED, signal_name(number))
    return Step(step, StepEnd.CRASHED, f"the process ended with status {done.code}: {last_line(done)}")


def _call(notes: _Notes) -> TorchCall:
    said = notes.words.get("torch", {})
    not_imported = Unknown("torch could not be imported")
    cuda = said.get("cuda") if said else not_imported
    return TorchCall(
        version=str(said.get("version", "")),
        cuda=Release.read(cuda) if isinstance(cuda, str) else cuda,
        architectures=tuple(said.get("architectures", ())),
        cxx11_abi=said.get("cxx11_abi", not_imported),
        is_available=notes.words.get("available", Unknown("torch.cuda.is_available was not reached")),
        devices=tuple(notes.devices),
        bitsandbytes_library=notes.words.get("bitsandbytes", "") if said else not_imported,
        steps=tuple(notes.steps.values()),
    )


def _device(said: dict[str, Any]) -> TorchDevice:
    return TorchDevice(
        index=said["index"],
        name=said["name"],
        capability=ComputeCapability(*said["capability"]),
        has_bf16=said.get("bf16", Unknown("no multiplication worked on it")),
    )
