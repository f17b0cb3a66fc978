"""The commands that compile packages against torch: nvcc in the image, a layer after all others, the project itself."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from devkit.compat.specifiers import split_requirement
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import RequirementRole
from devkit.render.container.settings import ContainerSettings, require_safe
from devkit.solver.plan import FROM_WHEELS, CompiledPackage, CompileMode, Plan
from devkit.solver.project import list_project_constraints

_HELPERS = ("setuptools", "wheel", "packaging", "ninja")
"""What builds that import torch expect to be there, declared or not."""
_INSTALLED = (CompileMode.COMPILED, CompileMode.WHEEL)
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.,<>=!~*\[\]-]*", re.ASCII)
_SPECIFIER = re.compile(r"[A-Za-z0-9_.,=<>!~*+-]+", re.ASCII)
_JOBS = (
    r"""$(awk -v cores="$(nproc)" '/MemAvailable/ { jobs = int($2 / 1048576 / JOB_GB); """
    r"""print jobs < 1 ? 1 : jobs < cores ? jobs : cores }' /proc/meminfo)"""
)
"""The jobs that fit into the memory of whatever machine builds the image."""


@dataclass(frozen=True)
class CompileCommands:
    """Words of the Dockerfile's instructions that compile packages. Empty ones have nothing to do.

    `excluded` are packages that no other layer installs. `requires` are build requirements, `requirements` what is then
    installed: `compiled` of them without isolation. `variables` are NAME=value for the build. `cache` names the cache of
    what is built, which another torch could not load; `costs` say what each takes. `nvcc_image` or `nvcc_packages` bring the compiler for
    `cuda`, `host_compiler` is the gcc that it needs in place of the system's, "" for that.
    """

    excluded: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    cache: str = ""
    costs: tuple[str, ...] = ()
    nvcc_image: str = ""
    nvcc_packages: tuple[str, ...] = ()
    cuda: str = ""
    host_compiler: str = ""
    capabilities: str = ""

    def __bool__(self) -> bool:
        return bool(self.requires or self.requirements)

    @property
    def system_packages(self) -> tuple[str, ...]:
        """The Debian packages that compiling needs besides."""
        compiler = (f"g++-{self.host_compiler}",) if self.host_compiler else ()
        return (*(("ccache",) if self.compiled else ()), *compiler)


def build_compile_commands(plan: Plan, settings: ContainerSettings) -> CompileCommands:
    """Build the commands. From a wheelhouse nothing is compiled: there are wheels or there is nothing.

    Raises: DevkitError for a value that a Dockerfile cannot hold.
    """
    required = [each for each in plan.compiled if not each.path]
    if settings.uses_wheelhouse:
        left_out = tuple(each.name for each in required if each.mode is CompileMode.LEFT_OUT)
        return CompileCommands(excluded=left_out)
    compiled = [each for each in plan.compiled if each.mode is CompileMode.COMPILED]
    names = tuple(each.name for each in required if each.mode is CompileMode.COMPILED)
    requires = [*_HELPERS, *(line for each in compiled for line in each.requires)] if compiled else []
    lines = [re.sub(r"\s+", "", line.partition(";")[0]) for line in requires]
    # It names the oldest NumPy that a wheel could be built for, and this one is for the NumPy that is there.
    lines = [line.replace("oldest-supported-numpy", "numpy") for line in lines]
    # An isolated build would keep to the same limits.
    limits = dict(map(split_requirement, list_build_limits(plan)))
    for place, line in enumerate(lines):
        name, specifier = split_requirement(line.lower())
        if name not in plan.resolved and "=" not in specifier.replace(">=", "") and name in limits:
            lines[place] = f"{line}{',' if specifier else ''}{limits[name]}"
    cuda = ".".join(require_safe("version", plan.cuda).split(".")[:2]) if plan.cuda else ""
    is_copied = plan.nvcc not in ("", FROM_WHEELS, plan.base_image)
    # CUDA takes a gcc up to some version; where the system's own is not newer there is no row.
    compilers = [
        row for row in load_tables().compiled.host_compilers if row.cuda == cuda and row.system in plan.base_image
    ]
    return CompileCommands(
        excluded=tuple(each.name for each in required if each.mode is not CompileMode.AT_USE),
        requires=tuple(dict.fromkeys(line for line in lines if _REQUIREMENT.fullmatch(line))),
        compiled=names,
        requirements=tuple(_list_requirements(plan, settings)),
        variables=tuple(list_build_variables(each for each in compiled if not each.path)),
        cache=f"devkit-compiled-{plan.python}-{plan.torch}-{plan.variant}-{'-'.join(plan.capabilities) or 'all'}",
        costs=tuple(map(_describe_cost, (each for each in required if each.mode in _INSTALLED))),
        nvcc_image=require_safe("base image", plan.nvcc) if is_copied else "",
        nvcc_packages=tuple(f"{row.package}=={cuda}.*" for row in load_tables().compiled.toolkit)
        if plan.nvcc == FROM_WHEELS
        else (),
        cuda=cuda,
        host_compiler=str(compilers[0].gcc) if plan.nvcc and compilers else "",
        capabilities=";".join(plan.capabilities) if plan.nvcc else "",
    )


def _list_requirements(plan: Plan, settings: ContainerSettings) -> Iterator[str]:
    """List what the layer installs: each package as the project requires it, or its wheel."""
    needs = [need for need in settings.dependencies.needs if need.role is not RequirementRole.CONSTRAINT]
    limits = list_project_constraints(settings.dependencies, machines=plan.architectures, python=plan.python)
    for package in plan.compiled:
        if package.path or package.mode not in _INSTALLED:
            continue
        extras = sorted({extra for need in needs if need.name == package.name for extra in need.extras})
        shown = f"{package.name}[{','.join(extras)}]" if extras else package.name
        url = package.url or next((need.url for need in needs if need.name == package.name and need.url), "")
        if url:
            yield f"{shown} @ {require_safe('package URL', url)}"
            continue
        held = f"{package.name}=={plan.resolved.get(package.name)}"
        if held in plan.limits:
            yield held.replace(package.name, shown, 1)
            continue
        specifiers = (limit.specifier for limit in limits if limit.name == package.name)
        yield shown + ",".join(dict.fromkeys(each for each in specifiers if _SPECIFIER.fullmatch(each)))


def list_build_limits(plan: Plan) -> Iterator[str]:
    """List the limits on what builds source distributions: those of the day that the packages are from."""
    for row in load_tables().stack.build_limits:
        if plan.as_of < row.until if plan.as_of else row.is_general:
            yield row.requirement


def list_build_variables(compiled: Iterable[CompiledPackage]) -> Iterator[str]:
    """List the variables of builds, with as many jobs of the largest of them as fit into the memory."""
    packages = list(compiled)
    if packages:
        jobs = _JOBS.replace("JOB_GB", str(max(each.job_gb for each in packages)))
        yield f'MAX_JOBS="{jobs}"'
    for variable in dict.fromkeys(variable for each in packages for variable in each.variables):
        name, _, value = variable.partition("=")
        yield f'{name}="{value}"'


def _describe_cost(package: CompiledPackage) -> str:
    """Describe on one line what the layer takes for a package, whatever machine builds it."""
    if package.mode is CompileMode.WHEEL:
        return f"{package.name}: its wheel {package.because}"
    minutes = f"about {package.core_minutes} minutes on one core, " if package.core_minutes else ""
    return f"{package.name}: {minutes}up to {package.job_gb} GB per job; {package.because}"
