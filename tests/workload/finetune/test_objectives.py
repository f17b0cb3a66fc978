"""DPO, reward models and GRPO: what they learn of held-out rows, and that a stopped run goes on as if it never stopped."""

import json
import math
import signal
from dataclasses import replace

import pytest
import torch

pytestmark = [
    pytest.mark.workload,
    # As the command ignores it: TRL asks transformers so.
    pytest.mark.filterwarnings(r"ignore:`\w*gradient_checkpointing\w*` is deprecated"),
]

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Objective, Precision
from devkit.workload.finetune.objectives import tokenize_pairs
from devkit.workload.finetune.program import run_finetuning
from devkit.workload.finetune.records import RecordReader
from devkit.workload.finetune.run_folder import hash_files
from tests.workload.finetune.run_factory import Ran
from tests.workload.small_models import CHATML

GOOD, BAD = " yes, please.", " no, never."
TRAINED, HELD_OUT = "abcdefghijkl", "mnop"
REWARD = """
def count_vowels(completions, prompts, wanted, **_):
    with open(__file__ + ".asked", "a") as asked:
        asked.writelines(f"{each}\\n" for each in prompts)
    return [sum(letter in wanted[0] for letter in text) / (1 + len(text)) for text in completions]
"""


def write_lines(path, rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return f"{path}"


def pairs(letters):
    return [{"prompt": f"{each * 3}?", "chosen": GOOD, "rejected": BAD} for each in letters]


@pytest.fixture(scope="module")
def given(run_factory):
    """The settings of a short run by its objective."""
    folder = run_factory.folder
    (folder / "reward.py").write_text(REWARD)
    prompts = [{"prompt": f"{each}:", "wanted": "aeiou"} for each in TRAINED]
    paired = {
        "data": (write_lines(folder / "pairs.jsonl", pairs(TRAINED)),),
        "eval_data": (write_lines(folder / "held-out.jsonl", pairs(HELD_OUT)),),
        "batch": 6,
    }
    grpo = {"data": (write_lines(folder / "prompts.jsonl", prompts),), "reward": f"{folder}/reward.py:count_vowels"}
    grpo |= {"generations": 4, "max_new_tokens": 6, "batch": 16}
    return lambda objective: {"objective": objective, **(grpo if objective is Objective.GRPO else paired)}


def load_tokenizer(run_factory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(run_factory.base))


def log_probability(model, tokenizer, answer):
    """The mean log-probability of an answer to the held-out prompts."""
    total = 0.0
    for each in pairs(HELD_OUT):
        start = len(tokenizer(each["prompt"])["input_ids"])
        ids = tokenizer(f"{each['prompt']}{answer}</s>", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            found = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        total += found.gather(1, ids[0, 1:, None])[start - 1 :].sum().item() / len(HELD_OUT)
    return total


@pytest.mark.parametrize(
    "how", [{"micro_batch": 3}, {"method": Method.FULL, "learning_rate": 1e-3}], ids=["lora", "full"]
)
def test_dpo_prefers_the_chosen_answers_to_held_out_prompts_where_transformers_loads_it(
    run_factory, given, how, monkeypatch
):
    from peft import AutoPeftModelForCausalLM, PeftModel
    from transformers import AutoModelForCausalLM

    delete, deleted = PeftModel.delete_adapter, []
    monkeypatch.setattr(PeftModel, "delete_adapter", lambda model, name: deleted.append(name) or delete(model, name))
    ran = run_factory.run(**given(Objective.DPO), steps=20, **how)
    assert ran.code == 0
    # TRL's copy of the adapter: the reference is the base without one.
    assert deleted == ([] if "method" in how else ["ref"])
    # Before the first step the policy is its reference, so neither answer is preferred.
    assert ran.losses[0] == pytest.approx(math.log(2), rel=1e-5)
    (held_out,) = ran.named("eval")
    assert held_out["margin"] > 1 and held_out["accuracy"] == 1
    kind, folder = (AutoModelForCausalLM, "model") if "method" in how else (AutoPeftModelForCausalLM, "adapter")
    policy, base = (
        kind.from_pretrained(f"{ran.output}/{folder}"),
        AutoModelForCausalLM.from_pretrained(run_factory.base),
    )
    tokenizer = load_tokenizer(run_factory)
    good, bad = (
        log_probability(policy, tokenizer, each) - log_probability(base, tokenizer, each) for each in (GOOD, BAD)
    )
    assert good > bad
    assert held_out["margin"] == pytest.approx(0.1 * (good - bad), rel=1e-3)


def test_a_reward_model_scores_chosen_answers_higher_where_peft_loads_it(run_factory, given):
    from peft import AutoPeftModelForSequenceClassification

    ran = run_factory.run(**given(Objective.REWARD), steps=20)
    (held_out,) = ran.named("eval")
    assert held_out["margin"] > 1 and held_out["accuracy"] == 1
    model = AutoPeftModelForSequenceClassification.from_pretrained(f"{ran.output}/adapter", num_labels=1).eval()
    tokenizer = load_tokenizer(run_factory)
    # As TRL pads where a tokenizer has no token for it: the score is that of the token before.
    model.config.pad_token_id = tokenizer.eos_token_id
    margins = []
    for each in pairs(HELD_OUT):
        texts = [f"{each['prompt']}{each[side]}</s>" for side in ("chosen", "rejected")]
        with torch.no_grad():
            good, bad = (model(**tokenizer(text, return_tensors="pt")).logits.item() for text in texts)
        margins.append(good - bad)
    assert min(margins) > 0
    assert sum(margins) / len(margins) == pytest.approx(held_out["margin"], rel=1e-4)


def test_grpo_completes_with_more_of_what_the_function_rewards(run_factory, given):
    ran = run_factory.run(**given(Objective.GRPO), steps=40, learning_rate=2e-2)
    asked = (run_factory.folder / "reward.py.asked").read_text().split()
    # Four prompts in a step, four times each: three steps are an epoch.
    assert sorted(asked[:48]) == sorted(f"{each}:" for each in TRAINED for _ in range(4))
    assert asked[:4] == [asked[0]] * 4
    rewards = [each["reward"] for each in ran.named("step")]
    assert sum(rewards[-5:]) > 2 * sum(rewards[:5])


@pytest.mark.parametrize(
    ("objective", "how"),
    [
        pytest.param(Objective.DPO, {"micro_batch": 2}, id="dpo"),
        pytest.param(Objective.DPO, {"method": Method.FULL, "checkpointing": True}, id="dpo of a whole model"),
        pytest.param(Objective.DPO, {"dropout": 0.2, "precision": Precision.BF16}, id="dpo in bf16 with dropout"),
        pytest.param(Objective.REWARD, {}, id="reward"),
        pytest.param(Objective.REWARD, {"method": Method.FULL}, id="reward of a whole model"),
        pytest.param(Objective.GRPO, {"micro_batch": 4}, id="grpo"),
    ],
)
def test_a_run_that_a_signal_stops_ends_as_if_it_had_not_stopped(run_factory, given, objective, how):
    # More steps than an epoch has: rows come in a new order after the signal.
    how = given(objective) | {"steps": 6} | how
    whole = run_factory.run(**how)
    settings = run_factory.settings(**how)
    events: list[dict] = []

    def listen(event):
        events.append(event)
        if event["event"] == "step" and event["step"] == 4 and not any(each["event"] == "resumed" for each in events):
            signal.raise_signal(signal.SIGTERM)

    assert run_finetuning(settings, listeners=(listen,)) == 75
    assert run_finetuning(settings, listeners=(listen,)) == 0
    resumed = Ran(0, events, settings.output)
    assert [each["saved"] for each in resumed.named("stopped")] == [4]
    assert resumed.losses == whole.losses
    results = [
        hash_files(each / ("model" if "method" in how else "adapter")) for each in (whole.output, resumed.output)
    ]
    assert results[0] == results[1]
    with pytest.raises(DevkitError, match="saved with different settings: objective was"):
        run_finetuning(
            replace(settings, objective=Objective.SFT, reward="", data=(str(run_factory.texts),), eval_data=())
        )


@pytest.mark.parametrize(
    ("body", "says"),
    [("return 1 / 0", "ZeroDivisionError: division"), ("return [1.0]", "1 rewards for 16 completions")],
)
def test_what_is_wrong_with_a_reward_function_is_said_in_a_line(run_factory, given, tmp_path, body, says):
    (tmp_path / "mine.py").write_text(f"def rate(completions, **_):\n    {body}\n")
    with pytest.raises(DevkitError, match=rf"mine\.py:rate: .*{says}"):
        run_factory.run(**given(Objective.GRPO) | {"reward": f"{tmp_path}/mine.py:rate"})


def test_weights_that_are_not_finite_are_not_saved(run_factory, given):
    ran = run_factory.run(**given(Objective.DPO) | {"eval_data": ()}, learning_rate=1e30, steps=6)
    assert ran.code == 1
    assert [each["how"] for each in ran.named("stopped")] == ["not-finite"]


def test_chats_are_pairs_by_the_turns_that_they_share_and_too_long_ones_are_counted(run_factory, tmp_path):
    asked = [{"role": "user", "content": "what?"}]
    good, bad = ([{"role": "assistant", "content": each}] for each in ("this", "that"))
    forms = [
        {"prompt": asked, "chosen": good, "rejected": bad},
        {"prompt": "what?", "chosen": asked + good, "rejected": asked + bad},
        {"chosen": asked + good, "rejected": asked + bad},
        {"chosen": asked + good, "rejected": [*asked, {"role": "assistant", "content": "that" * 20}]},
    ]
    tokenizer = load_tokenizer(run_factory)
    tokenizer.chat_template = CHATML
    reader = RecordReader([write_lines(tmp_path / "chats.jsonl", forms)], Objective.DPO)
    found = tokenize_pairs(reader, tokenizer, sequence=64)
    columns = [each.to_columns(Objective.DPO) for each in found.examples]
    assert columns[0] == columns[1] == columns[2]
    shown = [tokenizer.decode(columns[0][f"{side}_ids"]) for side in ("prompt", "chosen", "rejected")]
    assert shown == ["<|user|>what?</s><|assistant|>", "this</s>", "that</s>"]
    assert found.notes == ["left out 1 record without answers of at most 64 tokens"]
