"""Check of installed JAX and TensorFlow: what they are built for against the driver and the GPUs."""

import re
from collections.abc import Iterator

from devkit.compat.rules import CudaSupport, find_oldest_driver
from devkit.compat.version_tables import FrameworkBuild, load_tables
from devkit.doctor.checks.python.packages import find_python_packages
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.doctor.preconditions import require_visible_gpu
from devkit.doctor.wheels import (
    find_compute_capabilities,
    find_driver_cuda,
    find_workload_side,
    format_upgrade_command,
)
from devkit.facts.model import Facts, Package
from devkit.facts.values import Release
from devkit.text import join_words

_PLUGIN = re.compile(r"jax-cuda(\d+)-plugin")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


@check("PYT025")
def frameworks_fit_the_gpus(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    packages = find_python_packages(facts)
    installed = [packages[name] for name in ("jaxlib", "tensorflow") if name in packages]
    if not installed:
        raise NotApplicable("neither JAX nor TensorFlow is installed in this Python")
    judged = [package for package in installed if "+" not in package.version and _find_build(package.name, package)]
    if not judged:
        shown = join_words(f"{package.name} {package.version}" for package in installed)
        raise NotApplicable(f"the tables do not know what {shown} was built for")
    for package in judged:
        yield from (
            _judge_jax(facts, package, packages)
            if package.name == "jaxlib"
            else _judge_build(facts, package, package.name)
        )


def _find_build(name: str, package: Package) -> FrameworkBuild | None:
    """Find the row that a release belongs to; `name` is a requirement, a framework, or jaxlib."""
    release, framework = Release.find(package.version), name.removesuffix("lib")
    rows = (row for row in load_tables().frameworks.builds if framework in (row.requirement, row.framework))
    return next((row for row in rows if release is not None and row.since <= release), None)


def _judge_jax(facts: Facts, jaxlib: Package, packages: dict[str, Package]) -> Iterator[Finding]:
    plugins = {match[1]: package for name, package in packages.items() if (match := _PLUGIN.fullmatch(name))}
    usable = [cuda for cuda, plugin in plugins.items() if _find_numbers(plugin) == _find_numbers(jaxlib)]
    if usable:
        yield from _judge_build(facts, jaxlib, f"jax[cuda{max(usable, key=int)}]")
        return
    evidence = (f"jaxlib {jaxlib.version}", *(f"{each.name} {each.version}" for each in plugins.values()))
    build = _find_fitting_build(facts, "jax")
    requirement = build.requirement if build else "jax"
    yield Finding(
        Severity.WARNING,
        f"jaxlib {jaxlib.version} has no CUDA plugin of its version, so JAX computes on the CPU",
        Fix(
            "Install JAX with the extra that brings plugin and CUDA, in one command.",
            (format_upgrade_command(facts, f"{requirement}=={'.'.join(_find_numbers(jaxlib))}"),),
            where=find_workload_side(facts),
            docs="https://docs.jax.dev/en/latest/installation.html",
        ),
        subject="jax",
        evidence=evidence,
    )


def _find_numbers(package: Package) -> list[str]:
    found = _NUMBERS.match(package.version)
    return found[0].split(".") if found else []


def _judge_build(facts: Facts, package: Package, name: str) -> Iterator[Finding]:
    row = _find_build(name, package)
    objections = tuple(_list_objections(facts, row)) if row else ()
    if row is None or not objections:
        return
    build = _find_fitting_build(facts, row.framework)
    yield Finding(
        Severity.ERROR,
        f"{row.framework} {package.version} does not run here: {objections[0]}",
        Fix(
            f"{build.requirement} from {build.since} on fits this driver and these GPUs."
            if build
            else "No build in devkit's tables fits this driver and these GPUs: update the driver, or use another framework.",
            (format_upgrade_command(facts, build.requirement),) if build else (),
            where=find_workload_side(facts),
        ),
        subject=row.framework,
        evidence=(
            f"{package.name} {package.version}: {row.requirement} from {row.since} on, CUDA {row.cuda}",
            *objections,
        ),
        confidence=Confidence.LIKELY,
    )


def _find_fitting_build(facts: Facts, framework: str) -> FrameworkBuild | None:
    rows = (row for row in load_tables().frameworks.builds if row.framework == framework)
    return next((row for row in rows if not any(_list_objections(facts, row))), None)


def _list_objections(facts: Facts, row: FrameworkBuild) -> Iterator[str]:
    driver = find_driver_cuda(facts)
    if driver is not None and driver.classify(row.cuda) is CudaSupport.NO:
        oldest = find_oldest_driver(row.cuda, platform=driver.platform)
        yield f"CUDA {row.cuda} needs driver {oldest} or newer, and {driver.release} is loaded"
    for capability in find_compute_capabilities(facts):
        if capability < row.capability or capability in row.lacks:
            yield f"it holds no code for compute capability {capability}"
