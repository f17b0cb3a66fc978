"""The Hugging Face hub: from a model's name to the folder of its files, and its errors explained. Torch-free."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

from devkit.errors import DevkitError
from devkit.text import format_bytes, join_words, to_one_line

CONFIG_PATTERNS = ("*.json", "*.jinja", "*.model", "*.txt")
"""Everything but weights: configuration, tokenizer, chat template."""

SAFETENSORS_PATTERN = "*.safetensors"
PICKLE_PATTERN = "pytorch_model*.bin"
"""Weights of old repositories; fetched only if there are no safetensors."""

IGNORED_PATTERNS = ("*/*", "consolidated*")
"""The same weights once more, in the formats of other programs."""

DISK_RESERVE_BYTES = 1 << 30


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

    @property
    def page(self) -> str:
        """The repository's page."""
        from huggingface_hub.constants import ENDPOINT

        return f"{ENDPOINT}/{'datasets/' if self.is_data else ''}{self.repository}"


def resolve_model_folder(name: str) -> Path:
    """Return the folder of a model: `name` itself, or the snapshot of a hub id in the hub's cache.

    The model of a GGUF file is converted once, into that cache. A hub id may end in `@` and a branch, tag or commit.
    Files that the cache lacks are fetched, unless HF_HUB_OFFLINE is set. Raises DevkitError if there is no such model,
    it may not be read, or the hub cannot be reached.
    """
    folder = Path(name).expanduser()
    if not name:
        raise model_not_found("without a name", ())
    if (folder / "config.json").is_file():
        return folder
    from devkit.workload.finetune.model.gguf import find_gguf, resolve_gguf
    from devkit.workload.finetune.model.packaged import find_packaged_model

    gguf = find_gguf(folder)
    if gguf is not None:
        return resolve_gguf(gguf)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DevkitError(f"{name} is a file, and a model is a folder", "Name the folder that holds its config.json.")
    is_path = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1 or name.endswith("/")
    if is_path:
        raise model_not_found(name, find_similar_names(name))

    from huggingface_hub.errors import HFValidationError

    packaged = find_packaged_model(name)
    if packaged is not None:
        return packaged
    repository, _, revision = name.partition("@")
    model = HubRepository(repository, revision or None)
    try:
        return _fetch_snapshot(model)
    except DevkitError:
        raise
    except HFValidationError as error:
        raise model_not_found(f"{model}", find_similar_names(model.repository)) from error
    except Exception as error:
        explained = explain_hub_error(model, error, nearest=find_similar_names(model.repository))
        if explained is None:
            raise
        raise explained from error


def model_not_found(name: str, nearest: tuple[str, ...]) -> DevkitError:
    """Return the error for a name that is neither a folder nor a hub id."""
    hint = "Name a model's folder, or a hub id: owner/name."
    return DevkitError(f"there is no model {name}", f"Did you mean {join_words(nearest, 'or')}?" if nearest else hint)


def _fetch_snapshot(model: HubRepository) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import DryRunError, HfHubHTTPError, LocalEntryNotFoundError

    if HF_HUB_OFFLINE:
        return _find_cached_snapshot(model)
    repository, revision, ignored = model.repository, model.revision, list(IGNORED_PATTERNS)
    try:
        # List first: a missing network shows at once here, where a download would retry for half a minute.
        patterns = [*CONFIG_PATTERNS, SAFETENSORS_PATTERN, PICKLE_PATTERN]
        files = snapshot_download(
            repository, revision=revision, allow_patterns=patterns, ignore_patterns=ignored, dry_run=True
        )
    except DryRunError as error:
        response = error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else None
        if response is not None and response.response.status_code < 500:
            raise response from None
        try:
            return _find_cached_snapshot(model)
        except LocalEntryNotFoundError:
            if response is None:
                raise
            raise response from None
    has_safetensors = any(each.filename.endswith(".safetensors") for each in files)
    patterns = [*CONFIG_PATTERNS, SAFETENSORS_PATTERN if has_safetensors else PICKLE_PATTERN]
    wanted = [each for each in files if any(fnmatch(each.filename, pattern) for pattern in patterns)]
    if not any(each.filename == "config.json" for each in wanted):
        raise DevkitError(
            f"{model} on the hub has no config.json, so it is no model of transformers",
            "GGUF files and adapters alone are not enough: name the model that they were made from.",
        )
    _require_disk_space(model, sum(each.file_size or 0 for each in wanted if each.will_download))
    return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns, ignore_patterns=ignored))


def _find_cached_snapshot(model: HubRepository) -> Path:
    """Return the model's folder in the cache, complete or not. Raises huggingface_hub's LocalEntryNotFoundError."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(model.repository, "config.json", revision=model.revision, local_files_only=True)).parent


def _require_disk_space(model: HubRepository, needed_bytes: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    disk = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free_bytes = shutil.disk_usage(disk).free
    if needed_bytes and needed_bytes + DISK_RESERVE_BYTES > free_bytes:
        raise DevkitError(
            f"{model} is {format_bytes(needed_bytes)} to download, and {cache} has {format_bytes(free_bytes)} free",
            "Free space there, or set HF_HOME to a folder on a larger disk.",
        )


def find_similar_names(name: str) -> tuple[str, ...]:
    """Find models on this machine with a name like `name`, nearest first: in the hub's cache, and beside `name`."""
    known = {_last_part(each): each for each in (*_cached_names(), *_sibling_models(name))}
    return tuple(known[key] for key in get_close_matches(_last_part(name), known, n=3, cutoff=0.6))


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _cached_names() -> Iterator[str]:
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        entries = sorted(each.name for each in Path(HF_HUB_CACHE).iterdir())
    except OSError:
        return
    yield from (entry.removeprefix("models--").replace("--", "/") for entry in entries if entry.startswith("models--"))


def _sibling_models(name: str) -> Iterator[str]:
    try:
        children = sorted(Path(name).expanduser().parent.iterdir())
        yield from (f"{child}" for child in children if (child / "config.json").is_file())
    except OSError:
        return


def explain_hub_error(name: HubRepository, error: Exception, *, nearest: tuple[str, ...]) -> DevkitError | None:
    """Explain an error of the hub's library in one line with a hint; None for an error that is not the hub's.

    A gated model is 401 without a token and 403 for an account without access. A model that does not exist is 401
    without a token, because the hub does not reveal which private ones there are, and 404 for an account.
    Source: https://huggingface.co/docs/huggingface_hub/package_reference/utilities (errors).
    """
    from huggingface_hub import errors, get_token

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, errors.HfHubHTTPError):
        # The hub's response is wrapped in the cache's error.
        error = error.__cause__
    match error:
        case errors.GatedRepoError():
            if error.response.status_code == 403:
                return DevkitError(
                    f"{name} is gated, and the account of your token has no access (403)",
                    f"Accept its terms on {name.page} with that account, and wait if the owner has to agree.\n"
                    "A fine-grained token also needs the permission to read gated repositories.",
                )
            token = "and the hub does not know your token" if get_token() else "and no token is set"
            return DevkitError(
                f"{name} is gated, {token} (401)",
                f"Accept its terms on {name.page}, then log in with `hf auth login` or set HF_TOKEN.",
            )
        case errors.DisabledRepoError():
            return DevkitError(f"the hub has disabled {name}", f"See {name.page} for the reason.")
        case errors.RevisionNotFoundError():
            return DevkitError(
                f"{name.repository} has no branch, tag or commit {name.revision}", f"{name.page}/tree/main lists them."
            )
        case errors.RepositoryNotFoundError():
            hints = _nearest_hint(nearest)
            if get_token():
                hints.append("If it is private, the account of your token may not have access.")
            else:
                hints.append("If it is private, log in with `hf auth login` or set HF_TOKEN.")
            return DevkitError(f"there is no folder {name}, and no such model on the hub (404)", "\n".join(hints))
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled() | errors.RevisionResolutionError():
            return _explain_unreachable(name, nearest)
        case errors.HfHubHTTPError():
            return _explain_http_error(name, error)
        case _:
            # A proxy or resolver failed below HTTP: each client library of the hub's package raises its own error.
            is_transport = isinstance(error, OSError | TimeoutError) or "Connect" in type(error).__name__
            return _explain_unreachable(name, nearest) if is_transport else None


def _nearest_hint(nearest: tuple[str, ...]) -> list[str]:
    return [f"Did you mean {join_words(nearest, 'or')}, which is on this machine?"] if nearest else []


def _explain_unreachable(name: HubRepository, nearest: tuple[str, ...]) -> DevkitError:
    from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        cause, fix = "HF_HUB_OFFLINE is set", "unset it once to fetch the model"
    else:
        cause, fix = f"{ENDPOINT} cannot be reached", "fetch the model where there is a network"
    hints = [*_nearest_hint(nearest), f"To continue, {fix}, or name a folder that holds it."]
    return DevkitError(f"{name} is not in {HF_HUB_CACHE}, and {cause}", "\n".join(hints))


def _explain_http_error(name: HubRepository, error: Exception) -> DevkitError:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status == 401:
        return DevkitError(
            "the hub does not accept your token (401)",
            "Create a new one on https://huggingface.co/settings/tokens, then `hf auth login` or set HF_TOKEN.",
        )
    if status == 403:
        return DevkitError(f"your token may not read {name} (403)", "Give it the permission to read this repository.")
    if status == 429:
        return DevkitError("the hub rejects requests from this address for now (429)", "Wait a few minutes, or log in.")
    return DevkitError(
        f"the hub failed to respond for {name} ({status or to_one_line(str(error))})",
        "Try again later; https://status.huggingface.co shows if it is up.",
    )
