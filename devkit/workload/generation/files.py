"""The files that a generation reads: prompts, and the model with its adapter. Importable without torch.

They are checked before torch is imported, so that errors in them are reported at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.workload.finetune.data.readers import read_json_lines, read_json_records, read_text_lines
from devkit.workload.finetune.data.records import ASSISTANT, ChatRecord, RecordLocation, parse_record
from devkit.workload.finetune.model.files import ModelFiles, SavedAdapter, inspect_adapter, inspect_model
from devkit.workload.finetune.model.hub import resolve_model_folder
from devkit.workload.generation.settings import GenerateSettings

PROMPT_HINT = (
    'One of: {"prompt": ...}, {"messages": [{"role": ..., "content": ...}]}, {"instruction": ...}, {"text": ...}.'
)


@dataclass(frozen=True)
class Prompt:
    """A prompt: a text, or the turns of a chat up to the one to generate. `place` is its file and line."""

    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    place: str = field(default="", compare=False)

    def to_messages(self) -> list[dict[str, Any]]:
        """Return its turns; a text is one turn of the user."""
        return list(self.messages) or [{"role": "user", "content": self.text}]

    def to_document(self) -> dict[str, Any]:
        """Return the prompt as it is written next to its answer."""
        return {"messages": list(self.messages)} if self.messages else {"prompt": self.text}


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read the prompts of a .txt file, one a line, or of a .jsonl or .json file in any form of training data.

    Answers in the file are left out. Raises DevkitError, naming file and line.
    """
    if path.suffix.lower() not in (".txt", ".jsonl", ".json"):
        raise DevkitError(f"{path} is neither .txt nor .jsonl", "Write one prompt a line, or JSON lines.")
    if path.suffix.lower() == ".txt":
        found = tuple(Prompt(line, place=f"{path}:{number}") for number, line in read_text_lines(path) if line.strip())
    else:
        entries = read_json_lines(path) if path.suffix.lower() == ".jsonl" else read_json_records(path)
        found = tuple(replace(_parse_prompt(entry, place), place=f"{place}") for entry, place in entries)
    if not found:
        raise DevkitError(f"{path} holds no prompt", "Write one prompt a line.")
    return found


def require_prompt_text(text: str, place: RecordLocation | str) -> str:
    """Return `text`, found at `place`. Raises DevkitError for a blank text, and for one that is not UTF-8."""
    if not text.strip():
        raise DevkitError(f"{place}: the prompt is empty", "Write the text that the model should continue.")
    require_utf8(text, f"{place}: the prompt")
    return text


def require_utf8(text: str, label: str) -> None:
    """Raise DevkitError for lone surrogates, which JSON can hold, and which Python decodes invalid UTF-8 to."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DevkitError(
            f"{label} is not UTF-8: {text[error.start]!a} at character {error.start + 1}",
            "Convert it: iconv -f ORIGINAL-ENCODING -t UTF-8.",
        ) from error


def _parse_prompt(entry: Any, place: RecordLocation) -> Prompt:  # noqa: ANN401 - JSON holds anything
    match entry:
        case str():
            return Prompt(require_prompt_text(entry, place))
        case {"prompt": str() as text}:
            return Prompt(require_prompt_text(text, place))
        case {"prompt": list() as messages}:
            return _parse_chat({"messages": messages}, place)
        case {"instruction": _}:
            return _parse_chat({"output": "", **entry}, place)
        case {"messages": _} | {"conversations": _}:
            return _parse_chat(entry, place)
        case {"text": str() as text}:
            return Prompt(require_prompt_text(text, place))
        case _:
            raise DevkitError(f"{place}: no known form of prompt", PROMPT_HINT)


def _parse_chat(entry: Mapping[str, Any], place: RecordLocation) -> Prompt:
    record = parse_record(entry, place)
    assert isinstance(record, ChatRecord)  # noqa: S101 - fields of a chat make nothing else
    messages = list(record.messages)
    while messages and messages[-1]["role"] == ASSISTANT:
        messages.pop()
    if not messages:
        raise DevkitError(f"{place}: there is no turn to answer", PROMPT_HINT)
    return Prompt(messages=tuple(messages))


@dataclass(frozen=True)
class GenerationFiles:
    """The files of a model and of an adapter, or None. They are complete, but may not fit each other."""

    settings: GenerateSettings
    files: ModelFiles
    adapter: SavedAdapter | None


def find_generation_files(settings: GenerateSettings) -> GenerationFiles:
    """Find the files that `settings` name; without a model that of the adapter's base. Raises DevkitError."""
    adapter = inspect_adapter(settings.adapter) if settings.adapter else None
    name = settings.model or (adapter.base.name if adapter else "")
    if not name:
        raise DevkitError("no model is named", "Give --model; or an adapter that names its base.")
    return GenerationFiles(settings, inspect_model(resolve_model_folder(name)), adapter)
