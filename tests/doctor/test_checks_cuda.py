"""What stands around the driver: stubs, a CUDA Toolkit, images of another processor, a Jetson."""

import pytest

from devkit.doctor.model import Found, Passed, Severity, Skipped
from devkit.facts.model import CudaFolder, LocalImage, Package, Tegra, Torch
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, gpu, healthy, inside, r, without_gpu
from tests.doctor.running import build_full_report, find_only, run_check

STUBS = "/usr/local/cuda/lib64/stubs"


@pytest.mark.parametrize(
    ("folders", "first_libcuda", "severity"),
    [
        pytest.param((), "/usr/lib/libcuda.so.1", None, id="neither"),
        pytest.param((STUBS,), "/usr/lib/libcuda.so.1", Severity.WARNING, id="a folder that programs may find"),
        pytest.param((STUBS,), f"{STUBS}/libcuda.so.1", Severity.ERROR, id="the stub comes first"),
        pytest.param(("/opt/stubs-of-mine",), "/usr/lib/libcuda.so.1", None, id="a folder that is only named alike"),
    ],
)
def test_stubs(folders, first_libcuda, severity):
    facts = changed(inside(), {"python.ld_library_path": folders, "driver.libcuda_paths": (first_libcuda,)})
    verdict = run_check("CUD005", facts)
    assert [finding.severity for finding in getattr(verdict, "findings", ())] == ([severity] if severity else [])


def toolkit(version, **changes):
    read = r(version) if isinstance(version, str) else version
    return changed(inside(), {"python.cuda_toolkit": CudaFolder("/usr/local/cuda", "PATH", read), **changes})


NO_TORCH = {"python.torch": None, "python.packages": ()}
K80 = {"nvml.gpus": (gpu(name="Tesla K80", capability="3.7"),)}
BLACKWELL = {"nvml.gpus": (gpu(name="NVIDIA GeForce RTX 5090", capability="12.0"),)}


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        pytest.param(toolkit("12.8", **NO_TORCH), None, id="a toolkit that knows the GPU"),
        pytest.param(toolkit("11.8", **NO_TORCH, **K80), None, id="the last CUDA for Kepler"),
        pytest.param(toolkit("12.0", **NO_TORCH, **K80), Severity.WARNING, id="the first without Kepler"),
        pytest.param(toolkit("12.8", **NO_TORCH, **BLACKWELL), None, id="the first for Blackwell"),
        pytest.param(toolkit("12.6", **NO_TORCH, **BLACKWELL), Severity.WARNING, id="the last without Blackwell"),
        pytest.param(toolkit("12.6", **BLACKWELL), Severity.NOTE, id="torch brings its own CUDA"),
        pytest.param(
            changed(inside(), {"container.require_cuda": "cuda>=12.4 brand=tesla", **NO_TORCH, **BLACKWELL}),
            Severity.WARNING,
            id="an image for an older CUDA, by what it requires",
        ),
    ],
)
def test_cuda_knows_every_gpu(facts, severity):
    verdict = run_check("CUD006", facts)
    assert [finding.severity for finding in getattr(verdict, "findings", ())] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("version", "severity"),
    [
        pytest.param("12.8.93", None, id="older than the driver's CUDA"),
        pytest.param("13.0.88", None, id="a patch of the driver's CUDA"),
        pytest.param("13.2.51", Severity.NOTE, id="newer within the major"),
        pytest.param("14.0", Severity.WARNING, id="a newer major"),
    ],
)
def test_the_driver_compiles_what_the_toolkit_leaves(version, severity):
    verdict = run_check("CUD007", toolkit(version))
    assert [finding.severity for finding in getattr(verdict, "findings", ())] == ([severity] if severity else [])


DEEPSPEED = {"python.packages": (Package("deepspeed", "0.18.2", "", ()),)}


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        pytest.param(toolkit("12.4"), None, id="another minor"),
        pytest.param(toolkit("13.0"), Severity.NOTE, id="another major where nothing is built"),
        pytest.param(toolkit("13.0", **DEEPSPEED), Severity.WARNING, id="another major under DeepSpeed"),
        pytest.param(toolkit("13.0", container=None, **DEEPSPEED), Severity.NOTE, id="a host's own toolkit"),
    ],
)
def test_the_toolkit_fits_torch(facts, severity):
    verdict = run_check("CUD008", facts)
    assert [finding.severity for finding in getattr(verdict, "findings", ())] == ([severity] if severity else [])


@pytest.mark.parametrize("code", ["CUD006", "CUD007", "CUD008"])
@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(changed(inside(), {"python.cuda_toolkit": None}), id="no toolkit"),
        pytest.param(changed(inside(), {"python.cuda_toolkit": Unknown("?")}), id="not read"),
        pytest.param(toolkit(Unknown("it does not say")), id="without a version"),
    ],
)
def test_without_a_toolkit_nothing_is_judged(code, facts):
    assert isinstance(run_check(code, facts), Skipped)


def dev_image(machine, name="dev", is_dev_container=True):
    return LocalImage(name, machine, is_dev_container=is_dev_container)


@pytest.mark.parametrize(
    ("images", "verdict"),
    [
        pytest.param((dev_image("amd64"),), Passed, id="this processor"),
        pytest.param((dev_image("x86_64"),), Passed, id="this processor as Podman names it"),
        pytest.param((dev_image("arm64"),), Found, id="another processor"),
        pytest.param((dev_image(""),), Passed, id="an image that does not say"),
        pytest.param((dev_image("arm64", is_dev_container=False),), Passed, id="another's image, emulated on purpose"),
        pytest.param((dev_image("arm64", is_dev_container=Unknown("?")),), Passed, id="an image of unknown use"),
        pytest.param(Unknown("not listed"), Skipped, id="not read"),
    ],
)
def test_images(images, verdict):
    assert isinstance(run_check("CUD009", changed(healthy(), {"engine.images": images})), verdict)


def test_the_image_is_built_anew_for_the_right_platform():
    facts = changed(healthy(), {"engine.machine": "aarch64", "engine.images": (dev_image("amd64", name="dev:1"),)})
    assert "linux/arm64" in find_only("CUD009", facts).fix.summary


def jetson(version, cuda, release="36.4.7"):
    tegra = Tegra("NVIDIA Jetson Orin Nano", r(release) if release else None)
    torch = Torch(version, r(cuda) if cuda else None, None)
    return changed(without_gpu(), {"system.tegra": tegra, "system.machine": "aarch64", "python.torch": torch})


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        pytest.param(jetson("2.5.0a0+872d972e41.nv24.8", "12.6"), None, id="NVIDIA's build"),
        pytest.param(jetson("2.8.0", "12.6"), None, id="a build of the Jetson community"),
        pytest.param(jetson("2.9.1+cu126", "12.6"), Severity.ERROR, id="a build for servers on JetPack 6"),
        pytest.param(jetson("2.9.1+cpu", None), Severity.ERROR, id="a CPU build"),
        pytest.param(jetson("2.9.1+cu130", "13.0", "38.2"), None, id="a build for servers on JetPack 7"),
        pytest.param(jetson("2.9.1+cu126", "12.6", ""), Severity.WARNING, id="a release that the container hides"),
    ],
)
def test_a_jetson_needs_its_own_torch(facts, severity):
    verdict = run_check("CUD010", facts)
    assert [finding.severity for finding in getattr(verdict, "findings", ())] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("release", "command"),
    [
        pytest.param(
            "36.4.7", ["pip install --force-reinstall torch 'numpy<2' --index-url"], id="JetPack 6 has an index"
        ),
        pytest.param("35.4.1", [], id="JetPack 5 has none that is known"),
    ],
)
def test_a_jetson_is_sent_to_its_own_index(release, command):
    commands = find_only("CUD010", jetson("2.9.1+cu126", "12.6", release)).fix.commands
    assert [line.partition(" https")[0] for line in commands] == command


@pytest.mark.parametrize("facts", [pytest.param(inside(), id="not read"), pytest.param(healthy(), id="on a host")])
def test_other_machines_are_no_jetson(facts):
    assert isinstance(run_check("CUD010", facts), Skipped)
    assert isinstance(run_check("CUD010", changed(facts, {"system.tegra": None})), Skipped)


def test_a_toolkit_beside_a_healthy_torch_disturbs_nobody():
    assert build_full_report(toolkit("13.2.51")).root_causes == ()
