"""The ways to give a container its GPU: who gets which, and how each names the GPUs."""

import re
from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.render.container.compose import find_gpu_modes, render_devcontainer_compose, validate_devices
from devkit.render.container.settings import ContainerSettings, FromIndex

from .gpu_host import write_overlay
from .plans import ARM_PLAN, CPU_PLAN, GPU_PLAN, ROCM_PLAN

PLAIN = ContainerSettings("Demo", "demo", FromIndex("0.1.0"))
MIG = "MIG-5c25bfa8-4a2e-5b8f-8d5a-2f0f3f1f0f0f"
UUID = "GPU-5c25bfa8-4a2e-5b8f-8d5a-2f0f3f1f0f0f"


def files(plan, **settings) -> dict[str, str]:
    made = render_devcontainer_compose(plan, replace(PLAIN, **settings))
    return {each.path.rpartition("/")[2]: each.content.decode() for each in made}


@pytest.fixture
def service(tmp_path):
    """The service of gpu.local.yml on a host that passes on GPUs in this way."""

    def write(plan, mode, **settings):
        folder = tmp_path / f"{mode}{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return write_overlay(plan, replace(PLAIN, **settings), mode, folder)

    return write


@pytest.mark.parametrize(
    ("plan", "engine", "modes"),
    [
        pytest.param(CPU_PLAN, "", ("cpu",), id="torch for the CPU can use no GPU"),
        pytest.param(GPU_PLAN, "", ("cpu", "nvidia", "cdi", "podman"), id="either engine"),
        pytest.param(GPU_PLAN, "docker", ("cpu", "nvidia", "cdi"), id="Docker alone"),
        pytest.param(GPU_PLAN, "podman", ("cpu", "podman"), id="Podman alone"),
        pytest.param(ARM_PLAN, "", ("cpu", "nvidia", "cdi", "podman", "jetson"), id="Arm processors too"),
        pytest.param(ROCM_PLAN, "", ("cpu", "rocm"), id="AMD"),
        pytest.param(ROCM_PLAN, "podman", ("cpu", "rocm"), id="AMD and Podman"),
    ],
)
def test_a_project_gets_what_fits_its_plan_and_its_engine(plan, engine, modes):
    assert find_gpu_modes(plan, engine) == modes
    assert f" is none of {', '.join(modes)}" in files(plan, engine=engine)["gpu.sh"]


def test_an_engine_that_is_none_is_refused():
    with pytest.raises(DevkitError, match=r"target\.engine is 'containerd'"):
        find_gpu_modes(GPU_PLAN, "containerd")


@pytest.mark.parametrize(
    ("plan", "others"),
    [
        pytest.param(ROCM_PLAN, ("nvidia", "cuda", "cdi"), id="a ROCm plan"),
        pytest.param(ARM_PLAN, ("rocm", "amd", "/dev/kfd", "ROCR"), id="a plan for NVIDIA"),
        pytest.param(CPU_PLAN, ("nvidia", "cuda", "rocm", "amd", "/dev/kfd"), id="a plan for the CPU"),
    ],
)
def test_no_file_speaks_of_another_vendor(plan, others):
    for name, text in files(plan).items():
        for word in others:
            assert word.lower() not in text.lower().replace("torch", ""), (name, word)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param((), {"count": "all"}, id="all"),
        pytest.param(("0",), {"device_ids": ["0"]}, id="one by index"),
        pytest.param((MIG, "0:1"), {"device_ids": [MIG, "0:1"]}, id="two MIG slices"),
    ],
)
def test_docker_gets_a_count_or_device_ids_and_never_both(service, devices, expected):
    (request,) = service(GPU_PLAN, "nvidia", devices=devices)["deploy"]["resources"]["reservations"]["devices"]
    assert request == {"driver": "nvidia", "capabilities": ["gpu"]} | expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param((), ["nvidia.com/gpu=all"], id="all"),
        pytest.param(("1",), ["nvidia.com/gpu=1"], id="one by index"),
        pytest.param((UUID, MIG, "0:1"), [f"nvidia.com/gpu={name}" for name in (UUID, MIG, "0:1")], id="by every form"),
    ],
)
def test_cdi_devices_have_the_names_of_nvidias_specification(service, devices, expected):
    (request,) = service(GPU_PLAN, "cdi", devices=devices)["deploy"]["resources"]["reservations"]["devices"]
    assert request == {"driver": "cdi", "device_ids": expected, "capabilities": ["gpu"]}
    # Podman takes a slice by its UUID alone.
    named = [name for name in devices if ":" not in name]
    passed_on = [name for name in expected if name.count(":") == 0]
    assert service(GPU_PLAN, "podman", devices=tuple(named))["devices"] == passed_on


def test_a_jetson_uses_its_runtime_and_never_a_request(service):
    requested = service(ARM_PLAN, "jetson")
    assert requested["runtime"] == "nvidia"
    assert "NVIDIA_VISIBLE_DEVICES=all" in requested["environment"]
    assert "deploy" not in requested
    assert f"NVIDIA_VISIBLE_DEVICES=0,{MIG}" in service(ARM_PLAN, "jetson", devices=("0", MIG))["environment"]


def test_an_amd_gpu_comes_by_its_nodes_and_the_group_that_may_open_them(service):
    requested = service(ROCM_PLAN, "rocm")
    assert [re.sub(".*/dev/", "/dev/", path) for path in requested["devices"]] == ["/dev/kfd", "/dev/dri"]
    assert requested["group_add"] == ["${DEVKIT_GPU_GID:-44}"]
    assert "ROCR_VISIBLE_DEVICES" in requested["environment"]
    assert "ROCR_VISIBLE_DEVICES=0,1" in service(ROCM_PLAN, "rocm", devices=("0", "1"))["environment"]


@pytest.mark.parametrize(
    ("device", "vendor"),
    [
        pytest.param("0:1:2", "nvidia", id="too many colons"),
        pytest.param("٣", "nvidia", id="a digit of another script"),
        pytest.param("0\n", "nvidia", id="a line break"),
        pytest.param("GPU-${HOME}", "nvidia", id="a variable"),
        pytest.param("0:1", "rocm", id="a MIG slice of AMD's"),
        pytest.param(MIG, "rocm", id="a MIG UUID of AMD's"),
    ],
)
def test_what_names_no_gpu_is_refused_in_one_line(device, vendor):
    with pytest.raises(DevkitError, match="does not identify a GPU") as refused:
        validate_devices((device,), vendor)
    assert "\n" not in str(refused.value)


def test_podman_takes_a_mig_slice_by_its_uuid_alone():
    with pytest.raises(DevkitError, match="a MIG slice by the name 0:1"):
        validate_devices(("0:1",), "nvidia", "podman")
    assert validate_devices((MIG, "1"), "nvidia", "podman") == (MIG, "1")


def test_a_gpu_given_twice_is_refused():
    with pytest.raises(DevkitError, match="GPU 0 is given twice"):
        validate_devices(("0", "1", "0"), "nvidia")


@pytest.mark.parametrize(("engine", "said"), [("", False), ("podman", False), ("docker", None)])
def test_podman_compose_makes_no_pod_because_a_pod_takes_no_user_namespace(engine, said):
    document = yaml.safe_load(files(GPU_PLAN, engine=engine)["docker-compose.yml"])
    assert document.get("x-podman", {}).get("in_pod") is said
    assert "userns_mode" in document["services"]["dev"]


def test_the_script_is_plain_ascii_for_shells_without_a_locale():
    for plan in (CPU_PLAN, ARM_PLAN, ROCM_PLAN):
        assert files(plan, name="Größe")["gpu.sh"].isascii()
