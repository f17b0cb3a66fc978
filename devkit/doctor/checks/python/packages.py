"""Checks that the installed Python packages fit each other and the system, by their metadata alone."""

import re
from collections.abc import Iterator
from itertools import groupby

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from devkit.compat.rules import LibraryChoice, find_bitsandbytes_library
from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import CudaWheel, load_tables
from devkit.compat.wheels import find_foreign_wheels
from devkit.doctor.model import NotApplicable, check
from devkit.doctor.preconditions import (
    require,
    require_some,
    require_torch,
    require_torch_cuda,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import BITSANDBYTES_FALLS_BACK
from devkit.doctor.wheels import find_driver_cuda
from devkit.facts.machine import Package, Platform
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown
from devkit.text import join_words

_EXACT_PARTNERS = ("torch", "torchvision", "torchaudio", "triton", "numpy")
"""A package built against another release of these does not import, or dies at its first call."""


def find_python_packages(facts: Facts) -> dict[str, Package]:
    """Return the packages of this Python by name."""
    return {package.name: package for package in require(facts.python).packages}


def _require_package(facts: Facts, name: str) -> Package:
    return require_some(find_python_packages(facts).get(name), f"{name} is not installed in this Python")


def _is_falling_back(package: Package) -> bool:
    """Say if this release takes the nearest library of the same CUDA major automatically."""
    try:
        return Version(package.version) >= Version(BITSANDBYTES_FALLS_BACK)
    except InvalidVersion:
        return False


@check("PYT003", causes=("PYT018",))
def bitsandbytes_fits_torch(facts: Facts) -> Iterator[Problem]:
    cuda = require_torch_cuda(facts)
    package = _require_package(facts, "bitsandbytes")
    shipped = require(facts.python).bitsandbytes_cuda
    skip_if(not shipped, "the CUDA libraries of bitsandbytes were not found")
    chosen = find_bitsandbytes_library(cuda, shipped)
    if chosen.choice is LibraryChoice.EXACT:
        return
    if chosen.choice is LibraryChoice.OVERRIDE and (
        _is_falling_back(package) or (require(facts.python).bnb_cuda_version == chosen.cuda.replace(".", ""))
    ):
        return
    yield problem(
        "no-library" if chosen.choice is LibraryChoice.MISSING else "other-library",
        version=package.version,
        cuda=cuda,
        library=chosen.cuda,
        number=chosen.cuda.replace(".", ""),
        evidence=(f"libraries for CUDA {join_words(shipped)}", f"torch is built with CUDA {cuda}"),
    )


@check("PYT024", causes=("PYT018", "PYT020"))
def wheels_fit_torch_cuda(facts: Facts) -> Iterator[Problem]:
    cuda = require_torch_cuda(facts)
    versions = {name: package.version for name, package in find_python_packages(facts).items()}
    for row in find_foreign_wheels(versions, str(cuda), load_tables()):
        version = versions[row.name]
        if version.endswith("+cu" + str(cuda).replace(".", "")):
            continue
        torch = Release.parse(require_torch(facts).version)
        yield problem(
            "another-cuda",
            name=row.name,
            version=version,
            builds=row.format_builds(),
            cuda=cuda,
            index=_find_torch_index(facts, torch, row),
            requirements=(f"torch=={'.'.join(map(str, torch.numbers))}", *({"torchvision"} & versions.keys())),
            subject=row.name,
            evidence=(f"{row.name} {version}", f"torch is built with CUDA {cuda}"),
        )


def _find_torch_index(facts: Facts, torch: Release, row: CudaWheel) -> str:
    """Find the index that has this torch for the newest CUDA of a package's wheel and this driver; "" where none has."""
    driver, tables = find_driver_cuda(facts), load_tables().torch
    runs = driver.cuda if driver else None
    labels = next((release.variants for release in tables.releases if release.version == torch), ())
    indexes = [tables.indexes[label] for label in labels if label in tables.indexes]
    fitting = {
        each.cuda: each.url for each in indexes if each.cuda and runs and each.cuda <= runs and row.fits(str(each.cuda))
    }
    return fitting[max(fitting)] if fitting else ""


@check("PYT004", causes=("PYT020",))
def flash_attention_fits_torch(facts: Facts) -> Iterator[Problem]:
    torch, cuda = require_torch(facts), require_torch_cuda(facts)
    package = _require_package(facts, "flash-attn")
    built = re.search(r"\+.*?cu(\d\d).*?torch(\d+\.\d+)", package.version)
    if built is None:
        raise NotApplicable(f"flash-attn {package.version} does not show which torch it was built for")
    if torch.version.startswith(f"{built[2]}.") and built[1] == str(cuda.major):
        return
    yield problem(
        "another-torch",
        version=package.version,
        built_torch=built[2],
        built_cuda=built[1],
        torch=torch.version,
        cuda=cuda,
        evidence=(f"flash-attn {package.version}", f"torch {torch.version}, CUDA {cuda}"),
    )


def _find_unmet(line: str, packages: dict[str, Package], facts: Facts) -> Package | None:
    """The installed package that breaks the requirement `line`; None when it holds or nothing can be said."""
    try:
        requirement = Requirement(line)
        other = packages.get(canonicalize_name(requirement.name))
        if other is None or not _is_applicable(requirement, facts):
            return None
        # Local labels such as +cu128 do not count, and pre-releases of vendors are newer than what they replace.
        versions = (Version(other.version), Version(Version(other.version).base_version))
        holds = any(requirement.specifier.contains(version, prereleases=True) for version in versions)
        return None if holds else other
    except (InvalidRequirement, InvalidVersion, UndefinedEnvironmentName):
        return None


def _is_applicable(requirement: Requirement, facts: Facts) -> bool:
    if requirement.marker is None:
        return True
    system = require(facts.system)
    platform = {Platform.WINDOWS: ("Windows", "win32"), Platform.MACOS: ("Darwin", "darwin")}.get(
        system.platform, ("Linux", "linux")
    )
    version = require(facts.python).version
    return requirement.marker.evaluate(
        {
            "platform_system": platform[0],
            "sys_platform": platform[1],
            "platform_machine": system.machine,
            "os_name": "nt" if platform[0] == "Windows" else "posix",
            "python_version": version.minor,
            "python_full_version": str(version),
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "extra": "",
        }
    )


@check("PYT007", causes=("PYT018", "PYT019", "PYT020"))
def packages_agree(facts: Facts) -> Iterator[Problem]:
    packages = find_python_packages(facts)
    skip_if(not packages, "no package that uses a GPU is installed in this Python")
    for package in packages.values():
        stated = () if isinstance(package.requires, Unknown) else package.requires
        if package.name == "torch":  # a wheel of it does not state all that it needs
            version, releases = package.version.partition("+")[0], load_tables().torch.releases
            stated = (*stated, *next((row.requires for row in releases if str(row.version) == version), ()))
        for line in stated:
            other = _find_unmet(line, packages, facts)
            if other is not None:
                # The words of a command that keep this build of torch.
                build = (
                    load_tables().torch.indexes.get(other.version.partition("+")[2]) if other.name == "torch" else None
                )
                kept = [f"torch=={other.version}"] * (other.name == "torch")
                yield problem(
                    "unmet-partner" if other.name in _EXACT_PARTNERS else "unmet",
                    name=package.name,
                    version=package.version,
                    wanted=line.partition(";")[0].strip(),
                    other=other.name,
                    other_version=other.version,
                    requirements=(package.name, *kept, *(("--extra-index-url", build.url) if build else ())),
                    subject=package.name,
                    evidence=(f"{package.name} {package.version}: {line}", f"installed: {other.name} {other.version}"),
                )


@check("PYT008")
def transformers_requirements_hold(facts: Facts) -> Iterator[Problem]:
    packages = find_python_packages(facts)
    transformers = packages.get("transformers")
    if transformers is None or "bitsandbytes" not in packages:
        raise NotApplicable("transformers and bitsandbytes are not both installed in this Python")
    release = Release.parse(transformers.version)
    floors = (row for row in load_tables().stack.floors if row.name == "transformers")
    rows = [row for row in floors if row.version <= release and row.version.major == release.major]
    if not rows:
        raise NotApplicable(f"the tables do not list the requirements of transformers {transformers.version}")
    for line in max(rows, key=lambda row: row.version).requires:
        name = str(Requirement(line).name)
        other = packages.get(name)
        if name == "torch" or (other is None and name == "peft"):
            continue  # torch stays, and is a matter of plans; only adapters need peft
        if other is not None and _find_unmet(line, packages, facts) is None:
            continue
        yield problem(
            "too-old" if other else "missing",
            transformers=transformers.version,
            requirement=line,
            name=name,
            version=other.version if other else None,
            subject=name,
            evidence=(f"transformers {transformers.version}", f"{name}: {other.version if other else 'absent'}"),
        )


@check("PYT009")
def packages_are_installed_once(facts: Facts) -> Iterator[Problem]:
    python = require(facts.python)
    copies = sorted(require(python.copies), key=lambda copy: copy.name)
    for name, group in groupby(copies, key=lambda copy: copy.name):
        installed = tuple(group)
        if len({copy.version for copy in installed}) > 1:
            first = installed[0]
            yield problem(
                "users-copy" if python.user_site and first.folder == python.user_site else "several-copies",
                name=name,
                version=first.version,
                folder=first.folder,
                others=join_words([f"{copy.version} in {copy.folder}" for copy in installed[1:]]),
                subject=name,
                evidence=tuple(f"{copy.folder}: {copy.name} {copy.version}" for copy in installed),
            )


@check("PYT010", causes=("PYT017", "PYT018", "PYT019", "PYT020"))
def wheels_fit_glibc(facts: Facts) -> Iterator[Problem]:
    # 2.28 from cp312-cp312-manylinux_2_28_x86_64; the lowest where a tag names several.
    platforms = {
        package.name: min(Release.parse(f"{major}.{minor}") for major, minor in named)
        for package in require(facts.python).packages
        if (named := re.findall(r"manylinux_(\d+)_(\d+)_", package.tag))
    }
    skip_if(not platforms, "no compiled wheel here states its C library")
    name = max(platforms, key=lambda package: platforms[package])
    glibc = require(facts.system).glibc
    if isinstance(glibc, Release) and glibc < platforms[name]:
        yield problem(
            "old-glibc",
            name=name,
            needed=platforms[name],
            glibc=glibc,
            subject=name,
            evidence=(f"wheel of {name}: manylinux {platforms[name]}", f"glibc {glibc}"),
        )
    yield from _find_old_libstdcxx(facts, platforms[name], name)


def _find_old_libstdcxx(facts: Facts, platform: Release, name: str) -> Iterator[Problem]:
    library = require(facts.python).libstdcxx
    rows = [row for row in load_tables().manylinux.platforms if row.glibc <= platform]
    if library is None or isinstance(library, Unknown) or isinstance(library.version, Unknown) or not rows:
        return
    needed = max(rows, key=lambda row: row.glibc).glibcxx
    has = Release.parse(f"3.4.{library.version.numbers[-1]}")
    if library.version.numbers[:2] != (6, 0) or has >= needed:
        return
    yield problem(
        "old-libstdcxx",
        path=library.path,
        newest=has,
        name=name,
        needed=needed,
        installer=require(facts.python).installer,
        evidence=(f"{library.path}: libstdc++ {library.version}", f"wheel of {name}: manylinux {platform}"),
    )


@check("PYT016", causes=("PYT018",))
def bnb_cuda_version_fits_torch(facts: Facts) -> Iterator[Problem]:
    cuda = require_torch_cuda(facts)
    package = _require_package(facts, "bitsandbytes")
    python = require(facts.python)
    override = require(python.bnb_cuda_version)
    if override is None or (not override and not _is_falling_back(package)):
        raise NotApplicable("BNB_CUDA_VERSION is not set")
    shipped, named = python.bitsandbytes_cuda, f"{override[:-1]}.{override[-1:]}"
    if not override.isdigit():
        name = "not-a-number"
    elif named.partition(".")[0] != str(cuda.major):
        name = "another-major"
    elif shipped and named not in shipped:
        name = "not-shipped"
    else:
        return
    yield problem(
        name,
        override=override,
        named=named,
        cuda=cuda,
        evidence=(
            f"BNB_CUDA_VERSION={override}",
            f"libraries for CUDA {join_words(shipped) or 'none found'}",
            f"torch is built with CUDA {cuda}",
        ),
    )
