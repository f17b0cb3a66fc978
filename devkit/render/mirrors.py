"""Mirrors of the package indexes and of the hub: addresses that may stand in an image, and how programs learn them."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from devkit.errors import DevkitError
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.settings import Settings
from devkit.solver.model import Plan

NO_LOGIN_PATH = f"{FOLDER}/no-netrc"
"""Stands in for the .netrc of those who need none: Compose refuses a secret whose file is missing."""

_NO_LOGIN = (
    f"# Written by devkit: no login. Yours goes into a file of its own, which DEVKIT_NETRC in {FOLDER}/.env names.\n"
)

_ADDRESS = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/[\w.~%+:@-]+)*/?", re.ASCII)
_LONGEST = 500
_HINTS = {
    "index": "Write it like https://pypi.example.org/simple.",
    "torch_index": "Write it like https://pytorch.example.org/whl; devkit adds cu130, cpu and so on.",
    "hub": "Write it like https://hub.example.org.",
}


def checked_mirror(setting: str, address: str) -> str:
    """The address of a mirror without a slash at its end, "" for none. `setting` is index, torch_index or hub.

    Raises: DevkitError for an address with a login in it, or one that could not stand in a file as it is. The
    message never repeats what might be a password.
    """
    if not address:
        return ""
    if "@" in (address.partition("://")[2] or address).partition("/")[0]:
        raise DevkitError(
            f"network.{setting} has a login in it, which the image and devkit.lock would show to everybody",
            "Take it out. Put the login into a .netrc file, and name that file in .devcontainer/.env with\n"
            "DEVKIT_NETRC=/path/to/.netrc: the build mounts it for the installation and keeps it in no layer.",
        )
    if len(address) > _LONGEST or not _ADDRESS.fullmatch(address) or not _has_port(address):
        raise DevkitError(f"network.{setting} cannot be {address[:80]!r}", _HINTS[setting])
    return address.rstrip("/")


def torch_index(plan: Plan, settings: Settings) -> str:
    """Where the image takes torch from: the plan's index, or the folder of the same name on the mirror."""
    if not settings.torch_index:
        return plan.torch_index
    return f"{settings.torch_index}/{plan.torch_index.rstrip('/').rpartition('/')[2]}"


def mirror_variables(settings: Settings) -> tuple[tuple[str, str], ...]:
    """What tells pip, uv and the hub's clients of the mirrors, at build and at run, as (name, value)."""
    variables = []
    if settings.index:
        variables += [("PIP_INDEX_URL", settings.index), ("UV_DEFAULT_INDEX", settings.index)]
    if settings.hub:
        variables.append(("HF_ENDPOINT", settings.hub))
    # pip leaves an index without TLS aside, unless its host is named once more.
    if hosts := [urlsplit(url).netloc for url in (settings.index, settings.torch_index) if url.startswith("http:")]:
        variables.append(("PIP_TRUSTED_HOST", '"' + " ".join(dict.fromkeys(hosts)) + '"'))
    return tuple(variables)


def may_need_login(settings: Settings) -> bool:
    """Whether the build asks a mirror, which may want to know who is there."""
    return bool(settings.index or settings.torch_index) and not settings.uses_wheelhouse


def login_artifacts(_plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """The file that stands in for a .netrc."""
    if may_need_login(settings):
        yield Artifact.text(NO_LOGIN_PATH, _NO_LOGIN)


def _has_port(address: str) -> bool:
    try:
        return urlsplit(address).port is None or bool(urlsplit(address).port)
    except ValueError:
        return False
