"""How the image installs the project's own packages: with the project's tool, and without touching the plan's torch."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from devkit import __version__
from devkit.compat.load import tables
from devkit.facts.dependencies import OF_THE_PROJECT, Dependencies, Needed, Role, Tool
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.installation import Installation
from devkit.render.mirrors import torch_index
from devkit.render.plain import plain
from devkit.render.settings import Settings
from devkit.solver.model import Plan
from devkit.solver.project import constraints_of

WRITTEN = "project.txt"
"""Requirements that devkit writes out, beside the Dockerfile."""
BUILT_FOR_TORCH = ("torchvision", "torchaudio")
"""Packages whose every wheel is built for one build of torch. Source: https://pytorch.org/get-started/locally/."""
HELD = ("torch", *BUILT_FOR_TORCH, "triton", "pytorch-triton[a-z-]*", "(nvidia|cuda)-[a-z0-9-]+")
"""What came with torch, as a pattern over names; another version of one of these would break it."""

_FROM = "/mnt/project"
_EXPORTED = "/mnt/work/exported.txt"
_SAFE = re.compile(r"[A-Za-z0-9_.,=<>!~*+\[\]-]+", re.ASCII)


@dataclass(frozen=True)
class ProjectPackages:
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


def project_packages(plan: Plan, settings: Settings, install: Installation) -> ProjectPackages:
    """How to install what the project's own files ask for. Raises DevkitError for a version that is none."""
    found = settings.dependencies
    export = _export(found, settings, install)
    if settings.python_lock and not export:
        return ProjectPackages()  # requirements.lock holds them, with their hashes.
    wanted = (f"--requirement={_EXPORTED}",) if export else tuple(_wanted(found))
    if not wanted:
        return ProjectPackages()
    siblings = _siblings(found, plan)
    index = "" if settings.uses_wheelhouse else f"--default-index={torch_index(plan, settings)} "
    names = [*HELD, *(plain("package name", name).replace(".", r"\.") for name, _ in plan.packages if name != "torch")]
    return ProjectPackages(
        files=_bound(found, export),
        has_written=not export and bool(written(found)),
        siblings=" ".join(f'"{text}"' for text in siblings),
        sibling_source=f"{index}{'--no-deps ' if export else ''}",
        export=export,
        excluded=_excluded(found) if export else (),
        wanted=wanted,
        held=f"^({'|'.join(names)})==",
    )


def dependency_artifacts(_plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """The requirements that no installer could read for itself."""
    found = settings.dependencies
    if _exporter(found) is None and (lines := written(found)):
        header = (
            f"# Written by devkit {__version__} from the project's own files, which no installer reads without the "
            "whole project.\n# Change them there, then run `devkit init` again.\n"
        )
        yield Artifact.text(f"{FOLDER}/{WRITTEN}", header + "".join(lines))


def to_lock(found: Dependencies) -> tuple[Needed, ...]:
    """What a lock of the image must hold for the project: nothing where the project has a lock of its own."""
    return () if _exporter(found) else tuple(need for need in found.needs if need.role is not Role.LIMIT)


def limits(found: Dependencies) -> tuple[Needed, ...]:
    """What installs nothing and limits the version of what is installed."""
    return tuple(need for need in found.needs if need.role is Role.LIMIT and need.specifier and not _exporter(found))


def written(found: Dependencies) -> tuple[str, ...]:
    """The lines of the list that devkit writes: where each stands, and the version that a lock limits it to."""
    limits: dict[str, list[str]] = {}
    for need in found.needs:
        if need.role is Role.LIMIT and need.specifier and not need.marker:
            limits.setdefault(need.name, []).append(need.specifier)
    lines = {}
    for need in found.needs:
        if need.role is Role.WRITTEN and need.name not in ("torch", *BUILT_FOR_TORCH):
            lines[_line(need, limits.get(need.name, []))] = f"\n# {need.origin}\n"
    return tuple(f"{comment}{line}\n" for line, comment in lines.items())


def has_files_of_project(settings: Settings) -> bool:
    """Whether the build reads files of the project's own folder."""
    found = settings.dependencies
    return bool(found.lists or _exporter(found))


def _line(need: Needed, limits: list[str]) -> str:
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
            groups = {need.group for need in found.needs if need.path == path and need.role is Role.HANDED}
            yield from (f"--group={_FROM}/{path}:{group}" for group in found.groups if group in groups)
    if written(found):
        yield f"--requirement=/mnt/{WRITTEN}"


def _siblings(found: Dependencies, plan: Plan) -> tuple[str, ...]:
    """torchvision and torchaudio as the project asks for them here, with the version of its lock."""
    specifiers: dict[str, list[str]] = {need.name: [] for need in found.needs if need.name in BUILT_FOR_TORCH}
    for limit in constraints_of(found, machines=plan.architectures, python=plan.python):
        # The build behind the plus is the plan's to choose, as torch's is.
        if limit.name in specifiers and _SAFE.fullmatch(limit.specifier):
            specifiers[limit.name].append(limit.specifier.partition("+")[0])
    return tuple(f"{name}{','.join(dict.fromkeys(each))}" for name, each in sorted(specifiers.items()))


def _bound(found: Dependencies, export: str) -> tuple[str, ...]:
    if not export:
        return (*found.lists, *found.included)
    return ("Pipfile", found.lock) if found.tool is Tool.PIPENV else ("pyproject.toml", found.lock)


def _excluded(found: Dependencies) -> tuple[str, ...]:
    """What of the lock the plan brings. uv follows the needs of its packages itself."""
    family = () if found.tool is Tool.UV and not found.has_members else found.torch_family
    return tuple(dict.fromkeys(("torch", *BUILT_FOR_TORCH, *family)))


def _exporter(found: Dependencies) -> str | None:
    """The program that turns the project's lock into a list, None where there is no such lock."""
    programs = {Tool.UV: "uv", Tool.POETRY: "poetry", Tool.PDM: "pdm", Tool.PIPENV: "pipenv"}
    return programs.get(found.tool) if found.lock else None


def _export(found: Dependencies, settings: Settings, install: Installation) -> str:
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


def _export_of_uv(found: Dependencies, settings: Settings) -> str:
    """uv looks at the lock's date only where it sees all that the lock was made from, and asks the same index."""
    sees_all = not found.has_members and all(each.because != OF_THE_PROJECT for each in found.left_out)
    is_as_locked = sees_all and not settings.index and not settings.uses_wheelhouse
    checked = "--locked" if is_as_locked else "--frozen"
    # uv has no word for "all packages of the workspace without torch's".
    which = "--all-packages" if found.has_members else "--prune=torch"
    return (
        f"uv export --project={_FROM} {checked} {which} --no-emit-workspace --no-emit-local --no-header --no-annotate"
        f" --output-file={_EXPORTED} >/dev/null"
    )


def lock_readers(settings: Settings) -> tuple[str, ...]:
    """The programs that the build fetches only to read the project's lock, as requirements."""
    tools = {"poetry": ("poetry", "poetry-plugin-export"), "pdm": ("pdm",), "pipenv": ("pipenv",)}
    return tuple(f"{tool}=={_version(tool)}" for tool in tools.get(_exporter(settings.dependencies) or "", ()))


def _version(tool: str) -> str:
    return plain("version", next(row.version for row in tables().images.tools if row.name == tool))
