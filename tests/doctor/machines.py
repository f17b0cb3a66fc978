"""Healthy machines, as they were recorded, and the means to change one field of them."""

from dataclasses import is_dataclass, replace
from functools import cache

from devkit.facts.engine import EngineKind, LocalImage, RunningContainer, Runtime
from devkit.facts.gpu import DriverPackage, NvmlAnswer, PciGpu
from devkit.facts.machine import Container, Distribution, Package, Platform, Python, Torch, Wsl
from devkit.facts.values import ComputeCapability, Release, Unknown
from tests.hosts import facts_of

GIB = 1 << 30


def r(text):
    return Release.parse(text)


DRIVER = r("580.95.05")
UBUNTU = Distribution("ubuntu", ("debian",), "24.04", "Ubuntu 24.04.3 LTS")
DEBIAN = Distribution("debian", (), "12", "Debian GNU/Linux 12")
FEDORA = Distribution("fedora", (), "42", "Fedora Linux 42")
ROCKY = Distribution("rocky", ("rhel", "centos", "fedora"), "9.6", "Rocky Linux 9.6")
LEAP = Distribution("opensuse-leap", ("suse", "opensuse"), "15.6", "openSUSE Leap 15.6")
ARCH = Distribution("arch", (), "", "Arch Linux")
NIXOS = Distribution("nixos", (), "25.05", "NixOS 25.05")
VOID = Distribution("void", (), "", "Void Linux")

PCI = PciGpu("0000:01:00.0", "0x2684", "nvidia", 16, 32 * GIB)
NO_REASON_TO_ASK = Unknown("the module is loaded")
CONTAINER = RunningContainer(
    id="3f3f3f3f3f3f",
    name="dev",
    image="vsc-project-1f2e",
    folder="/home/dev/project",
    gpu_request="cdi",
    image_id="5b0ad6d2c3f4",
    is_dev_container=True,
    service="",
    runtime="runc",
    gpu_devices=(),
    visible_devices=None,
    driver_capabilities=None,
    require_cuda="cuda>=12.8",
    shm_bytes=8 * GIB,
    ipc_mode="private",
    user="dev",
    is_privileged=False,
    security_options=(),
    memory_bytes=None,
    health="",
)


@cache
def healthy():
    """The recorded Ubuntu 24.04 with one RTX 4090, Docker 28, the runtime named nvidia, and CDI; without torch.

    A dev container with its GPU runs there, and what its records lack is that of an idle machine.
    """
    own = {
        "devkit": "0.1.0",
        "system.memory_bytes": 64 * GIB,
        "driver.module_signer": NO_REASON_TO_ASK,
        "driver.signer_is_enrolled": NO_REASON_TO_ASK,
        "driver.build_error": NO_REASON_TO_ASK,
        "driver.upgraded_packages": (),
        "driver.parameters": ("DeviceFileMode: 438", "PreserveVideoMemoryAllocations: 1"),
        "driver.packages": (DriverPackage("nvidia-driver-580-open", "580.95.05-0ubuntu0.24.04.2", "installed"),),
        "driver.pci_gpus": (PCI,),
        "nvml.gpus.0.uuid": "GPU-00000000-1111-2222-3333-444444444444",
        "nvml.gpus.0.memory_bytes": 24 * GIB,
        "nvml.gpus.0.free_bytes": 23 * GIB,
        "nvml.gpus.0.health.persistence": True,
        "nvml.gpus.0.health.display_active": False,
        "nvml.gpus.0.health.processes": (),
        "engine.containers": (CONTAINER,),
        "engine.stopped": (),
        "engine.images": (LocalImage("vsc-project-1f2e:latest", "amd64", "cuda>=12.8", "5b0ad6d2c3f4", True),),
        "engine.runc": r("1.3.2"),
        "compose.version": r("2.40.0"),
        "toolkit.version": r("1.18.2"),
        "toolkit.cdi_refresh": "enabled",
        "toolkit.char_links": True,
        "cdi.0.path": "/etc/cdi/nvidia.yaml",
        "cdi.0.devices": ("0", "all"),
        "python": Python(r("3.12.3"), "/home/dev/.venv/bin/python", None, (), (), None, (), ()),
        "limits.locked_memory_bytes": 8 << 20,
        "limits.group_memory_bytes": None,
        "limits.out_of_memory_kills": 0,
        "limits.cpu_count": None,
        "limits.swap_bytes": 8 * GIB,
        "limits.interfaces": ("eno1",),
        "limits.default_interface": "eno1",
        "limits.selinux_allows_devices": False,
        **{f"storage.directories.{number}.free_bytes": 500 * GIB for number in range(3)},
        **{f"storage.directories.{number}.free_files": 9_000_000 for number in range(3)},
        "project": Unknown("not read"),
        "compose_config": Unknown("not read"),
        "deep": Unknown("not read"),
        "trials": Unknown("not read"),
    }
    return changed(facts_of("ubuntu-4090-ok"), own)


def gpu(index=0, name="NVIDIA GeForce RTX 4090", capability="8.9", **changes):
    named = {"index": index, "uuid": f"GPU-0000000{index}-1111-2222-3333-444444444444", "name": name}
    return replace(healthy().nvml.gpus[0], **named, capability=ComputeCapability.parse(capability), **changes)


def health(**changes):
    """An idle GeForce in good health, which knows no ECC, no row remapping, no fabric and no license."""
    return replace(healthy().nvml.gpus[0].health, **changes)


def spec(**changes):
    return replace(healthy().cdi[0], **changes)


def container(**changes):
    """A dev container of the project that runs with its GPU by CDI."""
    return replace(CONTAINER, **changes)


def limits(**changes):
    """No limit that bites, one network card, no IOMMU, no SELinux."""
    return replace(healthy().limits, **changes)


def inside():
    """A dev container on that machine, with the GPU given to it, torch for CUDA 12.8, and bitsandbytes."""
    return changed(
        healthy(),
        {
            "system.distribution": DEBIAN,
            "system.in_docker_group": False,
            "engine": Unknown("there is no engine in this container"),
            "compose": None,
            "toolkit.version": None,
            "cdi": (),
            "kernel_log": Unknown("a container does not see the host's kernel log"),
            "container": Container(
                kind="docker",
                visible_devices="all",
                driver_capabilities="compute,utility",
                require_cuda=None,
                shm_bytes=8 * GIB,
                c_compiler="/usr/bin/cc",
                python_headers=True,
                libcuda_in_cache=True,
                compat_libcuda="",
                nameless_groups=(),
            ),
            "python.torch": Torch("2.9.1+cu128", r("12.8"), None),
            "python.packages": (
                Package("bitsandbytes", "0.50.2", "py3-none-manylinux_2_24_x86_64"),
                Package("torch", "2.9.1+cu128", "cp312-cp312-manylinux_2_28_x86_64"),
                Package("triton", "3.5.1", "cp312-cp312-manylinux_2_27_x86_64"),
            ),
            "python.bitsandbytes_cuda": ("12.6", "12.8", "13.0"),
        },
    )


def windows_guest():
    """WSL 2 on Windows with an NVIDIA GPU and Docker Desktop."""
    no_driver = Unknown("in WSL, the driver belongs to Windows")
    return changed(
        healthy(),
        {
            "system.platform": Platform.WSL2,
            "system.kernel": "6.6.87.2-microsoft-standard-WSL2",
            "driver.loaded": None,
            "driver.is_open": no_driver,
            "driver.on_disk": None,
            "driver.libnvidia_ml": no_driver,
            "driver.libcuda": no_driver,
            "driver.device_nodes": (),
            "driver.nvidiactl": "absent",
            "driver.pci_gpus": (),
            "kernel_log": Unknown("only read where an NVIDIA GPU is on the bus"),
            "nvml": NvmlAnswer(r("581.57"), r("13.0"), (gpu(),)),
            "engine.kind": EngineKind.DOCKER_DESKTOP,
            "engine.operating_system": "Docker Desktop",
            "engine.runtimes": (Runtime("runc", "runc"),),
            "engine.cdi_devices": (),
            "engine.hook_on_path": Unknown("only a Docker daemon installed on this system looks for the hook here"),
            "toolkit.version": None,
            "toolkit.daemon_files": (),
            "cdi": (),
            "system.wsl_settings": None,
            "clients.engine_programs": (),
            "wsl": Wsl(
                True,
                ("libcuda.so.1", "libdxcore.so", "libnvidia-ml.so.1"),
                (),
                "/usr/lib/wsl/lib/libnvidia-ml.so.1",
                driver_store=("nv_dispi.inf_amd64_0a1b2c3d4e5f6071",),
                libcuda_link_in_cache=True,
                image_libraries=(),
                swap_bytes=16 * GIB,
                desktop_tools=True,
                clock_behind_s=0,
            ),
        },
    )


def without_gpu():
    """The same laptop without an NVIDIA GPU, driver or toolkit, but with Docker."""
    return changed(
        healthy(),
        {
            "driver.loaded": None,
            "driver.on_disk": None,
            "driver.libnvidia_ml": None,
            "driver.libcuda": None,
            "driver.libcuda_paths": (),
            "driver.device_nodes": (),
            "driver.nvidiactl": "absent",
            "driver.pci_gpus": (),
            "kernel_log": Unknown("only read where an NVIDIA GPU is on the bus"),
            "nvml": no_library(),
            "engine.runtimes": (Runtime("runc", "runc"),),
            "engine.cdi_devices": (),
            "toolkit.version": None,
            "toolkit.daemon_files": (),
            "cdi": (),
        },
    )


def no_library():
    from devkit.facts.gpu import NvmlEnd, NvmlFailure

    return NvmlFailure(NvmlEnd.LIBRARY_NOT_FOUND, 12, "NVML Shared Library Not Found", "nvmlInit_v2")


def changed(facts, changes):
    """`facts` with fields replaced, each named by its path, such as {"driver.loaded": None}."""
    for path, value in changes.items():
        facts = _changed(facts, path.split("."), value)
    return facts


def _changed(record, path, value):
    first, *rest = path
    if isinstance(record, tuple):
        items = list(record)
        items[int(first)] = _changed(items[int(first)], rest, value) if rest else value
        return tuple(items)
    assert is_dataclass(record), f"{record!r} has no field {first}"
    return replace(record, **{first: _changed(getattr(record, first), rest, value) if rest else value})


def host(facts=None, **changes):
    """The healthy host, or another machine, with these fields changed: `__` stands for the dot."""
    return changed(facts or healthy(), {path.replace("__", "."): value for path, value in changes.items()})
