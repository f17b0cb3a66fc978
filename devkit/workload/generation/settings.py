"""Settings of `devkit generate`, and the files that they name: prompts, the model, and its adapter.

Importable without torch: errors in the files are reported before that takes seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.finetune.files import (
    BaseQuantization,
    ModelFiles,
    SavedAdapter,
    inspect_adapter,
    inspect_model,
    resolve_model_folder,
)
from devkit.workload.finetune.records import (
    ASSISTANT,
    ChatRecord,
    RecordLocation,
    TextRecord,
    format_field_names,
    parse_prompt,
    parse_record,
    read_json_lines,
    read_json_records,
    read_text_lines,
    require_fields,
    require_utf8,
)

MIN_TEMPERATURE = 1e-4
"""Logits are divided by it: below, fp32 overflows, and the likeliest token has been certain long before."""

MAX_SEED = 2**63 - 1
"""torch takes 64 bits, one of them for the sign."""


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """Settings of sampling. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave no token out.

    `tokens` is the most that an answer has. An answer ends before a text of `stops`.
    """

    tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stops: tuple[str, ...] = ()
    batch: int = 8


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """A model, an adapter for it or None, and the settings of decoding. `precision` None: chosen for the device.

    `raw` passes prompts to the model without its chat template.
    """

    model: str
    adapter: Path | None = None
    any_base: bool = False
    quantization: BaseQuantization = BaseQuantization.NONE
    precision: Precision | None = None
    raw: bool = False
    decoding: DecodingSettings = DecodingSettings()


def validate_decoding(decoding: DecodingSettings) -> DecodingSettings:
    """Return `decoding`. Raises DevkitError for values that mean nothing together."""
    if math.isnan(decoding.top_p) or not math.isfinite(decoding.temperature):
        raise DevkitError("--temperature and --top-p must be finite numbers", "Such as --temperature 0.7 --top-p 0.9.")
    if 0 < decoding.temperature < MIN_TEMPERATURE:
        raise DevkitError(
            f"--temperature {decoding.temperature:g} is too small to divide by",
            f"Use 0 to always take the likeliest token, or {MIN_TEMPERATURE:g} and more.",
        )
    if decoding.seed > MAX_SEED:
        raise DevkitError(f"--seed {decoding.seed} is too large", f"Give a seed of at most {MAX_SEED}.")
    if decoding.temperature == 0 and (decoding.top_p < 1 or decoding.top_k):
        raise DevkitError(
            "--top-p and --top-k choose among tokens, but temperature 0 leaves no choice",
            "Add --temperature, such as 0.7.",
        )
    if "" in decoding.stops:
        raise DevkitError("--stop is empty, so every answer would be empty", "Give the text that ends an answer.")
    return decoding


PROMPT_HINT = (
    'One of: {"prompt": ...}, {"messages": [{"role": ..., "content": ...}]}, {"instruction": ...}, {"text": ...}.'
)


@dataclass(frozen=True)
class Prompt:
    """A prompt: a text, or the turns of a chat up to the one to generate. `place` is its file and line."""

    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    place: str = field(default="", compare=False)

    def to_document(self) -> dict[str, Any]:
        """Return the prompt as it is written next to its answer."""
        return {"messages": list(self.messages)} if self.messages else {"prompt": self.text}


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read the prompts of a .txt file, one a line, or of a .jsonl or .json file in any form of training data.

    Answers in the file are left out. Raises DevkitError, naming file and line.
    """
    if path.suffix.lower() not in (".txt", ".jsonl", ".json"):
        raise DevkitError(f"{path} is neither .txt nor .jsonl", "Write one prompt per line, or JSON lines.")
    if path.suffix.lower() == ".txt":
        found = tuple(Prompt(line, place=f"{path}:{number}") for number, line in read_text_lines(path) if line.strip())
    else:
        entries = read_json_lines(path) if path.suffix.lower() == ".jsonl" else read_json_records(path)
        found = tuple(replace(_parse_prompt(entry, place), place=f"{place}") for entry, place in entries)
    if not found:
        raise DevkitError(f"{path} holds no prompt", "Write one prompt per line.")
    return found


def require_prompt_text(text: str, place: RecordLocation | str) -> str:
    """Return `text`, found at `place`. Raises DevkitError for a blank text, and for one that is not UTF-8."""
    if not text.strip():
        hint = "Write the text that the model should continue: in the file, on standard input, or with --prompt TEXT."
        raise DevkitError(f"{place}: the prompt is empty", hint)
    return require_utf8(text, f"{place}: the prompt")


def _parse_prompt(entry: Any, place: RecordLocation) -> Prompt:  # noqa: ANN401 - JSON holds anything
    match entry if isinstance(entry, str) else require_fields(entry, (), place, PROMPT_HINT):
        case str() as text:
            return Prompt(require_prompt_text(text, place))
        case {"prompt": _} as fields:
            prompt = parse_prompt(fields, place).prompt
            if isinstance(prompt, str):
                return Prompt(require_prompt_text(prompt, place))
            return _parse_chat({"messages": [*prompt]}, place)
        case {"instruction": _} as fields:
            return _parse_chat({"output": "", **fields}, place)
        case {"messages": _} | {"conversations": _} as fields:
            return _parse_chat(fields, place)
        case {"text": text}:
            record = parse_record({"text": text}, place)
            assert isinstance(record, TextRecord)  # noqa: S101 - a text alone makes nothing else
            return Prompt(require_prompt_text(record.text, place))
        case fields:
            raise DevkitError(f"{place}: unknown prompt format, with {format_field_names(fields)}", PROMPT_HINT)


def _parse_chat(entry: Mapping[str, Any], place: RecordLocation) -> Prompt:
    record = parse_record(entry, place)
    assert isinstance(record, ChatRecord)  # noqa: S101 - fields of a chat make nothing else
    messages = list(record.messages)
    while messages and messages[-1]["role"] == ASSISTANT:
        messages.pop()
    if not messages:
        raise DevkitError(f"{place}: no turn to answer", PROMPT_HINT)
    return Prompt(messages=tuple(messages))


@dataclass(frozen=True)
class GenerationFiles:
    """The files of a model and of an adapter, or None. They are complete, but may not fit each other."""

    settings: GenerateSettings
    files: ModelFiles
    adapter: SavedAdapter | None

    @property
    def quantization(self) -> BaseQuantization:
        """The quantization to load with: weights that are stored in 4 or 8 bits stay so."""
        return self.settings.quantization if self.files.quantized is BaseQuantization.NONE else self.files.quantized


def find_generation_files(settings: GenerateSettings) -> GenerationFiles:
    """Find the files that `settings` name; without a model that of the adapter's base. Raises DevkitError."""
    adapter = inspect_adapter(settings.adapter) if settings.adapter else None
    name = settings.model or (adapter.base.name if adapter else "")
    if not name:
        raise DevkitError("no model was given", "Give --model, or an adapter that records its base.")
    return GenerationFiles(settings, inspect_model(resolve_model_folder(name)), adapter)
