"""Everything a generated dev container depends on besides the plan."""

import hashlib
import re
import textwrap
import unicodedata
from dataclasses import dataclass

from devkit.errors import DevkitError
from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies
from devkit.facts.project import NO_POLICY, Policy
from devkit.solver.plan import Plan

# Project names: which ones every generated format can carry, and their short form for engines.

_REFUSED = frozenset('"`$\\')
_LONGEST = 100
_LONGEST_SLUG = 40


def validate_project_name(name: str) -> str:
    """`name`, when JSON, YAML, shell and the dev container's own `${…}` can all carry it as it is.

    Raises: DevkitError for an empty or overlong name, control characters, and the characters " ` $ and backslash.
    """
    bad = sorted(
        {char for char in name if char in _REFUSED or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    )
    hint = 'Choose a plain one, such as --name my-project, or set name = "my-project" in devkit.toml.'
    if bad:
        shown = " ".join(ascii(char) for char in bad)
        raise DevkitError(f"the project name {name!r} holds characters that no file format agrees on: {shown}", hint)
    if not name.strip() or len(name) > _LONGEST:
        raise DevkitError(
            f"the project name must have 1 to {_LONGEST} characters, this one has {len(name.strip())}", hint
        )
    return name.strip()


def slugify(name: str) -> str:
    """The name's form for Compose projects, volumes and paths: lower case a-z, 0-9 and single hyphens.

    Letters with accents lose them; a name without any Latin letter or digit becomes project-<hash>.
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain)[:_LONGEST_SLUG].strip("-")
    return slug or f"project-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# What may stand in a Dockerfile or YAML as it is, and a plan's reasons as comments.

_SAFE_VALUES = {
    "base image": re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII),
    "Python version": re.compile(r"\d+\.\d+", re.ASCII),
    "version": re.compile(r"[A-Za-z0-9][\w.+!-]*", re.ASCII),
    "package name": re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII),
    "wheel index": re.compile(r"https?://[\w.:/@%+~-]+", re.ASCII),
    "digest": re.compile(r"sha256:[0-9a-f]{64}"),
    "devkit URL": re.compile(r"[\w.:/@%+~#=-]+", re.ASCII),
}


def require_safe(kind: str, value: str) -> str:
    """The value itself. Raises DevkitError when it could not stand in a file as it is."""
    if not _SAFE_VALUES[kind].fullmatch(value):
        raise DevkitError(f"{value!r} cannot be a {kind}", "Check the value in devkit.toml and on the command line.")
    return value


def validate_plan(plan: Plan) -> None:
    """Raise DevkitError for a plan with a value that could not stand in a file as it is."""
    require_safe("base image", plan.base_image)
    require_safe("Python version", plan.python)
    require_safe("wheel index", plan.torch_index)
    require_safe("version", plan.torch)
    for name, version in plan.packages:
        require_safe("package name", name)
        require_safe("version", version)


def format_reason_comment(plan: Plan, field: str) -> str:
    """Why a field has its value, as the text of a comment; lines after the first begin with `# `."""
    found = next((reason for reason in plan.reasons if reason.field == field), None)
    text = f"{field} {found.value}: {found.because}" if found else f"{field}: chosen with the rest of the plan"
    return "\n# ".join(textwrap.wrap(text, width=110, break_long_words=False, break_on_hyphens=False))


@dataclass(frozen=True)
class FromIndex:
    """devkit comes from the package index, in this version."""

    version: str


@dataclass(frozen=True)
class FromUrl:
    """devkit comes from a URL that pip understands: a VCS revision, or an archive with its hash."""

    url: str


@dataclass(frozen=True)
class FromWheel:
    """devkit comes as a wheel among the generated files."""

    filename: str
    content: bytes


@dataclass(frozen=True)
class FromCheckout:
    """The project is devkit's own checkout, which installs itself once the container runs."""


DevkitSource = FromIndex | FromUrl | FromWheel | FromCheckout


@dataclass(frozen=True)
class ContainerSettings:
    """The project's name in both forms, where devkit comes from, and what its network asks for.

    `certificates` is PEM text, "" for none. With `uses_wheelhouse` the image is built without a package index.
    `index`, `torch_index` and `hub` are URLs of mirrors, "" for the public ones. `devices` are the GPUs to pass on,
    () for all. `policy` is what images and labels keep to. `image_digest` is `sha256:…` of the base image;
    `python_lock` a requirements file with hashes. `dependencies` are the project's own packages.
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
    profiles: tuple[str, ...] = ()
    policy: Policy = NO_POLICY
    image_digest: str = ""
    python_lock: str = ""
    dependencies: Dependencies = NO_DEPENDENCIES
