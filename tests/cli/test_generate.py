"""`devkit generate` from its flags to what it prints, in this process and as a program of its own."""

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from devkit.cli import devkit
from devkit.errors import DevkitError
from devkit.estimate.settings import Precision

pytestmark = pytest.mark.workload


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small Llama that was made for chats."""
    from tests.workload.small_models import CHATML, save_model

    return save_model(tmp_path_factory.mktemp("base"), chat_template=CHATML)


def run(*arguments, given=None):
    """What the command prints on both streams."""
    return CliRunner().invoke(devkit, ["generate", *map(str, arguments)], input=given, catch_exceptions=False)


def refused(*arguments, given=None):
    """The line with which the command refuses."""
    with pytest.raises(DevkitError) as error:
        CliRunner().invoke(devkit, ["generate", *map(str, arguments)], input=given, catch_exceptions=False)
    return error.value


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--help"], "--merge DIR"),
        (["--prompt", "a", "--model", "./nowhere"], "the model ./nowhere does not exist"),
        (["--merge", "out", "--adapter", "./nowhere"], "'./nowhere' does not exist"),
    ],
    ids=["help", "an absent model", "an absent adapter"],
)
def test_what_needs_no_torch_does_not_import_it(arguments, shown):
    code = (
        "import sys\nfrom devkit.cli import devkit\n"
        f"try: devkit(['generate', *{arguments!r}])\nfinally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown in done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("False")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "a", "--merge", "out"], "--prompt and --merge cannot be used together"),
        (["--merge", "out", "--json"], "--merge does not print JSON"),
        (["--prompt", "a", "--top-p", "0.5"], "but temperature 0 leaves no choice"),
        (["--prompt", "a", "--stop", ""], "--stop is empty"),
        (["--prompt", "a", "--temperature", "nan"], "must be finite numbers"),
        (["--prompt", "a", "--temperature", "inf"], "must be finite numbers"),
        (["--prompt", "a", "--temperature", "1", "--top-p", "nan"], "must be finite numbers"),
        (["--prompt", "a", "--temperature", "1e-45"], "--temperature 1e-45 is too small to divide by"),
        (["--prompt", " ", "--model", "."], "--prompt: the prompt is empty"),
        (["--prompt", "a\udcff", "--model", "."], "--prompt: the prompt is not UTF-8"),
        (["--model", "."], "standard input: the prompt is empty"),
        (["--prompt", "a"], "no model was given"),
        (["--prompt", "a", "--model", "./nowhere"], "the model ./nowhere does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(arguments, message):
    assert message in refused(*arguments).message


@pytest.mark.full
def test_one_prompt_is_answered_in_text_and_in_json_alike(model):
    shown = run("--model", model, "--prompt", "hello", "--max-new-tokens", 12)
    document = json.loads(run("--model", model, "--prompt", "hello", "--max-new-tokens", 12, "--json").stdout)
    assert document["schema"] == "devkit.generate/1"
    (answer,) = document["answers"]
    assert answer["prompt"] == "hello"
    assert shown.stdout == answer["answer"] + "\n"
    assert document["speed"]["tokens"] == answer["tokens"]


@pytest.mark.full
def test_the_chat_template_is_used_unless_prompts_are_raw(model):
    chat = run("--model", model, "--prompt", "hello", "--max-new-tokens", 12).stdout
    raw = run("--model", model, "--prompt", "hello", "--max-new-tokens", 12, "--raw").stdout
    written = run(
        "--model", model, "--prompt", "<|user|>hello</s><|assistant|>", "--max-new-tokens", 12, "--raw"
    ).stdout
    assert chat != raw
    # Written by hand there is a beginning of text before it, which this template leaves out.
    assert written != raw


@pytest.mark.full
def test_a_prompt_comes_from_standard_input_too(model):
    piped = run("--model", model, "--max-new-tokens", 8, given="hello\n").stdout
    assert piped == run("--model", model, "--max-new-tokens", 8, "--prompt", "hello").stdout
    assert piped == run("--model", model, "--max-new-tokens", 8, "--prompt", "-", given="hello").stdout


@pytest.mark.full
def test_what_is_piped_and_is_not_utf_8_is_refused_and_a_mark_in_front_of_it_is_no_part_of_it(model):
    assert "standard input: the prompt is not UTF-8" in refused("--model", model, given=b"caf\xe9\n").message
    piped = run("--model", model, "--max-new-tokens", 8, given=b"\xef\xbb\xbfhello\n").stdout
    assert piped == run("--model", model, "--max-new-tokens", 8, "--prompt", "hello").stdout


@pytest.mark.full
def test_a_file_is_answered_line_by_line_in_its_order(model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    prompts = [
        {"prompt": "short"},
        {"prompt": "much longer than the first"},
        {"messages": [{"role": "user", "content": "x"}]},
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in prompts))
    found = [
        json.loads(line) for line in run("--model", model, "--file", file, "--max-new-tokens", 8).stdout.splitlines()
    ]
    assert [each.get("prompt") for each in found] == ["short", "much longer than the first", None]
    alone = run("--model", model, "--prompt", "short", "--max-new-tokens", 8).stdout
    assert found[0]["answer"] + "\n" == alone
    assert found[2]["messages"] == prompts[2]["messages"]


@pytest.fixture
def of_a_chat(tmp_path):
    """An adapter with a chat template, on a base that has none."""
    from devkit.workload.finetune import model as adapters
    from devkit.workload.finetune.files import LoadSettings
    from devkit.workload.finetune.model import load_base_and_tokenizer
    from devkit.workload.finetune.settings import FinetuneSettings
    from tests.workload.small_models import CHATML, save_model, save_trained_adapter

    loaded = load_base_and_tokenizer(f"{save_model(tmp_path / 'base')}", LoadSettings())
    loaded.tokenizer.chat_template = CHATML
    settings = FinetuneSettings(model="", data=(), output=tmp_path, rank=4)
    save_trained_adapter(
        adapters.attach_adapter(loaded.model, settings, precision=Precision.FP32), tmp_path / "adapter", loaded
    )
    return tmp_path / "adapter"


@pytest.mark.full
def test_a_merged_model_knows_the_chats_that_its_adapter_learned_from_and_nothing_else_is_said(of_a_chat, tmp_path):
    argv = [sys.executable, "-m", "devkit", "generate", "--adapter", f"{of_a_chat}", "--merge", f"{tmp_path / 'whole'}"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    # No word of libraries about what they lack.
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["Merged"]
    words = ("--prompt", "hello", "--max-new-tokens", 4)
    answered = run("--model", tmp_path / "whole", *words)
    assert answered.exit_code == 0
    assert answered.stdout == run("--adapter", of_a_chat, *words).stdout


@pytest.mark.full
def test_ctrl_c_ends_a_streamed_answer_with_what_there_is_of_it_and_exit_code_130(tmp_path):
    from tests.workload.small_models import save_model

    # Long enough that the signal comes in the middle: this model ends no answer to this prompt by itself.
    model = save_model(tmp_path, seed=3, max_position=4096)
    argv = [
        sys.executable,
        "-m",
        "devkit",
        "generate",
        "--model",
        f"{model}",
        "--prompt",
        "two words",
        "--max-new-tokens",
        "4000",
    ]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, complaints = process.communicate(timeout=120)
    assert process.returncode == 130, complaints
    assert first
    assert rest.endswith(b"\n")
    assert b"Traceback" not in complaints
