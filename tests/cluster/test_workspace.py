"""The dev container as a workspace in an allocation: a shell with GPUs, a second terminal, a job without one, idleness."""

import sys

import pytest

from .conftest import ROOT, devkit
from .slurm import until

pytestmark = pytest.mark.full

FLAGS = ("--gpu", "H100", "--gpus", "2", "--gpu-type", "any", "--cpus", "1", "--memory", "1Gi")
APPTAINER = '#!/bin/bash\nwhile [ "$1" != "$image" ]; do shift; done\nshift\nexec "$@"\n'
"""What follows the image's file runs as it is, and not in the image."""


@pytest.fixture(scope="module", params=["none", "apptainer"])
def folder(tmp_path_factory, request):
    """A project with workspace.sh, where `devkit` is this checkout's."""
    made = tmp_path_factory.mktemp("workspace") / "tide"
    made.mkdir()
    devkit("init", made, "--gpu", "H100", "--driver", "580.65.06", "--yes")
    program = made / "bin/devkit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m devkit "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (made / "bin/apptainer").write_text(APPTAINER, encoding="ascii")
    (made / "bin/apptainer").chmod(0o755)
    (made / "image.sif").touch()
    flavor = (
        "--flavor",
        request.param,
        *(["--image-file", made / "image.sif"] if request.param == "apptainer" else []),
    )
    setup = f"PATH='{program.parent}':$PATH"
    devkit("export", "slurm", made, "--workspace", "--idle", "4s", "--setup", setup, *FLAGS, *flavor, "--yes")
    return made


def enter(cluster, folder, typed, **variables):
    """What a terminal on the login node shows, and how it ends."""
    shell = "printf '%s\\n' \"$0\" | script -qefc 'bash deploy/slurm/workspace.sh' /dev/null"
    return cluster.run("bash", "-c", shell, typed, cwd=folder, env=variables, expect=None)


def test_a_terminal_in_the_allocation_sees_its_gpus_and_ends_with_its_shell(cluster, folder):
    shown = enter(cluster, folder, 'echo "gpus=$CUDA_VISIBLE_DEVICES on $(tty) in $PWD"; exit 3')
    assert "gpus=0,1 on /dev/pts/" in shown.stdout
    assert f" in {folder}" in shown.stdout
    assert shown.returncode == 3
    until(lambda: not cluster.run("squeue", "--noheader").stdout, "an empty queue")


def test_a_job_without_a_terminal_takes_a_second_one_and_ends_when_nobody_works(cluster, folder):
    script = folder / "deploy/slurm/workspace.sh"
    number = cluster.run("sbatch", "--parsable", script, "sleep", "900", cwd=folder).stdout.strip()
    cluster.reach(number, "RUNNING")
    shown = enter(cluster, folder, 'echo "job=$SLURM_JOB_ID gpus=$CUDA_VISIBLE_DEVICES"; exit', SLURM_JOB_ID=number)
    assert f"job={number} gpus=0,1" in shown.stdout
    assert cluster.reach(number, "COMPLETED", "FAILED", "TIMEOUT")["JobState"] == "COMPLETED"
    assert "idle for 4 s" in (folder / f"slurm-{number}.out").read_text()
