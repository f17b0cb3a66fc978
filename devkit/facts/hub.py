"""How models would be fetched: the hub's settings in the environment, never a token itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hub:
    """Settings of huggingface_hub on this side."""

    endpoint: str
    """HF_ENDPOINT, "" when unset."""
    is_offline: bool
    token_from: str
    """"HF_TOKEN", "file", or "" for no token. The token itself is never read into facts."""
