"""Which check stands behind a stage of `devkit verify` that failed: a table of stages, words of the reason, and codes.

The words of known errors, as `devkit explain` has them, come before what is only likely of a stage.
"""

import re

from devkit.doctor.model import Confidence
from devkit.doctor.signatures import matches
from devkit.facts.model import ProofStage, Verification
from devkit.facts.record import record


@record
class Behind:
    """What stands behind a failed stage. `code` is "" where devkit does not know."""

    code: str
    says: str
    confidence: Confidence


@record
class Row:
    """One row of the table: a reason that holds `words` (a regular expression) at `stage` points to `code`."""

    stage: str
    words: str
    code: str
    says: str


CERTAIN_ROWS = (
    Row("", r"out ?of ?memory", "MEM004", "the GPU has not enough free memory for even a tiny model"),
    Row("", r"SIGKILL, most often because memory ran out", "MEM002", "the process was killed, most often for memory"),
    Row("", r"No space left on device", "STO002", "a disk is full"),
    Row("torch-build", r"driver_library is ", "CON005", "a GPU is here, but the loader finds no libcuda"),
    Row("torch-build", r"cu_init is ", "CUD011", "CUDA does not start"),
    Row("torch-build", r"gpus_seen_by_torch is ", "PYT001", "torch does not see the GPUs that the driver has"),
    Row("torch-build", r"_target is ", "PYT002", "torch holds no code for this GPU"),
    Row("kernel", r"no kernel image", "PYT002", "torch holds no code for this GPU"),
    Row("kernel", r"_error is ", "GPU009", "kernels run, but their numbers are wrong: look at the GPU's memory first"),
    Row(
        "compute-rate",
        r"_tflops is ",
        "GPU016",
        "the GPU multiplies slower than its data sheet: clocks, power, sharing",
    ),
    Row(
        "memory-rate", r"_per_s is ", "GPU016", "the GPU's memory is slower than its data sheet: clocks, power, sharing"
    ),
    Row("link-rate", r"_per_s is ", "GPU015", "host and GPU talk over fewer PCIe lanes than they should"),
    Row("bitsandbytes-native", r"library is ", "PYT018", "bitsandbytes' native library did not load"),
    Row("nccl", r"bus_gb_per_s is |did not finish", "NET001", "the GPUs do not reach each other directly"),
    Row("compile", r"compiler|Python\.h", "CON004", "a C compiler or Python's headers are missing"),
    Row("triton", r"compiler|Python\.h", "CON004", "a C compiler or Python's headers are missing"),
    Row("proof", r"not installed", "", "the dev container holds no devkit"),
)
"""What the words of a reason show. A row without a stage is for every stage."""

LIKELY_ROWS = (
    Row("torch", "", "PYT017", "torch does not import"),
    Row("torch-build", "", "PYT001", "torch is not the build for this machine"),
    Row("bitsandbytes", "", "PYT003", "bitsandbytes does not import"),
    Row("libraries", "", "PYT007", "transformers, peft and accelerate do not fit together"),
    Row("device", "", "CUD011", "the device takes no memory"),
    Row("kernel", "", "PYT017", "a kernel does not run"),
    Row("compute-rate", "", "PYT017", "matrices cannot be multiplied"),
    Row("memory-rate", "", "MEM004", "the device's memory cannot be used"),
    Row("link-rate", "", "MEM001", "host memory cannot be pinned for the GPU"),
    Row("reference", "", "PYT007", "LoRA does not train on the CPU: the packages do not fit together"),
    Row("lora-memorises", "", "PYT007", "LoRA does not learn: the packages do not fit together"),
    Row("base-frozen", "", "PYT007", "training moved weights that were frozen: the packages do not fit together"),
    Row("inference", "", "PYT007", "generation goes astray: transformers and torch do not fit together"),
    Row("adapter-disabled", "", "PYT007", "an adapter cannot be switched off: the packages do not fit together"),
    Row("adapter-reload", "", "PYT007", "an adapter does not come back as it was saved"),
    Row("adapter-merged", "", "PYT007", "a merged adapter computes something else"),
    Row("resume", "", "PYT007", "a resumed run goes another way"),
    Row("bitsandbytes-native", "", "PYT018", "bitsandbytes does not quantise on this device"),
    Row("qlora-memorises", "", "PYT018", "QLoRA does not learn on bitsandbytes' 4-bit layers"),
    Row("qlora-frozen", "", "PYT018", "training moved packed 4-bit weights"),
    Row("triton", "", "PYT019", "Triton does not compile for this GPU"),
    Row("nccl", "", "NET001", "the GPUs cannot add up over NCCL"),
    Row("optimizer-8bit", "", "PYT018", "bitsandbytes' 8-bit optimizer does not train"),
    Row("int8-base", "", "PYT014", "8-bit layers do not train on this device"),
    Row("checkpointing", "", "PYT007", "gradient checkpointing changes the result"),
    Row("gloo", "", "NET002", "two processes of this machine do not find each other"),
    Row("compile", "", "PYT019", "torch.compile builds no kernel"),
    Row("memory-estimate", "", "GPU019", "more memory is used than the workload accounts for"),
    Row("own-model", "", "PYT008", "this model does not run with the installed packages"),
    Row("build", "", "ENG013", "the image does not build; most builds that fail reach no package index"),
    Row("start", "", "PRJ011", "the dev container does not start on this machine"),
    Row("proof", "", "CON011", "the proof in the dev container ended without a report"),
)
"""What is likely where a stage fails with words that nobody knows."""


def behind(stage: ProofStage, proof: Verification) -> Behind:
    """The check that a failed stage points to, by its words first, then by the stage alone."""
    for row in CERTAIN_ROWS:
        if row.stage in ("", stage.name) and re.search(row.words, stage.reason, re.IGNORECASE):
            return Behind(row.code, row.says, Confidence.LIKELY)
    for text in (stage.reason, "\n".join(proof.log)):
        if found := matches(text):
            return Behind(found[0].code, found[0].cause, found[0].confidence)
    for row in LIKELY_ROWS:
        if row.stage == stage.name:
            return Behind(row.code, row.says, Confidence.POSSIBLE)
    return Behind("", "devkit does not know what stands behind this stage", Confidence.POSSIBLE)
