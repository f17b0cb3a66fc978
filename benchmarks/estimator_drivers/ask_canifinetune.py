"""Asks canifinetune for every run on stdin: run by the Python of the environment that has it."""

from answering import Run, answer
from canifinetune.estimator.memory import EstimateRequest, estimate

GIB = 1 << 30
MEMORY_GIB = {"Tesla T4": 14.56, "GeForce RTX 4080": 15.99, "L40S": 44.4}
OPTIMIZERS = {"adamw-foreach": "adamw_torch", "paged-adamw-8bit": "paged_adamw_8bit"}


def asked(run: Run) -> dict[str, float]:
    """Bytes of tensors, and of the process without the tool's own margin."""
    settings = run["settings"]
    quantization = "nf4_double_quant" if settings["double_quantization"] else "nf4"
    found = estimate(
        EstimateRequest(
            model_id=run["model"],
            method=settings["method"],
            seq_len=settings["sequence"],
            micro_batch_size=settings["micro_batch"],
            base_dtype=settings["precision"],
            quantization=quantization if settings["method"] == "qlora" else "none",
            lora_rank=settings["rank"],
            target_modules=list(settings["targets"]) if settings["method"] != "full" else None,
            optimizer=OPTIMIZERS[settings["optimizer"]],
            gradient_checkpointing=settings["checkpointing"],
            attention_implementation=settings["attention"],
            gpu_vram_gb=MEMORY_GIB[run["gpu"]],
            override={**run["config"], "total_params": run["parameters"], "family": run["config"]["model_type"]},
            use_network=False,
        )
    ).memory
    process = found.total_estimated_gb - found.safety_margin_gb
    return {"tensors": (process - found.cuda_overhead_gb) * GIB, "total": process * GIB}


answer(asked)
