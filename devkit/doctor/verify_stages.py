"""The check that explains a failed stage of `devkit verify`, by a table of stages, reasons and codes.

Known error texts, as `devkit explain` has them, come before what is only likely at a stage.
"""

import re

from devkit.doctor.model import Confidence
from devkit.doctor.signatures.matching import match_signatures
from devkit.facts.model import ProofStage, Verification
from devkit.facts.values import record


@record
class StageCause:
    """The likely cause of a failed stage. `code` is "" where devkit does not know it."""

    code: str
    summary: str
    confidence: Confidence


@record
class StageRow:
    """One row: a reason that matches `words` (a regular expression) at `stage` leads to `code`."""

    stage: str
    words: str
    code: str
    summary: str


REASON_ROWS = (
    StageRow("", r"out ?of ?memory", "MEM004", "the GPU has not enough free memory for even a tiny model"),
    StageRow(
        "", r"SIGKILL, most often because memory ran out", "MEM002", "the process was killed, most often for memory"
    ),
    StageRow("", r"No space left on device", "STO002", "a disk is full"),
    StageRow("torch-build", r"driver_library is ", "CON005", "a GPU is here, but the loader finds no libcuda"),
    StageRow("torch-build", r"cu_init is ", "CUD011", "CUDA does not start"),
    StageRow("torch-build", r"gpus_seen_by_torch is ", "PYT001", "torch does not see the GPUs that the driver has"),
    StageRow("torch-build", r"_target is ", "PYT002", "torch holds no code for this GPU"),
    StageRow("kernel", r"no kernel image", "PYT002", "torch holds no code for this GPU"),
    StageRow(
        "kernel", r"_error is ", "GPU009", "kernels run, but their results are wrong: look at the GPU's memory first"
    ),
    StageRow(
        "compute-rate",
        r"_tflops is ",
        "GPU016",
        "the GPU multiplies slower than its data sheet: clocks, power, sharing",
    ),
    StageRow(
        "memory-rate", r"_per_s is ", "GPU016", "the GPU's memory is slower than its data sheet: clocks, power, sharing"
    ),
    StageRow("link-rate", r"_per_s is ", "GPU015", "host and GPU talk over fewer PCIe lanes than they should"),
    StageRow("bitsandbytes-native", r"library is ", "PYT018", "bitsandbytes' native library did not load"),
    StageRow("nccl", r"bus_gb_per_s is |did not finish", "NET001", "the GPUs do not reach each other directly"),
    StageRow("compile", r"compiler|Python\.h", "CON004", "a C compiler or Python's headers are missing"),
    StageRow("triton", r"compiler|Python\.h", "CON004", "a C compiler or Python's headers are missing"),
    StageRow("proof", r"not installed", "", "the dev container holds no devkit"),
)
"""Rows by the reason of a failure. A row without a stage is for every stage."""

STAGE_ROWS = (
    StageRow("torch", "", "PYT017", "torch does not import"),
    StageRow("torch-build", "", "PYT001", "torch is not the build for this machine"),
    StageRow("bitsandbytes", "", "PYT003", "bitsandbytes does not import"),
    StageRow("libraries", "", "PYT007", "transformers, peft and accelerate do not fit together"),
    StageRow("device", "", "CUD011", "the device takes no memory"),
    StageRow("kernel", "", "PYT017", "a kernel does not run"),
    StageRow("compute-rate", "", "PYT017", "matrices cannot be multiplied"),
    StageRow("memory-rate", "", "MEM004", "the device's memory cannot be used"),
    StageRow("link-rate", "", "MEM001", "host memory cannot be pinned for the GPU"),
    StageRow("reference", "", "PYT007", "LoRA does not train on the CPU: the packages do not fit together"),
    StageRow("lora-memorises", "", "PYT007", "LoRA does not learn: the packages do not fit together"),
    StageRow("base-frozen", "", "PYT007", "training moved weights that were frozen: the packages do not fit together"),
    StageRow("inference", "", "PYT007", "generation gives wrong results: transformers and torch do not fit together"),
    StageRow("adapter-disabled", "", "PYT007", "an adapter cannot be switched off: the packages do not fit together"),
    StageRow("adapter-reload", "", "PYT007", "an adapter does not come back as it was saved"),
    StageRow("adapter-merged", "", "PYT007", "a merged adapter computes something else"),
    StageRow("resume", "", "PYT007", "a resumed run gives other results"),
    StageRow("bitsandbytes-native", "", "PYT018", "bitsandbytes does not quantize on this device"),
    StageRow("qlora-memorises", "", "PYT018", "QLoRA does not learn on bitsandbytes' 4-bit layers"),
    StageRow("qlora-frozen", "", "PYT018", "training moved packed 4-bit weights"),
    StageRow("triton", "", "PYT019", "Triton does not compile for this GPU"),
    StageRow("nccl", "", "NET001", "all-reduce over NCCL fails"),
    StageRow("optimizer-8bit", "", "PYT018", "bitsandbytes' 8-bit optimizer does not train"),
    StageRow("int8-base", "", "PYT014", "8-bit layers do not train on this device"),
    StageRow("checkpointing", "", "PYT007", "gradient checkpointing changes the result"),
    StageRow("gloo", "", "NET002", "two processes of this machine do not find each other"),
    StageRow("compile", "", "PYT019", "torch.compile builds no kernel"),
    StageRow("memory-estimate", "", "GPU019", "more memory is used than the workload accounts for"),
    StageRow("own-model", "", "PYT008", "this model does not run with the installed packages"),
    StageRow("own-job", "", "PYT008", "this job does not run with the installed packages"),
    StageRow("memory", "", "MEM004", "the GPU's memory is not given back, or another process takes it"),
    StageRow("plain-lora", "", "PYT017", "torch alone does not train"),
    StageRow("plain-adapter", "", "PYT017", "torch does not load what it saved"),
    StageRow("gpu", "", "CON005", "the container does not see the GPU"),
    StageRow("cuda-compiler", "", "", "nvcc is missing, or does not build for this GPU"),
    StageRow("imports", "", "", "a package of the project does not import"),
    StageRow("command", "", "", "the project's command fails"),
    StageRow("build", "", "ENG013", "the image does not build; most builds that fail reach no package index"),
    StageRow("start", "", "PRJ011", "the dev container does not start on this machine"),
    StageRow("open", "", "", "a command that editors run at the first opening fails"),
    StageRow("proof", "", "CON011", "the proof in the dev container ended without a report"),
)
"""Rows by the stage alone, for a reason that no other row matches."""


def find_check_for_stage(stage: ProofStage, proof: Verification) -> StageCause:
    """Find the check that explains a failed stage: by its reason first, then by the stage alone."""
    for row in REASON_ROWS:
        if row.stage in ("", stage.name) and re.search(row.words, stage.reason, re.IGNORECASE):
            return StageCause(row.code, row.summary, Confidence.LIKELY)
    for text in (stage.reason, "\n".join(proof.log)):
        if found := match_signatures(text):
            return StageCause(found[0].code, found[0].cause, found[0].confidence)
    for row in STAGE_ROWS:
        if row.stage == stage.name:
            return StageCause(row.code, row.summary, Confidence.POSSIBLE)
    return StageCause("", "devkit does not know why this stage failed", Confidence.POSSIBLE)
