"""A chat from its file to the adapter's folder: as it was written in training, the model will be spoken to."""

import json

import pytest

torch = pytest.importorskip("torch", reason="the workload extra is not installed")
pytestmark = pytest.mark.workload

from tests.workload.finetune.kitchen import Kitchen, write_texts


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory):
    torch.set_num_threads(1)
    return Kitchen(tmp_path_factory.mktemp("kitchen"))


def test_the_chat_template_of_the_training_is_saved_and_noted(kitchen):
    path = kitchen.folder / "chats.jsonl"
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    path.write_text(json.dumps({"messages": chat}) + "\n")
    ran = kitchen.run(data=(f"{path}",), batch=1, steps=1)
    notes = [each["text"] for each in ran.named("note")]
    assert any("no chat template: chats are written in ChatML" in note for note in notes)
    [saved] = list(ran.output.rglob("chat_template.jinja"))
    assert "<|im_start|>" in saved.read_text()


def test_texts_give_a_model_no_template(kitchen):
    ran = kitchen.run(steps=1)
    assert list(ran.output.rglob("chat_template.jinja")) == []


def test_reading_progress_is_emitted_for_many_texts_only(kitchen):
    many = write_texts(kitchen.folder / "many.jsonl", ["a b"] * 1001)
    ran = kitchen.run(data=(f"{many}",), batch=1, steps=1)
    assert ran.events[0] == {"event": "reading", "records": 0, "seconds": 0.0}
    assert '"reading"' not in (ran.output / "metrics.jsonl").read_text()
    assert kitchen.run(steps=1).named("reading") == []
