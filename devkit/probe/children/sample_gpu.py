"""Sample GPUs through NVML while something else works, as a separate program: NVML may hang in the kernel.

    python -P sample_gpu.py FILE SECONDS [UUID…]

Appends one JSON object per GPU and moment to FILE, all GPUs where no UUID is given, until standard input ends, which
it does when the program that started this one ends, however. It imports nothing of devkit.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

READINGS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "utilization_percent": ("nvmlDeviceGetUtilizationRates", (), "gpu"),
    "memory_used_bytes": ("nvmlDeviceGetMemoryInfo", (), "used"),
    "memory_bytes": ("nvmlDeviceGetMemoryInfo", (), "total"),
    "clock_reasons": ("nvmlDeviceGetCurrentClocksEventReasons", (), ""),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", (1,), ""),
    "power_mw": ("nvmlDeviceGetPowerUsage", (), ""),
    "temperature_c": ("nvmlDeviceGetTemperature", (0,), ""),
}
"""Field of a sample -> NVML's function, what it takes after the handle, and the part of its answer."""

END_GRACE_S = 0.5


def main(file: Path, interval_s: float, wanted: list[str]) -> None:
    """Sample until standard input ends, or NVML does not answer."""
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        ended.set()
        # A driver that hangs holds the other thread, while this one runs: ctypes lets go of the interpreter.
        time.sleep(END_GRACE_S)
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()
    started = time.monotonic()
    with file.open("a", encoding="utf-8", buffering=1) as stream:
        try:
            import pynvml

            pynvml.nvmlInit()
            gpus = _gpus(pynvml, wanted)
        except Exception as error:  # noqa: BLE001 - whatever NVML raises is the answer
            stream.write(json.dumps({"unknown": f"NVML does not answer: {error}"}) + "\n")
            return
        while not ended.is_set():
            for index, name, handle in gpus:
                at_s = round(time.monotonic() - started, 3)
                stream.write(json.dumps({"gpu": index, "name": name, "at_s": at_s, **_sample(pynvml, handle)}) + "\n")
            ended.wait(interval_s)


def _gpus(nvml: Any, wanted: list[str]) -> list[tuple[int, str, object]]:  # noqa: ANN401 - a module without types
    """Index, name and handle of each wanted GPU. Raises LookupError where none is there."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if not wanted or _text(nvml.nvmlDeviceGetUUID(handle)) in wanted:
            found.append((index, _text(nvml.nvmlDeviceGetName(handle)), handle))
    if not found:
        raise LookupError("NVML shows none of the GPUs that the run uses; it reports no utilization of MIG devices")
    return found


def _sample(nvml: Any, handle: object) -> dict[str, int]:  # noqa: ANN401 - a module without types
    """Return what NVML tells of one GPU now; what it does not tell is left out."""
    sample = {}
    for field, (function, arguments, part) in READINGS.items():
        ask: Callable[..., Any] | None = getattr(nvml, function, None)
        try:
            answer = ask(handle, *arguments) if ask else None
        except nvml.NVMLError:
            continue
        if answer is not None:
            sample[field] = int(getattr(answer, part) if part else answer)
    return sample


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
