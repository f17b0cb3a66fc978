"""The stages of the proof, their settings, how their readings are judged, and those that only import packages.

Importable without torch, so that a broken package fails its own stage alone.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from devkit.estimate.settings import Precision
from devkit.workload.environment import find_installed_version, hide_bitsandbytes
from devkit.workload.proof import standalone

DEVICE_LOST_EXIT_CODE = standalone.DEVICE_LOST_EXIT_CODE


class Depth(StrEnum):
    """The extent of a proof: a few seconds, the standard proof, or everything that takes longer."""

    QUICK = "quick"
    STANDARD = "standard"
    FULL = "full"


@dataclass(frozen=True)
class ProofSettings:
    """The numbers of one proof beside `standalone.INPUTS`. `precision` None means: by the device.

    `steps` optimizer steps memorize the sentence with a wide margin; `resume_steps` are run once without a break and once
    interrupted in the middle. `model` is the user's own, "" for none.
    """

    steps: int = 80
    resume_steps: int = 40
    precision: Precision | None = None
    model: str = ""


CUDA_S = 20.0
"""The most that libcuda may take to answer."""

ReadingValue = str | int | float | bool

# One definition for both proofs: the standalone one imports nothing of devkit.
StageReading = standalone.Reading
StageSkipped = standalone.Skipped
expect_equal = standalone.expect
expect_at_most = standalone.expect_at_most


def expect_above(name: str, measured: float, limit: float) -> StageReading:
    """Return a reading that must exceed `limit`. NaN always fails."""
    return StageReading(name, measured, f"> {limit:g}", measured > limit)


class StageStatus(StrEnum):
    """The outcome of a stage. Skipped is never the same as passed."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class StageResult:
    """The result of one stage. `measured` and `expected` share keys; a recorded value has no expectation.

    `ms` is its wall time, `series` holds values in their order; `budget_s` is its time limit on a GPU, 0 for none.
    """

    name: str
    status: StageStatus
    measured: dict[str, ReadingValue] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    ms: float = 0.0
    series: dict[str, list[float]] = field(default_factory=dict)
    budget_s: float = 0.0

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "StageResult":
        """Read back a result of devkit.verify/1. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            name=str(document["name"]),
            status=StageStatus(document["status"]),
            measured=dict(document["measured"]),
            expected={name: str(value) for name, value in dict(document["expected"]).items()},
            reason=str(document["reason"]),
            ms=float(document["ms"]),
            series={name: [float(each) for each in values] for name, values in document.get("series", {}).items()},
            budget_s=float(document.get("budget_s", 0.0)),
        )


def run_stage(name: str, readings: Callable[[], Iterable[StageReading]]) -> tuple[StageResult, bool]:
    """Run one stage. Returns its result, and whether the error that ended it lost the GPU.

    An exception fails the stage; the readings before it are kept.
    """
    document, is_lost = standalone.run_stage(name, readings)
    return StageResult.from_document(document), is_lost


@dataclass(frozen=True)
class StageSpec:
    """A stage by name.

    `claim` is what a pass shows, read after "proved on cpu:"; "" for groundwork that needs no mention.
    `needs` names the stages that must pass before. `budget_s` is the time limit on a GPU, 0 for none.
    One that `is_reported_when_skipped` is named by the conclusion then; the others belong to some machines alone.
    """

    name: str
    claim: str = ""
    needs: tuple[str, ...] = ()
    depth: Depth = Depth.STANDARD
    budget_s: float = 2.0
    is_reported_when_skipped: bool = True


_MODEL = ("libraries", "kernel")
_QUANTIZED = ("bitsandbytes-native", *_MODEL)
_BY_MACHINE: dict[str, Any] = {"is_reported_when_skipped": False}

STAGES = (
    StageSpec("torch", depth=Depth.QUICK, budget_s=5),
    StageSpec("torch-build", needs=("torch",), depth=Depth.QUICK),
    StageSpec("bitsandbytes", needs=("torch",), depth=Depth.QUICK),
    StageSpec("libraries", needs=("torch",), depth=Depth.QUICK, budget_s=4),
    StageSpec("device", needs=("torch",), depth=Depth.QUICK, budget_s=1),
    StageSpec("kernel", needs=("device",), depth=Depth.QUICK, budget_s=0.5),
    StageSpec("compute-rate", needs=("kernel",), depth=Depth.QUICK, budget_s=1.5),
    StageSpec("memory-rate", needs=("kernel",), depth=Depth.QUICK, budget_s=1),
    StageSpec("link-rate", needs=("kernel",), depth=Depth.QUICK, budget_s=1),
    StageSpec("lora-memorizes", "LoRA fine-tuning memorizes a sentence", _MODEL, Depth.QUICK),
    StageSpec("base-frozen", "frozen weights stay bitwise identical", ("lora-memorizes",), Depth.QUICK, 0.5),
    StageSpec("inference", "generation gives the same tokens with every cache", ("lora-memorizes",), budget_s=4),
    StageSpec("adapter-disabled", "the adapter can be turned off", ("lora-memorizes",)),
    StageSpec("adapter-reload", "the adapter reloads bit for bit", ("lora-memorizes",)),
    StageSpec("adapter-merged", "the adapter merges", ("adapter-reload",)),
    StageSpec("resume", "an interrupted run resumes bit for bit", _MODEL, budget_s=6),
    StageSpec("bitsandbytes-native", needs=("bitsandbytes", "kernel")),
    StageSpec("qlora-memorizes", "QLoRA on a 4-bit base memorizes a sentence", _QUANTIZED, budget_s=8),
    StageSpec("qlora-frozen", "the packed 4-bit weights stay unchanged", ("qlora-memorizes",), budget_s=0.5),
    StageSpec("triton", "Triton compiles a kernel", ("kernel",), budget_s=5, **_BY_MACHINE),
    StageSpec("nccl", "the GPUs run an all-reduce over NCCL", ("kernel",), budget_s=25, **_BY_MACHINE),
    StageSpec("memory-estimate", "training uses the estimated memory", _MODEL, budget_s=15, **_BY_MACHINE),
    StageSpec("own-model", "the given model learns and answers", _MODEL, Depth.QUICK, 0, **_BY_MACHINE),
    StageSpec("int8-base", "LoRA learns on an 8-bit base", _QUANTIZED, Depth.FULL, 8),
    StageSpec("preferences", "DPO prefers the chosen answers", _MODEL, Depth.FULL, 40, **_BY_MACHINE),
    StageSpec("gloo", "two processes run an all-reduce over Gloo", ("kernel",), Depth.FULL, 15),
)
"""All stages, in the order they run. bitsandbytes comes before peft, which imports it: a broken one gets hidden."""


STANDALONE_STAGES = tuple(StageSpec(name, claim, needs, Depth.QUICK, 0) for name, claim, needs in standalone.STAGES)
"""The stages where the full proof cannot run."""

GPU_STAGES = (
    StageSpec("gpu", "the GPU is visible", depth=Depth.QUICK, budget_s=0),
    StageSpec("cuda-compiler", "nvcc builds for it", depth=Depth.QUICK, budget_s=0, **_BY_MACHINE),
    StageSpec("framework", "JAX or TensorFlow computes correctly", depth=Depth.QUICK, budget_s=0, **_BY_MACHINE),
)
"""The stages for a project that does not use torch."""

PROGRAMS = {"standalone": STANDALONE_STAGES, "gpu": GPU_STAGES}
"""The stages of the smaller proofs, by the name that a report gives them; of the full proof it has none."""

PROJECT_STAGES = (
    StageSpec("imports", "the project and its requirements can be imported", depth=Depth.QUICK, budget_s=0),
    StageSpec("command", "its command runs", depth=Depth.QUICK, budget_s=0),
)
"""The stages about the project in a dev container, after those of either proof."""


def select_stages(depth: Depth) -> tuple[StageSpec, ...]:
    """Return the stages that a proof of this depth runs."""
    depths = tuple(Depth)
    return tuple(stage for stage in STAGES if depths.index(stage.depth) <= depths.index(depth))


def skip_for_failed_need(stage: StageSpec, results: Mapping[str, StageResult]) -> StageResult | None:
    """Return the stage as skipped if one that it needs ran and did not pass; None when it may run."""
    reason = standalone.find_skip_reason(
        stage.needs, {name: (each.status, each.reason) for name, each in results.items()}
    )
    return StageResult(stage.name, StageStatus.SKIPPED, reason=reason) if reason else None


def prove_bitsandbytes() -> Iterator[StageReading]:
    """Import bitsandbytes. If that fails, it is hidden, because peft would fail to import with it."""
    version = find_installed_version("bitsandbytes")
    if version is None:
        raise StageSkipped("bitsandbytes is not installed")
    try:
        importlib.import_module("bitsandbytes")
    except Exception:
        hide_bitsandbytes()
        raise
    yield StageReading("version", version)
