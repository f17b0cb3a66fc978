"""Asks ftuneai for every run on stdin: run by the Python of the environment that has it."""

from answering import Run, answer
from ftuneai import FineTuneMethod, LoRATarget, ModelSpec, OptimizerType, Quantization, TrainingConfig
from ftuneai.core.memory import MemoryEstimator

GIB = 1 << 30


def asked(run: Run) -> dict[str, float]:
    """Bytes of tensors, and with the tool's own share for CUDA."""
    config, settings = run["config"], run["settings"]
    heads = config["num_attention_heads"]
    spec = ModelSpec(
        name=run["model"],
        parameters=run["parameters"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_kv_heads=config.get("num_key_value_heads", heads),
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_seq_length=config["max_position_embeddings"],
    )
    is_attention = "o_proj" in settings["targets"]
    training = TrainingConfig(
        model=run["model"],
        method=FineTuneMethod(settings["method"]),
        quantization=Quantization.INT4 if settings["method"] == "qlora" else Quantization.NONE,
        batch_size=settings["micro_batch"],
        seq_length=settings["sequence"],
        gradient_checkpointing=settings["checkpointing"],
        optimizer=OptimizerType.ADAM_8BIT if "8bit" in settings["optimizer"] else OptimizerType.ADAMW,
        lora_rank=settings["rank"],
        lora_target=LoRATarget.ATTENTION_ALL if is_attention else LoRATarget.ATTENTION,
        flash_attention=settings["attention"] != "eager",
    )
    found = MemoryEstimator(spec, training).estimate()
    return {"tensors": (found.total_gb - found.overhead_gb) * GIB, "total": found.total_gb * GIB}


answer(asked)
