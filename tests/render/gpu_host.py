"""A host that a test puts together for gpu.sh: its programs, its device nodes, and the project's files.

The script looks at fixed paths under / and at the programs docker and podman. Here both are folders that a
test fills: the paths are moved by rewriting the script's text, the programs are small scripts on PATH.
"""

import json
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from devkit.render.container.compose import find_gpu_modes, render_devcontainer_compose, render_gpu_script
from devkit.render.container.settings import ContainerSettings, FromIndex
from devkit.solver.plan import Plan

from .plans import GPU_PLAN

SHELLS = [shell for shell in ("dash", "bash", "busybox", "ksh", "mksh", "yash") if shutil.which(shell)]
every_shell = [
    pytest.param(shell, marks=[pytest.mark.full] if place else [], id=shell) for place, shell in enumerate(SHELLS)
]
"""Parameters: the first shell that is here each time, the others in `make test-all`."""
TOOLS = ("sh", "cat", "sleep", "grep", "mv", "rm", "dirname", "uname", "id", "cksum", "tr", "cut", "kill", "env")
TOOLS += ("ls", "wc", "printf", "test", "[", "cp", "readlink", "sed", "xargs", "timeout", "stat", "find")
PLAN = replace(GPU_PLAN, architectures=("x86_64", "aarch64"))
SETTINGS = ContainerSettings("Demo", "demo", FromIndex("0.1.0"))

RUNTIME = {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}, "runc": {"path": "runc"}}
DEVICES = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}, {"Source": "cdi", "ID": "nvidia.com/gpu=all"}]
HOOK = "usr/bin/nvidia-container-runtime-hook"
NO_TOOLKIT = ("dev/nvidia0", "dev/nvidiactl")
GPU = (*NO_TOOLKIT, HOOK)
WSL = ("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1", HOOK)
SPEC = "etc/cdi/nvidia.yaml"
MOVED = (
    *("/dev/", "/proc/driver", "/usr/lib/wsl", "/etc/cdi", "/etc/nv_tegra_release", "/etc/nvidia-container-runtime"),
    *("/var/run/cdi", "/usr/bin", "/usr/local/bin", "/tmp/.X11-unix"),
)
"""Where the script looks on a host."""


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
    script: str = ".devcontainer/gpu.sh"
    arguments: tuple[str, ...] = ()
    has_devkit: bool = False
    """Whether the script is the one that devkit on this host runs in the place of the project's."""

    @property
    def folder(self) -> Path:
        return self.root / self.name / ".devcontainer"

    @property
    def env_file(self) -> Path:
        return self.folder / ".env"

    def prepare(self) -> None:
        """Give it the tools of every Unix, and nothing else."""
        (self.root / "bin").mkdir()
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.root / "bin" / tool).symlink_to(found)

    def has(self, *paths: str) -> None:
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text("kind: nvidia.com/gpu\n")
            (self.root / path).chmod(0o755)

    def program(self, name: str, *lines: str) -> None:
        file = self.root / "bin" / name
        file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        file.chmod(0o755)

    def program_instead(self, name: str, *lines: str) -> None:
        """The same, in place of the real one."""
        (self.root / "bin" / name).unlink()
        self.program(name, *lines)

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
        script = str(self.root / self.name / self.script)
        argv = [shutil.which(self.shell), *(["sh"] if self.shell == "busybox" else []), script, *self.arguments]
        folders = ("bin", "usr/bin", "usr/local/bin")
        env = {"PATH": ":".join(str(self.root / each) for each in folders), **self.environ}
        return subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=60)

    def run(self) -> str:
        """Run the script; it must succeed. Returns the one line it printed."""
        done = self.start()
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1, done.stdout
        return done.stdout

    def settings(self) -> dict[str, str]:
        """What Compose reads in .env."""
        lines = [line for line in self.env_file.read_text().splitlines() if line and not line.startswith("#")]
        return dict(line.partition(" #")[0].split("=", 1) for line in lines)

    def overlay(self) -> dict[str, Any]:
        """The service that Compose lays below, as docker-compose.yml names it; {} where that is its own stand-in."""
        name = self.settings().get("DEVKIT_GPU_FILE")
        if name is None:
            assert not (self.folder / "gpu.local.yml").exists()
            return {}
        found = yaml.safe_load((self.folder / f"{name}.yml").read_text())["services"]["gpu"]
        assert isinstance(found, dict)
        return found

    def mode(self) -> str:
        """The way to a GPU that the service says it has."""
        named = dict(
            line.split("=", 1) for line in self.overlay().get("environment", ["DEVKIT_GPU=cpu"]) if "=" in line
        )
        return named["DEVKIT_GPU"]


def place(made: Machine, plan: Plan, settings: ContainerSettings) -> None:
    """Write what Compose and the host read, the script with this machine's own / in the place of the real one."""
    made.folder.mkdir(parents=True, exist_ok=True)
    for artifact in render_devcontainer_compose(plan, settings):
        (made.root / made.name / artifact.path).write_bytes(artifact.content)
    script = made.folder / "gpu.sh"
    modes = find_gpu_modes(plan, settings.engine)
    text = render_gpu_script(
        vendor=plan.vendor.value,
        modes=modes,
        engine=settings.engine,
        slug=settings.slug,
        devices=settings.devices,
        is_graphical=plan.is_graphical,
    )
    script.write_text(moved(text if made.has_devkit else script.read_text(), made.root))


def write_overlay(plan: Plan, settings: ContainerSettings, mode: str, folder: Path, **environ: str) -> dict[str, Any]:
    """The service of gpu.local.yml, as the script writes it in `folder` for a mode that the user names."""
    made = Machine(folder, {"DEVKIT_GPU": mode, **environ}, name="p")
    made.prepare()
    place(made, plan, settings)
    made.run()
    return made.overlay()


def moved(text: str, root: Path) -> str:
    """The script's text with this machine's own / in the place of the real one."""
    for path in MOVED:
        # A space in the folder's name would split the patterns, so tmp_path must have none.
        text = text.replace(f" {path}", f" {root}{path}")
    return text
