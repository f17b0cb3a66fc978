"""Every command that the workload's examples print, run as printed, and what it shows."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_commands import shell_commands

pytestmark = [
    pytest.mark.full,
    pytest.mark.workload,
    pytest.mark.skipif(sys.platform != "linux", reason="the commands run in forks of one process"),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs one line in a folder of a copy of the examples."""
    root = tmp_path_factory.mktemp("e")
    copy = shutil.copytree(EXAMPLES, root / "examples", ignore=shutil.ignore_patterns("expected"))

    with shell_commands(root) as environment:

        def run(name, line):
            done = subprocess.run(
                ["bash", "-c", line], cwd=copy / name, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            return done.stdout

        run.folder = copy
        yield run


def blocks(name, kind):
    """The blocks of one kind in an example's README, in order."""
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    return [body for found, body in BLOCK.findall(text) if found == kind]


def story_of(shell, name):
    """What every command of the README prints, by its line."""
    return {line: shell(name, line) for block in blocks(name, "sh") for line in block.splitlines()}


def last_event(text):
    """The last event of a run, as it was printed or written."""
    return json.loads(text.splitlines()[-1])


def test_a_model_answers_about_a_text_only_after_it_was_trained_on_it(shell):
    name = "ask-about-a-text"
    story = story_of(shell, name)
    shown_before, shown_after = blocks(name, "text")
    before, lora, qlora = (output for line, output in story.items() if "--file questions.txt" in line)
    truth = [json.loads(line)["text"] for line in (EXAMPLES / name / "text.jsonl").read_text().splitlines()]

    def sentences(output):
        told = [json.loads(line) for line in output.splitlines()]
        return [f"{each['prompt']}{each['answer']}." for each in told]

    assert sentences(before) == sentences(shown_before)
    assert not set(sentences(before)) & set(truth)
    assert sentences(lora) == sentences(shown_after) == truth
    assert sentences(qlora) == truth
    assert next(output for line, output in story.items() if "--model merged" in line) == " Marta Lind\n"
    for line, output in story.items():
        if "devkit finetune" in line:
            first, last = re.search(r"^done: loss (\S+) -> (\S+) in 40 steps", output, re.MULTILINE).groups()
            assert float(first) > 5
            assert float(last) < 0.15


def test_a_chat_model_learns_new_answers(shell):
    before, after = (output for line, output in story_of(shell, "chat-fine-tune").items() if "generate" in line)
    assert before == "I do not know.\n"
    assert after == "Marta Lind.\n"
    (shell.folder / "chat-fine-tune" / "other.jsonl").write_text('{"prompt": "What does she count?"}\n')
    more = shell("chat-fine-tune", "devkit generate --adapter run/adapter --file other.jsonl --max-new-tokens 24")
    assert json.loads(more)["answer"] == "The waves."


def test_an_interrupted_run_resumes_to_the_same_loss(shell):
    story = story_of(shell, "preemptible-run")
    ended = next(output for line, output in story.items() if "preempt.sh" in line)
    assert ended.splitlines()[-1] == "exit code 75"
    step = re.search(r"^stopped at step (\d+) \(preempted\), saved at step \1$", ended, re.MULTILINE)[1]
    assert 20 <= int(step) < 60
    resumed, straight = (last_event(output) for line, output in story.items() if line.startswith("tail"))
    assert resumed["step"] == straight["step"] == 60
    assert resumed["last_loss"] == straight["last_loss"]
