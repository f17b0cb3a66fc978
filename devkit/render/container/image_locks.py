"""The Python lock: what it is made for, whether it still fits, and the part of it that each layer installs.

requirements.lock is what uv wrote, under a header that says what it was made for. So the file itself tells, on any
machine and without a network, whether it fits a plan. installer.lock and torch.lock are parts of it: a layer must see
no more than what it installs, or one more requirement would rebuild torch's.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

from devkit import __version__
from devkit.compat.specifiers import canonicalize_name
from devkit.errors import DevkitError
from devkit.render.container.image import render_requirements
from devkit.render.container.packages import INSTALLER, select_constraints, select_requirements_to_lock
from devkit.render.container.settings import ContainerSettings, FromCheckout, FromIndex
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.wheel import DISTRIBUTION
from devkit.solver.plan import Plan

_MADE_FOR = "# made for: "
_HEADER = (
    f"# Written by devkit {__version__}: every package of the image, with the SHA-256 of its files.\n"
    "# Renew it with `devkit init --lock`.\n"
)
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^]]*\])? ?(?:==|@)", re.ASCII)
_VIA = re.compile(r"^    # via (?P<names>.*)$")


@dataclass(frozen=True)
class LockRequirements:
    """What a lock shall hold: the requirements, and the Python and the machines that they are for.

    `variant` is the name of torch's index, such as cu130. `limits` ask for nothing, and limit versions.
    """

    python: str
    machines: tuple[str, ...]
    variant: str
    requirements: tuple[str, ...]
    limits: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The same, as the lines of a lock's header."""
        target = (f"Python {self.python} on {', '.join(self.machines)}", f"torch of {self.variant}")
        return (*target, *self.requirements, *(f"no other {limit}" for limit in self.limits))

    @property
    def environments(self) -> tuple[str, ...]:
        """The Python on each of the machines, as a PEP 508 marker."""
        python = f"python_version == '{self.python}' and sys_platform == 'linux'"
        return tuple(f"{python} and platform_machine == '{machine}'" for machine in self.machines)


def collect_lock_requirements(plan: Plan, settings: ContainerSettings) -> LockRequirements:
    """What the lock of this plan must hold: what requirements.txt, devkit itself and the project's files ask for.

    Raises: DevkitError for a package of the project that no hash can hold.
    """
    lines = {line for line in render_requirements(plan, settings).splitlines() if line and not line.startswith("#")}
    lines |= {*_of_devkit(settings), *_of_project(settings)}
    held = sorted(
        {f"{need.name}{need.specifier}" for need in select_constraints(settings.dependencies) if not need.marker}
    )
    return LockRequirements(plan.python, plan.architectures, plan.variant, tuple(sorted(lines)), tuple(held))


def render_python_lock(wanted: LockRequirements, resolved: str) -> str:
    """requirements.lock, from what uv resolved."""
    made_for = "".join(f"{_MADE_FOR}{line}\n" for line in wanted.lines)
    return f"{_HEADER}{made_for}\n{resolved.strip()}\n"


def find_lock_mismatch(text: str, wanted: LockRequirements) -> str:
    """Why a lock does not hold what is wanted, "" when it does."""
    has = [line.removeprefix(_MADE_FOR) for line in text.splitlines() if line.startswith(_MADE_FOR)]
    missing = [line for line in wanted.lines if line not in has]
    surplus = [line for line in has if line not in wanted.lines]
    for line in missing:
        word = re.split(r"[^\w.-]", line)[0]
        before = [each for each in surplus if re.split(r"[^\w.-]", each)[0] == word]
        return f"it was made for {before[0]}, the plan has {line}" if before else f"it does not hold {line}"
    return f"it was made for {surplus[0]}, which the plan does not ask for" if surplus else ""


def render_python_lock_files(_plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """The lock and its parts, where the settings have one. Raises DevkitError when it is none."""
    if not settings.python_lock:
        return
    entries = tuple(_entries(settings.python_lock))
    yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/requirements.lock", settings.python_lock)
    yield Artifact.from_text(
        f"{DEVCONTAINER_FOLDER}/installer.lock", _part(entries, {INSTALLER}, "what installs the others")
    )
    torch = _needed_by("torch", entries)
    yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/torch.lock", _part(entries, torch, "torch and all that it needs"))


@dataclass(frozen=True)
class _Entry:
    name: str
    text: str
    via: frozenset[str]


def _entries(text: str) -> Iterator[_Entry]:
    """A package may have several, each for another machine."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if block and not line.startswith(" "):
            yield _entry(block)
            block = []
        if block or _ENTRY.match(line):
            block.append(line)


def _entry(block: list[str]) -> _Entry:
    found = _ENTRY.match(block[0])
    via = next((match["names"] for line in block if (match := _VIA.match(line))), "")
    names = frozenset(canonicalize_name(name) for name in re.split(r",\s*", via) if name)
    return _Entry(canonicalize_name(found["name"]) if found else "", "\n".join(block), names)


def _needed_by(name: str, entries: tuple[_Entry, ...]) -> set[str]:
    found: set[str] = set()
    more = {name}
    while more:
        found |= more
        more = {each.name for each in entries if each.via & found} - found
    return found


def _part(entries: tuple[_Entry, ...], names: set[str], purpose: str) -> str:
    chosen = [each.text for each in entries if each.name in names]
    if not chosen:
        raise DevkitError(
            f"requirements.lock does not hold {', '.join(sorted(names))}", "Renew it with `devkit init --lock`."
        )
    return "\n".join([f"# The part of requirements.lock that holds {purpose}.", *chosen, ""])


def _of_project(settings: ContainerSettings) -> Iterator[str]:
    for need in select_requirements_to_lock(settings.dependencies):
        if need.url and not need.url.startswith("https://"):
            raise DevkitError(
                f"{need.origin} takes {need.name} from a place that has no hash, so it cannot be locked",
                "Take it from an index or as an archive by https, or lock the image alone: "
                "devkit init --lock-only image",
            )
        yield need.text


def _of_devkit(settings: ContainerSettings) -> Iterator[str]:
    """What devkit needs in the image; devkit itself too, where the index has it. Its other forms are their own lock."""
    if isinstance(settings.source, FromCheckout):
        return
    if isinstance(settings.source, FromIndex):
        yield f"{DISTRIBUTION}=={settings.source.version}"
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield str(requirement)


# What holds an image to exact files: the Python lock and the base image's digest, as they lie in a project.

IMAGE_LOCK_PATH = f"{DEVCONTAINER_FOLDER}/image.lock"
PYTHON_LOCK_PATH = f"{DEVCONTAINER_FOLDER}/requirements.lock"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageLocks:
    """The text of requirements.lock, and the base image as `reference@sha256:…`; "" for what is not locked."""

    python: str = ""
    image: str = ""


def parse_image_locks(python: bytes | None, image: bytes | None) -> ImageLocks:
    """The locks in what the two files hold, None for one that is not there. Raises DevkitError when they are none."""
    try:
        lines = (image or b"").decode("ascii").splitlines()
        return ImageLocks(
            (python or b"").decode(), next((line for line in lines if line and not line.startswith("#")), "")
        )
    except UnicodeDecodeError:
        raise DevkitError(f"a lock in {DEVCONTAINER_FOLDER} is damaged", _RENEW) from None


def apply_image_locks(settings: ContainerSettings, plan: Plan, locks: ImageLocks) -> ContainerSettings:
    """The settings with these locks. Raises DevkitError for a lock that was made for another plan."""
    for reason in explain_stale_locks(settings, plan, locks).values():
        raise DevkitError(reason, _RENEW)
    digest = locks.image.partition("@")[2]
    if digest and not _DIGEST.fullmatch(digest):
        raise DevkitError(f"{IMAGE_LOCK_PATH} is damaged: {digest!r} is no digest", _RENEW)
    return replace(settings, python_lock=locks.python, image_digest=digest)


def explain_stale_locks(settings: ContainerSettings, plan: Plan, locks: ImageLocks) -> dict[str, str]:
    """Why parts of the locks were made for another plan, by the parts' names: "python", "image"."""
    found: dict[str, str] = {}
    if locks.python and (reason := find_lock_mismatch(locks.python, collect_lock_requirements(plan, settings))):
        found["python"] = f"{PYTHON_LOCK_PATH} does not fit: {reason}"
    reference = locks.image.partition("@")[0]
    if locks.image and reference != plan.base_image:
        found["image"] = f"{IMAGE_LOCK_PATH} holds {reference}, the plan is built on {plan.base_image}"
    return found


def render_image_locks(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """The files that hold an image to exact files, where the settings have any."""
    yield from render_python_lock_files(plan, settings)
    if settings.image_digest:
        header = (
            f"# Written by devkit {__version__}: the base image by its digest. Renew it with `devkit init --lock`.\n"
        )
        yield Artifact.from_text(IMAGE_LOCK_PATH, f"{header}{plan.base_image}@{settings.image_digest}\n")


_RENEW = "Renew the locks with `devkit init --lock`, or give them up with `devkit init --no-lock`."
