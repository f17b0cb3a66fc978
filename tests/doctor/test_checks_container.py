import pytest

from devkit.doctor.model import Found, NotApplicable, Passed, Severity, Side, Skipped
from devkit.doctor.wheels import find_compatible_wheel, format_wheel_install_command
from devkit.facts.model import NvmlEnd, NvmlFailure, Package, Torch
from devkit.facts.values import Unknown
from tests.doctor.machines import GIB, changed, gpu, healthy, inside, no_library, r, windows_guest
from tests.doctor.running import build_full_report, find_all, find_codes, find_only, run_check

MIB = 1 << 20
OLD_BITSANDBYTES = {"python.packages.0.version": "0.49.2"}
"""The last release that loads the library of torch's exact CUDA and no other."""
NOT_GIVEN = {
    "driver.nvidiactl": "absent",
    "driver.device_nodes": (),
    "driver.libnvidia_ml": None,
    "driver.libcuda": None,
    "driver.libcuda_paths": (),
    "container.visible_devices": None,
    "container.driver_capabilities": None,
    "container.libcuda_in_cache": False,
    "nvml": no_library(),
}


@pytest.mark.parametrize(
    ("opening", "says", "side"),
    [
        pytest.param("absent", "got none", Side.PROJECT, id="never requested"),
        pytest.param("EPERM", "has lost its GPU", Side.HOST, id="dropped by the cgroup"),
        pytest.param("EACCES", "may not open", Side.HOST, id="refused by mode or SELinux"),
        pytest.param("EIO", "cannot be opened: EIO", Side.HOST, id="anything else"),
        pytest.param("open", "got none", Side.PROJECT, id="no GPU beside the control node"),
    ],
)
def test_how_the_gpu_was_not_given(opening, says, side):
    finding = find_only("CON001", changed(inside(), NOT_GIVEN | {"driver.nvidiactl": opening}))
    assert says in finding.message
    assert finding.fix.where is side


def test_a_container_without_gpu_has_one_root_cause():
    facts = changed(
        inside(), NOT_GIVEN | {"python.torch": Torch("2.9.1+cpu", None, None), "python.cuda_visible_devices": "0"}
    )
    report = build_full_report(facts)
    assert report.root_causes == ("CON001",)
    assert {shown.check.code for shown in report.following("CON001")} == {"DRV003", "CON005", "PYT001"}


def test_a_lost_gpu_explains_nvmls_unknown_error():
    facts = changed(
        inside(), {"driver.nvidiactl": "EPERM", "nvml": NvmlFailure(NvmlEnd.ERROR, 999, "Unknown Error", "nvmlInit_v2")}
    )
    report = build_full_report(facts)
    assert report.root_causes == ("CON001",)
    assert "CDI" in report.roots[0].finding.fix.summary


def test_the_host_without_driver_is_the_root_seen_from_inside():
    facts = changed(inside(), NOT_GIVEN | {"driver.loaded": None, "driver.pci_gpus.0.kernel_driver": ""})
    assert build_full_report(facts).root_causes == ("DRV001",)


@pytest.mark.parametrize(
    ("capabilities", "absent", "severity"),
    [
        pytest.param("compute,utility", {}, None, id="both asked for"),
        pytest.param("all", {}, None, id="all asked for"),
        pytest.param("utility", {"driver.libcuda": None}, "error", id="compute left out"),
        pytest.param("compute", {"driver.libnvidia_ml": None}, "warning", id="utility left out"),
        pytest.param("utility", {}, None, id="compute left out but there, as with CDI"),
        pytest.param(None, {}, None, id="unset means both"),
    ],
)
def test_driver_capabilities(capabilities, absent, severity):
    verdict = run_check("CON002", changed(inside(), absent | {"container.driver_capabilities": capabilities}))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


@pytest.mark.parametrize(
    ("size", "verdict"),
    [
        pytest.param(64 * MIB, Found, id="Docker's default"),
        pytest.param(GIB - 1, Found, id="one byte short"),
        pytest.param(GIB, Passed, id="exactly enough"),
        pytest.param(Unknown("not mounted"), Skipped, id="not mounted"),
    ],
)
def test_shared_memory(size, verdict):
    assert isinstance(run_check("CON003", changed(inside(), {"container.shm_bytes": size})), verdict)


def test_compiler_and_headers_are_added_to_the_image():
    findings = find_all("CON004", changed(inside(), {"container.c_compiler": "", "container.python_headers": False}))
    assert [finding.fix.where for finding in findings] == [Side.IMAGE, Side.IMAGE]
    assert "build-essential" in findings[0].fix.commands[0]
    assert "python3-dev" in findings[1].fix.commands[0]


@pytest.mark.parametrize(
    ("in_cache", "paths", "severity"),
    [
        pytest.param(True, ("/usr/lib/libcuda.so.1",), None, id="both names known"),
        pytest.param(False, ("/usr/lib/libcuda.so.1",), "note", id="only the versioned name"),
        pytest.param(False, (), "warning", id="neither name"),
        pytest.param(Unknown("no ldconfig"), (), None, id="no cache to read"),
    ],
)
def test_the_loader_and_libcuda(in_cache, paths, severity):
    facts = changed(inside(), {"container.libcuda_in_cache": in_cache, "driver.libcuda_paths": paths})
    verdict = run_check("CON005", facts)
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


@pytest.mark.parametrize(
    ("requirement", "driver", "cuda", "name", "severity"),
    [
        pytest.param("cuda>=12.8", "580.95.05", "13.0", "NVIDIA GeForce RTX 4090", None, id="newer driver"),
        pytest.param("cuda>=12.8", "570.124.06", "12.8", "NVIDIA GeForce RTX 4090", None, id="exactly the version"),
        pytest.param("cuda>=12.8", "550.144.03", "12.4", "NVIDIA GeForce RTX 4090", "warning", id="an older minor"),
        pytest.param("cuda>=13.0", "570.124.06", "12.8", "NVIDIA GeForce RTX 4090", "error", id="an older major"),
        pytest.param(
            "cuda>=12.8 brand=tesla,driver>=535,driver<536",
            "535.183.01",
            "12.2",
            "NVIDIA H100 80GB HBM3",
            None,
            id="a data centre GPU on an exempt branch",
        ),
        pytest.param(
            "cuda>=12.8 brand=tesla,driver>=535,driver<536",
            "535.183.01",
            "12.2",
            "NVIDIA GeForce RTX 4090",
            "warning",
            id="GeForce on the same branch",
        ),
        pytest.param(
            "cuda>=12.8 brand=tesla,driver>=535,driver<536",
            "545.23.08",
            "12.3",
            "NVIDIA H100 80GB HBM3",
            "warning",
            id="a data centre GPU on another branch",
        ),
        pytest.param("driver>=470", "450.80.02", "11.0", "NVIDIA A100", None, id="no condition on CUDA"),
    ],
)
def test_the_images_cuda_requirement(requirement, driver, cuda, name, severity):
    changes = {
        "container.require_cuda": requirement,
        "nvml.driver": r(driver),
        "nvml.cuda": r(cuda),
        "nvml.gpus.0.name": name,
    }
    verdict = run_check("CUD001", changed(inside(), changes))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def test_disabling_the_requirement_is_advised_only_where_it_is_safe():
    def advice(driver, cuda):
        changes = {"container.require_cuda": "cuda>=13.0", "nvml.driver": r(driver), "nvml.cuda": r(cuda)}
        return find_only("CUD001", changed(inside(), changes)).fix.summary

    assert "would only move the failure" in advice("570.124.06", "12.8")
    newer = {"container.require_cuda": "cuda>=13.2", "nvml.driver": r("580.95.05"), "nvml.cuda": r("13.0")}
    assert "NVIDIA_DISABLE_REQUIRE=1 is safe here" in find_only("CUD001", changed(inside(), newer)).fix.summary


@pytest.mark.parametrize(
    ("name", "copy", "driver", "says"),
    [
        pytest.param("NVIDIA GeForce RTX 4090", "575.57.08", "570.124.06", "error 804", id="newer copy on GeForce"),
        pytest.param("NVIDIA H100 80GB HBM3", "575.57.08", "570.124.06", None, id="newer copy on a data centre GPU"),
        pytest.param("NVIDIA H100 80GB HBM3", "575.57.08", "580.95.05", "error 803", id="older copy on any GPU"),
        pytest.param("NVIDIA GeForce RTX 4090", "570.124.06", "570.124.06", None, id="the driver's own version"),
    ],
)
def test_forward_compatibility_libraries(name, copy, driver, says):
    changes = {
        "container.compat_libcuda": "/usr/local/cuda-12.9/compat/libcuda.so.1",
        "driver.libcuda": r(copy),
        "driver.loaded": r(driver),
        "nvml.driver": r(driver),
        "nvml.gpus.0.name": name,
    }
    verdict = run_check("CUD002", changed(inside(), changes))
    if says is None:
        assert verdict == Passed()
    else:
        assert says in verdict.findings[0].message


def test_libcuda_of_another_driver():
    finding = find_only("CUD003", changed(inside(), {"driver.libcuda": r("570.86.15")}))
    assert "error 803" in finding.message
    assert finding.fix.where is Side.IMAGE
    assert find_only("CUD003", changed(healthy(), {"driver.libcuda": r("570.86.15")})).fix.where is Side.HOST


def with_torch(version, cuda, **changes):
    return changed(inside(), {"python.torch": Torch(version, r(cuda) if cuda else None, None)} | changes)


@pytest.mark.parametrize(
    ("driver", "says", "torch", "cuda", "verdict"),
    [
        pytest.param("570.124.06", "12.8", "2.9.1+cu130", "13.0", Found, id="CUDA 13 on a CUDA 12 driver"),
        pytest.param("580.65.06", "13.0", "2.9.1+cu130", "13.0", Passed, id="the first driver of CUDA 13"),
        pytest.param("525.60.13", "12.0", "2.9.1+cu128", "12.8", Passed, id="exactly the floor of CUDA 12"),
        pytest.param("525.60.11", "12.0", "2.9.1+cu128", "12.8", Found, id="just below the floor of CUDA 12"),
        pytest.param("470.256.02", "11.4", "2.9.1+cu128", "12.8", Found, id="CUDA 12 on a CUDA 11 driver"),
        pytest.param("580.95.05", "13.0", "2.6.0+cu118", "11.8", Passed, id="an old torch on a new driver"),
    ],
)
def test_driver_and_torchs_cuda(driver, says, torch, cuda, verdict):
    facts = with_torch(torch, cuda, **{"nvml.driver": r(driver), "nvml.cuda": r(says)})
    assert isinstance(run_check("CUD004", facts), verdict)


def test_a_windows_driver_is_compared_with_windows_numbers():
    facts = changed(
        windows_guest(),
        {
            "nvml.driver": r("551.78"),
            "nvml.cuda": Unknown("not asked"),
            "python.torch": Torch("2.9.1+cu128", r("12.8"), None),
        },
    )
    assert run_check("CUD004", facts) == Passed()
    newer = changed(facts, {"python.torch": Torch("2.9.1+cu130", r("13.0"), None)})
    assert "on Windows to 580" in find_only("CUD004", newer).fix.summary


def test_a_driver_too_old_for_every_wheel_is_updated_where_it_lives():
    old = {"nvml.driver": r("390.157"), "nvml.cuda": r("9.1")}
    assert find_only("CUD004", with_torch("2.9.1+cu130", "13.0", **old)).fix.where is Side.HOST
    guest = changed(windows_guest(), old | {"python.torch": Torch("2.9.1+cu130", r("13.0"), None)})
    fix = find_only("CUD004", guest).fix
    assert fix.where is Side.WINDOWS
    assert "Install none inside of WSL" in fix.summary


def test_a_wheel_for_an_older_cuda_is_the_cheaper_repair():
    fix = find_only(
        "CUD004", with_torch("2.9.1+cu130", "13.0", **{"nvml.driver": r("570.124.06"), "nvml.cuda": r("12.8")})
    ).fix
    assert fix.commands[0].startswith("pip install --force-reinstall torch==")
    assert not fix.root


def test_a_cpu_build_is_replaced_by_a_wheel_that_fits():
    facts = with_torch("2.9.1+cpu", None)
    finding = find_only("PYT001", facts)
    assert finding.severity is Severity.ERROR
    assert finding.fix.commands == (format_wheel_install_command(facts, find_compatible_wheel(facts)),)
    assert find_only("PYT001", changed(facts, {"container": None})).severity is Severity.WARNING


def test_on_aarch64_the_default_index_is_named():
    facts = with_torch("2.9.1", None, **{"system.machine": "aarch64"})
    assert "aarch64" in find_only("PYT001", facts).fix.summary


@pytest.mark.parametrize(
    ("torch", "cuda", "name", "capability", "verdict"),
    [
        pytest.param("2.6.0+cu124", "12.4", "NVIDIA RTX 5090", "12.0", Found, id="Blackwell before its wheels"),
        pytest.param("2.7.1+cu128", "12.8", "NVIDIA RTX 5090", "12.0", Passed, id="Blackwell in its first wheels"),
        pytest.param("2.11.0+cu130", "13.0", "Tesla V100-SXM2-16GB", "7.0", Found, id="Volta after it was dropped"),
        pytest.param("2.10.0+cu128", "12.8", "Tesla V100-SXM2-16GB", "7.0", Passed, id="Volta in its last cu128 wheel"),
        pytest.param("2.13.0+cu130", "13.0", "NVIDIA GB10", "12.1", Passed, id="12.1 runs code for 12.0"),
        pytest.param("2.9.1+cu128", "12.8", "NVIDIA H100", "9.0", Passed, id="Hopper"),
        pytest.param("9.9.9+cu999", "99.9", "NVIDIA H100", "9.0", Skipped, id="a torch that no table knows"),
    ],
)
def test_torch_and_compute_capability(torch, cuda, name, capability, verdict):
    facts = with_torch(torch, cuda, **{"nvml.gpus": (gpu(name=name, capability=capability),)})
    assert isinstance(run_check("PYT002", facts), verdict)


def test_every_gpu_is_looked_at_not_only_the_first():
    gpus = (gpu(0), gpu(1, "NVIDIA GeForce GTX 1080", "6.1"))
    finding = find_only("PYT002", with_torch("2.9.1+cu128", "12.8", **{"nvml.gpus": gpus}))
    assert finding.subject == "GPU 1"


def test_the_advised_wheel_runs_on_the_oldest_gpu():
    gpus = (gpu(0), gpu(1, "NVIDIA GeForce GTX 1080", "6.1"))
    wheel = find_compatible_wheel(with_torch("2.9.1+cu128", "12.8", **{"nvml.gpus": gpus}))
    assert wheel.label == "cu126"


def test_missing_kernels_silence_what_is_built_on_torch():
    facts = with_torch(
        "2.6.0+cu124",
        "12.4",
        **{
            "nvml.gpus": (gpu(name="NVIDIA GeForce RTX 5090", capability="12.0"),),
            "driver.pci_gpus.0.device_id": "0x2b85",
            "container.c_compiler": "",
            "python.packages.0.version": "0.49.2",
        },
    )
    report = build_full_report(facts)
    assert report.root_causes == ("PYT002",)
    assert {shown.check.code for shown in report.following("PYT002")} == {"PYT003", "CON004"}


@pytest.mark.parametrize(
    ("shipped", "severity"),
    [
        pytest.param(("12.6", "12.8"), None, id="the very version"),
        pytest.param(("12.1", "12.6"), "warning", id="the same major"),
        pytest.param(("11.8", "13.0"), "error", id="other majors only"),
    ],
)
def test_bitsandbytes(shipped, severity):
    verdict = run_check("PYT003", changed(inside(), OLD_BITSANDBYTES | {"python.bitsandbytes_cuda": shipped}))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def test_the_override_names_a_library_that_is_there():
    finding = find_only("PYT003", changed(inside(), OLD_BITSANDBYTES | {"python.bitsandbytes_cuda": ("12.1", "12.6")}))
    assert "export BNB_CUDA_VERSION=126" in finding.fix.commands


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        pytest.param("2.8.3+cu12torch2.9cxx11abiTRUE", Passed, id="built for this torch"),
        pytest.param("2.8.3+cu12torch2.8cxx11abiTRUE", Found, id="built for the torch before"),
        pytest.param("2.8.3+cu13torch2.9cxx11abiTRUE", Found, id="built for another CUDA"),
        pytest.param("2.8.3", Skipped, id="built here"),
    ],
)
def test_flash_attention(version, verdict):
    packages = (*inside().python.packages, Package("flash-attn", version, ""))
    assert isinstance(run_check("PYT004", changed(inside(), {"python.packages": packages})), verdict)


def test_hidden_libraries():
    facts = changed(
        inside(),
        {
            "python.ld_library_path": ("/usr/local/cuda-12.1/lib64",),
            "python.shadowing_libraries": ("/usr/local/cuda-12.1/lib64/libnvJitLink.so.12",),
        },
    )
    assert "/usr/local/cuda-12.1/lib64" in find_only("PYT005", facts).message
    own = "/venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.12"
    assert run_check("PYT005", changed(facts, {"python.shadowing_libraries": (own,)})) == Passed()


@pytest.mark.parametrize(
    ("value", "severity"),
    [
        pytest.param("0", None, id="the first"),
        pytest.param("0,1", None, id="both"),
        pytest.param("0,2", "warning", id="one that is not there, last"),
        pytest.param("2,0", "error", id="one that is not there, first"),
        pytest.param("", "warning", id="empty"),
        pytest.param("-1", "warning", id="hidden on purpose"),
        pytest.param("GPU-00000001", None, id="the start of a UUID"),
        pytest.param("GPU-ffffffff", "error", id="a UUID of another machine"),
        pytest.param("MIG-7", "error", id="a MIG instance that is gone"),
    ],
)
def test_cuda_visible_devices(value, severity):
    facts = changed(inside(), {"python.cuda_visible_devices": value, "nvml.gpus": (gpu(0), gpu(1))})
    verdict = run_check("PYT006", facts)
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def test_a_hub_cache_of_another_user():
    facts = changed(inside(), {"storage.directories.0.is_writable": False, "storage.directories.0.owner_uid": 0})
    finding = find_only("STO001", facts)
    assert finding.evidence == ("/home/dev/.cache/huggingface/hub: owned by user 0; this user is 1000",)
    assert finding.fix.where is Side.CONTAINER


@pytest.mark.parametrize(
    ("place", "free", "severity"),
    [
        pytest.param(0, 20 * GIB, None, id="just enough for a model"),
        pytest.param(0, 20 * GIB - 1, "warning", id="not quite enough for a model"),
        pytest.param(0, GIB - 1, "error", id="full"),
        pytest.param(2, 25 * GIB - 1, "warning", id="not quite enough for an image"),
        pytest.param(1, 2 * GIB, None, id="a project needs little"),
        pytest.param(1, Unknown("no answer"), None, id="nobody knows"),
    ],
)
def test_free_space(place, free, severity):
    verdict = run_check("STO002", changed(healthy(), {f"storage.directories.{place}.free_bytes": free}))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def test_files_on_a_windows_drive():
    facts = changed(
        windows_guest(), {"storage.directories.1.path": "/mnt/c/project", "storage.directories.1.file_system": "9p"}
    )
    assert find_codes(facts) == ["STO003"]


def test_not_applicable_carries_its_reason():
    assert NotApplicable("because").reason == "because"
