"""Whole runs in one process: what is learned, what stands in the folder afterwards, and what is refused."""

import json

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Precision
from devkit.workload.finetune.run_folder import hash_files
from devkit.workload.generation.program import merge_adapter_into
from devkit.workload.generation.settings import GenerateSettings, find_generation_files
from tests.workload.finetune.run_factory import SENTENCE, TEXTS


@pytest.mark.parametrize(
    ("method", "how"),
    [
        pytest.param(Method.LORA, {}, id="lora"),
        pytest.param(Method.LORA, {"precision": Precision.BF16}, id="lora in bf16"),
        pytest.param(Method.LORA, {"precision": Precision.FP16}, id="lora in fp16, with its loss scaled"),
        pytest.param(Method.QLORA, {}, id="qlora"),
        pytest.param(Method.INT8_LORA, {}, id="int8-lora"),
        pytest.param(Method.FULL, {"learning_rate": 1e-3}, id="full"),
    ],
)
def test_every_method_learns_a_sentence_by_heart(run_factory, method, how):
    ran = run_factory.run(**{"data": (str(run_factory.sentence),), "method": method, "steps": 50, "batch": 1, **how})
    assert ran.code == 0
    assert ran.losses[0] > 5
    assert ran.losses[-1] < 0.15


def test_a_batch_is_the_same_however_many_passes_it_takes(run_factory):
    whole = run_factory.run(micro_batch=8)
    for size in (4, 3, 1):
        parted = run_factory.run(micro_batch=size)
        assert parted.losses == pytest.approx(whole.losses, rel=2e-6)
        # AdamW would move the weights alike if all gradients were larger.
        assert parted.norms == pytest.approx(whole.norms, rel=1e-4)


def test_the_loss_is_the_mean_over_the_tokens_of_the_whole_batch(run_factory):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(str(run_factory.base))
    tokenizer = AutoTokenizer.from_pretrained(str(run_factory.base))
    total, counted = 0.0, 0
    for text in TEXTS:
        ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
        total += model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        counted += ids.shape[1] - 1
    ran = run_factory.run(micro_batch=3)
    assert ran.losses[0] == pytest.approx(total / counted, rel=2e-6)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"packing": True}, id="texts that share rows"),
        pytest.param({"checkpointing": True}, id="activations computed again"),
        pytest.param({"attention": "sdpa"}, id="padded rows"),
    ],
)
def test_settings_that_save_time_or_memory_do_not_change_the_losses(run_factory, how):
    from devkit.estimate.settings import Attention

    how = {**how, "attention": Attention(how["attention"])} if "attention" in how else how
    # One step learns from all texts, so that packed rows hold the same.
    assert run_factory.run(**how, batch=100).losses == pytest.approx(run_factory.run(batch=100).losses, rel=5e-6)


def test_held_out_data_are_evaluated_and_not_trained_on(run_factory):
    ran = run_factory.run(eval_share=0.25, eval_every=2)
    assert [each["step"] for each in ran.named("eval")] == [2, 3]
    assert ran.named("start")[0]["rows"] == 6
    same = run_factory.run(eval_data=(str(run_factory.texts),), eval_every=3, learning_rate=1e-30)
    assert same.named("eval")[0]["loss"] == pytest.approx(same.losses[0], rel=2e-6)


def test_the_folder_holds_the_adapter_the_record_and_the_metrics(run_factory):
    ran = run_factory.run(data=(str(run_factory.sentence),), batch=1)
    record = json.loads((ran.output / "run.json").read_text())
    assert (record["schema"], record["status"], record["step"]) == ("devkit.finetune/1", "done", 3)
    assert record["first_loss"] == ran.losses[0] and record["last_loss"] == ran.losses[-1]
    assert record["files"] == {"adapter": hash_files(ran.output / "adapter")}
    assert {each["name"] for each in record["decisions"]} >= {"precision", "attention", "micro_batch"}
    assert all(each["because"] for each in record["decisions"])
    assert record["estimated"]["reserved_peak_bytes"]["upper"] > 0
    kept = [json.loads(line) for line in (ran.output / "metrics.jsonl").read_text().splitlines()]
    assert kept == ran.events


def test_a_whole_model_can_be_loaded_from_where_it_is_put(run_factory):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ran = run_factory.run(data=(str(run_factory.sentence),), method=Method.FULL, steps=40, batch=1, learning_rate=1e-3)
    folder = str(ran.output / "model")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.use_cache
    start = tokenizer("the quick", return_tensors="pt")
    ids = model.generate(**start, max_new_tokens=60, do_sample=False, pad_token_id=257)
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == SENTENCE


def test_the_same_command_resumes_where_it_ended(run_factory):
    first = run_factory.run(steps=4, save_every=2)
    again = run_factory.run(steps=4, save_every=2, output=first.output)
    assert again.code == 0
    assert again.losses == []
    assert again.named("resumed")[0]["step"] == 4


def test_no_resume_keeps_what_was_there_in_a_folder_of_its_own(run_factory):
    first = run_factory.run()
    again = run_factory.run(output=first.output, resume=False)
    assert again.losses == first.losses
    assert (first.output / "earlier-1" / "run.json").is_file()
    assert (first.output / "earlier-1" / "step-3").is_dir()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param(
            {"sequence": 129}, "longer than this model's context length of 128", id="rows longer than the model reads"
        ),
        pytest.param({"eval_share": 0.01}, "leaves nothing on one side", id="too little to hold out"),
        pytest.param({"targets": ("q_prj",)}, "q_prj", id="a layer that does not exist"),
        pytest.param({"data": ("/nowhere.jsonl",)}, "nowhere.jsonl", id="data that does not exist"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_loaded(run_factory, tmp_path, how, said):
    with pytest.raises(DevkitError, match=said):
        run_factory.run(**how, output=tmp_path / "new/tuned")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_emits_its_decisions_and_writes_nothing(run_factory):
    from devkit.workload.finetune.program import run_finetuning

    events, settings = [], run_factory.settings()
    assert run_finetuning(settings, listeners=(events.append,), dry_run=True) == 0
    assert {each["event"] for each in events} == {"plan", "decision", "estimate", "note"}
    assert not settings.output.exists()


def test_a_reader_that_left_does_not_end_the_run(run_factory):
    from devkit.workload.finetune.program import run_finetuning

    def gone(_event):
        raise BrokenPipeError

    settings = run_factory.settings()
    assert run_finetuning(settings, listeners=(gone,)) == 0
    assert (settings.output / "adapter").is_dir()


def test_an_adapter_on_the_head_is_estimated_trained_and_merged(run_factory, tmp_path):
    ran = run_factory.run(targets=("q_proj", "lm_head"), steps=20)
    assert (ran.code, len(ran.named("estimate"))) == (0, 1)
    assert ran.losses[-1] < 0.7 * ran.losses[0]
    found = find_generation_files(GenerateSettings(model=f"{run_factory.base}", adapter=ran.output / "adapter"))
    # Raises for logits that moved.
    merge_adapter_into(found, tmp_path / "merged", lambda _: None)
    assert (tmp_path / "merged" / "model.safetensors").exists()
