"""Greedy answers are the same however they are computed, and end where they should."""

from dataclasses import replace

import pytest
import torch

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.finetune.files import BaseQuantization, LoadSettings
from devkit.workload.finetune.model import load_base_and_tokenizer
from devkit.workload.generation import decoding
from devkit.workload.generation.decoding import (
    STOP_MARGIN_TOKENS,
    AnswerStreamer,
    FinishReason,
    StopOnText,
    TextGenerator,
    generate_batch,
    generate_in_order,
    generate_one,
)
from devkit.workload.generation.program import resolve_model
from devkit.workload.generation.settings import DecodingSettings, GenerateSettings, find_generation_files
from tests.workload.small_models import CHATML, save_model


def test_stop_texts_are_looked_for_in_the_newest_tokens_alone():
    widths = []

    class Words:
        def batch_decode(self, ids):
            widths.append(ids.shape[1])
            return [""] * len(ids)

    stop = StopOnText(Words(), ("end",), prompt_length=2)
    for length in (3, 2000):
        assert not stop(torch.zeros(1, length), None).any()
    assert widths == [1, len("end") + STOP_MARGIN_TOKENS]


pytestmark = pytest.mark.workload

TEXTS = ("one", "a prompt of some length", "x", "two words", "one more, longer than all the others here")
GREEDY = DecodingSettings(tokens=16)
LONG = 3
"""The prompt whose answer the model does not end by itself."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Llama."""
    return save_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def generator(folder):
    """It, loaded; tests may change it."""
    return speaker_of(folder)


def speaker_of(folder):
    """A loaded model that speaks."""
    loaded = load_base_and_tokenizer(f"{folder}", LoadSettings())
    return TextGenerator(loaded.model, loaded.tokenizer)


@pytest.fixture(scope="module")
def prompts(folder):
    """Prompts of unequal length."""
    tokenizer = speaker_of(folder).tokenizer
    return [tokenizer(text)["input_ids"] for text in TEXTS]


def by_hand(generator, prompt, tokens):
    """The greedy answer by its definition: the whole text through the model for each token, without any cache."""
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) - len(prompt) < tokens:
            chosen = int(generator.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
            if chosen in generator.eos_token_ids:
                break
            ids.append(chosen)
    return tuple(ids[len(prompt) :])


@pytest.fixture(scope="module")
def truth(folder, prompts):
    """What each prompt is answered with, by the definition."""
    generator = speaker_of(folder)
    found = [by_hand(generator, prompt, GREEDY.tokens) for prompt in prompts]
    assert len(set(found)) == len(prompts)
    assert len(found[LONG]) == GREEDY.tokens
    return found


def test_batched_prompts_are_answered_as_each_alone(generator, prompts, truth):
    assert [each.ids for each in generate_batch(generator, prompts, GREEDY)] == truth


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_answers_come_in_the_order_of_the_prompts_whatever_the_batch(generator, prompts, truth, batch):
    found = generate_in_order(generator, prompts, replace(GREEDY, batch=batch))
    assert [each.ids for each in found] == truth


@pytest.mark.parametrize("kind", ["gpt2", "qwen3_moe"])
def test_padding_changes_no_answer_of_other_kinds_of_models(tmp_path, kind):
    generator = speaker_of(save_model(tmp_path, kind))
    ids = [generator.tokenizer(text)["input_ids"] for text in TEXTS]
    assert [each.ids for each in generate_batch(generator, ids, replace(GREEDY, tokens=12))] == [
        by_hand(generator, each, 12) for each in ids
    ]


def test_the_models_generation_config_changes_no_greedy_answer(generator, prompts, truth):
    made = generator.base_model.generation_config
    made.do_sample, made.temperature, made.top_k, made.repetition_penalty = True, 1.7, 5, 9.0
    made.min_new_tokens = 20
    assert [each.ids for each in generate_batch(generator, prompts, GREEDY)] == truth


def test_every_eos_token_of_the_generation_config_ends_an_answer(generator, prompts, truth):
    fourth = truth[LONG][3]
    generator.base_model.generation_config.eos_token_id = [255, fourth]
    (found,) = generate_batch(generator, prompts[LONG:][:1], GREEDY)
    assert found.ids == truth[LONG][: truth[LONG].index(fourth)]
    assert found.finish_reason is FinishReason.END


def test_an_answer_ends_before_a_stop_text_and_other_rows_continue(generator, prompts):
    whole = generate_batch(generator, prompts, GREEDY)
    text = whole[LONG].text
    stop = text[6:8]
    found = generate_batch(generator, prompts, replace(GREEDY, stops=(stop, "never said")))
    assert found[LONG].text == text[: text.index(stop)]
    assert found[LONG].finish_reason is FinishReason.END
    expected = [each.text.partition(stop)[0] for each in whole]
    assert [each.text for each in found] == expected


def test_a_special_token_ends_an_answer_as_any_stop_text_does(generator, prompts, truth):
    said = next(each for each in truth[LONG] if 33 <= ord(generator.tokenizer.convert_ids_to_tokens(each)) < 127)
    text = generator.tokenizer.convert_ids_to_tokens(said)
    generator.tokenizer.add_special_tokens({"additional_special_tokens": [text]})
    (found,) = generate_batch(generator, prompts[LONG:][:1], replace(GREEDY, stops=(text,)))
    assert found.ids == truth[LONG][: truth[LONG].index(said) + 1]
    assert found.finish_reason is FinishReason.END
    assert text not in found.text


def test_a_stopped_answer_keeps_its_beginning(generator, prompts, truth):
    polled = iter([False, False, True, True, True])
    (found,) = generate_batch(generator, prompts[LONG:][:1], GREEDY, should_stop=lambda: next(polled))
    assert found.finish_reason is FinishReason.STOPPED
    assert found.ids == truth[LONG][: len(found.ids)]
    assert 0 < len(found.ids) < GREEDY.tokens


def test_a_seed_decides_what_is_sampled_from_the_tokens_that_are_left(generator, prompts, truth):
    how = replace(GREEDY, temperature=1.0, seed=3)

    def sample(**given):
        return [each.ids for each in generate_in_order(generator, [prompts[0]] * 2, replace(how, **given))]

    torch.manual_seed(1)
    first = sample()
    assert sample() == first != sample(seed=4)
    assert first[0] != first[1], "the same prompt is answered twice"
    alone = sample(batch=1)
    assert alone[0] != alone[1]
    assert sample(top_k=1) == sample(top_p=1e-6) == [truth[0]] * 2


def test_prompt_and_answer_stay_within_the_context_length(generator):
    (found,) = generate_batch(generator, [[40] * 120], replace(GREEDY, tokens=50))
    assert len(found.ids) <= 8
    with pytest.raises(DevkitError, match="a prompt has 128 tokens, but the model's context length is 128"):
        generate_batch(generator, [[40] * 128], GREEDY)


def test_a_prompt_that_nearly_fills_the_context_shortens_its_own_answer_alone(generator):
    filling = [[40] * 120, prompt := generator.tokenizer("two words")["input_ids"], [41] * 118, [42] * 120, prompt]
    how = replace(GREEDY, tokens=60, batch=8)
    alone = [generate_batch(generator, [each], how)[0].ids for each in filling]
    assert len(alone[1]) > 10
    assert [each.ids for each in generate_in_order(generator, filling, how)] == alone


@pytest.mark.parametrize(
    "out_of_memory",
    [
        pytest.param(torch.OutOfMemoryError("CUDA out of memory"), id="a GPU"),
        pytest.param(RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory"), id="a CPU"),
    ],
)
def test_a_batch_that_runs_out_of_memory_is_said_with_a_way_out(generator, prompts, monkeypatch, out_of_memory):
    # A stand-in: a CPU has no memory limit of its own that torch could tell of.
    monkeypatch.setattr(decoding, "generate_batch", lambda *_, **__: (_ for _ in ()).throw(out_of_memory))
    with pytest.raises(DevkitError, match="memory ran out with 5 prompts at once") as caught:
        list(generate_in_order(generator, prompts, GREEDY))
    assert caught.value.hint.startswith("Reduce --batch")
    with pytest.raises(DevkitError, match="memory ran out with 1 prompt at once"):
        list(generate_in_order(generator, prompts, replace(GREEDY, batch=1)))


@pytest.mark.parametrize("stops", [(), ("never said",), (1,)], ids=["none", "not said", "said"])
def test_what_is_shown_is_the_answer(generator, prompts, stops):
    pieces = []
    whole = generate_batch(generator, prompts[LONG:][:1], GREEDY)[0].text
    stops = tuple(whole[6:8] if stop == 1 else stop for stop in stops)
    how = replace(GREEDY, stops=stops)
    found = generate_one(generator, prompts[LONG], how, show=pieces.append, should_stop=lambda: False)
    assert "".join(pieces) == found.text


def test_an_answer_is_streamed_word_by_word(generator):
    pieces = []
    streamer = AnswerStreamer(generator.tokenizer, pieces.append)
    streamer.put(torch.tensor([[40, 41]]))
    for token in generator.tokenizer("to bee or not, 🙂.", add_special_tokens=False)["input_ids"]:
        streamer.put(torch.tensor([token]))
    assert len(pieces) > 3
    streamer.end()
    assert "".join(pieces) == "to bee or not, 🙂."


def test_a_turns_end_that_is_no_eos_token_ends_answers_in_chats(tmp_path):
    speaker = speaker_of(save_model(tmp_path, chat_template=CHATML))
    assert speaker.turn_end == "</s>"
    assert 257 in speaker.eos_token_ids
    assert speaker.find_stop_texts(GREEDY) == ()
    speaker.tokenizer.chat_template = CHATML.replace("</s>", "<|im_end|>\n")
    unnamed = TextGenerator(speaker.model, speaker.tokenizer)
    assert unnamed.find_stop_texts(replace(GREEDY, stops=("a",))) == ("a", "<|im_end|>")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is chosen over the CPU")
@pytest.mark.parametrize(
    ("has_bf16", "given", "precision"),
    [
        pytest.param(True, {}, Precision.BF16, id="bf16, as finetune trains there"),
        pytest.param(False, {}, Precision.FP32, id="fp32 where the CPU emulates bf16"),
        pytest.param(True, {"quantization": BaseQuantization.NF4}, Precision.FP32, id="fp32 with 4-bit weights"),
        pytest.param(True, {"precision": Precision.FP32}, Precision.FP32, id="the one of --dtype"),
    ],
)
def test_a_cpu_generates_in_the_precision_that_finetune_chooses(folder, monkeypatch, has_bf16, given, precision):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    found = resolve_model(find_generation_files(GenerateSettings(model=f"{folder}", **given)))
    assert found.device.precision is precision
