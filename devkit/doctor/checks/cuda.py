"""Checks of CUDA: driver, libcuda, image, CUDA Toolkit and torch fit each other, and CUDA starts."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping

from devkit.compat.rules import CudaSupport, find_oldest_driver
from devkit.compat.version_tables import load_tables
from devkit.compat.wheels import DriverCuda
from devkit.doctor.error_codes import find_cuda_code
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    is_in_container,
    require,
    require_container,
    require_driver,
    require_gpu_engine,
    require_loaded_driver,
    require_some,
    require_torch,
    require_torch_cuda,
    require_visible_gpu,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import FIRST_GENERIC_L4T, JETSON_INDEXES
from devkit.doctor.wheels import (
    find_compatible_wheel,
    find_compute_capabilities,
    find_driver_cuda,
    format_install_command,
    format_wheel_install_command,
    is_forward_compatible,
)
from devkit.facts.gpu import Driver
from devkit.facts.machine import CudaFolder, Torch
from devkit.facts.model import Facts
from devkit.facts.runs import CudaCall, StepEnd
from devkit.facts.values import Release, Unknown
from devkit.text import join_words

_COMPILED_PACKAGES = (
    "deepspeed",
    "apex",
    "transformer-engine",
    "flash-attn",
    "flash-attn-3",
    "xformers",
    "auto-gptq",
    "gptqmodel",
)
"""Packages that start nvcc, when they are installed or at their first use."""
_STUBS = "/stubs"
_ENGINE_MACHINES = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}
"""How engines name the processor that uname calls by the key."""
CONSUMER_BRANDS = ("geforce", "titan")
_CONDITION = re.compile(r"(\w+)(>=|<=|!=|=|<|>)([\w.]+)")
_COMPARISONS: Mapping[str, Callable[[Release, Release], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "!=": operator.ne,
}


def _require_driver_cuda(facts: Facts) -> DriverCuda:
    require_visible_gpu(facts)
    return require_some(find_driver_cuda(facts), "the driver's version is not known")


@check("CUD001")
def image_requirement_met(facts: Facts) -> Iterator[Problem]:
    driver = _require_driver_cuda(facts)
    requirement = require_some(require_container(facts).require_cuda or None, "the image sets no NVIDIA_REQUIRE_CUDA")
    wanted = find_unmet_cuda(requirement, driver, tuple(gpu.name for gpu in facts.gpus))
    if wanted is None:
        return
    is_minor = driver.classify(wanted) in (CudaSupport.FULL, CudaSupport.MINOR)
    yield problem(
        "needs-minor-compatibility" if is_minor else "driver-too-old",
        wanted=wanted,
        driver=driver.release,
        newest=f"CUDA {driver.cuda}" if driver.cuda else "an older CUDA",
        evidence=(f"NVIDIA_REQUIRE_CUDA={requirement[:120]}", f"driver {driver.release}"),
        confidence=Confidence.CERTAIN if driver.reported_cuda else Confidence.LIKELY,
    )


def find_unmet_cuda(requirement: str, driver: DriverCuda, gpu_names: tuple[str, ...]) -> Release | None:
    """Find the CUDA version that the image requires if the driver meets no alternative; None if it meets one.

    A requirement without any `cuda>=` condition is taken as met: it says nothing about CUDA.
    """
    wanted = re.search(r"cuda>=([\d.]+)", requirement)
    if wanted is None:
        return None
    alternatives = requirement.split()
    if any(
        all(_is_condition_met(condition, driver, gpu_names) for condition in alternative.split(","))
        for alternative in alternatives
    ):
        return None
    return Release.parse(wanted[1])


def _is_condition_met(condition: str, driver: DriverCuda, gpu_names: tuple[str, ...]) -> bool:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        return False
    name, comparison, value = match.groups()
    if name == "brand":
        # Whether GPUs are of the brand. Only consumer brands show in a GPU's name; any other brand may be theirs.
        consumer = [kind for kind in CONSUMER_BRANDS if any(kind in name.lower() for name in gpu_names)]
        return (value in consumer if consumer or value in CONSUMER_BRANDS else True) is (comparison == "=")
    seen = {"cuda": driver.cuda, "driver": driver.release}.get(name)
    return seen is not None and value[0].isdigit() and _COMPARISONS[comparison](seen, Release.parse(value))


@check("CUD002", causes=("CUD003", "PYT006", "CUD011", "PYT017"))
def compat_libcuda_is_accepted(facts: Facts) -> Iterator[Problem]:
    driver = _require_driver_cuda(facts)
    path = require_container(facts).compat_libcuda
    if not path:
        return
    copy = require(facts.driver).libcuda
    if isinstance(copy, Release) and copy == driver.release:
        return
    evidence = (f"first libcuda.so.1: {path}", f"driver {driver.release}")
    if isinstance(copy, Release) and copy < driver.release:
        yield problem("older-than-driver", path=path, driver=driver.release, evidence=evidence)
    elif facts.gpus and not is_forward_compatible(facts.gpus):
        names = ", ".join(sorted({gpu.name for gpu in facts.gpus}))
        yield problem("not-accepted", path=path, gpus=names, evidence=evidence)


@check("CUD003", causes=("CUD011", "PYT017"))
def libcuda_matches_module(facts: Facts) -> Iterator[Problem]:
    driver = require_driver(facts)
    release = require_loaded_driver(facts)
    if is_in_container(facts) and require_container(facts).compat_libcuda:
        raise NotApplicable("a forward-compatibility libcuda comes first")
    library = require_some(driver.libcuda, "libcuda.so.1 was not found here")
    if library != release:
        paths = () if isinstance(driver.libcuda_paths, Unknown) else driver.libcuda_paths
        yield problem(
            "other-version",
            library=library,
            module=release,
            subject=next(iter(paths), ""),
            evidence=(f"/sys/module/nvidia/version: {release}", *(f"found {path}" for path in paths)),
        )


@check("CUD004", causes=("PYT006", "PYT017", "PYT018", "PYT019"))
def driver_runs_torch_cuda(facts: Facts) -> Iterator[Problem]:
    driver = _require_driver_cuda(facts)
    torch, cuda = require_torch(facts), require_torch_cuda(facts)
    has_compat = is_in_container(facts) and bool(require_container(facts).compat_libcuda)
    forward = has_compat and is_forward_compatible(facts.gpus)
    if driver.classify(cuda, has_forward_gpus=forward) is not CudaSupport.NO:
        return
    floor = find_oldest_driver(cuda, platform=driver.platform)
    # The cheaper repair first: another wheel needs neither root nor a reboot.
    wheel = find_compatible_wheel(facts)
    yield problem(
        "other-wheel-fits" if wheel else "no-wheel-fits",
        torch=torch.version,
        cuda=cuda,
        driver=driver.release,
        wanted=f"{floor} or newer" if floor else "that runs it",
        wheel=wheel.version if wheel else "none",
        label=wheel.label if wheel else "none",
        install_torch=format_wheel_install_command(facts, wheel) if wheel else "",
        evidence=(
            f"torch {torch.version}, built with CUDA {cuda}",
            f"driver {driver.release}, for CUDA up to {driver.cuda or 'a version before the tables'}",
            f"CUDA {cuda} needs driver {floor} or newer" if floor else f"no driver is known for CUDA {cuda}",
        ),
    )


@check("CUD005", require_visible_gpu, causes=("CUD003", "CUD011", "PYT017"))
def libcuda_is_not_a_stub(facts: Facts) -> Iterator[Problem]:
    path = require(facts.python).ld_library_path
    folders = [folder for folder in path if folder.endswith(_STUBS)]
    known = facts.driver.libcuda_paths if isinstance(facts.driver, Driver) else ()
    first = "" if isinstance(known, Unknown) else next(iter(known), "")
    evidence = (f"LD_LIBRARY_PATH={':'.join(path)}", f"first libcuda.so.1: {first or '-'}")
    if f"{_STUBS}/" in first:
        yield problem("stub-loaded", path=first, evidence=evidence)
    elif folders:
        yield problem("stubs-in-path", folders=join_words(folders), subject=folders[0], evidence=evidence)


def _require_toolkit(facts: Facts) -> tuple[CudaFolder, Release]:
    require_visible_gpu(facts)
    toolkit = require_some(require(facts.python).cuda_toolkit, "no CUDA Toolkit with a compiler is installed here")
    # 13.0.88 is a patch of 13.0, and runs wherever that does.
    numbers = require(toolkit.version).numbers[:2]
    return toolkit, Release.parse(".".join(str(number) for number in numbers))


@check("CUD006", causes=("CUD007",))
def cuda_supports_every_gpu(facts: Facts) -> Iterator[Problem]:
    version, source = _find_cuda(facts)
    skip_if(not facts.gpus, "no GPU answers")
    python = require(facts.python)
    brings_cuda = isinstance(python.torch, Torch) and isinstance(python.torch.cuda, Release)
    is_unused = brings_cuda and not any(package.name in _COMPILED_PACKAGES for package in python.packages)
    for gpu in facts.gpus:
        row = load_tables().driver.capabilities.get(require(gpu.capability))
        if row is None:
            continue
        is_too_new = row.last_cuda is not None and version > row.last_cuda
        if is_too_new or version < row.first_cuda:
            yield problem(
                "gpu-dropped" if is_too_new else "gpu-not-known-yet",
                cuda=version,
                source=source,
                sm=row.capability.sm,
                architecture=row.architecture,
                first_cuda=row.first_cuda,
                last_cuda=row.last_cuda or "none",
                index=gpu.index,
                name=gpu.name,
                evidence=(f"{source}: CUDA {version}", f"GPU {gpu.index} has compute capability {row.capability}"),
                severity=Severity.NOTE if is_unused else Severity.WARNING,
            )


def _find_cuda(facts: Facts) -> tuple[Release, str]:
    try:
        toolkit, version = _require_toolkit(facts)
    except NotApplicable:
        require_visible_gpu(facts)
    else:
        return version, toolkit.path
    container = facts.container
    required = "" if container is None or isinstance(container, Unknown) else container.require_cuda or ""
    wanted = required.partition("cuda>=")[2].split(",")[0].split()
    skip_if(not wanted, "the only CUDA here comes with torch")
    return Release.parse(wanted[0]), "the image"


@check("CUD007")
def driver_compiles_toolkit_ptx(facts: Facts) -> Iterator[Problem]:
    toolkit, version = _require_toolkit(facts)
    driver = find_driver_cuda(facts)
    if driver is None or driver.cuda is None:
        raise NotApplicable("the newest CUDA of the driver is not known")
    if driver.can_compile(version):
        return
    capabilities = ";".join(sorted({str(capability) for capability in find_compute_capabilities(facts)}))
    yield problem(
        "newer-minor" if driver.cuda.major == version.major else "newer-major",
        toolkit=version,
        cuda=driver.cuda,
        driver=driver.release,
        name_gpus=(f'export TORCH_CUDA_ARCH_LIST="{capabilities}"',) if capabilities else (),
        subject=toolkit.path,
        evidence=(
            f"{toolkit.path} (by {toolkit.found_by}): CUDA {version}",
            f"driver {driver.release}: CUDA {driver.cuda}",
        ),
    )


@check("CUD008")
def toolkit_fits_torch(facts: Facts) -> Iterator[Problem]:
    cuda = require_torch_cuda(facts)
    toolkit, version = _require_toolkit(facts)
    if version.major == cuda.major:
        return
    builders = [package.name for package in require(facts.python).packages if package.name in _COMPILED_PACKAGES]
    yield problem(
        "other-major",
        toolkit=version,
        path=toolkit.path,
        cuda=cuda,
        evidence=(
            f"{toolkit.path} (by {toolkit.found_by}): CUDA {version}",
            f"torch is built with CUDA {cuda}",
            *([f"builds extensions: {join_words(builders)}"] if builders else []),
        ),
        severity=Severity.WARNING if builders and is_in_container(facts) else Severity.NOTE,
    )


@check("CUD009")
def images_are_for_this_processor(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    fitting = _ENGINE_MACHINES.get(engine.machine)
    if fitting is None:
        raise NotApplicable(f"the engine's machine {engine.machine!r} is not known")
    for image in require(engine.images):
        # Other people's images may be emulated on purpose; a dev container with a GPU never is.
        if image.is_dev_container is True and image.machine and image.machine not in fitting:
            yield problem(
                "other-processor",
                image=image.name,
                processor=image.machine,
                machine=fitting[0],
                evidence=(f"{image.name}: {image.machine}", f"engine: {fitting[0]}"),
            )


@check("CUD010", causes=("PYT001", "PYT002"))
def torch_fits_jetpack(facts: Facts) -> Iterator[Problem]:
    tegra = require_some(require(facts.system).tegra, "this is not a Jetson")
    torch = require_some(require(facts.python).torch, "torch is not installed in this Python")
    if isinstance(tegra.release, Release) and tegra.release.major >= FIRST_GENERIC_L4T:
        return
    # PyTorch's own indexes have +cpu, +cu126 …; Jetson builds say 2.5.0a0+…nv24.08 or nothing.
    label = torch.version.partition("+")[2]
    if label != "cpu" and label not in load_tables().torch.indexes and (label or torch.cuda is not None):
        return
    release = tegra.release if isinstance(tegra.release, Release) else None
    index = JETSON_INDEXES.get(release.major) if release else None
    system = f"L4T {release}" if release else "L4T release not known"
    yield problem(
        "server-build",
        torch=torch.version,
        board=tegra.model or "this Jetson",
        system=system,
        install_torch=(format_install_command(facts, "torch", "numpy<2", index=index, replace=True),) if index else (),
        evidence=(f"board: {tegra.model or 'not named'}", system, f"torch {torch.version}"),
        severity=Severity.ERROR if release else Severity.WARNING,
        confidence=Confidence.LIKELY if release else Confidence.POSSIBLE,
    )


@check("CUD011", require_visible_gpu, causes=("PYT017", "PYT018", "PYT019"))
def cuda_starts(facts: Facts) -> Iterator[Problem]:
    answer = require(facts.deep).cuda
    if isinstance(answer, Unknown):
        raise NotApplicable(answer.reason, is_lost=answer.is_lost)
    libcuda = f"libcuda: {answer.libcuda or 'not loaded'}"
    if isinstance(answer, CudaCall):
        code = f"{answer.code} ({answer.name})" if isinstance(answer.name, str) and answer.name else str(answer.code)
        evidence = (f"cuInit returns {code}", libcuda)
        if known := find_cuda_code(answer.code):
            # Inside a container the commands are the host's, where the advice is not about the image alone.
            of_container = known.in_container if is_in_container(facts) else ""
            yield problem(
                "known-error",
                code=code,
                meaning=known.why,
                advice=of_container or known.advice,
                repair=() if of_container else known.commands,
                needs_root="yes" if known.needs_root else "no",
                evidence=evidence,
                confidence=known.confidence,
            )
        elif answer.code != 0:
            yield problem("refused", code=code, evidence=evidence)
    elif answer.end is StepEnd.TIMED_OUT:
        yield problem("hangs", call=answer.call, evidence=(f"{answer.call} hangs", answer.message, libcuda))
    elif answer.end is StepEnd.CRASHED:
        yield problem("crashes", call=answer.call, evidence=(f"{answer.call} crashes", answer.message, libcuda))
    else:
        yield problem("no-library", evidence=("libcuda cannot be loaded", answer.message, libcuda))
