"""Prompts as users write them: on the command line, one a line, or as JSON lines. Importable without torch."""

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

# The files that a generation needs, looked at before torch is imported: what is wrong with them is said at once.


@dataclass(frozen=True)
class GenerationFiles:
    """A whole model, and a whole adapter or None. Whether they fit is not known yet."""

    settings: GenerateSettings
    files: ModelFiles
    adapter: SavedAdapter | None


def find_generation_files(settings: GenerateSettings) -> GenerationFiles:
    """What `settings` name; the base that the adapter remembers where they name none. Raises DevkitError."""
    adapter = inspect_adapter(settings.adapter) if settings.adapter else None
    name = settings.model or (adapter.base.name if adapter else "")
    if not name:
        raise DevkitError("no model is named", "Give --model; an adapter that remembers its base is enough, too.")
    return GenerationFiles(settings, inspect_model(resolve_model_folder(name)), adapter)


PROMPT_HINT = (
    'One of: {"prompt": ...}, {"messages": [{"role": ..., "content": ...}]}, {"instruction": ...}, {"text": ...}.'
)


@dataclass(frozen=True)
class Prompt:
    """What to answer: a text, or the turns of a chat up to the one that is wanted; `place` is where it stood."""

    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    place: str = field(default="", compare=False)

    def to_messages(self) -> list[dict[str, Any]]:
        """Its turns; a text is one of the user."""
        return list(self.messages) or [{"role": "user", "content": self.text}]

    def to_document(self) -> dict[str, Any]:
        """As it stands beside its answer."""
        return {"messages": list(self.messages)} if self.messages else {"prompt": self.text}


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a .txt file, one a line, or of a .jsonl or .json file in any form that training data has.

    Answers that the file gives are left out. Raises DevkitError, naming file and line.
    """
    if path.suffix.lower() not in (".txt", ".jsonl", ".json"):
        raise DevkitError(f"{path} is neither .txt nor .jsonl", "Write one prompt a line, or JSON lines.")
    if path.suffix.lower() == ".txt":
        found = tuple(Prompt(line, place=f"{path}:{number}") for number, line in read_text_lines(path) if line.strip())
    else:
        entries = read_json_lines(path) if path.suffix.lower() == ".jsonl" else read_json_records(path)
        found = tuple(replace(_prompt(entry, place), place=f"{place}") for entry, place in entries)
    if not found:
        raise DevkitError(f"{path} holds no prompt", "Write one prompt a line.")
    return found


def require_prompt_text(text: str, place: RecordLocation | str) -> str:
    """`text`, found at `place`. Raises DevkitError where it says nothing, or holds what is no character."""
    if not text.strip():
        raise DevkitError(f"{place}: the prompt is empty", "Write what the model should go on from.")
    require_utf8(text, f"{place}: the prompt")
    return text


def require_utf8(text: str, what: str) -> None:
    """Refuse halves of characters, which JSON can write, and as which Python keeps bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DevkitError(
            f"{what} is not UTF-8: {text[error.start]!a} at character {error.start + 1}",
            "Convert it: iconv -f ORIGINAL-ENCODING -t UTF-8.",
        ) from error


def _prompt(entry: Any, place: RecordLocation) -> Prompt:  # noqa: ANN401 - JSON holds anything
    match entry:
        case str():
            return Prompt(require_prompt_text(entry, place))
        case {"prompt": str() as text}:
            return Prompt(require_prompt_text(text, place))
        case {"prompt": list() as messages}:
            return _chat({"messages": messages}, place)
        case {"instruction": _}:
            return _chat({"output": "", **entry}, place)
        case {"messages": _} | {"conversations": _}:
            return _chat(entry, place)
        case {"text": str() as text}:
            return Prompt(require_prompt_text(text, place))
        case _:
            raise DevkitError(f"{place}: no known form of prompt", PROMPT_HINT)


def _chat(entry: Mapping[str, Any], place: RecordLocation) -> Prompt:
    record = parse_record(entry, place)
    assert isinstance(record, ChatRecord)  # noqa: S101 - of a chat's fields nothing else is made
    messages = list(record.messages)
    while messages and messages[-1]["role"] == ASSISTANT:
        messages.pop()
    if not messages:
        raise DevkitError(f"{place}: there is no turn to answer", PROMPT_HINT)
    return Prompt(messages=tuple(messages))
