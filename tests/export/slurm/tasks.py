"""Tasks to write down for Slurm, and a machine without Slurm whose programs record how they are called."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from devkit.export.slurm import SlurmSettings, render_slurm
from devkit.export.task import HUB_CACHE, Task, VolumeRole, build_node_command
from devkit.export.values import GIB
from devkit.workload.finetune.settings import FinetuneSettings
from tests.export.launchers.tasks import ONE
from tests.export.launchers.tasks import gpus as gpus_of

RECORDER = f"""\
#!{sys.executable}
import json, os, subprocess, sys
from pathlib import Path
name = Path(sys.argv[0]).name
call = {{"name": name, "words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}}
with Path(os.environ["CALLS"]).open("a") as file:
    file.write(json.dumps(call) + "\\n")
if name == "scontrol" and sys.argv[1] == "show":
    print("first\\nsecond")
if name == "srun":
    at = sys.argv.index("bash")
    nodes = int(next(word for word in sys.argv if word.startswith("--nodes=")).partition("=")[2])
    for node in range(nodes):
        code = subprocess.run(sys.argv[at:], env=dict(os.environ) | {{"SLURM_NODEID": str(node)}}).returncode
    sys.exit(code)
sys.exit(int(os.environ.get("CODE", "0")) if name in ("apptainer", "singularity", "devkit", "torchrun", "python") else 0)
"""


def task(finetune: FinetuneSettings | None = None, *, gpus: int = 1, **changes: object) -> Task:
    """A task of one node with one A100, or with what is said otherwise."""
    settings = finetune or FinetuneSettings(model="a/model", data=("chats.jsonl",), output=Path("tuned"))
    workspace = "/workspaces/my-project"
    output = str(settings.output) if settings.output.is_absolute() else f"{workspace}/{settings.output}"
    paths = {VolumeRole.MODELS: HUB_CACHE, VolumeRole.DATA: workspace, VolumeRole.CHECKPOINTS: output}
    made = replace(
        ONE,
        name="my-job",
        project="my-project",
        image="registry.example/team/image:1",
        command=build_node_command(settings, is_distributed=int(changes.get("nodes", 1)) * max(1, gpus) > 1),
        workspace=workspace,
        output=output,
        accelerator=gpus_of(gpus, "A100 80GB"),
        memory_bytes=24 * GIB,
        volumes=tuple(replace(each, path=paths[each.role]) for each in ONE.volumes),
    )
    return replace(made, **changes)


def with_folders(made: Task, **sources: str) -> Task:
    """The same task with storage by these names."""
    return replace(
        made, volumes=tuple(replace(each, source=sources.get(str(each.role), each.source)) for each in made.volumes)
    )


def script_of(made: Task, **settings: object) -> str:
    """The text of job.sbatch."""
    return files_of(made, **settings)["job.sbatch"]


def files_of(made: Task, **settings: object) -> dict[str, str]:
    """Every file that is written, by its path."""
    rendered = render_slurm(made, SlurmSettings(**settings), "deploy/slurm")
    return {each.path: each.content.decode() for each in rendered.artifacts}


PROGRAMS = (*("srun", "scancel", "scontrol", "apptainer", "singularity"), *("devkit", "torchrun", "python", "python3"))


class Login:
    """A machine with recorders in the place of Slurm's programs, Apptainer and devkit, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self._calls = folder / "calls"
        self._bin = folder / "bin"
        for each in (self.home / "devkit", self.project, self._bin):
            each.mkdir(parents=True)
        (self.home / "devkit/my-project.sif").touch()
        for name in PROGRAMS:
            (self._bin / name).write_text(RECORDER, encoding="utf-8")
            (self._bin / name).chmod(0o755)

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a batch script as Slurm does: its file is somewhere else, and little is set."""
        path = self.home / "spooled"
        path.write_text(script, encoding="utf-8")
        variables = {"PATH": f"{self._bin}:{os.environ['PATH']}", "HOME": str(self.home), "CALLS": str(self._calls)}
        variables |= {"SLURM_JOB_ID": "12", "SLURM_SUBMIT_DIR": str(self.project)} | environment
        return subprocess.run(["bash", path], env=variables, capture_output=True, text=True, timeout=60, check=False)

    def calls(self, name: str) -> list[dict[str, object]]:
        """How a program was called: words, environment and folder, once for each call."""
        lines = self._calls.read_text(encoding="utf-8").splitlines() if self._calls.is_file() else []
        return [call for call in map(json.loads, lines) if call["name"] == name]
