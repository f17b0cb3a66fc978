"""Checks inside a container, of containers that run, and of pods."""

import dataclasses
import textwrap

import pytest

from devkit.doctor.model import Confidence, Found, NotApplicable, Passed, Severity, Side, Skipped
from devkit.doctor.wheels import find_compatible_wheel, format_wheel_install_command
from devkit.facts.model import EngineKind, LocalImage, NvmlEnd, NvmlFailure, Package, StoppedContainer, Torch
from devkit.facts.values import Unknown
from devkit.probe.engine.pods import read_pod_runtime
from tests.doctor.machines import (
    GIB,
    changed,
    container,
    gpu,
    healthy,
    inside,
    limits,
    no_library,
    r,
    windows_guest,
    without_gpu,
)
from tests.doctor.running import build_full_report, find_all, find_codes, find_only, run_check
from tests.hosts import written

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


@pytest.mark.parametrize(
    ("variables", "says", "command"),
    [
        pytest.param({"visible_devices": "all", "require_cuda": None}, "requested", "devkit doctor", id="requested"),
        pytest.param(
            {"visible_devices": "all", "require_cuda": "cuda>=12.8"}, "got none", "docker run", id="an image of NVIDIA"
        ),
    ],
)
def test_a_request_that_the_host_passed_over_is_not_made_again(variables, says, command):
    changes = {f"container.{name}": value for name, value in variables.items()}
    finding = find_only("CON001", changed(inside(), NOT_GIVEN | {"driver.nvidiactl": "absent"} | changes))
    assert says in finding.message
    assert finding.fix.commands[0].startswith(command)


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
            id="a data center GPU on an exempt branch",
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
            id="a data center GPU on another branch",
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
        pytest.param("NVIDIA H100 80GB HBM3", "575.57.08", "570.124.06", None, id="newer copy on a data center GPU"),
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


@pytest.mark.parametrize(("value", "verdict"), [("GPU-1234", Passed), ("MIG-1234", Passed), ("nonsense", Found)])
def test_a_gpu_whose_uuid_is_not_known_accuses_no_uuid(value, verdict):
    unread = dataclasses.replace(gpu(0), uuid=Unknown("hidden"))
    facts = changed(inside(), {"python.cuda_visible_devices": value, "nvml.gpus": (unread,)})
    assert isinstance(run_check("PYT006", facts), verdict)


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


@pytest.mark.parametrize(
    ("missing", "says", "side"),
    [
        pytest.param((), None, None, id="complete"),
        pytest.param(
            ("libEGL_nvidia.so.0", "10_nvidia.json", "nvidia_icd.json"), "the driver's libEGL_nvidia", Side.HOST, id="a driver without"
        ),
        pytest.param(("libvulkan.so.1",), "lacks the loader libvulkan.so.1", Side.IMAGE, id="no Vulkan loader"),
        pytest.param(("nvidia_icd.json",), "nvidia_icd.json, by which the loaders", Side.HOST, id="no ICD file"),
    ],
)  # fmt: skip
def test_graphics(missing, says, side):
    requested = {"container.driver_capabilities": "compute,utility,graphics", "container.missing_graphics": missing}
    facts = changed(inside(), requested)
    if says is None:
        assert isinstance(run_check("CON015", facts), Passed)
        return
    finding = find_only("CON015", facts)
    assert says in finding.message
    assert finding.fix.where is side
    assert isinstance(run_check("CON015", changed(facts, {"container.driver_capabilities": "all"})), Skipped)


def with_containers(*containers, **engine):
    changes = {f"engine.{name}": value for name, value in engine.items()}
    return changed(healthy(), {"engine.containers": containers, **changes})


def stopped(**changes):
    values = {
        "id": "7a7a7a7a7a7a",
        "name": "dev",
        "image": "vsc-project-1f2e",
        "folder": "/home/dev/project",
        "gpu_request": "driver",
        "state": "exited",
        "exit_code": 0,
        "out_of_memory": False,
        "error": "",
    }
    return StoppedContainer(**values | changes)


def without_request(**changes):
    return container(**{"gpu_request": "", "visible_devices": "all"} | changes)


def test_a_dev_container_without_request_is_named_with_its_fix():
    finding = find_only("CON006", with_containers(without_request()))
    assert (finding.severity, finding.subject, finding.confidence) == (Severity.ERROR, "dev", Confidence.CERTAIN)
    assert finding.fix.where is Side.PROJECT
    assert '"runArgs": ["--gpus", "all"]' in finding.fix.commands


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({"gpu_request": "driver"}, Passed, id="a device request"),
        pytest.param({"gpu_request": "devices"}, Passed, id="devices by hand"),
        pytest.param({"is_privileged": True}, Passed, id="a privileged container sees every device"),
        pytest.param({"runtime": "nvidia"}, Passed, id="the nvidia runtime is judged by its variables"),
        pytest.param({"folder": "/home/dev/other"}, Skipped, id="another project's container"),
        pytest.param({"folder": "/home/dev/project2"}, Skipped, id="a folder that only begins alike"),
        pytest.param({"folder": "/home/dev"}, Found, id="a folder above the project"),
        pytest.param({"folder": ""}, Skipped, id="no dev container at all"),
    ],
)
def test_whose_container_and_which_request(changes, verdict):
    assert isinstance(run_check("CON006", with_containers(without_request(**changes))), verdict)


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        pytest.param({}, "error", id="the image asks for every GPU"),
        pytest.param({"visible_devices": None}, "error", id="the image needs a CUDA version"),
        pytest.param({"visible_devices": None, "require_cuda": None}, "note", id="nothing speaks of a GPU"),
        pytest.param({"visible_devices": "void", "require_cuda": None}, "note", id="the image wants none"),
    ],
)
def test_a_missing_request_counts_where_a_gpu_was_meant(changes, severity):
    assert find_only("CON006", with_containers(without_request(**changes))).severity.value == severity


def test_a_database_beside_the_dev_container_needs_no_gpu():
    database = container(name="db", gpu_request="", is_dev_container=False, service="db", require_cuda="cuda>=12.8")
    assert isinstance(run_check("CON006", with_containers(container(), database)), Passed)


def test_of_two_services_without_labels_none_is_accused():
    services = [without_request(name=name, is_dev_container=False, service=name) for name in ("dev", "db")]
    assert isinstance(run_check("CON006", with_containers(*services)), Skipped)


def test_podman_is_asked_for_the_gpu_by_cdi_and_judged_with_care():
    finding = find_only("CON006", with_containers(without_request(), kind=EngineKind.PODMAN))
    assert finding.confidence is Confidence.LIKELY
    assert '"runArgs": ["--device", "nvidia.com/gpu=all"]' in finding.fix.commands


def test_a_missing_request_explains_what_is_seen_inside():
    from devkit.doctor.registry import BY_CODE

    assert "CON001" in BY_CODE["CON006"].causes


@pytest.mark.parametrize(
    ("change", "engine", "verdict"),
    [
        pytest.param({"gpu_request": "driver"}, {}, Found, id="by the hook"),
        pytest.param({"gpu_request": "cdi"}, {}, Passed, id="by CDI"),
        pytest.param({"gpu_request": "driver", "gpu_devices": ("/dev/nvidia0", "/dev/nvidiactl")}, {}, Passed,
                     id="by the hook, with devices of its own"),
        pytest.param({"gpu_request": "driver", "gpu_devices": ("/dev/nvidia0",)}, {}, Found,
                     id="by the hook, without the control device"),
        pytest.param({"gpu_request": "driver", "is_privileged": True}, {}, Passed, id="privileged"),
        pytest.param({"gpu_request": "driver"}, {"cgroup_driver": "cgroupfs"}, Passed, id="without systemd"),
        pytest.param({"gpu_request": "driver"}, {"is_rootless": True}, Skipped, id="a rootless engine"),
        pytest.param({"gpu_request": "driver"}, {"kind": EngineKind.PODMAN}, Skipped, id="Podman"),
        pytest.param({"gpu_request": "driver"}, {"version": r("29.1.5")}, Found, id="the last Docker by the hook"),
        pytest.param({"gpu_request": "driver"}, {"version": r("29.2.0")}, Passed, id="the first Docker by CDI"),
        pytest.param({"gpu_request": "driver"}, {"version": r("29.2.0"), "cdi_devices": ()}, Found,
                     id="a Docker that could by CDI, and knows no device"),
        pytest.param({"gpu_request": ""}, {}, Skipped, id="no GPU in any container"),
    ],
)  # fmt: skip
def test_which_containers_lose_their_gpu_when_systemd_reloads(change, engine, verdict):
    assert isinstance(run_check("CON007", with_containers(container(**change), **engine)), verdict)


@pytest.mark.parametrize(
    ("mode", "version", "verdict"),
    [
        pytest.param("legacy", "1.18.2", Found, id="set to legacy"),
        pytest.param("auto", "1.17.8", Found, id="auto before 1.18 is legacy"),
        pytest.param("auto", "1.18.0", Passed, id="auto since 1.18 is CDI"),
        pytest.param("cdi", "1.17.8", Passed, id="set to CDI"),
        pytest.param(Unknown("not readable"), "1.17.8", Passed, id="who knows"),
    ],
)
def test_under_the_nvidia_runtime_its_mode_decides(mode, version, verdict):
    facts = with_containers(container(gpu_request="runtime", runtime="nvidia"))
    assert isinstance(
        run_check("CON007", changed(facts, {"toolkit.mode": mode, "toolkit.version": r(version)})), verdict
    )


def test_only_the_container_that_loses_its_gpu_is_named():
    facts = with_containers(container(name="safe"), container(name="frail", gpu_request="driver"))
    assert find_only("CON007", facts).subject == "frail"


@pytest.mark.parametrize(
    ("requirement", "severity"),
    [
        pytest.param("cuda>=12.8", None, id="met"),
        pytest.param("cuda>=13.0", None, id="met to the version"),
        pytest.param("cuda>=13.2", "warning", id="unmet within the major"),
        pytest.param("cuda>=14.0", "error", id="unmet beyond it"),
        pytest.param(None, None, id="the image asks for nothing"),
        pytest.param(Unknown("no answer"), None, id="who knows"),
    ],
)
def test_the_requirement_of_the_projects_image(requirement, severity):
    verdict = run_check("CON008", changed(healthy(), {"engine.images.0.require_cuda": requirement}))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def image(**changes):
    values = {"name": "vsc-project-9:latest", "machine": "amd64", "require_cuda": "cuda>=14.0", "id": "1", "is_dev_container": True}  # fmt: skip  # noqa: E501
    return LocalImage(**values | changes)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Found, id="named after the project by the dev container tool"),
        pytest.param({"name": "project_devcontainer-dev:latest"}, Found, id="named after the project by Compose"),
        pytest.param({"name": "localhost/vsc-project-9:latest"}, Found, id="named so by Podman"),
        pytest.param({"name": "vsc-projection-9:latest"}, Skipped, id="of a project whose name begins alike"),
        pytest.param({"name": "vsc-other-9:latest"}, Skipped, id="of another project"),
        pytest.param({"is_dev_container": False}, Skipped, id="named so by accident"),
    ],
)
def test_only_images_of_the_project_are_judged(changes, verdict):
    facts = changed(healthy(), {"engine.containers": (), "engine.images": (image(**changes),)})
    assert isinstance(run_check("CON008", facts), verdict)


def test_an_image_that_was_refused_before_is_the_cause_of_the_failed_start():
    error = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.2, please update your driver"
    changes = {
        "engine.containers": (),
        "engine.stopped": (stopped(state="created", error=error),),
        "engine.images.0.require_cuda": "cuda>=13.2",
    }
    report = build_full_report(changed(healthy(), changes))
    assert report.root_causes == ("CON008",)
    assert [shown.check.code for shown in report.following("CON008")] == ["CON011"]


@pytest.mark.parametrize(
    ("shm", "ipc", "verdict"),
    [
        pytest.param(64 * MIB, "private", Found, id="the engine's default"),
        pytest.param(GIB - 1, "private", Found, id="one byte short"),
        pytest.param(GIB, "private", Passed, id="exactly enough"),
        pytest.param(64 * MIB, "host", Passed, id="the host's shared memory"),
        pytest.param(0, "host", Passed, id="an engine that says zero for the host's"),
        pytest.param(Unknown("not said"), "private", Passed, id="who knows"),
    ],
)
def test_shared_memory_of_gpu_containers(shm, ipc, verdict):
    assert isinstance(run_check("CON009", with_containers(container(shm_bytes=shm, ipc_mode=ipc))), verdict)


def test_a_container_without_gpu_may_have_little_shared_memory():
    assert isinstance(run_check("CON009", with_containers(container(gpu_request="", shm_bytes=64 * MIB))), Skipped)


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        pytest.param({"gpu_request": "", "runtime": "nvidia", "visible_devices": None}, "error", id="names no GPU"),
        pytest.param({"gpu_request": "", "runtime": "nvidia", "visible_devices": "void"}, None, id="wants none"),
        pytest.param({"gpu_request": "", "runtime": "runc", "visible_devices": None}, None, id="another runtime"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": "utility"}, "error", id="without compute"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": "compute"}, "warning", id="without utility"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": "compute,utility"}, None, id="both"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": "all"}, None, id="all"),
        pytest.param({"gpu_request": "driver", "driver_capabilities": ""}, None, id="empty means both"),
        pytest.param({"gpu_request": "cdi", "driver_capabilities": "utility"}, None, id="CDI reads no variable"),
    ],
)
def test_variables_of_gpu_containers(changes, severity):
    verdict = run_check("CON010", with_containers(container(**changes)))
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def test_where_nvidia_is_the_default_runtime_a_container_need_not_mean_it():
    plain = container(gpu_request="", runtime="nvidia", visible_devices=None)
    assert isinstance(run_check("CON010", with_containers(plain, default_runtime="nvidia")), Passed)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Passed, id="ended by itself"),
        pytest.param({"exit_code": 137}, Passed, id="stopped by its user"),
        pytest.param({"exit_code": 137, "out_of_memory": True}, Found, id="killed for memory"),
        pytest.param({"error": "no such device"}, Found, id="could not start"),
        pytest.param({"error": "no such device", "folder": "/home/dev/other"}, Skipped, id="of another project"),
    ],
)
def test_how_the_last_dev_container_ended(changes, verdict):
    facts = changed(healthy(), {"engine.containers": (), "engine.stopped": (stopped(**changes),)})
    assert isinstance(run_check("CON011", facts), verdict)


@pytest.mark.parametrize(
    ("services", "running", "subjects"),
    [
        pytest.param([("train", "no such device")], "", ["p-train-1"], id="a service that could not start"),
        pytest.param([("train", "no such device"), ("db", "")], "", ["p-train-1"], id="beside one that ended well"),
        pytest.param([("train", "x"), ("db", "y")], "", ["p-train-1", "p-db-1"], id="two of them"),
        pytest.param([("train", ""), ("train", "old")], "", [], id="an older container of a service that ended well"),
        pytest.param([("train", "old")], "train", [], id="a service that runs again"),
        pytest.param([("train", "no such device")], "db", ["p-train-1"], id="beside a service that runs"),
    ],
)
def test_how_the_services_of_compose_ended(services, running, subjects):
    ended = tuple(stopped(name=f"p-{name}-1", service=name, error=error) for name, error in services)
    runs = tuple(container(service=name, is_dev_container=False) for name in (running,) if running)
    verdict = run_check("CON011", changed(healthy(), {"engine.containers": runs, "engine.stopped": ended}))
    assert [finding.subject for finding in getattr(verdict, "findings", ())] == subjects


def test_a_container_that_runs_again_is_forgiven():
    facts = changed(healthy(), {"engine.stopped": (stopped(error="no such device"),)})
    assert isinstance(run_check("CON011", facts), Skipped)


def test_a_known_error_of_the_last_start_is_explained():
    error = 'could not select device driver "" with capabilities: [[gpu]]'
    facts = changed(healthy(), {"engine.containers": (), "engine.stopped": (stopped(error=error, state="created"),)})
    finding = find_only("CON011", facts)
    assert error not in finding.message
    assert finding.evidence == (f"State.Error: {error}",)


def test_a_missing_toolkit_is_the_cause_of_a_failed_start():
    changes = {
        "engine.containers": (),
        "engine.stopped": (stopped(error='could not select device driver "" with capabilities: [[gpu]]'),),
        "engine.runtimes": (),
        "engine.cdi_devices": (),
        "engine.hook_on_path": False,
        "toolkit.version": None,
        "toolkit.daemon_files": (),
        "cdi": (),
    }
    assert build_full_report(changed(healthy(), changes)).root_causes == ("CTK001",)


SELINUX = {"engine.has_selinux": True, "limits": limits(selinux="enforcing")}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Found, id="confined"),
        pytest.param({"limits.selinux": "permissive"}, Skipped, id="permissive"),
        pytest.param({"limits.selinux": Unknown("not readable")}, Skipped, id="who knows"),
        pytest.param({"limits.selinux_allows_devices": True}, Passed, id="the policy allows devices"),
        pytest.param({"limits.selinux_allows_devices": Unknown("no such switch")}, Skipped, id="another policy"),
        pytest.param({"engine.has_selinux": False}, Skipped, id="an engine that does not label"),
        pytest.param({"engine.containers.0.security_options": ("label=disable",)}, Passed, id="exempt"),
        pytest.param({"engine.containers.0.security_options": ("label:disable",)}, Passed, id="exempt, as of old"),
        pytest.param({"engine.containers.0.is_privileged": True}, Passed, id="privileged"),
        pytest.param({"engine.containers.0.gpu_request": ""}, Passed, id="no GPU container"),
    ],
)
def test_selinux(changes, verdict):
    assert isinstance(run_check("CON012", changed(healthy(), SELINUX | changes)), verdict)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Passed, id="writable"),
        pytest.param({"storage.directories.1.is_writable": False}, Found, id="not writable"),
        pytest.param(
            {"storage.directories.1.is_writable": False, "storage.directories.1.exists": False}, Skipped, id="no folder"
        ),
        pytest.param(
            {"storage.directories.1.is_writable": False, "storage.directories.1.path": "/"}, Skipped, id="the root"
        ),
        pytest.param({"storage": Unknown("no answer")}, Skipped, id="who knows"),
    ],
)
def test_the_workspace_inside(changes, verdict):
    assert isinstance(run_check("CON013", changed(inside(), changes)), verdict)


def test_a_workspace_that_root_took_is_given_back_on_the_host():
    changes = {"storage.directories.1.is_writable": False, "storage.directories.1.owner_uid": 0}
    fix = find_only("CON013", changed(inside(), changes)).fix
    assert (fix.where, fix.commands) == (Side.HOST, ("sudo chown -R 1000 .",))


def test_the_workspace_of_a_host_is_not_judged_here():
    assert isinstance(run_check("CON013", changed(healthy(), {"storage.directories.1.is_writable": False})), Skipped)


def test_a_group_without_a_name_is_only_noted():
    facts = changed(inside(), {"container.nameless_groups": (993,)})
    assert find_only("CON014", facts).severity is Severity.NOTE
    assert find_codes(facts) == []


@pytest.mark.parametrize("code", ["CON006", "CON007", "CON008", "CON009", "CON010", "CON011", "CON012"])
@pytest.mark.parametrize("facts", [without_gpu(), inside()], ids=["without a GPU", "inside a container"])
def test_elsewhere_nothing_is_said_of_running_containers(code, facts):
    assert isinstance(run_check(code, facts), Skipped)


@pytest.mark.parametrize("code", ["CON006", "CON007", "CON009", "CON010"])
def test_an_engine_that_does_not_list_is_not_accused(code):
    facts = changed(healthy(), {"engine.containers": Unknown("no answer in time")})
    assert run_check(code, facts) == Skipped("no answer in time")


def test_more_than_one_container_gets_more_than_one_finding():
    both = [container(name=name, shm_bytes=64 * MIB, gpu_request="cdi") for name in ("one", "two")]
    assert [finding.subject for finding in find_all("CON009", with_containers(*both))] == ["one", "two"]


def test_a_gpu_of_another_machine_is_not_asked_for():
    facts = changed(
        with_containers(without_request()), {"nvml.gpus": (gpu(),), "engine.endpoint.url": "tcp://far:2376"}
    )
    assert isinstance(run_check("CON006", facts), Skipped)


# Nodes of Kubernetes: what containerd and CRI-O make of the nvidia runtime.


CONTAINERD = "/etc/containerd/config.toml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
RKE2 = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"
MICROK8S = "/var/snap/microk8s/current/args/containerd.toml"
CRIO = "/etc/crio/crio.conf"
SOCKETS = {
    CONTAINERD: "/run/containerd/containerd.sock",
    K3S: "/run/k3s/containerd/containerd.sock",
    RKE2: "/run/k3s/containerd/containerd.sock",
    MICROK8S: "/var/snap/microk8s/common/run/containerd.sock",
    CRIO: "/run/crio/crio.sock",
}
NVIDIA = """
    version = 2
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/nvidia-container-runtime"
    SystemdCgroup = true
"""


def node(folder, path, text, *, more="", kubelet="cgroupDriver: systemd"):
    """Facts of a node with these settings; `more` are further lines of the recorded machine's files."""
    settings = textwrap.dedent(text)
    machine = (
        f"[files]\n'{path}' = '''\n{settings}'''\n{more}\n"
        + (f"'/var/lib/kubelet/config.yaml' = '''\n{kubelet}\n'''\n" if kubelet else "")
        + f"[nodes]\n'{SOCKETS[path]}' = {{ kind = 'socket' }}\n"
        + "'/usr/bin/nvidia-container-runtime' = { kind = 'file', mode = 0o755 }\n"
    )
    return changed(healthy(), {"toolkit.pods": read_pod_runtime(written(folder, machine))})


VERSION_1 = NVIDIA.replace("version = 2", "").replace('"io.containerd.grpc.v1.cri"', "cri")


@pytest.mark.parametrize(
    ("path", "text"), [*((path, NVIDIA) for path in (CONTAINERD, K3S, RKE2, MICROK8S)), (CONTAINERD, VERSION_1)]
)
def test_a_node_that_is_set_up(tmp_path, path, text):
    facts = node(tmp_path, path, text)
    assert isinstance(run_check("POD001", facts), Passed)
    (note,) = run_check("POD002", facts).findings
    assert "runtime class nvidia" in note.message
    assert isinstance(run_check("POD003", facts), Passed)


def test_dockers_own_containerd_is_no_node(tmp_path):
    facts = node(tmp_path, CONTAINERD, 'disabled_plugins = ["cri"]', kubelet="")
    assert isinstance(run_check("POD001", facts), Skipped)


@pytest.mark.parametrize(
    ("text", "says", "command"),
    [
        pytest.param("version = [", "not valid TOML", "sudo systemctl restart containerd", id="no TOML"),
        pytest.param('disabled_plugins = ["cri"]', "starts no pod", "sudo sed -i", id="pods are off"),
        pytest.param(
            NVIDIA.replace("= 2", "= 3"), "grpc.v1.cri", "sudo nvidia-ctk runtime", id="the section of version 2"
        ),
        pytest.param(
            NVIDIA.replace("grpc.v1.cri", "cri.v1.runtime"),
            "cri.v1.runtime",
            "sudo nvidia-ctk",
            id="the section of version 3",
        ),
    ],
)
def test_settings_that_are_not_read(tmp_path, text, says, command):
    facts = node(tmp_path, CONTAINERD, text)
    finding = find_only("POD001", facts)
    assert says in finding.message
    assert finding.fix.commands[0].startswith(command)
    assert isinstance(run_check("POD002", facts), Skipped)


def test_pods_are_switched_on_without_the_other_plugins(tmp_path, run_here):
    text = 'disabled_plugins = ["cri", "zfs"]\n'
    command = find_only("POD001", node(tmp_path, CONTAINERD, text)).fix.commands[0]
    assert run_here(command, CONTAINERD, text) == 'disabled_plugins = ["zfs"]\n'


@pytest.fixture
def run_here(tmp_path):
    """Run a command on a file that stands in for the one it names."""
    import subprocess

    def run(command, path, text):
        (tmp_path / "here").write_text(text)
        words = command.removeprefix("sudo ").replace(path, str(tmp_path / "here"))
        subprocess.run(["sh", "-c", words], check=True)
        return (tmp_path / "here").read_text()

    return run


IMPORTED = "'/etc/containerd/conf.d/99-nvidia.toml' = '''" + textwrap.dedent(NVIDIA) + "'''"


def test_what_a_file_imports_counts(tmp_path):
    text = 'version = 2\nimports = ["conf.d/*.toml"]'
    assert isinstance(run_check("POD002", node(tmp_path, CONTAINERD, text)), Found)
    (note,) = run_check("POD002", node(tmp_path, CONTAINERD, text, more=IMPORTED)).findings
    assert note.severity.value == "note"


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        pytest.param(
            CONTAINERD, NVIDIA.replace("/usr/bin", "/opt/gone"), "/opt/gone/nvidia-container-runtime", id="is gone"
        ),
        pytest.param(
            CRIO, '[crio.runtime]\ndefault_runtime = "nvidia"', "nothing registers", id="a default of nothing"
        ),
        pytest.param(CONTAINERD, "version = 2", "no runtime named nvidia", id="none"),
    ],
)
def test_pods_without_the_runtime(tmp_path, path, text, says):
    assert says in find_only("POD002", changed(node(tmp_path, path, text), {"cdi": ()})).message


def test_a_node_that_gives_gpus_by_cdi_needs_no_runtime(tmp_path):
    assert find_only("POD002", node(tmp_path, CONTAINERD, "version = 2")).severity.value == "note"


@pytest.mark.parametrize(
    ("path", "text", "kubelet", "verdict"),
    [
        pytest.param(CONTAINERD, NVIDIA, "cgroupDriver: systemd", Passed, id="both systemd"),
        pytest.param(CONTAINERD, NVIDIA, "cgroupDriver: cgroupfs", Found, id="the kubelet is not"),
        pytest.param(
            CONTAINERD, NVIDIA.replace("= true", "= false"), "cgroupDriver: systemd", Found, id="the runtime is not"
        ),
        pytest.param(CONTAINERD, NVIDIA, "kind: KubeletConfiguration", Skipped, id="not said"),
        pytest.param(CONTAINERD, "version = 2", "cgroupDriver: systemd", Skipped, id="no such runtime"),
        pytest.param(CRIO, "[crio.runtime]", "cgroupDriver: systemd", Skipped, id="CRI-O"),
    ],
)
def test_the_runtime_shares_the_kubelets_cgroup_driver(tmp_path, path, text, kubelet, verdict):
    assert isinstance(run_check("POD003", node(tmp_path, path, text, kubelet=kubelet)), verdict)


def test_a_file_of_root_is_unknown(tmp_path):
    machine = f"unreadable = ['{K3S}']\n[files]\n'{K3S}' = 'x'\n[nodes]\n'{SOCKETS[K3S]}' = {{ kind = 'socket' }}\n"
    facts = changed(healthy(), {"toolkit.pods": read_pod_runtime(written(tmp_path, machine))})
    assert isinstance(run_check("POD002", facts), Skipped)
