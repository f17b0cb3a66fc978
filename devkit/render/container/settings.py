"""The settings of a generated dev container besides its plan, and the validation of values that files hold."""

import hashlib
import re
import textwrap
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from devkit.errors import DevkitError
from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies
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
