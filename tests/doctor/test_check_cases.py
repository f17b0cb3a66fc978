"""Cases of checks on a healthy machine with one thing changed: both sides of each boundary, a row each.

Checks that need more than a changed field have tests of their own beside this table.
"""

import dataclasses

import pytest

from devkit.facts.engine import Client, Runtime
from devkit.facts.gpu import KernelLog, NvmlEnd, NvmlFailure, Xid
from devkit.facts.machine import Directory, Mps, Package, Storage, Torch
from devkit.facts.runs import ProgramFailure
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import FEDORA, PCI, changed, gpu, health, healthy, inside, limits, r, spec

SXID = Xid(
    20034, "0000:84:00.0", "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", 2, ""
)
RESET = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
RECOVERED = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
NO_RATE = Unknown("only measured where a link has errors")
NO_FIELD = Unknown("field 230 returned 3")


def states(*changes):
    """What is changed for GPUs of one model with these differences in their health."""
    return {"nvml.gpus": tuple(gpu(index, health=health(**each)) for index, each in enumerate(changes))}


def links(active, errors_per_s=NO_RATE):
    return {"nvlink_count": 18, "nvlink_active": active, "nvlink_errors": 7, "nvlink_errors_per_s": errors_per_s}


def log(**changes):
    return {
        "kernel_log": KernelLog(**{"xids": (), "driver_lines": (), "is_whole": True, "switch_errors": ()} | changes)
    }


def on_node(node, *allowed):
    return {"driver.pci_gpus": (dataclasses.replace(PCI, numa_node=node),), "limits": limits(numa_nodes=allowed)}


def mps(*, answers=True, has_own_ipc=True):
    limit = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"
    return {"limits": limits(mps=Mps("/tmp/nvidia-mps", answers=answers, settings=(limit,), has_own_ipc=has_own_ipc))}


def registered(path, program):
    return {"engine.runtimes": (Runtime("nvidia", path, program),)}


HIDDEN = Unknown("the daemon's process is not visible from here")
BY_CDI_ALONE = {"engine.hook_on_path": False, "engine.runtimes": ()}
TWO_FILES = {"cdi": (spec(), spec(path="/etc/cdi/nvidia2.yaml")), "engine.cdi_devices": ()}
TWO_FOLDERS = {"cdi": (spec(), spec(path="/var/run/cdi/nvidia.yaml"))}


def torch_beside(package, version, *, torch="2.15.0", cuda="13.2"):
    """What pip takes from the public index: torch for CUDA 13.2, and packages that are built for another one."""
    packages = (Package("torch", torch, ""), Package(package, version, ""))
    return {
        "python.torch": Torch(torch, r(cuda), None),
        "python.packages": packages,
        "nvml.driver": r("600.10"),
        "nvml.cuda": r("13.2"),
    }


WITH_NERDCTL = {"clients.found": (Client("nerdctl", "/usr/local/bin/nerdctl", Unknown("not read")),)}


def host(changes):
    return changed(healthy(), changes)


def within(changes):
    return changed(inside(), changes)


LOST = {
    "driver.nvidiactl": "absent",
    "nvml": NvmlFailure(NvmlEnd.ERROR, 9, "", "nvmlInit_v2"),
    "container.visible_devices": None,
}
NO_TOOLKIT = {
    "system.distribution": FEDORA,
    "toolkit.version": None,
    "engine.hook_on_path": False,
    "engine.runtimes": (),
    "engine.cdi_devices": (),
    "cdi": (),
}


def nvml_fails(*variables):
    said = ProgramFailure("NVML", ("nvmlInit_v2: mismatch",), works_without=variables, set_in=("/home/dev/.bashrc:3",))
    return host({"nvml": NvmlFailure(NvmlEnd.ERROR, 18, "mismatch", "nvmlInit_v2", said if variables else None)})


NO_GPU_ON_BUS = {"driver.pci_gpus": (), "nvml.gpus": ()}
STALE = ("/dev/nvidia-uvm: major number 240, and the driver has 236",)


def folder(purpose, **changes):
    """One folder, on a local disk, writable and with room."""
    usual = {"path": "/srv/data", "exists": True, "is_writable": True, "owner_uid": 1000, "file_system": "ext4"}
    usual |= {"purpose": purpose, "free_bytes": 1 << 40, "allows_programs": True}
    return host({"storage": Storage(1000, (Directory(**usual | changes),))})


CASES = [
    ("CON001", within({**LOST, "container.kind": "lxc"}), "error: lxc.mount.entry | never docker run", "LXC"),
    (
        "CON001",
        within({**LOST, "container.kind": "flatpak"}),
        "error: flatpak-spawn --host | never docker run",
        "Flatpak",
    ),
    (
        "CTK001",
        host({**NO_TOOLKIT, "system.image_tool": "rpm-ostree"}),
        "error: sudo rpm-ostree install nvidia | reboot | never dnf",
        "Silverblue",
    ),
    (
        "CTK001",
        host({**NO_TOOLKIT, "system.image_tool": "image"}),
        "error: changes with its image | never install -y",
        "Bottlerocket",
    ),
    ("DRV016", nvml_fails("LD_PRELOAD"), "error: unset LD_PRELOAD | remove it from /home/dev/.bashrc:3", "a variable"),
    ("DRV016", nvml_fails(), "passed", "NVML fails without any variable, too"),
    ("GPU036", host({"expected_gpus": 2}), "error: expected 2 GPUs, but 1 respond", "one of two is gone"),
    ("GPU036", host({"expected_gpus": 1}), "passed", "as many as expected"),
    (
        "GPU036",
        host(NO_GPU_ON_BUS),
        "error: PCI bus has no NVIDIA GPU | lspci | never reboot",
        "a driver without a GPU",
    ),
    ("GPU036", host({}), "passed", "a driver with its GPU"),
    ("GPU036", host({**NO_GPU_ON_BUS, "driver.loaded": None}), "skipped", "a machine without driver and GPU"),
    ("GPU036", within(NO_GPU_ON_BUS), "skipped", "a container sees no bus"),
    (
        "DRV018",
        host({"driver.stale_nodes": STALE}),
        "error: /dev/nvidia-uvm | 236 | sudo rm /dev/nvidia-uvm",
        "an old node",
    ),
    ("DRV018", within({"driver.stale_nodes": STALE}), "error: Recreate the container | never sudo", "in a container"),
    ("DRV018", host({"driver.stale_nodes": ()}), "passed", "nodes of the driver"),
    ("MEM003", host({"limits": limits(group_memory_bytes=2 << 30)}), "warning: session or job | --mem", "a Slurm job"),
    ("STO008", folder("temporary", exists=False), "warning: does not exist | unset TMPDIR", "TMPDIR names nothing"),
    ("STO008", folder("temporary", is_writable=False), "warning: not writable", "TMPDIR of another user"),
    ("STO008", folder("temporary"), "passed", "a folder for temporary files"),
    ("STO008", folder("temporary", allows_programs=False), "passed", "/tmp is noexec on many hardened machines"),
    (
        "STO008",
        folder("workspace", allows_programs=False),
        "warning: noexec | findmnt -T /srv/data",
        "a project on noexec",
    ),
    ("STO008", folder("engine data", file_system="nfs4"), "warning: nfs4 | graphroot", "layers on a network share"),
    ("STO008", folder("hub cache", file_system="nfs4"), "passed", "models on a network share"),
    # code of the check, machine, what the check says, name of the case
    ("PYT024", within(torch_beside("torchaudio", "2.11.0")), "warning", "2.11.0 is built for CUDA 12.6, 12.8 or 13.0"),
    ("PYT024", within(torch_beside("torchaudio", "2.11.0", cuda="13.0")), "passed", "torchaudio has this build"),
    ("PYT024", within(torch_beside("torchaudio", "2.11.0+cu132")), "passed", "somebody built it for this torch"),
    ("PYT024", within(torch_beside("torchaudio", "2.10.0")), "passed", "before the table"),
    ("PYT024", within(torch_beside("vllm", "0.33.0")), "passed", "any CUDA 13 serves"),
    ("PYT024", within(torch_beside("vllm", "0.19.1")), "warning", "vllm 0.19.1 is built for CUDA 12"),
    ("STO007", host({"system.hidden_folders": ()}), "passed", "every folder shows"),
    ("STO007", host({"system.hidden_folders": ("/proc", "/var")}), "skipped", "two folders are empty"),
    ("CTK019", host({"toolkit.accepts_variable": False, "engine.cdi_devices": ()}), "error: nvidia-ctk config", "off"),
    ("CTK019", host({"toolkit.accepts_variable": False}), "warning", "off, and CDI is there"),
    ("CTK019", host({"toolkit.accepts_variable": True}), "passed", "as it comes"),
    ("CTK019", host({"toolkit.accepts_variable": Unknown("not read")}), "skipped", "settings that were not read"),
    ("GPU030", host(states({"fabric_faults": ()})), "passed", "a healthy fabric"),
    ("GPU030", host(states({"fabric_faults": ("degraded-bandwidth",)})), "warning", "less bandwidth"),
    ("GPU030", host(states({"fabric_faults": ("no-partition",)})), "error", "no partition"),
    ("GPU030", host(states({"fabric_faults": Unknown("not supported")})), "skipped", "no fabric"),
    (
        "GPU023",
        host(states({"fabric_state": "in-progress"}) | {"driver.fabric_manager": "failed"}),
        "skipped",
        "a fabric whose switches do not show on the bus, as on HGX B200",
    ),
    (
        "GPU031",
        host(states(links(18), links(17) | {"nvlink_count": Unknown("not supported")})),
        "warning: 17 NVLinks up",
        "a link is down where the number of links is not known",
    ),
    ("GPU031", host(states(links(4), links(0))), "passed", "a bridge between two other GPUs"),
    (
        "GPU031",
        host(states(links(18), links(0)) | {"driver.nvswitch_present": True}),
        "warning",
        "a GPU without any link beside an NVSwitch",
    ),
    (
        "GPU031",
        host(states(links(18) | {"fabric_state": "completed"}, links(0))),
        "warning",
        "a GPU without any link in a fabric whose switches do not show",
    ),
    ("GPU031", host(states(links(18, 99.9))), "passed", "errors at a rate that does not matter"),
    ("GPU031", host(states(links(18, 100.0))), "warning", "errors at a rate that matters"),
    ("GPU031", host(states({"nvlink_count": 0, "nvlink_active": 0})), "skipped", "no links"),
    ("GPU031", host(states({"nvlink_active": Unknown("not supported")})), "skipped", "links that are not known"),
    ("GPU032", host(states({"sram_threshold_exceeded": False})), "passed", "few errors"),
    ("GPU032", host(states({"sram_threshold_exceeded": True})), "warning", "too many errors"),
    ("GPU032", host(states({"sram_threshold_exceeded": Unknown("GeForce")})), "skipped", "a GPU that does not count"),
    ("GPU033", host(log()), "passed", "no report"),
    ("GPU033", host(log(switch_errors=(SXID,))), "error", "a fatal report"),
    ("GPU033", host({"kernel_log": Unknown("not for this user")}), "skipped", "a log that was refused"),
    (
        "GPU027",
        host(log(xids=(Xid(154, PCI.address, RESET),)) | states({"recovery_action": NO_FIELD})),
        "error",
        "Xid 154",
    ),
    (
        "GPU027",
        host(log(xids=(Xid(154, PCI.address, RECOVERED),)) | states({"recovery_action": NO_FIELD})),
        "skipped",
        "Xid 154 of a GPU that was reset since",
    ),
    ("GPU027", host(log(xids=(Xid(154, PCI.address, RESET),))), "passed", "an Xid 154 that NVML does not confirm"),
    ("GPU034", host(on_node(1, 0, 1)), "passed", "every node"),
    ("GPU034", host(on_node(1, 0)), "warning", "the other node"),
    ("GPU034", host(on_node(Unknown("-1"), 0)), "skipped", "a GPU of no known node"),
    ("GPU034", host({"limits": limits(numa_nodes=Unknown("no nodes"))}), "skipped", "CPUs of no known node"),
    ("GPU035", host(mps(answers=False)), "warning", "no daemon, and a limit of it"),
    ("GPU035", within(mps()), "warning", "its socket in a container with its own IPC namespace"),
    ("GPU035", within(mps(has_own_ipc=False)), "passed", "its socket in a container with the host's"),
    ("GPU035", host({"limits": limits(mps=None)}), "skipped", "nothing of MPS"),
    ("DRV014", host({"driver.libcuda": None, "driver.libcuda_paths": ()}), "error", "nvidia-smi without libcuda"),
    (
        "DRV014",
        host({"driver.libcuda": None, "driver.libcuda_paths": (), "driver.libnvidia_ml": None}),
        "passed",
        "no driver library at all is not its finding",
    ),
    ("DRV014", host({"driver.libcuda": Unknown("no ldconfig")}), "skipped", "a library that could not be looked up"),
    ("DRV014", within({"driver.libcuda": None, "driver.libcuda_paths": ()}), "error", "a container with NVML alone"),
    (
        "DRV014",
        within({"driver.libcuda": None, "driver.libcuda_paths": (), "container.driver_capabilities": "utility"}),
        "skipped",
        "a container that asked for utility alone",
    ),
    (
        "DRV014",
        within({"driver.libcuda": None, "driver.libcuda_paths": (), "driver.nvidiactl": "absent"}),
        "skipped",
        "a container without a GPU",
    ),
    ("NET004", host({"limits": limits(has_infiniband=True, nccl=("NCCL_IB_DISABLE=1",))}), "warning", "turned off"),
    ("NET004", host({"limits": limits(has_infiniband=True, nccl=())}), "passed", "not set"),
    ("NET004", host({"limits": limits(has_infiniband=False, nccl=("NCCL_IB_DISABLE=1",))}), "skipped", "no InfiniBand"),
    ("CTK001", host({"engine.hook_on_path": False}), "warning", "a registered runtime whose hook is gone"),
    ("CTK001", host({"engine.hook_on_path": False, "engine.version": r("29.2.0")}), "passed", "no hook is needed"),
    ("CTK001", host(BY_CDI_ALONE), "passed", "GPUs only through CDI"),
    ("CTK001", host(BY_CDI_ALONE | {"cdi": (), "engine.cdi_devices": ()}), "error", "the base package alone"),
    ("DRV005", host({"driver.device_nodes": ("/dev/nvidiactl", "/dev/nvidia-uvm")}), "warning", "no node of the GPU"),
    ("DRV005", host({"driver.device_nodes": ("/dev/nvidia1", "/dev/nvidia-uvm")}), "passed", "another number"),
    ("CTK008", host({"toolkit.mode": "jit-cdi"}), "passed", "a mode that exists"),
    ("CTK008", host({"toolkit.mode": "lagacy"}), "error", "a mode that does not exist"),
    ("CTK014", healthy(), "passed", "the toolkit's program"),
    ("CTK014", host(registered("/opt/nvidia/nvidia-container-runtime", "")), "error", "a program that is gone"),
    ("CTK014", host(registered("runc", "/usr/bin/runc")), "error", "runc by another name"),
    ("CTK014", host(registered("nvidia-container-runtime", HIDDEN)), "skipped", "a daemon that cannot be seen"),
    ("CTK014", host({"engine.runtimes": ()}), "skipped", "no such runtime"),
    ("CTK017", healthy(), "skipped", "no nerdctl"),
    ("CTK017", host(WITH_NERDCTL | {"toolkit.cli_path": ""}), "passed", "a specification alone"),
    ("CTK017", host(WITH_NERDCTL | {"toolkit.cli_path": "", "cdi": ()}), "warning", "neither"),
    ("CTK017", host(WITH_NERDCTL | {"toolkit.cli_path": "", "cdi": Unknown("denied")}), "skipped", "denied"),
    ("CTK016", host({"toolkit.enroot_hook": None}), "skipped", "no Enroot"),
    ("CTK016", host({"toolkit.enroot_hook": "/etc/enroot/hooks.d/98-nvidia.sh"}), "passed", "hook and program"),
    ("CTK016", host({"toolkit.enroot_hook": ""}), "warning", "no hook"),
    ("CTK016", host({"toolkit.enroot_hook": "/x", "toolkit.cli_path": ""}), "error", "no nvidia-container-cli"),
    ("CTK016", host({"toolkit.enroot_hook": "/x", "toolkit.cli_path": Unknown("denied")}), "skipped", "denied"),
    ("CTK015", host({"toolkit.cli_path": ""}), "error", "no nvidia-container-cli"),
    (
        "CTK015",
        host({"toolkit.cli_path": "", "toolkit.cli_setting": "/opt/gone/cli"}),
        "error: sets nvidia-container-cli to /opt/gone/cli | sudo sed -i | never apt-get",
        "config.toml names another place",
    ),
    ("CTK015", host({"toolkit.cli_path": "", "engine.version": r("29.2.0")}), "passed", "Docker needs no hook"),
    ("CTK015", host({"toolkit.cli_path": "", **BY_CDI_ALONE}), "passed", "no hook that would call it"),
    ("CTK015", host({"toolkit.low_level_runtime": ""}), "error", "nothing below the nvidia runtime"),
    ("CTK015", host({"toolkit.low_level_runtime": "", "engine.runtimes": ()}), "passed", "no nvidia runtime"),
    ("ENG016", healthy(), "passed", "systemd runs"),
    ("ENG016", host({"system.runs_systemd": False}), "error", "no systemd"),
    ("ENG016", host({"system.runs_systemd": Unknown("hidden")}), "skipped", "it is not known what runs"),
    ("CDI004", host({"cdi": (spec(missing_paths=("/dev/nvidia-uvm",)),)}), "passed", "a node made on demand"),
    ("CDI005", host({"cdi": (spec(devices=("0",)),)}), "warning", "a specification cut off before its device all"),
    ("CDI009", host(TWO_FILES), "warning", "two files of one folder"),
    ("CDI009", host(TWO_FILES | {"engine.cdi_devices": Unknown("not listed")}), "warning", "seen without the engine"),
    ("CDI009", host(TWO_FOLDERS), "passed", "the later folder replaces the earlier one"),
    ("CDI009", host(TWO_FILES | {"engine.cdi_spec_dirs": ("/opt/cdi",)}), "passed", "a folder that is not searched"),
    ("CDI009", host({"cdi": ()}), "skipped", "no specification"),
    ("CDI010", host(BY_CDI_ALONE), "passed", "the engine lists them"),
    ("CDI010", host({"engine.cdi_devices": ()}), "passed", "the runtime gives GPUs all the same"),
    ("CDI010", host(BY_CDI_ALONE | {"engine.cdi_devices": ()}), "error", "the engine lists none"),
    (
        "CDI010",
        host(BY_CDI_ALONE | {"engine.cdi_devices": (), "cdi": (spec(kind="acme.com/gpu"),)}),
        "error",
        "another vendor's name",
    ),
    ("CDI010", host(BY_CDI_ALONE | {"cdi": Unknown("late")}), "skipped", "specifications that were not read"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_a_changed_machine(code):
    assert list_wrong(code, CASES) == []
