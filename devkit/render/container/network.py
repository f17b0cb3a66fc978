"""Settings for closed networks: mirrors of the package indexes and of the hub, logins, certificate authorities."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from devkit.errors import DevkitError
from devkit.render.container.settings import ContainerSettings
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.solver.plan import Plan

EMPTY_NETRC_PATH = f"{DEVCONTAINER_FOLDER}/no-netrc"
"""The .netrc of those who need none: Compose refuses a secret whose file is missing."""

_EMPTY_NETRC = (
    f"# Written by devkit: no login. Yours goes into a separate file, which DEVKIT_NETRC in {DEVCONTAINER_FOLDER}/.env"
    " names.\n"
)

_ADDRESS = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/[\w.~%+:@-]+)*/?", re.ASCII)
_MAX_ADDRESS = 500
_EXAMPLES = {
    "index": "Write it like https://pypi.example.org/simple.",
    "torch_index": "Write it like https://pytorch.example.org/whl; devkit adds cu130, cpu and so on.",
    "hub": "Write it like https://hub.example.org.",
}
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----[A-Za-z0-9+/=\s]+?-----END \1-----")
_PEM_LABELS = ("CERTIFICATE", "TRUSTED CERTIFICATE", "X509 CERTIFICATE")


def validate_mirror(setting: str, address: str) -> str:
    """Return the address of a mirror without a slash at its end, "" for none. `setting` is index, torch_index or hub.

    Raises: DevkitError for an address with a login in it, or one that files cannot hold without escaping. The message
    never repeats what might be a password.
    """
    if not address:
        return ""
    if "@" in (address.partition("://")[2] or address).partition("/")[0]:
        raise DevkitError(
            f"network.{setting} contains a login, which anyone could read in the image and in devkit.lock",
            "Remove it. Put the login into a .netrc file, and add the path of that file to .devcontainer/.env as\n"
            "DEVKIT_NETRC=/path/to/.netrc: the build mounts it for the installation and does not store it in any layer.",
        )
    try:
        is_valid = len(address) <= _MAX_ADDRESS and bool(_ADDRESS.fullmatch(address)) and urlsplit(address).port != 0
    except ValueError:  # no port is that large
        is_valid = False
    if not is_valid:
        raise DevkitError(f"network.{setting} cannot be {address[:80]!r}", _EXAMPLES[setting])
    return address.rstrip("/")


def find_torch_index(plan: Plan, settings: ContainerSettings) -> str:
    """Find the index of torch: the plan's, or the folder of the same name on the mirror."""
    if not settings.torch_index:
        return plan.torch_index
    if not plan.torch_index:
        return ""
    return f"{settings.torch_index}/{plan.torch_index.rstrip('/').rpartition('/')[2]}"


def build_mirror_variables(settings: ContainerSettings) -> tuple[tuple[str, str], ...]:
    """Build the environment variables that point pip, uv and the hub's clients at the mirrors, as (name, value)."""
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
    """Return True when the build uses a mirror, which may require a login."""
    return bool(settings.index or settings.torch_index) and not settings.uses_wheelhouse


def render_empty_netrc(_plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the empty .netrc where the build mounts one."""
    if may_need_login(settings):
        yield Artifact.from_text(EMPTY_NETRC_PATH, _EMPTY_NETRC)


def parse_certificates(content: bytes, *, shown_as: str) -> str:
    """Return the certificates in a PEM file, without the comments and text around them.

    Raises: DevkitError when there is none, one cannot be parsed, or the file holds a private key.
    """
    import ssl

    text = content.decode("latin-1")
    if "PRIVATE KEY" in text:
        raise DevkitError(
            f"{shown_as} holds a private key",
            "A key does not belong in an image. Pass a file with only the authority's certificates.",
        )
    blocks = [found[0].strip() for found in _PEM_BLOCK.finditer(text.replace("\r\n", "\n")) if found[1] in _PEM_LABELS]
    if not blocks:
        raise DevkitError(
            f"{shown_as} does not contain a PEM certificate",
            f"Convert a DER file first: openssl x509 -inform der -in {shown_as} -out ca.pem",
        )
    for number, block in enumerate(blocks, start=1):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=block)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            message = f"certificate {number} of {shown_as} is not a valid X.509 certificate: {reason}"
            raise DevkitError(message, "Export it again as PEM.") from None
    return "".join(f"{block}\n" for block in blocks)
