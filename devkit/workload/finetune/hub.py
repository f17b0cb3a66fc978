"""From what a user calls a model to the folder that holds its files. Importable without torch."""

import shutil
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from devkit.errors import DevkitError
from devkit.text import human_bytes
from devkit.workload.finetune.hub_refusals import HubName, not_there, refusal

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

WANTED = ("*.json", "*.jinja", "*.model", "*.txt")
"""Everything but weights: configuration, tokenizer, chat template."""

SAFETENSORS = "*.safetensors"
PICKLES = "pytorch_model*.bin"
"""Weights of old repositories; fetched only where there are no safetensors."""

PASSED_OVER = ("*/*", "consolidated*")
"""The same weights once more, in the form of other programs."""

ROOM_LEFT_BYTES = 1 << 30


def model_folder(name: str) -> Path:
    """The folder of a model: `name` itself, or where the hub's cache keeps what the hub calls `name`.

    A hub id may end in `@` and a branch, tag or commit. Files that the cache lacks are fetched, unless HF_HUB_OFFLINE
    is set. Raises DevkitError where there is no such model, it may not be read, or the hub cannot be reached.
    """
    folder = Path(name).expanduser()
    if not name:
        raise not_there("without a name", ())
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DevkitError(f"{name} is a file, and a model is a folder", "Name the folder that holds its config.json.")
    if _is_path(name):
        raise not_there(name, nearest_names(name))
    hub_name, _, revision = name.partition("@")
    return _fetched(HubName(hub_name, revision or None))


def _is_path(name: str) -> bool:
    """Whether `name` cannot be a hub id: those are `name` or `owner/name`."""
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1 or name.endswith("/")


def _fetched(name: HubName) -> Path:
    from huggingface_hub.errors import HFValidationError

    try:
        return _snapshot(name)
    except DevkitError:
        raise
    except HFValidationError as error:
        raise not_there(f"{name}", nearest_names(name.repository)) from error
    except Exception as error:
        refused = refusal(name, error, nearest=nearest_names(name.repository))
        if refused is None:
            raise
        raise refused from error


def _snapshot(name: HubName) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import DryRunError, HfHubHTTPError, LocalEntryNotFoundError

    if HF_HUB_OFFLINE:
        return _cached(name)
    repository, revision, passed_over = name.repository, name.revision, list(PASSED_OVER)
    try:
        # First what there is: here a missing network shows at once, where a download would try for half a minute.
        every_kind = [*WANTED, SAFETENSORS, PICKLES]
        files = snapshot_download(
            repository, revision=revision, allow_patterns=every_kind, ignore_patterns=passed_over, dry_run=True
        )
    except DryRunError as error:
        answer = error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else None
        if answer is not None and answer.response.status_code < 500:
            raise answer from None
        try:
            return _cached(name)
        except LocalEntryNotFoundError:
            if answer is None:
                raise
            raise answer from None
    kinds = (*WANTED, SAFETENSORS if any(each.filename.endswith(".safetensors") for each in files) else PICKLES)
    wanted = [each for each in files if any(fnmatch(each.filename, kind) for kind in kinds)]
    _require_config(name, wanted)
    _require_room(name, sum(each.file_size or 0 for each in wanted if each.will_download))
    return Path(
        snapshot_download(repository, revision=revision, allow_patterns=list(kinds), ignore_patterns=passed_over)
    )


def _cached(name: HubName) -> Path:
    """What the cache holds of a model, whole or not. Raises huggingface_hub's LocalEntryNotFoundError for nothing."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(name.repository, "config.json", revision=name.revision, local_files_only=True)).parent


def _require_config(name: HubName, files: "list[DryRunFileInfo]") -> None:
    if not any(each.filename == "config.json" for each in files):
        raise DevkitError(
            f"{name} on the hub has no config.json, so it is no model of transformers",
            "GGUF files and adapters alone are not enough: name the model that they were made from.",
        )


def _require_room(name: HubName, needed_bytes: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    disk = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free_bytes = shutil.disk_usage(disk).free
    if needed_bytes and needed_bytes + ROOM_LEFT_BYTES > free_bytes:
        raise DevkitError(
            f"{name} is {human_bytes(needed_bytes)} to download, and {cache} has {human_bytes(free_bytes)} free",
            "Make room there, or set HF_HOME to a folder on a larger disk.",
        )


def nearest_names(name: str) -> tuple[str, ...]:
    """Models on this machine whose name is like `name`, nearest first: in the hub's cache and in the folders around."""
    known = {_key(each): each for each in (*_cached_names(), *_folders_around(name))}
    return tuple(known[key] for key in get_close_matches(_key(name), known, n=3, cutoff=0.6))


def _key(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _cached_names() -> Iterator[str]:
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        entries = sorted(each.name for each in Path(HF_HUB_CACHE).iterdir())
    except OSError:
        return
    yield from (entry.removeprefix("models--").replace("--", "/") for entry in entries if entry.startswith("models--"))


def _folders_around(name: str) -> Iterator[str]:
    parent = Path(name).expanduser().parent
    try:
        children = sorted(parent.iterdir())
        yield from (f"{child}" for child in children if (child / "config.json").is_file())
    except OSError:
        return
