"""What must not be reported, some of it by name. A doctor that cries wolf is not asked twice."""

import pytest

from devkit.doctor.model import Passed, Skipped
from devkit.doctor.report.report import Health
from devkit.facts.engine import DaemonFile, Endpoint, EngineEnd, EngineFailure, EngineKind, Runtime
from devkit.facts.machine import Container, Platform, Torch
from devkit.facts.runs import Proxy
from devkit.facts.values import Unknown
from tests.cases import cases
from tests.doctor.machines import changed, gpu, health, healthy, host, inside, r, spec, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_codes, find_only, run_check
from tests.hosts import facts_of

# What must not be reported. A doctor that cries wolf is not asked twice.


def with_health(**changes):
    return changed(healthy(), {"nvml.gpus": (gpu(health=health(**changes)),)})


MACHINES = {
    "a desktop with one GPU": healthy(),
    "a dev container with its GPU": inside(),
    "WSL 2 with Docker Desktop": windows_guest(),
    "a laptop without an NVIDIA GPU": without_gpu(),
}


@pytest.mark.parametrize("facts", MACHINES.values(), ids=MACHINES)
def test_nothing_is_found_on_a_healthy_machine(facts):
    assert find_codes(facts) == []
    assert build_full_report(facts).health is (Health.NO_GPU if facts == without_gpu() else Health.HEALTHY)


def test_a_machine_without_a_gpu_gets_one_note_and_reasons():
    report = build_full_report(without_gpu())
    assert [shown.check.code for shown in report.findings] == ["GPU001"]
    assert report.root_causes == ()
    skipped = [outcome.verdict for outcome in report.outcomes if isinstance(outcome.verdict, Skipped)]
    assert len(skipped) > 20
    assert all(verdict.reason for verdict in skipped)


@cases(
    "code, facts",
    {
        "torch's CUDA older than the driver's within a major": (
            "CUD004",
            changed(inside(), {"python.torch": Torch("2.9.1+cu126", r("12.6"), None)}),
        ),
        "torch's CUDA newer than the driver's within a major": (
            "CUD004",
            changed(
                inside(),
                {
                    "nvml.driver": r("570.124.06"),
                    "nvml.cuda": r("12.8"),
                    "python.torch": Torch("2.9.1+cu129", r("12.9"), None),
                },
            ),
        ),
        "no runtime named nvidia on a host that gives GPUs by CDI": (
            "CTK003",
            changed(healthy(), {"engine.runtimes": (Runtime("runc", "runc"),), "toolkit.daemon_files": ()}),
        ),
        "no toolkit on a host whose engine lists CDI GPUs": (
            "CTK001",
            changed(healthy(), {"toolkit.version": None, "engine.runtimes": (), "toolkit.daemon_files": ()}),
        ),
        "low clocks at rest": ("GPU016", with_health(sm_clock_mhz=210)),
        "a small window": ("GPU008", changed(healthy(), {"driver.pci_gpus.0.bar1_bytes": 256 << 20})),
        "firmware in another place": ("DRV007", changed(healthy(), {"driver.firmware_present": False})),
        "MIG is off": ("GPU003", changed(healthy(), {"nvml.gpus.0.mig_enabled": False})),
        "torch for ROCm is not a CPU build": (
            "PYT001",
            changed(inside(), {"python.torch": Torch("2.9.1+rocm6.4", None, "6.4")}),
        ),
        "no socket inside a container": (
            "ENG001",
            changed(
                inside(),
                {
                    "engine": EngineFailure(
                        EngineEnd.NOT_INSTALLED, Endpoint("unix:///var/run/docker.sock", "default"), ""
                    )
                },
            ),
        ),
        "the closed module on an Ada GPU": ("DRV004", changed(healthy(), {"driver.is_open": False})),
        "no compat libcuda": ("CUD002", changed(inside(), {"container.compat_libcuda": ""})),
        "a specification without versions": ("CDI001", changed(healthy(), {"cdi": (spec(driver=None),)})),
        "a proxy program on this very host": (
            "HUB004",
            changed(healthy(), {"hub.proxies": (Proxy("HTTPS_PROXY", "http://127.0.0.1:7890"),)}),
        ),
        "Docker Desktop beside Docker Engine on Linux, told apart by contexts": (
            "ENG009",
            changed(healthy(), {"engine.kind": EngineKind.DOCKER_DESKTOP}),
        ),
        "a docker command that Docker 29 still serves": (
            "ENG011",
            changed(healthy(), {"engine.min_api_version": "1.44"}),
        ),
        "small memory outside of WSL": ("WSL006", changed(healthy(), {"system.memory_bytes": 8 << 30})),
        "a GPU given to a virtual machine is not missing": (
            "GPU005",
            changed(healthy(), {"driver.pci_gpus.0.kernel_driver": "vfio-pci"}),
        ),
        "one GPU of eight inside": (
            "GPU005",
            changed(inside(), {"driver.pci_gpus": (healthy().driver.pci_gpus[0],) * 8}),
        ),
    },
)
def test_is_not_reported(code, facts):
    assert isinstance(run_check(code, facts), Passed | Skipped)


def test_a_container_that_wants_no_gpu_is_left_alone():
    facts = changed(
        inside(),
        {
            "container.visible_devices": "void",
            "nvml": without_gpu().nvml,
            "driver.nvidiactl": "absent",
            "driver.device_nodes": (),
            "driver.libcuda": None,
            "driver.libcuda_paths": (),
        },
    )
    assert find_codes(facts) == []


# Things that look like a fault and are none, each by its name: the whole doctor must stay silent about them.


GPUS = tuple(gpu(index) for index in range(2))
TWO_NODES = ("/dev/nvidia1", *healthy().driver.device_nodes)
IMAGE = Container("docker", "all", "compute,utility", "cuda>=12.8", 8 << 30, "", False, False, "")
MACOS = {"system.platform": Platform.MACOS, "driver": Unknown("macOS has no NVIDIA driver"), "cdi": Unknown("macOS")}
BUSY = {"utilization_percent": 100, "pcie_generation": 4, "sm_clock_mhz": 2400, "power_mw": 449_000}
NO_COUNTS = ("ecc_enabled", "ecc_uncorrected", "remap_pending", "remap_failed", "retirement_pending", "power_limit_mw")


def with_fabric_manager(state):
    return changed(healthy(), {"driver.fabric_manager": state, "driver.nvswitch_present": False})


@cases(
    "facts",
    {
        "a CPU container on a laptop": changed(without_gpu(), {"container": IMAGE, "engine": Unknown("none here")}),
        "a Mac": changed(without_gpu(), MACOS),
        "more GPUs than one": host(
            nvml__gpus=GPUS,
            driver__pci_gpus=healthy().driver.pci_gpus * 2,
            driver__device_nodes=TWO_NODES,
            cdi=(spec(devices=("0", "1", "all")),),
        ),
        "a software power cap alone": with_health(clock_reasons=("sw-power-cap",), **BUSY),
        "a link of the first generation at idle": with_health(
            pcie_generation=1, pcie_max_generation=4, utilization_percent=0, clock_reasons=("gpu-idle",)
        ),
        "an NVSwitch's program that was not asked for": with_fabric_manager(Unknown("not asked")),
        "an NVSwitch's program that is inactive without one": with_fabric_manager("inactive"),
        "an NVSwitch's program that failed without one": with_fabric_manager("failed"),
        "an NVSwitch's program of unknown state without one": with_fabric_manager("unknown"),
        "no memory error counts on a GeForce": with_health(
            **dict.fromkeys(NO_COUNTS, Unknown("nvmlDeviceGetTotalEccErrors: Not Supported"))
        ),
        "a machine that prints WSL's warning": facts_of("wsl2-not-a-symbolic-link"),
        "a machine that prints the warning of a group": facts_of("in-container-nameless-group"),
        "no nvcc in a runtime image": changed(inside(), {"python.cuda_toolkit": None}),
        "a CUDA version other than torch's within a major": facts_of("cuda-differs-within-major"),
        "a group without a name": changed(inside(), {"container.nameless_groups": (993,)}),
        "several network cards on a host": host(limits__interfaces=("eno1", "docker0", "wlan0")),
        "no project": host(project=None),
    },
)
def test_nothing_is_found(facts):
    assert find_codes(facts) == []


def test_a_specification_that_only_root_may_read_is_no_fault_of_an_engine_that_runs_as_root():
    facts = changed(facts_of("podman-cdi-unreadable"), {"engine.is_rootless": False})
    assert "CTK002" not in find_codes(facts)
    assert "CTK002" in find_codes(changed(facts, {"cdi": ()}))


def test_a_settings_file_of_the_users_own_needs_no_root():
    for path, root in (("/etc/docker/daemon.json", True), ("/home/dev/.config/docker/daemon.json", False)):
        facts = changed(healthy(), {"toolkit.daemon_files": (DaemonFile(path, "line 1: no JSON", False),)})
        assert find_only("ENG006", facts).fix.root is root
