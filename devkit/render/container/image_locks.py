"""The lock files of an image: the hashes of its packages, and image.lock with its base's digest.

requirements.lock holds the packages of the project's environment, tools.lock uv and what devkit needs in its own. Both
are uv's output, under a header with the requirements that they were made for. So any machine can tell, without a
network, whether they fit a plan. torch.lock and installer.lock are parts of them: a layer must see no more than it
installs, or one more requirement would rebuild torch's.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

from devkit.compat.specifiers import canonicalize_name
from devkit.errors import DevkitError
from devkit.facts.dependencies import RequirementRole
from devkit.release import __version__
from devkit.render.container.devcontainer import find_linter
from devkit.render.container.packages import (
    DEVKIT_PYTHON,
    INSTALLER,
    find_installer_version,
    list_added_packages,
    select_requirements_to_lock,
)
from devkit.render.container.settings import ContainerSettings, FromCheckout, FromIndex
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.wheel import DISTRIBUTION
from devkit.solver.plan import Plan

IMAGE_LOCK_PATH = f"{DEVCONTAINER_FOLDER}/image.lock"
PYTHON_LOCK_PATH = f"{DEVCONTAINER_FOLDER}/requirements.lock"
TOOLS_LOCK_PATH = f"{DEVCONTAINER_FOLDER}/tools.lock"
_MADE_FOR = "# made for: "
_HEADER = (
    f"# Written by devkit {__version__}: every package of an environment, with the SHA-256 of its files.\n"
    "# Renew it with `devkit init --lock`.\n"
)
_RENEW = "Renew the locks with `devkit init --lock`, or remove them with `devkit init --no-lock`."
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^]]*\])? ?(?:==|@)", re.ASCII)
_VIA = re.compile(r"^    # via (?P<names>.*)$")


@dataclass(frozen=True)
class ImageLocks:
    """The texts of requirements.lock and tools.lock, and the base image as `reference@sha256:…`.

    "" for a part that is not locked.
    """

    python: str = ""
    image: str = ""
    tools: str = ""


def parse_image_locks(python: bytes | None, image: bytes | None, tools: bytes | None = None) -> ImageLocks:
    """Parse the files, None for one that is missing. Raises DevkitError when they are damaged."""
    try:
        lines = (image or b"").decode("ascii").splitlines()
        reference = next((line for line in lines if line and not line.startswith("#")), "")
        return ImageLocks((python or b"").decode(), reference, (tools or b"").decode())
    except UnicodeDecodeError:
        raise DevkitError(f"a lock in {DEVCONTAINER_FOLDER} is damaged", _RENEW) from None


def apply_image_locks(settings: ContainerSettings, plan: Plan, locks: ImageLocks) -> ContainerSettings:
    """Return the settings with these locks. Raises DevkitError for a lock that was made for another plan."""
    for reason in explain_stale_locks(settings, plan, locks).values():
        raise DevkitError(reason, _RENEW)
    digest = locks.image.partition("@")[2]
    if digest and not _DIGEST.fullmatch(digest):
        raise DevkitError(f"{IMAGE_LOCK_PATH} is damaged: {digest!r} is not a digest", _RENEW)
    return replace(settings, python_lock=locks.python, tools_lock=locks.tools, image_digest=digest)


def explain_stale_locks(settings: ContainerSettings, plan: Plan, locks: ImageLocks) -> dict[str, str]:
    """Return the reasons why parts of the locks do not fit the plan, by the parts' names: "python", "image"."""
    found: dict[str, str] = {}
    if locks.python or locks.tools:
        for path, text, wanted in (
            (PYTHON_LOCK_PATH, locks.python, collect_lock_requirements(plan, settings)),
            (TOOLS_LOCK_PATH, locks.tools, collect_tool_requirements(plan, settings)),
        ):
            if reason := find_lock_mismatch(text, wanted):
                found.setdefault("python", f"{path} does not fit: {reason}")
    reference = locks.image.partition("@")[0]
    if locks.image and reference != plan.base_image:
        found["image"] = f"{IMAGE_LOCK_PATH} contains {reference}, but the plan uses {plan.base_image}"
    return found


@dataclass(frozen=True)
class LockRequirements:
    """The requirements of a lock, and the Python and the machines that they are for.

    `variant` is the name of torch's index, such as cu130, "" for no torch: such a lock is for every later Python, too.
    `constraints` limit versions and install nothing.
    """

    python: str
    machines: tuple[str, ...]
    variant: str
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of a lock's header."""
        machines = f"on {', '.join(self.machines)}"
        target = (
            (f"Python {self.python} {machines}", f"torch of {self.variant}")
            if self.variant
            else (f"Python {self.python} or later {machines}",)
        )
        return (*target, *self.requirements, *(f"no other {each}" for each in self.constraints))

    @property
    def requires_python(self) -> str:
        """The versions of Python, as a specifier."""
        return f"=={self.python}.*" if self.variant else f">={self.python}"

    @property
    def environments(self) -> tuple[str, ...]:
        """The Python on each of the machines, as a PEP 508 marker."""
        python = f"python_version {'==' if self.variant else '>='} '{self.python}' and sys_platform == 'linux'"
        return tuple(f"{python} and platform_machine == '{machine}'" for machine in self.machines)


def collect_lock_requirements(plan: Plan, settings: ContainerSettings) -> LockRequirements:
    """Collect the requirements of the plan and the project's files.

    Raises: DevkitError for a package of the project that no hash can pin.
    """
    lines = {requirement for requirement, _ in list_added_packages(plan)}
    lines.update(f"{name}=={version}" for name, version in plan.packages if name == "torch")
    overrides = {each.partition("==")[0]: each for each in plan.overrides}
    for need in select_requirements_to_lock(plan, settings):
        if need.url and not need.url.startswith("https://"):
            raise DevkitError(
                f"{need.origin} gets {need.name} from a source without a hash, so it cannot be locked",
                "Use an index or an https archive, or lock only the image: devkit init --lock-only image",
            )
        lines.add(overrides.get(need.name, need.text))
    constraints = {*plan.limits}
    if not settings.dependencies.is_locked:
        limits = (need for need in settings.dependencies.needs if need.role is RequirementRole.CONSTRAINT)
        constraints |= {f"{need.name}{need.specifier}" for need in limits if need.specifier and not need.marker}
    return LockRequirements(
        plan.python, plan.architectures, plan.variant, tuple(sorted(lines)), tuple(sorted(constraints))
    )


def collect_tool_requirements(plan: Plan, settings: ContainerSettings) -> LockRequirements:
    """Collect the requirements of the environments outside the project's: uv, and what devkit needs."""
    lines = {f"{INSTALLER}=={find_installer_version(plan)}", *_collect_devkit_requirements(settings)}
    lines |= {linter} if (linter := find_linter(settings)) else set()
    return LockRequirements(DEVKIT_PYTHON, plan.architectures, "", tuple(sorted(lines)))


def _collect_devkit_requirements(settings: ContainerSettings) -> Iterator[str]:
    """Yield the requirements of devkit in the image, and devkit itself where the index has it."""
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


def find_lock_mismatch(text: str, wanted: LockRequirements) -> str:
    """Return the reason why a lock does not fit the requirements, "" when it does."""
    has = [line.removeprefix(_MADE_FOR) for line in text.splitlines() if line.startswith(_MADE_FOR)]
    surplus = [line for line in has if line not in wanted.lines]
    for line in wanted.lines:
        if line not in has:
            name = re.split(r"[^\w.-]", line)[0]
            before = [each for each in surplus if re.split(r"[^\w.-]", each)[0] == name]
            return f"it was made for {before[0]}, but the plan has {line}" if before else f"it does not contain {line}"
    return f"it was made for {surplus[0]}, which the plan does not include" if surplus else ""


def render_python_lock(wanted: LockRequirements, resolved: str) -> str:
    """Render requirements.lock or tools.lock from uv's output."""
    made_for = "".join(f"{_MADE_FOR}{line}\n" for line in wanted.lines)
    return f"{_HEADER}{made_for}\n{resolved.strip()}\n"


def render_image_locks(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the lock files of the settings, and their parts. Raises DevkitError."""
    if settings.python_lock:
        entries = tuple(_parse_entries(settings.python_lock))
        torch: set[str] = set()
        more = {"torch"}
        while more:
            torch |= more
            more = {entry.name for entry in entries if entry.via & torch} - torch
        parts = {
            "requirements.lock": settings.python_lock,
            "torch.lock": _render_part("requirements.lock", entries, torch, "torch and its requirements"),
            "tools.lock": settings.tools_lock,
            "installer.lock": _render_part(
                "tools.lock",
                tuple(_parse_entries(settings.tools_lock)),
                {INSTALLER},
                "the packages that install the others",
            ),
        }
        yield from (Artifact.from_text(f"{DEVCONTAINER_FOLDER}/{name}", text) for name, text in parts.items())
    if settings.image_digest:
        header = (
            f"# Written by devkit {__version__}: the base image by its digest. Renew it with `devkit init --lock`.\n"
        )
        yield Artifact.from_text(IMAGE_LOCK_PATH, f"{header}{plan.base_image}@{settings.image_digest}\n")


@dataclass(frozen=True)
class _Entry:
    """A package of a lock, and the packages that require it."""

    name: str
    text: str
    via: frozenset[str]


def _parse_entries(text: str) -> Iterator[_Entry]:
    """Yield the entries; a package may have several, each for another machine."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if block and not line.startswith(" "):
            found = _ENTRY.match(block[0])
            via = next((match["names"] for each in block if (match := _VIA.match(each))), "")
            names = frozenset(canonicalize_name(name) for name in re.split(r",\s*", via) if name)
            yield _Entry(canonicalize_name(found["name"]) if found else "", "\n".join(block), names)
            block = []
        if block or _ENTRY.match(line):
            block.append(line)


def _render_part(whole: str, entries: tuple[_Entry, ...], names: set[str], purpose: str) -> str:
    chosen = [entry.text for entry in entries if entry.name in names]
    if not chosen:
        raise DevkitError(f"{whole} does not hold {', '.join(sorted(names))}", "Renew it with `devkit init --lock`.")
    return "\n".join([f"# The part of {whole} that contains {purpose}.", *chosen, ""])
