"""Tokens per second and peak memory of `devkit finetune` against Hugging Face's Trainer with PEFT, and against TRL.

All learn the same LoRA adapter on the same model from the same texts, in rows of the same length, with the same
number of rows in a pass. Only tokens of texts are counted, never padding. Two mixes: texts that fill a row to the
last token, so that everybody does equal work, and short texts of many lengths, as instructions and answers are. The
arms take turns, each in a process of its own and with a seed for each round, and the middle of the rounds counts.
Seconds of processors are counted beside those of the clock: on a machine that does other things, too, only they can
be compared.

Run it with a Python that has trl and datasets beside devkit's workload extra.
"""

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import RESULTS, describe, record, versions

ARMS = ("devkit", "trainer", "trl", "trl-packed")
PATCHED = ("trainer-patched", "trl-patched")
"""The same scripts with `devkit.workload.patches` in two more lines."""
BEFORE = "devkit-before"
"""`devkit finetune` of another checkout, which --before names."""
AGAINST_DEFAULTS = ("devkit", "trainer", "trl-packed")
"""Each by what it is best at: Trainer groups texts by length, TRL packs them."""

MIXES = ("full", "short")
PROGRAMS: dict[str, Path] = {}
"""The arms of other checkouts."""
SEED = 5


@dataclass(frozen=True)
class Size:
    """A Llama shape and how much of it one run takes. `sequence` is in tokens, `rows` in one pass."""

    name: str
    hidden: int
    layers: int
    vocabulary: int
    sequence: int
    rows: int
    steps: int
    model: str = ""
    """A pretrained model by the name that --model takes; "" for random weights of this shape."""
    precision: str = "fp32"
    warm_up: int = 3
    """Steps that are not counted."""
    arms: tuple[str, ...] = ARMS
    held_out: int = 0
    """Full rows that no arm learns from, on which all are compared."""


SIZES = (
    # The shape is that of the model: it is only told here.
    Size("smollm2", 576, 30, 49152, 256, 4, 4, "smollm2-135m", warm_up=1, arms=AGAINST_DEFAULTS, held_out=4),
    Size("smollm2-bf16", 576, 30, 49152, 256, 4, 4, "smollm2-135m", "bf16", warm_up=1, arms=AGAINST_DEFAULTS),
    Size("tiny", hidden=128, layers=4, vocabulary=2048, sequence=256, rows=4, steps=72),
    Size("small", hidden=384, layers=6, vocabulary=8192, sequence=512, rows=4, steps=10),
)


def main() -> int:
    """Run every arm on every mix and size, by turns; record medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mix", action="append", choices=MIXES)
    parser.add_argument("--size", action="append", choices=[size.name for size in SIZES])
    parser.add_argument("--threads", type=int, help="in each arm; as many as there are cores unless given")
    parser.add_argument(
        "--minutes", type=float, help="begin no round that would not end by then, as rounds took so far"
    )
    parser.add_argument("--steps", type=int, help="in each run, instead of those of the size")
    parser.add_argument("--arm", action="append", choices=(*ARMS, *PATCHED), help="instead of those of the size")
    parser.add_argument("--before", type=Path, help="a checkout of devkit to compare with, such as a git worktree")
    parser.add_argument("--only-print", action="store_true", help="record nothing")
    given = parser.parse_args()
    if given.threads:
        os.environ["OMP_NUM_THREADS"] = str(given.threads)
    chosen = [size for size in SIZES if not given.size or size.name in given.size]
    if given.steps:
        chosen = [replace(size, steps=given.steps, warm_up=min(size.warm_up, given.steps - 1)) for size in chosen]
    for index, size in enumerate(chosen):
        arms = tuple(given.arm or size.arms) + ((BEFORE,) if given.before else ())
        chosen[index] = replace(size, arms=arms)
    if given.before:
        PROGRAMS[BEFORE] = given.before / "benchmarks" / "finetune_arms.py"
    watch = Watch(given.minutes * 60 if given.minutes else float("inf"))
    with tempfile.TemporaryDirectory(prefix="devkit-speed-") as scratch:
        tables = [
            table
            for size in chosen
            for table in _compare_size(Path(scratch), size, given.mix or MIXES, given.rounds, watch)
        ]
    for table in tables:
        print(json.dumps(table, indent=2))
    if not given.only_print:
        told = {
            "versions": versions("torch", "transformers", "peft", "trl", "accelerate"),
            "threads": given.threads or os.cpu_count(),
        }
        print(record("finetune_speed", {**told, "tables": [*_kept(told, {each.name for each in chosen}), *tables]}))
    return 0


def _kept(told: dict[str, object], measured: set[str]) -> list[dict[str, Any]]:
    """The recorded tables of the other sizes, where machine and versions are still the same."""
    path = RESULTS / "finetune_speed.json"
    if not path.exists():
        return []
    earlier = json.loads(path.read_text(encoding="utf-8"))
    if any(earlier.get(name) != value for name, value in {**told, "machine": describe()}.items()):
        return []
    return [table for table in earlier["tables"] if table["size"]["name"] not in measured]


class Watch:
    """Allows a round if it would end in time, were it to take as long as the longest so far."""

    def __init__(self, seconds: float) -> None:
        self._last_s = time.monotonic()
        self._end_s = self._last_s + seconds
        self._longest_s = -1.0

    def allows_another(self) -> bool:
        """Called before each round."""
        now_s = time.monotonic()
        # The time until the first call was no round.
        self._longest_s = max(self._longest_s, now_s - self._last_s) if self._longest_s >= 0 else 0.0
        self._last_s = now_s
        return now_s + self._longest_s <= self._end_s


def _compare_size(
    scratch: Path, size: Size, mixes: Sequence[str], rounds: int, watch: Watch
) -> Iterator[dict[str, object]]:
    """Take turns: mixes within rounds, arms within mixes. Rounds that are begun are finished."""
    seen: dict[str, dict[str, list[dict[str, Any]]]] = {mix: {arm: [] for arm in size.arms} for mix in mixes}
    for number in range(rounds):
        if not watch.allows_another():
            break
        for mix in mixes:
            folder = scratch / f"{size.name}-{mix}"
            if number == 0:
                make_inputs(folder, size, mix)
            turn = number % len(size.arms)
            for arm in size.arms[turn:] + size.arms[:turn]:
                seen[mix][arm].append(_one(arm, folder, size, seed=number))
    return (_tell(size, mix, arms) for mix, arms in seen.items() if arms[size.arms[0]])


def _tell(size: Size, mix: str, seen: dict[str, list[dict[str, Any]]]) -> dict[str, object]:
    arms = {
        arm: {
            "tokens_per_s": round(statistics.median(each["tokens_per_s"] for each in runs), 1),
            "tokens_per_cpu_s": round(statistics.median(each["tokens_per_cpu_s"] for each in runs), 1),
            "all_tokens_per_s": [round(each["tokens_per_s"], 1) for each in runs],
            "all_tokens_per_cpu_s": [round(each["tokens_per_cpu_s"], 1) for each in runs],
            "peak_resident_mib": round(statistics.median(each["peak_resident_bytes"] for each in runs) / 2**20),
            "phases": runs[-1]["phases"],
            "last_loss": round(runs[-1]["last_loss"], 4),
            "held_out_losses": [round(each["held_out_loss"], 4) for each in runs if "held_out_loss" in each],
        }
        for arm, runs in seen.items()
    }
    times = {name: _times(arms, name) for name in ("tokens_per_s", "tokens_per_cpu_s", "peak_resident_mib")}
    return {
        "size": asdict(size),
        "mix": mix,
        "measured_at": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rounds": len(seen["devkit"]),
        "arms": arms,
        "devkit_is_times_each": times,
    }


def _times(arms: dict[str, dict[str, Any]], name: str) -> dict[str, float]:
    """How many times an arm's reading devkit's is, by arm."""
    return {arm: round(arms["devkit"][name] / told[name], 2) for arm, told in arms.items() if arm != "devkit"}


def _one(arm: str, folder: Path, size: Size, *, seed: int) -> dict[str, Any]:
    print(f"{time.strftime('%H:%M:%S')} {folder.name}: {arm}, seed {seed}", file=sys.stderr, flush=True)
    answer = folder / "answer.json"
    program = PROGRAMS.get(arm, Path(__file__).with_name("finetune_arms.py"))
    argv = [
        sys.executable,
        program,
        "devkit" if arm == BEFORE else arm,
        folder,
        json.dumps({**asdict(size), "seed": seed}),
        answer,
    ]
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(argv, env={**os.environ, **quiet}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{arm} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def make_inputs(folder: Path, size: Size, mix: str) -> None:
    """A model, a tokenizer, and texts; the same ones each time.

    Either a pretrained model, or random weights and a tokenizer learned from made-up words.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    chance = random.Random(SEED)
    count = min(size.vocabulary, 8192)
    words = ["".join(chance.choices("abcdefghijklmnoprstuvw", k=chance.randint(2, 9))) for _ in range(count)]
    if size.model:
        from transformers import AutoTokenizer

        from devkit.workload.finetune.files import resolve_model_folder

        folder.mkdir(parents=True)
        (folder / "model").symlink_to(resolve_model_folder(size.model))
        _write_texts(folder, size, mix, words, AutoTokenizer.from_pretrained(folder / "model"), chance)
        return
    byte_pairs = Tokenizer(models.BPE())
    byte_pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_pairs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size.vocabulary, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    byte_pairs.train_from_iterator([" ".join(words)] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 32,
        num_key_value_heads=size.hidden // 64,
        max_position_embeddings=size.sequence,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(str(folder / "model"))
    tokenizer.save_pretrained(str(folder / "model"))
    _write_texts(folder, size, mix, words, tokenizer, chance)


def _write_texts(
    folder: Path, size: Size, mix: str, words: list[str], tokenizer: object, chance: random.Random
) -> None:
    lengths = _lengths(size, mix, chance)
    with (folder / "texts.jsonl").open("w", encoding="utf-8") as lines:
        for length in lengths:
            lines.write(json.dumps({"text": _text_of(length, words, tokenizer, chance)}) + "\n")
    # Steps of short texts have as many tokens as an arm packs into them: only full rows teach all arms the same.
    if size.held_out and mix == "full":
        with (folder / "held-out.jsonl").open("w", encoding="utf-8") as lines:
            for _ in range(size.held_out):
                lines.write(json.dumps({"text": _text_of(size.sequence, words, tokenizer, chance)}) + "\n")


def _lengths(size: Size, mix: str, chance: random.Random) -> list[int]:
    """Tokens of each text with its end token. As many texts as the padded arms need for their steps, or more."""
    rows = size.rows * size.steps
    if mix == "full":
        return [size.sequence] * rows
    wanted, lengths = rows * size.sequence, []
    middle = size.sequence / 8
    while sum(lengths) < wanted:
        lengths.append(max(8, min(size.sequence, round(chance.lognormvariate(0, 0.7) * middle))))
    return lengths


def _text_of(length: int, words: list[str], tokenizer: object, chance: random.Random) -> str:
    """A text that is `length` tokens long with the end token that every arm puts behind it."""
    ids: list[int] = []
    while len(ids) < length - 1:
        ids += tokenizer(" " + chance.choice(words), add_special_tokens=False)["input_ids"]  # type: ignore[operator]
    while True:
        text: str = tokenizer.decode(ids[: length - 1])  # type: ignore[attr-defined]
        again = tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[operator]
        if len(again) == length - 1:
            return text
        # Cut inside a word, a text may be split another way: another last word, then.
        ids = ids[: max(1, length // 2)]
        while len(ids) < length - 1:
            ids += tokenizer(" " + chance.choice(words), add_special_tokens=False)["input_ids"]  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
