"""Notes on what the GPUs here cannot do, before a training run finds out."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.doctor.applies import cuda_of_torch, known, python_of
from devkit.doctor.checks.stack import installed
from devkit.doctor.install import workload_side
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.facts.model import Facts, Gpu


def _below(facts: Facts, feature: str) -> tuple[Gpu, ...]:
    """GPUs that are too old for a feature of the tables."""
    cuda_of_torch(facts)
    if not facts.gpus:
        raise NotApplicable("no GPU answers")
    needed = tables().stack.features[feature].capability
    return tuple(gpu for gpu in facts.gpus if known(gpu.capability) < needed)


@check(
    "PYT013",
    "Every GPU calculates in bfloat16",
    covers=("H15",),
    symptoms=("Your setup doesn't support bf16/gpu", "bfloat16 is only supported on GPUs with compute capability"),
)
def gpus_have_bf16(facts: Facts) -> Iterator[Finding]:
    """Every GPU has arithmetic units for bfloat16, which most recipes for fine-tuning assume.

    Why it matters: below compute capability 8.0 the Trainer refuses bf16=True, and torch emulates it slowly.
    How it is seen: each GPU's compute capability against the feature's in the tables.
    Source: NVIDIA, CUDA C++ Programming Guide, "Arithmetic instructions"; huggingface/transformers, training_args.py.
    """
    for gpu in _below(facts, "bf16"):
        yield Finding(
            Severity.NOTE,
            f"GPU {gpu.index} ({gpu.name}, {gpu.capability}) has no bfloat16: train in fp16",
            Fix(
                "Choose fp16 in the training settings, and float16 as compute type of 4-bit models.",
                (
                    "TrainingArguments(fp16=True, bf16=False)",
                    "BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.float16)",
                ),
                where=workload_side(facts),
            ),
            subject=f"GPU {gpu.index}",
            evidence=(f"compute capability {gpu.capability}",),
        )


@check(
    "PYT014",
    "Every GPU multiplies 8-bit integers for LLM.int8()",
    covers=("H18",),
    symptoms=("Compute capability < 7.5 detected! Only slow 8-bit matmul is supported for your GPU",),
)
def gpus_have_int8(facts: Facts) -> Iterator[Finding]:
    """Where bitsandbytes is installed, every GPU has the 8-bit units that its load_in_8bit uses.

    Why it matters: below compute capability 7.5 8-bit models are slow or refused. 4-bit models are not concerned.
    How it is seen: each GPU's compute capability against the feature's in the tables.
    Source: bitsandbytes, installation guide and diagnostics.
    """
    if "bitsandbytes" not in installed(facts):
        raise NotApplicable("bitsandbytes is not installed in this Python")
    for gpu in _below(facts, "llm-int8"):
        yield Finding(
            Severity.NOTE,
            f"GPU {gpu.index} ({gpu.name}, {gpu.capability}) has no fast 8-bit multiplication: load_in_8bit is slow or"
            " refused",
            Fix(
                "Load models in 4 bits (NF4) instead.",
                ('BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")',),
                where=workload_side(facts),
            ),
            subject=f"GPU {gpu.index}",
            evidence=(f"compute capability {gpu.capability}",),
        )


@check(
    "PYT015",
    "CUDA numbers the GPUs as nvidia-smi does",
    covers=("H12",),
    symptoms=("CUDA_VISIBLE_DEVICES=0 uses the wrong GPU", "CUDA_DEVICE_ORDER"),
)
def gpus_are_numbered_alike(facts: Facts) -> Iterator[Finding]:
    """Where CUDA_VISIBLE_DEVICES picks GPUs by number and they are not all alike, CUDA_DEVICE_ORDER is PCI_BUS_ID.

    Why it matters: CUDA counts the fastest GPU first, nvidia-smi by PCI address. GPU 0 of one is GPU 1 of the other.
    How it is seen: the two variables, and the names of the GPUs.
    Source: NVIDIA, CUDA C++ Programming Guide, "CUDA environment variables".
    """
    python = python_of(facts)
    selected = python.cuda_visible_devices or ""
    if not any(entry.strip().isdigit() for entry in selected.split(",")):
        raise NotApplicable("CUDA_VISIBLE_DEVICES picks no GPU by its number")
    if len({gpu.name for gpu in facts.gpus}) < 2:
        raise NotApplicable("there are not two kinds of GPU here")
    order = known(python.cuda_device_order)
    if order == "PCI_BUS_ID":
        return
    yield Finding(
        Severity.NOTE,
        f"CUDA_VISIBLE_DEVICES={selected} counts the fastest GPU first, which is not how nvidia-smi counts",
        Fix(
            "Let CUDA count as nvidia-smi does, or name GPUs by their UUID.",
            ("export CUDA_DEVICE_ORDER=PCI_BUS_ID",),
            where=workload_side(facts),
        ),
        evidence=(f"CUDA_DEVICE_ORDER={order or 'unset'}", *(f"GPU {gpu.index}: {gpu.name}" for gpu in facts.gpus)),
        confidence=Confidence.POSSIBLE,
    )
