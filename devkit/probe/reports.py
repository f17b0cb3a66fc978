"""The folder of a fine-tuning run as facts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from devkit.facts.runs import TrainingRun, WatchedGpu
from devkit.facts.values import Unknown
from devkit.probe.documents import get_objects, parse_json
from devkit.probe.host import Host

RECORD_FILE, METRICS_FILE, SAMPLES_FILE = "run.json", "metrics.jsonl", "gpu.jsonl"
WARM_UP_STEPS = 3
"""Left out where there are more: the first steps load kernels, compile, and fill caches."""
HEAT_BITS = 0x20 | 0x40
"""Clock reasons of NVML: software and hardware thermal slowdown."""
BRAKE_BITS = 0x08 | 0x80
"""Hardware slowdown and power brake. Source: NVIDIA, NVML API reference, nvmlClocksEventReasons."""


def read_training_run(host: Host, folder: str, *, is_held: bool | None = None) -> TrainingRun | Unknown:
    """Read the run whose output `folder` is; Unknown without any step of one that has not failed.

    `is_held` says whether a process is writing to the folder, None where that is unknown.
    """
    steps = [event for event in _lines(host, f"{folder}/{METRICS_FILE}") if event.get("event") == "step"]
    try:
        record = parse_json(host.read(f"{folder}/{RECORD_FILE}") or "{}")
    except ValueError:
        record = {}
    settled = steps[WARM_UP_STEPS:] or steps
    record = record if isinstance(record, dict) else {}
    status = str(record.get("status", ""))
    if status == "running" and is_held is not None:
        status = status if is_held else "lost"
    if not steps and status not in ("lost", "failed"):
        return Unknown(f"{folder} holds no steps of a run of devkit finetune")
    decisions = {each["name"]: each["value"] for each in get_objects(record, "decisions") if "name" in each}
    timed = [step for step in settled if _numbers([step], "waited_s") and step.get("seconds")]
    waited = [float(step["waited_s"]) / float(step["seconds"]) for step in timed]
    on_gpu, elsewhere = _numbers(steps, "peak_allocated_bytes"), _numbers(steps, "peak_resident_bytes")
    known = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    found = known.get(str(decisions.get("checkpointing")).lower())
    return TrainingRun(
        steps=len(steps),
        step_ms=_rounded(median(_numbers(settled, "seconds") or [0.0]) * 1000, "the run reports no times"),
        waiting_percent=round(100 * median(waited)) if waited else Unknown("the run reports no waiting"),
        checkpointing=Unknown("the run reports no checkpointing") if found is None else found,
        attention=str(decisions.get("attention", "")) or Unknown("the run reports no attention"),
        # Tensors on a GPU are counted there, the whole process elsewhere.
        on_cuda=True if on_gpu else False if elsewhere else Unknown("the run does not report where it trained"),
        peak_bytes=_rounded(max(on_gpu, default=0), "no GPU memory was counted"),
        gpus=_gpus(host, folder),
        status=status or Unknown("the run reports no status"),
        error=str(record["error"]) if record.get("error") else Unknown("the run reports no error"),
    )


def _lines(host: Host, path: str) -> list[dict[str, Any]]:
    """The objects of a file with one a line; a line that a kill cut off is left out."""
    text = host.read(path)
    found = []
    for line in (text if isinstance(text, str) else "").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [each for each in found if isinstance(each, dict)]


def _rounded(value: float, otherwise: str) -> int | Unknown:
    return round(value) if value > 0 else Unknown(otherwise)


def _numbers(lines: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [line[name] for line in lines if isinstance(line.get(name), int | float)]


def _gpus(host: Host, folder: str) -> tuple[WatchedGpu, ...] | Unknown:
    samples = _lines(host, f"{folder}/{SAMPLES_FILE}")
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        if "gpu" in sample:
            by_gpu.setdefault(str(sample["gpu"]), []).append(sample)
    if not by_gpu:
        return Unknown(next((str(each["unknown"]) for each in samples if "unknown" in each), "no GPU was sampled"))
    gpus = []
    unread = Unknown("NVML does not tell")
    for _, found in sorted(by_gpu.items()):
        used, reasons = _numbers(found, "utilization_percent"), _numbers(found, "clock_reasons")
        gpus.append(
            WatchedGpu(
                name=str(found[0].get("name", "GPU")),
                samples=len(found),
                utilization_percent=round(mean(used)) if used else unread,
                memory_bytes=_rounded(max(_numbers(found, "memory_bytes"), default=0), unread.reason),
                hot_percent=_share(reasons, HEAT_BITS),
                braked_percent=_share(reasons, BRAKE_BITS),
            )
        )
    return tuple(gpus)


def _share(reasons: Sequence[float], bits: int) -> int | Unknown:
    """Hardware slowdown comes with heat as well: then heat is the reason, not the brake."""
    if not reasons:
        return Unknown("NVML does not tell")
    held = [int(each) for each in reasons if int(each) & bits]
    if bits == BRAKE_BITS:
        held = [each for each in held if not each & HEAT_BITS]
    return round(100 * len(held) / len(reasons))
