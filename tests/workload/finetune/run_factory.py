"""A base model and texts in a folder, small enough that a run over them takes a second."""

import json
from pathlib import Path

from devkit.estimate.settings import Precision
from devkit.workload.finetune.settings import FinetuneSettings

SENTENCE = "the quick brown fox jumps over the lazy dog."
TEXTS = [
    "one two three four five",
    "a b c",
    "the quick brown fox",
    "jumps over the lazy dog",
    "six seven eight nine ten eleven twelve",
    "x y",
    "red green blue",
    "north south east west north south",
]


def write_base(folder: Path, *, seed: int = 0, positions: int = 128) -> Path:
    """A random Llama over bytes, with a head that is sharp enough for LoRA to memorize with."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.workload.small_models import save_tokenizer

    save_tokenizer(folder, begins=False)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=256,
        eos_token_id=257,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(10)
    model.save_pretrained(str(folder))
    return folder


def write_texts(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


class RunFactory:
    """A factory of short runs: one base, two files of texts, and a new output folder for each run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = write_base(folder / "base")
        self.sentence = write_texts(folder / "sentence.jsonl", [SENTENCE])
        self.texts = write_texts(folder / "texts.jsonl", TEXTS)
        self._outputs = 0

    def settings(self, **changed) -> FinetuneSettings:
        """A short run on the texts with these settings changed."""
        self._outputs += 1
        given = {
            "model": str(self.base),
            "data": (str(self.texts),),
            "output": self.folder / f"output-{self._outputs}",
            "batch": 8,
            "steps": 3,
            "learning_rate": 5e-3,
            # CPUs with bf16 would choose it, and round.
            "precision": Precision.FP32,
        }
        return FinetuneSettings(**given | changed)

    def run(self, **changed) -> "Ran":
        """A run to its end."""
        from devkit.workload.finetune.program import run_finetuning

        settings = self.settings(**changed)
        events: list[dict] = []
        return Ran(run_finetuning(settings, listeners=(events.append,)), events, settings.output)


class Ran:
    """The outcome of a run."""

    def __init__(self, code: int, events: list[dict], output: Path) -> None:
        self.code = code
        self.events = events
        self.output = output

    def named(self, name: str) -> list[dict]:
        return [each for each in self.events if each["event"] == name]

    @property
    def losses(self) -> list[float]:
        return [each["loss"] for each in self.named("step")]

    @property
    def norms(self) -> list[float]:
        return [each["gradient_norm"] for each in self.named("step")]

    @property
    def decisions(self) -> dict[str, str]:
        return {each["name"]: each["value"] for each in self.named("decision")}
