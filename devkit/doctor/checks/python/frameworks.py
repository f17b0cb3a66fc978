"""Check of installed JAX and TensorFlow: what they are built for against the driver and the GPUs."""

import re
from collections.abc import Iterator

from devkit.compat.rules import CudaSupport, find_oldest_driver
from devkit.compat.version_tables import FrameworkBuild, load_tables
from devkit.compat.wheels import DriverCuda
from devkit.doctor.checks.python.packages import find_python_packages
from devkit.doctor.model import NotApplicable, check
from devkit.doctor.preconditions import require_visible_gpu, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.doctor.wheels import find_compute_capabilities, find_driver_cuda
from devkit.facts.machine import Package
from devkit.facts.model import Facts
from devkit.facts.values import ComputeCapability, Release
from devkit.text import join_words

_PLUGIN = re.compile(r"jax-cuda(\d+)-plugin")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


@check("PYT025", require_visible_gpu)
def frameworks_fit_the_gpus(facts: Facts) -> Iterator[Problem]:
    packages = find_python_packages(facts)
    installed = [packages[name] for name in ("jaxlib", "tensorflow") if name in packages]
    skip_if(not installed, "neither JAX nor TensorFlow is installed in this Python")
    judged = [package for package in installed if "+" not in package.version and _find_build(package.name, package)]
    if not judged:
        shown = join_words(f"{package.name} {package.version}" for package in installed)
        raise NotApplicable(f"the tables do not list what {shown} was built for")
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


def _judge_jax(facts: Facts, jaxlib: Package, packages: dict[str, Package]) -> Iterator[Problem]:
    plugins = {match[1]: package for name, package in packages.items() if (match := _PLUGIN.fullmatch(name))}
    usable = [cuda for cuda, plugin in plugins.items() if _find_numbers(plugin) == _find_numbers(jaxlib)]
    if usable:
        yield from _judge_build(facts, jaxlib, f"jax[cuda{max(usable, key=int)}]")
        return
    build = _find_fitting_build(facts, "jax")
    yield problem(
        "no-plugin",
        version=jaxlib.version,
        requirement=f"{build.requirement if build else 'jax'}=={'.'.join(_find_numbers(jaxlib))}",
        subject="jax",
        evidence=(f"jaxlib {jaxlib.version}", *(f"{each.name} {each.version}" for each in plugins.values())),
    )


def _find_numbers(package: Package) -> list[str]:
    found = _NUMBERS.match(package.version)
    return found[0].split(".") if found else []


def _judge_build(facts: Facts, package: Package, name: str) -> Iterator[Problem]:
    row = _find_build(name, package)
    if row is None:
        return
    driver, lacking = find_driver_cuda(facts), _list_lacking(facts, row)
    is_old = _is_too_old(driver, row)
    if not is_old and not lacking:
        return
    build = _find_fitting_build(facts, row.framework)
    needed = find_oldest_driver(row.cuda, platform=driver.platform) if driver else None
    loaded = driver.release if driver else None
    yield problem(
        "old-driver" if is_old else "no-code",
        framework=row.framework,
        version=package.version,
        cuda=row.cuda,
        needed=needed,
        loaded=loaded,
        capability=lacking[0] if lacking else None,
        requirement=build.requirement if build else "",
        since=build.since if build else "",
        subject=row.framework,
        evidence=(
            f"{package.name} {package.version}: {row.requirement} from {row.since} on, CUDA {row.cuda}",
            *([f"CUDA {row.cuda} needs driver {needed} or newer, but {loaded} is loaded"] if is_old else []),
            *(f"it has no code for compute capability {capability}" for capability in lacking),
        ),
    )


def _find_fitting_build(facts: Facts, framework: str) -> FrameworkBuild | None:
    rows = (row for row in load_tables().frameworks.builds if row.framework == framework)
    driver = find_driver_cuda(facts)
    return next((row for row in rows if not _is_too_old(driver, row) and not _list_lacking(facts, row)), None)


def _is_too_old(driver: DriverCuda | None, row: FrameworkBuild) -> bool:
    return driver is not None and driver.classify(row.cuda) is CudaSupport.NO


def _list_lacking(facts: Facts, row: FrameworkBuild) -> list[ComputeCapability]:
    """List the compute capabilities of GPUs here for which a build holds no code."""
    return [each for each in find_compute_capabilities(facts) if each < row.capability or each in row.lacks]
