"""What must not be reported, some of it by name. A doctor that cries wolf is not asked twice."""

import pytest

from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.model import Passed, Severity, Skipped
from devkit.doctor.report.report import Health
from devkit.facts.engine import DaemonFile, Endpoint, EngineEnd, EngineFailure, EngineKind, Runtime
from devkit.facts.machine import Container, Platform, Torch
from devkit.facts.runs import Proxy
from devkit.facts.values import Unknown
from tests.cases import cases
from tests.doctor.machines import changed, gpu, health, healthy, inside, r, spec, windows_guest, without_gpu
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


def test_a_cpu_container_on_a_laptop_is_healthy():
    image = Container("docker", "all", "compute,utility", "cuda>=12.8", 8 << 30, "", False, False, "")
    assert find_codes(changed(without_gpu(), {"container": image, "engine": Unknown("none here")})) == []


def test_a_mac_is_healthy():
    facts = changed(
        without_gpu(),
        {"system.platform": Platform.MACOS, "driver": Unknown("macOS has no NVIDIA driver"), "cdi": Unknown("macOS")},
    )
    assert find_codes(facts) == []


def test_more_gpus_than_one_are_no_problem():
    nodes = ("/dev/nvidia1", *healthy().driver.device_nodes)
    changes = {"nvml.gpus": (gpu(0), gpu(1)), "driver.pci_gpus": healthy().driver.pci_gpus * 2}
    changes |= {"driver.device_nodes": nodes}
    facts = changed(healthy(), changes | {"cdi": (spec(devices=("0", "1", "all")),)})
    assert find_codes(facts) == []


# Nine things that look like a fault and are none, each by its name: the whole doctor must stay silent about them.


NOT_SUPPORTED = Unknown("nvmlDeviceGetTotalEccErrors: Not Supported")


def test_a_software_power_cap_alone_is_no_fault():
    busy = {"utilization_percent": 100, "pcie_generation": 4, "sm_clock_mhz": 2400, "power_mw": 449_000}
    assert find_codes(with_health(clock_reasons=("sw-power-cap",), **busy)) == []


def test_a_link_of_the_first_generation_at_idle_is_no_fault():
    idle = with_health(pcie_generation=1, pcie_max_generation=4, utilization_percent=0, clock_reasons=("gpu-idle",))
    assert find_codes(idle) == []


@pytest.mark.parametrize("state", [Unknown("not asked"), "inactive", "failed", "unknown"], ids=str)
def test_no_fabric_manager_is_no_fault_without_an_nvswitch(state):
    assert find_codes(changed(healthy(), {"driver.fabric_manager": state, "driver.nvswitch_present": False})) == []


def test_no_memory_error_counts_on_a_geforce_are_no_fault():
    geforce = with_health(
        ecc_enabled=NOT_SUPPORTED,
        ecc_uncorrected=NOT_SUPPORTED,
        remap_pending=NOT_SUPPORTED,
        remap_failed=NOT_SUPPORTED,
        retirement_pending=NOT_SUPPORTED,
        power_limit_mw=NOT_SUPPORTED,
    )
    assert find_codes(geforce) == []


@cases(
    "line",
    {
        "copies in WSL": "/sbin/ldconfig.real: /usr/lib/wsl/lib/libcuda.so.1 is not a symbolic link",
        "a group without a name": "groups: cannot find name for group ID 993",
    },
)
def test_a_harmless_line_is_at_most_a_note(line):
    assert {match.severity for match in find_known_errors(line)} <= {Severity.NOTE}


@pytest.mark.parametrize("machine", ["wsl2-not-a-symbolic-link", "in-container-nameless-group"])
def test_nor_is_the_machine_that_prints_it_at_fault(machine):
    assert find_codes(facts_of(machine)) == []


def test_no_nvcc_in_a_runtime_image_is_no_fault():
    assert find_codes(changed(inside(), {"python.cuda_toolkit": None})) == []


def test_a_cuda_version_other_than_torchs_within_a_major_is_no_fault():
    assert find_codes(facts_of("cuda-differs-within-major")) == []


def test_a_specification_that_only_root_may_read_is_no_fault_of_an_engine_that_runs_as_root():
    facts = changed(facts_of("podman-cdi-unreadable"), {"engine.is_rootless": False})
    assert "CTK002" not in find_codes(facts)
    assert "CTK002" in find_codes(changed(facts, {"cdi": ()}))


def test_a_settings_file_of_the_users_own_needs_no_root():
    for path, root in (("/etc/docker/daemon.json", True), ("/home/dev/.config/docker/daemon.json", False)):
        facts = changed(healthy(), {"toolkit.daemon_files": (DaemonFile(path, "line 1: no JSON", False),)})
        assert find_only("ENG006", facts).fix.root is root
