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
from devkit.compat.wheels import describe_foreign_wheel, find_foreign_wheels
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.doctor.preconditions import require, require_python, require_system, require_torch, require_torch_cuda
from devkit.doctor.thresholds import BITSANDBYTES_FALLS_BACK
from devkit.doctor.wheels import (
    find_driver_cuda,
    find_workload_side,
    format_install_command,
    format_uninstall_command,
    format_upgrade_command,
)
from devkit.facts.model import Facts, Package, Platform
from devkit.facts.values import Release, Unknown
from devkit.text import join_words

_EXACT_PARTNERS = ("torch", "torchvision", "torchaudio", "triton", "numpy")
"""A package built against another release of these does not import, or dies at its first call."""


def find_python_packages(facts: Facts) -> dict[str, Package]:
    """Return the packages of this Python by name."""
    return {package.name: package for package in require_python(facts).packages}


def _require_package(facts: Facts, name: str) -> Package:
    package = find_python_packages(facts).get(name)
    if package is None:
        raise NotApplicable(f"{name} is not installed in this Python")
    return package


def _is_falling_back(package: Package) -> bool:
    """Say if this release takes the nearest library of the same CUDA major by itself."""
    try:
        return Version(package.version) >= Version(BITSANDBYTES_FALLS_BACK.value)
    except InvalidVersion:
        return False


@check("PYT003", causes=("PYT018",))
def bitsandbytes_fits_torch(facts: Facts) -> Iterator[Finding]:
    cuda = require_torch_cuda(facts)
    package = _require_package(facts, "bitsandbytes")
    shipped = require_python(facts).bitsandbytes_cuda
    if not shipped:
        raise NotApplicable("the CUDA libraries of bitsandbytes were not found")
    chosen = find_bitsandbytes_library(cuda, shipped)
    if chosen.choice is LibraryChoice.EXACT:
        return
    if chosen.choice is LibraryChoice.OVERRIDE and (
        _is_falling_back(package) or (require_python(facts).bnb_cuda_version == chosen.cuda.replace(".", ""))
    ):
        return
    is_missing = chosen.choice is LibraryChoice.MISSING
    yield Finding(
        Severity.ERROR if is_missing else Severity.WARNING,
        f"bitsandbytes {package.version} has no library for CUDA {cuda} of torch"
        + ("" if is_missing else f"; the one for {chosen.cuda} serves only if BNB_CUDA_VERSION names it"),
        Fix(
            "Update bitsandbytes." + ("" if is_missing else " Or choose the library of the same CUDA major."),
            (
                format_upgrade_command(facts, "bitsandbytes"),
                *(() if is_missing else (f"export BNB_CUDA_VERSION={chosen.cuda.replace('.', '')}",)),
            ),
            where=find_workload_side(facts),
        ),
        evidence=(f"libraries for CUDA {join_words(shipped)}", f"torch is built with CUDA {cuda}"),
        confidence=Confidence.CERTAIN if is_missing else Confidence.LIKELY,
    )


@check("PYT024", causes=("PYT018", "PYT020"))
def wheels_fit_torch_cuda(facts: Facts) -> Iterator[Finding]:
    cuda = require_torch_cuda(facts)
    versions = {name: package.version for name, package in find_python_packages(facts).items()}
    for row in find_foreign_wheels(versions, str(cuda), load_tables()):
        version = versions[row.name]
        if version.endswith("+cu" + str(cuda).replace(".", "")):
            continue
        install = _format_torch_reinstall(facts, row, has_torchvision="torchvision" in versions)
        fix = (
            f"Install torch for {row.name}'s CUDA."
            if install
            else f"Install a {row.name} that is built for CUDA {cuda}."
        )
        yield Finding(
            Severity.WARNING,
            f"{describe_foreign_wheel(row, versions)}, and torch for CUDA {cuda}: it does not import",
            Fix(fix, install, where=find_workload_side(facts)),
            subject=row.name,
            evidence=(f"{row.name} {version}", f"torch is built with CUDA {cuda}"),
            confidence=Confidence.LIKELY,
        )


def _format_torch_reinstall(facts: Facts, row: CudaWheel, *, has_torchvision: bool) -> tuple[str, ...]:
    """Format the command that takes the installed torch for the newest CUDA of a package's wheel and this driver."""
    torch, driver, tables = Release.parse(require_torch(facts).version), find_driver_cuda(facts), load_tables().torch
    runs = driver.cuda if driver else None
    labels = next((release.variants for release in tables.releases if release.version == torch), ())
    indexes = [tables.indexes[label] for label in labels if label in tables.indexes]
    fitting = {
        each.cuda: each.url for each in indexes if each.cuda and runs and each.cuda <= runs and row.fits(str(each.cuda))
    }
    if not fitting:
        return ()
    names = [f"torch=={'.'.join(map(str, torch.numbers))}", *(["torchvision"] if has_torchvision else [])]
    return (format_install_command(facts, *names, index=fitting[max(fitting)], replace=True),)


@check("PYT004", causes=("PYT020",))
def flash_attention_fits_torch(facts: Facts) -> Iterator[Finding]:
    torch, cuda = require_torch(facts), require_torch_cuda(facts)
    package = _require_package(facts, "flash-attn")
    built = re.search(r"\+.*?cu(\d\d).*?torch(\d+\.\d+)", package.version)
    if built is None:
        raise NotApplicable(f"flash-attn {package.version} does not say which torch it was built for")
    if torch.version.startswith(f"{built[2]}.") and built[1] == str(cuda.major):
        return
    yield Finding(
        Severity.ERROR,
        f"flash-attn {package.version} was built for torch {built[2]} with CUDA {built[1]},"
        f" but torch {torch.version} with CUDA {cuda} is installed",
        Fix(
            'Install a wheel of it for this torch, or build it; or do without: attn_implementation="sdpa".',
            (
                format_install_command(
                    facts, "flash-attn", replace=True, more="--no-deps --no-build-isolation --no-cache-dir"
                ),
            ),
            where=find_workload_side(facts),
        ),
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
    system = require_system(facts)
    platform = {Platform.WINDOWS: ("Windows", "win32"), Platform.MACOS: ("Darwin", "darwin")}.get(
        system.platform, ("Linux", "linux")
    )
    version = require_python(facts).version
    return requirement.marker.evaluate(
        {
            "platform_system": platform[0],
            "sys_platform": platform[1],
            "platform_machine": system.machine,
            "os_name": "nt" if platform[0] == "Windows" else "posix",
            "python_version": ".".join(str(number) for number in version.numbers[:2]),
            "python_full_version": str(version),
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "extra": "",
        }
    )


@check("PYT007", causes=("PYT018", "PYT019", "PYT020"))
def packages_agree(facts: Facts) -> Iterator[Finding]:
    packages = find_python_packages(facts)
    if not packages:
        raise NotApplicable("no package that matters to a GPU is installed in this Python")
    for package in packages.values():
        unstated: tuple[str, ...] = ()
        if package.name == "torch":  # a wheel of it does not state all that it needs
            version = package.version.partition("+")[0]
            unstated = next((row.requires for row in load_tables().torch.releases if str(row.version) == version), ())
        for line in (*(() if isinstance(package.requires, Unknown) else package.requires), *unstated):
            other = _find_unmet(line, packages, facts)
            if other is not None:
                wanted = line.partition(";")[0].strip()
                is_numpy = other.name == "numpy"
                summary = (
                    "Install a NumPy of the 1 series, or packages that are built for NumPy 2."
                    if is_numpy
                    else f"Bring {package.name} and {other.name} to releases that belong together: reinstall {package.name} and let"
                    f" it choose, or put {other.name} back."
                )
                command = (
                    format_install_command(facts, wanted)
                    if is_numpy or other.name not in _EXACT_PARTNERS
                    else format_upgrade_command(
                        facts, package.name, torch=other.version if other.name == "torch" else ""
                    )
                )
                yield Finding(
                    Severity.WARNING,
                    f"{package.name} {package.version} requires {wanted}, but {other.name} {other.version} is installed",
                    Fix(summary, (command,), where=find_workload_side(facts)),
                    subject=package.name,
                    evidence=(f"{package.name} {package.version}: {line}", f"installed: {other.name} {other.version}"),
                    confidence=Confidence.LIKELY if other.name in _EXACT_PARTNERS else Confidence.POSSIBLE,
                )


@check("PYT008")
def transformers_requirements_hold(facts: Facts) -> Iterator[Finding]:
    packages = find_python_packages(facts)
    transformers = packages.get("transformers")
    if transformers is None or "bitsandbytes" not in packages:
        raise NotApplicable("transformers and bitsandbytes are not both installed in this Python")
    release = Release.parse(transformers.version)
    floors = (row for row in load_tables().stack.floors if row.name == "transformers")
    rows = [row for row in floors if row.version <= release and row.version.major == release.major]
    if not rows:
        raise NotApplicable(f"what transformers {transformers.version} demands is not in the tables")
    for line in max(rows, key=lambda row: row.version).requires:
        name = str(Requirement(line).name)
        other = packages.get(name)
        if name == "torch" or (other is None and name == "peft"):
            continue  # torch stays, and is a matter of plans; only adapters need peft
        if other is not None and _find_unmet(line, packages, facts) is None:
            continue
        yield Finding(
            Severity.WARNING,
            f"transformers {transformers.version} loads 4-bit models only with {line},"
            f" but {f'{name} {other.version}' if other else 'none'} is installed",
            Fix(
                f"Install {name} for it, and restart running notebooks.",
                (format_upgrade_command(facts, line),),
                find_workload_side(facts),
            ),
            subject=name,
            evidence=(f"transformers {transformers.version}", f"{name}: {other.version if other else 'absent'}"),
        )


@check("PYT009")
def packages_are_installed_once(facts: Facts) -> Iterator[Finding]:
    python = require_python(facts)
    copies = sorted(require(python.copies), key=lambda copy: copy.name)
    for name, group in groupby(copies, key=lambda copy: copy.name):
        installed = tuple(group)
        if len({copy.version for copy in installed}) > 1:
            first = installed[0]
            is_users = bool(python.user_site) and first.folder == python.user_site
            others = join_words([f"{copy.version} in {copy.folder}" for copy in installed[1:]])
            commands = (
                ("export PYTHONNOUSERSITE=1",)
                if is_users
                else (format_uninstall_command(facts, name), format_upgrade_command(facts, name))
            )
            yield Finding(
                Severity.WARNING,
                f"{name} {first.version} in {first.folder} hides {others}",
                Fix(
                    "Keep the user's own folder out: set PYTHONNOUSERSITE=1, or remove the copy there."
                    if is_users
                    else f"Remove every copy of {name} and install it once.",
                    commands,
                    where=find_workload_side(facts),
                ),
                subject=name,
                evidence=tuple(f"{copy.folder}: {copy.name} {copy.version}" for copy in installed),
            )


@check("PYT010", causes=("PYT017", "PYT018", "PYT019", "PYT020"))
def wheels_fit_glibc(facts: Facts) -> Iterator[Finding]:
    # 2.28 from cp312-cp312-manylinux_2_28_x86_64; the lowest where a tag names several.
    platforms = {
        package.name: min(Release.parse(f"{major}.{minor}") for major, minor in named)
        for package in require_python(facts).packages
        if (named := re.findall(r"manylinux_(\d+)_(\d+)_", package.tag))
    }
    if not platforms:
        raise NotApplicable("no compiled wheel here names the C library that it needs")
    name = max(platforms, key=lambda package: platforms[package])
    glibc = require_system(facts).glibc
    if isinstance(glibc, Release) and glibc < platforms[name]:
        yield Finding(
            Severity.ERROR,
            f"the wheel of {name} needs glibc {platforms[name]}, but this system has {glibc}: its import fails",
            Fix(
                "Use an image with a newer C library, and install the packages there instead of copying them.",
                where=find_workload_side(facts),
            ),
            subject=name,
            evidence=(f"wheel of {name}: manylinux {platforms[name]}", f"glibc {glibc}"),
        )
    yield from _find_old_libstdcxx(facts, platforms[name], name)


def _find_old_libstdcxx(facts: Facts, platform: Release, name: str) -> Iterator[Finding]:
    library = require_python(facts).libstdcxx
    rows = [row for row in load_tables().manylinux.platforms if row.glibc <= platform]
    if library is None or isinstance(library, Unknown) or isinstance(library.version, Unknown) or not rows:
        return
    needed = max(rows, key=lambda row: row.glibc).glibcxx
    has = Release.parse(f"3.4.{library.version.numbers[-1]}")
    if library.version.numbers[:2] != (6, 0) or has >= needed:
        return
    yield Finding(
        Severity.WARNING,
        f"{library.path} has GLIBCXX up to {has}, but wheels such as {name}'s may need {needed}",
        Fix(
            "Let a newer libstdc++ come first: take the folder out of LD_LIBRARY_PATH, or update conda's.",
            ("conda install -c conda-forge libstdcxx-ng",) if require_python(facts).installer == "conda" else (),
            where=find_workload_side(facts),
        ),
        subject=library.path,
        evidence=(f"{library.path}: libstdc++ {library.version}", f"wheel of {name}: manylinux {platform}"),
        confidence=Confidence.LIKELY,
    )


@check("PYT016", causes=("PYT018",))
def bnb_cuda_version_fits_torch(facts: Facts) -> Iterator[Finding]:
    cuda = require_torch_cuda(facts)
    package = _require_package(facts, "bitsandbytes")
    python = require_python(facts)
    override = require(python.bnb_cuda_version)
    if override is None or (not override and not _is_falling_back(package)):
        raise NotApplicable("BNB_CUDA_VERSION is not set")
    problem = _find_override_problem(override, cuda, python.bitsandbytes_cuda)
    if not problem:
        return
    yield Finding(
        Severity.ERROR,
        f"BNB_CUDA_VERSION={override} {problem}: bitsandbytes does not load",
        Fix(
            "Unset it; look for the line that sets it in the Dockerfile, Compose file or shell profile.",
            ("unset BNB_CUDA_VERSION",),
            where=find_workload_side(facts),
        ),
        evidence=(
            f"BNB_CUDA_VERSION={override}",
            f"libraries for CUDA {join_words(python.bitsandbytes_cuda) or 'none found'}",
            f"torch is built with CUDA {cuda}",
        ),
    )


def _find_override_problem(override: str, cuda: Release, shipped: tuple[str, ...]) -> str:
    if not override.isdigit():
        return "is not a number such as 128"
    named = f"{override[:-1]}.{override[-1]}"
    if named.partition(".")[0] != str(cuda.major):
        return f"names the library for CUDA {named}, but torch has CUDA {cuda}"
    if shipped and named not in shipped:
        return f"names a library for CUDA {named}, which the package does not carry"
    return ""
