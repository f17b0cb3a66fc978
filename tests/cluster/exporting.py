"""Batch scripts for the tests' cluster, exported by the command line, and a stand-in for devkit that takes no time."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from .conftest import BIN, ROOT, devkit
from .slurm import Cluster

STAND_IN = """\
#!/bin/bash
# What `devkit finetune` promises a scheduler, without any training: each start leaves a line.
if [ "$1" = launch ]; then exec python -m devkit "$@"; fi
while [ $# -gt 0 ]; do
    if [ "$1" = --output ]; then output=$2; fi
    if [ "$1" = --rank ]; then rank=$2; fi
    shift
done
told="$(env | grep ^PET_ | sort | tr '\\n' ' ')"
echo "start gpus=${CUDA_VISIBLE_DEVICES:-none} rank=${rank:-none} node=${SLURM_NODEID:-none} $told" >>"$output/starts"
starts=$(wc -l <"$output/starts")
trap 'ln -sfn "step-$starts" "$output/latest"; exit 75' TERM USR1
__BODY__
"""


@dataclass(frozen=True)
class Job:
    """An exported script and the folder that it keeps its output in."""

    script: Path
    output: Path
    project: Path

    def submit(self, cluster: Cluster, *options: str) -> str:
        """The number of the job, submitted from the project as people do it."""
        return cluster.submit(self.script, *options, cwd=self.project, env={"WORK": str(self.output.parent)})

    def starts(self, of: str = "") -> list[str]:
        """The lines that the stand-in left, one for each start."""
        file = self.output / of / "starts"
        return file.read_text(encoding="ascii").splitlines() if file.is_file() else []

    def steps(self, of: str = "") -> list[dict[str, object]]:
        """The steps that a real run recorded."""
        file = self.output / of / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        return [event for event in map(json.loads, lines) if event["event"] == "step"]

    def log(self) -> str:
        """All that the job said."""
        return "".join(each.read_text(errors="replace") for each in sorted(self.output.parent.glob("log-*")))


def export(project: Path, folder: Path, *flags: str, venv: Path | None = None) -> Job:
    """Export the project's job into a folder of its own, which the cluster knows as $WORK and keeps its storage in."""
    settings = ["--settings", "run.toml"] if "--settings" not in flags else []
    places = [word for role in ("models", "checkpoints") for word in (f"--{role}", f"$WORK/{role}")]
    choices = (project / "devkit.toml").read_bytes()
    devkit(
        *("export", "slurm", project, "--flavor", "none", "--venv", str(venv or BIN.parent)),
        *(
            "--output",
            folder / "job",
            f"--sbatch=--output={folder}/log-%j-%a.txt",
            "--set",
            "cpus=1",
            "--set",
            "memory=1Gi",
            "--set",
            "grace=60s",
        ),
        *(*places, *settings, *flags, "--yes"),
    )
    # It keeps what was typed, for the next time; here every time is the first.
    (project / "devkit.toml").write_bytes(choices)
    return Job(folder / "job/job.sbatch", folder / "checkpoints", project)


def stand_in(folder: Path, body: str) -> Path:
    """A Python environment whose devkit does `body`."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/activate").write_text(f"PATH='{folder}/bin':$PATH\n", encoding="utf-8")
    program = folder / "bin/devkit"
    program.write_text(STAND_IN.replace("__BODY__", body), encoding="utf-8")
    program.chmod(0o755)
    # The launcher is devkit's own.
    python = folder / "bin/python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return folder
