"""The model that `devkit estimate` is asked about: a known name, a config.json, a repository on the hub, or flags."""

import json
import os
from collections.abc import Mapping
from typing import Any

from devkit.errors import DevkitError

_MOST_BYTES = 1 << 20


def config_of_model(model: str | None, described: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    """The config and the name of the model. Raises DevkitError where there is none of that name."""
    if model is None:
        if described is None:
            raise DevkitError("no model is named", "Name one, such as llama-3.1-8b, or give a config.json.")
        return described, "your model"
    if os.path.exists(model):  # noqa: PTH110 - pathlib would cost a tenth of the command
        return _from_file(model)
    return _known(model) or _from_hub(model)


def _known(model: str) -> tuple[Mapping[str, Any], str] | None:
    from devkit.estimate.catalogue import find_model

    found = find_model(model)
    return (found.config, found.id) if found else None


def _from_file(path: str) -> tuple[Mapping[str, Any], str]:
    from pathlib import Path

    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    hint = "Give a model's config.json, or the folder that holds it."
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES)
    except OSError as error:
        raise DevkitError(f"cannot read {file}: {error.strerror}", hint) from None
    return _parsed(content, str(file), hint), file.resolve().parent.name if file.name == "config.json" else file.stem


def _parsed(content: bytes, origin: str, hint: str) -> Mapping[str, Any]:
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DevkitError(f"{origin} is not JSON: {error}", hint) from None
    if not isinstance(config, dict):
        raise DevkitError(f"{origin} holds no object", hint)
    return config


def _from_hub(model: str) -> tuple[Mapping[str, Any], str]:
    """The config.json of a repository on the hub, and nothing else of it."""
    from devkit.estimate.catalogue import closest_models, model_count

    near = closest_models(model)
    known = f"Did you mean {' or '.join(near)}?" if near else f"{model_count()} models are known, such as llama-3.1-8b."
    if model.count("/") != 1 or model.startswith((".", "/")):
        raise DevkitError(f"there is no model {model!r}", f"{known} Or give its config.json, or its name on the hub.")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise DevkitError(
            f"{model} is not among the known models, and huggingface_hub is not installed to ask the hub",
            f"{known} Or fetch its config.json and give that.",
        ) from None
    try:
        path = hf_hub_download(model, "config.json")
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DevkitError(
            f"cannot ask the hub for {model}: {reason}", f"{known} Or fetch its config.json and give that."
        ) from None
    return _from_file(path)[0], model
