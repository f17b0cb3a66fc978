"""A project with a generated dev container, and its clones on teammates' machines."""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from . import image, tools
from .cache import step
from .commands import environment, run
from .daemon import Engine
from .wheels import pins_of

DEVKIT = (sys.executable, "-m", "devkit")
PLAN = ("--torch", tools.TORCH, "--python", tools.CONTAINER_PYTHON, "--vendor", "cpu")
"""Wheels for the CPU, as no CUDA is here."""
GPU_PLAN = ("--vendor", "nvidia", "--driver", "580.95.05", "--gpu", "L4", "--machine", "aarch64")
"""For Arm, so that the files hold a Jetson's way to pass on a GPU too."""
SERVICE = "dev"
GIT = (
    "git",
    "-c",
    "safe.directory=*",
    "-c",
    "user.name=Dev",
    "-c",
    "user.email=dev@example.org",
    "-c",
    "init.defaultBranch=main",
)


@dataclass(frozen=True)
class Committed:
    """What a developer committed: the folder, the base image that its Dockerfile names, and the wheels beside it."""

    folder: Path
    base_image: str
    wheelhouse: Path


@dataclass(frozen=True)
class Clone:
    """A teammate's copy of the project, on a machine with `engine`."""

    folder: Path
    engine: Engine

    @property
    def compose_file(self) -> Path:
        """The generated Compose file."""
        return self.folder / ".devcontainer/docker-compose.yml"

    def compose(self, *words: str, env: Mapping[str, str] = {}, deadline_s: float = 900.0) -> str:
        """What `docker compose …` printed."""
        argv = ["docker", "compose", "--file", self.compose_file, *words]
        return run(argv, env={**self.engine.env, **env}, cwd=self.folder, deadline_s=deadline_s).stdout

    def look(self) -> str:
        """Run the host script, as a developer with plain Compose does, and return what it said."""
        done = run(self.engine.on_host("sh", ".devcontainer/gpu.sh"), env=self.engine.env, cwd=self.folder)
        return done.stdout + done.stderr

    def inside(self, *words: str, deadline_s: float = 300.0) -> str:
        """What a program printed in the running container."""
        return self.compose("exec", "-T", SERVICE, *words, deadline_s=deadline_s)

    def container(self) -> str:
        """The running container's id."""
        return self.compose("ps", "--quiet", SERVICE).strip()

    def without_packages(self) -> None:
        """Leave out what pip installs, for tests of the user and the files: it takes seconds instead of minutes."""
        dockerfile = self.folder / ".devcontainer/Dockerfile"
        text = dockerfile.read_text(encoding="utf-8")
        instruction = re.compile(r"^RUN (?:[^\n]*\\\n)*[^\n]*\n", re.MULTILINE)

        def leave_out(found: re.Match[str]) -> str:
            if "groupadd" in found[0]:  # the environment stays, without uv
                return found[0].partition(" \\\n    && pip install")[0].rstrip() + "\n"
            return "" if "pip install" in found[0] or "torch/version.py" in found[0] else found[0]

        light = instruction.sub(leave_out, text)
        assert light.count("\nRUN ") < text.count("\nRUN ")
        dockerfile.write_text(light, encoding="utf-8")

    def changed(self) -> str:
        """What git would show as changed or new since the clone."""
        return run([*GIT, "status", "--porcelain"], cwd=self.folder).stdout


def init(folder: Path, *words: str | Path) -> None:
    """Run `devkit init` on `folder`."""
    # A lock is made from an index of the tests; nothing else asks one.
    offline = "0" if {"--lock", "--lock-only"} & {*words} else "1"
    run([*DEVKIT, "init", folder, "--yes", *words], env=environment(NO_COLOR="1", UV_OFFLINE=offline))


def commit(folder: Path, certificate: Path) -> Committed:
    """Plan, write and commit a project that builds without a package index, behind a company's proxy."""
    wheels = wheels_for(folder / "draft")
    origin = folder / "quickstart"
    with step("devkit init"):
        init(origin, *PLAN, "--ca-certificate", certificate, "--wheelhouse", wheels)
        pass_on_gpus(origin, folder / "with-gpu" / origin.name)
    run([*GIT, "init", "--quiet"], cwd=origin)
    run([*GIT, "add", "--all"], cwd=origin)
    run([*GIT, "commit", "--quiet", "--message", "Add a dev container"], cwd=origin)
    return Committed(origin, image.base_image_of(origin / ".devcontainer/Dockerfile"), wheels)


def pass_on_gpus(origin: Path, planned: Path, *words: str) -> None:
    """Let the project pass on GPUs as one that is planned for them does, around the image for the CPU."""
    shutil.copytree(origin, planned, symlinks=True)
    init(planned, *GPU_PLAN, *words, "--force")
    for name in ("gpu.sh", "docker-compose.yml"):
        shutil.copy2(planned / ".devcontainer" / name, origin / ".devcontainer" / name)


def wheels_for(draft: Path) -> Path:
    """Wheels for what the generated files install, and for devkit itself."""
    init(draft, *PLAN)
    pins = [f"{name}=={version}" for name, version in pins_of(draft / ".devcontainer/Dockerfile").items()]
    own = [line for line in metadata.requires("devkit-gpu") or [] if "extra ==" not in line]
    return tools.wheelhouse([*pins, *own])


def clone(committed: Committed, folder: Path, engine: Engine) -> Clone:
    """A teammate's copy: what was committed, and the wheels that git ignores."""
    shutil.copytree(committed.folder, folder, symlinks=True)
    wheels = f"DEVKIT_WHEELHOUSE={committed.wheelhouse}\n"
    (folder / ".devcontainer/.env").write_text(wheels, encoding="utf-8")
    # A developer's, whoever runs the tests: the container's user takes the ids of the folder's owner.
    os.chown(folder, 1000, 1000)
    return Clone(folder, engine)


def fingerprint(folder: Path) -> dict[str, str]:
    """The hash of every committed file."""
    names = run([*GIT, "ls-files"], cwd=folder).stdout.split("\n")
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names if name}
