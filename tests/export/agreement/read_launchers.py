"""What SkyPilot's and Daytona's files say, read back; their scripts are run with recorders."""

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from devkit.export import daytona, skypilot
from devkit.export.task import Task

from .seen import FIRST, Seen

RECORD = '#!/bin/sh\n{ printf "%s\\0" "$0" "$@"; printf "\\036\\0"; env -0; } >"$RECORD"\n'


def _text(render: Any, settings: type, task: Task, folder: str, path: str) -> str:
    rendered = render(task, settings(), folder)
    return next(each.content.decode() for each in rendered.artifacts if each.path == path)


def _ran(
    script: str, task: Task, scratch: Path, variables: dict[str, str]
) -> tuple[tuple[str, ...], dict[str, str], str]:
    """Command, environment and folder of what the script starts in the end."""
    (scratch / "bin").mkdir(parents=True)
    for name in ("devkit", "python"):
        (scratch / "bin" / name).write_text(RECORD)
        (scratch / "bin" / name).chmod(0o755)
    workspace = scratch / "workspace"
    workspace.mkdir()
    moved = script.replace(task.workspace, str(workspace)).replace("/home/dev/", f"{scratch}/home/")
    moved = moved.replace("/opt/venv/bin", str(scratch / "bin"))
    environment = {"PATH": f"{scratch / 'bin'}:/usr/bin:/bin", "RECORD": str(scratch / "record"), **variables}
    subprocess.run(["bash", "-c", moved], env=environment, check=True, capture_output=True, timeout=60)
    words, _, rest = (scratch / "record").read_text().partition("\0\x1e\0")
    own = [Path(words.split("\0")[0]).name, *words.split("\0")[1:]]
    environment = dict(each.partition("=")[::2] for each in rest.split("\0") if each)
    folder = environment["PWD"].replace(str(workspace), task.workspace)
    kept = {name for name, _ in task.environment}
    shown = {
        name: value.replace(f"{scratch}/home/", "/home/dev/")
        for name, value in environment.items()
        if name in kept or name.startswith(("PET_", "HF_"))
    }
    return tuple(own), shown, folder


def of_skypilot(task: Task, folder: str, scratch: Path) -> Seen:
    found = yaml.safe_load(_text(skypilot.render_skypilot, skypilot.SkypilotSettings, task, folder, "task.yaml"))
    environment = {
        **found["envs"],
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NODE_IPS": "first\nsecond",
        "SKYPILOT_NUM_NODES": "2",
    }
    command, variables, folder = _ran(found["run"], task, scratch, environment)
    options = found["config"]["docker"]["run_options"]
    resources = found["resources"]
    mounts = {
        path: "data" if source == "." else source["name"].rpartition("-")[2]
        for path, source in found["file_mounts"].items()
    }
    return Seen(
        image=resources["image_id"].removeprefix("docker:"),
        command=command,
        environment=_at_first(variables, task),
        gpus=next(iter(resources.get("accelerators", {"": 0}).values())),
        nodes=found["num_nodes"],
        mounts=mounts,
        shm_bytes=int(next(each for each in options if each.startswith("--shm-size=")).partition("=")[2]),
        stop="SIGTERM" if "--signal=TERM" in found["run"] else "",
        grace_s=int(re.search(r"--kill-after=(\d+)", found["run"])[1]),
        folder=folder,
    )


def of_daytona(task: Task, folder: str) -> Seen:
    text = _text(daytona.render_daytona, daytona.DaytonaSettings, task, folder, "run.py")
    values = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
    resources = {each.arg: each.value for each in values["RESOURCES"].keywords}
    known = {
        name: ast.literal_eval(values[name]) for name in ("IMAGE", "COMMAND", "ENVIRONMENT", "WORKSPACE", "GRACE_S")
    }
    assert 'tell(sandbox, "TERM")' in text
    return Seen(
        image=known["IMAGE"],
        command=tuple(known["COMMAND"]),
        environment=known["ENVIRONMENT"],
        gpus=ast.literal_eval(resources["gpu"]) if "gpu" in resources else 0,
        nodes=1,
        mounts={},
        shm_bytes=None,
        stop="SIGTERM",
        grace_s=known["GRACE_S"],
        folder=known["WORKSPACE"],
    )


def _at_first(variables: dict[str, str], task: Task) -> dict[str, str]:
    if task.nodes > 1:
        assert variables["PET_MASTER_ADDR"] == "first"
        return variables | {"PET_MASTER_ADDR": FIRST}
    return variables
