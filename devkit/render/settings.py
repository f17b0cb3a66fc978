"""Everything a generated dev container depends on besides the plan."""

from dataclasses import dataclass

from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies
from devkit.facts.policy import NO_POLICY, Policy


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
class Settings:
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
