"""bitsandbytes' library, libraries that come before torch's, NVRTC, and what the GPUs cannot do."""

import pytest

from devkit.doctor.model import Found, Passed, Severity, Skipped
from devkit.facts.model import Library, Package, Torch
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, gpu, inside, r, without_gpu
from tests.doctor.running import find_all, run_check


def package(name, version):
    return Package(name, version, "py3-none-any", ())


@pytest.mark.parametrize(
    ("override", "version", "verdict"),
    [
        pytest.param(None, "0.50.2", Skipped, id="unset"),
        pytest.param("128", "0.50.2", Passed, id="torch's own"),
        pytest.param("126", "0.50.2", Passed, id="another of the major that is there"),
        pytest.param("124", "0.50.2", Found, id="of the major, but not in the package"),
        pytest.param("118", "0.50.2", Found, id="of another major"),
        pytest.param("", "0.49.2", Skipped, id="empty counts as unset to older releases"),
        pytest.param("", "0.50.2", Found, id="empty is refused by newer releases"),
        pytest.param("12.8", "0.50.2", Found, id="with a dot"),
        pytest.param(Unknown("?"), "0.50.2", Skipped, id="not read"),
    ],
)
def test_the_override_of_bitsandbytes(override, version, verdict):
    facts = changed(inside(), {"python.bnb_cuda_version": override, "python.packages.0.version": version})
    assert isinstance(run_check("PYT016", facts), verdict)


@pytest.mark.parametrize(
    ("version", "override", "verdict"),
    [
        pytest.param("0.49.2", None, Found, id="older releases load the exact library only"),
        pytest.param("0.49.2", "126", Passed, id="unless they are told another"),
        pytest.param("0.50.0", None, Passed, id="newer ones find the nearest"),
    ],
)
def test_the_nearest_library_of_bitsandbytes(version, override, verdict):
    facts = changed(
        inside(),
        {
            "python.packages.0.version": version,
            "python.bnb_cuda_version": override,
            "python.bitsandbytes_cuda": ("12.1", "12.6"),
        },
    )
    assert isinstance(run_check("PYT003", facts), verdict)


def shadow(name, version, wheel="nvidia-nvjitlink-cu12", wheel_version="12.8.93"):
    path = f"/usr/local/cuda/lib64/{name}"
    return changed(
        inside(),
        {
            "python.shadowing": (Library(path, r(version) if version else Unknown("no version")),),
            "python.shadowing_libraries": (path,),
            "python.packages": (package(wheel, wheel_version),),
        },
    )


NO_WHEEL = changed(shadow("libcudnn.so.9", "9.1.0"), {"python.packages": ()})


@pytest.mark.parametrize(
    ("code", "facts", "verdict"),
    [
        pytest.param("PYT005", shadow("libnvJitLink.so.12", "12.1.105"), Found, id="another release"),
        pytest.param("PYT005", shadow("libnvJitLink.so.12", "12.8.93"), Passed, id="the very same release"),
        pytest.param("PYT005", shadow("libnvJitLink.so.12", ""), Found, id="a release that cannot be read"),
        pytest.param("PYT005", shadow("libcublasLt.so.12", "12.8.4.1", "nvidia-cublas-cu12", "12.8.4.1"), Passed,
                     id="a part of the same wheel"),
        pytest.param("PYT005", shadow("libnvJitLink.so.13", "13.0.88", "nvidia-nvjitlink", "13.0.88"), Passed,
                     id="wheels of CUDA 13 have no suffix"),
        pytest.param("PYT005", shadow("libcudnn.so.9", "9.1.0"), Passed, id="cuDNN has a check of its own"),
        pytest.param("PYT011", shadow("libcudnn_cnn.so.9", "9.1.0", "nvidia-cudnn-cu12", "9.10.2.21"), Found,
                     id="another cuDNN"),
        pytest.param("PYT011", shadow("libcudnn.so.9", "9.10.2", "nvidia-cudnn-cu12", "9.10.2.21"), Passed,
                     id="the same cuDNN"),
        pytest.param("PYT011", NO_WHEEL, Skipped, id="a cuDNN without a rival"),
        pytest.param("PYT011", shadow("libcudart.so.12", "12.8.90", "nvidia-cudnn-cu12", "9.10.2.21"), Passed,
                     id="other libraries are not cuDNN"),
    ],
)  # fmt: skip
def test_hidden_libraries(code, facts, verdict):
    assert isinstance(run_check(code, facts), verdict)


def nvrtc(version, capability, name="nvidia-cuda-nvrtc-cu12"):
    facts = changed(inside(), {"python.packages": (package(name, version),)})
    return changed(facts, {"nvml.gpus": (gpu(name="a GPU", capability=capability),)})


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(nvrtc("12.8.93", "12.0"), Passed, id="the first that knows Blackwell"),
        pytest.param(nvrtc("12.6.77", "12.0"), Found, id="the last that does not"),
        pytest.param(nvrtc("13.0.88", "7.0", "nvidia-cuda-nvrtc"), Found, id="CUDA 13 dropped Volta"),
        pytest.param(nvrtc("12.9.86", "7.0"), Passed, id="CUDA 12.9 still has it"),
        pytest.param(nvrtc("12.6.77", "99.0"), Passed, id="a GPU that the tables do not know"),
        pytest.param(inside(), Skipped, id="no NVRTC"),
    ],
)
def test_nvrtc(facts, verdict):
    assert isinstance(run_check("PYT012", facts), verdict)


@pytest.mark.parametrize(
    ("code", "capability", "verdict"),
    [
        pytest.param("PYT013", "8.0", Passed, id="Ampere has bfloat16"),
        pytest.param("PYT013", "7.5", Found, id="Turing has not"),
        pytest.param("PYT014", "7.5", Passed, id="Turing multiplies 8-bit integers"),
        pytest.param("PYT014", "7.0", Found, id="Volta does not"),
    ],
)
def test_abilities_are_notes(code, capability, verdict):
    outcome = run_check(code, changed(inside(), {"nvml.gpus": (gpu(capability=capability),)}))
    assert isinstance(outcome, verdict)
    assert all(finding.severity is Severity.NOTE for finding in getattr(outcome, "findings", ()))


TWO_KINDS = (gpu(0), gpu(1, "NVIDIA GeForce GTX 1650", "7.5"))


@pytest.mark.parametrize(
    ("gpus", "selected", "order", "verdict"),
    [
        pytest.param(TWO_KINDS, "0", None, Found, id="two kinds by number"),
        pytest.param(TWO_KINDS, "0", "PCI_BUS_ID", Passed, id="in the order of nvidia-smi"),
        pytest.param(TWO_KINDS, "0", Unknown("?"), Skipped, id="an order that was not read"),
        pytest.param(TWO_KINDS, "GPU-00000000", None, Skipped, id="by UUID"),
        pytest.param(TWO_KINDS, None, None, Skipped, id="nothing selected"),
        pytest.param((gpu(0), gpu(1)), "1", None, Skipped, id="one kind"),
    ],
)
def test_the_order_of_gpus(gpus, selected, order, verdict):
    facts = changed(
        inside(),
        {"nvml.gpus": gpus, "python.cuda_visible_devices": selected, "python.cuda_device_order": order},
    )
    assert isinstance(run_check("PYT015", facts), verdict)


def test_a_laptop_without_gpu_hears_nothing_of_gpus():
    facts = changed(without_gpu(), {"python.torch": Torch("2.9.1+cu128", r("12.8"), None)})
    for code in ("PYT005", "PYT011", "PYT012", "PYT013", "PYT014", "PYT016"):
        assert isinstance(run_check(code, facts), Skipped), code


def test_each_old_gpu_is_named():
    facts = changed(
        inside(), {"nvml.gpus": (gpu(0, capability="7.0"), gpu(1, capability="8.0"), gpu(2, capability="6.1"))}
    )
    assert [finding.subject for finding in find_all("PYT013", facts)] == ["GPU 0", "GPU 2"]
