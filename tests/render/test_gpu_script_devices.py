"""DEVKIT_DEVICES: one teammate takes some of a host's GPUs without touching a committed file."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from .gpu_host import GPU, PLAN, RUNTIME, SETTINGS, SPEC, Machine, docker_info, place
from .plans import CPU_PLAN, ROCM_PLAN

MIG = "MIG-5c25bfa8-4a2e-5b8f-8d5a-2f0f3f1f0f0f"
AMD = ("dev/kfd", "dev/dri/renderD128", "dev/dri/card0")


def request(machine: Machine) -> dict[str, object]:
    (reservation,) = machine.overlay()["deploy"]["resources"]["reservations"]["devices"]
    return reservation


@pytest.fixture
def with_gpu(machine) -> Machine:
    machine.has(*GPU)
    machine.docker(docker_info(Runtimes=RUNTIME))
    return machine


@pytest.mark.parametrize(
    ("line", "names"),
    [
        pytest.param("DEVKIT_DEVICES=1", ["1"], id="one"),
        pytest.param("DEVKIT_DEVICES=0, 2", ["0", "2"], id="two with a space"),
        pytest.param(f'export DEVKIT_DEVICES="{MIG}"  # mine', [MIG], id="quoted, with a comment"),
        pytest.param("DEVKIT_DEVICES='0:1'\r", ["0:1"], id="from an editor on Windows"),
    ],
)
def test_the_users_line_chooses(with_gpu, line, names):
    with_gpu.env_file.write_text(f"{line}\n", newline="")
    said = with_gpu.run()
    assert said.startswith("devkit: DEVKIT_GPU=nvidia: ")
    assert f"; DEVKIT_DEVICES={','.join(names)}\n" in said
    assert request(with_gpu) == {"driver": "nvidia", "device_ids": names, "capabilities": ["gpu"]}


def test_the_environment_goes_before_the_file_and_a_next_start_forgets_it(with_gpu):
    with_gpu.env_file.write_text("DEVKIT_DEVICES=1\n")
    with_gpu.environ["DEVKIT_DEVICES"] = "3"
    with_gpu.run()
    assert request(with_gpu)["device_ids"] == ["3"]
    del with_gpu.environ["DEVKIT_DEVICES"]
    with_gpu.run()
    assert request(with_gpu)["device_ids"] == ["1"]


def test_without_a_choice_every_gpu_is_taken_and_without_a_gpu_nothing_is_left(with_gpu):
    before = {each.name for each in with_gpu.folder.iterdir()}
    with_gpu.environ["DEVKIT_DEVICES"] = "1"
    with_gpu.run()
    del with_gpu.environ["DEVKIT_DEVICES"]
    with_gpu.run()
    assert request(with_gpu) == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert {each.name for each in with_gpu.folder.iterdir()} - before == {".env", "gpu.local.yml"}
    with_gpu.environ["DEVKIT_GPU"] = "cpu"
    with_gpu.run()
    assert {each.name for each in with_gpu.folder.iterdir()} - before == {".env"}


def test_all_takes_every_gpu_where_the_project_names_some(with_gpu):
    place(with_gpu, PLAN, replace(SETTINGS, devices=("0",)))
    with_gpu.run()
    assert request(with_gpu)["device_ids"] == ["0"]
    with_gpu.environ["DEVKIT_DEVICES"] = "all"
    with_gpu.run()
    assert request(with_gpu) == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        pytest.param("cdi", ["nvidia.com/gpu=0", f"nvidia.com/gpu={MIG}"], id="CDI"),
        pytest.param("podman", ["nvidia.com/gpu=0", f"nvidia.com/gpu={MIG}"], id="Podman"),
        pytest.param("jetson", [f"NVIDIA_VISIBLE_DEVICES=0,{MIG}"], id="the runtime by itself"),
    ],
)
def test_a_mode_that_the_user_chose_names_the_same_gpus_in_its_own_form(with_gpu, mode, names):
    with_gpu.env_file.write_text(f"DEVKIT_GPU={mode}\nDEVKIT_DEVICES=0,{MIG}\n")
    assert "as set; DEVKIT_DEVICES=0,MIG-" in with_gpu.run()
    text = json.dumps(with_gpu.overlay())
    for name in names:
        assert json.dumps(name) in text
    assert "all" not in text


def test_podman_takes_no_slice_by_its_numbers(machine):
    machine.has(*GPU, SPEC)
    machine.docker(docker_info(ServerVersion="5.4.2"), server="Podman Engine")
    machine.environ["DEVKIT_DEVICES"] = "0:1"
    assert "by its MIG-... UUID alone" in machine.run()
    assert machine.overlay() == {}


@pytest.mark.parametrize(
    "wrong",
    ["gpu0", "1;id", "$(id)", "0:1:2", ":1", "0:", "0,,x", "RTX 4090", "-1", "all,1", "GPU-", "1\n2x", "0\\", '"]'],
)
@pytest.mark.parametrize("chosen", [None, "nvidia"], ids=["found by itself", "the mode set by the user"])
def test_what_names_no_gpu_gives_none_rather_than_all(with_gpu, wrong, chosen):
    with_gpu.environ["DEVKIT_DEVICES"] = wrong
    if chosen:
        with_gpu.env_file.write_text(f"DEVKIT_GPU={chosen}\n")
    assert "names no GPUs" in with_gpu.run()
    assert with_gpu.overlay() == {}


def test_shared_memory_grows_with_the_gpus_that_share_it(with_gpu):
    with_gpu.has("dev/nvidia1")
    with_gpu.run()
    assert "DEVKIT_SHM_SIZE" not in with_gpu.settings()
    with_gpu.has(*(f"dev/nvidia{index}" for index in range(8)))
    with_gpu.run()
    assert with_gpu.settings()["DEVKIT_SHM_SIZE"] == "32gb"
    with_gpu.environ["DEVKIT_DEVICES"] = "0,1,2,3"
    with_gpu.run()
    assert with_gpu.settings()["DEVKIT_SHM_SIZE"] == "16gb"


def test_a_gpu_in_slices_is_said(with_gpu):
    with_gpu.has("proc/driver/nvidia/capabilities/gpu0/mig/gi1")
    assert "MIG slices" in with_gpu.run()


def test_starts_at_the_same_moment_leave_one_whole_file(with_gpu):
    with_gpu.env_file.write_text("TOKEN=mine\nDEVKIT_DEVICES=1\n")
    with ThreadPoolExecutor(6) as pool:
        starts: list[subprocess.CompletedProcess[str]] = list(pool.map(lambda _: with_gpu.start(), range(6)))
    assert {(done.returncode, done.stderr) for done in starts} == {(0, "")}
    lines = with_gpu.env_file.read_text().splitlines()
    assert lines[:2] == ["TOKEN=mine", "DEVKIT_DEVICES=1"]
    assert len([line for line in lines if line.startswith("DEVKIT_GPU_FILE=")]) == 1
    assert request(with_gpu)["device_ids"] == ["1"]
    assert not list(with_gpu.folder.glob(".env.*"))


@pytest.mark.parametrize(
    ("files", "info", "mode", "says"),
    [
        pytest.param(AMD, docker_info(), "rocm", "has an AMD GPU", id="an AMD GPU"),
        pytest.param(AMD[:1], docker_info(), "cpu", "no AMD GPU", id="a driver without a GPU"),
        pytest.param(GPU, docker_info(Runtimes=RUNTIME), "cpu", "no AMD GPU", id="another vendor's GPU"),
        pytest.param(AMD, docker_info(OperatingSystem="Docker Desktop"), "cpu", "Desktop", id="Docker Desktop"),
    ],
)
def test_a_rocm_plan_looks_for_amds_devices(machine, files, info, mode, says):
    place(machine, ROCM_PLAN, SETTINGS)
    machine.has(*files)
    machine.docker(info)
    assert says in machine.run()
    assert machine.mode() == mode


def test_an_amd_gpu_of_an_engine_elsewhere_is_for_the_user_to_say(machine):
    place(machine, ROCM_PLAN, SETTINGS)
    machine.docker(docker_info(), host="ssh://dev@server")
    assert "set DEVKIT_GPU=rocm" in machine.run()


@pytest.mark.parametrize(
    ("rootless", "group"), [(True, "keep-groups"), (False, None)], ids=["rootless Podman", "Podman as root"]
)
def test_the_group_of_an_amd_gpu_is_kept_or_named_by_number(machine, rootless, group):
    place(machine, ROCM_PLAN, SETTINGS)
    machine.has(*AMD)
    host = {"host": {"buildahVersion": "1.38", "security": {"rootless": rootless}}}
    machine.program("podman", f"[ \"$1\" = info ] && echo '{json.dumps(host)}'")
    machine.program_instead("id", f"echo {1234 if rootless else 0}")
    machine.run()
    owner = str((machine.root / "dev/kfd").stat().st_gid)
    assert machine.settings()["DEVKIT_GPU_GID"] == (group or owner)


def test_rocms_own_choice_of_gpus_is_set_for_the_container(machine):
    place(machine, ROCM_PLAN, SETTINGS)
    machine.has(*AMD)
    machine.docker(docker_info())
    machine.environ["DEVKIT_DEVICES"] = "0,GPU-deadbeefdeadbeef"
    machine.run()
    assert "ROCR_VISIBLE_DEVICES=0,GPU-deadbeefdeadbeef" in machine.overlay()["environment"]
    machine.environ["DEVKIT_DEVICES"] = "0:1"
    assert "names no GPUs" in machine.run()


def test_a_plan_for_the_cpu_asks_for_nothing_on_any_host(machine):
    for stale in machine.folder.glob("gpu.*"):
        stale.unlink()
    place(machine, CPU_PLAN, SETTINGS)
    machine.has(*GPU, *AMD)
    machine.docker(docker_info(Runtimes=RUNTIME))
    assert "planned for the CPU" in machine.run()
    assert machine.overlay() == {}
