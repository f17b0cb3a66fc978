"""Checks of how the driver is installed: one version, one source, and package lists that agree."""

import re
from collections.abc import Iterator

from devkit.doctor.checks.cascades import (
    CDI_CODES,
    CONTAINER_CODES,
    CONTAINER_START_CODES,
    CUDA_CODES,
    NEEDS_DRIVER_CODES,
)
from devkit.doctor.fixes import DistroFamily, find_distro_family
from devkit.doctor.model import NotApplicable, check
from devkit.doctor.preconditions import (
    is_in_container,
    require,
    require_container,
    require_driver,
    require_host,
    require_loaded_driver,
    require_visible_gpu,
)
from devkit.doctor.problems import Problem, problem
from devkit.facts.gpu import DriverPackage
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown
from devkit.text import join_words

_MAX_PACKAGES = 6
_DPKG_DONE_STATES = ("installed", "config-files", "not-installed")
"""States in which dpkg has nothing left to do."""
_BRANCH = re.compile(
    r"^(?:lib)?nvidia-[a-z-]*?-?(\d{3})(?:-|$)|^linux-modules-nvidia-(\d{3})-|^libnvidia-[a-z0-9-]+-(\d{3})"
)
_META = re.compile(r"^cuda-drivers(?:-\d+)?$")
_DRIVER = re.compile(
    r"^(?:nvidia-driver-\d|nvidia-dkms-\d|libnvidia-compute-\d|akmod-nvidia|kmod-nvidia|xorg-x11-drv-nvidia)"
)
_OF_UBUNTU = re.compile(r"ubuntu0\.\d\d\.\d\d")
"""How Ubuntu marks its own builds: 580.95.05-0ubuntu0.24.04.2; NVIDIA's repository has 580.95.05-0ubuntu1."""


@check("DRV011", require_host)
def apt_sources_agree(facts: Facts) -> Iterator[Problem]:
    sources = require(require_driver(facts).apt_sources)
    for url in dict.fromkeys(source.url for source in sources):
        same = [source for source in sources if source.url == url]
        if len({source.signed_by for source in same}) < 2:
            continue
        # The files to delete: all but the one that today's guide writes, or all but the last.
        paths = list(dict.fromkeys(source.path for source in same))
        current = next((path for path in paths if "nvidia-container-toolkit" in path), paths[-1])
        older = tuple(path for path in paths if path != current) or tuple(paths[:1])
        evidence = [f"{source.path}: signed-by {source.signed_by or 'not set'}" for source in same]
        yield problem(
            "different-keys", count=len(same), url=url, older_lists=older, subject=older[0], evidence=evidence
        )


@check("DRV012", require_host, causes=("DRV002", *NEEDS_DRIVER_CODES))
def driver_is_of_one_version(facts: Facts) -> Iterator[Problem]:
    driver = require_driver(facts)
    if find_distro_family(facts) is DistroFamily.NIXOS:
        raise NotApplicable("on NixOS, the module and libraries change together at a reboot")
    on_disk, library = require(driver.on_disk), require(driver.libnvidia_ml)
    known = () if isinstance(driver.packages, Unknown) else driver.packages
    broken = [package for package in known if package.state not in _DPKG_DONE_STATES]
    # Packages that carry a branch in their name, one for each branch, as evidence of two that are mixed.
    named: dict[str, DriverPackage] = {}
    for package in known:
        if (match := _BRANCH.match(package.name)) and package.state == "installed":
            named.setdefault(next(filter(None, match.groups())), package)
    branch = library.major if isinstance(library, Release) else "<branch>"
    packages = [f"{package.name} {package.version}: {package.state}" for package in broken or named.values()]
    evidence = (f"modinfo -F version nvidia: {on_disk}", f"libnvidia-ml.so.{library}", *packages[:_MAX_PACKAGES])
    if isinstance(on_disk, Release) and isinstance(library, Release) and on_disk != library:
        yield problem("two-versions", module=on_disk, library=library, branch=branch, evidence=evidence)
    elif broken:
        names = join_words(package.name for package in broken)
        yield problem("half-installed", packages=names, branch=branch, evidence=evidence)


@check("DRV014", require_visible_gpu, causes=(*CDI_CODES, *CONTAINER_START_CODES, *CUDA_CODES, *CONTAINER_CODES))
def cuda_library_is_installed(facts: Facts) -> Iterator[Problem]:
    driver, loaded = require_driver(facts), require_loaded_driver(facts)
    if require(driver.libnvidia_ml) is None or require(driver.libcuda) is not None or require(driver.libcuda_paths):
        return
    evidence = (f"kernel module: {loaded}", f"libnvidia-ml.so.1: {driver.libnvidia_ml}", "libcuda.so.1: not found")
    if is_in_container(facts):
        requested = {name.strip() for name in (require_container(facts).driver_capabilities or "all").split(",")}
        if driver.nvidiactl != "open" or not requested & {"all", "compute"}:
            raise NotApplicable("this container did not request the library")
        yield problem("not-given", evidence=evidence)
    else:
        yield problem("not-installed", branch=loaded.major, evidence=evidence)


@check("DRV013", require_host)
def driver_has_one_source(facts: Facts) -> Iterator[Problem]:
    installed = [package for package in require(require_driver(facts).packages) if package.state == "installed"]
    meta = next((package for package in installed if _META.match(package.name)), None)
    others = [
        package
        for package in installed
        if _DRIVER.match(package.name)
        and (package.name.startswith(("akmod-nvidia", "xorg-x11-drv-nvidia")) or _OF_UBUNTU.search(package.version))
    ]
    if meta is not None and others:
        yield problem(
            "two-sources",
            meta=meta.name,
            version=meta.version,
            driver=others[0].name,
            subject=meta.name,
            evidence=[f"{package.name} {package.version}" for package in (meta, *others[:_MAX_PACKAGES])],
        )
