"""From what a user calls a model to the folder that holds its files. Importable without torch."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from devkit.errors import DevkitError
from devkit.text import format_bytes, join_words, to_one_line

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

# What the hub's answers mean for somebody who wants a model or a data set. Importable without torch.


@dataclass(frozen=True)
class HubRepository:
    """A model on the hub, or a data set; None as its revision is the newest one."""

    repository: str
    revision: str | None = None
    is_data: bool = False

    def __str__(self) -> str:
        if self.is_data:
            return f"the data set {self.repository}"
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def model_not_found(name: str, nearest: tuple[str, ...]) -> DevkitError:
    """There is neither a folder nor a hub id of that name."""
    hint = (
        f"Did you mean {join_words(nearest, 'or')}?" if nearest else "Name a model's folder, or a hub id: owner/name."
    )
    return DevkitError(f"there is no model {name}", hint)


def explain_hub_error(name: HubRepository, error: Exception, *, nearest: tuple[str, ...]) -> DevkitError | None:
    """The one line and hint for what the hub's library raised; None for what is no answer of the hub.

    A gated model is 401 to strangers and 403 to an account that was not let in. A model that does not exist is 401 to
    strangers, because the hub does not tell them which private ones there are, and 404 to an account.
    Source: https://huggingface.co/docs/huggingface_hub/package_reference/utilities (errors).
    """
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, errors.HfHubHTTPError):
        # What the hub answered is wrapped in what the cache lacks.
        error = error.__cause__
    match error:
        case errors.GatedRepoError():
            return _gated(name, error.response.status_code)
        case errors.DisabledRepoError():
            return DevkitError(f"the hub has disabled {name}", f"See {_page(name)} for the reason.")
        case errors.RevisionNotFoundError():
            return DevkitError(
                f"{name.repository} has no branch, tag or commit {name.revision}",
                f"{_page(name)}/tree/main lists them.",
            )
        case errors.RepositoryNotFoundError():
            return _unknown(name, nearest)
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled() | errors.RevisionResolutionError():
            return _unreachable(name, nearest)
        case errors.HfHubHTTPError():
            return _failed(name, error)
        case _:
            return _no_connection(name, error, nearest)


def _gated(name: HubRepository, status: int) -> DevkitError:
    if status == 403:
        return DevkitError(
            f"{name} is gated, and the account of your token was not let in (403)",
            f"Accept its terms on {_page(name)} with that account, and wait where the owner has to agree.\n"
            "A fine-grained token also needs the permission to read gated repositories.",
        )
    seen = "and the hub does not know your token" if _has_token() else "and no token is set"
    return DevkitError(
        f"{name} is gated, {seen} (401)",
        f"Accept its terms on {_page(name)}, then log in with `hf auth login` or set HF_TOKEN.",
    )


def _unknown(name: HubRepository, nearest: tuple[str, ...]) -> DevkitError:
    lines = [f"Did you mean {join_words(nearest, 'or')}, which is on this machine?"] if nearest else []
    if _has_token():
        lines.append("If it is private, the account of your token may not see it.")
    else:
        lines.append("If it is private, log in with `hf auth login` or set HF_TOKEN.")
    return DevkitError(f"there is no folder {name}, and no such model on the hub (404)", "\n".join(lines))


def _unreachable(name: HubRepository, nearest: tuple[str, ...]) -> DevkitError:
    from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        because, fix = "HF_HUB_OFFLINE is set", "unset it once to fetch the model"
    else:
        because, fix = f"{ENDPOINT} cannot be reached", "fetch the model where there is a network"
    lines = [f"Did you mean {join_words(nearest, 'or')}, which is on this machine?"] if nearest else []
    lines.append(f"To go on, {fix}, or name a folder that holds it.")
    return DevkitError(f"{name} is not in {HF_HUB_CACHE}, and {because}", "\n".join(lines))


def _failed(name: HubRepository, error: Exception) -> DevkitError:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status == 401:
        return DevkitError(
            "the hub does not accept your token (401)",
            "Make a new one on https://huggingface.co/settings/tokens, then `hf auth login` or set HF_TOKEN.",
        )
    if status == 403:
        return DevkitError(
            f"your token may not read {name} (403)",
            "Give it the permission to read this repository.",
        )
    if status == 429:
        return DevkitError(
            "the hub answers no more requests from this address for now (429)", "Wait a few minutes, or log in."
        )
    return DevkitError(
        f"the hub failed to answer for {name} ({status or to_one_line(str(error))})",
        "Try again later; https://status.huggingface.co says whether it is up.",
    )


def _no_connection(name: HubRepository, error: Exception, nearest: tuple[str, ...]) -> DevkitError | None:
    """A proxy or resolver failed below HTTP: whichever client library the hub's package uses raises its own kind."""
    is_transport = isinstance(error, OSError | TimeoutError) or "Connect" in type(error).__name__
    return _unreachable(name, nearest) if is_transport else None


def _has_token() -> bool:
    from huggingface_hub import get_token

    return bool(get_token())


def _page(name: HubRepository) -> str:
    from huggingface_hub.constants import ENDPOINT

    return f"{ENDPOINT}/{'datasets/' if name.is_data else ''}{name.repository}"


CONFIG_PATTERNS = ("*.json", "*.jinja", "*.model", "*.txt")
"""Everything but weights: configuration, tokenizer, chat template."""

SAFETENSORS_PATTERN = "*.safetensors"
PICKLE_PATTERN = "pytorch_model*.bin"
"""Weights of old repositories; fetched only where there are no safetensors."""

IGNORED_PATTERNS = ("*/*", "consolidated*")
"""The same weights once more, in the form of other programs."""

DISK_RESERVE_BYTES = 1 << 30


def resolve_model_folder(name: str) -> Path:
    """The folder of a model: `name` itself, or where the hub's cache keeps what the hub calls `name`.

    A hub id may end in `@` and a branch, tag or commit. Files that the cache lacks are fetched, unless HF_HUB_OFFLINE
    is set. Raises DevkitError where there is no such model, it may not be read, or the hub cannot be reached.
    """
    folder = Path(name).expanduser()
    if not name:
        raise model_not_found("without a name", ())
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DevkitError(f"{name} is a file, and a model is a folder", "Name the folder that holds its config.json.")
    if _is_path(name):
        raise model_not_found(name, find_similar_names(name))
    hub_name, _, revision = name.partition("@")
    return _fetched(HubRepository(hub_name, revision or None))


def _is_path(name: str) -> bool:
    """Whether `name` cannot be a hub id: those are `name` or `owner/name`."""
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1 or name.endswith("/")


def _fetched(name: HubRepository) -> Path:
    from huggingface_hub.errors import HFValidationError

    try:
        return _snapshot(name)
    except DevkitError:
        raise
    except HFValidationError as error:
        raise model_not_found(f"{name}", find_similar_names(name.repository)) from error
    except Exception as error:
        refused = explain_hub_error(name, error, nearest=find_similar_names(name.repository))
        if refused is None:
            raise
        raise refused from error


def _snapshot(name: HubRepository) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import DryRunError, HfHubHTTPError, LocalEntryNotFoundError

    if HF_HUB_OFFLINE:
        return _cached(name)
    repository, revision, passed_over = name.repository, name.revision, list(IGNORED_PATTERNS)
    try:
        # First what there is: here a missing network shows at once, where a download would try for half a minute.
        every_kind = [*CONFIG_PATTERNS, SAFETENSORS_PATTERN, PICKLE_PATTERN]
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
    kinds = (
        *CONFIG_PATTERNS,
        SAFETENSORS_PATTERN if any(each.filename.endswith(".safetensors") for each in files) else PICKLE_PATTERN,
    )
    wanted = [each for each in files if any(fnmatch(each.filename, kind) for kind in kinds)]
    _require_config(name, wanted)
    _require_room(name, sum(each.file_size or 0 for each in wanted if each.will_download))
    return Path(
        snapshot_download(repository, revision=revision, allow_patterns=list(kinds), ignore_patterns=passed_over)
    )


def _cached(name: HubRepository) -> Path:
    """What the cache holds of a model, whole or not. Raises huggingface_hub's LocalEntryNotFoundError for nothing."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(name.repository, "config.json", revision=name.revision, local_files_only=True)).parent


def _require_config(name: HubRepository, files: "list[DryRunFileInfo]") -> None:
    if not any(each.filename == "config.json" for each in files):
        raise DevkitError(
            f"{name} on the hub has no config.json, so it is no model of transformers",
            "GGUF files and adapters alone are not enough: name the model that they were made from.",
        )


def _require_room(name: HubRepository, needed_bytes: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    disk = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free_bytes = shutil.disk_usage(disk).free
    if needed_bytes and needed_bytes + DISK_RESERVE_BYTES > free_bytes:
        raise DevkitError(
            f"{name} is {format_bytes(needed_bytes)} to download, and {cache} has {format_bytes(free_bytes)} free",
            "Make room there, or set HF_HOME to a folder on a larger disk.",
        )


def find_similar_names(name: str) -> tuple[str, ...]:
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
