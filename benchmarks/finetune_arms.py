"""One arm of finetune_speed.py in a process of its own: writes tokens per second, peak memory and the last loss."""

# ruff: noqa: ANN401 - what transformers and TRL hand around has no types worth naming

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

WARM_UP = 3
"""First steps, which are not counted: memory is taken and threads are started there."""

RANK, ALPHA, LEARNING_RATE = 16, 32, 2e-4


def main() -> int:
    """Run an arm on the inputs in a folder, in a size given as JSON, and write the answer to a file: the arguments."""
    arm, folder, size = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    with tempfile.TemporaryDirectory(prefix="devkit-arm-") as scratch:
        found = ARMS[arm](folder, size, Path(scratch))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(sys.argv[4]).write_text(json.dumps({**found, "peak_resident_bytes": peak_bytes}), encoding="utf-8")
    return 0


def run_devkit(folder: Path, size: dict[str, Any], scratch: Path) -> dict[str, float]:
    """The command itself, its metrics file read afterwards."""
    from devkit.cli import devkit

    argv = ["finetune", "--model", folder / "model", "--data", folder / "texts.jsonl", "--output", scratch / "out"]
    argv += ["--rank", RANK, "--alpha", ALPHA, "--sequence", size["sequence"], "--batch", size["rows"]]
    argv += ["--micro-batch", size["rows"], "--steps", size["steps"], "--learning-rate", LEARNING_RATE]
    argv += ["--schedule", "constant", "--warmup", 0, "--no-checkpointing", "--precision", "fp32", "--json"]
    try:
        devkit(args=[str(word) for word in argv], standalone_mode=False)
    except SystemExit as end:
        if end.code:
            raise
    steps = [json.loads(line) for line in (scratch / "out/metrics.jsonl").read_text().splitlines()]
    steps = [event for event in steps if event["event"] == "step"]
    timed = steps[WARM_UP:]
    tokens = timed[-1]["tokens"] - steps[WARM_UP - 1]["tokens"]
    # Each step tells its own time, what it waited for data included.
    seconds = sum(event["seconds"] for event in timed)
    return {"tokens_per_s": tokens / seconds, "last_loss": steps[-1]["loss"]}


def _lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def _loaded(folder: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa")
    return model, AutoTokenizer.from_pretrained(folder / "model")


def _arguments(size: dict[str, Any], scratch: Path) -> dict[str, Any]:
    return {
        "output_dir": str(scratch / "out"),
        "per_device_train_batch_size": size["rows"],
        "max_steps": size["steps"],
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": 0,
    }


class Watch:
    """Counts tokens as batches are taken and notes the clock after each step; `as_callback` hands it to a Trainer."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends: list[float] = []

    def counting(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`collate`, with the tokens of each batch noted: those that are no padding."""

        def counted(rows: Any) -> Any:
            batch = collate(rows)
            mask = batch.get("attention_mask")
            self.tokens.append(int(mask.sum()) if mask is not None else int(batch["input_ids"].numel()))
            return batch

        return counted

    def as_callback(self) -> Any:
        """A TrainerCallback."""
        from transformers import TrainerCallback

        watch = self

        class Noted(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                watch.ends.append(time.perf_counter())

        return Noted()

    def found(self, trainer: Any) -> dict[str, float]:
        """What was measured after the warm-up. The loader may have taken batches ahead that no step used."""
        tokens = sum(self.tokens[WARM_UP : len(self.ends)])
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return {"tokens_per_s": tokens / (self.ends[-1] - self.ends[WARM_UP - 1]), "last_loss": float(losses[-1])}


def run_trainer(folder: Path, size: dict[str, Any], scratch: Path) -> dict[str, float]:
    """transformers' Trainer on a PEFT model, padding to the longest text of a batch."""
    from datasets import Dataset
    from peft import get_peft_model
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    model, tokenizer = _loaded(folder)
    texts = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text().splitlines()]
    rows = [
        [*ids[: size["sequence"] - 1], tokenizer.eos_token_id]
        for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]
    ]
    watch = Watch()
    trainer = Trainer(
        model=get_peft_model(model, _lora()),
        args=TrainingArguments(**_arguments(size, scratch)),
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        data_collator=watch.counting(DataCollatorForLanguageModeling(tokenizer, mlm=False)),
        callbacks=[watch.as_callback()],
    )
    trainer.train()
    return watch.found(trainer)


def run_trl(folder: Path, size: dict[str, Any], scratch: Path, *, packing: bool = False) -> dict[str, float]:
    """TRL's SFTTrainer with its defaults for LoRA. Without flash attention its packed texts see each other."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = _loaded(folder)
    texts = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    watch = Watch()
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(**_arguments(size, scratch), max_length=size["sequence"], packing=packing),
        train_dataset=Dataset.from_list(texts),
        processing_class=tokenizer,
        peft_config=_lora(),
        callbacks=[watch.as_callback()],
    )
    trainer.data_collator = watch.counting(trainer.data_collator)
    trainer.train()
    return watch.found(trainer)


def run_trl_packed(folder: Path, size: dict[str, Any], scratch: Path) -> dict[str, float]:
    """The same with packing."""
    return run_trl(folder, size, scratch, packing=True)


ARMS = {"devkit": run_devkit, "trainer": run_trainer, "trl": run_trl, "trl-packed": run_trl_packed}

if __name__ == "__main__":
    sys.exit(main())
