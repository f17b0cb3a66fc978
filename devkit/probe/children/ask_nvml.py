"""Query NVML about every GPU, as a separate program: NVML may hang in the kernel or crash the process.

Prints one JSON object per line as it goes, so that a caller that must kill it still has what came before:
`{"call": NAME, "at_s": SECONDS}` before each NVML call, then `{"system": …}`, then `{"gpu": …}` or `{"failed": …}` for
each GPU, at last `{"end": true}`; or `{"error": …}` when NVML itself does not start. It imports nothing of devkit.

    python -P ask_nvml.py [FIRST_GPU]
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

STARTED = time.monotonic()


def emit(**line: object) -> None:
    """Print one line at once; a line kept in a buffer is lost when the process is killed."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(first_gpu: int) -> None:
    """Report NVML's answers for the GPUs from `first_gpu` on."""
    emit(call="import pynvml", at_s=0.0)
    try:
        import pynvml
    except ImportError as error:
        emit(error={"code": None, "message": f"nvidia-ml-py cannot be imported: {error}", "call": "import pynvml"})
        return
    nvml = Nvml(pynvml)
    try:
        nvml.call("nvmlInit_v2", pynvml.nvmlInit)
        emit(system={key: nvml.read(name, fatal=FATAL_FOR_GPU) for key, name in VERSIONS.items()})
        count = nvml.call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
        if count > MAX_GPUS:
            emit(
                error={"code": None, "message": f"NVML counts {count} GPUs, which no machine has", "call": nvml.running}
            )
            return
        emit(count=count)
    except nvml.errors as error:
        emit(error={"code": nvml.code(error), "message": str(error), "call": nvml.running})
        return
    counters: list[tuple[int, int, float]] = []
    for index in range(first_gpu, count):
        try:
            gpu = read_gpu(nvml, index)
        except nvml.errors as error:
            emit(failed={"index": index, "code": nvml.code(error), "message": str(error), "call": nvml.running})
            continue
        emit(gpu=gpu)
        if errors := gpu["health"]["nvlink"].get("value", {}).get("errors"):
            counters.append((index, errors, time.monotonic()))
    emit_nvlink_rates(nvml, counters)
    emit(end=True)


def emit_nvlink_rates(nvml: "Nvml", counters: list[tuple[int, int, float]]) -> None:
    """Count the link errors of some GPUs, by index, count and time of the first reading, once more."""
    if not counters:
        return
    time.sleep(max(0.0, counters[-1][2] + RATE_OVER_S - time.monotonic()))
    for index, before, at in counters:
        try:
            handle = nvml.call("nvmlDeviceGetHandleByIndex_v2", nvml.module.nvmlDeviceGetHandleByIndex, index)
            after = read_nvlinks(nvml, handle).get("value", {}).get("errors")
        except nvml.errors:
            continue
        if isinstance(after, int):
            rate = (after - before) / (time.monotonic() - at)
            emit(nvlink_rate={"index": index, "per_s": round(max(0.0, rate), 1)})


FUNCTION_NOT_FOUND = 13
FATAL_FOR_GPU = frozenset({4, 15, 16, 17, 21, 999})
"""No permission, lost, reset required, blocked by the operating system, not ready in firmware, unknown."""
LOST_OR_STUCK = frozenset({15, 16})


class Nvml:
    """nvidia-ml-py with the name of the running call announced, and its errors under one roof."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.running = ""
        # The mismatch error is not a subclass of NVMLError, and older releases do not have it.
        mismatch = getattr(module, "NVMLLibraryMismatchError", module.NVMLError)
        # The bindings decode every text strictly, which a card with a broken infoROM may not survive.
        self.errors: tuple[type[Exception], ...] = (module.NVMLError, mismatch, UnicodeDecodeError)

    def call(self, name: str, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - NVML returns what it likes
        """Call `function`, saying first that `name` is running. Raises what NVML raises."""
        self.running = name
        emit(call=name, at_s=round(time.monotonic() - STARTED, 3))
        return function(*arguments)

    def read(self, name: str, *arguments: object, fatal: frozenset[int] = LOST_OR_STUCK) -> dict[str, Any]:
        """Return `{"value": …}`, or `{"unknown": reason}` where this driver, this GPU or the bindings do not answer.

        Raises errors with a code in `fatal`, which condemn the whole GPU.
        """
        function = getattr(self.module, name, None)
        if function is None:
            return {"unknown": f"this nvidia-ml-py does not support {name}"}
        try:
            value = self.call(name, function, *arguments)
        except self.errors as error:
            if self.code(error) in fatal:
                raise
            return {"unknown": f"{name}: {error}", "code": self.code(error)}
        return {"value": value.decode(errors="replace") if isinstance(value, bytes) else value}

    def read_fields(self, handle: object, fields: list[Any]) -> dict[str, Any]:
        """Read fields of a GPU at once; unknown where the GPU does not have the first of them."""
        answer = self.read("nvmlDeviceGetFieldValues", handle, fields)
        if "value" in answer and (code := answer["value"][0].nvmlReturn) != 0 and len(fields) == 1:
            return {"unknown": f"nvmlDeviceGetFieldValues: field {fields[0]} returned {code}"}
        return answer

    def read_record(self, name: str, record_type: str, handle: object) -> dict[str, Any]:
        """Let NVML fill a record; a reading without a value where it does not."""
        made = getattr(self.module, record_type, None)
        if made is None:
            return {"unknown": f"this nvidia-ml-py does not support {name}"}
        record = made()
        answer = self.read(name, handle, ctypes.byref(record))
        return {"value": record} if "value" in answer else answer

    def code(self, error: Exception) -> int:
        """Return NVML's return value; 13, "function not found", for a library older than its bindings."""
        value = getattr(error, "value", None)
        return value if isinstance(value, int) else FUNCTION_NOT_FOUND


VERSIONS = {"driver": "nvmlSystemGetDriverVersion", "cuda": "nvmlSystemGetCudaDriverVersion_v2"}
"""The driver's version, and the newest CUDA that it runs as `1000 * major + 10 * minor`."""
MAX_GPUS = 1024
VGPU_GUEST = 2
RECOVERY_ACTION_FIELD = 230
NVLINK_COUNT_FIELD = 91
NVLINK_STATE_FIELD = 165
NVLINK_ERROR_FIELDS = (161, 162, 163)
"""Replays, recoveries and CRC errors of one link, by its number as the scope."""
MAX_NVLINKS = 72
RATE_OVER_S = 0.25
MAX_PROCESSES = 32


def read_gpu(nvml: Nvml, index: int) -> dict[str, Any]:
    """Read one GPU's facts; memory in bytes. Raises NVMLError when the GPU does not answer."""
    handle = nvml.call("nvmlDeviceGetHandleByIndex_v2", nvml.module.nvmlDeviceGetHandleByIndex, index)
    name, capability, memory, mig = (
        nvml.read(f"nvmlDeviceGet{what}", handle, fatal=FATAL_FOR_GPU)
        for what in ("Name", "CudaComputeCapability", "MemoryInfo", "MigMode")
    )
    if "value" in memory:
        memory = {"value": [memory["value"].total, memory["value"].free]}
    return {
        "index": index,
        "name": name.get("value", "GPU without a readable name"),
        "uuid": nvml.read("nvmlDeviceGetUUID", handle, fatal=FATAL_FOR_GPU),
        "capability": capability,
        "memory": memory,
        "mig": mig,
        "mig_instances": list_mig_instances(nvml, handle) if mig.get("value", [0])[0] else [],
        "health": read_gpu_health(nvml, handle),
    }


SIMPLE_QUERIES: dict[str, tuple[str, tuple[int, ...]]] = {
    "persistence": ("nvmlDeviceGetPersistenceMode", ()),
    "compute_mode": ("nvmlDeviceGetComputeMode", ()),
    "display_active": ("nvmlDeviceGetDisplayActive", ()),
    "ecc": ("nvmlDeviceGetEccMode", ()),
    "ecc_uncorrected": ("nvmlDeviceGetTotalEccErrors", (1, 0)),  # uncorrected, since the driver was loaded
    "remapped_rows": ("nvmlDeviceGetRemappedRows", ()),
    "temperature": ("nvmlDeviceGetTemperature", (0,)),
    "slowdown": ("nvmlDeviceGetTemperatureThreshold", (1,)),
    "power": ("nvmlDeviceGetPowerUsage", ()),
    "power_limit": ("nvmlDeviceGetEnforcedPowerLimit", ()),
    "default_power_limit": ("nvmlDeviceGetPowerManagementDefaultLimit", ()),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    "pcie_max_width": ("nvmlDeviceGetMaxPcieLinkWidth", ()),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    "pcie_max_generation": ("nvmlDeviceGetMaxPcieLinkGeneration", ()),
    "sm_clock": ("nvmlDeviceGetClockInfo", (1,)),
    "sm_max_clock": ("nvmlDeviceGetMaxClockInfo", (1,)),
    "application_clock": ("nvmlDeviceGetApplicationsClock", (1,)),
    "default_application_clock": ("nvmlDeviceGetDefaultApplicationsClock", (1,)),
    "virtualization": ("nvmlDeviceGetVirtualizationMode", ()),
    "inforom": ("nvmlDeviceGetInforomConfigurationChecksum", ()),
    "brand": ("nvmlDeviceGetBrand", ()),
    "vbios": ("nvmlDeviceGetVbiosVersion", ()),
}
"""NVML calls whose answer is a number, a few, or text, with what they take after the handle."""


def read_gpu_health(nvml: Nvml, handle: object) -> dict[str, Any]:
    """Read what NVML says of a GPU's state. Each reading may be unknown; only a lost GPU ends it, by raising."""
    # Utilization and clocks come first: what follows keeps the GPU awake and would show up in them.
    utilization = extract_field(nvml.read("nvmlDeviceGetUtilizationRates", handle), "gpu")
    health = {"utilization": utilization, "clock_reasons": read_clock_reasons(nvml, handle)}
    for name, (function, arguments) in SIMPLE_QUERIES.items():
        health[name] = nvml.read(function, handle, *arguments)
    if "value" not in health["remapped_rows"]:
        health["retirement_pending"] = nvml.read("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    if health["virtualization"].get("value") == VGPU_GUEST:
        health["license"] = read_license(nvml, handle)
    health["pci"] = extract_field(nvml.read("nvmlDeviceGetPciInfo_v3", handle), "busId")
    health["fabric"] = read_fabric(nvml, handle)
    health["recovery_action"] = read_recovery_action(nvml, handle)
    health["nvlink"] = read_nvlinks(nvml, handle)
    health["sram"] = read_sram_threshold(nvml, handle)
    health["processes"] = read_processes(nvml, handle)
    return health


def extract_field(reading: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the same reading with one field of its record as the value."""
    if "value" not in reading:
        return reading
    value = getattr(reading["value"], name)
    return {"value": value.decode(errors="replace") if isinstance(value, bytes) else value}


def read_clock_reasons(nvml: Nvml, handle: object) -> dict[str, Any]:
    """Read the bits that say why the clocks are where they are; drivers before 535 know the call by another name."""
    reasons = nvml.read("nvmlDeviceGetCurrentClocksEventReasons", handle)
    return reasons if "value" in reasons else nvml.read("nvmlDeviceGetCurrentClocksThrottleReasons", handle)


def read_license(nvml: Nvml, handle: object) -> dict[str, Any]:
    """Read the state of a vGPU's license, of the first feature that it runs with."""
    features = nvml.read("nvmlDeviceGetGridLicensableFeatures_v4", handle)
    if "value" not in features:
        return features
    listed = features["value"].gridLicensableFeatures[: features["value"].licensableFeaturesCount]
    states = [feature.featureState for feature in listed if feature.featureEnabled] or [0]
    return {"value": states[0]}


def read_fabric(nvml: Nvml, handle: object) -> dict[str, Any]:
    """Read how far the GPU has joined the NVLink fabric, as [state, return value, health]."""
    answer = nvml.read_record("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t", handle)
    if "value" not in answer:
        return answer
    # The bindings read four bytes where NVML writes one.
    fabric = answer["value"]
    return {"value": [fabric.state & 0xFF, fabric.status, fabric.healthMask]}


def read_recovery_action(nvml: Nvml, handle: object) -> dict[str, Any]:
    """Read what the driver asks for to make the GPU usable again, as a number."""
    fields = nvml.read_fields(handle, [RECOVERY_ACTION_FIELD])
    return {"value": fields["value"][0].value.uiVal} if "value" in fields else fields


def read_nvlinks(nvml: Nvml, handle: object) -> dict[str, Any]:
    """Count the NVLinks that a GPU has, those that are up, and their errors, None where it does not count them."""
    counted = nvml.read_fields(handle, [NVLINK_COUNT_FIELD])
    if "value" not in counted:
        return counted
    count = min(counted["value"][0].value.uiVal, MAX_NVLINKS)
    if not count:
        return {"value": {"count": 0, "active": 0, "errors": 0}}
    # All links in one call: one by one, eight GPUs would take a second.
    fields = (NVLINK_STATE_FIELD, *NVLINK_ERROR_FIELDS)
    answered = nvml.read_fields(handle, [(name, link) for name in fields for link in range(count)])
    if "value" not in answered:
        return answered
    states = [field.value.uiVal for field in answered["value"][:count] if field.nvmlReturn == 0]
    errors = [field.value.ullVal for field in answered["value"][count:] if field.nvmlReturn == 0]
    if not states:
        return {"unknown": f"nvmlDeviceGetFieldValues: field {NVLINK_STATE_FIELD} is not supported"}
    return {"value": {"count": count, "active": sum(map(bool, states)), "errors": sum(errors) if errors else None}}


def read_sram_threshold(nvml: Nvml, handle: object) -> dict[str, Any]:
    """Read whether the GPU has more uncorrectable errors of its SRAM than NVIDIA lets pass."""
    answer = nvml.read_record("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t", handle)
    return {"value": bool(answer["value"].bThresholdExceeded)} if "value" in answer else answer


def read_processes(nvml: Nvml, handle: object) -> dict[str, Any]:
    """Read the processes that hold memory of the GPU, as [pid, name, bytes]; NVML may list a process twice."""
    found: dict[int, list[Any]] = {}
    for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
        processes = nvml.read(function, handle)
        if "value" not in processes:
            return processes
        for process in processes["value"]:
            found[process.pid] = [process.pid, read_process_name(process.pid), process.usedGpuMemory]
    return {"value": list(found.values())[:MAX_PROCESSES]}


def read_process_name(pid: int) -> str:
    """Read the kernel's name of a process, "" where it is hidden. Never the command line, which may hold secrets."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - importing pathlib takes longer than all GPUs
            return file.read().strip()
    except OSError:
        return ""


def list_mig_instances(nvml: Nvml, handle: object) -> list[str]:
    """List UUIDs of the MIG devices on a GPU; slots without one are skipped."""
    slots = nvml.read("nvmlDeviceGetMaxMigDeviceCount", handle, fatal=FATAL_FOR_GPU)
    found = []
    for slot in range(slots.get("value", 0)):
        device = nvml.read("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot, fatal=FATAL_FOR_GPU)
        if "value" in device:
            uuid = nvml.read("nvmlDeviceGetUUID", device["value"], fatal=FATAL_FOR_GPU)
            found.append(str(uuid.get("value", uuid.get("unknown"))))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
