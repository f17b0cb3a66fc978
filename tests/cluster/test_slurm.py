"""The exported script in a real Slurm: exit codes, requeues and their end, arrays, GPUs."""

import re

import pytest

from .exporting import export, stand_in
from .slurm import until

FOREVER = "for second in $(seq 600); do sleep 0.1; done"


def submitted(cluster, job, *options):
    return cluster.submit(job.script, *options, cwd=job.script.parent)


def test_the_exit_code_of_a_failing_run_is_the_jobs_and_it_is_not_queued_again(cluster, project, tmp_path):
    job = export(project, tmp_path, venv=stand_in(tmp_path / "venv", "exit 7"))
    ended = cluster.reach(submitted(cluster, job), "FAILED", "COMPLETED")
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "7:0", "0")
    assert len(job.starts()) == 1


def test_a_run_that_ends_well_is_completed(cluster, project, tmp_path):
    job = export(project, tmp_path, venv=stand_in(tmp_path / "venv", "exit 0"))
    ended = cluster.reach(submitted(cluster, job), "FAILED", "COMPLETED")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0")


@pytest.mark.parametrize(
    "interrupt",
    [
        pytest.param(lambda cluster, number: cluster.run("scancel", "--signal=TERM", number), id="told to stop"),
        pytest.param(lambda cluster, number: cluster.run("scancel", "--signal=USR1", number), id="told by USR1"),
        pytest.param(
            lambda cluster, number: cluster.run("scontrol", "requeue", number), id="queued again by an operator"
        ),
    ],
)
def test_an_interrupted_job_is_queued_again_and_goes_on(cluster, project, tmp_path, interrupt):
    venv = stand_in(tmp_path / "venv", f'if [ "$starts" -gt 1 ]; then exit 0; fi; {FOREVER}')
    job = export(project, tmp_path, venv=venv)
    number = submitted(cluster, job)
    until(job.starts, "a start")
    interrupt(cluster, number)
    until(lambda: len(job.starts()) == 1 and cluster.job(number)["Restarts"] == "1", "a requeue")
    ended = cluster.reach(number, "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert len(job.starts()) == 2


def test_a_cancelled_job_stays_cancelled(cluster, project, tmp_path):
    job = export(project, tmp_path, venv=stand_in(tmp_path / "venv", FOREVER))
    number = submitted(cluster, job)
    until(job.starts, "a start")
    cluster.run("scancel", number)
    until((job.output / "latest").is_symlink, "a checkpoint")
    until(lambda: not cluster.run("squeue", "--noheader", "--jobs", number, expect=None).stdout, "an empty queue")
    ended = cluster.job(number)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")


def test_a_job_that_always_stops_at_the_same_checkpoint_is_given_up(cluster, project, tmp_path):
    venv = stand_in(tmp_path / "venv", 'ln -sfn step-5 "$output/latest"; exit 75')
    job = export(project, tmp_path, "--requeues", "2", venv=venv)
    ended = cluster.reach(submitted(cluster, job), "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "1:0", "2")
    assert len(job.starts()) == 3
    assert "stopped 2 times at the same checkpoint (step-5); not queued again" in job.log()


def test_a_job_that_comes_further_each_time_is_not_given_up(cluster, project, tmp_path):
    body = 'if [ "$starts" -gt 3 ]; then exit 0; fi; ln -sfn "step-$starts" "$output/latest"; exit 75'
    job = export(project, tmp_path, "--requeues", "1", venv=stand_in(tmp_path / "venv", body))
    ended = cluster.reach(submitted(cluster, job), "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "3")


def test_each_task_of_a_sweep_has_its_value_and_its_folder_and_only_the_interrupted_one_starts_again(
    cluster, project, tmp_path
):
    body = f'if [ "$rank" != 32 ] || [ "$starts" -gt 1 ]; then sleep 1; exit 0; fi; {FOREVER}'
    job = export(project, tmp_path, "--sweep", "rank=8,16,32", venv=stand_in(tmp_path / "venv", body))
    number = submitted(cluster, job)
    until(lambda: all(map(job.starts, ("rank-8", "rank-16", "rank-32"))), "a start of every task")
    # The last task of an array has the array's own number, by which all of them would be queued again.
    cluster.run("scancel", "--signal=TERM", f"{number}_2")
    until(lambda: cluster.job(f"{number}_2")["Restarts"] == "1", "a requeue")
    ended = [cluster.reach(f"{number}_{task}", "COMPLETED", "FAILED") for task in range(3)]
    assert [each["JobState"] for each in ended] == ["COMPLETED"] * 3
    assert [each["Restarts"] for each in ended] == ["0", "0", "1"]
    ranks = [[re.findall(r"rank=(\S+)", line)[0] for line in job.starts(f"rank-{rank}")] for rank in (8, 16, 32)]
    assert ranks == [["8"], ["16"], ["32", "32"]]
