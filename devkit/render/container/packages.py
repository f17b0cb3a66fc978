"""The commands by which the image installs Python packages: the plan's, and the project's own.

The project's packages are installed with the project's tool, and without touching the plan's torch.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.dependencies import (
    PUBLIC_INDEX,
    SETTINGS_FILE,
    TORCH_FAMILY,
    Dependencies,
    IndexUse,
    PackageManager,
    PackageRequirement,
    RequirementRole,
    RequirementSources,
    Resolved,
)
from devkit.facts.project import is_below_index
from devkit.probe.host import decode_text
from devkit.probe.package_indexes import PUBLISHERS
from devkit.release import __version__
from devkit.render.container.compiled import build_compile_commands, list_build_limits
from devkit.render.container.settings import (
    ContainerSettings,
    find_torch_index,
    format_comment,
    format_reason_comment,
    may_need_login,
    require_safe,
)
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact, read_file
from devkit.solver.plan import Plan, Vendor
from devkit.solver.project import list_torch_siblings

INSTALLER = "uv"
CONSTRAINTS = "constraints.txt"
"""The versions that the image holds, beside the Dockerfile."""
DEVKIT_PYTHON = "3.11"
"""The oldest Python that devkit itself runs on, whatever the project's is."""
BUILT_FOR_TORCH = TORCH_FAMILY[1:]
CONSTRAINED = ("torch", *BUILT_FOR_TORCH, "triton", "pytorch-triton[a-z-]*", "(nvidia|cuda)-[a-z0-9-]+")
"""Patterns of the packages that come with torch; another version of one of these would break it."""

KEEP_TORCH = f"^({'|'.join(CONSTRAINED)})=="
"""A pattern for the lines of `uv pip freeze` that constrain what is installed later."""

_CACHE = "--mount=type=cache,id=devkit-uv,target=/root/.cache/uv"
_LOGIN = "--mount=type=secret,id=netrc,target=/root/.netrc"
_WHEELHOUSE = "--mount=type=bind,from=wheelhouse,target=/mnt/wheelhouse"
_FROM_WHEELHOUSE = "--no-index --find-links=/mnt/wheelhouse "
_REQUIRE_HASHES = "--require-hashes "
_PROJECT = "/mnt/project"
_PYPROJECT = "pyproject.toml"
_EXPORTED = "/mnt/work/exported.txt"
_WORK = "/mnt/work"
_WRITTEN = "project.txt"
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_INDEX_NAME = re.compile(r"[\w.-]+", re.ASCII)
_LINE_LENGTH = 110
_DROP_LOCAL = f" && sed -i -E '/(^-e |@ )file:/d' {_EXPORTED}"
"""Drops the project's own folders, which the build does not see."""


@dataclass(frozen=True)
class InstallCommands:
    """Words of the Dockerfile's RUN instructions. Options end with a space where others follow them.

    `mounts` belong to every installation, `source` names the origin of its wheels. `torch` and `packages` are options
    of two of them. `torch_fits` is a condition of the shell that holds for the planned build of torch, `$version` being
    its version.py. `machines` are those that a lock is for.
    """

    mounts: str
    source: str
    installer: str
    torch: str
    torch_fits: str
    device: str
    packages: str
    added: tuple[tuple[str, str], ...]
    is_locked: bool
    machines: tuple[str, ...]


def build_install_commands(plan: Plan, settings: ContainerSettings) -> InstallCommands:
    """Build the commands that install the plan's packages. Raises DevkitError for an invalid version."""
    is_locked = bool(settings.python_lock)
    index = find_torch_index(plan, settings)
    mounts = [_CACHE]
    mounts += [_WHEELHOUSE] if settings.uses_wheelhouse else []
    mounts += [_LOGIN] if may_need_login(settings) else []
    if is_locked:
        # Either index may offer a package, because the hashes alone decide which file is the right one.
        own = "".join(f"{option} " for option in build_index_options(settings))
        indexes = "" if settings.uses_wheelhouse else f"--index={index} {own}--index-strategy=unsafe-best-match "
        packages = f"{indexes}{_REQUIRE_HASHES}"
        torch = f"{packages}--requirement=/mnt/torch.lock"
    else:
        # The index is explicit: a build alone finds no GPU, and would take torch for the CPU.
        packages = ""
        torch = f"{'' if settings.uses_wheelhouse else f'--default-index={index} '}torch=={plan.torch}"
    torch_fits, device = _build_torch_check(plan)
    return InstallCommands(
        mounts=" \\\n    ".join(mounts),
        source=_FROM_WHEELHOUSE if settings.uses_wheelhouse else "",
        installer=f"{INSTALLER}=={find_installer_version(plan)}",
        torch=torch,
        torch_fits=torch_fits,
        device=device,
        packages=packages,
        added=() if is_locked else tuple(list_added_packages(plan)),
        is_locked=is_locked,
        machines=plan.architectures,
    )


def list_added_packages(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the requirement of each package that the plan adds to torch, and its reason as a comment."""
    for name, version in plan.packages:
        if name not in ("torch", INSTALLER):
            yield f"{name}=={version}", format_reason_comment(plan, name)


def find_installer_version(plan: Plan) -> str:
    """Return the version of uv that the user pinned, or the one in the tables."""
    pinned = dict(plan.packages).get(INSTALLER)
    return require_safe("version", pinned) if pinned else _find_tool_version(INSTALLER)


def _find_tool_version(tool: str) -> str:
    return require_safe("version", next(row.version for row in load_tables().images.tools if row.name == tool))


def _build_torch_check(plan: Plan) -> tuple[str, str]:
    """Return the condition of `InstallCommands.torch_fits`, and the name of the device; "" for a plan without torch."""
    if not plan.torch:
        return "", ""
    if plan.vendor is Vendor.CPU:
        return """! grep -Eq "^(cuda|hip).*'" $version""", "the CPU"
    if plan.cuda:
        cuda = require_safe("version", plan.cuda)
        return f"""grep -q "^cuda.*'{re.escape(cuda)}'" $version""", f"CUDA {cuda}"
    # HIP has ROCm's first two numbers; the third is a separate count: ROCm 6.2.4 says 6.2.41134.
    rocm = ".".join(require_safe("version", plan.variant).removeprefix("rocm").split(".")[:2])
    return f"""grep -q "^hip.*'{re.escape(rocm)}\\." $version""", f"ROCm {rocm}"


@dataclass(frozen=True)
class ProjectInstallCommands:
    """Words of the Dockerfile's RUN instructions for the project's packages. Empty ones have nothing to do.

    `files` are bind-mounted from the project's folder. `written` are words of the shell, requirements of files that
    no installer can read alone, and `written_from` a comment with their places. `siblings` are requirements of
    packages that are built for one torch, `sibling_source` the options of their index. `export` writes the packages
    of a lock, except `excluded`, which others bring. `overrides` replace versions that the files require. `requirements`
    are the installer's options, `has_sources` says whether a list among them may bind torch to an index, `uses_scratch`
    whether the step writes files; `has_limits` says whether there is a file of constraints, and `build_limits` are words
    of the shell, those on what builds a
    source distribution. `additions` are requirements that bring a framework its CUDA.
    """

    files: tuple[str, ...] = ()
    written: str = ""
    written_to: str = ""
    written_from: str = ""
    siblings: str = ""
    sibling_source: str = ""
    export: str = ""
    overrides: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    has_sources: bool = False
    uses_scratch: bool = False
    has_limits: bool = False
    build_limits: str = ""
    additions: str = ""

    def __bool__(self) -> bool:
        return bool(self.requirements or self.additions)


def build_project_install_commands(
    plan: Plan, settings: ContainerSettings, install: InstallCommands
) -> ProjectInstallCommands:
    """Build the commands that install the project's own requirements. Raises DevkitError for an invalid version."""
    found = settings.dependencies
    export = _build_export_command(found, settings, install)
    if settings.python_lock and not export:
        return ProjectInstallCommands()  # requirements.lock holds them, with their hashes.
    written = _list_written_requirements(found)
    written_to, lines = _build_written_list(found)
    indexes = build_index_options(settings)
    siblings = list_torch_siblings(found, machines=plan.architectures, python=plan.python) if plan.torch else ()
    pinned = {name: f"{name}=={version}" for name, version in plan.resolved.items()}
    names = [re.split(r"[^\w-]", text)[0] for text in siblings]
    is_resolved = all(name in pinned for name in names)
    siblings = tuple(pinned[name] for name in names) if is_resolved else siblings
    order = () if settings.uses_wheelhouse else tuple(_build_index_order(found, settings.index))
    # The other tools write their indexes into what they export.
    requirements: tuple[str, ...] = (f"--requirement={_EXPORTED}", *(indexes if found.lock == "uv.lock" else ()))
    if not export:
        requirements = (
            *(f"--requirement={_PROJECT}/{path}" for path in found.lists),
            *(require_safe("index option", each) for each in dict.fromkeys((*indexes, *order))),
            *_build_choice_options(found, folder=f"{_PROJECT}/"),
            *([f"--requirement={_WORK}/{written_to}"] if written else []),
            # Installed before without what they need: that comes from the same indexes as everything else.
            *(shlex.quote(text) for text in siblings),
        )
    if not (requirements or plan.additions):
        return ProjectInstallCommands()
    index = "" if settings.uses_wheelhouse else f"--default-index={find_torch_index(plan, settings)} "
    files: tuple[str, ...] = (*found.lists, *found.included)
    excluded = build_compile_commands(plan, settings).excluded
    if export:
        files = ("Pipfile" if found.tool is PackageManager.PIPENV else "pyproject.toml", found.lock)
        # uv follows the requirements of excluded packages itself.
        family = () if found.tool is PackageManager.UV and not found.has_members else found.torch_family
        of_torch = ("torch", *BUILT_FOR_TORCH, *family) if plan.torch else ()
        excluded = tuple(dict.fromkeys((*of_torch, *excluded)))
    limits = [require_safe("limit on versions", each) for each in list_build_limits(plan)]
    return ProjectInstallCommands(
        files=files,
        written=_fold(lines),
        written_to=f"{_WORK}/{written_to}",
        written_from=format_comment(", ".join(dict.fromkeys(written.values()))),
        siblings=" ".join(f'"{text}"' for text in siblings),
        # Without its requirements, a package that is not pinned would be the newest, for any torch.
        sibling_source=f"{'--no-deps ' if is_resolved or export else ''}{index}",
        export=export,
        overrides=tuple(require_safe("limit on versions", each) for each in plan.overrides),
        excluded=excluded,
        requirements=requirements,
        has_sources=any(path.endswith(".toml") for path in found.lists),
        uses_scratch=bool(written or export or excluded or plan.overrides),
        has_limits=has_constraints(plan, settings) and not export,
        build_limits=_fold(limits) if requirements else "",
        additions=" ".join(f'"{require_safe("requirement", text)}"' for text in plan.additions),
    )


def has_constraints(plan: Plan, settings: ContainerSettings) -> bool:
    """Return whether the image is built with a file of constraints: a lock with hashes holds all versions itself."""
    found = settings.dependencies
    holds_torch = plan.torch and (found.lists or _list_written_requirements(found))
    return bool(plan.limits or holds_torch) and not settings.python_lock and not found.is_locked


def render_constraints(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the versions that the image holds: torch's always, so that no package can replace it."""
    if has_constraints(plan, settings):
        limits = {*plan.limits, *([f"torch=={plan.torch}"] if plan.torch else [])}
        hashes = dict(settings.hashes)
        if isinstance(plan.resolution, Resolved):
            versions = dict(plan.resolution.packages)
            found = (each for each in plan.resolution.hashes if each[0] in versions)
            hashes |= {f"{name}=={versions[name]}": files for name, files in found}
        # torch comes from its own index, whose files are others.
        hashes = {limit: files for limit, files in hashes.items() if limit.partition("==")[0] not in TORCH_FAMILY}
        if settings.uses_wheelhouse:
            hashes = {}  # its wheels may have been built locally, with other hashes
        lines = "".join(
            " ".join(
                [require_safe("limit on versions", limit), *(f"--hash=sha256:{each}" for each in hashes.get(limit, ()))]
            )
            + "\n"
            for limit in sorted(limits)
        )
        header = (
            f"# Written by devkit {__version__}: the versions that every image build installs, by the hash of their files.\n"
            "# `devkit update` renews them; `devkit init --set no_hold=true` leaves them unpinned.\n"
        )
        yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/{CONSTRAINTS}", f"{header}{lines}")


def parse_constraint_hashes(text: str) -> dict[str, tuple[str, ...]]:
    """Parse the hashes in a file of constraints, by the version that they belong to."""
    lines = (line.split() for line in text.splitlines())
    return {
        words[0]: hashes
        for words in lines
        if words
        and (hashes := tuple(each.removeprefix("--hash=sha256:") for each in words[1:] if _HASH.fullmatch(each)))
    }


def _fold(texts: Iterable[str]) -> str:
    """Format texts as words of the shell, on as few lines of the Dockerfile as they fit on."""
    lines: list[str] = []
    for word in map(shlex.quote, texts):
        if lines and len(lines[-1]) + len(word) < _LINE_LENGTH:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n        ".join(lines)


def _build_choice_options(found: Dependencies, *, folder: str = "") -> Iterator[str]:
    """Build uv's options for a pyproject.toml that is one of the lists."""
    if _PYPROJECT not in found.lists:
        return
    passed = (need for need in found.needs if need.role is RequirementRole.PASSED_THROUGH)
    groups = {need.group for need in passed if need.path == _PYPROJECT}
    for group in (group for group in found.groups if group in groups):
        yield f"--group={folder}{_PYPROJECT}:{require_safe('package name', group)}"
    yield from (f"--extra={require_safe('package name', extra)}" for extra in found.extras)


def _build_index_order(found: Dependencies, mirror: str = "") -> Iterator[str]:
    """Build uv's options for the order of the indexes that the lists name. `mirror` replaces the public index, "" for none.

    Lists are written for pip, which takes the best version of all indexes: so could anybody who publishes a newer package
    of a private name. uv takes a package from the first index that has it. Source: https://docs.astral.sh/uv/concepts/indexes/.
    """
    lists = {*found.lists, *found.included} - {_PYPROJECT}
    named = [each for each in found.indexes if each.path in lists]
    private = [
        each
        for each in named
        if each.is_third_party and each.use is not IndexUse.LINKS and not is_below_index(each.url, PUBLISHERS)
    ]
    if not private:
        if any(each.use is not IndexUse.DEFAULT or not each.is_third_party for each in named):
            yield "--index-strategy=unsafe-best-match"
        return
    public = [each.url.rstrip("/") for each in named if each.use is IndexUse.EXTRA and each not in private]
    if public:
        # An index of torch has old releases of other packages as well.
        yield from (f"--index={each.url}" for each in sorted(private, key=lambda each: each.use is IndexUse.DEFAULT))
        if PUBLIC_INDEX in public or all(each.use is not IndexUse.DEFAULT for each in private):
            yield f"--index={mirror or PUBLIC_INDEX}"


def build_index_options(settings: ContainerSettings) -> tuple[str, ...]:
    """Build uv's options for the project's own indexes in the image. Raises DevkitError for an invalid address."""
    if settings.uses_wheelhouse:
        return ()
    options = _build_index_options(settings.dependencies, has_mirror=bool(settings.index))
    return tuple(require_safe("index option", option) for option in options)


def _build_index_options(found: Dependencies, *, has_mirror: bool = False) -> Iterator[str]:
    """Build uv's options for the indexes of files that it is not handed, or whose settings it reads for a working folder alone.

    uv takes a package from the first index that has it, and from the default one last. A mirror replaces that.
    """
    read = {*found.lists, *found.included} - {_PYPROJECT}
    indexes = [
        each
        for each in found.indexes
        if each.is_third_party
        and each.use is not IndexUse.EXPLICIT
        and (each.path not in read or (has_mirror and each.use is IndexUse.DEFAULT))
    ]
    last = next((each for each in reversed(indexes) if each.use is IndexUse.DEFAULT), None)
    for each in indexes:
        option = "default-index" if each is last and not has_mirror else "index"
        if each.use is IndexUse.LINKS:
            yield f"--find-links={each.url}"
        else:
            yield f"--{option}={f'{each.name}=' if _INDEX_NAME.fullmatch(each.name) else ''}{each.url}"


def _build_written_list(found: Dependencies) -> tuple[str, list[str]]:
    """Build the file of the requirements that devkit writes out: its name, and its lines.

    It is a list, or a pyproject.toml where a requirement is bound to an index, which a list cannot say.
    """
    written = list(_list_written_requirements(found))
    indexes, sources = list_bound_packages(found, roles=(RequirementRole.GENERATED,))
    if not sources:
        return _WRITTEN, written
    import tomlkit

    project = {"name": "written", "version": "0", "dependencies": written}
    document = {"project": project, "tool": {"uv": {"index": indexes, "sources": sources}}}
    return _PYPROJECT, tomlkit.dumps(document).splitlines()


def list_bound_packages(
    found: Dependencies, *, roles: Collection[RequirementRole]
) -> tuple[list[dict[str, object]], dict[str, dict[str, str]]]:
    """List the indexes that requirements of these roles are bound to, and which each is bound to, as [tool.uv] has both."""
    needs = (need for need in found.needs if need.role in roles and need.name not in TORCH_FAMILY)
    bound = {need.name: need.index for need in needs if need.index}
    indexes = {each.name: each for each in found.indexes if each.name in bound.values() and each.is_third_party}
    tables: list[dict[str, object]] = [
        {"name": each.name, "url": each.url, "explicit": each.use is IndexUse.EXPLICIT} for each in indexes.values()
    ]
    # uv refuses a package that is bound to an index which no file defines; it must come from no other.
    defined = {each.name for each in found.indexes} - indexes.keys() | {"pypi", "PyPI"}
    return tables, {name: {"index": index} for name, index in bound.items() if index not in defined}


def read_requirement_sources(root: Path, found: Dependencies) -> RequirementSources:
    """Read what the image's installer is given of a project. Raises DevkitError for a file outside it."""
    texts = ((path, read_file(root, path)) for path in (*found.lists, *found.included))
    needs = (need for need in found.needs if need.role is not RequirementRole.CONSTRAINT)
    files = [(path, decode_text(content)) for path, content in texts if content is not None]
    name, lines = _build_written_list(found)
    bound = [(f"written/{name}", "\n".join(lines))] if name == _PYPROJECT else []
    return RequirementSources(
        files=(*files, *bound),
        lists=(*found.lists, *(path for path, _ in bound)),
        options=tuple(
            dict.fromkeys((*_build_index_options(found), *_build_index_order(found), *_build_choice_options(found)))
        ),
        lines=() if bound else tuple(lines),
        indexes=found.indexes,
        unchecked=tuple(dict.fromkeys(need.name for need in needs if need.url and need.name not in TORCH_FAMILY)),
    )


def _build_export_command(found: Dependencies, settings: ContainerSettings, install: InstallCommands) -> str:
    """Return the command that writes the lock as a list with hashes. A lock that is out of date ends the build."""
    run = f"uv tool run {install.source}"
    extras = "".join(f" --extra={require_safe('package name', name)}" for name in found.extras)
    groups = "".join(f" --group={require_safe('package name', name)}" for name in found.groups)
    if not found.is_locked:
        return ""
    match found.tool:
        case PackageManager.UV:
            is_checked = found.can_check_lock and not settings.index and not settings.uses_wheelhouse
            checked = "--locked" if is_checked else "--frozen"
            # uv has no option for "all packages of the workspace without torch's".
            which = " --all-packages" if found.has_members else " --prune=torch" if install.torch_fits else ""
            return (
                f"uv export --project={_PROJECT} {checked}{which}{extras}{groups} --no-emit-workspace --no-emit-local --no-header"
                f" --no-annotate --output-file={_EXPORTED} >/dev/null"
            )
        case PackageManager.POETRY:
            plugin = f"--with=poetry-plugin-export=={_find_tool_version('poetry-plugin-export')}"
            return (
                f"{run}--from=poetry=={_find_tool_version('poetry')} {plugin} poetry export --project={_PROJECT}"
                f"{extras.replace('--extra', '--extras')}{groups.replace('--group', '--with')}"
                f" --format=requirements.txt --output={_EXPORTED}{_DROP_LOCAL if found.local else ''}"
            )
        case PackageManager.PDM:
            return (
                f"PDM_CHECK_UPDATE=0 {run}pdm=={_find_tool_version('pdm')} export --project={_PROJECT}"
                f"{extras.replace('--extra', '--group')}{groups}"
                f" --format=requirements --output={_EXPORTED}{_DROP_LOCAL if found.local else ''}"
            )
        case _:
            # Its first line names the public index, in whose place there may be another one.
            program = f"PIPENV_PIPFILE={_PROJECT}/Pipfile {run}pipenv=={_find_tool_version('pipenv')}"
            return f"{program} requirements --dev --hash >{_EXPORTED} && sed -i '/^-i /d' {_EXPORTED}"


def find_export_tools(settings: ContainerSettings) -> tuple[str, ...]:
    """Find the programs that the build fetches only to read the project's lock, as requirements."""
    tools = {
        PackageManager.POETRY: ("poetry", "poetry-plugin-export"),
        PackageManager.PDM: ("pdm",),
        PackageManager.PIPENV: ("pipenv",),
    }
    found = settings.dependencies
    return tuple(
        f"{name}=={_find_tool_version(name)}" for name in (tools.get(found.tool, ()) if found.is_locked else ())
    )


def _list_written_requirements(found: Dependencies) -> dict[str, str]:
    """Return the requirements that no installer could read for itself, limited to the versions of a lock: line -> origin.

    Where a lock is installed these are the packages of devkit.toml alone. Raises DevkitError for one that is not a line.
    """
    limits: dict[str, list[str]] = {}
    for need in found.needs:
        if need.role is RequirementRole.CONSTRAINT and need.specifier and not need.marker:
            limits.setdefault(need.name, []).append(need.specifier)
    lines = {}
    for need in found.needs:
        is_written = need.role is RequirementRole.GENERATED and (need.path == SETTINGS_FILE or not found.is_locked)
        if is_written and need.name not in ("torch", *BUILT_FOR_TORCH):
            extras = f"[{','.join(need.extras)}]" if need.extras else ""
            specifier = ",".join(filter(None, (need.specifier, *limits.get(need.name, []))))
            marker = f" ; {need.marker}" if need.marker else ""
            lines[need.text if need.url else f"{need.name}{extras}{specifier}{marker}"] = need.origin
    for line, origin in lines.items():
        if not line.isprintable():
            raise DevkitError(f"{origin} requires {line!r}, which must be one line of text", "Correct it there.")
    return lines


def select_requirements_to_lock(plan: Plan, settings: ContainerSettings) -> tuple[PackageRequirement, ...]:
    """Select the project's requirements for the image's lock: none where the project has its own lock.

    What compiles is built again in each image, so it has no file to take a hash of.
    """
    found, compiled = settings.dependencies, build_compile_commands(plan, settings).excluded
    if found.is_locked:
        return ()
    return tuple(
        need for need in found.needs if need.role is not RequirementRole.CONSTRAINT and need.name not in compiled
    )
