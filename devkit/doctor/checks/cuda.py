"""Checks of CUDA: driver, libcuda, image, CUDA Toolkit and torch fit each other, and CUDA starts."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from shlex import quote

from devkit.compat.rules import CudaSupport, find_oldest_driver
from devkit.compat.version_tables import load_tables
from devkit.compat.wheels import DriverCuda
from devkit.doctor.error_codes import CudaErrorMeaning, find_cuda_code
from devkit.doctor.fixes import CUDA_COMPATIBILITY_GUIDE, find_driver_side, find_host_side, update_driver
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import (
    is_in_container,
    require,
    require_container,
    require_driver,
    require_gpu_engine,
    require_loaded_driver,
    require_python,
    require_system,
    require_torch,
    require_torch_cuda,
    require_visible_gpu,
)
from devkit.doctor.thresholds import FIRST_GENERIC_L4T, JETSON_INDEXES
from devkit.doctor.wheels import (
    find_compatible_wheel,
    find_driver_cuda,
    find_workload_side,
    format_install_command,
    format_wheel_install_command,
    is_forward_compatible,
)
from devkit.facts.model import CudaCall, CudaFolder, Driver, Facts, StepEnd, Tegra, Torch
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

_NO_LIBRARY = CudaErrorMeaning(
    "the driver's libcuda is not here",
    "Install the driver with its CUDA library.",
    in_container="Ask for the GPU with the driver capability compute, and recreate the container.",
)

_HANGS = CudaErrorMeaning(
    "the driver does not come back: a GPU that fell off the bus, or a GPU of many that wakes up slowly",
    "Look for Xid lines in the kernel log, switch persistence on, and reboot if it stays so.",
    ("journalctl -k -b | grep -i xid",),
    confidence=Confidence.POSSIBLE,
)

_CRASHES = CudaErrorMeaning(
    "the library does not fit the driver, or is damaged",
    "Reinstall the driver's libraries, and remove copies of libcuda from elsewhere.",
    ("ldconfig -p | grep libcuda",),
    in_container="Recreate the container, and remove copies of libcuda from the image.",
    confidence=Confidence.POSSIBLE,
)

_OTHER = CudaErrorMeaning("the driver refused", "Look the code up in NVIDIA's list of CUresult, and at the kernel log.")

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
    driver = find_driver_cuda(facts)
    if driver is None:
        raise NotApplicable("the driver's version is not known")
    return driver


@check("CUD001")
def image_requirement_met(facts: Facts) -> Iterator[Finding]:
    driver = _require_driver_cuda(facts)
    requirement = require_container(facts).require_cuda
    if not requirement:
        raise NotApplicable("the image sets no NVIDIA_REQUIRE_CUDA")
    wanted = find_unmet_cuda(requirement, driver, tuple(gpu.name for gpu in facts.gpus))
    if wanted is None:
        return
    newest = f"CUDA {driver.cuda}" if driver.cuda else "an older CUDA"
    support = driver.classify(wanted)
    still_runs = support in (CudaSupport.FULL, CudaSupport.MINOR)
    advice = (
        " Minor version compatibility holds for this driver, so NVIDIA_DISABLE_REQUIRE=1 is safe here; code that must"
        " compile PTX still needs the newer driver."
        if still_runs
        else " NVIDIA_DISABLE_REQUIRE would only move the failure to the first CUDA call."
    )
    yield Finding(
        Severity.WARNING if still_runs else Severity.ERROR,
        f"the image requires a driver for CUDA {wanted}, but driver {driver.release} is for {newest}",
        Fix(
            f"Use an image without CUDA (torch wheels carry their own) or one for {newest},"
            f" or update the driver.{advice}",
            where=Side.IMAGE,
            docs=CUDA_COMPATIBILITY_GUIDE,
        ),
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
def compat_libcuda_is_accepted(facts: Facts) -> Iterator[Finding]:
    driver = _require_driver_cuda(facts)
    path = require_container(facts).compat_libcuda
    if not path:
        return
    copy = require(facts.driver).libcuda
    if isinstance(copy, Release) and copy == driver.release:
        return
    is_older = isinstance(copy, Release) and copy < driver.release
    if not is_older and (not facts.gpus or is_forward_compatible(facts.gpus)):
        return
    names = ", ".join(sorted({gpu.name for gpu in facts.gpus})) or "the GPU"
    yield Finding(
        Severity.ERROR,
        f"the image's {path} is older than driver {driver.release}: CUDA ends with error 803"
        if is_older
        else f"{path} is loaded first, but {names} does not support forward compatibility: CUDA ends with error 804",
        Fix(
            "Take the compat folder out of LD_LIBRARY_PATH and the loader's configuration, or remove the package"
            " cuda-compat from the image. The host's libcuda then serves.",
            ("apt-get purge -y 'cuda-compat-*' && ldconfig",),
            where=Side.IMAGE,
            root=True,
            docs=CUDA_COMPATIBILITY_GUIDE,
        ),
        subject=path,
        evidence=(f"first libcuda.so.1: {path}", f"driver {driver.release}"),
        confidence=Confidence.LIKELY,
    )


@check("CUD003", causes=("CUD011", "PYT017"))
def libcuda_matches_module(facts: Facts) -> Iterator[Finding]:
    driver = require_driver(facts)
    release = require_loaded_driver(facts)
    if is_in_container(facts) and require_container(facts).compat_libcuda:
        raise NotApplicable("a forward-compatibility libcuda comes first")
    library = require(driver.libcuda)
    if library is None:
        raise NotApplicable("no libcuda.so.1 is found here")
    if library == release:
        return
    paths = () if isinstance(driver.libcuda_paths, Unknown) else driver.libcuda_paths
    if is_in_container(facts):
        fix = Fix(
            "Recreate the container, so that it gets the libraries of the driver that runs now. If it is the same"
            " after that, the image carries its own libcuda: remove it there.",
            where=Side.IMAGE,
        )
    else:
        fix = Fix(
            f"Reboot if the driver was just updated; otherwise remove every libcuda that is not of {release}.",
            ("ldconfig -p | grep libcuda", "sudo reboot"),
            root=True,
            restart=Restart.HOST,
        )
    yield Finding(
        Severity.ERROR,
        f"libcuda is {library}, but the loaded NVIDIA module is {release}: CUDA ends with error 803",
        fix,
        subject=paths[0] if paths else "",
        evidence=(f"/sys/module/nvidia/version: {release}", *(f"found {path}" for path in paths)),
    )


@check("CUD004", causes=("PYT006", "PYT017", "PYT018", "PYT019"))
def driver_runs_torch_cuda(facts: Facts) -> Iterator[Finding]:
    driver = _require_driver_cuda(facts)
    torch, cuda = require_torch(facts), require_torch_cuda(facts)
    has_compat = is_in_container(facts) and bool(require_container(facts).compat_libcuda)
    forward = has_compat and is_forward_compatible(facts.gpus)
    if driver.classify(cuda, has_forward_gpus=forward) is not CudaSupport.NO:
        return
    floor = find_oldest_driver(cuda, platform=driver.platform)
    wanted = f"{floor} or newer" if floor else "that runs it"
    wheel = find_compatible_wheel(facts)
    if wheel is None:
        fix = update_driver(facts, wanted)
    else:
        # The cheaper repair first: another wheel needs neither root nor a reboot.
        place = "on Windows" if find_driver_side(facts) is Side.WINDOWS else "on the host"
        fix = Fix(
            f"Install torch {wheel.version} for {wheel.label}, which this driver runs; or update the driver {place} to"
            f" {wanted}.",
            (format_wheel_install_command(facts, wheel),),
            where=Side.CONTAINER if is_in_container(facts) else Side.HOST,
            docs=CUDA_COMPATIBILITY_GUIDE,
        )
    yield Finding(
        Severity.ERROR,
        f"torch {torch.version} needs CUDA {cuda}, but driver {driver.release} is too old for it",
        fix,
        evidence=(
            f"torch {torch.version}, built with CUDA {cuda}",
            f"driver {driver.release}, for CUDA up to {driver.cuda or 'a version before the tables'}",
            f"CUDA {cuda} needs driver {floor} or newer" if floor else f"no driver is known for CUDA {cuda}",
        ),
    )


@check("CUD005", causes=("CUD003", "CUD011", "PYT017"))
def libcuda_is_not_a_stub(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    folders = [folder for folder in require_python(facts).ld_library_path if folder.endswith(_STUBS)]
    first = (
        ""
        if not isinstance(facts.driver, Driver) or isinstance(facts.driver.libcuda_paths, Unknown)
        else next(iter(facts.driver.libcuda_paths), "")
    )
    is_loaded = f"{_STUBS}/" in first
    if not folders and not is_loaded:
        return
    where = first if is_loaded else folders[0]
    yield Finding(
        Severity.ERROR if is_loaded else Severity.WARNING,
        f"{first} is the first libcuda that programs load: CUDA ends with error 34"
        if is_loaded
        else f"LD_LIBRARY_PATH holds {join_words(folders)}: a program that asks for libcuda.so gets a stub, and error 34",
        Fix(
            "Take the stubs out of LD_LIBRARY_PATH; a build needs them only in LIBRARY_PATH. Look for the line in the"
            " Dockerfile, Compose file or shell profile, and remove links to libcuda in that folder.",
            ("export LD_LIBRARY_PATH=$(printf %s \"$LD_LIBRARY_PATH\" | tr : '\\n' | grep -v /stubs | paste -sd:)",),
            where=find_workload_side(facts),
        ),
        subject=where,
        evidence=(
            f"LD_LIBRARY_PATH={':'.join(require_python(facts).ld_library_path)}",
            f"first libcuda.so.1: {first or '-'}",
        ),
    )


def _require_toolkit(facts: Facts) -> tuple[CudaFolder, Release]:
    require_visible_gpu(facts)
    toolkit = require(require_python(facts).cuda_toolkit)
    if toolkit is None:
        raise NotApplicable("there is no CUDA Toolkit with a compiler here")
    # 13.0.88 is a patch of 13.0, and runs wherever that does.
    numbers = require(toolkit.version).numbers[:2]
    return toolkit, Release.parse(".".join(str(number) for number in numbers))


@check("CUD006", causes=("CUD007",))
def cuda_supports_every_gpu(facts: Facts) -> Iterator[Finding]:
    version, source = _find_cuda(facts)
    if not facts.gpus:
        raise NotApplicable("no GPU answers")
    python = require_python(facts)
    brings_cuda = isinstance(python.torch, Torch) and isinstance(python.torch.cuda, Release)
    is_unused = brings_cuda and not any(package.name in _COMPILED_PACKAGES for package in python.packages)
    for gpu in facts.gpus:
        row = load_tables().driver.capabilities.get(require(gpu.capability))
        if row is None:
            continue
        if row.last_cuda is not None and version > row.last_cuda:
            problem = f"no longer knows {row.capability.sm}: CUDA {row.last_cuda} was the last for {row.architecture}"
        elif version < row.first_cuda:
            problem = f"does not know {row.capability.sm} yet, which came with {row.first_cuda}"
        else:
            continue
        wanted = f"{row.last_cuda} or older" if row.last_cuda else f"{row.first_cuda} or newer"
        yield Finding(
            Severity.NOTE if is_unused else Severity.WARNING,
            f"CUDA {version} of {source} {problem} (GPU {gpu.index}, {gpu.name})",
            Fix(
                f"For {gpu.name} use an image with CUDA {wanted}; or one without CUDA, since torch wheels carry their own.",
                where=Side.IMAGE,
                docs="https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
            ),
            subject=f"GPU {gpu.index}",
            evidence=(f"{source}: CUDA {version}", f"GPU {gpu.index} has compute capability {row.capability}"),
            confidence=Confidence.LIKELY,
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
    if not wanted:
        raise NotApplicable("there is no CUDA here but what torch brings")
    return Release.parse(wanted[0]), "the image"


@check("CUD007")
def driver_compiles_toolkit_ptx(facts: Facts) -> Iterator[Finding]:
    toolkit, version = _require_toolkit(facts)
    driver = find_driver_cuda(facts)
    if driver is None or driver.cuda is None:
        raise NotApplicable("the newest CUDA of the driver is not known")
    if driver.can_compile(version):
        return
    same_major = driver.cuda.major == version.major
    arch = ";".join(sorted({str(gpu.capability) for gpu in facts.gpus if not isinstance(gpu.capability, Unknown)}))
    yield Finding(
        Severity.NOTE if same_major else Severity.WARNING,
        f"CUDA Toolkit {version} is newer than CUDA {driver.cuda} of driver {driver.release}:"
        + (" PTX of it ends with error 222" if same_major else " nothing that it builds starts here"),
        Fix(
            "Build machine code for the GPUs that are here, use the toolkit of the driver's CUDA, or update the driver."
            if same_major
            else f"Use the toolkit of CUDA {driver.cuda}, or update the driver.",
            (f'export TORCH_CUDA_ARCH_LIST="{arch}"',) if same_major and arch else (),
            where=find_workload_side(facts),
            docs=CUDA_COMPATIBILITY_GUIDE,
        ),
        subject=toolkit.path,
        evidence=(
            f"{toolkit.path} (by {toolkit.found_by}): CUDA {version}",
            f"driver {driver.release}: CUDA {driver.cuda}",
        ),
    )


@check("CUD008")
def toolkit_fits_torch(facts: Facts) -> Iterator[Finding]:
    cuda = require_torch_cuda(facts)
    toolkit, version = _require_toolkit(facts)
    if version.major == cuda.major:
        return
    builders = [package.name for package in require_python(facts).packages if package.name in _COMPILED_PACKAGES]
    yield Finding(
        Severity.WARNING if builders and is_in_container(facts) else Severity.NOTE,
        f"CUDA Toolkit {version} in {toolkit.path} cannot build extensions for torch, which has CUDA {cuda}",
        Fix(
            f"Use a devel image of CUDA {cuda}, or point CUDA_HOME to a toolkit of it. If nothing is built here, this"
            " does no harm.",
            (f"export CUDA_HOME=/usr/local/cuda-{cuda}",),
            where=Side.IMAGE if is_in_container(facts) else Side.HOST,
        ),
        subject=toolkit.path,
        evidence=(
            f"{toolkit.path} (by {toolkit.found_by}): CUDA {version}",
            f"torch is built with CUDA {cuda}",
            *([f"builds extensions: {join_words(builders)}"] if builders else []),
        ),
    )


@check("CUD009")
def images_are_for_this_processor(facts: Facts) -> Iterator[Finding]:
    engine = require_gpu_engine(facts)
    fitting = _ENGINE_MACHINES.get(engine.machine)
    if fitting is None:
        raise NotApplicable(f"the engine's machine {engine.machine!r} is not known")
    for image in require(engine.images):
        # Other people's images may be emulated on purpose; a dev container with a GPU never is.
        if image.is_dev_container is True and image.machine and image.machine not in fitting:
            yield Finding(
                Severity.WARNING,
                f"image {image.name} is for {image.machine}, but this machine is {fitting[0]}: it ends with exec format error, or"
                " runs emulated and without a GPU",
                Fix(
                    f"Take --platform and DOCKER_DEFAULT_PLATFORM out, remove the image, and build it here for linux/{fitting[0]}.",
                    (f"docker image rm {quote(image.name)}",),
                    where=Side.PROJECT,
                ),
                subject=image.name,
                evidence=(f"{image.name}: {image.machine}", f"engine: {fitting[0]}"),
                confidence=Confidence.LIKELY,
            )


@check("CUD010", causes=("PYT001", "PYT002"))
def torch_fits_jetpack(facts: Facts) -> Iterator[Finding]:
    tegra = require(require_system(facts).tegra)
    if tegra is None:
        raise NotApplicable("this is no Jetson")
    torch = require(require_python(facts).torch)
    if torch is None:
        raise NotApplicable("torch is not installed in this Python")
    if isinstance(tegra.release, Release) and tegra.release.major >= FIRST_GENERIC_L4T.value:
        return
    # PyTorch's own indexes have +cpu, +cu126 …; Jetson builds say 2.5.0a0+…nv24.08 or nothing.
    label = torch.version.partition("+")[2]
    if label != "cpu" and label not in load_tables().torch.indexes and (label or torch.cuda is not None):
        return
    index = JETSON_INDEXES.value.get(tegra.release.major) if isinstance(tegra.release, Release) else None
    yield Finding(
        Severity.ERROR if isinstance(tegra.release, Release) else Severity.WARNING,
        f"torch {torch.version} is a build for Arm servers, but {tegra.model or 'this Jetson'}"
        f" ({_format_l4t(tegra)}) needs one for its JetPack",
        Fix(
            "Install torch for this JetPack from NVIDIA's Jetson index, or use an image of dusty-nv/jetson-containers"
            " or NVIDIA's l4t-pytorch with --runtime nvidia. JetPack 7 takes the ordinary cu130 wheels.",
            ((format_install_command(facts, "torch", "numpy<2", index=index, replace=True),) if index else ()),
            where=find_workload_side(facts),
            docs="https://docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform/",
        ),
        evidence=(f"board: {tegra.model or 'not named'}", _format_l4t(tegra), f"torch {torch.version}"),
        confidence=Confidence.LIKELY if isinstance(tegra.release, Release) else Confidence.POSSIBLE,
    )


def _format_l4t(tegra: Tegra) -> str:
    return f"L4T {tegra.release}" if isinstance(tegra.release, Release) else "L4T release not known"


@check("CUD011", causes=("PYT017", "PYT018", "PYT019"))
def cuda_starts(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    answer = require(facts.deep).cuda
    if isinstance(answer, Unknown):
        raise NotApplicable(answer.reason, is_lost=answer.is_lost)
    if isinstance(answer, CudaCall):
        if answer.code != 0:
            name = f" ({answer.name})" if isinstance(answer.name, str) and answer.name else ""
            yield _init_finding(
                facts, find_cuda_code(answer.code) or _OTHER, f"cuInit returns {answer.code}{name}", answer.libcuda
            )
        return
    meaning, what = {
        StepEnd.TIMED_OUT: (_HANGS, f"{answer.call} hangs"),
        StepEnd.CRASHED: (_CRASHES, f"{answer.call} crashes"),
    }.get(answer.end, (_NO_LIBRARY, "libcuda cannot be loaded"))
    yield _init_finding(facts, meaning, what, answer.libcuda, answer.message)


def _init_finding(facts: Facts, meaning: CudaErrorMeaning, what: str, libcuda: str, *readings: str) -> Finding:
    inside = is_in_container(facts)
    # Inside a container the commands are the host's, where the advice is not about the image alone.
    return Finding(
        Severity.ERROR,
        f"{what}: {meaning.why}",
        Fix(
            meaning.in_container or meaning.advice if inside else meaning.advice,
            () if inside and meaning.in_container else meaning.commands,
            where=Side.CONTAINER if inside else find_host_side(facts),
            root=meaning.needs_root,
            docs="https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html",
        ),
        evidence=(what, *readings, f"libcuda: {libcuda or 'not loaded'}"),
        confidence=meaning.confidence,
    )
