"""How models would be fetched: the hub's settings in the environment, never a token itself."""

from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Unknown


@record
class Proxy:
    """A proxy variable of this process: `url` is its address without user name and password."""

    variable: str
    url: str


@record
class CaBundle:
    """A variable that names the certificates to trust, and whether its file is there."""

    variable: str
    path: str
    exists: bool


@record
class Hub:
    """Settings of huggingface_hub on this side."""

    endpoint: str
    """HF_ENDPOINT, "" when unset."""
    is_offline: bool
    token_from: str
    """"HF_TOKEN", "file", or "" for no token. The token itself is never read into facts."""
    offline_by: str | Unknown = NOT_READ
    """The variable that switches the hub off, "" for none."""
    token_problem: str | Unknown = NOT_READ
    """Why the value cannot be a token, without the value; "" when it can, or when there is none."""
    token_path: str | Unknown = NOT_READ
    """Where the hub library keeps a token."""
    wants_hf_transfer: bool | Unknown = NOT_READ
    """Whether HF_HUB_ENABLE_HF_TRANSFER asks for the package hf_transfer."""
    proxies: tuple[Proxy, ...] | Unknown = NOT_READ
    ca_bundles: tuple[CaBundle, ...] | Unknown = NOT_READ


@record
class HubCall:
    """What the hub answered when it was really asked, with `devkit doctor --deep`. Statuses are 0 for no answer."""

    url: str
    status: int
    """Of the request for the hub's front door."""
    failure: str
    """Why there is no answer: "name", "refused", "timed-out", "certificate", "proxy", "unreachable"; "" for one."""
    message: str
    took_ms: int
    clock_ahead_s: int | Unknown
    """How far this clock runs before the hub's own, by its Date header."""
    token_status: int | Unknown
    """The status of asking whose token it is; Unknown where no token was sent."""
    model: str = ""
    """The model that the environment names, "" for none."""
    model_status: int | Unknown = NOT_READ
    model_error: str | Unknown = NOT_READ
    """The hub's own word for a refusal: "GatedRepo", "RepoNotFound"."""
