"""The package indexes that a user allows to be asked: the public ones, those of the user's own settings, and those allowed before.

A project's file that names another one has it asked only with the user's consent: a stranger's repository would otherwise
choose who learns of this machine.
"""

import configparser
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from devkit.errors import DevkitError
from devkit.facts.dependencies import PUBLIC_INDEX
from devkit.probe.documents import strip_url_credentials
from devkit.reading import MAX_CONFIG_BYTES, read_bounded
from devkit.user_folder import find_user_file, write_user_file

PUBLISHERS = (
    PUBLIC_INDEX,
    "https://download.pytorch.org/whl",
    "https://pypi.nvidia.com",
    "https://pypi.ngc.nvidia.com",
    "https://data.pyg.org/whl",
    "https://data.dgl.ai/wheels",
    "https://download.openmmlab.com/mmcv",
    "https://flashinfer.ai/whl",
    "https://wheels.vllm.ai",
    "https://storage.googleapis.com/jax-releases",
)
"""Indexes that the packages' own installation guides name, each open to everybody and without a login."""
MEMORY = "allowed-indexes.json"
"""The user's file of the indexes that were allowed before."""
_OF_UV = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
_VARIABLES = (*_OF_UV, "UV_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
_OFFLINE = ("UV_OFFLINE", "UV_NO_INDEX", "PIP_NO_INDEX")
_YES = ("1", "true", "yes", "on")
_ALLOWED_NOW: set[str] = set()
_PIP_KEYS = ("index-url", "extra-index-url", "find-links")


def require_addresses(variables: Iterable[str] = _VARIABLES) -> None:
    """Raise DevkitError for a variable that holds no address: what reads it would find nothing there, or say nothing."""
    for variable in variables:
        wanted = "a URL or a folder" if variable in _VARIABLES else "a URL"
        for word in filter(None, re.split(r"[\s,]+", os.environ.get(variable, ""))):
            place = re.sub(r"^[\w.-]+=", "", word)
            # One that is away, such as a share, is for pip and uv to judge: pip does without.
            is_folder = variable in _VARIABLES and (place[:1] in "/~." or os.path.exists(place))  # noqa: PTH110 - pathlib may raise
            if not (is_folder or re.match(r"https?://[^/]|file:", place)):
                says = f"{variable} is {strip_url_credentials(place)}, which is not {wanted}"
                raise DevkitError(says, f"Correct it, or remove it: unset {variable}")


def find_allowed_indexes(allowed: Iterable[str] = ()) -> tuple[str, ...]:
    """List the indexes that may be asked: the public ones, `allowed`, the user's own, and those allowed before."""
    named = [*PUBLISHERS, *allowed, *_ALLOWED_NOW, *_read_memory(), *_list_configured()]
    return tuple(dict.fromkeys(each.rstrip("/") for each in named if "://" in each or each.startswith("/")))


def remember_indexes(allowed: Iterable[str]) -> None:
    """Remember that the user allows these; for this run alone where there is no home folder, or its disk refuses."""
    known, allowed = _read_memory(), tuple(allowed)
    _ALLOWED_NOW.update(allowed)
    if new := [each for each in allowed if each not in known]:
        with suppress(DevkitError):
            write_user_file(MEMORY, json.dumps([*known, *new], indent=2).encode())


def find_pip_index() -> tuple[str, tuple[str, ...]]:
    """Find pip's own index in the user's settings, "" for the public one, and the extra ones.

    uv does not read these. They do not count where the user has told uv itself of an index.
    """
    default, extra = "", []
    if any(os.environ.get(each) for each in _OF_UV) or any(
        {"index", "index-url"} & table.keys() for table in _read_uv()
    ):
        return "", ()
    for key, values in _read_pip():
        # A folder of this machine is not where an image, or another machine, gets its packages from.
        reachable = [each for each in values if not each.startswith("file:")]
        if key == "index-url" and reachable:
            default = reachable[-1]
        elif key == "extra-index-url":
            extra += reachable
    return default, tuple(extra)


def list_own_indexes() -> tuple[str, ...]:
    """List the indexes that the user's settings have packages taken from, logins included: the extra ones, then the default.

    As for uv, the first that has a package counts, so that a private name is looked for in the private index first.
    """
    default, extra = find_pip_index()
    extra_variables = " ".join(os.environ.get(each, "") for each in ("UV_INDEX", "UV_EXTRA_INDEX_URL"))
    named = [re.sub(r"^[\w.-]+=(?=\w+://)", "", each) for each in extra_variables.split()]
    chosen = os.environ.get("UV_DEFAULT_INDEX", "") or os.environ.get("UV_INDEX_URL", "")
    for table in _read_uv():
        rows = [each for each in table.get("index", ()) if isinstance(each, dict) and not each.get("explicit")]
        lists = table.get("extra-index-url", ())
        named += [str(each.get("url", "")) for each in rows if not each.get("default")]
        named += [str(each) for each in lists if isinstance(lists, list)]
        own = (str(each.get("url", "")) for each in rows if each.get("default"))
        chosen = chosen or next(own, "") or str(table.get("index-url", ""))
    chosen = re.sub(r"^[\w.-]+=(?=\w+://)", "", chosen)
    # An index in a folder of this machine stands for the public one, too.
    local = [value for key, values in _read_pip() for value in values if key == "index-url"]
    found = (*named, *extra, chosen or default or next(iter(local), PUBLIC_INDEX))
    return tuple(dict.fromkeys(each.rstrip("/") for each in found if each.startswith(("https://", "http://"))))


def list_wheel_folders() -> tuple[str, ...]:
    """List the folders and pages of wheels that the user's variables of uv, and settings of pip, name."""
    own = os.environ.get("UV_FIND_LINKS", "").replace(",", " ").split()
    return tuple(dict.fromkeys((*own, *(each for _, values in _read_pip(("find-links",)) for each in values))))


def find_offline_setting() -> str:
    """Find the setting by which uv or pip ask no index, a variable or a key of their files; "" for none."""
    if variable := next((each for each in _OFFLINE if os.environ.get(each, "").lower() in _YES), ""):
        return variable
    for key in ("offline", "no-index"):
        if any(table.get(key) is True for table in _read_uv()):
            return f"{key} of uv.toml"
    return "no-index of pip.conf" if any(values[-1].lower() in _YES for _, values in _read_pip(("no-index",))) else ""


def _list_configured() -> Iterator[str]:
    """List what the user's own settings of uv and pip name, without logins."""
    from devkit.probe.dependencies.requirements import strip_login

    for variable in _VARIABLES:
        for word in os.environ.get(variable, "").split():
            name, separator, url = word.partition("=")
            yield strip_login(url if separator and "://" not in name else word)
    for table in _read_uv():
        indexes = [each.get("url", "") for each in table.get("index", ()) if isinstance(each, dict)]
        lists = [table.get(key, ()) for key in ("extra-index-url", "find-links")]
        words = [
            table.get("index-url", ""),
            *indexes,
            *(each for found in lists if isinstance(found, list) for each in found),
        ]
        yield from (strip_login(str(word)) for word in words)
    for _, values in _read_pip():
        yield from map(strip_login, values)


def _read_memory() -> tuple[str, ...]:
    path = find_user_file(MEMORY)
    with suppress(OSError, ValueError, RecursionError):
        known = json.loads(read_bounded(path or os.devnull, MAX_CONFIG_BYTES))
        if isinstance(known, list):
            return tuple(each for each in known if isinstance(each, str))
    return ()


def _find_settings(folder: str, name: str) -> Iterator[Path]:
    """List where a tool's settings lie: the system's, then the user's. Source: XDG Base Directory Specification."""
    yield Path("/etc", folder, name)
    home = os.environ.get("HOME", "")
    base = os.environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    if Path(base).is_absolute():
        yield Path(base, folder, name)


def _read_uv() -> Iterator[dict[str, Any]]:
    """Read uv's settings. Source: https://docs.astral.sh/uv/concepts/configuration-files/."""
    paths = list(_find_settings("uv", "uv.toml"))
    if named := os.environ.get("UV_CONFIG_FILE", ""):
        paths = [Path(named)] if Path(named).is_absolute() else []
    for path in paths:
        with suppress(OSError, ValueError):
            yield tomllib.loads(read_bounded(path, MAX_CONFIG_BYTES).decode())


def _read_pip(keys: tuple[str, ...] = _PIP_KEYS) -> Iterator[tuple[str, list[str]]]:
    """Read pip's settings by these keys, variables last. Source: https://pip.pypa.io/en/stable/topics/configuration/."""
    home = os.environ.get("HOME", "")
    paths = [Path("/etc/pip.conf"), Path(home, ".pip/pip.conf"), *_find_settings("pip", "pip.conf")]
    if named := os.environ.get("PIP_CONFIG_FILE", ""):
        paths.append(Path(named))
    for path in (path for path in paths if path.is_absolute()):
        parser = configparser.RawConfigParser(strict=False)
        with suppress(OSError, ValueError, configparser.Error):
            parser.read_string(read_bounded(path, MAX_CONFIG_BYTES).decode())
            for section in ("global", "install"):
                for key in keys:
                    if values := parser.get(section, key, fallback="").split():
                        yield key, values
    for key in keys:
        if values := os.environ.get(f"PIP_{key.upper().replace('-', '_')}", "").split():
            yield key, values


def describe_proxy(url: str) -> str:
    """Return " through the proxy HOST" for an address that the environment sends through one, "" for any other."""
    from urllib.request import getproxies, proxy_bypass  # only what failed is explained

    asked, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(asked.scheme) or proxies.get("all", "")
    if not proxy or proxy_bypass(asked.hostname or ""):
        return ""
    variable = f"{asked.scheme if asked.scheme in proxies else 'all'}_PROXY".upper()
    host = proxy.rpartition("//")[2].rpartition("@")[2].partition("/")[0]
    is_of_variable = variable in os.environ or variable.lower() in os.environ  # or of the system's settings
    return f" through the proxy {host}{f' ({variable})' if is_of_variable else ''}"
