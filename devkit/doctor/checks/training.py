"""Judges a fine-tuning run by what it measured: why its GPU was not busy, and what it paid for without need."""

from collections.abc import Iterator

from devkit.doctor.applies import known
from devkit.doctor.install import workload_side
from devkit.doctor.limits import (
    BUSY_WHILE_TRAINING_PERCENT,
    FEWEST_SAMPLES,
    HELD_BACK_PERCENT,
    ROOM_WITHOUT_CHECKPOINTING,
    WAITING_FOR_DATA_PERCENT,
)
from devkit.doctor.machine import driver_side
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.facts.model import Facts, TrainingRun, WatchedGpu
from devkit.facts.values import Unknown
from devkit.text import human_bytes

_NO_GPU = "the run used no GPU"


def _on_gpu(facts: Facts) -> TrainingRun:
    run = known(facts.training)
    if not known(run.on_cuda):
        raise NotApplicable(_NO_GPU)
    return run


def _watched(facts: Facts) -> tuple[WatchedGpu, ...]:
    """The GPUs that were sampled often enough to judge."""
    gpus = [gpu for gpu in known(_on_gpu(facts).gpus) if gpu.samples >= FEWEST_SAMPLES.value]
    if not gpus:
        raise NotApplicable(f"the run was too short: fewer than {FEWEST_SAMPLES.value} samples of its GPUs")
    return tuple(gpus)


@check(
    "GPU028",
    "Clocks hold through a training run",
    symptoms=("training gets slower after some minutes", "SW Thermal Slowdown", "HW Power Brake Slowdown"),
    causes=("GPU029",),
)
def clocks_hold_while_training(facts: Facts) -> Iterator[Finding]:
    """Neither heat nor the power supply held the clocks down while the run trained.

    Why it matters: a GPU that is cool when doctor looks at it may slow down for hours under load, without any error.
    How it is seen: with --run DIR, NVML's reasons for the clocks, sampled each second while the run trained. The
    driver's own power cap is normal under load and does not count.
    Source: NVIDIA, NVML API reference, nvmlClocksEventReasons.
    """
    for gpu in _watched(facts):
        for share, what, remedy in (
            (gpu.hot_percent, "heat", "Clear the way of the air, check the fans, and lower the power limit a little."),
            (gpu.braked_percent, "the power supply", "Check the power cables, the supply and its redundancy."),
        ):
            if isinstance(share, int) and share >= HELD_BACK_PERCENT.value:
                yield Finding(
                    Severity.WARNING,
                    f"{what} held the clocks of {gpu.name} down in {share} % of the run",
                    Fix(remedy, ("nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE",), where=driver_side(facts)),
                    subject=gpu.name,
                    evidence=(f"{gpu.samples} samples, {share} % with the clocks held down by {what}",),
                )


@check(
    "STO006",
    "Training does not wait for its data",
    symptoms=("GPU utilization is low", "GPU-Util drops to 0% between steps", "DataLoader is slow"),
    causes=("GPU029",),
)
def training_does_not_wait_for_data(facts: Facts) -> Iterator[Finding]:
    """The next batch is ready when a step ends.

    Why it matters: whatever a step waits, the GPU stands still.
    How it is seen: with --run DIR, the time in which each step waited for its batch, as part of the step; the median
    over the run without its first steps.
    Source: PyTorch, Performance Tuning Guide, "Enable asynchronous data loading and augmentation".
    """
    run = _on_gpu(facts)
    waited = known(run.waiting_percent)
    if waited >= WAITING_FOR_DATA_PERCENT.value:
        step = f" of {run.step_ms} ms" if isinstance(run.step_ms, int) else ""
        yield Finding(
            Severity.WARNING,
            f"training waits for its data in {waited} % of each step",
            Fix(
                "Keep the data on a fast local disk, tokenise it once before the run, and give the container more"
                " processor cores.",
                where=Side.PROJECT,
            ),
            evidence=(f"median over {run.steps} steps{step}: {waited} % waiting", *_used(run)),
            confidence=Confidence.LIKELY,
        )


@check(
    "MEM005",
    "Activations are computed twice only where memory asks for it",
    symptoms=("gradient checkpointing makes training slow", "gradient_checkpointing=True"),
    causes=("GPU029",),
)
def checkpointing_is_needed(facts: Facts) -> Iterator[Finding]:
    """Gradient checkpointing is on only where a run would not fit without it.

    Why it matters: it computes every activation twice, which takes about a fifth of the speed.
    How it is seen: with --run DIR, the run's own peak of memory against that of its GPU.
    Source: pytorch/torchtune, README, table of memory and speed.
    """
    run = _on_gpu(facts)
    memory = [gpu.memory_bytes for gpu in known(run.gpus) if isinstance(gpu.memory_bytes, int)]
    peak = known(run.peak_bytes)
    if not memory:
        raise NotApplicable("the GPU's memory is not known")
    if known(run.checkpointing) and peak < min(memory) * ROOM_WITHOUT_CHECKPOINTING.value:
        yield Finding(
            Severity.NOTE,
            f"gradient checkpointing is on, though the run needs {human_bytes(peak)} of {human_bytes(min(memory))}",
            Fix(
                "Train without it, or with a larger micro-batch.",
                ("devkit finetune … --no-checkpointing",),
                where=Side.PROJECT,
            ),
            evidence=(f"peak {peak} bytes, memory {min(memory)} bytes",),
            confidence=Confidence.LIKELY,
        )


@check(
    "PYT022",
    "Attention takes a fast path on the GPU",
    symptoms=("attn_implementation=eager", "attention is slow", "quadratic memory of attention"),
    causes=("GPU029",),
)
def attention_is_fast(facts: Facts) -> Iterator[Finding]:
    """Attention runs in one fused kernel and not in separate ones that write all scores to memory.

    Why it matters: written out, attention takes memory with the square of the sequence, and the time to move it.
    How it is seen: with --run DIR, the attention that the run chose.
    Source: PyTorch, documentation of torch.nn.functional.scaled_dot_product_attention.
    """
    run = _on_gpu(facts)
    if known(run.attention) == "eager":
        yield Finding(
            Severity.WARNING,
            "attention runs eagerly: all scores are written to memory and read again",
            Fix(
                "Let PyTorch's own fused attention do it.", ("devkit finetune … --attention sdpa",), where=Side.PROJECT
            ),
            evidence=("attention: eager", *_used(run)),
        )


@check(
    "GPU029",
    "The GPU is busy while it trains",
    symptoms=("GPU utilization below 80%", "low GPU-Util in nvidia-smi", "GPU is underutilized"),
)
def gpu_is_busy_while_training(facts: Facts) -> Iterator[Finding]:
    """Some kernel runs on the GPU in at least four of five moments of a training run.

    Why it matters: an idle GPU costs as much as a busy one. Data, attention, clocks and checkpointing have checks of
    their own; where none of them finds the reason, steps are too small for the time that it takes to launch them.
    How it is seen: with --run DIR, NVML's utilisation, sampled each second while the run trained.
    Source: NVIDIA, NVML API reference, nvmlDeviceGetUtilizationRates.
    """
    for gpu in _watched(facts):
        if known(gpu.utilisation_percent) < BUSY_WHILE_TRAINING_PERCENT.value:
            yield Finding(
                Severity.NOTE,
                f"{gpu.name} was busy in {gpu.utilisation_percent} % of the run",
                Fix(
                    "Give each step more work: a larger micro-batch, packing, longer sequences, or torch.compile.",
                    ("devkit finetune … --micro-batch 8 --packing --compile",),
                    where=workload_side(facts),
                ),
                subject=gpu.name,
                evidence=(f"{gpu.samples} samples, utilisation {gpu.utilisation_percent} % on average",),
                confidence=Confidence.POSSIBLE,
            )


def _used(run: TrainingRun) -> tuple[str, ...]:
    """How busy the GPUs were, where that was sampled."""
    if isinstance(run.gpus, Unknown):
        return ()
    return tuple(f"{gpu.name}: utilisation {gpu.utilisation_percent} %" for gpu in run.gpus if gpu.samples)
