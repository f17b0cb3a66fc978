"""Times against checkpoints: what can never come in time is refused, what may come late is said."""

from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.estimate.settings import Method
from devkit.export.sizing import estimate_step_seconds

from .subjects import JOB, RUN, made


def pace_of(run=RUN):
    return estimate_step_seconds(made(run, job=replace(JOB, gpu="H100")).needs, run)


def test_a_time_too_short_for_the_first_checkpoint():
    fastest, _ = pace_of()
    limit = int(RUN.save_every * fastest) - 1
    with pytest.raises(DevkitError) as refused:
        made(job=replace(JOB, gpu="H100", time=f"{limit}s", grace="10s"))
    assert "a checkpoint every 100 steps comes after" in refused.value.message
    assert "save_every = " in refused.value.hint
    assert "--time" in refused.value.hint


def test_the_advised_interval_is_taken():
    fastest, slowest = pace_of()
    limit = int(RUN.save_every * fastest) - 1
    advised = replace(RUN, save_every=int(limit / 2 / slowest))
    assert made(advised, job=replace(JOB, gpu="H100", time=f"{limit}s", grace="10s")).task.time_s == limit


def test_time_for_the_first_checkpoint_at_best_is_taken_with_a_note():
    fastest, _ = pace_of()
    notes = made(job=replace(JOB, gpu="H100", time=f"{int(RUN.save_every * fastest) + 1}s", grace="10s")).task.notes
    assert any("a smaller save_every loses less" in note for note in notes)


def test_a_run_of_fewer_steps_than_the_interval_has_its_end_as_checkpoint():
    short = replace(RUN, steps=2)
    fastest, _ = pace_of(short)
    assert made(short, job=replace(JOB, gpu="H100", time=f"{int(3 * fastest) + 1}s", grace="1s")).task


def test_without_a_gpu_by_name_nothing_is_known_of_its_pace():
    assert made(job=replace(JOB, time="1m", grace="10s")).task.time_s == 60


def test_a_run_longer_than_its_time_is_said_to_go_on():
    long = replace(RUN, steps=1_000_000)
    assert any("resumes where it stopped" in note for note in made(long, job=replace(JOB, gpu="H100")).task.notes)


def test_a_checkpoint_that_takes_longer_than_the_grace():
    whole = replace(RUN, method=Method.FULL)
    notes = made(whole, job=replace(JOB, gpu="B300", grace="120s")).task.notes
    assert any("one checkpoint is" in note and "--grace is 2 min" in note for note in notes)
    assert not any("one checkpoint is" in note for note in made(job=replace(JOB, gpu="B300")).task.notes)
