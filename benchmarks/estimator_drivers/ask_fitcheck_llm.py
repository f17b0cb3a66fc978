"""Asks fitcheck-llm for every run on stdin: run by the Python of the environment that has it."""

from answering import Run, answer
from fitcheck import ModelConfig, TrainingConfig, estimate, get_gpu

MIB = 1 << 20
GPUS = {"Tesla T4": "t4", "L40S": "l40s"}


def asked(run: Run) -> dict[str, float]:
    """Bytes of tensors, and of the process."""
    config, settings = run["config"], run["settings"]
    heads = config["num_attention_heads"]
    model = ModelConfig(
        name=run["model"],
        num_params=run["parameters"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_kv_heads=config.get("num_key_value_heads", heads),
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        head_dim=config.get("head_dim", config["hidden_size"] // heads),
        tie_word_embeddings=config.get("tie_word_embeddings", False),
    )
    is_full = settings["method"] == "full"
    training = TrainingConfig(
        precision=settings["precision"],
        quantization="nf4" if settings["method"] == "qlora" else "none",
        double_quant=settings["method"] == "qlora" and settings["double_quantization"],
        optimizer="adam8bit" if "8bit" in settings["optimizer"] else "adamw",
        optimizer_dtype="bf16" if is_full else "fp32",
        batch_size=settings["micro_batch"],
        seq_len=settings["sequence"],
        lora_rank=None if is_full else settings["rank"],
        lora_targets=list(settings["targets"]),
        grad_checkpoint=settings["checkpointing"],
        flash_attn=settings["attention"] != "eager",
    )
    gpu = get_gpu(GPUS[run["gpu"]]) if run["gpu"] in GPUS else get_gpu(run["gpu"], 16384)
    found = estimate(model, training, gpu)
    return {"tensors": (found.total_mib - found.overhead_mib) * MIB, "total": found.total_mib * MIB}


answer(asked)
