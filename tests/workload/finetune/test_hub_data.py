"""What the library datasets makes of the hub's answers about data, and what a user then reads."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.workload.finetune.fake_hub import client_environment, hub

pytestmark = [
    pytest.mark.full,
    pytest.mark.workload,
    pytest.mark.skipif(
        importlib.util.find_spec("datasets") is None, reason="the optional library datasets is not installed"
    ),
]

ASK = """
import json, sys
from devkit.errors import DevkitError
from devkit.workload.finetune.records import RecordReader
for name in sys.argv[1:]:
    try:
        print(json.dumps(["rows", *(record.text for record in RecordReader([name]))]))
    except DevkitError as error:
        print(json.dumps([error.message, error.hint]))
"""
NAMES = ("owner/gated", "owner/unknown", "owner/whole", "owner/whole:other")


def ask(address, cache, *names, **more):
    """What reading each name gives, in a process of its own: the client reads its settings once."""
    environment = client_environment(address, cache, **more)
    argv = [sys.executable, "-c", ASK, *names]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, cwd=cache)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Name and token -> what is said, all asked of one hub."""
    folder, cache = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("cache")
    (folder / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    with hub({"datasets/owner/whole": folder}) as stand_in:
        found = {
            (name, token): answer
            for token in ("", "stranger")
            for name, answer in zip(NAMES, ask(stand_in.address, cache, *NAMES, token=token), strict=True)
        }
        found["offline"] = ask(stand_in.address, cache, "owner/never", offline=True)[0]
    found["gone"] = ask(stand_in.address, cache, "owner/never")[0]
    return found


@pytest.mark.parametrize(
    ("case", "says", "hint"),
    [
        (("owner/gated", ""), "gated", "hf auth login"),
        (("owner/gated", "stranger"), "gated", "hf auth login"),
        (("owner/unknown", ""), "doesn't exist", "hf auth login"),
        (("owner/whole:other", ""), "other", "owner/name:split"),
        ("offline", "reach", "give files"),
        ("gone", "reach", "give files"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_refusal_of_data_is_the_librarys_in_one_line(answers, case, says, hint):
    message, given = answers[case]
    assert message.startswith("the data set owner/") and says in message
    assert hint in given
    assert "\n" not in message and "stranger" not in message


def test_data_that_may_be_read_is_read(answers):
    assert answers[("owner/whole", "")] == ["rows", "one", "two"]
