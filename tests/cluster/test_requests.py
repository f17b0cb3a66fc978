"""What Slurm says to the exported requests: GPUs in either form, and every kind of script."""

import re

import pytest

from .conftest import devkit
from .exporting import export, stand_in

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def with_gpus(project, tmp_path_factory):
    """The same project, with a plan for eight H100."""
    folder = tmp_path_factory.mktemp("gpus")
    (folder / "run.toml").write_bytes((project / "run.toml").read_bytes())
    devkit("init", folder, "--gpu", "H100", "--driver", "580.65.06", "--yes")
    return folder


@pytest.mark.parametrize("request_form", ["gres", "gpus-per-node"])
@pytest.mark.parametrize("kind", ["h100", "any"])
def test_a_job_sees_the_gpus_that_it_asked_for_and_no_others(cluster, with_gpus, tmp_path, request_form, kind):
    flags = ("--gpu", "H100", "--gpus", "2", "--set", f"gpu_request={request_form}", "--gpu-type", kind)
    # Two processes share the node's work: the stand-in leaves through torchrun's place as devkit would.
    job = export(with_gpus, tmp_path, *flags, venv=stand_in(tmp_path / "venv", "exit 0"))
    (tmp_path / "venv/bin/torchrun").symlink_to("devkit")
    ended = cluster.reach(job.submit(cluster), "COMPLETED", "FAILED")
    assert ended["JobState"] == "COMPLETED", job.log()
    assert [line.split()[1] for line in job.starts()] == ["gpus=0,1"]


def test_torchrun_is_told_on_every_node_where_to_meet_and_which_node_it_is(cluster, project, tmp_path):
    venv = stand_in(tmp_path / "venv", "exit 0")
    (venv / "bin/torchrun").symlink_to("devkit")
    job = export(project, tmp_path, "--nodes", "2", venv=venv)
    number = job.submit(cluster)
    assert cluster.reach(number, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", job.log()
    port = f"PET_MASTER_PORT={20000 + int(number) % 10000} PET_NNODES=2"
    told = sorted(re.findall(r"PET_MASTER_ADDR=.*PET_NPROC_PER_NODE=1", line)[0] for line in job.starts())
    assert told == [f"PET_MASTER_ADDR=one {port} PET_NODE_RANK={rank} PET_NPROC_PER_NODE=1" for rank in (0, 1)]


@pytest.mark.parametrize(
    "flags",
    [["--gpus", "9"], ["--gpus", "1", "--set", "gpu_type=a100"], ["--nodes", "3"], ["--partition", "nowhere"]],
    ids=["more than a node has", "a type that none has", "more nodes than there are", "a partition that is none"],
)
def test_what_no_node_has_is_refused_before_it_is_queued(cluster, with_gpus, tmp_path, flags):
    job = export(with_gpus, tmp_path, "--gpu", "H100", *flags, venv=stand_in(tmp_path / "venv", "exit 0"))
    refused = cluster.run("sbatch", "--test-only", job.script, cwd=tmp_path, expect=1)
    assert "allocation failure" in refused.stderr or "invalid partition" in refused.stderr


@pytest.mark.parametrize("flavor", ["apptainer", "pyxis", "none"])
@pytest.mark.parametrize("extra", [[], ["--nodes", "2", "--gpus", "8"]])
def test_every_kind_of_script_is_one_that_slurm_would_start(cluster, with_gpus, tmp_path, flavor, extra):
    everything = (
        "--account",
        "team",
        "--sbatch=--mail-user=me@example.org",
        "--sbatch=--constraint=gpupod",
        "--sbatch=--nice=10",
    )
    words = ("--settings", "run.toml", "--image", "registry.example/team/image:1", "--gpu", "H100", "--flavor", flavor)
    choices = (with_gpus / "devkit.toml").read_bytes()
    devkit("export", "slurm", with_gpus, "--output", tmp_path / "out", *words, *everything, *extra, "--yes")
    (with_gpus / "devkit.toml").write_bytes(choices)
    # No node has that feature but those that say so: Slurm reads all options before it looks for one.
    said = cluster.run("sbatch", "--test-only", "--constraint=", tmp_path / "out/job.sbatch", cwd=tmp_path).stderr
    assert "to start at" in said
