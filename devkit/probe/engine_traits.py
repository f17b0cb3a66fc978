"""What else an engine says of itself: the clients it still serves, its proxy, its clock."""

import re
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from devkit.facts.values import Unknown


def min_api_version(version: dict[str, Any]) -> str:
    """The oldest API version that the engine still speaks, "" when it does not say."""
    return str(version.get("MinAPIVersion") or "")


def proxy(info: dict[str, Any]) -> str | Unknown:
    """The proxy that the engine pulls through, without its login; "" for none."""
    if "HttpsProxy" not in info and "HttpProxy" not in info:
        return Unknown("this engine does not say whether it uses a proxy")
    return without_login(str(info.get("HttpsProxy") or info.get("HttpProxy") or ""))


_LOGIN = re.compile(r"[^/\s]*@")


def without_login(url: str) -> str:
    """`url` without user name and password, and without a query."""
    url = url.strip().strip("\"'")
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
    except ValueError:
        return "not an address"
    place = parts.netloc.rpartition("@")[2]
    shown = urlunsplit((parts.scheme, place, parts.path, "", "")).removeprefix("//")
    # What is no address may still hold a login, in a place where no address has one.
    return _LOGIN.sub("", shown)


def clock_ahead_s(info: dict[str, Any], asked_at: object) -> int | Unknown:
    """How far the engine's clock runs before the one that read `asked_at`, in seconds since the epoch."""
    if not isinstance(asked_at, int | float):
        return Unknown("the moment of asking was not recorded")
    try:
        # Go prints nanoseconds, of which Python takes no more than six digits.
        told = datetime.fromisoformat(str(info.get("SystemTime", "")))
        return round(told.timestamp() - asked_at)
    except (ValueError, OverflowError):
        return Unknown("the engine does not say what time it is")
