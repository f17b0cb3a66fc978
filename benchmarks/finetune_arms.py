"""One arm of finetune_speed.py in a process of its own: writes its speed by clock and processors, peak memory, loss."""

# ruff: noqa: ANN401 - what transformers and TRL hand around has no types worth naming

import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

RANK, ALPHA, LEARNING_RATE = 16, 32, 2e-4


def main() -> int:
    """Run an arm on the inputs in a folder, in a size given as JSON, and write the answer to a file: the arguments."""
    arm, folder, size = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    Clock.warm_up = size["warm_up"]
    with tempfile.TemporaryDirectory(prefix="devkit-arm-") as scratch:
        found = ARMS[arm](folder, size, Path(scratch))
    note_phase("end")
    peak = max(each["peak_mib"] for each in PHASES.values()) * 2**20
    told = {**found, "peak_resident_bytes": peak, "phases": PHASES}
    Path(sys.argv[4]).write_text(json.dumps(told), encoding="utf-8")
    return 0


PHASES: dict[str, dict[str, int]] = {}
"""By the name of what ended a phase: its peak, and what was resident at its end: own pages, and pages of files."""


def note_phase(name: str) -> None:
    """A phase ends here: note its memory, and begin to look for the next one's peak. After "end" nothing counts.

    Source: https://docs.kernel.org/filesystems/proc.html (VmHWM, RssAnon, RssFile, clear_refs).
    """
    if "end" in PHASES:
        return
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    mib = {key: int(told[key].split()[0]) // 1024 for key in ("VmHWM", "RssAnon", "RssFile")}
    PHASES[name] = {"peak_mib": mib["VmHWM"], "own_mib": mib["RssAnon"], "files_mib": mib["RssFile"]}
    Path("/proc/self/clear_refs").write_text("5")


class Clock:
    """Notes the time and the processor time of this process whenever a step has ended."""

    warm_up = 3
    """First steps, which are not counted: memory is taken and threads are started there."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def note(self) -> None:
        """A step has ended."""
        self.ends.append((time.perf_counter(), time.process_time()))
        if len(self.ends) in (1, self.warm_up):
            note_phase(f"step {len(self.ends)}")

    def found(self, tokens: int, last_loss: float) -> dict[str, float]:
        """Tokens per second and per second of processors, of `tokens` learned after the warm-up."""
        wall_s, cpu_s = (last - first for first, last in zip(self.ends[self.warm_up - 1], self.ends[-1], strict=True))
        note_phase("last step")
        return {"tokens_per_s": tokens / wall_s, "tokens_per_cpu_s": tokens / cpu_s, "last_loss": last_loss}


def run_devkit(folder: Path, size: dict[str, Any], scratch: Path) -> dict[str, float]:
    """What the command runs, with somebody who listens for the ends of steps."""
    from devkit.estimate.settings import Precision
    from devkit.workload.finetune.process import configure_libraries
    from devkit.workload.finetune.settings import FinetuneSettings, Schedule

    configure_libraries()
    from devkit.workload.finetune.program import run_finetuning

    note_phase("imported")
    clock, steps = Clock(), []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] in ("estimate", "start"):
            note_phase({"estimate": "data read", "start": "model loaded"}[event["event"]])
        if event["event"] == "step":
            clock.note()
            steps.append(event)

    settings = FinetuneSettings(
        model=str(folder / "model"), data=(str(folder / "texts.jsonl"),), output=scratch / "out",
        rank=RANK, alpha=ALPHA, sequence=size["sequence"], batch=size["rows"], micro_batch=size["rows"],
        steps=size["steps"], learning_rate=LEARNING_RATE, schedule=Schedule.CONSTANT, warmup=0.0,
        checkpointing=False, precision=Precision(size["precision"]), seed=size["seed"],
    )  # fmt: skip
    if run_finetuning(settings, listeners=(listen,)) != 0:
        raise SystemExit("devkit did not end well")
    found = clock.found(steps[-1]["tokens"] - steps[clock.warm_up - 1]["tokens"], steps[-1]["loss"])
    if not has_held_out(folder):
        return found
    from peft import PeftModel

    note_phase("end")
    base, tokenizer = _loaded(folder, size)
    return found | held_out_loss(PeftModel.from_pretrained(base, scratch / "out" / "adapter"), tokenizer, folder)


def has_held_out(folder: Path) -> bool:
    """There are texts that no arm learns from."""
    return (folder / "held-out.jsonl").exists()


def held_out_loss(model: Any, tokenizer: Any, folder: Path) -> dict[str, float]:
    """The mean loss over all tokens of texts that were not learned, by transformers and peft alone."""
    import torch

    if not has_held_out(folder):
        return {}
    note_phase("end")
    model.eval()
    losses = []
    for line in (folder / "held-out.jsonl").read_text().splitlines():
        ids = torch.tensor([[*tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"],
                             tokenizer.eos_token_id]])  # fmt: skip
        with torch.no_grad():
            losses.append(float(model(input_ids=ids, labels=ids).loss))
    return {"held_out_loss": sum(losses) / len(losses)}


def _lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def _loaded(folder: Path, size: dict[str, Any]) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    note_phase("imported")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[size["precision"]]
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype, attn_implementation="sdpa")
    note_phase("model loaded")
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
        "seed": size["seed"],
    }


class Watch:
    """Counts tokens as batches are taken and notes the clock after each step; `as_callback` hands it to a Trainer."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.clock = Clock()

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
                watch.clock.note()

        return Noted()

    def found(self, trainer: Any) -> dict[str, float]:
        """What was measured after the warm-up. The loader may have taken batches ahead that no step used."""
        tokens = sum(self.tokens[self.clock.warm_up : len(self.clock.ends)])
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return self.clock.found(tokens, float(losses[-1]))


def run_trainer(folder: Path, size: dict[str, Any], scratch: Path, *, patched: bool = False) -> dict[str, float]:
    """transformers' Trainer on a PEFT model, texts of like length together, padding to the longest text of a batch.

    Patched, the adapter is in the data type of the base, as `devkit finetune` has it.
    """
    from datasets import Dataset
    from peft import get_peft_model
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    model, tokenizer = _loaded(folder, size)
    texts = [json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text().splitlines()]
    rows = [
        [*ids[: size["sequence"] - 1], tokenizer.eos_token_id]
        for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]
    ]
    watch = Watch()
    adapted = get_peft_model(model, _lora(), autocast_adapter_dtype=not patched)
    if patched:
        from devkit.workload.patches import patch

        patch(adapted)
    trainer = Trainer(
        model=adapted,
        args=TrainingArguments(**_arguments(size, scratch), train_sampling_strategy="group_by_length"),
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        data_collator=watch.counting(DataCollatorForLanguageModeling(tokenizer, mlm=False)),
        callbacks=[watch.as_callback()],
    )
    trainer.train()
    return watch.found(trainer) | held_out_loss(trainer.model, tokenizer, folder)


def run_trl(
    folder: Path, size: dict[str, Any], scratch: Path, *, packing: bool = False, patched: bool = False
) -> dict[str, float]:
    """TRL's SFTTrainer with its defaults for LoRA. Without flash attention its packed texts see each other."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = _loaded(folder, size)
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
    if patched:
        from devkit.workload.patches import patch

        # TRL chunks the loss already.
        patch(trainer.model, loss=False)
    trainer.data_collator = watch.counting(trainer.data_collator)
    trainer.train()
    return watch.found(trainer) | held_out_loss(trainer.model, tokenizer, folder)


def run_trl_packed(folder: Path, size: dict[str, Any], scratch: Path) -> dict[str, float]:
    """The same with packing."""
    return run_trl(folder, size, scratch, packing=True)


ARMS = {
    "devkit": run_devkit,
    "trainer": run_trainer,
    "trainer-patched": functools.partial(run_trainer, patched=True),
    "trl": run_trl,
    "trl-patched": functools.partial(run_trl, patched=True),
    "trl-packed": run_trl_packed,
}

if __name__ == "__main__":
    sys.exit(main())
