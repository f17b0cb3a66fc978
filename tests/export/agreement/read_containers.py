"""What the dev container and run.sh of one machine say, read back."""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from devkit.export.task import COMPILE_CACHE, HUB_CACHE, Task, VolumeRole
from devkit.render.container.settings import ContainerSettings
from devkit.render.project import render_devcontainer
from devkit.solver.plan import Plan
from tests.export.launchers.test_docker import prepared

from .seen import COMPILED, TOKEN, Seen

_SIZES = {"gb": 1 << 30, "g": 1 << 30, "mb": 1 << 20, "": 1}


def of_dev_container(plan: Plan, settings: ContainerSettings, task: Task) -> Seen:
    """The service that editors attach to. Where gpu.sh decides, its own line is run."""
    files = {each.path: each.content.decode() for each in render_devcontainer(plan, settings)}
    service = yaml.safe_load(files[".devcontainer/docker-compose.yml"])["services"]["dev"]
    assert service["build"]["context"] == "."
    assert ".devcontainer/Dockerfile" in files and "dockerfile" not in service["build"]
    overlay = _overlay(files[".devcontainer/gpu.sh"], "nvidia" if task.accelerator.count else "cpu")
    devices = overlay.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
    roles = {HUB_CACHE: VolumeRole.MODELS.value, COMPILE_CACHE: COMPILED, task.workspace: VolumeRole.DATA.value}
    paths = [volume.removesuffix(":z").rpartition(":")[2] for volume in service["volumes"]]
    defaults = (re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", entry) for entry in service["environment"])
    variables = dict(entry.split("=", 1) for entry in defaults if "=" in entry)
    return Seen(
        image="built from the Dockerfile here",
        command=tuple(service["command"]),
        environment=variables,
        gpus=task.accelerator.count if devices and devices[0]["count"] == "all" else 0,
        nodes=1,
        mounts={path: roles.get(path, path) for path in paths},
        shm_bytes=min(task.shm_bytes, _limit(service["shm_size"])),
        stop=service.get("stop_signal", "SIGTERM"),
        grace_s=None,
        folder=service["working_dir"],
    )


def _overlay(script: str, mode: str) -> dict[str, Any]:
    """The service that gpu.sh writes for this way to pass on GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "gpu.sh").write_text(script, encoding="utf-8")
        environ = {**os.environ, "DEVKIT_GPU": mode}
        subprocess.run(["sh", f"{folder}/gpu.sh"], env=environ, check=True, capture_output=True)
        written = Path(folder, "gpu.local.yml")
        found: dict[str, Any] = yaml.safe_load(written.read_text())["services"]["gpu"] if written.exists() else {}
        return found


def _limit(shm_size: str) -> int:
    """The limit of shared memory unless the user sets another, which holds what up to eight GPUs need."""
    number, unit = re.fullmatch(r"\$\{DEVKIT_SHM_SIZE:-(\d+)([a-z]*)\}", shm_size).groups()
    return int(number) * _SIZES[unit]


def of_script(task: Task, scratch: Path) -> Seen:
    """What run.sh tells a stand-in for the docker command to create."""
    place = prepared(scratch, task)
    assert place.run().returncode == 0
    (words,) = place.calls("create")
    return _of_create(words, task)


def _of_create(words: list[str], task: Task) -> Seen:
    at = words.index(task.image)
    flags, rest = words[1:at], words[at + 1 :]

    def values(name: str) -> list[str]:
        return [flags[place + 1] for place, word in enumerate(flags) if word == name] + [
            word.partition("=")[2] for word in flags if word.startswith(f"{name}=")
        ]

    mounts = [dict(part.partition("=")[::2] for part in each.split(",")) for each in values("--mount")]
    entry = values("--entrypoint")
    gpus = values("--gpus")
    return Seen(
        image=words[at],
        command=(*entry, *rest),
        environment=dict(each.split("=", 1) for each in values("--env")),
        gpus=int(gpus[0].strip('"').removeprefix("count=")) if gpus and gpus[0] != "all" else len(values("--device")),
        nodes=1,
        mounts={
            each.get("target", each.get("dst", "")): _role(each.get("source", each.get("src", ""))) for each in mounts
        },
        shm_bytes=int(values("--shm-size")[0]),
        stop=values("--stop-signal")[0],
        grace_s=int(values("--stop-timeout")[0]),
        folder=values("--workdir")[0],
    )


def _role(source: str) -> str:
    """By the end of a volume's name, as this target calls those it makes."""
    end = source.rpartition("-")[2]
    return {"token": TOKEN, "cache": COMPILED, "compiled": COMPILED}.get(end, end)
