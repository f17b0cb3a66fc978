"""gpu.sh on hosts of every kind, under every POSIX shell that is here, with stand-ins for the engine's programs.

The script looks at fixed paths under / and at the programs docker and podman. Here both are folders that a
test fills: the paths are moved by rewriting the script's text, the programs are small scripts on PATH.
"""

import json
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from devkit.render.compose import GPU_MODES
from devkit.render.resources import rendered

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
TOOLS = ("sh", "cat", "sleep", "grep", "mv", "rm", "dirname", "uname", "id", "cksum", "tr", "cut", "kill", "env")

RUNTIME = {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}, "runc": {"path": "runc"}}
DEVICES = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}, {"Source": "cdi", "ID": "nvidia.com/gpu=all"}]
HOOK = "usr/bin/nvidia-container-runtime-hook"
NO_TOOLKIT = ("dev/nvidia0", "dev/nvidiactl")
GPU = (*NO_TOOLKIT, HOOK)
WSL = ("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1", HOOK)
SPEC = "etc/cdi/nvidia.yaml"


def docker_info(**fields: Any) -> dict[str, Any]:
    """What `docker info` says, as JSON: a plain engine with the given fields in place."""
    plain = {"ServerVersion": "28.5.2", "OperatingSystem": "Debian GNU/Linux 12", "SecurityOptions": ["name=seccomp"]}
    return plain | {"Runtimes": {"runc": {"path": "runc"}}, "CDISpecDirs": None} | fields


@dataclass
class Machine:
    """A host that a test puts together."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    shell: str = "dash"
    name: str = "project with 'quotes'"

    @property
    def folder(self) -> Path:
        return self.root / self.name / ".devcontainer"

    @property
    def env_file(self) -> Path:
        return self.folder / ".env"

    def has(self, *paths: str) -> None:
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text("kind: nvidia.com/gpu\n")

    def program(self, name: str, *lines: str) -> None:
        file = self.root / "bin" / name
        file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        file.chmod(0o755)

    def docker(self, info: dict[str, Any], *, server: str = "Docker Engine", host: str = "unix:///run/d.sock") -> None:
        """A docker that answers what gpu.sh asks; its CDI folders are on this machine."""
        if folders := info["CDISpecDirs"]:
            info = info | {"CDISpecDirs": [f"{self.root}{folder}" for folder in folders]}
        answers = {
            "info": json.dumps(info, separators=(",", ":")),
            "version": json.dumps({"Components": [{"Name": server}]}),
            "context": host,
        }
        cases = [f"{verb}) printf '%s\\n' {shlex.quote(said)} ;;" for verb, said in answers.items()]
        self.program("docker", 'case "$1" in', *cases, "*) exit 1 ;;", "esac")

    def start(self) -> subprocess.CompletedProcess[str]:
        argv = [shutil.which(self.shell), *(["sh"] if self.shell == "busybox" else []), str(self.folder / "gpu.sh")]
        env = {"PATH": str(self.root / "bin"), **self.environ}
        return subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=60)

    def run(self) -> str:
        """Run the script; it must succeed. Returns the one line it printed."""
        done = self.start()
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1, done.stdout
        return done.stdout

    def settings(self) -> dict[str, str]:
        lines = [line for line in self.env_file.read_text().splitlines() if line and not line.startswith("#")]
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture(params=SHELLS)
def machine(request, tmp_path) -> Machine:
    made = Machine(tmp_path, shell=request.param)
    made.folder.mkdir(parents=True)
    text = rendered("devcontainer/gpu.sh.j2", devkit_version="0.1.0", slug="demo")
    for path in (
        "/dev/nvidia",
        "/dev/dxg",
        "/proc/driver",
        "/usr/lib/wsl",
        "/etc/cdi",
        "/var/run/cdi",
        "/usr/bin",
        "/usr/local/bin",
    ):
        # A space in the folder's name would split the patterns, so tmp_path must have none.
        text = text.replace(f" {path}", f" {tmp_path}{path}")
    (made.folder / "gpu.sh").write_text(text)
    for mode in GPU_MODES:
        (made.folder / f"gpu.{mode}.yml").touch()
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tmp_path / "bin" / tool).symlink_to(found)
    return made


@pytest.mark.parametrize(
    ("files", "info", "mode", "says"),
    [
        pytest.param(GPU, docker_info(Runtimes=RUNTIME), "nvidia", "nvidia runtime", id="the nvidia runtime"),
        pytest.param((), docker_info(Runtimes=RUNTIME), "cpu", "though its engine", id="the runtime, but no GPU"),
        pytest.param(
            NO_TOOLKIT, docker_info(Runtimes=RUNTIME), "cpu", "hook is missing", id="a runtime whose hook is gone"
        ),
        pytest.param(
            (*NO_TOOLKIT, "usr/local/bin/nvidia-container-runtime-hook"),
            docker_info(Runtimes=RUNTIME),
            "nvidia",
            "nvidia runtime",
            id="a hook of somebody's own",
        ),
        pytest.param(GPU, docker_info(), "cpu", "neither", id="a GPU that the engine cannot pass on"),
        pytest.param((), docker_info(), "cpu", "no NVIDIA GPU", id="a laptop"),
        pytest.param(GPU, docker_info(DiscoveredDevices=DEVICES), "cdi", "CDI", id="CDI devices that the engine lists"),
        pytest.param(
            (*GPU, SPEC), docker_info(CDISpecDirs=["/etc/cdi"]), "cdi", "CDI", id="CDI folders of an older engine"
        ),
        pytest.param(
            (*GPU, "opt/cdi/nvidia.yaml"),
            docker_info(CDISpecDirs=["/etc/cdi", "/opt/cdi"]),
            "cdi",
            "CDI",
            id="CDI folders of somebody's own",
        ),
        pytest.param(
            (*GPU, SPEC), docker_info(CDISpecDirs=["/opt/cdi"]), "cpu", "neither", id="a CDI file where nobody looks"
        ),
        pytest.param(
            GPU, docker_info(CDISpecDirs=["/etc/cdi"]), "cpu", "neither", id="CDI folders with nothing in them"
        ),
        pytest.param((*GPU, SPEC), docker_info(), "cpu", "neither", id="a CDI file, but CDI is off"),
        pytest.param((), docker_info(DiscoveredDevices=DEVICES), "cpu", "no NVIDIA GPU", id="a stale CDI file, no GPU"),
        pytest.param(
            ("proc/driver/nvidia/gpus/0000:01:00.0", HOOK),
            docker_info(Runtimes=RUNTIME),
            "nvidia",
            "nvidia runtime",
            id="a loaded driver whose device nodes are not there yet",
        ),
        pytest.param(WSL, docker_info(Runtimes=RUNTIME), "nvidia", "nvidia runtime", id="an engine inside WSL 2"),
        pytest.param(
            ("dev/dxg",),
            docker_info(Runtimes=RUNTIME),
            "cpu",
            "no NVIDIA GPU",
            id="WSL 2 on a machine with another GPU",
        ),
        pytest.param(
            WSL, docker_info(OperatingSystem="Docker Desktop"), "nvidia", "Desktop", id="Docker Desktop on WSL 2"
        ),
        pytest.param(
            GPU, docker_info(OperatingSystem="Docker Desktop"), "cpu", "Desktop", id="Docker Desktop on Linux"
        ),
    ],
)
def test_docker(machine, files, info, mode, says):
    machine.has(*files)
    machine.docker(info)
    line = machine.run()
    assert line.startswith(f"devkit: DEVKIT_GPU={mode}: ")
    assert says in line
    assert machine.settings()["DEVKIT_GPU"] == mode


def test_both_ways_the_runtime_goes_first_when_its_hook_is_there(machine):
    machine.has(*NO_TOOLKIT)
    machine.docker(docker_info(Runtimes=RUNTIME, DiscoveredDevices=DEVICES))
    machine.run()
    assert machine.settings()["DEVKIT_GPU"] == "cdi"
    machine.program("nvidia-container-runtime-hook", "exit 0")
    machine.run()
    assert machine.settings()["DEVKIT_GPU"] == "nvidia"


def test_a_hook_beside_its_runtime_is_found(machine):
    machine.has(*NO_TOOLKIT, "nix/store/toolkit/nvidia-container-runtime-hook")
    runtime = {"nvidia": {"path": f"{machine.root}/nix/store/toolkit/nvidia-container-runtime"}}
    machine.docker(docker_info(Runtimes=runtime))
    machine.run()
    assert machine.settings()["DEVKIT_GPU"] == "nvidia"


@pytest.mark.parametrize("host", ["ssh://dev@server", "tcp://10.0.0.1:2376"])
def test_an_engine_elsewhere_is_believed(machine, host):
    machine.docker(docker_info(Runtimes=RUNTIME), host=host)
    machine.run()
    assert machine.settings()["DEVKIT_GPU"] == "nvidia"


@pytest.mark.parametrize(
    ("files", "mode"),
    [
        pytest.param((*GPU, SPEC), "podman", id="with a CDI specification"),
        pytest.param(GPU, "cpu", id="without a CDI specification"),
        pytest.param((SPEC,), "cpu", id="without a GPU"),
    ],
)
@pytest.mark.parametrize("way", ["behind Docker's socket", "by its own name", "under Docker's name"])
def test_podman(machine, files, mode, way):
    machine.has(*files)
    if way == "behind Docker's socket":
        machine.docker(docker_info(Runtimes=RUNTIME), server="Podman Engine")
    else:
        name = "podman" if way == "by its own name" else "docker"
        machine.program(name, '[ "$1" = info ] && echo \'{"host": {"buildahVersion": "1.38"}}\'')
    machine.run()
    assert machine.settings()["DEVKIT_GPU"] == mode


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        pytest.param(None, "no container engine was found", id="no engine"),
        pytest.param(["exit 1"], "does not answer", id="an engine that is not running"),
        pytest.param(["exec sleep 30"], "did not answer within 1 s", id="an engine that hangs"),
        pytest.param(["kill -11 $$"], "does not answer", id="a client that crashes"),
        pytest.param(["echo garbage"], "no NVIDIA GPU", id="a client that talks nonsense"),
    ],
)
def test_a_broken_engine_never_stops_a_start(machine, lines, says):
    if lines:
        machine.program("docker", *lines)
    script = machine.folder / "gpu.sh"
    script.write_text(script.read_text().replace("deadline_s=10", "deadline_s=1"))
    started = time.monotonic()
    assert says in machine.run()
    assert time.monotonic() - started < 10
    assert machine.settings()["DEVKIT_GPU"] == "cpu"


def test_the_environment_wins_over_what_is_found(machine):
    machine.docker(docker_info())
    machine.environ["DEVKIT_GPU"] = "nvidia"
    assert "set in the environment" in machine.run()
    assert machine.settings()["DEVKIT_GPU"] == "nvidia"


def test_an_unknown_mode_is_named_and_left_out(machine):
    machine.docker(docker_info())
    machine.environ["DEVKIT_GPU"] = "cuda"
    assert "DEVKIT_GPU=cuda is none of" in machine.run()
    assert "DEVKIT_GPU" not in machine.settings()


@pytest.mark.parametrize("line", ["DEVKIT_GPU=nvidia", "export DEVKIT_GPU=nvidia"])
def test_the_users_line_in_the_file_wins_and_stays(machine, line):
    machine.docker(docker_info())
    machine.env_file.write_text(f"{line}\n")
    assert "as set in .devcontainer/.env" in machine.run()
    text = machine.env_file.read_text()
    assert text.startswith(f"{line}\n")
    assert text.count("DEVKIT_GPU=") == 1


def test_other_lines_stay_and_a_second_run_writes_the_same(machine):
    machine.docker(docker_info())
    mine = "# my notes\nTOKEN='a b'\nPATTERN=$HOME\\n  \n\nDEVKIT_WHEELHOUSE='/w'\nlast=1"
    machine.env_file.write_text(mine)
    machine.run()
    first = machine.env_file.read_text()
    assert first.startswith(mine + "\n")
    machine.run()
    assert machine.env_file.read_text() == first


def test_a_block_that_lost_its_end_costs_no_line_of_the_users(machine):
    machine.docker(docker_info())
    machine.run()
    text = machine.env_file.read_text().replace("# devkit: end\n", "TOKEN=1\n")
    machine.env_file.write_text(text)
    machine.run()
    assert machine.settings()["TOKEN"] == "1"
    assert machine.env_file.read_text().count("DEVKIT_GPU=") == 1


def test_the_file_is_private_and_nothing_else_is_left_behind(machine):
    machine.docker(docker_info())
    before = {each.name for each in machine.folder.iterdir()}
    machine.run()
    assert {each.name for each in machine.folder.iterdir()} - before == {".env"}
    assert machine.env_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_no_process_of_the_script_outlives_it(machine):
    machine.docker(docker_info())
    machine.run()
    commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [command for command in commands if str(machine.folder).encode() in command]


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


@pytest.mark.parametrize(("uid", "expected"), [(1234, "1234"), (0, None)], ids=["an ordinary user", "root"])
def test_the_containers_user_takes_the_host_users_ids(machine, uid, expected):
    machine.docker(docker_info())
    (machine.root / "bin/id").unlink()
    machine.program("id", f"echo {uid}")
    machine.run()
    assert machine.settings().get("DEVKIT_UID") == expected
    assert machine.settings().get("DEVKIT_GID") == expected
