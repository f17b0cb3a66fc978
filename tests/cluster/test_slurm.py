"""The exported script in a real Slurm: exit codes, requeues and their end, arrays.

All jobs are there at once, because one that is queued again waits some seconds for its old credentials to expire.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from .exporting import Job, export, stand_in
from .slurm import Cluster, until

pytestmark = pytest.mark.full

FOREVER = "for second in $(seq 600); do sleep 0.1; done"
UNTIL_TOLD = f'if [ "$starts" -gt 1 ]; then exit 0; fi; {FOREVER}'


@dataclass(frozen=True)
class Story:
    """What devkit does in a job, how the job is exported, and what happens to it once it runs."""

    does: str
    flags: tuple[str, ...] = ()
    event: Callable[[Cluster, str], object] | None = None


STORIES = {
    "fails": Story("exit 7"),
    "is killed": Story('if [ "$starts" -gt 1 ]; then exit 0; fi; kill -KILL $$'),
    "ends well": Story("exit 0"),
    "told to stop": Story(UNTIL_TOLD, event=lambda cluster, number: cluster.run("scancel", "--signal=TERM", number)),
    "told by USR1": Story(UNTIL_TOLD, event=lambda cluster, number: cluster.run("scancel", "--signal=USR1", number)),
    "told past its nodes": Story(
        UNTIL_TOLD, event=lambda cluster, number: cluster.run("scancel", "--batch", "--signal=USR1", number)
    ),
    "requeued": Story(UNTIL_TOLD, event=lambda cluster, number: cluster.run("scontrol", "requeue", number)),
    "canceled": Story(FOREVER, event=lambda cluster, number: cluster.run("scancel", number)),
    "must not be requeued": Story(
        UNTIL_TOLD, ("--set", "requeues=0"), lambda cluster, number: cluster.run("scancel", "--signal=TERM", number)
    ),
    "gets nowhere": Story('ln -sfn step-5 "$output/latest"; exit 75', ("--set", "requeues=2")),
    "gets on": Story(
        'if [ "$starts" -gt 3 ]; then exit 0; fi; ln -sfn "step-$starts" "$output/latest"; exit 75',
        ("--set", "requeues=1"),
    ),
}


@dataclass(frozen=True)
class Played:
    """A story's job."""

    job: Job
    number: str


@pytest.fixture(scope="module")
def played(cluster, project, tmp_path_factory):
    """Every story's job, submitted, and what happens to it, happened."""
    found = {}
    for name, story in STORIES.items():
        folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
        job = export(project, folder, *story.flags, venv=stand_in(folder / "venv", story.does))
        found[name] = Played(job, job.submit(cluster))
    for name, story in STORIES.items():
        if story.event is not None:
            until(found[name].job.starts, f"a start of what is {name}: {found[name].job.log()}")
            story.event(cluster, found[name].number)
    return found


def ended(cluster, story, *states):
    """State, exit code and number of requeues of a job that will not run any more."""
    shown = cluster.reach(story.number, "COMPLETED", "FAILED", "CANCELLED")
    return shown["JobState"], shown["ExitCode"], int(shown["Restarts"])


def test_the_exit_code_of_a_failing_run_is_the_jobs_and_it_is_not_queued_again(cluster, played):
    assert ended(cluster, played["fails"]) == ("FAILED", "7:0", 0)
    assert len(played["fails"].job.starts()) == 1


def test_a_run_that_ends_well_is_completed(cluster, played):
    assert ended(cluster, played["ends well"]) == ("COMPLETED", "0:0", 0)


def test_a_process_that_is_killed_goes_on_from_its_last_checkpoint(cluster, played):
    assert ended(cluster, played["is killed"]) == ("COMPLETED", "0:0", 1)


@pytest.mark.parametrize("how", ["told to stop", "told by USR1", "told past its nodes", "requeued"])
def test_an_interrupted_job_is_queued_again_and_goes_on(cluster, played, how):
    story = played[how]
    until(lambda: cluster.job(story.number)["Restarts"] == "1", f"a requeue: {story.job.log()}")
    assert ended(cluster, story) == ("COMPLETED", "0:0", 1)
    assert len(story.job.starts()) == 2


def test_a_canceled_job_saves_and_stays_canceled(cluster, played):
    story = played["canceled"]
    until((story.job.output / "latest").is_symlink, "a checkpoint")
    until(lambda: not cluster.run("squeue", "--noheader", "--jobs", story.number, expect=None).stdout, "its end")
    state, _, restarts = ended(cluster, story)
    assert (state, restarts) == ("CANCELLED", 0)


def test_a_job_that_must_not_be_queued_again_leaves_with_the_code_that_says_try_again(cluster, played):
    story = played["must not be requeued"]
    assert ended(cluster, story) == ("FAILED", "75:0", 0)
    assert "submit the script again to resume" in story.job.log()


def test_a_job_that_always_stops_at_the_same_checkpoint_is_given_up(cluster, played):
    story = played["gets nowhere"]
    assert ended(cluster, story) == ("FAILED", "1:0", 2)
    assert len(story.job.starts()) == 3
    assert "stopped 2 times at the same checkpoint (step-5); not queued again" in story.job.log()


def test_a_job_that_comes_further_each_time_is_not_given_up(cluster, played):
    assert ended(cluster, played["gets on"]) == ("COMPLETED", "0:0", 3)


# Slurm looks at time limits twice a minute.
def test_a_job_whose_time_ends_is_warned_and_gets_the_same_time_again(cluster, project, tmp_path):
    venv = stand_in(tmp_path / "venv", UNTIL_TOLD)
    job = export(project, tmp_path, "--time", "2m", "--set", "grace=100s", venv=venv)
    number = job.submit(cluster)
    until(lambda: cluster.job(number)["Restarts"] == "1", f"a requeue: {job.log()}")
    shown = cluster.reach(number, "COMPLETED", "FAILED", "TIMEOUT")
    assert (shown["JobState"], shown["TimeLimit"]) == ("COMPLETED", "00:02:00")
