"""Settings of a run from a TOML file, whose keys are the settings' names. Importable without torch."""

import tomllib
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.render.settings_values import Source, values_in
from devkit.render.toml_place import split_error
from devkit.workload.finetune.settings import FinetuneSettings


def read_settings(path: Path) -> dict[str, Any]:
    """What the file at `path` sets, by name of setting. Its paths start where the command runs, as those of flags do.

    Raises DevkitError with line and column for TOML errors, unknown keys and wrong types.
    """
    text = _text(path)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: a number of five thousand digits, and brackets without end, are others.
        problem, place = split_error(str(error), text)
        where = f"{path}:{place}" if place else f"{path}"
        raise DevkitError(f"{where} is not TOML: {problem}", "Correct that line.") from None
    return values_in(document, FinetuneSettings, Source(str(path), text))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", "Name a file of settings with --settings.") from None
    except UnicodeDecodeError:
        raise DevkitError(f"{path} is not TOML: it is not UTF-8", "Save the file as UTF-8.") from None
