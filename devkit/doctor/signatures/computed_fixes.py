"""Fixes that the version tables give for the values of a text.

They come of the tables by which `doctor` judges and `plan` plans; a test gives them to the solver.
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from devkit.doctor.model import Fix, Restart, Side
from devkit.doctor.signatures.library_changes import OWN_CODE
from devkit.doctor.signatures.text_facts import TextFacts, parse_capability
from devkit.facts.values import ComputeCapability, Release

if TYPE_CHECKING:
    from devkit.compat.wheels import CompatibleWheel, DriverCuda


def _describe_driver(values: TextFacts) -> "DriverCuda | None":
    from devkit.compat.rules import find_oldest_driver, find_toolkit_driver
    from devkit.compat.wheels import DriverCuda

    if values.driver is not None:
        return DriverCuda(values.driver, values.reported_cuda, "linux")
    if values.reported_cuda is not None:
        # Of a driver that says only its CUDA, the first that came with it.
        release = find_toolkit_driver(values.reported_cuda) or find_oldest_driver(values.reported_cuda)
        return DriverCuda(release, values.reported_cuda, "linux") if release else None
    return None


def find_torch_wheel(values: TextFacts, capabilities: tuple[ComputeCapability, ...]) -> "CompatibleWheel | None":
    """Find the newest torch wheel for the driver, the GPUs and the Python that a text names; None where none fits."""
    from devkit.compat.wheels import find_wheel

    machine = values.processor or "x86_64"
    return find_wheel(driver=_describe_driver(values), capabilities=capabilities, machine=machine, python=values.python)


def _find_torch_fix(values: TextFacts, capabilities: tuple[ComputeCapability, ...], *, why: str) -> Fix | None:
    """Return the fix that installs the newest torch for the driver, the GPUs and the Python that a text names."""
    from devkit.compat.rules import find_oldest_driver
    from devkit.compat.version_tables import load_tables

    driver = _describe_driver(values)
    rows = [row for each in capabilities if (row := load_tables().driver.capabilities.get(each)) and row.first_branch]
    newest = max(rows, key=lambda row: row.first_branch or 0, default=None)
    if values.driver is not None and newest is not None and values.driver.numbers[0] < (newest.first_branch or 0):
        return Fix(
            f"Install driver {newest.first_branch} or newer on the host: {values.driver} does not support {newest.capability.sm}.",
            root=True,
            restart=Restart.HOST,
            docs="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
        )
    wheel = find_torch_wheel(values, capabilities)
    if wheel is None:
        return None
    cuda = load_tables().torch.indexes[wheel.label].cuda
    oldest = find_oldest_driver(cuda) if cuda is not None and driver is None else None
    needs = f", with driver {oldest} or newer" if oldest else ""
    return Fix(
        f"Install torch {wheel.version} built for CUDA {cuda}: {why}{needs}.",
        (f"pip install --force-reinstall torch=={wheel.version} --index-url {wheel.index_url}",),
        Side.CONTAINER,
        docs="https://pytorch.org/get-started/locally/",
    )


def _fix_torch_for_gpu(captures: Mapping[str, str], values: TextFacts) -> Fix | None:
    try:
        named = (parse_capability(captures["arch"]),) if "arch" in captures else ()
    except ValueError:
        return None
    capabilities = named or values.capabilities
    if not capabilities and (gpu := values.find("gpu")):
        from devkit.compat.gpus import find_gpu

        found = find_gpu(gpu)
        capabilities = (found.capability,) if found else ()
    if not capabilities:
        return None
    names = " and ".join(each.sm for each in capabilities)
    return _find_torch_fix(values, capabilities, why=f"its wheels have kernels for {names}")


def _fix_torch_for_driver(captures: Mapping[str, str], values: TextFacts) -> Fix | None:
    if values.driver is None and values.reported_cuda is None:
        return None
    runs = f"driver {values.driver}" if values.driver else f"a driver that reports CUDA {values.reported_cuda}"
    return _find_torch_fix(values, values.capabilities, why=f"{runs} runs it")


def _fix_driver_for_cuda(captures: Mapping[str, str], values: TextFacts) -> Fix | None:
    from devkit.compat.rules import find_oldest_driver, find_toolkit_driver

    try:
        cuda = Release.parse(captures["needed"])
    except (KeyError, ValueError):
        return None
    full, oldest = find_toolkit_driver(cuda), find_oldest_driver(cuda)
    if full is None or oldest is None:
        return None
    return Fix(
        f"Install driver {full} or newer on the host, which supports CUDA {cuda} in full ({oldest} or newer runs programs"
        f" compiled for the GPU), and reboot; or use an image or wheel for an older CUDA.",
        root=True,
        restart=Restart.HOST,
        docs="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
        leaves_choice=True,
    )


_FIRST_CUDA_OF_VARIANTS = {"90a": Release.parse("12.0"), "f": Release.parse("12.9")}
"""The CUDA Toolkits that brought the first architecture-specific target and the targets of families of architectures."""


def _fix_toolkit_for_gpu(captures: Mapping[str, str], values: TextFacts) -> Fix | None:
    from devkit.compat.version_tables import load_tables

    try:
        capability = parse_capability(captures["arch"])
    except (KeyError, ValueError):
        return None
    row = load_tables().driver.capabilities.get(capability)
    if row is None:
        return None
    name = capability.sm + captures["arch"][len(captures["arch"].rstrip("af")) :]
    first = max((row.first_cuda, *(cuda for end, cuda in _FIRST_CUDA_OF_VARIANTS.items() if name.endswith(end))))
    # Of those that know it, the newest that the text names.
    stated = [Release.parse(each) for each in values.list_values("cuda_toolkit")]
    last = row.last_cuda or max((each for each in stated if each >= first), default=first)
    folder = f"/usr/local/cuda-{last}"
    if row.last_cuda:
        summary = (
            f"If the GPU is newer, leave {name} out of the build's architectures; otherwise, compile with nvcc from CUDA "
            f"{first} to {row.last_cuda}, which supports it."
        )
    else:
        summary = f"Compile with nvcc from CUDA {first} or newer, which supports {name}. Put it first in PATH."
    commands = ("nvcc --version", f"export CUDA_HOME={folder} PATH={folder}/bin:$PATH")
    return Fix(summary, commands, Side.IMAGE, leaves_choice=bool(row.last_cuda))


def _fix_python_for_torch(captures: Mapping[str, str], values: TextFacts) -> Fix | None:
    from devkit.compat.version_tables import load_tables

    name, _, version = captures.get("package", "").partition("==")
    releases = (row for row in load_tables().torch.releases if str(row.version) == version.partition("+")[0])
    if name != "torch" or (release := next(releases, None)) is None:
        return None
    pythons = release.pythons
    # The newest one that it supports came first for some systems alone.
    python = "3.12" if "3.12" in pythons else pythons[-2]
    return Fix(
        f"Use a Python that torch {release.version} has wheels for: {pythons[0]} to {pythons[-1]}, or a torch release for this Python.",
        ("python -VV", f"uv venv --python {python}"),
        Side.PROJECT,
        leaves_choice=True,
    )


_LIBRARY_PACKAGES = (
    (r"libcudnn\w*\.so\.8\b", "'nvidia-cudnn-cu12<9'  # beside CUDA 11: 'nvidia-cudnn-cu11<9'"),
    (r"libcudnn\w*\.so\.9\b", "'nvidia-cudnn-cu12>=9'  # beside CUDA 13: nvidia-cudnn-cu13"),
    (
        r"lib(cublas\w*|cudart|nvrtc)\.so\.11\b|libcufft\.so\.10\b",
        "nvidia-cuda-runtime-cu11 nvidia-cublas-cu11 nvidia-cufft-cu11 nvidia-cuda-nvrtc-cu11 'nvidia-cudnn-cu11<9'",
    ),
)
"""Packages that bring a library of the number in its name, where the newest ones bring another."""


def _fix_cuda_library(captures: Mapping[str, str], values: TextFacts) -> Fix | None:
    library = captures.get("library", "")
    packages = next((names for pattern, names in _LIBRARY_PACKAGES if re.match(pattern, library)), "")
    if not packages:
        return None
    return Fix(
        f"Install the release that {library} belongs to and make the loader find it, or install a build of the "
        f"program for the CUDA and cuDNN that are installed here.",
        (
            f"pip install {packages}",
            f"find / -name '{library}*' 2>/dev/null",
            "export LD_LIBRARY_PATH=<folder that find names>",
        ),
        Side.CONTAINER,
        leaves_choice=True,
    )


def _fix_library_release(captures: Mapping[str, str], values: TextFacts) -> Fix:
    library, caller = captures["library"], captures["caller"]
    is_package = " " not in caller
    upgrade = (f"pip install --upgrade {caller}",) if is_package else ()
    if library == "python":
        release = captures["removed"] or captures["added"]
        older = f"3.{int(release.partition('.')[2]) - 1}" if captures["removed"] else release
        return Fix(
            f"Upgrade {caller}, or create the environment with Python {older}.",
            (*upgrade, f"uv venv --python {older}"),
            Side.PROJECT,
            leaves_choice=True,
        )
    limit = captures["added"] if captures["change"] in ("called", "outdated") else captures["removed"]
    if limit:
        return Fix(
            f"Upgrade {caller} to a release for the newer {library}, or install {library} below {limit}.",
            (*upgrade, f"pip install '{library}<{limit}'")
            if captures["change"] == "outdated"
            else (f"pip install '{library}<{limit}'", *upgrade),
            Side.CONTAINER,
            leaves_choice=True,
        )
    return Fix(
        f"Upgrade {library} to {captures['added']} or newer; if it is pinned, install a release of {caller} from the same time.",
        (f"pip install --upgrade '{library}>={captures['added']}'", "pip check"),
        Side.CONTAINER,
    )


def _fix_by_history(captures: Mapping[str, str], values: TextFacts) -> Fix:
    """Return the fix by the releases that were read, in the program by which the text installs packages."""
    commands = " ".join(values.list_values("command"))
    install = next(
        (each for each in ("uv pip install", "conda install -c conda-forge") if each[:10] in commands), "pip install"
    )
    library, removed, added, caller = (captures[each] for each in ("library", "removed", "added", "caller"))
    if not removed:
        until = captures["until"]
        summary = f"Install {library} {added} or newer{f', but below {until}, which removed it' if until else ''}."
        return Fix(summary, (f"{install} '{library}>={added}{f',<{until}' if until else ''}'",), Side.CONTAINER)
    first, below = captures["first"], captures["below"]
    older = f"{library} {below[2:]} or older" if below.startswith("<=") else f"{library} below {removed}"
    bound = f"{install} '{library}{f'>={first},' if first else ''}{below}'"
    if free := captures["free"]:
        summary = f"Upgrade {caller} to {free} or newer, which does not need it; otherwise install {older}."
        return Fix(summary, (f"{install} '{caller}>={free}'", bound), Side.CONTAINER, leaves_choice=True)
    if added:
        summary = f"Install {older}, or {added} or newer."
        return Fix(summary, (bound, f"{install} '{library}>={added}'"), Side.CONTAINER, leaves_choice=True)
    other = f", or change {OWN_CODE}" if caller == OWN_CODE else ""
    return Fix(f"Install {older}{other}.", (bound,), Side.CONTAINER, leaves_choice=bool(other))


def _fix_pinned_torch(captures: Mapping[str, str], values: TextFacts) -> Fix:
    """Return the fix for a package that was built for one release of torch, where another is installed."""
    from devkit.compat.version_tables import load_tables

    companion, wanted, (found, _, build) = captures["companion"], captures["wanted"], captures["found"].partition("+")
    build = build or captures["own"].partition("+")[2]
    is_made_for_each = companion in ("torchvision", "torchaudio")
    version = found if is_made_for_each else wanted.partition("+")[0]
    release = next((row for row in load_tables().torch.releases if str(row.version) == version), None)
    label = build if release is None or build in ("cpu", *release.variants) else release.default_variant
    index = f" --index-url https://download.pytorch.org/whl/{label}" if label else ""
    if is_made_for_each:
        summary = f"Install the {companion} release for torch {version}: pip finds it if you list both."
        return Fix(summary, (f"pip install --upgrade torch=={version} {companion}{index}",), Side.CONTAINER)
    summary = f"Install torch {version}, which {companion} {captures['own']} was built for, and its companions."
    return Fix(summary, (f"pip install torch=={version} torchvision torchaudio{index}", "pip check"), Side.CONTAINER)


COMPUTED_FIXES: Mapping[str, Callable[[Mapping[str, str], TextFacts], Fix | None]] = {
    "cuda-library": _fix_cuda_library,
    "library-history": _fix_by_history,
    "library-release": _fix_library_release,
    "pinned-torch": _fix_pinned_torch,
    "python-for-torch": _fix_python_for_torch,
    "torch-for-gpu": _fix_torch_for_gpu,
    "torch-for-driver": _fix_torch_for_driver,
    "driver-for-cuda": _fix_driver_for_cuda,
    "toolkit-for-gpu": _fix_toolkit_for_gpu,
}
