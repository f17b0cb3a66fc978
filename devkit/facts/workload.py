"""What the workload left behind: the report of a proof, and the measurements of a fine-tuning run."""

from devkit.facts.record import record
from devkit.facts.values import Unknown


@record
class ProofReading:
    """One value of a stage that was not as expected."""

    name: str
    measured: str
    expected: str


@record
class ProofStage:
    """One stage of `devkit verify`. `status` is passed, failed or skipped; `wrong` holds what was not as expected."""

    name: str
    status: str
    reason: str
    wrong: tuple[ProofReading, ...]


@record
class Verification:
    """A report of `devkit verify`. `log` is the last output of a process that crashed; `taken_at` ISO 8601 or ""."""

    verdict: str
    where: str
    device: str
    taken_at: str
    stages: tuple[ProofStage, ...]
    log: tuple[str, ...]


@record
class WatchedGpu:
    """A GPU as it was sampled while a run trained. Percentages are means over the samples, or shares of them."""

    name: str
    samples: int
    utilisation_percent: int | Unknown
    memory_bytes: int | Unknown
    hot_percent: int | Unknown
    """Share of samples in which heat held the clocks down."""
    braked_percent: int | Unknown
    """Share of samples in which the power supply or the hardware's brake held them down."""


@record
class TrainingRun:
    """A run of `devkit finetune`, over its steps without the first ones, which load and compile."""

    steps: int
    step_ms: int | Unknown
    waiting_percent: int | Unknown
    """Part of a step's time in which training waited for data, the median."""
    checkpointing: bool | Unknown
    attention: str | Unknown
    on_cuda: bool | Unknown
    """Whether it trained on a GPU through CUDA."""
    peak_bytes: int | Unknown
    gpus: tuple[WatchedGpu, ...] | Unknown
