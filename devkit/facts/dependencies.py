"""The requirements of a project besides devkit's plan, as its own files name them, and the packages that uv resolves."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from devkit.facts.values import Unknown

SETTINGS_FILE = "devkit.toml"
"""Where the user's own additions to the project's requirements are kept."""
OUTSIDE_OF_PROJECT = "it is outside the project, where the container does not look"


class PackageManager(StrEnum):
    """The tool that manages the project's packages. The value is its name as people write it."""

    UV = "uv"
    POETRY = "Poetry"
    PDM = "PDM"
    PIPENV = "Pipenv"
    CONDA = "conda"
    PIP = "pip"
    NONE = ""


_LOCKING_TOOLS = (PackageManager.UV, PackageManager.POETRY, PackageManager.PDM, PackageManager.PIPENV)


class Framework(StrEnum):
    """The framework that a project computes with, as its files show. The value is its name as `--framework` takes it."""

    TORCH = "torch"
    JAX = "jax"
    TENSORFLOW = "tensorflow"
    CUDA = "cuda"
    """CUDA C++, compiled by nvcc."""
    NONE = "none"
    """Nothing of these: another language, or Python without a framework."""

    @property
    def label(self) -> str:
        """Its name as people write it."""
        return {"jax": "JAX", "tensorflow": "TensorFlow", "cuda": "CUDA C++", "none": "no framework"}.get(self, "torch")


class RequirementRole(StrEnum):
    """The use of a requirement when the image is built."""

    PASSED_THROUGH = "handed"
    """A file that the installer is handed says it."""
    GENERATED = "written"
    """No installer reads the file, or not without the whole project: devkit writes the line out."""
    CONSTRAINT = "limit"
    """It installs nothing, and limits a version: a lock, a constraints file, a package of conda."""


class FileLine(Protocol):
    """Something that was read from a line of one of the project's files."""

    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...


class Located:
    """A value with an origin: its `path` and its `line`."""

    @property
    def origin(self: FileLine) -> str:
        """Its file and line: "requirements.txt:3"."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class PackageRequirement(Located):
    """One package that a file asks for, or the Python, whose `name` is "python".

    `name` is normalized (PEP 503), `specifier` a PEP 440 one, "" for any version; `marker` a PEP 508 one.
    `url` is where it comes from instead of an index, without a login. `group` is the dependency group that holds it.
    `index` is the name of the only index that it may come from, "" for any. `unisolated_by` is the line of the guide that has
    its build take torch from the environment, "" for none.
    """

    name: str
    specifier: str
    path: str
    line: int
    marker: str = ""
    extras: tuple[str, ...] = ()
    url: str = ""
    group: str = ""
    role: RequirementRole = RequirementRole.PASSED_THROUGH
    index: str = ""
    unisolated_by: str = ""

    @property
    def text(self) -> str:
        """The requirement as PEP 508 writes it: `name[extra]==1; marker`."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        version = f" @ {self.url}" if self.url else self.specifier
        marker = f" ; {self.marker}" if self.marker else ""
        return f"{self.name}{extras}{version}{marker}"


@dataclass(frozen=True)
class LocalPackage:
    """A package in a folder of the project, or an archive there, which is installed when the container opens.

    `place` is relative to the project; `path` and `line` are of the file that asks for it.
    """

    place: str
    path: str
    line: int


@dataclass(frozen=True)
class CondaPackage(Located):
    """A package that only conda has, as micromamba reads it: `hmmer`, `openmm>=8`, `bioconda::hhsuite`; `name` is the index's."""

    spec: str
    path: str
    line: int
    name: str = ""


TORCH_WHEELS = "download.pytorch.org/whl"
_TORCH_INDEX = re.compile(rf"https?://{re.escape(TORCH_WHEELS)}(?:/|$)")
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:")
PROJECT_FOLDER = re.compile(r"(?![/\\~])(?!.*\.\.)[^:]+")
"""A folder of the project. Addresses need no `//`: uv takes http:host/simple as well."""
PUBLIC_INDEX = "https://pypi.org/simple"


class IndexUse(StrEnum):
    """The use that a project's file makes of a place that it names."""

    EXTRA = "extra"
    """Packages that it has come from it, and from no other place."""
    DEFAULT = "default"
    """It replaces the public index."""
    EXPLICIT = "explicit"
    """Only packages that are bound to it come from it."""
    LINKS = "links"
    """It is a page or folder of archives, not an index."""


@dataclass(frozen=True)
class PackageIndex(Located):
    """A line or table that names another place to take packages from; `url` carries no login."""

    url: str
    path: str
    line: int
    name: str = ""
    use: IndexUse = IndexUse.EXTRA

    @property
    def is_third_party(self) -> bool:
        """Return True for an index besides the public one and torch's, which the plan brings."""
        is_public = _TORCH_INDEX.match(self.url) or self.url.rstrip("/") == PUBLIC_INDEX
        return bool(_ADDRESS.match(self.url)) and not is_public

    @property
    def needs_consent(self) -> bool:
        """Return True for another party's index, and for a folder outside the project."""
        return self.is_third_party or not (_ADDRESS.match(self.url) or PROJECT_FOLDER.fullmatch(self.url))


@dataclass(frozen=True)
class UnreadableRequirement(Located):
    """Part of the project's files that devkit could not read as a requirement, and why. Line 0 stands for the whole file.

    `correction` is what to write instead where the installer refuses the whole file as well; "" where it does not.
    """

    path: str
    line: int
    problem: str
    correction: str = ""


@dataclass(frozen=True)
class ImportedPackage(Located):
    """A package that a program of the project imports but none of its files requires.

    `name` is the distribution's, "" where the table of imports does not have the module. `guide` is what the project's guide
    has its reader install of it, if anything.
    """

    module: str
    name: str
    path: str
    line: int
    guide: PackageRequirement | None = None


@dataclass(frozen=True)
class ExcludedPackage:
    """Something that the project needs and the image does not install, and why."""

    what: str
    path: str
    line: int
    because: str


@dataclass(frozen=True)
class DependencyChoice:
    """Optional parts of a project's requirements: those to install, or those that there are to choose from.

    `requirements` are paths of requirement files, relative to the project. `packages` are requirements that devkit.toml
    adds to the project's own. With `no_guide` the installation section of the project's guide does not count.
    """

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    no_guide: bool = False


NOTHING_CHOSEN = DependencyChoice()


@dataclass(frozen=True)
class SystemPackage(Located):
    """A Debian package that a file of the project installs with apt: a Dockerfile, a CI workflow or a guide. Or a program."""

    name: str
    path: str
    line: int
    is_from_ci: bool = False


@dataclass(frozen=True)
class BuildNeed:
    """A need of a build from outside: `kind` is "program", "library" or "header", which the image has, or "module".

    A module is one that setup.py imports and that no isolated build has. `origin` is the file and line that show it.
    """

    kind: str
    name: str
    origin: str


@dataclass(frozen=True)
class LocalBuild:
    """The build of a package among the project's own files.

    `path` is its folder, "." for the project itself, `name` its normalized name, "" where none is read. `origin` is the
    file and line that show that its build imports torch, "" where it does not. `has_cuda` says whether it names a CUDA
    extension, `cxx` which C++ it sets itself, 0 for torch's own. `requires` are its build requirements without torch,
    `needs` the programs and libraries that its build files name. `maps_nothing` is True where setuptools finds no package
    in it, because no folder has an `__init__.py`, so that an editable install makes nothing importable.
    """

    path: str
    name: str
    origin: str
    has_cuda: bool
    requires: tuple[str, ...]
    cxx: int = 0
    needs: tuple[BuildNeed, ...] = ()
    maps_nothing: bool = False

    @property
    def needs_torch(self) -> bool:
        """True if the build imports torch, so that a build in isolation would fetch another one, or fail."""
        return bool(self.origin)


@dataclass(frozen=True)
class Dependencies:
    """The requirements of the project's own files.

    `tool` is what the project uses, `because` how that is seen. `files` are all that were read, `lock` the one of them
    that holds exact versions, "" for none. `lists` are those that an installer is handed as they are, `included` what
    these name. Paths are relative to the project, with slashes.
    """

    tool: PackageManager
    because: str
    files: tuple[str, ...] = ()
    lock: str = ""
    set_aside: tuple[str, ...] = ()
    """Files of package managers that do not count, because others do or because they do not fit them."""
    lists: tuple[str, ...] = ()
    included: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    """The project's extras that are installed with it."""
    extras_origin: str = ""
    """The file and line of the guide that installs the project with them, "" for those that were chosen."""
    groups: tuple[str, ...] = ()
    """The dependency groups that are installed: those of a development environment, and those that were chosen."""
    available: DependencyChoice = NOTHING_CHOSEN
    """What is not installed, but could be chosen."""
    without_guide: "Dependencies | None" = None
    """What there is without the installation section of the guide, which may be older than the code; None where it says nothing."""
    torch_builds: tuple["TorchBuild", ...] = ()
    """Extras and groups that exclude each other, each with another build of torch; () where one of them is chosen."""
    needs: tuple[PackageRequirement, ...] = ()
    python: tuple[PackageRequirement, ...] = ()
    guide_python: PackageRequirement | None = None
    """The Python of the environment that the project's guide makes: one of those that it runs with."""
    stated: tuple[PackageRequirement, ...] = ()
    """Versions that the project's guides state of packages whose versions its files leave open."""
    indexes: tuple[PackageIndex, ...] = ()
    unread: tuple[UnreadableRequirement, ...] = ()
    left_out: tuple[ExcludedPackage, ...] = ()
    not_followed: tuple[ExcludedPackage, ...] = ()
    """Commands of the project's guides that install something for another reader, or in a way that devkit does not follow."""
    conda: tuple[CondaPackage, ...] = ()
    """What micromamba installs, all of a conda environment but torch; () where uv can install everything."""
    conda_channels: tuple[str, ...] = ()
    local: tuple[LocalPackage, ...] = ()
    """Packages of the project besides itself: members of its workspace, and folders that its files install."""
    submodules: tuple[str, ...] = ()
    """The folders of its git submodules."""
    missing_submodules: tuple[str, ...] = ()
    """Those of them that are not fetched here."""
    programs: tuple[SystemPackage, ...] = ()
    """What its code starts besides Python."""
    uses_lfs: bool = False
    """Whether Git LFS holds some of its files."""
    torch_family: tuple[str, ...] = ()
    """Packages that the lock holds for torch alone, torch included: the plan brings them."""
    has_members: bool = False
    """Whether it is a workspace of uv, whose packages share one lock."""
    can_check_lock: bool = True
    """Whether a tool that sees only the manifest and the lock can tell that the lock is up to date."""
    is_computed: bool = False
    """Whether only the project's own build knows all its requirements: they are installed with it."""
    builds_itself: bool = False
    """Whether the project can be installed as a package."""
    name: str = ""
    """The name of that package, normalized (PEP 503); "" where no file says it."""
    builds: tuple[LocalBuild, ...] = ()
    """How the project itself is built, and the folders with it that compile against torch."""
    system: tuple[SystemPackage, ...] = ()
    """Debian packages that files of the project install, each once."""
    framework: Framework = Framework.TORCH
    """torch as long as nothing shows another one."""
    framework_because: str = ""
    """How the framework is seen."""
    cuda_build: str = ""
    """The file and line that have nvcc compile the project's own code, "" for none."""

    @property
    def is_locked(self) -> bool:
        """Return True if the image installs exact versions from the project's own lock."""
        return bool(self.lock) and self.tool in _LOCKING_TOOLS

    @property
    def asks_for_packages(self) -> bool:
        """Return True if the project says itself what it needs, so that nothing is added to it."""
        needs = any(need.role is not RequirementRole.CONSTRAINT for need in self.needs)
        return bool(needs or self.lock or self.torch_builds or self.unread or self.left_out)


@dataclass(frozen=True)
class TorchBuild:
    """An extra or group that brings its own build of torch: the build's label, such as cu128, and all it brings."""

    label: str
    choice: str
    """How it is chosen: "--extra gpu"."""
    dependencies: Dependencies


NO_DEPENDENCIES = Dependencies(PackageManager.NONE, "none of the project's files lists a package")


TORCH_FAMILY = ("torch", "torchvision", "torchaudio")
"""torch, and the packages of which every wheel is built for one build of it; they come from its own index.

Source: https://pytorch.org/get-started/locally/.
"""


@dataclass(frozen=True)
class RequirementSources:
    """The requirements as the image's installer gets them.

    `files` are paths relative to the project, with their text; `lists` are those of them that uv is given, the others are
    included by these. `options` are uv's besides, such as --extra and --group. `lines` are requirements that devkit
    writes out. `unchecked` are packages that come from a URL: they are not fetched to see what they need. `indexes` are
    the places that these files name.
    """

    files: tuple[tuple[str, str], ...] = ()
    lists: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    # The files say the same: what a lock was resolved from need not repeat it.
    indexes: tuple[PackageIndex, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return bool(self.lists or self.lines)


@dataclass(frozen=True)
class ResolutionRequest:
    """A request to resolve the project's requirements and these, for one Python and machine.

    `constraints` limit versions and install nothing, `requirements` are installed too. `glibc` is that of the image, ""
    where it is unknown. `relaxed` are packages whose versions in the project's files do not count, `absent` those that are
    left out. With `is_alone` none of these files counts, and without `follows` only the requirements themselves are
    resolved, not what they need.
    `as_of` is the day by which packages must have been released, but for those in `undated`, as `name`, `name=DAYS` later or
    `name=DAY`; "" for any.
    """

    python: str
    machine: str
    glibc: str = ""
    constraints: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    relaxed: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    is_alone: bool = False
    follows: bool = True
    as_of: str = ""
    undated: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceBuild:
    """The build of a package without a wheel, as its own files say it; `requires` are its build requirements.

    `provides` are the top modules that it installs, as far as its archive says.
    """

    package: str
    needs: tuple[BuildNeed, ...] = ()
    requires: tuple[str, ...] = ()
    provides: frozenset[str] = frozenset()

    @property
    def modules(self) -> tuple[BuildNeed, ...]:
        """The modules that it imports and an isolated build lacks."""
        return tuple(each for each in self.needs if each.kind == "module")


@dataclass(frozen=True)
class Resolved:
    """Every package with its version. `from_source` are those without a wheel for this Python and machine.

    `unread` says of which packages the requirements were not read, and why. `asked` are the indexes besides the public
    one that the project's files name.
    """

    packages: tuple[tuple[str, str], ...]
    from_source: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    wheels: tuple[tuple[str, str], ...] = ()
    """The address of a wheel of each package, as far as the index has one."""
    hashes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The SHA-256 of the wheels that fit, or of the source distribution, of each package whose index gives them."""
    builds: tuple[SourceBuild, ...] = ()
    """How the packages of `from_source` are built, as far as their source distributions could be read."""
    absent: tuple[str, ...] = ()
    """Packages that were left out, because the index does not have them for Linux."""
    elsewhere: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The Pythons, such as 3.7, for which those of `from_source` have compiled wheels, as far as the index says it."""


@dataclass(frozen=True)
class Refused:
    """There is no resolution: uv's reason in short, and all of it."""

    reason: str
    details: str = ""

    def mentions(self, *words: str) -> bool:
        """Return whether uv's reason has to do with one of these."""
        text = self.details or self.reason
        return any(re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text) for word in words)


Resolution = Resolved | Refused | Unknown
"""Unknown where uv could not look: without a network, for example."""
