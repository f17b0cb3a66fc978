"""How the image installs the project's own packages: with the project's tool, and without touching the plan's torch."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from devkit import __version__
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import (
    LOCAL_TO_PROJECT,
    Dependencies,
    PackageManager,
    PackageRequirement,
    RequirementRole,
)
from devkit.render.container.network import find_torch_index, may_need_login
from devkit.render.container.settings import ContainerSettings, require_safe
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.solver.plan import Plan, Vendor
from devkit.solver.project import list_project_constraints

# How the image installs Python packages: with what, from where, and held to which hashes.

INSTALLER = "uv"
_CACHE = "--mount=type=cache,id=devkit-uv,target=/root/.cache/uv"
_LOGIN = "--mount=type=secret,id=netrc,target=/root/.netrc"
_WHEELHOUSE = "--mount=type=bind,from=wheelhouse,target=/mnt/wheelhouse"
_FROM_WHEELHOUSE = "--no-index --find-links=/mnt/wheelhouse "
_REQUIRE_HASHES = "--require-hashes "


@dataclass(frozen=True)
class InstallCommands:
    """Words of the Dockerfile's RUN instructions. Options end with a space where others follow them.

    `mounts` are what every installation sees, and `source` where its wheels come from. `torch` and `packages` are
    options of two of them. `torch_fits` is an expression of Python. `machines` are those that a lock is for.
    """

    mounts: str
    source: str
    installer: str
    torch: str
    torch_fits: str
    device: str
    packages: str
    requirements: str
    is_locked: bool
    machines: tuple[str, ...]


def build_install_commands(plan: Plan, settings: ContainerSettings) -> InstallCommands:
    """How to install the plan's packages with these settings. Raises DevkitError for a version that is none."""
    locked = bool(settings.python_lock)
    torch_fits, device = _torch_fits(plan)
    return InstallCommands(
        mounts=_build_mounts(settings),
        source=_FROM_WHEELHOUSE if settings.uses_wheelhouse else "",
        installer=f"{INSTALLER}=={find_installer_version(plan)}",
        torch=_build_torch_command(plan, settings),
        torch_fits=torch_fits,
        device=device,
        packages=_build_locked_command(plan, settings) if locked else "",
        requirements="requirements.lock" if locked else "requirements.txt",
        is_locked=locked,
        machines=plan.architectures,
    )


def find_installer_version(plan: Plan) -> str:
    """The version of uv that the user pinned, or the one in the tables."""
    pinned = dict(plan.packages).get(INSTALLER)
    row = next(row for row in load_tables().images.tools if row.name == INSTALLER)
    return require_safe("version", pinned or row.version)


def _build_mounts(settings: ContainerSettings) -> str:
    mounts = [_CACHE]
    mounts += [_WHEELHOUSE] if settings.uses_wheelhouse else []
    mounts += [_LOGIN] if may_need_login(settings) else []
    return " \\\n    ".join(mounts)


def _build_torch_command(plan: Plan, settings: ContainerSettings) -> str:
    """The index is named to the letter: what a build finds by itself is no GPU, and torch for the CPU."""
    if not settings.python_lock:
        index = "" if settings.uses_wheelhouse else f"--default-index={find_torch_index(plan, settings)} "
        return f"{index}torch=={plan.torch}"
    return f"{_build_locked_command(plan, settings)}--requirement=/mnt/torch.lock"


def _build_locked_command(plan: Plan, settings: ContainerSettings) -> str:
    """Either index may offer a package, because the hashes alone decide which file is the right one."""
    if settings.uses_wheelhouse:
        return _REQUIRE_HASHES
    return f"--index={find_torch_index(plan, settings)} --index-strategy=unsafe-best-match {_REQUIRE_HASHES}"


def _torch_fits(plan: Plan) -> tuple[str, str]:
    """What Python says of a torch that is built for the plan's device, `built` being its version.py; and the device."""
    if plan.vendor is Vendor.CPU:
        return "not built['cuda'] and not built.get('hip')", "the CPU"
    if plan.cuda:
        cuda = require_safe("version", plan.cuda)
        return f"built['cuda'] == '{cuda}'", f"CUDA {cuda}"
    # HIP has ROCm's first two numbers; the third is a count of its own: ROCm 6.2.4 says 6.2.41134.
    major, minor = require_safe("version", plan.variant).removeprefix("rocm").split(".")[:2]
    return f"str(built.get('hip')).startswith('{major}.{minor}.')", f"ROCm {major}.{minor}"


PROJECT_REQUIREMENTS = "project.txt"
"""Requirements that devkit writes out, beside the Dockerfile."""
BUILT_FOR_TORCH = ("torchvision", "torchaudio")
"""Packages whose every wheel is built for one build of torch. Source: https://pytorch.org/get-started/locally/."""
CONSTRAINED = ("torch", *BUILT_FOR_TORCH, "triton", "pytorch-triton[a-z-]*", "(nvidia|cuda)-[a-z0-9-]+")
"""What came with torch, as a pattern over names; another version of one of these would break it."""

_FROM = "/mnt/project"
_EXPORTED = "/mnt/work/exported.txt"
_SAFE_SPECIFIER = re.compile(r"[A-Za-z0-9_.,=<>!~*+\[\]-]+", re.ASCII)


@dataclass(frozen=True)
class ProjectInstallCommands:
    """Words of the Dockerfile's RUN instructions for the project's packages. Empty ones have nothing to do.

    `files` are bound from the project's folder. `siblings` are requirements of packages that are built for one torch,
    `sibling_source` where they come from. `export` writes what a lock holds, `excluded` what of it the plan brings.
    `wanted` are options that name what to install.
    """

    files: tuple[str, ...] = ()
    has_written: bool = False
    siblings: str = ""
    sibling_source: str = ""
    export: str = ""
    excluded: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    held: str = ""

    def __bool__(self) -> bool:
        return bool(self.wanted)


def build_project_install_commands(
    plan: Plan, settings: ContainerSettings, install: InstallCommands
) -> ProjectInstallCommands:
    """How to install what the project's own files ask for. Raises DevkitError for a version that is none."""
    found = settings.dependencies
    export = _export(found, settings, install)
    if settings.python_lock and not export:
        return ProjectInstallCommands()  # requirements.lock holds them, with their hashes.
    wanted = (f"--requirement={_EXPORTED}",) if export else tuple(_wanted(found))
    if not wanted:
        return ProjectInstallCommands()
    siblings = _siblings(found, plan)
    index = "" if settings.uses_wheelhouse else f"--default-index={find_torch_index(plan, settings)} "
    names = [
        *CONSTRAINED,
        *(require_safe("package name", name).replace(".", r"\.") for name, _ in plan.packages if name != "torch"),
    ]
    return ProjectInstallCommands(
        files=_bound(found, export),
        has_written=not export and bool(format_project_requirements(found)),
        siblings=" ".join(f'"{text}"' for text in siblings),
        sibling_source=f"{index}{'--no-deps ' if export else ''}",
        export=export,
        excluded=_excluded(found) if export else (),
        wanted=wanted,
        held=f"^({'|'.join(names)})==",
    )


def render_project_requirements(_plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """The requirements that no installer could read for itself."""
    found = settings.dependencies
    if _exporter(found) is None and (lines := format_project_requirements(found)):
        header = (
            f"# Written by devkit {__version__} from the project's own files, which no installer reads without the "
            "whole project.\n# Change them there, then run `devkit init` again.\n"
        )
        yield Artifact.from_text(f"{DEVCONTAINER_FOLDER}/{PROJECT_REQUIREMENTS}", header + "".join(lines))


def select_requirements_to_lock(found: Dependencies) -> tuple[PackageRequirement, ...]:
    """What a lock of the image must hold for the project: nothing where the project has a lock of its own."""
    return (
        () if _exporter(found) else tuple(need for need in found.needs if need.role is not RequirementRole.CONSTRAINT)
    )


def select_constraints(found: Dependencies) -> tuple[PackageRequirement, ...]:
    """What installs nothing and limits the version of what is installed."""
    return tuple(
        need
        for need in found.needs
        if need.role is RequirementRole.CONSTRAINT and need.specifier and not _exporter(found)
    )


def format_project_requirements(found: Dependencies) -> tuple[str, ...]:
    """The lines of the list that devkit writes: where each stands, and the version that a lock limits it to."""
    limits: dict[str, list[str]] = {}
    for need in found.needs:
        if need.role is RequirementRole.CONSTRAINT and need.specifier and not need.marker:
            limits.setdefault(need.name, []).append(need.specifier)
    lines = {}
    for need in found.needs:
        if need.role is RequirementRole.GENERATED and need.name not in ("torch", *BUILT_FOR_TORCH):
            lines[_line(need, limits.get(need.name, []))] = f"\n# {need.origin}\n"
    return tuple(f"{comment}{line}\n" for line, comment in lines.items())


def has_project_files(settings: ContainerSettings) -> bool:
    """Whether the build reads files of the project's own folder."""
    found = settings.dependencies
    return bool(found.lists or _exporter(found))


def _line(need: PackageRequirement, limits: list[str]) -> str:
    if need.url:
        return need.text
    extras = f"[{','.join(need.extras)}]" if need.extras else ""
    specifier = ",".join(filter(None, (need.specifier, *limits)))
    return f"{need.name}{extras}{specifier}{f' ; {need.marker}' if need.marker else ''}"


def _wanted(found: Dependencies) -> Iterator[str]:
    """The lists as options of the installer."""
    for path in found.lists:
        yield f"--requirement={_FROM}/{path}"
        if path == "pyproject.toml":
            groups = {
                need.group for need in found.needs if need.path == path and need.role is RequirementRole.PASSED_THROUGH
            }
            yield from (f"--group={_FROM}/{path}:{group}" for group in found.groups if group in groups)
    if format_project_requirements(found):
        yield f"--requirement=/mnt/{PROJECT_REQUIREMENTS}"


def _siblings(found: Dependencies, plan: Plan) -> tuple[str, ...]:
    """torchvision and torchaudio as the project asks for them here, with the version of its lock."""
    specifiers: dict[str, list[str]] = {need.name: [] for need in found.needs if need.name in BUILT_FOR_TORCH}
    for limit in list_project_constraints(found, machines=plan.architectures, python=plan.python):
        # The build behind the plus is the plan's to choose, as torch's is.
        if limit.name in specifiers and _SAFE_SPECIFIER.fullmatch(limit.specifier):
            specifiers[limit.name].append(limit.specifier.partition("+")[0])
    return tuple(f"{name}{','.join(dict.fromkeys(each))}" for name, each in sorted(specifiers.items()))


def _bound(found: Dependencies, export: str) -> tuple[str, ...]:
    if not export:
        return (*found.lists, *found.included)
    return ("Pipfile", found.lock) if found.tool is PackageManager.PIPENV else ("pyproject.toml", found.lock)


def _excluded(found: Dependencies) -> tuple[str, ...]:
    """What of the lock the plan brings. uv follows the needs of its packages itself."""
    family = () if found.tool is PackageManager.UV and not found.has_members else found.torch_family
    return tuple(dict.fromkeys(("torch", *BUILT_FOR_TORCH, *family)))


def _exporter(found: Dependencies) -> str | None:
    """The program that turns the project's lock into a list, None where there is no such lock."""
    programs = {
        PackageManager.UV: "uv",
        PackageManager.POETRY: "poetry",
        PackageManager.PDM: "pdm",
        PackageManager.PIPENV: "pipenv",
    }
    return programs.get(found.tool) if found.lock else None


def _export(found: Dependencies, settings: ContainerSettings, install: InstallCommands) -> str:
    """The command that writes the lock as a list with hashes. A lock that is out of date ends the build."""
    run = f"uv tool run {install.source}"
    match _exporter(found):
        case None:
            return ""
        case "uv":
            return _export_of_uv(found, settings)
        case "poetry":
            plugin = f"--with=poetry-plugin-export=={_version('poetry-plugin-export')}"
            groups = "".join(f" --with={group}" for group in found.groups)
            return (
                f"{run}--from=poetry=={_version('poetry')} {plugin} poetry export --project={_FROM}{groups}"
                f" --format=requirements.txt --output={_EXPORTED}"
            )
        case "pdm":
            return (
                f"PDM_CHECK_UPDATE=0 {run}pdm=={_version('pdm')} export --project={_FROM} --format=requirements"
                f" --output={_EXPORTED}"
            )
        case _:
            # Its first line names the public index, in whose place there may be another one.
            program = f"PIPENV_PIPFILE={_FROM}/Pipfile {run}pipenv=={_version('pipenv')}"
            return f"{program} requirements --dev --hash >{_EXPORTED} && sed -i '/^-i /d' {_EXPORTED}"


def _export_of_uv(found: Dependencies, settings: ContainerSettings) -> str:
    """uv looks at the lock's date only where it sees all that the lock was made from, and asks the same index."""
    sees_all = not found.has_members and all(each.because != LOCAL_TO_PROJECT for each in found.left_out)
    is_as_locked = sees_all and not settings.index and not settings.uses_wheelhouse
    checked = "--locked" if is_as_locked else "--frozen"
    # uv has no word for "all packages of the workspace without torch's".
    which = "--all-packages" if found.has_members else "--prune=torch"
    return (
        f"uv export --project={_FROM} {checked} {which} --no-emit-workspace --no-emit-local --no-header --no-annotate"
        f" --output-file={_EXPORTED} >/dev/null"
    )


def find_export_tools(settings: ContainerSettings) -> tuple[str, ...]:
    """The programs that the build fetches only to read the project's lock, as requirements."""
    tools = {"poetry": ("poetry", "poetry-plugin-export"), "pdm": ("pdm",), "pipenv": ("pipenv",)}
    return tuple(f"{tool}=={_version(tool)}" for tool in tools.get(_exporter(settings.dependencies) or "", ()))


def _version(tool: str) -> str:
    return require_safe("version", next(row.version for row in load_tables().images.tools if row.name == tool))
