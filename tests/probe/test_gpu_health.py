import pytest

from devkit.facts.gpu import FailedGpu, Gpu, GpuHealth
from devkit.facts.values import Unknown
from devkit.probe.gpu.nvml import format_sysfs_address, parse_gpu_health, read_nvml
from tests.cases import cases

CALLS = {
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetDisplayActive": "display_active",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetTotalEccErrors": "ecc_uncorrected",
    "nvmlDeviceGetRemappedRows": "remap_pending",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetTemperatureThreshold": "slowdown_c",
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_mw",
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_max_generation",
    "nvmlDeviceGetClockInfo": "sm_clock_mhz",
    "nvmlDeviceGetApplicationsClock": "application_clock_mhz",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "processes",
    "nvmlDeviceGetVirtualizationMode": "virtualization",
    "nvmlDeviceGetGpuFabricInfoV": "fabric_state",
    "nvmlDeviceGetFieldValues": "recovery_action",
    "nvmlDeviceGetBrand": "brand",
    "nvmlDeviceGetPciInfo_v3": "pci_address",
}


def ask(host, deadline_s=3.0):
    return read_nvml(host, deadline_s=deadline_s)


def test_the_health_of_a_healthy_gpu_is_read_in_full(with_nvml):
    (gpu,) = ask(with_nvml()).gpus
    assert gpu.health == GpuHealth(
        pci_address="0000:01:00.0",
        persistence=True,
        compute_mode="default",
        display_active=False,
        ecc_enabled=True,
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        retirement_pending=Unknown("not read, because it does not apply to this GPU"),
        clock_reasons=("gpu-idle",),
        temperature_c=34,
        slowdown_c=87,
        power_mw=70000,
        power_limit_mw=700000,
        default_power_limit_mw=700000,
        utilization_percent=0,
        pcie_width=16,
        pcie_max_width=16,
        pcie_generation=5,
        pcie_max_generation=5,
        sm_clock_mhz=345,
        sm_max_clock_mhz=1980,
        application_clock_mhz=1980,
        default_application_clock_mhz=1980,
        processes=(),
        virtualization="none",
        license=Unknown("not read, because it does not apply to this GPU"),
        fabric_state="completed",
        fabric_status=0,
        inforom_ok=True,
        brand="tesla",
        recovery_action="none",
        fabric_faults=(),
        nvlink_count=0,
        nvlink_active=0,
        nvlink_errors=0,
        nvlink_errors_per_s=Unknown("only measured where a link has errors"),
        sram_threshold_exceeded=False,
        vbios="96.00.99.00.01",
    )


def test_links_are_counted_and_their_errors_measured(with_nvml):
    (gpu,) = ask(with_nvml(nvlinks="18:17:250")).gpus
    assert (gpu.health.nvlink_count, gpu.health.nvlink_active) == (18, 17)
    assert gpu.health.nvlink_errors >= 18 * 250
    assert gpu.health.nvlink_errors_per_s > 100


def test_links_without_errors_take_no_second_reading(with_nvml):
    (gpu,) = ask(with_nvml(nvlinks="18:18:0")).gpus
    assert (gpu.health.nvlink_active, gpu.health.nvlink_errors) == (18, 0)
    assert isinstance(gpu.health.nvlink_errors_per_s, Unknown)


def fabric(mask):
    return {"fabric": str(mask)}


@cases(
    "given, field, value",
    {
        "sound routes": (fabric(0b10101010 | 1 << 8), "fabric_faults", ()),
        "degraded bandwidth": (fabric(0b01), "fabric_faults", ("degraded-bandwidth",)),
        "unhealthy routes": (fabric(0b01 << 4), "fabric_faults", ("route-unhealthy",)),
        "two at once": (fabric(0b0101), "fabric_faults", ("degraded-bandwidth", "route-recovery")),
        "no partition": (fabric(4 << 8), "fabric_faults", ("no-partition",)),
        "too few links": (fabric(5 << 8), "fabric_faults", ("insufficient-nvlinks",)),
        "a value that nobody knows yet": (fabric(15 << 8), "fabric_faults", ()),
        "too many errors of SRAM": ({"sram": "1"}, "sram_threshold_exceeded", True),
        "a damaged record": ({"fail": "nvmlDeviceGetInforomConfigurationChecksum=14"}, "inforom_ok", False),
        "an older driver": ({"fail": "nvmlDeviceGetCurrentClocksEventReasons=13"}, "clock_reasons", ("gpu-idle",)),
    },
)
def test_what_nvml_reports_of_a_gpu(with_nvml, given, field, value):
    (gpu,) = ask(with_nvml(**given)).gpus
    assert getattr(gpu.health, field) == value


@pytest.mark.parametrize("first", [0, 1])
@cases("code", {"not supported": 3, "no permission": 4, "not found": 13, "unknown error": 999})
def test_a_refused_reading_costs_itself_alone(with_nvml, code, first):
    refused = list(CALLS)[first::2]
    (gpu,) = ask(with_nvml(fail=";".join(f"{call}={code}" for call in refused))).gpus
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    unread = {field for field in CALLS.values() if isinstance(getattr(gpu.health, field), Unknown)}
    assert unread == {CALLS[call] for call in refused}


def test_a_gpu_that_is_lost_while_its_health_is_read_is_lost(with_nvml):
    answer = ask(with_nvml(gpus=2, fail="nvmlDeviceGetPowerUsage@1=15"))
    assert answer.gpus[1] == FailedGpu(1, 15, "GPU is lost")
    assert isinstance(answer.gpus[0], Gpu)


def test_a_hang_in_a_reading_costs_that_gpu_alone(with_nvml):
    answer = ask(with_nvml(gpus=3, fail="nvmlDeviceGetPowerUsage@1=hang"), deadline_s=2.0)
    assert [type(gpu) for gpu in answer.gpus] == [Gpu, FailedGpu, Gpu]


def test_retired_pages_are_read_of_a_gpu_that_remaps_no_rows():
    words = {"remapped_rows": {"unknown": "Not Supported", "code": 3}, "retirement_pending": {"value": 1}}
    health = parse_gpu_health(words)
    assert (health.retirement_pending, health.remap_failed) == (True, Unknown("Not Supported"))


@cases(
    "words, field, value",
    {
        "two bits": ({"clock_reasons": {"value": 0x88}}, "clock_reasons", ("hw-slowdown", "hw-power-brake")),
        "no bit": ({"clock_reasons": {"value": 0}}, "clock_reasons", ()),
        "a number with a name": ({"compute_mode": {"value": 3}}, "compute_mode", "exclusive-process"),
        "a number without one": ({"recovery_action": {"value": 42}}, "recovery_action", "42"),
        "a license": ({"license": {"value": 5}}, "license", "licensed"),
        "a fabric": ({"fabric": {"value": [2, 0]}}, "fabric_state", "in-progress"),
        "too short": ({"remapped_rows": {"value": [0]}}, "remap_pending", Unknown("NVML answered [0]")),
        "nothing": ({"power": {"value": None}}, "power_mw", Unknown("NVML answered None")),
    },
)
def test_numbers_become_words(words, field, value):
    assert getattr(parse_gpu_health(words), field) == value


def test_a_child_of_an_older_release_says_nothing_of_health():
    assert parse_gpu_health(None) == Unknown("NVML was not called")


def test_processes_are_named_by_the_kernel_and_memory_may_be_hidden():
    health = parse_gpu_health({"processes": {"value": [[7, "python", None], [8, "", 1024]]}})
    assert [(process.pid, process.name) for process in health.processes] == [(7, "python"), (8, "")]
    assert isinstance(health.processes[0].memory_bytes, Unknown)


def test_addresses_are_written_as_sysfs_does():
    assert format_sysfs_address("00000000:01:00.0") == "0000:01:00.0"
    assert format_sysfs_address("0000000F:C1:00.0") == "000f:c1:00.0"
