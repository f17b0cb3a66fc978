"""Models, adapters and data of strangers: nothing of them runs, nothing outside of their folders is read, nothing hangs."""

import json
import os
import pickle

import pytest

pytestmark = pytest.mark.workload

from devkit.errors import DevkitError
from devkit.workload.finetune import dataset
from devkit.workload.finetune import model as adapters
from devkit.workload.finetune.files import MAX_HEADER_BYTES, BaseReference, SavedAdapter, inspect_adapter, inspect_model
from devkit.workload.finetune.model import BaseQuantization, LoadSettings, build_meta_model, load_base, load_tokenizer
from devkit.workload.finetune.records import RecordReader
from devkit.workload.generation.decoding import encode_prompt
from devkit.workload.generation.settings import Prompt
from tests.workload.small_models import CHATML, save_model

DEEP = "[" * 100_000
CHAT = [{"role": "user", "content": "hello"}]


class Payload:
    """A pickle of it runs a command when it is loaded."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), chat_template=CHATML)


@pytest.fixture
def folder(model, tmp_path):
    for each in model.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    return tmp_path


def load(folder):
    load_base(inspect_model(folder), LoadSettings(quantization=BaseQuantization.NONE, device="cpu"))


def header(text, *, claims=None):
    return (len(text) if claims is None else claims).to_bytes(8, "little") + text


def test_a_pickle_in_the_place_of_weights_runs_nothing(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(folder / "owned"), protocol=2))
    with pytest.raises(DevkitError, match="damaged"):
        load(folder)
    assert not (folder / "owned").exists()


def test_code_beside_a_model_is_not_run(folder):
    (folder / "own.py").write_text(f"open({str(folder / 'owned')!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DevkitError):
        load(folder)
    assert not (folder / "owned").exists()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "did not finish within"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "rejects these messages"),
        ("{{ 9 ** (10 ** 9) }}", "did not finish within"),
        ("{% include '/etc/passwd' %}", "rejects these messages"),
        ("{{ messages.clear() }}", "rejects these messages"),
        ("{{ 'a' * 10 ** 9 }}", "more memory than a chat"),
    ],
    ids=["loops in loops", "a way out of the sandbox", "a number", "a file", "a change of the chat", "a gigabyte"],
)
def test_a_chat_template_is_bounded(folder, monkeypatch, template, says):
    monkeypatch.setattr(dataset, "TIMEOUT_S", 0.2)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(DevkitError, match=says):
        encode_prompt(Prompt(messages=tuple(CHAT)), load_tokenizer(folder), raw=False)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/hostname", "a/../../model.safetensors"])
def test_shards_lie_beside_their_index(folder, name):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(DevkitError, match="not next to it"):
        inspect_model(folder)


@pytest.mark.parametrize(
    "content",
    [
        header(b"{}", claims=1 << 62),
        header(b"{}", claims=MAX_HEADER_BYTES + 1) + b" " * 100,
        header(DEEP.encode()),
        header(b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 99999999999]}}'),
        header(b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [-99999, 0]}}'),
        header(b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 0]}}'),
        header(b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, Infinity]}}'),
        header(b'{"a": 1}'),
        header(b"[]"),
        b"",
    ],
)
def test_a_header_of_weights_that_lies_is_refused(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(DevkitError):
        load(folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_a_deep_file_of_a_model_is_refused(folder, file):
    (folder / file).write_text(DEEP)
    with pytest.raises(DevkitError):
        inspect_model(folder)


@pytest.mark.parametrize("content", [DEEP, " " * (2 << 20), '{"peft_type": "LORA", "r": "x"}', "[]"])
def test_a_configuration_of_an_adapter_that_lies_is_refused(tmp_path, content):
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(DevkitError):
        inspect_adapter(tmp_path)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"target_modules": "(([a-z._0-9]+)+)+!"}, "target_modules: did not finish within"),
        ({"rank_pattern": {"(([a-z._0-9]+)+)+!": 4}}, "rank_pattern: did not finish within"),
        ({"target_modules": [f"t{number}" for number in range(1000)]}, "1,000 entries, but the model has only "),
        ({"alpha_pattern": {"(": 4}}, "alpha_pattern: missing"),
    ],
    ids=["targets that backtrack", "a pattern that backtracks", "a thousand targets", "no pattern"],
)
def test_the_patterns_of_an_adapter_are_bounded(folder, tmp_path, monkeypatch, config, says):
    monkeypatch.setattr(adapters, "PATTERN_TIMEOUT_S", 0.2)
    files = inspect_model(folder)
    saved = SavedAdapter(tmp_path, {"r": 4, **config}, BaseReference(""))
    with pytest.raises(DevkitError, match=says):
        adapters.require_adapter_fits(saved, build_meta_model(folder), files)


@pytest.mark.parametrize(
    "config", [{"target_modules": 3}, {"eva_config": 3}, {"megatron_config": {"a": 1}}, {"lora_alpha": "x"}]
)
def test_what_peft_makes_of_an_adapters_configuration_is_one_line(folder, tmp_path, config):
    config = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], **config}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    saved = SavedAdapter(tmp_path, config, BaseReference(""))
    with pytest.raises(DevkitError, match=r"does not fit|adapter_config\.json"):
        adapters.require_adapter_fits(saved, build_meta_model(folder), inspect_model(folder))


def test_a_line_without_an_end_is_refused(tmp_path):
    (tmp_path / "data.jsonl").symlink_to("/dev/zero")
    with pytest.raises(DevkitError, match="is longer than 16 MiB"):
        list(RecordReader([str(tmp_path / "data.jsonl")]))


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data.parquet"])
def test_a_named_pipe_is_no_data(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DevkitError, match="is a pipe"):
        RecordReader([str(tmp_path / name)])


def test_a_chat_of_a_million_turns_is_refused(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"messages": [' + '{"role": "user", "content": ""},' * 10_000 + "{}]}")
    with pytest.raises(DevkitError, match="more than 10,000 turns"):
        list(RecordReader([str(tmp_path / "data.jsonl")]))


@pytest.mark.parametrize("name", ["tokenizer.json", "special_tokens_map.json", "chat_template.jinja"])
def test_a_file_that_would_fill_the_memory_is_refused(folder, name):
    with (folder / name).open("wb") as file:
        file.truncate(200 << 20)
    with pytest.raises(DevkitError, match="is larger than"):
        inspect_model(folder)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"num_hidden_layers": 10**9}, "which its weights do not contain"),
        ({"hidden_size": 10**6}, "parameters, but the weights have"),
        ({"hidden_size": 10**12}, "parameters, but the weights have"),
        ({"vocab_size": 10**12}, "parameters, but the weights have"),
        ({"pad_token_id": 10**12}, "cannot build the model"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_configuration_that_the_weights_do_not_hold_is_refused(folder, changed, says):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(DevkitError, match=says):
        build_meta_model(inspect_model(folder).folder)
