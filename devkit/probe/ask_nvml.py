"""Ask NVML about every GPU, as a program of its own: NVML may hang in the kernel or crash the process.

Prints one JSON object per line as it goes, so that whoever must kill it still has what came before:
`{"call": NAME, "at_s": SECONDS}` before each NVML call, then `{"system": …}`, then `{"gpu": …}` or `{"failed": …}` for
each GPU, at last `{"end": true}`; or `{"error": …}` when NVML itself does not start. It imports nothing of devkit.

    python -P ask_nvml.py [FIRST_GPU]
"""

import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

STARTED = time.monotonic()


def say(**line: object) -> None:
    """Print one line at once; a line kept in a buffer is lost when the process is killed."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(first_gpu: int) -> None:
    """Report NVML's answers for the GPUs from `first_gpu` on."""
    say(call="import pynvml", at_s=0.0)
    try:
        import pynvml
    except ImportError as error:
        say(error={"code": None, "message": f"nvidia-ml-py cannot be imported: {error}", "call": "import pynvml"})
        return
    nvml = Nvml(pynvml)
    try:
        nvml.call("nvmlInit_v2", pynvml.nvmlInit)
        say(system=system_of(nvml))
        count = nvml.call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
        say(count=count)
    except nvml.errors as error:
        say(error={"code": nvml.code(error), "message": str(error), "call": nvml.running})
        return
    for index in range(first_gpu, count):
        try:
            say(gpu=gpu_of(nvml, index))
        except nvml.errors as error:
            say(failed={"index": index, "code": nvml.code(error), "message": str(error), "call": nvml.running})
    say(end=True)


class Nvml:
    """nvidia-ml-py with the name of the running call announced, and its errors under one roof."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.running = ""
        # The mismatch error is no subclass of NVMLError, and older releases do not have it.
        mismatch = getattr(module, "NVMLLibraryMismatchError", module.NVMLError)
        self.errors: tuple[type[Exception], ...] = (module.NVMLError, mismatch)

    def call(self, name: str, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - NVML returns what it likes
        """Call `function`, saying first that `name` is running. Raises what NVML raises."""
        self.running = name
        say(call=name, at_s=round(time.monotonic() - STARTED, 3))
        return function(*arguments)

    def reading(self, name: str, function: Callable[..., Any], *arguments: object) -> dict[str, Any]:
        """`{"value": …}`, or `{"unknown": reason}` where this driver or this GPU does not say.

        Raises the errors that condemn the whole GPU, such as a lost one.
        """
        try:
            value = self.call(name, function, *arguments)
        except self.errors as error:
            if self.code(error) in FATAL_FOR_GPU:
                raise
            return {"unknown": f"{name}: {error}"}
        return {"value": value.decode(errors="replace") if isinstance(value, bytes) else value}

    def code(self, error: Exception) -> int:
        """NVML's return value; 13, "function not found", for a library older than its bindings."""
        value = getattr(error, "value", None)
        return value if isinstance(value, int) else FUNCTION_NOT_FOUND


FUNCTION_NOT_FOUND = 13
FATAL_FOR_GPU = frozenset({4, 15, 16, 17, 21, 999})
"""No permission, lost, reset required, blocked by the operating system, not ready in firmware, unknown."""


def system_of(nvml: Nvml) -> dict[str, Any]:
    """The driver's version, and the newest CUDA that it runs as `1000 * major + 10 * minor`."""
    module = nvml.module
    return {
        "driver": nvml.reading("nvmlSystemGetDriverVersion", module.nvmlSystemGetDriverVersion),
        "cuda": nvml.reading("nvmlSystemGetCudaDriverVersion_v2", module.nvmlSystemGetCudaDriverVersion_v2),
    }


def gpu_of(nvml: Nvml, index: int) -> dict[str, Any]:
    """One GPU's facts; memory in bytes. Raises NVMLError when the GPU cannot be talked to."""
    module = nvml.module
    handle = nvml.call("nvmlDeviceGetHandleByIndex_v2", module.nvmlDeviceGetHandleByIndex, index)
    name = nvml.call("nvmlDeviceGetName", module.nvmlDeviceGetName, handle)
    capability = nvml.reading("nvmlDeviceGetCudaComputeCapability", module.nvmlDeviceGetCudaComputeCapability, handle)
    memory = nvml.reading("nvmlDeviceGetMemoryInfo", module.nvmlDeviceGetMemoryInfo, handle)
    if "value" in memory:
        memory = {"value": [memory["value"].total, memory["value"].free]}
    mig = nvml.reading("nvmlDeviceGetMigMode", module.nvmlDeviceGetMigMode, handle)
    return {
        "index": index,
        "name": name.decode(errors="replace") if isinstance(name, bytes) else name,
        "uuid": nvml.reading("nvmlDeviceGetUUID", module.nvmlDeviceGetUUID, handle),
        "capability": capability,
        "memory": memory,
        "mig": mig,
        "mig_instances": mig_instances(nvml, handle) if mig.get("value", [0])[0] else [],
    }


def mig_instances(nvml: Nvml, handle: object) -> list[str]:
    """UUIDs of the MIG devices on a GPU; slots without one are skipped."""
    module = nvml.module
    slots = nvml.reading("nvmlDeviceGetMaxMigDeviceCount", module.nvmlDeviceGetMaxMigDeviceCount, handle)
    found = []
    for slot in range(slots.get("value", 0)):
        device = nvml.reading(
            "nvmlDeviceGetMigDeviceHandleByIndex", module.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot
        )
        if "value" in device:
            uuid = nvml.reading("nvmlDeviceGetUUID", module.nvmlDeviceGetUUID, device["value"])
            found.append(str(uuid.get("value", uuid.get("unknown"))))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
