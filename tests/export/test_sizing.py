"""A job that cannot fit: refused with figures and with what would fit, which then really does."""

from dataclasses import replace

from devkit.estimate.gpus import Fit
from devkit.estimate.settings import Method, Optimizer, Sharding

from .subjects import JOB, RUN, made

LARGE = replace(RUN, model="meta-llama/Llama-3.1-70B")
WHOLE = replace(LARGE, method=Method.FULL)
ADAMW = replace(RUN, method=Method.FULL, optimizer=Optimizer.ADAMW)


def refusal(run, **options):
    found = made(run, job=replace(JOB, **options))
    assert found.refusal is not None
    assert found.needs.verdict is Fit.DOES_NOT_FIT
    message, hint = found.refusal
    assert "\n" not in message + hint
    assert "--force" in hint
    return message, hint


def test_a_whole_70b_on_eight_gpus_that_each_hold_it_all():
    message, hint = refusal(WHOLE, gpu="H200", gpus=8)
    assert message.startswith("the job does not fit: ")
    assert "on each NVIDIA H200, which holds 139.6 GiB" in message
    assert 'sharding = "zero3"' in hint


def test_what_is_advised_fits():
    shared = made(replace(WHOLE, sharding=Sharding.ZERO3), job=replace(JOB, gpu="H200", gpus=8))
    assert (shared.refusal, shared.needs.verdict) == (None, Fit.FITS)
    quantized = made(replace(LARGE, method=Method.QLORA), job=replace(JOB, gpu="H100"))
    assert (quantized.refusal, quantized.needs.verdict) == (None, Fit.FITS)


def test_an_adapter_on_one_gpu_is_advised_a_smaller_base_or_a_larger_gpu():
    _, hint = refusal(LARGE, gpu="H100")
    assert 'method = "qlora"' in hint
    assert "--gpu 'NVIDIA B200" in hint


def test_a_model_that_is_shared_out_never_has_to_lie_whole_on_a_gpu():
    shared = made(replace(WHOLE, sharding=Sharding.ZERO3), job=replace(JOB, gpu="H100", gpus=8))
    assert (shared.refusal, shared.needs.verdict, shared.needs.loading_bytes) == (None, Fit.FITS, 0)


def test_one_that_each_process_reads_packed_does():
    packed = replace(RUN, model="meta-llama/Llama-3.1-405B", method=Method.QLORA, sharding=Sharding.ZERO3)
    assert made(packed, job=replace(JOB, gpu="H100", gpus=8)).refusal is None
    message, hint = refusal(replace(packed, dora=True), gpu="H100", gpus=8)
    assert "each process loads the whole packed model before it is sharded" in message
    assert "--gpus" not in hint


def test_more_gpus_are_advised_where_no_setting_helps_but_never_more_than_the_batch_has_rows():
    _, hint = refusal(ADAMW, gpu="A100 40GB")
    assert '--gpus 4 with sharding = "zero3"' in hint or '--gpus 8 with sharding = "zero3"' in hint
    _, hint = refusal(replace(ADAMW, batch=2), gpu="A100 40GB")
    assert "--gpus 4" not in hint
    assert "--gpus 8" not in hint


def test_a_gpu_that_fits_or_is_left_open_is_no_refusal():
    for gpu in ("H100", "H200", "L40S", ""):
        assert made(job=replace(JOB, gpu=gpu)).refusal is None
