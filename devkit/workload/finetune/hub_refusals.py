"""What the hub's answers mean for somebody who wants a model or a data set. Importable without torch."""

from dataclasses import dataclass

from devkit.errors import DevkitError
from devkit.text import listed, on_one_line


@dataclass(frozen=True)
class HubName:
    """A model on the hub, or a data set; None as its revision is the newest one."""

    repository: str
    revision: str | None = None
    is_data: bool = False

    def __str__(self) -> str:
        if self.is_data:
            return f"the data set {self.repository}"
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def not_there(name: str, nearest: tuple[str, ...]) -> DevkitError:
    """There is neither a folder nor a hub id of that name."""
    hint = f"Did you mean {listed(nearest, 'or')}?" if nearest else "Name a model's folder, or a hub id: owner/name."
    return DevkitError(f"there is no model {name}", hint)


def refusal(name: HubName, error: Exception, *, nearest: tuple[str, ...]) -> DevkitError | None:
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


def _gated(name: HubName, status: int) -> DevkitError:
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


def _unknown(name: HubName, nearest: tuple[str, ...]) -> DevkitError:
    lines = [f"Did you mean {listed(nearest, 'or')}, which is on this machine?"] if nearest else []
    if _has_token():
        lines.append("If it is private, the account of your token may not see it.")
    else:
        lines.append("If it is private, log in with `hf auth login` or set HF_TOKEN.")
    return DevkitError(f"there is no folder {name}, and no such model on the hub (404)", "\n".join(lines))


def _unreachable(name: HubName, nearest: tuple[str, ...]) -> DevkitError:
    from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        because, fix = "HF_HUB_OFFLINE is set", "unset it once to fetch the model"
    else:
        because, fix = f"{ENDPOINT} cannot be reached", "fetch the model where there is a network"
    lines = [f"Did you mean {listed(nearest, 'or')}, which is on this machine?"] if nearest else []
    lines.append(f"To go on, {fix}, or name a folder that holds it.")
    return DevkitError(f"{name} is not in {HF_HUB_CACHE}, and {because}", "\n".join(lines))


def _failed(name: HubName, error: Exception) -> DevkitError:
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
        f"the hub failed to answer for {name} ({status or on_one_line(str(error))})",
        "Try again later; https://status.huggingface.co says whether it is up.",
    )


def _no_connection(name: HubName, error: Exception, nearest: tuple[str, ...]) -> DevkitError | None:
    """A proxy or resolver failed below HTTP: whichever client library the hub's package uses raises its own kind."""
    is_transport = isinstance(error, OSError | TimeoutError) or "Connect" in type(error).__name__
    return _unreachable(name, nearest) if is_transport else None


def _has_token() -> bool:
    from huggingface_hub import get_token

    return bool(get_token())


def _page(name: HubName) -> str:
    from huggingface_hub.constants import ENDPOINT

    return f"{ENDPOINT}/{'datasets/' if name.is_data else ''}{name.repository}"
