"""NVML, called in a child process that may hang or crash without harm, and the health of each GPU."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from devkit.facts.gpu import FailedGpu, Gpu, GpuHealth, GpuProcess, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.runs import ProgramFailure
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.probe.attempts import find_assignments, find_guilty_variables
from devkit.probe.children.protocol import (
    build_child_command,
    find_crash_signal,
    find_last_line,
    format_signal,
    parse_json_lines,
)
from devkit.probe.documents import get_int, get_object, get_text, get_texts
from devkit.probe.host import TIMED_OUT, Host

T = TypeVar("T")
CORRUPTED_INFOROM = 14
HEALTH_NOT_READ = Unknown("NVML was not called")
NO_NVLINK_ERRORS = Unknown("only measured where a link has errors")
DOES_NOT_APPLY = Unknown("not read, because it does not apply to this GPU")
COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
VIRTUALIZATION_MODES = ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
LICENSE_STATES = (
    "unknown",
    "uninitialized",
    "unlicensed-unrestricted",
    "unlicensed-restricted",
    "unlicensed",
    "licensed",
)
FABRIC_STATES = ("not-supported", "not-started", "in-progress", "completed")
FABRIC_FAULTS = (
    (0, 0x3, {1: "degraded-bandwidth"}),
    (2, 0x3, {1: "route-recovery"}),
    (4, 0x3, {1: "route-unhealthy"}),
    (6, 0x3, {1: "access-timeout-recovery"}),
    (
        8,
        0xF,
        {
            2: "incorrect-system-guid",
            3: "incorrect-chassis-serial",
            4: "no-partition",
            5: "insufficient-nvlinks",
            6: "incompatible-firmware",
            7: "invalid-location",
            8: "invalid-gpu-state",
        },
    ),
)
"""Shift, mask and values of each part of NVML's health mask of the fabric that mean a fault, as in nvml.h."""
RECOVERY_ACTIONS = (
    "none",
    "gpu-reset",
    "node-reboot",
    "drain-p2p",
    "drain-and-reset",
    "recover-imex-domain",
    "bus-reset",
    "system-reboot",
)
BRANDS = (
    "unknown",
    "quadro",
    "tesla",
    "nvs",
    "grid",
    "geforce",
    "titan",
    "vapps",
    "vpc",
    "vcs",
    "vws",
    "cloud-gaming",
    "quadro-rtx",
    "nvidia-rtx",
    "nvidia",
    "geforce-rtx",
    "titan-rtx",
)
CLOCK_REASONS = (
    "gpu-idle",
    "application-clocks",
    "sw-power-cap",
    "hw-slowdown",
    "sync-boost",
    "sw-thermal-slowdown",
    "hw-thermal-slowdown",
    "hw-power-brake",
    "display-clock",
)
"""By bit, and the others by number, as nvml.h defines them."""

LIBRARY_NOT_FOUND = 12
TIMEOUT = 10
UNKNOWN = 999
"""NVML return values, as in nvml.h."""
IMPORTING = "import pynvml"
"""What the child says it does before it calls NVML."""
MAX_GPUS = 1024
"""No machine has as many; a library that counts more does not know what it says."""
_HUNG_SHARE = 0.5
"""A call that ran for less of an attempt was one of many slow ones: GPUs without persistence wake up one by one."""
_SHORTEST_HANG_S = 0.5
"""Nor is a call stuck that was given less: it may wake a GPU up, on a busy machine."""
_SHARE_OF_THE_REST = 0.6
_SHORTEST_ATTEMPT_S = 0.4


@dataclass
class _Transcript:
    """The output of one child before it ended, one way or another."""

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
        """True when the last call was stuck, rather than one of many slow ones."""
        return self.code == TIMED_OUT and self.waited_s >= max(_SHORTEST_HANG_S, self.deadline_s * _HUNG_SHARE)


def read_nvml(host: Host, *, deadline_s: float) -> NvmlAnswer | NvmlFailure | Unknown:
    """Read the driver and every GPU as NVML sees them, within `deadline_s` seconds.

    A GPU on which NVML hangs or crashes becomes a `FailedGpu`, and the GPUs after it are read in another child.
    """
    ends_at = time.monotonic() + deadline_s
    reply = _run_child(host, first_gpu=0, deadline_s=deadline_s * _SHARE_OF_THE_REST)
    system, count, gpus = get_object(reply.words, "system"), get_int(reply.words, "count"), reply.gpus
    if count is None:
        failure = _failure(reply)
        return _find_cause(host, failure, ends_at) if isinstance(failure, NvmlFailure) else failure
    if not 0 <= count <= MAX_GPUS:
        return Unknown(f"NVML counts {count} GPUs, which no machine has", is_lost=True)
    while (index := _first_missing(gpus, count)) < count:
        if reply.hung or reply.code != TIMED_OUT:
            gpus[index] = _failed_gpu(index, reply)
            index = _first_missing(gpus, count)
        left_s = ends_at - time.monotonic()
        if left_s < _SHORTEST_ATTEMPT_S or index == count:
            break
        reply = _run_child(host, first_gpu=index, deadline_s=left_s * _SHARE_OF_THE_REST)
        gpus.update(reply.gpus)
    not_read = f"not read: NVML used up the {deadline_s:g} s it was given"
    answered = tuple(gpus.get(index, FailedGpu(index, TIMEOUT, not_read)) for index in range(count))
    return NvmlAnswer(
        parse_reading(system, "driver", lambda version: Release.parse(str(version))),
        parse_reading(system, "cuda", lambda number: Release.parse(f"{number // 1000}.{number % 1000 // 10}")),
        answered,
    )


def _run_child(host: Host, *, first_gpu: int, deadline_s: float) -> _Transcript:
    done = host.run(
        build_child_command(host, "ask_nvml", *([str(first_gpu)] if first_gpu else [])), deadline_s=deadline_s
    )
    reply = _Transcript(done.code, find_last_line(done), deadline_s)
    for words in parse_json_lines(done):
        reply.words.update(words)
        answered, failed = get_object(words, "gpu"), get_object(words, "failed")
        if (index := get_int(answered, "index")) is not None:
            reply.gpus[index] = Gpu(
                index=index,
                uuid=parse_reading(answered, "uuid", str),
                name=get_text(answered, "name"),
                capability=parse_reading(
                    answered, "capability", lambda pair: ComputeCapability.parse(f"{pair[0]}.{pair[1]}")
                ),
                memory_bytes=parse_reading(answered, "memory", lambda pair: _size(pair[0])),
                free_bytes=parse_reading(answered, "memory", lambda pair: _size(pair[1])),
                mig_enabled=parse_reading(answered, "mig", lambda pair: bool(pair[0])),
                mig_instances=get_texts(answered, "mig_instances"),
                health=parse_gpu_health(get_object(answered, "health")),
            )
        elif (index := get_int(failed, "index")) is not None:
            code = get_int(failed, "code")
            reply.gpus[index] = FailedGpu(index, UNKNOWN if code is None else code, get_text(failed, "message"))
        elif rate := get_object(words, "nvlink_rate"):
            index, per_s = get_int(rate, "index"), rate.get("per_s")
            gpu = reply.gpus.get(-1 if index is None else index)
            if isinstance(gpu, Gpu) and isinstance(gpu.health, GpuHealth) and isinstance(per_s, int | float):
                reply.gpus[gpu.index] = replace(gpu, health=replace(gpu.health, nvlink_errors_per_s=float(per_s)))
    if done.code == TIMED_OUT:
        at_s = reply.words.get("at_s")
        reply.waited_s = max(0.0, deadline_s - (at_s if isinstance(at_s, int | float) else 0.0))
    return reply


def _failure(reply: _Transcript) -> NvmlFailure | Unknown:
    """Return why NVML gave no answer at all."""
    if error := get_object(reply.words, "error"):
        code = get_int(error, "code")
        if code is None:
            return Unknown(get_text(error, "message"), is_lost=True)
        end = NvmlEnd.LIBRARY_NOT_FOUND if code == LIBRARY_NOT_FOUND else NvmlEnd.ERROR
        return NvmlFailure(end, code, get_text(error, "message"), get_text(error, "call"))
    if reply.code == TIMED_OUT and reply.call in ("", IMPORTING):
        return Unknown(f"the NVML child had not yet begun after {reply.deadline_s:.1f} s", is_lost=True)
    if reply.code == TIMED_OUT:
        return NvmlFailure(
            NvmlEnd.TIMED_OUT, 0, f"{reply.call} did not return within {reply.waited_s:.1f} s", reply.call
        )
    if reply.call and (ended_by := find_crash_signal(reply.code)):
        return NvmlFailure(NvmlEnd.CRASHED, ended_by, f"{format_signal(ended_by)} in {reply.call}", reply.call)
    return Unknown(f"the NVML child ended with status {reply.code}: {reply.last_words}", is_lost=True)


def _find_cause(host: Host, failure: NvmlFailure, ends_at: float) -> NvmlFailure:
    """Return the failure with the variables without which NVML answers. A machine without the library has none."""
    has_loader_variable = any(name.startswith("LD_") for name in host.env)
    is_absent = failure.end is NvmlEnd.LIBRARY_NOT_FOUND and not has_loader_variable
    if failure.end is NvmlEnd.TIMED_OUT or is_absent:
        return replace(failure, said=None)

    def attempt(without: Collection[str]) -> bool:
        left_s = ends_at - time.monotonic()
        if left_s < _SHORTEST_ATTEMPT_S:
            return False
        done = host.run(build_child_command(host, "ask_nvml"), deadline_s=left_s, without=without)
        return any("count" in words for words in parse_json_lines(done))

    guilty = find_guilty_variables(host, attempt, family="LD_")
    words = (f"{failure.call}: {failure.message}",)
    said = ProgramFailure(
        "NVML", words, "libnvidia-ml.so.1", failure.code, guilty, tuple(find_assignments(host, guilty))
    )
    return replace(failure, said=said if guilty else None)


def _first_missing(gpus: dict[int, Gpu | FailedGpu], count: int) -> int:
    return next((index for index in range(count) if index not in gpus), count)


def _failed_gpu(index: int, reply: _Transcript) -> FailedGpu:
    """The GPU at which a child stopped."""
    if reply.code == TIMED_OUT:
        return FailedGpu(index, TIMEOUT, f"{reply.call} did not return within {reply.waited_s:.1f} s")
    if ended_by := find_crash_signal(reply.code):
        return FailedGpu(index, UNKNOWN, f"NVML crashed with {format_signal(ended_by)} in {reply.call}")
    if error := get_object(reply.words, "error"):
        return FailedGpu(
            index, get_int(error, "code") or UNKNOWN, f"{get_text(error, 'call')}: {get_text(error, 'message')}"
        )
    return FailedGpu(
        index, TIMEOUT, f"the NVML child ended with status {reply.code} in {reply.call}: {reply.last_words}"
    )


def parse_gpu_health(reply: Mapping[str, Any] | None) -> GpuHealth | Unknown:
    """Parse the health that the NVML child printed of one GPU; unknown where it printed none."""
    if not reply:
        return HEALTH_NOT_READ
    remap_pending, remap_failed = (parse_reading(reply, "remapped_rows", _flag_at(place)) for place in (2, 3))
    hidden = Unknown("the driver does not report it")
    is_corrupted = any(
        isinstance(reading, Mapping) and reading.get("code") == CORRUPTED_INFOROM for reading in reply.values()
    )
    return GpuHealth(
        pci_address=parse_reading(reply, "pci", format_sysfs_address),
        persistence=parse_reading(reply, "persistence", bool),
        compute_mode=parse_reading(reply, "compute_mode", _named(COMPUTE_MODES)),
        display_active=parse_reading(reply, "display_active", bool),
        ecc_enabled=parse_reading(reply, "ecc", _flag_at(0)),
        ecc_uncorrected=parse_reading(reply, "ecc_uncorrected", int),
        remap_pending=remap_pending,
        remap_failed=remap_failed,
        retirement_pending=parse_reading(reply, "retirement_pending", bool),
        clock_reasons=parse_reading(
            reply,
            "clock_reasons",
            lambda bits: tuple(name for bit, name in enumerate(CLOCK_REASONS) if bits >> bit & 1),
        ),
        temperature_c=parse_reading(reply, "temperature", int),
        slowdown_c=parse_reading(reply, "slowdown", int),
        power_mw=parse_reading(reply, "power", int),
        power_limit_mw=parse_reading(reply, "power_limit", int),
        default_power_limit_mw=parse_reading(reply, "default_power_limit", int),
        utilization_percent=parse_reading(reply, "utilization", int),
        pcie_width=parse_reading(reply, "pcie_width", int),
        pcie_max_width=parse_reading(reply, "pcie_max_width", int),
        pcie_generation=parse_reading(reply, "pcie_generation", int),
        pcie_max_generation=parse_reading(reply, "pcie_max_generation", int),
        sm_clock_mhz=parse_reading(reply, "sm_clock", int),
        sm_max_clock_mhz=parse_reading(reply, "sm_max_clock", int),
        application_clock_mhz=parse_reading(reply, "application_clock", int),
        default_application_clock_mhz=parse_reading(reply, "default_application_clock", int),
        processes=parse_reading(
            reply,
            "processes",
            lambda entries: tuple(
                GpuProcess(int(pid), str(name), hidden if held is None else _size(held)) for pid, name, held in entries
            ),
        ),
        virtualization=parse_reading(reply, "virtualization", _named(VIRTUALIZATION_MODES)),
        license=parse_reading(reply, "license", _named(LICENSE_STATES)),
        fabric_state=parse_reading(reply, "fabric", lambda pair: _named(FABRIC_STATES)(pair[0])),
        fabric_status=parse_reading(reply, "fabric", lambda pair: int(pair[1])),
        # Corrupted when any call ends with that very error; good when the checksum can be read.
        inforom_ok=False if is_corrupted else parse_reading(reply, "inforom", lambda checksum: True),
        brand=parse_reading(reply, "brand", _named(BRANDS)),
        recovery_action=parse_reading(reply, "recovery_action", _named(RECOVERY_ACTIONS)),
        # Values that are not listed are fine, or not known here.
        fabric_faults=parse_reading(
            reply,
            "fabric",
            lambda answer: tuple(
                names[answer[2] >> shift & width]
                for shift, width, names in FABRIC_FAULTS
                if answer[2] >> shift & width in names
            ),
        ),
        nvlink_count=parse_reading(reply, "nvlink", lambda links: int(links["count"])),
        nvlink_active=parse_reading(reply, "nvlink", lambda links: int(links["active"])),
        nvlink_errors=parse_reading(reply, "nvlink", lambda links: int(links["errors"])),
        nvlink_errors_per_s=NO_NVLINK_ERRORS,
        sram_threshold_exceeded=parse_reading(reply, "sram", bool),
        vbios=parse_reading(reply, "vbios", str),
    )


def _flag_at(place: int) -> Callable[[Any], bool]:
    return lambda values: bool(values[place])


def _size(value: int) -> int:
    if value < 0:
        raise ValueError(value)
    return int(value)


def _named(names: tuple[str, ...]) -> Callable[[int], str]:
    return lambda number: names[number] if 0 <= number < len(names) else f"{number}"


def format_sysfs_address(bus_id: str) -> str:
    """Format 00000000:01:00.0, as NVML writes it, as sysfs does: 0000:01:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


def parse_reading(reply: Mapping[str, Any], name: str, meaning: Callable[[Any], T]) -> T | Unknown:
    """Parse one reading. A value of a different shape than expected is unknown, not an error."""
    answer = reply.get(name)
    if not isinstance(answer, Mapping):
        return DOES_NOT_APPLY
    if "value" not in answer:
        return Unknown(str(answer.get("unknown") or "NVML did not report it"))
    try:
        return meaning(answer["value"])
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
        return Unknown(f"NVML answered {answer['value']!r}")
