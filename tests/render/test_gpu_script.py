"""gpu.sh on hosts of every kind, under every POSIX shell that is here; DEVKIT_DEVICES; and gpu.ps1, which writes the same."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_powershell

from devkit.render.container.compose import find_gpu_modes, render_devcontainer_compose
from devkit.render.container.settings import FromWheel
from tests.render.gpu_host import (
    DEVICES,
    GPU,
    HOOK,
    NO_TOOLKIT,
    PLAN,
    RUNTIME,
    SETTINGS,
    SPEC,
    WSL,
    Machine,
    docker_info,
    place,
)
from tests.render.plans import CPU_PLAN, GPU_PLAN, ROCM_PLAN

# gpu.sh on hosts of every kind, under every POSIX shell that is here, with stand-ins for the engine's programs.


def with_cdi(version: str, *folders: str) -> dict[str, object]:
    """What an engine says that lists no CDI devices, but the folders of their specifications."""
    return docker_info(CDISpecDirs=[*folders], ServerVersion=version)


WITH_RUNTIME = docker_info(Runtimes=RUNTIME)
DESKTOP = docker_info(OperatingSystem="Docker Desktop")
HOSTS = {
    "the nvidia runtime": (GPU, WITH_RUNTIME, "nvidia", "nvidia runtime"),
    "the runtime, but no GPU": ((), WITH_RUNTIME, "cpu", "though its engine"),
    "a runtime whose hook is gone": (NO_TOOLKIT, WITH_RUNTIME, "cpu", "hook is missing"),
    "a hook of the user's own": ((*NO_TOOLKIT, f"usr/local/bin/{Path(HOOK).name}"), WITH_RUNTIME, "nvidia", "runtime"),
    "a GPU that the engine cannot pass on": (GPU, docker_info(), "cpu", "neither"),
    "a laptop": ((), docker_info(), "cpu", "no NVIDIA GPU"),
    "CDI devices that the engine lists": (GPU, docker_info(DiscoveredDevices=DEVICES), "cdi", "CDI"),
    "CDI folders of an older engine": ((*GPU, SPEC), with_cdi("28.1.1", "/etc/cdi"), "cdi", "CDI"),
    "a CDI file that the engine refuses": ((*GPU, SPEC), with_cdi("28.2.0", "/etc/cdi"), "cpu", "neither"),
    "another CDI folder": ((*GPU, "opt/cdi/nvidia.yaml"), with_cdi("27.5.1", "/etc/cdi", "/opt/cdi"), "cdi", "CDI"),
    "a CDI file outside of the search path": ((*GPU, SPEC), with_cdi("27.5.1", "/opt/cdi"), "cpu", "neither"),
    "a CDI file, but CDI is off": ((*GPU, SPEC), docker_info(), "cpu", "neither"),
    "a stale CDI file, no GPU": ((), docker_info(DiscoveredDevices=DEVICES), "cpu", "no NVIDIA GPU"),
    "a driver without device nodes yet": (("proc/driver/nvidia/gpus/0", HOOK), WITH_RUNTIME, "nvidia", "runtime"),
    "an engine inside WSL 2": (WSL, WITH_RUNTIME, "nvidia", "nvidia runtime"),
    "WSL 2 with another GPU": (("dev/dxg",), WITH_RUNTIME, "cpu", "no NVIDIA GPU"),
    "Docker Desktop on WSL 2": (WSL, DESKTOP, "nvidia", "Desktop"),
    "Docker Desktop on Linux": (GPU, DESKTOP, "cpu", "Desktop"),
}


SHORTER = {"the runtime, but no GPU": "no NVIDIA GPU", "a runtime whose hook is gone": "with its hook"}
"""What the script says of hosts of which devkit says more."""


@pytest.fixture
def with_devkit(machine) -> Machine:
    """The same host, with devkit on it."""
    machine.has_devkit = True
    place(machine, PLAN, SETTINGS)
    return machine


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("has_devkit", [False, True], ids=["the script alone", "devkit in its place"])
def test_docker(machine, host, has_devkit):
    files, info, mode, says = HOSTS[host]
    says = says if has_devkit else SHORTER.get(host, says)
    machine.has_devkit = has_devkit
    place(machine, PLAN, SETTINGS)
    machine.has(*files)
    machine.docker(info)
    line = machine.run()
    assert line.startswith(f"devkit: DEVKIT_GPU={mode}: ")
    assert says in line
    assert machine.mode() == mode


@pytest.mark.parametrize("has_devkit", [False, True], ids=["the script alone", "devkit in its place"])
@pytest.mark.parametrize(("gpus", "mode"), [("GPU 0: NVIDIA RTX A2000", "nvidia"), ("", "cpu")])
def test_a_shell_on_windows_asks_the_driver(machine, gpus, mode, has_devkit):
    machine.has_devkit = has_devkit
    place(machine, PLAN, SETTINGS)
    machine.program_instead("uname", "echo MINGW64_NT-10.0")
    machine.program("nvidia-smi", f"echo '{gpus}'")
    machine.docker(DESKTOP)
    machine.run()
    assert machine.mode() == mode
    assert "DEVKIT_UID" not in machine.settings()


@pytest.mark.parametrize("has_devkit", [False, True], ids=["the script alone", "devkit in its place"])
def test_the_hook_may_lie_beside_the_runtime_and_outside_of_path(machine, has_devkit):
    machine.has_devkit = has_devkit
    place(machine, PLAN, SETTINGS)
    folder = "opt/toolkit"
    machine.docker(docker_info(Runtimes={"nvidia": {"path": f"{machine.root}/{folder}/nvidia-container-runtime"}}))
    machine.has(*NO_TOOLKIT)
    machine.run()
    assert machine.mode() == "cpu"
    machine.has(f"{folder}/nvidia-container-runtime-hook")
    machine.run()
    assert machine.mode() == "nvidia"


def test_both_ways_the_runtime_goes_first_when_its_hook_is_there(machine):
    machine.has(*NO_TOOLKIT)
    machine.docker(docker_info(Runtimes=RUNTIME, DiscoveredDevices=DEVICES))
    machine.run()
    assert machine.mode() == "cdi"
    machine.program("nvidia-container-runtime-hook", "exit 0")
    machine.run()
    assert machine.mode() == "nvidia"


def test_an_engine_elsewhere_is_believed(with_devkit):
    for host in ("ssh://dev@server", "tcp://10.0.0.1:2376"):
        with_devkit.docker(WITH_RUNTIME, host=host)
        with_devkit.run()
        assert with_devkit.mode() == "nvidia", host


PODMAN = '[ "$1" = info ] && echo \'{"host": {"buildahVersion": "1.38"}}\''


@pytest.mark.parametrize("way", ["behind Docker's socket", "by its own name", "under Docker's name"])
def test_podman_passes_on_a_gpu_with_its_specification(machine, way):
    if way == "behind Docker's socket":
        machine.docker(docker_info(Runtimes=RUNTIME, ServerVersion="5.4.2"), server="Podman Engine")
    else:
        machine.program("podman" if way == "by its own name" else "docker", PODMAN)
    machine.has(SPEC)
    machine.run()
    assert machine.mode() == "cpu", "no GPU"
    machine.has(*GPU)
    machine.run()
    assert machine.mode() == "podman"
    (machine.root / SPEC).unlink()
    machine.run()
    assert machine.mode() == "cpu", "no CDI specification"


@pytest.mark.parametrize(
    ("lines", "says", "clock"),
    [
        pytest.param(None, "no container engine answers", "timeout", id="no engine"),
        pytest.param(["exec sleep 30"], "no container engine answers", "timeout", id="an engine that hangs"),
        pytest.param(["exec sleep 30"], "no container engine answers", "perl", id="one that hangs on macOS"),
        pytest.param(["echo garbage"], "no NVIDIA GPU", "perl", id="a client that talks nonsense"),
    ],
)
@pytest.mark.clock
def test_a_broken_engine_never_stops_a_start(machine, lines, says, clock):
    if lines:
        machine.program("docker", *lines)
    if clock == "perl":  # as on macOS
        (machine.root / "bin/timeout").unlink()
        (machine.root / "bin/perl").symlink_to(shutil.which("perl"))
    script = machine.folder / "gpu.sh"
    script.write_text(script.read_text().replace("-s KILL 10", "-s KILL 1").replace("alarm 10", "alarm 1"))
    started = time.monotonic()
    assert says in machine.run()
    assert time.monotonic() - started < 10
    assert machine.mode() == "cpu"


def test_the_environment_wins_over_what_is_found(machine):
    machine.docker(docker_info())
    machine.environ["DEVKIT_GPU"] = "nvidia"
    assert "DEVKIT_GPU=nvidia: as set" in machine.run()
    assert machine.mode() == "nvidia"


def test_an_unknown_mode_is_named_and_there_is_no_gpu(machine):
    machine.has(*GPU)
    machine.docker(WITH_RUNTIME)
    machine.environ["DEVKIT_GPU"] = "cuda"
    assert "DEVKIT_GPU=cuda is none of" in machine.run()
    assert machine.mode() == "cpu"


def test_the_users_line_in_the_file_wins_and_stays(machine):
    machine.docker(docker_info())
    for line in ("DEVKIT_GPU=nvidia", "export DEVKIT_GPU=nvidia"):
        machine.env_file.write_text(f"{line}\n")
        assert "DEVKIT_GPU=nvidia: as set" in machine.run()
        assert machine.env_file.read_text().startswith(f"{line}\n")
        assert machine.mode() == "nvidia"


def test_other_lines_stay_and_a_second_run_writes_the_same(machine):
    machine.docker(docker_info())
    mine = "# my notes\nTOKEN='a b'\nPATTERN=$HOME\\n  \n\nDEVKIT_WHEELHOUSE='/w'\nlast=1"
    machine.env_file.write_text(mine)
    machine.run()
    first = machine.env_file.read_text()
    assert first.startswith(mine + "\n")
    machine.run()
    assert machine.env_file.read_text() == first


def test_the_file_is_private_and_nothing_else_is_left_behind(machine):
    machine.docker(docker_info())
    before = {each.name for each in machine.folder.iterdir()}
    machine.run()
    assert {each.name for each in machine.folder.iterdir()} - before == {".env"}
    assert machine.env_file.stat().st_mode & 0o777 == 0o600


def read_hub(machine, **engine: str) -> str:
    """Run the script; what .env then says of the hub's folder, and whether that is still what it was."""
    machine.docker(docker_info(), **engine)
    machine.environ["HOME"] = str(machine.root / "home")
    before = sorted((machine.root / "home").rglob("*"))
    machine.run()
    assert sorted((machine.root / "home").rglob("*")) == before
    lines = machine.env_file.read_text().splitlines()
    return " ".join(line.removesuffix(" # gpu.sh") for line in lines if line.startswith("DEVKIT_HUB"))


def test_the_hosts_folder_of_the_hub_is_passed_on_with_its_token(machine):
    folder = machine.root / "home/.cache/huggingface"
    (folder / "hub").mkdir(parents=True)
    token = "DEVKIT_HUB_TOKEN=/opt/cache/huggingface/token"
    assert read_hub(machine) == f"DEVKIT_HUB={folder} {token}"
    (machine.root / "elsewhere").mkdir()
    machine.environ["HF_HOME"] = str(machine.root / "elsewhere")
    assert read_hub(machine) == f"DEVKIT_HUB={machine.root}/elsewhere {token}"
    machine.env_file.write_text("DEVKIT_HUB=hub-cache\n")
    assert read_hub(machine) == f"DEVKIT_HUB=hub-cache {token}"


@pytest.mark.parametrize("case", ["missing", "a link", "other cache", "of root", "odd path", "windows", "remote"])
def test_a_folder_of_the_hub_that_would_not_work_inside_is_not_passed_on(machine, case):
    folder = machine.root / ("home/a b" if case == "odd path" else "home/.cache/huggingface")
    if case != "missing":
        folder.mkdir(parents=True)
    machine.environ |= {"HF_HUB_CACHE": "/data/models"} if case == "other cache" else {}
    machine.environ |= {"HF_HOME": str(folder)} if case == "odd path" else {}
    if case == "a link":
        (folder / "hub").symlink_to("/data")
    if case == "of root":
        machine.program_instead("id", "echo 4242")
    if case == "windows":
        machine.program_instead("uname", "echo MINGW64_NT-10.0")
    assert read_hub(machine, **({"host": "ssh://box"} if case == "remote" else {})) == ""


def test_a_wheel_that_is_missing_is_said_before_the_build(machine):
    settings = replace(SETTINGS, source=FromWheel("devkit_gpu-0.1.0-py3-none-any.whl", b""))
    place(machine, PLAN, settings)
    done = machine.start()
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = [line for line in done.stdout.splitlines() if "wheels/devkit_gpu-0.1.0" in line]
    assert "devkit update" in line
    (machine.folder / "wheels").mkdir()
    (machine.folder / "wheels/devkit_gpu-0.1.0-py3-none-any.whl").touch()
    assert "devkit update" not in machine.run()


def test_a_folder_that_cannot_be_written_is_said_and_not_fatal(machine):
    machine.docker(docker_info())
    machine.env_file.mkdir()
    (machine.env_file / "x").touch()
    done = machine.start()
    assert done.returncode == 0
    assert "could not write" in done.stdout


def test_two_checkouts_get_two_project_names(machine, tmp_path):
    machine.docker(docker_info())
    other = Machine(tmp_path, shell=machine.shell, name="other")
    shutil.copytree(machine.folder, other.folder)
    machine.run()
    other.run()
    names = {made.settings()["DEVKIT_PROJECT"] for made in (machine, other)}
    assert len(names) == 2
    assert all(name.startswith("demo-") for name in names)


def test_rootless_docker_makes_the_host_user_root_inside(machine):
    machine.docker(docker_info(SecurityOptions=["name=seccomp,profile=builtin", "name=rootless"]))
    machine.run()
    assert machine.settings()["DEVKIT_UID"] == "0"


@pytest.mark.parametrize(
    ("uid", "owner", "expected"),
    [(1234, 77, "1234"), (0, 77, "77"), (0, 0, "0")],
    ids=["an ordinary user", "root in a user's project", "root in a project of root's"],
)
def test_the_containers_user_takes_the_ids_that_may_write_to_the_project(machine, uid, owner, expected):
    if os.geteuid() == 0:
        os.chown(machine.folder.parent, owner, owner)
    elif uid == 0:
        pytest.skip("only root can give a folder away")
    machine.docker(docker_info())
    machine.program_instead("id", f"echo {uid}")
    machine.run()
    assert machine.settings().get("DEVKIT_UID") == expected
    assert machine.settings().get("DEVKIT_GID") == expected


@pytest.mark.parametrize(
    ("files", "info", "mode", "says"),
    [
        pytest.param(("etc/nv_tegra_release",), RUNTIME, "jetson", "a Jetson", id="a Jetson"),
        pytest.param(("dev/nvgpu/igpu0",), RUNTIME, "jetson", "a Jetson", id="a Jetson whose release file is gone"),
        pytest.param(("etc/nv_tegra_release",), {}, "cpu", "neither", id="a Jetson without the runtime"),
        pytest.param(("etc/nv_tegra_release", *GPU), RUNTIME, "jetson", "a Jetson", id="a Jetson of JetPack 7"),
    ],
)
def test_a_jetson_takes_the_runtime_by_itself(with_devkit, files, info, mode, says):
    with_devkit.has(*files)
    with_devkit.docker(docker_info(Runtimes=info))
    assert says in with_devkit.run()
    assert with_devkit.mode() == mode


@pytest.mark.parametrize(
    ("version", "mode", "says"),
    [
        pytest.param("5.3.2", "cpu", "from 5.4 on", id="Podman 5.3"),
        pytest.param("5.4.0", "podman", "CDI specification", id="Podman 5.4"),
        pytest.param("5.10.0", "podman", "CDI specification", id="Podman 5.10"),
    ],
)
def test_an_old_podman_drops_devices_that_come_through_its_socket(machine, version, mode, says):
    machine.has(*GPU, SPEC)
    machine.docker(docker_info(ServerVersion=version), server="Podman Engine")
    machine.run()
    assert machine.mode() == mode
    machine.has_devkit = True
    place(machine, PLAN, SETTINGS)
    assert says in machine.run()
    assert machine.mode() == mode


@pytest.mark.parametrize(
    ("found", "mode"), [("/etc/cdi/nvidia.yaml", "podman"), ("", "cpu")], ids=["with a specification", "without one"]
)
def test_outside_of_linux_the_podman_machine_is_inspected(with_devkit, found, mode):
    with_devkit.program_instead("uname", "echo MINGW64_NT-10.0")
    with_devkit.program(
        "podman", 'case "$1" in', 'info) echo \'{"buildahVersion": "1"}\' ;;', f"machine) echo {found} ;;", "esac"
    )
    assert "Podman machine" in with_devkit.run()
    assert with_devkit.mode() == mode


@pytest.mark.parametrize(
    ("engine", "other"), [("docker", "Podman answers"), ("podman", "Docker answers")], ids=["for Docker", "for Podman"]
)
def test_a_project_for_one_engine_says_when_the_other_answers(machine, engine, other):
    for stale in machine.folder.glob("gpu.*"):
        stale.unlink()
    place(machine, PLAN, replace(SETTINGS, engine=engine))
    machine.has(*GPU, SPEC)
    machine.docker(WITH_RUNTIME, server="Docker Engine" if engine == "podman" else "Podman Engine")
    assert other in machine.run()
    assert machine.mode() == "cpu"


def test_a_project_for_podman_asks_podman_where_both_are_installed(machine):
    place(machine, PLAN, replace(SETTINGS, engine="podman"))
    machine.has(*GPU, SPEC)
    machine.docker(WITH_RUNTIME)
    machine.program("podman", PODMAN)
    machine.run()
    assert machine.mode() == "podman"


def test_podman_answers_where_docker_is_installed_and_does_not_run(machine):
    machine.has(*GPU, SPEC)
    machine.program("docker", "exit 1")
    machine.program("podman", PODMAN)
    machine.run()
    assert machine.mode() == "podman"


@pytest.mark.parametrize(
    ("security", "userns", "uid"),
    [
        pytest.param(["name=rootless"], "keep-id", "1234", id="rootless Podman keeps the user's id"),
        pytest.param(["name=seccomp"], None, "1234", id="Podman as root has no such mapping"),
    ],
)
def test_podman_behind_dockers_socket_maps_users_as_it_says(machine, security, userns, uid):
    machine.program_instead("id", "echo 1234")
    machine.docker(docker_info(SecurityOptions=security), server="Podman Engine")
    machine.run()
    assert machine.settings().get("DEVKIT_USERNS") == userns
    assert machine.settings().get("DEVKIT_UID") == uid


def test_a_toolkit_whose_hook_refuses_is_passed_by_where_there_is_another_way(with_devkit):
    with_devkit.has(*GPU)
    config = with_devkit.root / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir(parents=True)
    for setting, devices, mode in (
        ('mode = "cdi"', DEVICES, "cdi"),
        ('mode = "cdi"', [], "nvidia"),
        ('mode = "auto"', DEVICES, "nvidia"),
        ('#mode = "cdi"', DEVICES, "nvidia"),
    ):
        config.write_text(f"[nvidia-container-runtime]\n{setting}\n")
        with_devkit.docker(docker_info(Runtimes=RUNTIME, DiscoveredDevices=devices))
        assert f"DEVKIT_GPU={mode}:" in with_devkit.run(), (setting, devices)


def test_the_daemon_of_mps_is_passed_on_with_the_hosts_ipc_namespace(tmp_path):
    pipes = tmp_path / "mps"
    pipes.mkdir()
    machine = Machine(tmp_path, {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}, has_devkit=True)
    machine.prepare()
    machine.has(*GPU)
    machine.docker(WITH_RUNTIME)
    place(machine, PLAN, SETTINGS)
    machine.run()
    assert "ipc" not in machine.overlay()
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(pipes / "control"))
        machine.run()
    service = machine.overlay()
    assert (service["ipc"], service["volumes"]) == ("host", [f"{pipes}:{pipes}"])
    assert f"CUDA_MPS_PIPE_DIRECTORY={pipes}" in service["environment"]


def test_a_graphical_plan_gets_the_sockets_of_the_hosts_display(tmp_path):
    machine = Machine(tmp_path, {"XDG_RUNTIME_DIR": str(tmp_path), "WAYLAND_DISPLAY": "w-0"}, has_devkit=True)
    machine.prepare()
    machine.has(*GPU, "tmp/.X11-unix/X0")
    machine.docker(WITH_RUNTIME)
    place(machine, replace(PLAN, is_graphical=True), SETTINGS)
    machine.run()
    x11 = "/tmp/.X11-unix:/tmp/.X11-unix"
    assert machine.overlay()["volumes"] == [x11]
    with socket.socket(socket.AF_UNIX) as wayland:
        wayland.bind(str(tmp_path / "w-0"))
        machine.run()
    assert machine.overlay()["volumes"] == [x11, f"{tmp_path}/w-0:/tmp/wayland-0"]
    assert machine.overlay()["environment"] == ["DEVKIT_GPU=nvidia", "DISPLAY", "WAYLAND_DISPLAY=/tmp/wayland-0"]
    place(machine, PLAN, SETTINGS)
    machine.run()
    assert "volumes" not in machine.overlay()


# DEVKIT_DEVICES: one teammate takes some of a host's GPUs without touching a committed file.


MIG = "MIG-5c25bfa8-4a2e-5b8f-8d5a-2f0f3f1f0f0f"
AMD = ("dev/kfd", "dev/dri/renderD128", "dev/dri/card0")


def request(machine: Machine) -> dict[str, object]:
    (reservation,) = machine.overlay()["deploy"]["resources"]["reservations"]["devices"]
    return reservation


@pytest.fixture
def with_gpu(machine) -> Machine:
    machine.has(*GPU)
    machine.docker(WITH_RUNTIME)
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


def test_podman_takes_no_slice_by_its_numbers(machine):
    machine.has(*GPU, SPEC)
    machine.docker(docker_info(ServerVersion="5.4.2"), server="Podman Engine")
    machine.environ["DEVKIT_DEVICES"] = "0:1"
    assert "by its MIG-... UUID alone" in machine.run()
    assert machine.overlay() == {}


@pytest.mark.parametrize("chosen", ["", "DEVKIT_GPU=nvidia\n"], ids=["found by itself", "the mode set by the user"])
def test_what_names_no_gpu_gives_none_rather_than_all(with_gpu, chosen):
    for wrong in ("gpu0", "1;id", "$(id)", "0:1:2", ":1", "0,,x", "RTX 4090", "-1", "all,1", "GPU-", "1\n2x", '"]'):
        with_gpu.environ["DEVKIT_DEVICES"] = wrong
        with_gpu.env_file.write_text(chosen)
        assert "names no GPUs" in with_gpu.run(), wrong
        assert with_gpu.overlay() == {}, wrong


def test_a_gpu_in_slices_is_said(with_devkit):
    with_devkit.has(*GPU, "proc/driver/nvidia/capabilities/gpu0/mig/gi1")
    with_devkit.docker(WITH_RUNTIME)
    assert "MIG slices" in with_devkit.run()


def test_a_devkit_on_the_host_does_it_in_place_of_the_script(with_gpu):
    """The project's script, as it is, with a devkit that is found and one that is too old for this command."""
    place(with_gpu, replace(PLAN, is_graphical=True), replace(SETTINGS, devices=("0",)))
    with_gpu.program("devkit", f'echo by devkit; exec {sys.executable} -m devkit "$@"')
    pipes = with_gpu.root / "mps"
    pipes.mkdir()
    with_gpu.environ |= {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "DEVKIT_GPU": "nvidia",
        "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
    }
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(pipes / "control"))
        done = with_gpu.start()
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == ["by devkit", "devkit: DEVKIT_GPU=nvidia: as set"]
        assert with_gpu.overlay()["ipc"] == "host", "which devkit alone knows"
        assert request(with_gpu)["device_ids"] == ["0"]
        assert set(with_gpu.settings()) >= {"DEVKIT_PROJECT", "DEVKIT_UID"}
        with_gpu.program("devkit", "exit 2")
        with_gpu.run()
        assert "ipc" not in with_gpu.overlay()
        assert request(with_gpu)["device_ids"] == ["0"]


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
        pytest.param(AMD, DESKTOP, "cpu", "Desktop", id="Docker Desktop"),
    ],
)
def test_a_rocm_plan_looks_for_amds_devices(machine, files, info, mode, says):
    place(machine, ROCM_PLAN, SETTINGS)
    machine.has(*files)
    machine.docker(info)
    assert says in machine.run()
    assert machine.mode() == mode


def test_an_amd_gpu_of_an_engine_elsewhere_is_for_the_user_to_say(with_devkit):
    place(with_devkit, ROCM_PLAN, SETTINGS)
    with_devkit.docker(docker_info(), host="ssh://dev@server")
    assert "set DEVKIT_GPU=rocm" in with_devkit.run()


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
    machine.docker(WITH_RUNTIME)
    assert "planned for the CPU" in machine.run()
    assert machine.overlay() == {}


# gpu.ps1: the grammar of PowerShell accepts it, and it writes what gpu.sh writes. No PowerShell runs here.
#
# Windows PowerShell runs on Windows alone, and its successor is in none of the package indexes that tests may use. What
# the script decides is kept small for that reason, and what can be compared with gpu.sh is compared.


def mistakes(text: str) -> list[str]:
    """The places that the grammar does not accept."""
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))
    waiting, found = [parser.parse(text.encode()).root_node], []
    while waiting:
        node = waiting.pop()
        if node.type == "ERROR" or node.is_missing:
            found.append(f"line {node.start_point[0] + 1}: {node.type}")
        waiting += node.children
    return found


@pytest.mark.parametrize(
    ("plan", "engine"),
    [
        pytest.param(CPU_PLAN, "", id="the CPU"),
        pytest.param(GPU_PLAN, "", id="NVIDIA and both engines"),
        pytest.param(GPU_PLAN, "podman", id="NVIDIA and Podman"),
        pytest.param(ROCM_PLAN, "", id="AMD"),
    ],
)
def test_the_script_for_windows_knows_the_modes_asks_and_writes_as_the_other_does(plan, engine):
    made = render_devcontainer_compose(plan, replace(SETTINGS, engine=engine, for_windows=True))
    scripts = {each.path.rpartition("/")[2]: each.content.decode() for each in made}
    text, other = scripts["gpu.ps1"], scripts["gpu.sh"]
    assert mistakes(text) == []
    assert text.isascii(), "Windows PowerShell reads a file without a mark in the code page of the machine"
    modes = ", ".join(find_gpu_modes(plan, engine))
    assert modes in text
    assert modes in other
    if "nvidia" in modes or "podman" in modes:
        for form in ("[label=disable]", "([0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9A-Za-z-]+)"):
            assert form in text
            assert form in other or engine == "docker"
    if "nvidia" in modes:
        assert "deploy: {resources: {reservations: {devices: [{driver: $Mode, $which, capabilities: [gpu]}]}}}" in text
        assert "deploy: {resources: {reservations: {devices: [{driver: $mode, $which, capabilities: [gpu]}]}}}" in other
    written = set(re.findall(r"\$found\['(DEVKIT_\w+)'\]", text))
    assert written <= {"DEVKIT_GPU_FILE", "DEVKIT_PROJECT"}
    assert written <= set(re.findall(r"setting (DEVKIT_\w+)", other))
    assert "$mark = ' # gpu.sh'" in text
    assert "%s=%s # gpu.sh" in other
