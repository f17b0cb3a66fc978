"""The settings of a generated dev container besides its plan, those for closed networks among them, and their validation."""

import hashlib
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from devkit.errors import DevkitError
from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.solver.plan import Plan

_UNSAFE_CHARACTERS = frozenset('"`$\\')
_MAX_NAME = 100
_MAX_SLUG = 40
_SAFE_VALUES = {
    "base image": re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII),
    "Python version": re.compile(r"\d+\.\d+", re.ASCII),
    "version": re.compile(r"[A-Za-z0-9][\w.+!-]*", re.ASCII),
    "Debian package": re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII),
    "requirement": re.compile(r"[a-z]+\[[a-z0-9-]+\]", re.ASCII),
    "package name": re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII),
    "limit on versions": re.compile(r"[A-Za-z0-9][\w.,=<>!~+*-]*", re.ASCII),
    "wheel index": re.compile(r"https?://[\w.:/@%+~-]+", re.ASCII),
    "index option": re.compile(r"--index-strategy=[a-z-]+|--[a-z-]+=(?:[\w.-]+=)?https?://[\w.:/@%+~-]+", re.ASCII),
    "package URL": re.compile(r"[\w.:/@%+~#=&?-]+", re.ASCII),
    "path": re.compile(r"[\w.][\w./+-]*", re.ASCII),
    "digest": re.compile(r"sha256:[0-9a-f]{64}"),
    "devkit URL": re.compile(r"[\w.:/@%+~#=-]+", re.ASCII),
}


@dataclass(frozen=True)
class FromIndex:
    """devkit from the package index, in this version."""

    version: str


@dataclass(frozen=True)
class FromUrl:
    """devkit from a URL that pip understands: a VCS revision, or an archive with its hash."""

    url: str


@dataclass(frozen=True)
class FromWheel:
    """devkit as a wheel among the generated files."""

    filename: str
    content: bytes


@dataclass(frozen=True)
class FromCheckout:
    """devkit's own repository, which installs itself once the container runs."""


DevkitSource = FromIndex | FromUrl | FromWheel | FromCheckout


@dataclass(frozen=True)
class ContainerSettings:
    """The validated settings of one dev container.

    `certificates` is PEM text, "" for none. With `uses_wheelhouse` the image is built without a package index.
    `index`, `torch_index` and `hub` are URLs of mirrors, "" for the public ones. `devices` are the GPUs to pass on,
    () for all. `for_windows` adds what a Windows host without a POSIX shell needs.
    `image_digest` is `sha256:…` of the base image;
    `python_lock` and `tools_lock` requirements files with hashes, both or neither.
    `hashes` are the SHA-256 of the files of a held version, such as "click==8.5.1", as an earlier run wrote them.
    `dependencies` are the project's own packages. With `sudo` the user may become root without a password.
    """

    name: str
    slug: str
    source: DevkitSource
    certificates: str = ""
    uses_wheelhouse: bool = False
    index: str = ""
    torch_index: str = ""
    hub: str = ""
    engine: str = ""
    devices: tuple[str, ...] = ()
    editors: tuple[str, ...] = ()
    for_windows: bool = False
    image_digest: str = ""
    python_lock: str = ""
    tools_lock: str = ""
    hashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dependencies: Dependencies = NO_DEPENDENCIES
    sudo: bool = False


def validate_project_name(name: str) -> str:
    """Return the name, when JSON, YAML, shell and the dev container's own `${…}` can all hold it without escaping.

    Raises: DevkitError for an empty or overlong name, control characters, and the characters " ` $ and backslash.
    """
    bad = sorted(
        {
            char
            for char in name
            if char in _UNSAFE_CHARACTERS or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        }
    )
    hint = 'Choose a plain one, such as --name my-project, or set name = "my-project" in devkit.toml.'
    if bad:
        shown = " ".join(ascii(char) for char in bad)
        raise DevkitError(
            f"the project name {name!r} has characters that some file formats do not support: {shown}", hint
        )
    if not name.strip() or len(name) > _MAX_NAME:
        raise DevkitError(
            f"the project name must have 1 to {_MAX_NAME} characters, but this one has {len(name.strip())}", hint
        )
    return name.strip()


def slugify(name: str) -> str:
    """Return the name's form for Compose projects, volumes and paths: lower case a-z, 0-9 and single hyphens.

    Letters with accents lose them; a name without any Latin letter or digit becomes project-<hash>.
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain)[:_MAX_SLUG].strip("-")
    return slug or f"project-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def require_safe(kind: str, value: str) -> str:
    """Return the value. Raises DevkitError when a Dockerfile or YAML cannot hold it without escaping."""
    if not _SAFE_VALUES[kind].fullmatch(value):
        raise DevkitError(f"{value!r} cannot be a {kind}", "Check the value in devkit.toml and on the command line.")
    return value


def validate_plan(plan: Plan) -> None:
    """Raise DevkitError for a plan with a value that `require_safe` refuses."""
    require_safe("base image", plan.base_image)
    require_safe("Python version", plan.python)
    if plan.torch:
        require_safe("wheel index", plan.torch_index)
        require_safe("version", plan.torch)
    for reason in plan.system_packages:
        require_safe("Debian package", reason.field)
    for name, version in plan.packages:
        require_safe("package name", name)
        require_safe("version", version)
    for limit in plan.limits:
        require_safe("limit on versions", limit)


def format_reason_comment(plan: Plan, field: str) -> str:
    """Format the reason for a field's value as a comment; lines after the first begin with `# `."""
    found = next((reason for reason in plan.reasons if reason.field == field), None)
    return format_comment(
        f"{field} {found.value}: {found.because}" if found else f"{field}: chosen with the rest of the plan"
    )


def format_comment(text: str) -> str:
    """Format a text as a comment; lines after the first begin with `# `."""
    return "\n# ".join(textwrap.wrap(text, width=110, break_long_words=False, break_on_hyphens=False))


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
