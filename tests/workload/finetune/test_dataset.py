"""A chat from its file to the adapter's folder: as it was written in training, the model will be spoken to."""

import json

import pytest

pytestmark = pytest.mark.workload

from tests.workload.finetune.run_factory import write_texts


def test_the_chat_template_of_the_training_is_saved_and_noted(run_factory):
    path = run_factory.folder / "chats.jsonl"
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    path.write_text(json.dumps({"messages": chat}) + "\n")
    ran = run_factory.run(data=(f"{path}",), batch=1, steps=1)
    notes = [each["text"] for each in ran.named("note")]
    assert any("no chat template: chats use ChatML" in note for note in notes)
    [saved] = list(ran.output.rglob("chat_template.jinja"))
    assert "<|im_start|>" in saved.read_text()


def test_reading_progress_is_emitted_for_many_texts_only(run_factory):
    many = write_texts(run_factory.folder / "many.jsonl", ["a b"] * 1001)
    ran = run_factory.run(data=(f"{many}",), batch=1, steps=1)
    assert (ran.events[0]["event"], ran.events[0]["records"]) == ("reading", 0)
    assert '"reading"' not in (ran.output / "metrics.jsonl").read_text()
    assert run_factory.run(steps=1).named("reading") == []
