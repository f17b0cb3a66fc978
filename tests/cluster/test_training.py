"""Real training under a real Slurm: interrupted in every way, it ends as if nothing had been."""

import math

import pytest

from .exporting import export
from .slurm import until

pytestmark = [pytest.mark.full, pytest.mark.workload]

STEPS = 200
LONG_RUN = f"""\
model = "model"
data = ["text.jsonl"]
output = "tuned"
steps = {STEPS}
batch = 4
micro_batch = 4
learning_rate = 0.001
save_every = 1000
"""


@pytest.fixture(scope="module")
def settings(trainable):
    (trainable / "long.toml").write_text(LONG_RUN, encoding="ascii")
    return trainable


def trained(job):
    """The loss of each step; every step is there once."""
    found = {step["step"]: step["loss"] for step in job.steps()}
    assert list(found) == list(range(1, STEPS + 1))
    return list(found.values())


@pytest.fixture(scope="module")
def uninterrupted(cluster, settings, tmp_path_factory):
    job = export(settings, tmp_path_factory.mktemp("straight"), "--settings", "long.toml")
    number = job.submit(cluster)
    assert cluster.reach(number, "COMPLETED", "FAILED")["Restarts"] == "0", job.log()
    return trained(job)


def test_a_run_that_is_warned_preempted_and_queued_again_ends_with_the_very_losses_of_one_that_is_not(
    cluster, settings, tmp_path, uninterrupted
):
    job = export(settings, tmp_path, "--settings", "long.toml")
    number = job.submit(cluster)
    interruptions = (
        (5, lambda: urgent(cluster, settings)),
        (70, lambda: cluster.run("scancel", "--signal=TERM", number)),
        (140, lambda: cluster.run("scontrol", "requeue", number)),
    )
    for turn, (step, interrupt) in enumerate(interruptions, 1):
        cluster.reach(number, "RUNNING")
        until(lambda step=step: len(job.steps()) >= step, f"step {step}: {job.log()}")
        interrupt()
        until(lambda turn=turn: cluster.job(number)["Restarts"] == str(turn), f"requeue {turn}: {job.log()}")
    ended = cluster.reach(number, "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("COMPLETED", str(len(interruptions)), "0:0")
    assert trained(job) == uninterrupted
    assert (job.output / "adapter").is_dir()


def urgent(cluster, settings):
    """A job that takes both nodes from whatever runs on them, for a moment."""
    everything = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")
    cluster.run("sbatch", "--wait", *everything, cwd=settings)


def test_two_nodes_train_together_stop_together_and_go_on_together(cluster, settings, tmp_path, uninterrupted):
    job = export(settings, tmp_path, "--settings", "long.toml", "--nodes", "2")
    number = job.submit(cluster)
    until(lambda: len(job.steps()) >= 5, f"step 5: {job.log()}")
    assert cluster.job(number)["NumNodes"] == "2"
    cluster.run("scancel", "--signal=TERM", number)
    until(lambda: cluster.job(number)["Restarts"] == "1", f"a requeue: {job.log()}")
    ended = cluster.reach(number, "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), job.log()
    assert all(math.isclose(*pair, rel_tol=1e-3) for pair in zip(trained(job), uninterrupted, strict=True))
