"""Cases of checks on a healthy machine with one thing changed: both sides of each boundary, a row each.

Checks that need more than a changed field have tests of their own beside this table.
"""

import dataclasses

import pytest

from devkit.doctor.model import Found, Passed, Skipped
from devkit.facts.model import Client, KernelLog, Mps, Package, Runtime, Torch, Xid
from devkit.facts.values import Unknown
from tests.doctor.machines import PCI, changed, gpu, health, healthy, inside, limits, r, spec
from tests.doctor.running import run_check

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

CASES = [
    ("PYT024", inside(), torch_beside("torchaudio", "2.11.0"), Found, "2.11.0 is built for CUDA 12.6, 12.8 or 13.0"),
    ("PYT024", inside(), torch_beside("torchaudio", "2.11.0", cuda="13.0"), Passed, "torchaudio has this build"),
    ("PYT024", inside(), torch_beside("torchaudio", "2.11.0+cu132"), Passed, "somebody built it for this torch"),
    ("PYT024", inside(), torch_beside("torchaudio", "2.10.0"), Passed, "before the table"),
    ("PYT024", inside(), torch_beside("vllm", "0.33.0"), Passed, "any CUDA 13 serves"),
    ("PYT024", inside(), torch_beside("vllm", "0.19.1"), Found, "vllm 0.19.1 is built for CUDA 12"),
    ("STO007", healthy(), {"system.hidden_folders": ()}, Passed, "every folder shows"),
    ("STO007", healthy(), {"system.hidden_folders": ("/proc", "/var")}, Skipped, "two folders are empty"),
    ("GPU030", healthy(), states({"fabric_faults": ()}), Passed, "a healthy fabric"),
    ("GPU030", healthy(), states({"fabric_faults": ("degraded-bandwidth",)}), Found, "less bandwidth"),
    ("GPU030", healthy(), states({"fabric_faults": ("no-partition",)}), Found, "no partition"),
    ("GPU030", healthy(), states({"fabric_faults": Unknown("not supported")}), Skipped, "no fabric"),
    (
        "GPU023",
        healthy(),
        states({"fabric_state": "in-progress"}) | {"driver.fabric_manager": "failed"},
        Skipped,
        "a fabric whose switches do not show on the bus, as on HGX B200",
    ),
    ("GPU031", healthy(), states(links(18), links(18)), Passed, "all links up, and a few old errors"),
    ("GPU031", healthy(), states(links(18), links(17)), Found, "a link down on one of two GPUs"),
    ("GPU031", healthy(), states(links(12), links(12)), Passed, "bridges that use some of the links"),
    ("GPU031", healthy(), states(links(4), links(0)), Passed, "a bridge between two other GPUs"),
    (
        "GPU031",
        healthy(),
        states(links(18), links(0)) | {"driver.nvswitch_present": True},
        Found,
        "a GPU without any link beside an NVSwitch",
    ),
    (
        "GPU031",
        healthy(),
        states(links(18) | {"fabric_state": "completed"}, links(0)),
        Found,
        "a GPU without any link in a fabric whose switches do not show",
    ),
    ("GPU031", healthy(), states(links(18, 99.9)), Passed, "errors at a rate that does not matter"),
    ("GPU031", healthy(), states(links(18, 100.0)), Found, "errors at a rate that matters"),
    ("GPU031", healthy(), states({"nvlink_count": 0, "nvlink_active": 0}), Skipped, "no links"),
    ("GPU031", healthy(), states({"nvlink_active": Unknown("not supported")}), Skipped, "links that are not known"),
    ("GPU032", healthy(), states({"sram_threshold_exceeded": False}), Passed, "few errors"),
    ("GPU032", healthy(), states({"sram_threshold_exceeded": True}), Found, "too many errors"),
    (
        "GPU032",
        healthy(),
        states({"sram_threshold_exceeded": Unknown("GeForce")}),
        Skipped,
        "a GPU that does not count",
    ),
    ("GPU033", healthy(), log(), Passed, "no report"),
    ("GPU033", healthy(), log(switch_errors=(SXID,)), Found, "a fatal report"),
    ("GPU033", healthy(), {"kernel_log": Unknown("not for this user")}, Skipped, "a log that was refused"),
    (
        "GPU027",
        healthy(),
        log(xids=(Xid(154, PCI.address, RESET),)) | states({"recovery_action": NO_FIELD}),
        Found,
        "Xid 154",
    ),
    (
        "GPU027",
        healthy(),
        log(xids=(Xid(154, PCI.address, RECOVERED),)) | states({"recovery_action": NO_FIELD}),
        Skipped,
        "Xid 154 of a GPU that was reset since",
    ),
    ("GPU027", healthy(), log(xids=(Xid(154, PCI.address, RESET),)), Passed, "an Xid 154 that NVML does not confirm"),
    ("GPU034", healthy(), on_node(0, 0), Passed, "the node of the GPU"),
    ("GPU034", healthy(), on_node(1, 0, 1), Passed, "every node"),
    ("GPU034", healthy(), on_node(1, 0), Found, "the other node"),
    ("GPU034", healthy(), on_node(Unknown("-1"), 0), Skipped, "a GPU of no known node"),
    ("GPU034", healthy(), {"limits": limits(numa_nodes=Unknown("no nodes"))}, Skipped, "CPUs of no known node"),
    ("GPU035", healthy(), mps(), Passed, "a daemon on the host"),
    ("GPU035", healthy(), mps(answers=False), Found, "no daemon, and a limit of it"),
    ("GPU035", inside(), mps(), Found, "its socket in a container with its own IPC namespace"),
    ("GPU035", inside(), mps(has_own_ipc=False), Passed, "its socket in a container with the host's"),
    ("GPU035", healthy(), {"limits": limits(mps=None)}, Skipped, "nothing of MPS"),
    # code, machine, what is changed on it, verdict, name of the case
    ("DRV014", healthy(), {}, Passed, "libcuda is installed"),
    ("DRV014", healthy(), {"driver.libcuda": None, "driver.libcuda_paths": ()}, Found, "nvidia-smi without libcuda"),
    (
        "DRV014",
        healthy(),
        {"driver.libcuda": None, "driver.libcuda_paths": (), "driver.libnvidia_ml": None},
        Passed,
        "no driver library at all is not its finding",
    ),
    ("DRV014", healthy(), {"driver.libcuda": Unknown("no ldconfig")}, Skipped, "a library that could not be looked up"),
    ("DRV014", inside(), {"driver.libcuda": None, "driver.libcuda_paths": ()}, Found, "a container with NVML alone"),
    (
        "DRV014",
        inside(),
        {"driver.libcuda": None, "driver.libcuda_paths": (), "container.driver_capabilities": "utility"},
        Skipped,
        "a container that asked for utility alone",
    ),
    (
        "DRV014",
        inside(),
        {"driver.libcuda": None, "driver.libcuda_paths": (), "driver.nvidiactl": "absent"},
        Skipped,
        "a container without a GPU",
    ),
    ("NET004", healthy(), {"limits": limits(has_infiniband=True, nccl=("NCCL_IB_DISABLE=1",))}, Found, "turned off"),
    ("NET004", healthy(), {"limits": limits(has_infiniband=True, nccl=("NCCL_IB_DISABLE=0",))}, Passed, "left on"),
    ("NET004", healthy(), {"limits": limits(has_infiniband=True, nccl=())}, Passed, "not set"),
    (
        "NET004",
        healthy(),
        {"limits": limits(has_infiniband=False, nccl=("NCCL_IB_DISABLE=1",))},
        Skipped,
        "no InfiniBand",
    ),
    ("CTK001", healthy(), {"engine.hook_on_path": False}, Found, "a registered runtime whose hook is gone"),
    ("CTK001", healthy(), {"engine.hook_on_path": False, "engine.version": r("29.2.0")}, Passed, "no hook is needed"),
    ("CTK001", healthy(), BY_CDI_ALONE, Passed, "GPUs by CDI alone"),
    ("CTK001", healthy(), BY_CDI_ALONE | {"cdi": (), "engine.cdi_devices": ()}, Found, "the base package alone"),
    ("DRV005", healthy(), {}, Passed, "every node is there"),
    ("DRV005", healthy(), {"driver.device_nodes": ("/dev/nvidiactl", "/dev/nvidia-uvm")}, Found, "no node of the GPU"),
    ("DRV005", healthy(), {"driver.device_nodes": ("/dev/nvidia1", "/dev/nvidia-uvm")}, Passed, "another number"),
    ("CTK008", healthy(), {"toolkit.mode": "jit-cdi"}, Passed, "a mode that exists"),
    ("CTK008", healthy(), {"toolkit.mode": "lagacy"}, Found, "a mode that does not exist"),
    ("CTK014", healthy(), {}, Passed, "the toolkit's program"),
    ("CTK014", healthy(), registered("/opt/nvidia/nvidia-container-runtime", ""), Found, "a program that is gone"),
    ("CTK014", healthy(), registered("runc", "/usr/bin/runc"), Found, "runc by another name"),
    ("CTK014", healthy(), registered("nvidia-container-runtime", HIDDEN), Skipped, "a daemon that cannot be seen"),
    ("CTK014", healthy(), {"engine.runtimes": ()}, Skipped, "no such runtime"),
    ("CTK017", healthy(), {}, Skipped, "no nerdctl"),
    ("CTK017", healthy(), WITH_NERDCTL, Passed, "the program and a specification"),
    ("CTK017", healthy(), WITH_NERDCTL | {"toolkit.cli_path": ""}, Passed, "a specification alone"),
    ("CTK017", healthy(), WITH_NERDCTL | {"toolkit.cli_path": "", "cdi": ()}, Found, "neither"),
    ("CTK017", healthy(), WITH_NERDCTL | {"toolkit.cli_path": "", "cdi": Unknown("denied")}, Skipped, "denied"),
    ("CTK016", healthy(), {"toolkit.enroot_hook": None}, Skipped, "no Enroot"),
    ("CTK016", healthy(), {"toolkit.enroot_hook": "/etc/enroot/hooks.d/98-nvidia.sh"}, Passed, "hook and program"),
    ("CTK016", healthy(), {"toolkit.enroot_hook": ""}, Found, "no hook"),
    ("CTK016", healthy(), {"toolkit.enroot_hook": "/x", "toolkit.cli_path": ""}, Found, "no nvidia-container-cli"),
    ("CTK016", healthy(), {"toolkit.enroot_hook": "/x", "toolkit.cli_path": Unknown("denied")}, Skipped, "denied"),
    ("CTK015", healthy(), {}, Passed, "both programs are there"),
    ("CTK015", healthy(), {"toolkit.cli_path": ""}, Found, "no nvidia-container-cli"),
    ("CTK015", healthy(), {"toolkit.cli_path": "", "engine.version": r("29.2.0")}, Passed, "Docker needs no hook"),
    ("CTK015", healthy(), {"toolkit.cli_path": "", **BY_CDI_ALONE}, Passed, "no hook that would call it"),
    ("CTK015", healthy(), {"toolkit.low_level_runtime": ""}, Found, "nothing below the nvidia runtime"),
    ("CTK015", healthy(), {"toolkit.low_level_runtime": "", "engine.runtimes": ()}, Passed, "no nvidia runtime"),
    ("ENG016", healthy(), {}, Passed, "systemd runs"),
    ("ENG016", healthy(), {"system.runs_systemd": False}, Found, "no systemd"),
    ("ENG016", healthy(), {"system.runs_systemd": False, "engine.cgroup_driver": "cgroupfs"}, Passed, "cgroupfs"),
    ("ENG016", healthy(), {"system.runs_systemd": Unknown("hidden")}, Skipped, "it is not known what runs"),
    ("CDI004", healthy(), {"cdi": (spec(missing_paths=("/dev/nvidia-uvm",)),)}, Passed, "a node made on demand"),
    ("CDI005", healthy(), {"cdi": (spec(devices=("0",)),)}, Found, "a specification cut off before its device all"),
    ("CDI009", healthy(), {}, Passed, "one file"),
    ("CDI009", healthy(), TWO_FILES, Found, "two files of one folder"),
    ("CDI009", healthy(), TWO_FILES | {"engine.cdi_devices": Unknown("not listed")}, Found, "seen without the engine"),
    (
        "CDI009",
        healthy(),
        TWO_FILES | {"engine.cdi_devices": ("nvidia.com/gpu=0", "nvidia.com/gpu=all")},
        Passed,
        "an engine that lists them all the same",
    ),
    ("CDI009", healthy(), TWO_FOLDERS, Passed, "the later folder replaces the earlier one"),
    ("CDI009", healthy(), TWO_FILES | {"engine.cdi_spec_dirs": ("/opt/cdi",)}, Passed, "a folder that is not searched"),
    ("CDI009", healthy(), {"cdi": ()}, Skipped, "no specification"),
    ("CDI010", healthy(), BY_CDI_ALONE, Passed, "the engine lists them"),
    ("CDI010", healthy(), {"engine.cdi_devices": ()}, Passed, "the runtime gives GPUs all the same"),
    ("CDI010", healthy(), BY_CDI_ALONE | {"engine.cdi_devices": ()}, Found, "the engine lists none"),
    (
        "CDI010",
        healthy(),
        BY_CDI_ALONE | {"engine.cdi_devices": (), "cdi": (spec(kind="acme.com/gpu"),)},
        Found,
        "another vendor's name",
    ),
    ("CDI010", healthy(), BY_CDI_ALONE | {"cdi": Unknown("late")}, Skipped, "specifications that were not read"),
]


@pytest.mark.parametrize(
    ("code", "machine", "changes", "verdict"),
    [pytest.param(*case, id=f"{case[0]}: {name}") for *case, name in CASES],
)
def test_a_check_on_a_changed_machine(code, machine, changes, verdict):
    assert isinstance(run_check(code, changed(machine, changes)), verdict)
