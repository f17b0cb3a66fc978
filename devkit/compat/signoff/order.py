"""What must hold between rows: newer versions need newer drivers, and whatever a row names is there."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from devkit.compat.load import Tables
from devkit.compat.signoff.fault import Fault
from devkit.facts.values import ComputeCapability, Release

Rule = Callable[[Tables], Iterator[Fault]]

_CUDA_LABEL = re.compile(r"cu(\d+)(\d)")
_TARGET = re.compile(r"(\d+\.\d)[af]?")
_PYTHON = re.compile(r"3\.\d+")
_VERSION = re.compile(r"\d[\w.+!]*", re.ASCII)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_TAG = re.compile(r"[a-z0-9][\w.:/-]*", re.ASCII)
_IMAGE = re.compile(r"[a-z0-9][\w.:/@-]*", re.ASCII)
_INDEX = re.compile(r"https://[\w.-]+(?:/[\w.+-]+)*/?", re.ASCII)


def toolkits_are_ordered(known: Tables) -> Iterator[Fault]:
    """A newer CUDA Toolkit never needs an older driver, and its number is that of its CUDA."""
    rows = sorted(known.driver.toolkits, key=lambda row: row.version)
    for row in rows:
        if row.cuda.numbers != row.version.numbers[:2]:
            yield Fault("driver", f"toolkit {row.version}", f"it is no release of CUDA {row.cuda}")
    linux = [(str(row.version), row.linux_driver) for row in rows]
    windows = [(str(row.version), row.windows_driver) for row in rows if row.windows_driver is not None]
    for floors in (linux, windows):
        for (older, before), (newer, driver) in pairwise(floors):
            if _is_below(driver, before):
                says = f"it needs driver {driver}, older than the {before} of {older}"
                yield Fault("driver", f"toolkit {newer}", says)


def branches_are_ordered(known: Tables) -> Iterator[Fault]:
    """A newer driver branch never runs an older CUDA, and runs that of every toolkit that came with it."""
    linux = sorted((row.branch, row.cuda) for row in known.driver.branches)
    windows = sorted((max(row.branches), row.cuda) for row in known.driver.windows_branches)
    for array, branches in (("branch", linux), ("windows_branch", windows)):
        for (older, before), (newer, cuda) in pairwise(branches):
            if cuda < before:
                yield Fault("driver", f"{array} {newer}", f"it runs CUDA {cuda}, older than the {before} of {older}")
    newest = dict(linux)
    for row in known.driver.toolkits:
        runs = newest.get(row.linux_driver.major)
        if runs is None or runs < row.cuda:
            says = (
                f"its driver {row.linux_driver} is of a branch that runs {f'CUDA {runs}' if runs else 'no known CUDA'}"
            )
            yield Fault("driver", f"toolkit {row.version}", says)


def families_are_ordered(known: Tables) -> Iterator[Fault]:
    """Minor version compatibility begins with the branch of a major's first toolkit, and rises with the major."""
    families = [family for _, family in sorted(known.driver.families.items())]
    for older, newer in pairwise(families):
        if newer.linux_driver <= older.linux_driver or newer.windows_driver <= older.windows_driver:
            yield Fault("driver", f"family {newer.major}", f"its floors are not above those of CUDA {older.major}")
    for family in families:
        first = min((row.linux_driver for row in known.driver.toolkits if row.cuda.major == family.major), default=None)
        if first is None or first.major != family.linux_driver.major:
            says = f"its floor {family.linux_driver} is not of the branch of its first toolkit, {first or 'none'}"
            yield Fault("driver", f"family {family.major}", says)
    unknown = {row.cuda.major for row in known.driver.toolkits} - set(known.driver.families)
    for major in sorted(unknown):
        if major >= families[0].major:
            yield Fault("driver", f"family {major}", "its toolkits are known, its oldest driver is not")


def capabilities_are_ordered(known: Tables) -> Iterator[Fault]:
    """What targets or knows a compute capability begins before it ends."""
    for capability, row in known.driver.capabilities.items():
        if row.last_cuda is not None and row.last_cuda < row.first_cuda:
            says = f"CUDA {row.last_cuda}, the last for it, is older than the first, {row.first_cuda}"
            yield Fault("driver", f"capability {capability}", says)
        if None not in (row.first_branch, row.last_branch) and (row.last_branch or 0) < (row.first_branch or 0):
            says = f"branch {row.last_branch}, the last for it, is older than the first, {row.first_branch}"
            yield Fault("driver", f"capability {capability}", says)


def forward_packages_stand_on_older_branches(known: Tables) -> Iterator[Fault]:
    """cuda-compat is for hosts whose own driver is too old for that CUDA."""
    newest = {row.branch: row.cuda for row in known.driver.branches}
    for row in known.driver.forward:
        for branch in row.host_branches:
            if branch not in newest or newest[branch] >= row.cuda:
                says = f"branch {branch} is not known" if branch not in newest else f"branch {branch} runs it anyway"
                yield Fault("driver", f"forward {row.package}", says)


def gpus_have_known_capabilities(known: Tables) -> Iterator[Fault]:
    """A GPU's compute capability is one that the driver table knows."""
    for row in known.gpus.models:
        if row.capability not in known.driver.capabilities:
            yield Fault("gpus", f"gpu {row.id}", f"nothing is known of its compute capability {row.capability}")


def rates_are_of_gpus(known: Tables) -> Iterator[Fault]:
    """Each row of rates is that of a GPU in the table, and promises nothing below zero."""
    models = {row.id for row in known.gpus.models}
    for name, row in known.gpus.rates.items():
        if name not in models:
            yield Fault("gpus", f"rate {name}", "no GPU of the table has this id", True)
        if min(row.fp16_tflops, row.bf16_tflops, row.bandwidth_gb_per_s, row.nvlink_gb_per_s) < 0:
            yield Fault("gpus", f"rate {name}", "it promises less than nothing")


def releases_have_wheels(known: Tables) -> Iterator[Fault]:
    """Every variant of a torch release has an index and a wheel."""
    torch = known.torch
    for row in torch.releases:
        called = f"release {row.version}"
        for variant in dict.fromkeys((*row.variants, row.default_variant)):
            if variant not in torch.indexes:
                yield Fault("torch", called, f"there is no index {variant!r}")
            elif (row.minor, variant, "x86_64") not in torch.wheels:
                yield Fault("torch", called, f"there is no wheel of {row.minor} with {variant}")
    for label, index in torch.indexes.items():
        named = _CUDA_LABEL.fullmatch(label)
        if named and (index.cuda is None or index.cuda.numbers != (int(named[1]), int(named[2]))):
            yield Fault("torch", f"index {label}", f"its CUDA is {index.cuda}, which is not what it is called after")


def wheels_hold_what_their_cuda_builds(known: Tables) -> Iterator[Fault]:
    """No wheel and no library holds GPU code that its CUDA Toolkit cannot make."""
    for (minor, variant, machine), wheel in known.torch.wheels.items():
        index = known.torch.indexes.get(variant)
        if index is None:
            yield Fault("torch", f"wheel {minor} {variant} {machine}", f"there is no index {variant!r}")
        elif index.cuda is not None:
            called = f"wheel {minor} {variant} {machine}"
            yield from _code("torch", called, (*wheel.sass, *wheel.ptx), (index.cuda,), known)
    for row in known.stack.libraries:
        cudas = tuple(Release.read(cuda) for cuda in row.cudas)
        called = f"library {row.version} {row.machine} {' '.join(row.cudas)}"
        yield from _code("stack", called, (*row.sass, *row.ptx), cudas, known)


def libraries_belong_to_releases(known: Tables) -> Iterator[Fault]:
    """A library of bitsandbytes is for CUDA versions that its release carries one for."""
    shipped = {row.version: set(row.cudas) for row in known.stack.bitsandbytes}
    for row in known.stack.libraries:
        missing = set(row.cudas) - shipped.get(row.version, set())
        if missing:
            says = f"bitsandbytes {row.version} carries no library for CUDA {', '.join(sorted(missing))}"
            yield Fault("stack", f"library {row.version} {row.machine}", says)


def texts_can_stand_in_files(known: Tables) -> Iterator[Fault]:
    """What a plan copies into a Dockerfile or a command is what its name says, and nothing more."""
    torch, images = known.torch, known.images
    texts = [("torch", f"index {label}", _INDEX, row.url) for label, row in torch.indexes.items()]
    texts += [("torch", f"release {row.version}", _PYTHON, each) for row in torch.releases for each in row.pythons]
    texts += [("torch", "release", _VERSION, str(row.version)) for row in torch.releases]
    texts += [("images", "python_image", _TAG, row.tag) for row in images.python_images]
    texts += [("images", "cuda_image", _TAG, f"{row.cuda}-{row.system}") for row in images.cuda_images]
    texts += [("stack", f"package {row.name}", _VERSION, row.version) for row in known.stack.packages]
    texts += [("stack", "package", _NAME, row.name) for row in known.stack.packages]
    texts += [("stack", "bitsandbytes", _VERSION, row.version) for row in known.stack.bitsandbytes]
    texts += [("stack", "python", _PYTHON, row.version) for row in known.stack.pythons]
    texts += [("rocm", f"index {label}", _INDEX, row.url) for label, row in known.rocm.indexes.items()]
    texts += [("profiles", f"image {name}", _IMAGE, row.image) for name, row in known.profiles.images.items()]
    texts += [("profiles", f"package {row.name}", _VERSION, row.version) for row in known.profiles.packages]
    texts += [("profiles", "package", _NAME, row.name) for row in known.profiles.packages]
    for table, called, pattern, text in texts:
        if not pattern.fullmatch(text):
            yield Fault(table, called, f"{text!r} is not of the form {pattern.pattern}")


def requirements_are_readable(known: Tables) -> Iterator[Fault]:
    """Requirement lines and Python specifiers are such."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for row in known.stack.packages:
        try:
            SpecifierSet(row.python)
            [Requirement(line) for line in row.requires]
        except (InvalidSpecifier, InvalidRequirement) as error:
            yield Fault("stack", f"package {row.name} {row.version}", str(error).splitlines()[0])


RULES: tuple[Rule, ...] = (
    toolkits_are_ordered,
    branches_are_ordered,
    families_are_ordered,
    capabilities_are_ordered,
    forward_packages_stand_on_older_branches,
    gpus_have_known_capabilities,
    rates_are_of_gpus,
    releases_have_wheels,
    wheels_hold_what_their_cuda_builds,
    libraries_belong_to_releases,
    texts_can_stand_in_files,
    requirements_are_readable,
)
"""Every rule that tables keep among their rows."""


def order_faults(known: Tables) -> Iterator[Fault]:
    """What the rules have against these tables."""
    for rule in RULES:
        yield from rule(known)


def _code(
    table: str, called: str, targets: Iterable[str], cudas: tuple[Release, ...], known: Tables
) -> Iterator[Fault]:
    for target in targets:
        named = _TARGET.fullmatch(target)
        row = known.driver.capabilities.get(ComputeCapability.read(named[1])) if named else None
        if row is None:
            yield Fault(table, called, f"{target!r} is no known compute capability")
            continue
        for cuda in cudas:
            if cuda < row.first_cuda or (row.last_cuda is not None and row.last_cuda < cuda):
                yield Fault(table, called, f"CUDA {cuda} builds no code for {target}")


def _is_below(driver: Release, floor: Release) -> bool:
    """A bare branch such as 580 stands for any driver of it."""
    is_bare = 1 in (len(driver.numbers), len(floor.numbers))
    return driver.major < floor.major if is_bare else driver < floor
