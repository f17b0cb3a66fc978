"""DPO, reward models and GRPO: their data, and the trainers of TRL, with our decisions and what a run must survive.

Pairs of answers, and prompts, are tokenized by the same rules as texts. Losses, collators and generation are TRL's. The rows of a
step follow from its number, as everywhere here, so a resumed run needs no state of a sampler. There is one process, and memory
that runs out ends the run.
"""

import functools
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import trl
from datasets import Dataset as Rows

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Objective
from devkit.text import format_count, to_one_line
from devkit.workload.finetune.dataset import (
    Example,
    TokenizedRecords,
    ensure_chat_template,
    epoch_permutation,
    render_chat_template,
    tokenize_records,
)
from devkit.workload.finetune.files import Tokenizer
from devkit.workload.finetune.records import PairRecord, QuestionRecord, Record
from devkit.workload.finetune.run_folder import require_reward_function
from devkit.workload.finetune.trainer import (
    RunContext,
    RunTrainer,
    StepNumbers,
    count_steps,
    list_arguments,
    prepare_model,
    seed_generators,
)
from devkit.workload.models import Model


@dataclass(frozen=True)
class PairExample(Example):
    """Two answers as token ids, each after the prompt: `chosen` tokens of the better one, then the other.

    Both begin with the same `shared` tokens.
    """

    chosen: int
    shared: int

    @property
    def length(self) -> int:
        """Tokens of both rows, padded to the longer one."""
        return 2 * max(self.chosen, len(self.ids) - self.chosen)

    def to_columns(self, objective: Objective) -> dict[str, Any]:
        """Return the columns that TRL's trainer reads."""
        prompt = 0 if objective is Objective.REWARD else self.shared
        columns = {"chosen_ids": list(self.ids[prompt : self.chosen])}
        columns |= {"rejected_ids": list(self.ids[self.chosen + prompt :])}
        return columns if objective is Objective.REWARD else columns | {"prompt_ids": list(self.ids[:prompt])}


@dataclass(frozen=True)
class PromptExample(Example):
    """A prompt, as text or turns, and the other fields of its record; `length` includes its longest completion."""

    prompt: Any
    fields: Mapping[str, Any]
    new_tokens: int

    @property
    def length(self) -> int:
        """Tokens of the prompt and the longest completion."""
        return len(self.ids) + self.new_tokens

    def to_columns(self, _: Objective) -> dict[str, Any]:
        """Return the columns that TRL's trainer and the reward function read."""
        return {**self.fields, "prompt": self.prompt}


def tokenize_pairs(
    records: Iterable[Record],
    tokenizer: Tokenizer,
    *,
    sequence: int,
    **given: Any,  # noqa: ANN401 - of tokenize_records
) -> TokenizedRecords:
    """Tokenize pairs. Those with an answer of more than `sequence` tokens are left out. Raises DevkitError if all are."""
    pairs = 0

    def list_sides() -> Iterator[Record]:
        nonlocal pairs
        for record in records:
            assert isinstance(record, PairRecord)  # noqa: S101 - as they were parsed
            pairs += 1
            yield from (record.chosen, record.rejected)

    sides = tokenize_records(list_sides(), tokenizer, sequence=sys.maxsize, **given)
    if len(sides.examples) != 2 * pairs:
        raise DevkitError(
            "the chat template renders earlier answers differently once more turns follow",
            "Give pairs with one answer after their prompt.",
        )
    examples = [_join(*each) for each in zip(sides.examples[::2], sides.examples[1::2], strict=True)]
    return _keep_fitting(examples, 2 * sequence, f"answers of at most {sequence} tokens", sides.notes)


def _join(chosen: Example, rejected: Example) -> PairExample:
    """Join the sides of a pair. Their prompt ends where one of them is trained on, or differs."""
    border = min(list(side.loss_mask).index(1) for side in (chosen, rejected))
    shared = next((place for place in range(border) if chosen.ids[place] != rejected.ids[place]), border)
    both = Example.compact([*chosen.ids, *rejected.ids], [*chosen.loss_mask, *rejected.loss_mask])
    return PairExample(both.ids, both.loss_mask, len(chosen.ids), shared)


def tokenize_prompts(
    records: Iterable[Record], tokenizer: Tokenizer, *, new_tokens: int, sequence: int, **_: object
) -> TokenizedRecords:
    """Tokenize prompts, as TRL will. Those that leave less than `new_tokens` of `sequence` are left out."""
    notes, examples = [], []
    for record in records:
        assert isinstance(record, QuestionRecord)  # noqa: S101 - as they were parsed
        prompted = record.prompt
        if not isinstance(prompted, str):
            notes += [note] if (note := ensure_chat_template(tokenizer)) else []
            prompted = render_chat_template(
                tokenizer, prompted, place=record.place, tokenize=False, add_generation_prompt=True
            )
        ids = list(tokenizer(prompted, add_special_tokens=isinstance(record.prompt, str))["input_ids"])
        prompt = record.prompt if isinstance(record.prompt, str) else list(record.prompt)
        examples.append(PromptExample(ids, [0] * len(ids), prompt, record.fields, new_tokens))
    return _keep_fitting(examples, sequence, f"a prompt and {new_tokens} new tokens within {sequence}", notes)


def _keep_fitting(examples: Iterable[Example], most: int, what: str, notes: list[str]) -> TokenizedRecords:
    """Keep examples of at most `most` tokens, which have `what`. Raises DevkitError if none does."""
    examples = list(examples)
    kept = [each for each in examples if each.length <= most]
    if not kept:
        raise DevkitError(f"no record has {what}", "Use a larger --max-length, or shorter records.")
    left_out = len(examples) - len(kept)
    note = f"left out {format_count(left_out, 'record')} without {what}"
    return TokenizedRecords(kept, [*notes, *([note] if left_out else [])])


METRICS = {
    "rewards/margins": "margin",
    "margin": "margin",
    "rewards/accuracies": "accuracy",
    "accuracy": "accuracy",
    "reward": "reward",
    "reward_std": "reward_std",
    "completions/mean_length": "completion_tokens",
}
"""TRL's metric -> the field of the events "step" and "eval"."""


class ObjectiveTrainer(RunTrainer):
    """A run around the trainer of TRL that follows in the order of a subclass's bases."""

    objective: Objective
    config: type[Any]

    def __init__(self, run: RunContext, *, load_reference: Callable[[], Model]) -> None:
        self._settings, decisions = run.settings, run.decisions
        train: Any = run.data.train
        held_out: Any = run.data.held_out
        self.rows = train
        # Records of the data in a step: a group of completions answers one of them.
        self._per_step = decisions.micro_batch * decisions.accumulation // self._copies
        steps = count_steps(run.settings, len(self.rows) / self._per_step)
        # Renamed in transformers 5; the old name warns there.
        is_renamed = "activation_checkpointing" in self.config.__dataclass_fields__
        checkpointing = "activation_checkpointing" if is_renamed else "gradient_checkpointing"
        arguments = list_arguments(run.settings, decisions, run.ranks, steps=steps) | {
            # TRL reports the mean over batches, which is that over rows where all have equally many.
            "per_device_eval_batch_size": math.gcd(decisions.micro_batch, len(held_out)) or 1,
            "gradient_accumulation_steps": decisions.accumulation,
            checkpointing: decisions.checkpointing,
            f"{checkpointing}_kwargs": {"use_reentrant": False},
            # The model is in its data type: there is no autocast.
            "bf16": False,
        }
        super().__init__(
            run,
            model=prepare_model(run.base.model, run.settings, decisions),
            steps=steps,
            args=self.config(**arguments | self._list_arguments()),
            # TRL looks at its first row; those of a step come from `get_train_dataloader`.
            train_dataset=Rows.from_list([train[0].to_columns(self.objective)]),
            eval_dataset=Rows.from_list([each.to_columns(self.objective) for each in held_out]) if held_out else None,
            processing_class=run.base.tokenizer,
            **self._list_inputs(load_reference),
        )
        if "ref" in getattr(self.model, "peft_config", {}):
            # A copy of the new adapter, which changes nothing yet: without it, TRL computes the base itself.
            self.model.delete_adapter("ref")

    _copies = 1

    def _list_arguments(self) -> dict[str, Any]:
        return {"max_length": None, "disable_dropout": not self._settings.dropout}

    def _list_inputs(self, _: Callable[[], Model]) -> dict[str, Any]:
        return {}

    def _prepare_dataset(self, dataset: Rows, *_: object) -> Rows:
        """Return the data as they are: tokenized by our rules."""
        return dataset

    def _send_telemetry(self) -> None:
        """Send nothing."""

    def get_train_dataloader(self) -> "StepRows":
        """Return the micro-batches of the steps that are still to be taken."""
        return StepRows(self)

    def load_step(self, step: int) -> Iterator[Any]:
        """Yield the micro-batches of a step, all of one size; epochs follow each other without a gap."""
        rows, seed, size = len(self.rows), self._settings.seed, self._decisions.micro_batch
        places = (divmod(place, rows) for place in range(step * self._per_step, (step + 1) * self._per_step))
        numbers = (epoch_permutation(rows, seed=seed, epoch=epoch)[at] for epoch, at in places)
        chosen = [self.rows[number].to_columns(self.objective) for number in numbers]
        if self.objective is Objective.GRPO:
            # TRL answers all prompts of the step in its first pass, and takes a share of them in each.
            whole = [columns for columns in chosen for _ in range(self._copies)]
            yield from [whole] * (len(whole) // size)
        else:
            yield from (self.data_collator(chosen[start : start + size]) for start in range(0, len(chosen), size))

    def training_step(self, *given: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - TRL's
        """Take a pass of the step, which TRL computes. Raises StopRun for a signal before it."""
        self._raise_on_stop()
        step, counted = self.state.global_step, self._total_train_tokens
        if self._step_metrics.get("step") != step:
            seed_generators(seed=self._settings.seed, step=step, rank=0)
            self._step_metrics = {"step": step, "total": 0.0, "targets": 1, "scale": None, "tokens": 0, "waited_s": 0.0}
        loss: torch.Tensor = super().training_step(*given, **named)
        self._step_metrics["total"] = self._step_metrics["total"] + loss
        self._step_metrics["tokens"] += int(self._total_train_tokens - counted)
        return loss

    def judge_gradients(self) -> None:
        super().judge_gradients()
        means = {key: sum(values) / len(values) for key, values in self._metrics["train"].items() if key in METRICS}
        self._step_metrics["reported"] |= {METRICS[key]: value for key, value in means.items()}
        self._metrics["train"].clear()

    def evaluate(self, *given: Any, **named: Any) -> dict[str, float]:  # noqa: ANN401 - Trainer's
        """Evaluate the held-out rows as TRL does."""
        metrics: dict[str, float] = super().evaluate(*given, **named)
        fields = {field: metrics[f"eval_{key}"] for key, field in METRICS.items() if f"eval_{key}" in metrics}
        seconds = round(metrics["eval_runtime"], 3)
        self._events("eval", step=self.progress.step, loss=metrics["eval_loss"], seconds=seconds, **fields)
        return metrics

    def prediction_step(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - Trainer's
        """Evaluate one batch. Raises StopRun for a signal before it."""
        self._raise_on_stop()
        return super().prediction_step(*given, **named)


class StepRows(StepNumbers):
    """The micro-batches of the steps of a run, from the one at which it starts."""

    def __len__(self) -> int:
        return super().__len__() * int(self._trainer.args.gradient_accumulation_steps)

    def __iter__(self) -> Iterator[Any]:
        for step in super().__iter__():
            yield from self._trainer.load_step(step)


class DpoTrainer(ObjectiveTrainer, trl.DPOTrainer):  # type: ignore[misc]
    """Direct preference optimization. With an adapter, the reference is the base without it."""

    objective, config = Objective.DPO, trl.DPOConfig

    def _list_arguments(self) -> dict[str, Any]:
        return super()._list_arguments() | {"beta": self._settings.beta}

    def _list_inputs(self, load_reference: Callable[[], Model]) -> dict[str, Any]:
        return {"ref_model": load_reference()} if self._settings.method is Method.FULL else {}


class RewardTrainer(ObjectiveTrainer, trl.RewardTrainer):  # type: ignore[misc]
    """A model that gives an answer one number, higher for those that were chosen."""

    objective, config = Objective.REWARD, trl.RewardConfig


class GrpoTrainer(ObjectiveTrainer, trl.GRPOTrainer):  # type: ignore[misc]
    """Group relative policy optimization: completions that the reward function prefers to others of their prompt."""

    objective, config = Objective.GRPO, trl.GRPOConfig

    @property
    def _copies(self) -> int:  # type: ignore[override]
        return self._settings.generations

    def _list_arguments(self) -> dict[str, Any]:
        generations = self._settings.generations
        return {
            "num_generations": generations,
            "per_device_eval_batch_size": generations,
            "max_completion_length": self._settings.max_new_tokens,
        }

    def _list_inputs(self, _: Callable[[], Model]) -> dict[str, Any]:
        return {"reward_funcs": load_reward_function(self._settings.reward)}


TRAINERS: dict[Objective, type[ObjectiveTrainer]] = {
    each.objective: each for each in (DpoTrainer, RewardTrainer, GrpoTrainer)
}


def load_reward_function(reward: str) -> Callable[..., list[float]]:
    """Run the file of FILE.py:FUNCTION, which is the user's own code, and return the function. Raises DevkitError.

    So does the function: for whatever the user's raises, and unless it returns a number for each completion.
    """
    path, name = require_reward_function(reward)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: S101 - a file that was parsed has both
    module = importlib.util.module_from_spec(spec)
    with _explain_errors(reward):
        spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, name)

    @functools.wraps(function)
    def rate(*, completions: list[Any], **given: Any) -> list[float]:  # noqa: ANN401 - fields of records
        with _explain_errors(reward):
            rewards = [float(each) for each in function(completions=completions, **given)]
            if len(rewards) != len(completions):
                raise ValueError(f"{len(rewards)} rewards for {len(completions)} completions")
        return rewards

    return rate


@contextmanager
def _explain_errors(reward: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the user's code raises
        raise DevkitError(
            f"--reward {reward}: {type(error).__name__}: {to_one_line(str(error))}",
            "It gets completions and the fields of the records as lists, and returns a number for each completion.",
        ) from error
