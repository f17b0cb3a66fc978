"""Mirrors of the package indexes and of the hub: addresses that may stand in an image, and how programs learn them."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from devkit.errors import DevkitError
from devkit.render.container.settings import ContainerSettings
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.solver.plan import Plan

# A company's certificate authorities, taken from a PEM file and checked before any image sees them.

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----[A-Za-z0-9+/=\s]+?-----END \1-----")
_CERTIFICATE = ("CERTIFICATE", "TRUSTED CERTIFICATE", "X509 CERTIFICATE")


def parse_certificates(content: bytes, *, shown_as: str) -> str:
    """The certificates in a PEM file, without the comments and text around them.

    Raises: DevkitError when there is none, one cannot be parsed, or the file holds a private key.
    """
    text = content.decode("latin-1")
    if "PRIVATE KEY" in text:
        raise DevkitError(
            f"{shown_as} holds a private key",
            "A key has no place in an image. Pass a file with the authority's certificates alone.",
        )
    blocks = [found[0].strip() for found in _BLOCK.finditer(text.replace("\r\n", "\n")) if found[1] in _CERTIFICATE]
    if not blocks:
        raise DevkitError(
            f"{shown_as} holds no PEM certificate",
            f"Convert a DER file first: openssl x509 -inform der -in {shown_as} -out ca.pem",
        )
    for number, block in enumerate(blocks, start=1):
        _validate_certificate(block, f"certificate {number} of {shown_as}")
    return "".join(f"{block}\n" for block in blocks)


def _validate_certificate(block: str, name: str) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=block)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise DevkitError(f"{name} is not a valid X.509 certificate: {reason}", "Export it again as PEM.") from None


EMPTY_NETRC_PATH = f"{DEVCONTAINER_FOLDER}/no-netrc"
"""Stands in for the .netrc of those who need none: Compose refuses a secret whose file is missing."""

_NO_LOGIN = f"# Written by devkit: no login. Yours goes into a file of its own, which DEVKIT_NETRC in {DEVCONTAINER_FOLDER}/.env names.\n"

_ADDRESS = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/[\w.~%+:@-]+)*/?", re.ASCII)
_LONGEST = 500
_HINTS = {
    "index": "Write it like https://pypi.example.org/simple.",
    "torch_index": "Write it like https://pytorch.example.org/whl; devkit adds cu130, cpu and so on.",
    "hub": "Write it like https://hub.example.org.",
}


def validate_mirror(setting: str, address: str) -> str:
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


def find_torch_index(plan: Plan, settings: ContainerSettings) -> str:
    """Where the image takes torch from: the plan's index, or the folder of the same name on the mirror."""
    if not settings.torch_index:
        return plan.torch_index
    return f"{settings.torch_index}/{plan.torch_index.rstrip('/').rpartition('/')[2]}"


def build_mirror_variables(settings: ContainerSettings) -> tuple[tuple[str, str], ...]:
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


def may_need_login(settings: ContainerSettings) -> bool:
    """Whether the build asks a mirror, which may want to know who is there."""
    return bool(settings.index or settings.torch_index) and not settings.uses_wheelhouse


def render_empty_netrc(_plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """The file that stands in for a .netrc."""
    if may_need_login(settings):
        yield Artifact.from_text(EMPTY_NETRC_PATH, _NO_LOGIN)


def _has_port(address: str) -> bool:
    try:
        return urlsplit(address).port is None or bool(urlsplit(address).port)
    except ValueError:
        return False
