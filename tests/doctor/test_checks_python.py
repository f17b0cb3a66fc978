"""Checks of Python: packages, frameworks, libraries that shadow others, and smoke tests."""

import pytest

from devkit.doctor.model import Found, Passed, Severity, Skipped
from devkit.facts.model import Copy, Library, Package, Smoke, Torch
from devkit.facts.values import NOT_READ, Unknown
from tests.doctor.machines import changed, gpu, healthy, inside, r, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_all, find_only, run_check

# The Python packages fit each other and the system under them.


LINUX = "cp312-cp312-manylinux_2_28_x86_64"


def package(name, version, tag="py3-none-any", requires=()):
    return Package(name, version, tag, requires)


def with_packages(*packages, **changes):
    return changed(inside(), {"python.packages": packages, **changes})


TORCH = package("torch", "2.9.1+cu128", LINUX, ('triton==3.5.1; platform_system == "Linux"',))


@pytest.mark.parametrize(
    ("packages", "verdict"),
    [
        pytest.param((TORCH, package("triton", "3.5.1")), Passed, id="the very version that torch pins"),
        pytest.param((TORCH, package("triton", "3.4.0")), Found, id="another version of a pinned package"),
        pytest.param((TORCH,), Passed, id="a package that is missing altogether is pip's own story"),
        pytest.param((package("torchvision", "0.24.1", LINUX, ("torch==2.9.1",)), TORCH), Passed, id="a local label"),
        pytest.param((package("x", "1", LINUX, ("torch==2.9.1+cu128",)), TORCH), Passed, id="a pinned local label"),
        pytest.param((package("torchvision", "0.23.0", LINUX, ("torch==2.8.0",)), TORCH), Found, id="left behind"),
        pytest.param(
            (package("torch", "2.9.0a0+git1", LINUX), package("peft", "1", requires=("torch>=2.9",))),
            Passed,
            id="a vendor's pre-release is that release",
        ),
        pytest.param(
            (TORCH, package("peft", "1", requires=('torch<2; sys_platform == "win32"',))), Passed, id="another system"
        ),
        pytest.param((TORCH, package("peft", "1", requires=("torch<<2",))), Passed, id="a requirement nobody can read"),
        pytest.param((TORCH, package("peft", "1", requires=('torch<2; odd == "x"',))), Passed, id="an odd marker"),
        pytest.param((package("torch", "not a version"), package("peft", "1", requires=("torch<2",))), Passed,
                     id="a version nobody can read"),
        pytest.param((TORCH, package("peft", "1", requires=NOT_READ)), Passed, id="requirements that were not read"),
        pytest.param((package("torch", "2.2.2+cu121"), package("numpy", "2.0.0")), Found, id="NumPy 2, torch 2.2"),
        pytest.param((package("torch", "2.2.2+cu121"), package("numpy", "1.26.4")), Passed, id="NumPy 1, torch 2.2"),
        pytest.param((package("torch", "2.3.0+cu121"), package("numpy", "2.0.0")), Passed, id="NumPy 2, torch 2.3"),
        pytest.param((), Skipped, id="nothing installed"),
    ],
)  # fmt: skip
def test_packages_agree(packages, verdict):
    assert isinstance(run_check("PYT007", with_packages(*packages)), verdict)


def test_numpy_is_put_back_rather_than_torch_replaced():
    finding = find_only("PYT007", with_packages(package("torch", "2.2.2+cu121"), package("numpy", "2.1.3")))
    assert finding.fix.commands == ("pip install 'numpy<2'",)


def test_uv_is_asked_where_uv_made_the_environment():
    facts = with_packages(package("torch", "2.2.2+cu121"), package("numpy", "2.1.3"), **{"python.installer": "uv"})
    assert find_only("PYT007", facts).fix.commands == ("uv pip install 'numpy<2'",)


def stack(transformers="5.0.0", bitsandbytes="0.49.2", accelerate="1.10.1", peft="0.18.0"):
    versions = {"transformers": transformers, "bitsandbytes": bitsandbytes, "accelerate": accelerate, "peft": peft}
    return with_packages(*(package(name, version) for name, version in versions.items() if version))


@pytest.mark.parametrize(
    ("facts", "missing"),
    [
        pytest.param(stack(), [], id="everything new enough"),
        pytest.param(stack(bitsandbytes="0.46.1"), [], id="bitsandbytes at the floor"),
        pytest.param(stack(bitsandbytes="0.46.0"), ["bitsandbytes"], id="bitsandbytes below the floor"),
        pytest.param(stack(accelerate=""), ["accelerate"], id="no accelerate"),
        pytest.param(stack(accelerate="1.1.0"), [], id="accelerate at the floor"),
        pytest.param(stack(peft=""), [], id="no peft: only adapters need it"),
        pytest.param(stack(peft="0.17.1"), ["peft"], id="an old peft"),
        pytest.param(stack("4.57.6", accelerate="0.26.0", peft="0.5.0"), [], id="the floors of transformers 4"),
        pytest.param(stack("4.57.6", accelerate="0.25.0"), ["accelerate"], id="below the floor of transformers 4"),
        pytest.param(stack("5.24.0", peft="0.19.0"), ["peft"], id="the newest floor at or below the release"),
    ],
)
def test_transformers_floors(facts, missing):
    verdict = run_check("PYT008", facts)
    assert [finding.subject for finding in getattr(verdict, "findings", ())] == missing


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(stack(bitsandbytes=""), id="no bitsandbytes, no quantized models"),
        pytest.param(stack(transformers=""), id="no transformers"),
        pytest.param(stack("4.40.0"), id="older than the tables"),
        pytest.param(stack("6.0.0"), id="a major that the tables do not know"),
    ],
)
def test_transformers_floors_are_not_judged_without_ground(facts):
    assert isinstance(run_check("PYT008", facts), Skipped)


USERS = "/home/dev/.local/lib/python3.12/site-packages"
OWN = "/venv/lib/python3.12/site-packages"


def copies(*found, user_site=""):
    return changed(inside(), {"python.copies": found, "python.user_site": user_site})


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(copies(), Passed, id="none"),
        pytest.param(copies(Copy("torch", "2.9.1", USERS), Copy("torch", "2.9.1", OWN)), Passed, id="the same version"),
        pytest.param(copies(Copy("torch", "2.9.1", USERS), Copy("torch", "2.8.0", OWN)), Found, id="two versions"),
        pytest.param(changed(inside(), {"python.copies": Unknown("no folder")}), Skipped, id="not read"),
    ],
)
def test_copies(facts, verdict):
    assert isinstance(run_check("PYT009", facts), verdict)


@pytest.mark.parametrize(
    ("user_site", "command"),
    [
        pytest.param(USERS, "export PYTHONNOUSERSITE=1", id="the user's own folder is kept out"),
        pytest.param("", "pip uninstall -y torch", id="any other copy is removed"),
    ],
)
def test_how_a_copy_goes(user_site, command):
    facts = copies(Copy("torch", "2.9.1", USERS), Copy("torch", "2.8.0", OWN), user_site=user_site)
    assert command in find_only("PYT009", facts).fix.commands


def libraries(glibc="2.36", stdcxx="6.0.30", tag=LINUX, **changes):
    library = Library("/usr/lib/libstdc++.so.6", r(stdcxx)) if isinstance(stdcxx, str) else stdcxx
    version = r(glibc) if isinstance(glibc, str) else glibc
    return with_packages(
        package("torch", "2.9.1+cu128", tag), **{"system.glibc": version, "python.libstdcxx": library, **changes}
    )


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        pytest.param(libraries(), None, id="both newer"),
        pytest.param(libraries(glibc="2.28"), None, id="glibc at the tag"),
        pytest.param(libraries(glibc="2.27"), Severity.ERROR, id="glibc below the tag"),
        pytest.param(libraries(stdcxx="6.0.24"), None, id="libstdc++ at the policy"),
        pytest.param(libraries(stdcxx="6.0.22"), Severity.WARNING, id="libstdc++ below the policy"),
        pytest.param(libraries(stdcxx=None), None, id="no libstdc++ found"),
        pytest.param(libraries(stdcxx=Unknown("?")), None, id="libstdc++ not read"),
        pytest.param(libraries(stdcxx=Library("/l", Unknown("?"))), None, id="libstdc++ without a version"),
        pytest.param(libraries(glibc=Unknown("?")), None, id="glibc not read"),
        pytest.param(
            libraries(glibc="2.27", tag="cp312-cp312-manylinux_2_17_x86_64.manylinux_2_28_x86_64"),
            None,
            id="the lowest platform of a tag counts",
        ),
    ],
)
def test_c_libraries(facts, severity):
    verdict = run_check("PYT010", facts)
    assert [finding.severity for finding in getattr(verdict, "findings", ())] == ([severity] if severity else [])


def test_wheels_without_a_platform_say_nothing():
    assert isinstance(run_check("PYT010", libraries(tag="py3-none-any")), Skipped)


# Installed JAX and TensorFlow against driver and GPUs, by their package names and versions.


JAX = {"jaxlib": "0.7.2", "jax-cuda12-plugin": "0.7.2"}


def machine(packages, *, driver="580.95.05", capability="8.9"):
    installed = tuple(Package(name, version, ()) for name, version in packages.items())
    changes = {
        "python.packages": installed,
        "nvml.driver": r(driver),
        "nvml.cuda": r("12.4" if driver < "58" else "13.0"),
    }
    return changed(inside(), changes | {"nvml.gpus": (gpu(capability=capability),)})


@pytest.mark.parametrize(
    ("packages", "given", "verdict"),
    [
        pytest.param(JAX, {}, Passed, id="JAX with its plugin"),
        pytest.param(JAX | {"jaxlib": "0.7.1"}, {}, Found, id="a plugin of another release"),
        pytest.param({"jaxlib": "0.7.2"}, {}, Found, id="no plugin"),
        pytest.param({"jaxlib": "0.4.30+cuda12.cudnn89"}, {}, Skipped, id="a build with CUDA in it"),
        pytest.param({"jaxlib": "0.7.2", "jax-cuda13-plugin": "0.7.2"}, {"driver": "550.54.15"}, Found, id="CUDA 13 on 550"),
        pytest.param(JAX, {"driver": "550.54.15"}, Passed, id="CUDA 12 on 550"),
        pytest.param({"jaxlib": "0.7.2", "jax-cuda13-plugin": "0.7.2"}, {"capability": "7.0"}, Found, id="CUDA 13 on V100"),
        pytest.param({"tensorflow": "2.20.0"}, {}, Passed, id="TensorFlow on Ada"),
        pytest.param({"tensorflow": "2.20.0"}, {"capability": "12.0"}, Found, id="TensorFlow on RTX 50"),
        pytest.param({"tensorflow": "2.17.0+nv25.1"}, {"capability": "12.0"}, Skipped, id="NVIDIA's own build"),
        pytest.param({"tensorflow": "2.17.0"}, {"capability": "5.0"}, Found, id="TensorFlow 2.17 on Maxwell"),
        pytest.param({"tensorflow": "2.3.0"}, {}, Skipped, id="a release that the tables do not know"),
        pytest.param({"numpy": "2.4.0"}, {}, Skipped, id="neither"),
    ],
)  # fmt: skip
def test_what_is_installed_runs_here(packages, given, verdict):
    assert isinstance(run_check("PYT025", machine(packages, **given)), verdict)


@pytest.mark.parametrize(
    ("packages", "given", "command"),
    [
        ({"jaxlib": "0.7.2"}, {"driver": "550.54.15"}, "pip install --upgrade 'jax[cuda12]==0.7.2'"),
        (
            {"jaxlib": "0.7.2", "jax-cuda13-plugin": "0.7.2"},
            {"capability": "7.0"},
            "pip install --upgrade 'jax[cuda12]'",
        ),
    ],
)
def test_the_fix_is_a_build_that_fits(packages, given, command):
    assert find_only("PYT025", machine(packages, **given)).fix.commands == (command,)


def test_no_build_is_promised_where_none_fits():
    finding = find_only("PYT025", machine({"tensorflow": "2.20.0"}, capability="12.0"))
    assert "it holds no code for compute capability 12.0" in finding.message
    assert finding.fix.commands == ()


# bitsandbytes' library, libraries that come before torch's, NVRTC, and what the GPUs cannot do.


def pure_package(name, version):
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
            "python.packages": (pure_package(wheel, wheel_version),),
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
    facts = changed(inside(), {"python.packages": (pure_package(name, version),)})
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


NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
REFUSED = {"code": 125, "device_nodes": Unknown("-"), "nvidiactl": Unknown("-"), "libcuda": Unknown("-")}


def smoke(**changes):
    values = {
        "image": "5b0ad6d2c3f4",
        "request": "gpus",
        "code": 0,
        "out": "",
        "err": "",
        "device_nodes": NODES,
        "nvidiactl": "open",
        "libcuda": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "nvidia_smi": "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-0)",
        "timed_out": False,
        "left_behind": "",
    }
    return changed(healthy(), {"smoke": Smoke(**values | changes)})


def test_a_container_with_its_gpu_passes():
    assert isinstance(run_check("CTK013", smoke()), Passed)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"device_nodes": (), "nvidiactl": "absent"}, "finds no GPU", id="no nodes"),
        pytest.param({"nvidiactl": "refused"}, "may not open", id="nodes that may not be opened"),
        pytest.param({"libcuda": ""}, "not the driver's library", id="no libcuda"),
        pytest.param({"nvidia_smi": "Failed to initialize NVML: Unknown Error"}, "Unknown Error", id="NVML fails"),
        pytest.param({"timed_out": True, "code": 124}, "did not end in time", id="it hangs"),
        pytest.param(REFUSED | {"err": "docker: strange words.\n"}, "strange words", id="an error nobody knows"),
    ],
)
def test_what_can_be_wrong(changes, says):
    finding = find_only("CTK013", smoke(**changes))
    assert finding.severity is Severity.ERROR
    assert says in finding.message
    assert finding.evidence[0].startswith("run --gpus all 5b0ad6d2c3f4")


FAR = "docker: Error response from daemon: failed to create task: " + "one layer after the other: " * 20
HELP = "\n\nRun 'docker run --help' for more information\n"


def test_the_cause_of_a_long_error_is_shown_and_the_commands_help_is_not():
    finding = find_only("CTK013", smoke(**REFUSED, err=f"{FAR}the cause of it all{HELP}"))
    assert finding.message.endswith("the cause of it all")
    assert len(finding.message) < 300
    assert finding.evidence[1] == f"{FAR}the cause of it all"


def test_a_known_error_is_explained():
    err = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]\n'
    finding = find_only("CTK013", smoke(**REFUSED, err=err))
    assert err.strip() not in finding.message
    assert finding.fix.commands


def test_no_nvidia_smi_in_the_image_is_no_fault():
    assert isinstance(run_check("CTK013", smoke(nvidia_smi="")), Passed)


def test_a_container_that_could_not_be_removed_is_named():
    finding = find_only("CTK013", smoke(left_behind="devkit-smoke-1234"))
    assert finding.severity is Severity.WARNING
    assert finding.fix.commands == ("docker rm --force devkit-smoke-1234",)


@pytest.mark.parametrize(
    ("nodes", "verdict"),
    [pytest.param(("/dev/dxg",), Passed, id="with it"), pytest.param((), Found, id="without it")],
)
def test_in_wsl_the_gpu_is_one_node(nodes, verdict):
    guest = changed(windows_guest(), {"smoke": smoke(device_nodes=nodes, nvidiactl="absent").smoke})
    assert isinstance(run_check("CTK013", guest), verdict)


@pytest.mark.parametrize(
    "facts",
    [changed(without_gpu(), {"smoke": smoke().smoke}), changed(healthy(), {"smoke": Unknown("only run with --smoke")})],
    ids=["without a GPU", "not asked for"],
)
def test_nothing_is_said_where_nothing_was_tried(facts):
    assert isinstance(run_check("CTK013", facts), Skipped)


def test_a_missing_toolkit_is_the_cause():
    changes = {
        "smoke": smoke(**REFUSED, err="could not select device driver").smoke,
        "engine.runtimes": (),
        "engine.cdi_devices": (),
        "engine.hook_on_path": False,
        "engine.containers": (),
        "toolkit.version": None,
        "toolkit.daemon_files": (),
        "cdi": (),
    }
    assert build_full_report(changed(healthy(), changes)).root_causes == ("CTK001",)
