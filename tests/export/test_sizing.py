"""A job that cannot fit or come in time: refused with figures and with what would do, which then really does."""

from dataclasses import replace

from devkit.estimate.memory import Fit
from devkit.estimate.settings import Method, Optimizer, Sharding

from .subjects import JOB, RUN, made

LARGE = replace(RUN, model="meta-llama/Llama-3.1-70B")
WHOLE = replace(LARGE, method=Method.FULL)
ADAMW = replace(RUN, method=Method.FULL, optimizer=Optimizer.ADAMW)


def refusal(run, **options):
    found = made(run, job=replace(JOB, **options))
    assert found.needs.verdict is Fit.DOES_NOT_FIT
    message, hint = found.refusal
    assert "\n" not in message + hint
    assert "--force" in hint
    return message, hint


def test_what_is_advised_against_a_refusal_fits():
    message, hint = refusal(WHOLE, gpu="H200", gpus=8)
    assert message.startswith("the job does not fit: ")
    assert "on each NVIDIA H200, which has 139.6 GiB" in message
    assert 'sharding = "zero3"' in hint
    _, of_adapter = refusal(LARGE, gpu="H100")
    assert 'method = "qlora"' in of_adapter and "--gpu 'NVIDIA B200" in of_adapter
    advised = (
        (replace(WHOLE, sharding=Sharding.ZERO3), {"gpu": "H200", "gpus": 8}),
        (replace(LARGE, method=Method.QLORA), {"gpu": "H100"}),
        *((RUN, {"gpu": gpu}) for gpu in ("H100", "L40S")),
    )
    for run, options in advised:
        found = made(run, job=replace(JOB, **options))
        assert (found.refusal, found.needs.verdict) == (None, Fit.FITS)
    assert made(job=replace(JOB, gpu="")).refusal is None


def test_only_what_each_process_reads_packed_has_to_lie_whole_on_a_gpu():
    shared = made(replace(WHOLE, sharding=Sharding.ZERO3), job=replace(JOB, gpu="H200", gpus=8))
    assert (shared.refusal, shared.needs.loading_bytes) == (None, 0)
    packed = replace(RUN, model="meta-llama/Llama-3.1-405B", method=Method.QLORA, sharding=Sharding.ZERO3)
    assert made(packed, job=replace(JOB, gpu="H100", gpus=8)).refusal is None
    message, hint = refusal(replace(packed, dora=True), gpu="H100", gpus=8)
    assert "each process loads the whole packed model before sharding" in message
    assert "--gpus" not in hint


def test_more_gpus_are_advised_where_no_setting_helps_but_never_more_than_the_batch_has_rows():
    _, hint = refusal(ADAMW, gpu="A100 40GB")
    assert '--gpus 4 with sharding = "zero3"' in hint or '--gpus 8 with sharding = "zero3"' in hint
    _, hint = refusal(replace(ADAMW, batch=2), gpu="A100 40GB")
    assert "--gpus 4" not in hint and "--gpus 8" not in hint


def test_what_may_come_late_is_said():
    notes = [made(run, job=replace(JOB, gpu="B300")).task.notes for run in (replace(RUN, method=Method.FULL), RUN)]
    slow = [any("one checkpoint is" in note and "--set grace is 2 min" in note for note in each) for each in notes]
    assert slow == [True, False]
