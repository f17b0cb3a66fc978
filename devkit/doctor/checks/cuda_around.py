"""Checks of what stands around the driver: stub libraries, a CUDA Toolkit with its compiler, images of another CPU."""

from collections.abc import Iterator

from devkit.compat.load import tables
from devkit.compat.rows import Capability
from devkit.doctor.applies import a_gpu_in_this_container, cuda_of_torch, gpu_engine, is_in_container, known, python_of
from devkit.doctor.install import workload_side
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.doctor.wheels import driver_cuda_of
from devkit.facts.model import CudaFolder, Driver, Facts, Gpu, LocalImage, Torch
from devkit.facts.values import Release, Unknown
from devkit.text import listed

BUILT_HERE = (
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


@check(
    "CUD005",
    "No stub stands in for libcuda",
    covers=("H09",),
    symptoms=("CUDA driver is a stub library", "CUDA_ERROR_STUB_LIBRARY", "cuInit 34"),
    causes=("CUD003", "CUD011", "PYT017"),
)
def libcuda_is_no_stub(facts: Facts) -> Iterator[Finding]:
    """LD_LIBRARY_PATH names no folder of stubs, and the first libcuda that the loader finds is not in one.

    Why it matters: a CUDA Toolkit brings an empty libcuda to link against. Where it is loaded instead of the driver's,
    cuInit answers 34, "CUDA driver is a stub library", although everything else is right.
    How it is seen: folders named stubs in LD_LIBRARY_PATH, and in the path of the first libcuda.so.1.
    Source: NVIDIA, CUDA Driver API, CUDA_ERROR_STUB_LIBRARY; pytorch/pytorch issue 103417.
    """
    a_gpu_in_this_container(facts)
    folders = [folder for folder in python_of(facts).ld_library_path if folder.endswith(_STUBS)]
    first = _first_libcuda(facts)
    is_loaded = f"{_STUBS}/" in first
    if not folders and not is_loaded:
        return
    where = first if is_loaded else folders[0]
    yield Finding(
        Severity.ERROR if is_loaded else Severity.WARNING,
        f"{first} is the first libcuda that programs load: CUDA ends with error 34"
        if is_loaded
        else f"LD_LIBRARY_PATH holds {listed(folders)}: a program that asks for libcuda.so gets a stub, and error 34",
        Fix(
            "Take the stubs out of LD_LIBRARY_PATH; a build needs them only in LIBRARY_PATH. Look for the line in the"
            " Dockerfile, Compose file or shell profile, and remove links to libcuda in that folder.",
            ("export LD_LIBRARY_PATH=$(printf %s \"$LD_LIBRARY_PATH\" | tr : '\\n' | grep -v /stubs | paste -sd:)",),
            where=workload_side(facts),
        ),
        subject=where,
        evidence=(
            f"LD_LIBRARY_PATH={':'.join(python_of(facts).ld_library_path)}",
            f"first libcuda.so.1: {first or '-'}",
        ),
    )


def _first_libcuda(facts: Facts) -> str:
    if not isinstance(facts.driver, Driver) or isinstance(facts.driver.libcuda_paths, Unknown):
        return ""
    return next(iter(facts.driver.libcuda_paths), "")


def _toolkit(facts: Facts) -> tuple[CudaFolder, Release]:
    a_gpu_in_this_container(facts)
    toolkit = known(python_of(facts).cuda_toolkit)
    if toolkit is None:
        raise NotApplicable("there is no CUDA Toolkit with a compiler here")
    # 13.0.88 is a patch of 13.0, and runs wherever that does.
    numbers = known(toolkit.version).numbers[:2]
    return toolkit, Release.read(".".join(str(number) for number in numbers))


@check(
    "CUD006",
    "The CUDA of this image knows every GPU",
    covers=("G12",),
    symptoms=(
        "cudaErrorNoDevice",
        "nvcc fatal : Unsupported gpu architecture 'compute_120'",
        "Value 'sm_37' is not defined",
    ),
    causes=("CUD007",),
)
def cuda_knows_every_gpu(facts: Facts) -> Iterator[Finding]:
    """The CUDA Toolkit here, or the CUDA that the image was made for, targets the compute capability of every GPU.

    Why it matters: each CUDA release drops old GPUs and learns new ones. Outside of its range nothing compiles, and the
    libraries in the image find no kernel or, for Kepler under CUDA 11.5 and later images, no device at all.
    How it is seen: the toolkit's version file, else NVIDIA_REQUIRE_CUDA, against the range of each GPU in the tables.
    Where torch brings its own CUDA and nothing compiles extensions, it is only a note.
    Source: NVIDIA, CUDA Toolkit release notes, "Deprecated architectures"; NVIDIA, CUDA images, issue 182.
    """
    version, said = _cuda_here(facts)
    if not facts.gpus:
        raise NotApplicable("no GPU answers")
    severity = Severity.NOTE if _brings_its_own_cuda(facts) else Severity.WARNING
    for gpu in facts.gpus:
        row = tables().driver.capabilities.get(known(gpu.capability))
        if row is not None and (problem := _outside(row, version)):
            yield Finding(
                severity,
                f"CUDA {version} of {said} {problem} (GPU {gpu.index}, {gpu.name})",
                _another_cuda(row, gpu),
                subject=f"GPU {gpu.index}",
                evidence=(f"{said}: CUDA {version}", f"GPU {gpu.index} has compute capability {row.capability}"),
                confidence=Confidence.LIKELY,
            )


def _cuda_here(facts: Facts) -> tuple[Release, str]:
    try:
        toolkit, version = _toolkit(facts)
    except NotApplicable:
        a_gpu_in_this_container(facts)
    else:
        return version, toolkit.path
    container = facts.container
    asked = "" if container is None or isinstance(container, Unknown) else container.require_cuda or ""
    wanted = asked.partition("cuda>=")[2].split(",")[0].split()
    if not wanted:
        raise NotApplicable("there is no CUDA here but what torch brings")
    return Release.read(wanted[0]), "the image"


def _brings_its_own_cuda(facts: Facts) -> bool:
    """Whether torch wheels make the CUDA around them unimportant: they bring theirs, and nothing is compiled here."""
    python = python_of(facts)
    has_cuda = isinstance(python.torch, Torch) and isinstance(python.torch.cuda, Release)
    return has_cuda and not any(package.name in BUILT_HERE for package in python.packages)


def _outside(row: Capability, version: Release) -> str:
    if row.last_cuda is not None and version > row.last_cuda:
        return f"no longer knows {row.capability.sm}: CUDA {row.last_cuda} was the last for {row.architecture}"
    if version < row.first_cuda:
        return f"does not know {row.capability.sm} yet, which came with {row.first_cuda}"
    return ""


def _another_cuda(row: Capability, gpu: Gpu) -> Fix:
    wanted = f"{row.last_cuda} or older" if row.last_cuda else f"{row.first_cuda} or newer"
    return Fix(
        f"For {gpu.name} use an image with CUDA {wanted}; or one without CUDA, since torch wheels carry their own.",
        where=Side.IMAGE,
        docs="https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
    )


@check(
    "CUD007",
    "What is compiled here runs on this driver",
    covers=("G05",),
    symptoms=(
        "the provided PTX was compiled with an unsupported toolchain",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "CUDA error 222",
    ),
)
def driver_compiles_toolkits_ptx(facts: Facts) -> Iterator[Finding]:
    """The driver compiles PTX of the CUDA Toolkit that is installed here.

    Why it matters: minor version compatibility covers machine code only. Code that nvcc of a newer release leaves as
    PTX, the default of many builds, ends with error 222 at its first kernel.
    How it is seen: the toolkit's version file against the newest CUDA that the driver runs in full (rule R3a). Machine
    code for this GPU runs all the same within the major, so this is a note then.
    Source: NVIDIA, CUDA Compatibility, "Minor version compatibility"; NVIDIA/nvbandwidth issue 61; vllm pull 28305.
    """
    toolkit, version = _toolkit(facts)
    driver = driver_cuda_of(facts)
    if driver is None or driver.cuda is None:
        raise NotApplicable("the newest CUDA of the driver is not known")
    if driver.compiles(version):
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
            where=workload_side(facts),
            docs="https://docs.nvidia.com/deploy/cuda-compatibility/",
        ),
        subject=toolkit.path,
        evidence=(
            f"{toolkit.path} (by {toolkit.found_by}): CUDA {version}",
            f"driver {driver.release}: CUDA {driver.cuda}",
        ),
    )


@check(
    "CUD008",
    "The CUDA Toolkit has the major of torch's CUDA",
    covers=("H13",),
    symptoms=("The detected CUDA version mismatches the version that was used to compile PyTorch",),
)
def toolkit_fits_torch(facts: Facts) -> Iterator[Finding]:
    """nvcc, where there is one, is of the CUDA major that torch was built with.

    Why it matters: torch refuses to build extensions (flash-attn from source, DeepSpeed, Apex) with another major. A
    minor that differs is only a warning to it, and nothing here. Torch itself needs no toolkit at all.
    How it is seen: the toolkit by CUDA_HOME, PATH or /usr/local/cuda, against torch's version file. It is a note until
    a package that builds such extensions is installed.
    Source: pytorch, torch/utils/cpp_extension.py, CUDA_MISMATCH_MESSAGE.
    """
    cuda = cuda_of_torch(facts)
    toolkit, version = _toolkit(facts)
    if version.major == cuda.major:
        return
    builders = [package.name for package in python_of(facts).packages if package.name in BUILT_HERE]
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
            *([f"builds extensions: {listed(builders)}"] if builders else []),
        ),
    )


@check(
    "CUD009",
    "Local images are for this machine's processor",
    covers=("G11",),
    symptoms=(
        "exec format error",
        "The requested image's platform (linux/amd64) does not match the detected host platform",
    ),
)
def images_are_for_this_processor(facts: Facts) -> Iterator[Finding]:
    """The images that dev containers use here are built for the processor of the engine's machine.

    Why it matters: another processor's image ends with "exec format error", or runs emulated, and without a GPU.
    How it is seen: the architecture that the engine lists for each image, against its own.
    Source: Docker documentation, multi-platform builds; Open Container Initiative, image specification, "architecture".
    """
    engine = gpu_engine(facts)
    fitting = _ENGINE_MACHINES.get(engine.machine)
    if fitting is None:
        raise NotApplicable(f"the engine's machine {engine.machine!r} is not known")
    for image in known(engine.images):
        # Other people's images may be emulated on purpose; a dev container with a GPU never is.
        if image.is_dev_container is True and image.machine and image.machine not in fitting:
            yield _foreign(image, fitting[0])


def _foreign(image: LocalImage, wanted: str) -> Finding:
    return Finding(
        Severity.WARNING,
        f"image {image.name} is for {image.machine}, but this machine is {wanted}: it ends with exec format error, or"
        " runs emulated and without a GPU",
        Fix(
            f"Take --platform and DOCKER_DEFAULT_PLATFORM out, remove the image, and build it here for linux/{wanted}.",
            (f"docker image rm {image.name}",),
            where=Side.PROJECT,
        ),
        subject=image.name,
        evidence=(f"{image.name}: {image.machine}", f"engine: {wanted}"),
        confidence=Confidence.LIKELY,
    )
