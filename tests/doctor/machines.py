"""Healthy machines, built by hand, and the means to change one field of them."""

from dataclasses import is_dataclass, replace

from devkit.facts.engine import (
    CdiSpec,
    Client,
    Clients,
    Compose,
    DaemonFile,
    DockerSettings,
    Endpoint,
    Engine,
    EngineKind,
    LocalImage,
    RunningContainer,
    Runtime,
    Toolkit,
)
from devkit.facts.gpu import Driver, DriverPackage, Gpu, GpuHealth, KernelLog, NvmlAnswer, PciGpu
from devkit.facts.machine import (
    Container,
    Directory,
    Distribution,
    Limits,
    Package,
    Platform,
    Python,
    Storage,
    System,
    Torch,
    Wsl,
)
from devkit.facts.model import Facts
from devkit.facts.runs import Hub
from devkit.facts.values import ComputeCapability, Release, Unknown

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


def gpu(index=0, name="NVIDIA GeForce RTX 4090", capability="8.9", **changes):
    values = {
        "index": index,
        "uuid": f"GPU-0000000{index}-1111-2222-3333-444444444444",
        "name": name,
        "capability": ComputeCapability.parse(capability),
        "memory_bytes": 24 * GIB,
        "free_bytes": 23 * GIB,
        "mig_enabled": Unknown("not supported"),
        "mig_instances": (),
        "health": health(),
    }
    return Gpu(**values | changes)


NOT_ON_GEFORCE = Unknown("not supported")


def health(**changes):
    """An idle GeForce in good health, which knows no ECC, no row remapping, no fabric and no license."""
    values = {
        "pci_address": PCI.address,
        "persistence": True,
        "compute_mode": "default",
        "display_active": False,
        "ecc_enabled": NOT_ON_GEFORCE,
        "ecc_uncorrected": NOT_ON_GEFORCE,
        "remap_pending": NOT_ON_GEFORCE,
        "remap_failed": NOT_ON_GEFORCE,
        "retirement_pending": NOT_ON_GEFORCE,
        "clock_reasons": ("gpu-idle",),
        "temperature_c": 41,
        "slowdown_c": 97,
        "power_mw": 18_000,
        "power_limit_mw": 450_000,
        "default_power_limit_mw": 450_000,
        "utilization_percent": 0,
        "pcie_width": 16,
        "pcie_max_width": 16,
        "pcie_generation": 1,
        "pcie_max_generation": 4,
        "sm_clock_mhz": 210,
        "sm_max_clock_mhz": 3105,
        "application_clock_mhz": NOT_ON_GEFORCE,
        "default_application_clock_mhz": NOT_ON_GEFORCE,
        "processes": (),
        "virtualization": "none",
        "license": NOT_ON_GEFORCE,
        "fabric_state": NOT_ON_GEFORCE,
        "fabric_status": NOT_ON_GEFORCE,
        "inforom_ok": True,
        "brand": "geforce",
        "recovery_action": "none",
    }
    return GpuHealth(**values | changes)


def spec(**changes):
    values = {
        "path": "/etc/cdi/nvidia.yaml",
        "kind": "nvidia.com/gpu",
        "cdi_version": "0.5.0",
        "devices": ("0", "all"),
        "driver": DRIVER,
        "error": "",
        "without_nodes": (),
        "missing_paths": (),
    }
    return CdiSpec(**values | changes)


def container(**changes):
    """A dev container of the project that runs with its GPU by CDI."""
    values = {
        "id": "3f3f3f3f3f3f",
        "name": "dev",
        "image": "vsc-project-1f2e",
        "folder": "/home/dev/project",
        "gpu_request": "cdi",
        "image_id": "5b0ad6d2c3f4",
        "is_dev_container": True,
        "service": "",
        "runtime": "runc",
        "gpu_devices": (),
        "visible_devices": None,
        "driver_capabilities": None,
        "require_cuda": "cuda>=12.8",
        "shm_bytes": 8 * GIB,
        "ipc_mode": "private",
        "user": "dev",
        "is_privileged": False,
        "security_options": (),
        "memory_bytes": None,
        "health": "",
    }
    return RunningContainer(**values | changes)


def limits(**changes):
    """No limit that bites, one network card, no IOMMU, no SELinux."""
    values = {
        "locked_memory_bytes": 8 << 20,
        "group_memory_bytes": None,
        "out_of_memory_kills": 0,
        "cpu_count": None,
        "swap_bytes": 8 * GIB,
        "interfaces": ("eno1",),
        "default_interface": "eno1",
        "has_infiniband": False,
        "nccl": (),
        "iommu_domains": (),
        "selinux": "",
        "selinux_allows_devices": False,
    }
    return Limits(**values | changes)


def healthy():
    """Ubuntu 24.04 with one RTX 4090, Docker 28, the runtime named nvidia, and CDI; no torch on the host."""
    return Facts(
        taken_at="2026-01-01T00:00:00+00:00",
        devkit="0.1.0",
        system=System(
            platform=Platform.LINUX,
            kernel="6.8.0-45-generic",
            machine="x86_64",
            distribution=UBUNTU,
            glibc=r("2.39"),
            memory_bytes=64 * GIB,
            is_root=False,
            in_docker_group=True,
            docker_group_is_active=True,
            runs_systemd=True,
            managed_by="",
            is_in_job=False,
        ),
        driver=Driver(
            loaded=DRIVER,
            is_open=True,
            on_disk=DRIVER,
            dkms_state="installed",
            libnvidia_ml=DRIVER,
            libcuda=DRIVER,
            libcuda_paths=("/usr/lib/x86_64-linux-gnu/libcuda.so.1",),
            device_nodes=("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"),
            nvidiactl="open",
            pci_gpus=(PCI,),
            nvswitch_present=False,
            fabric_manager=Unknown("only read on machines with an NVSwitch"),
            headers_present=True,
            secure_boot=False,
            upgraded_packages=(),
            module_signer=NO_REASON_TO_ASK,
            signer_is_enrolled=NO_REASON_TO_ASK,
            build_error=NO_REASON_TO_ASK,
            firmware_present=True,
            parameters=("DeviceFileMode: 438", "PreserveVideoMemoryAllocations: 1"),
            packages=(DriverPackage("nvidia-driver-580-open", "580.95.05-0ubuntu0.24.04.2", "installed"),),
            apt_sources=(),
            closed_nodes=(),
            booted_at="2025-12-30T08:00:00+00:00",
            modules=("nvidia", "nvidia_drm", "nvidia_modeset", "nvidia_uvm"),
            has_infiniband=False,
            fabric_manager_version=Unknown("only read on machines with an NVSwitch"),
        ),
        nvml=NvmlAnswer(DRIVER, r("13.0"), (gpu(),)),
        engine=Engine(
            endpoint=Endpoint("unix:///var/run/docker.sock", "default"),
            kind=EngineKind.DOCKER,
            version=r("28.5.1"),
            api_version="1.51",
            operating_system="Ubuntu 24.04.3 LTS",
            machine="x86_64",
            runtimes=(
                Runtime("nvidia", "nvidia-container-runtime", "/usr/bin/nvidia-container-runtime"),
                Runtime("runc", "runc", "/usr/bin/runc"),
            ),
            default_runtime="runc",
            cdi_spec_dirs=("/etc/cdi", "/var/run/cdi"),
            cdi_devices=("nvidia.com/gpu=0", "nvidia.com/gpu=all"),
            is_rootless=False,
            has_selinux=False,
            cgroup_driver="systemd",
            cgroup_version="2",
            root_dir="/var/lib/docker",
            is_snap=False,
            hook_on_path=True,
            min_api_version="1.24",
            proxy="",
            clock_ahead_s=0,
            containers=(container(),),
            stopped=(),
            images=(LocalImage("vsc-project-1f2e:latest", "amd64", "cuda>=12.8", "5b0ad6d2c3f4", True),),
            runc=r("1.3.2"),
        ),
        compose=Compose(r("2.40.0")),
        toolkit=Toolkit(
            version=r("1.18.2"),
            runtime_path="/usr/bin/nvidia-container-runtime",
            mode="auto",
            no_cgroups=False,
            accepts_variable=True,
            driver_root="",
            daemon_files=(DaemonFile("/etc/docker/daemon.json", "", True),),
            config_error="",
            ldconfig="/sbin/ldconfig.real",
            ldconfig_exists=True,
            features=(),
            cdi_refresh="enabled",
            pods=None,
            char_links=True,
            default_ldconfig="/sbin/ldconfig.real",
            cli_path="/usr/bin/nvidia-container-cli",
            low_level_runtimes=("runc", "crun"),
            low_level_runtime="/usr/bin/runc",
        ),
        cdi=(spec(),),
        wsl=None,
        container=None,
        python=Python(
            version=r("3.12.3"),
            executable="/home/dev/.venv/bin/python",
            torch=None,
            packages=(),
            bitsandbytes_cuda=(),
            cuda_visible_devices=None,
            ld_library_path=(),
            shadowing_libraries=(),
        ),
        storage=Storage(
            1000,
            (
                Directory(
                    "/home/dev/.cache/huggingface/hub", "hub cache", True, True, 1000, "ext4", 500 * GIB, 9_000_000
                ),
                Directory("/home/dev/project", "workspace", True, True, 1000, "ext4", 500 * GIB, 9_000_000),
                Directory("/var/lib/docker", "engine data", True, False, 0, "ext4", 500 * GIB, 30_000_000),
            ),
        ),
        clients=Clients(
            (Client("docker", "/usr/bin/docker", r("28.5.1"), False),),
            ("/usr/bin/dockerd",),
            DockerSettings("/home/dev/.docker/config.json", "", (), False),
        ),
        hub=Hub("", False, "", "", "", "/home/dev/.cache/huggingface/token", False, (), ()),
        kernel_log=KernelLog(xids=(), driver_lines=(), source="journalctl", is_whole=True, resumed_at=None),
        limits=limits(),
    )


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
