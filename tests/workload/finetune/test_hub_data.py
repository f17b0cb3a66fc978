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
NAMES = ("owner/gated", "owner/unknown", "owner/revoked", "owner/whole", "owner/whole:other", "owner/busy")


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
        found["forged"] = ask(stand_in.address, cache, "owner/gated", token="forged")[0]
        found["offline"] = ask(stand_in.address, cache, "owner/never", offline=True)[0]
    found["gone"] = ask(stand_in.address, cache, "owner/never")[0]
    return found


@pytest.mark.parametrize(
    ("name", "token", "message", "hint"),
    [
        ("owner/gated", "", "the data set owner/gated is gated, and no token is set (401)", "Accept its terms on"),
        ("owner/gated", "stranger", "gated, and your token's account has no access (403)", "Accept its terms on"),
        (
            "owner/unknown",
            "",
            "owner/unknown is not a file or folder here, and no such data set on the hub",
            "hf auth login",
        ),
        ("owner/unknown", "stranger", "no such data set on the hub", "private"),
        ("owner/revoked", "stranger", "your token cannot read the data set owner/revoked (403)", "permission"),
        ("owner/busy", "", "the hub rejects requests from this address for now (429)", "Wait"),
        ("owner/whole:other", "", "owner/whole", "owner/name:split"),
    ],
    ids=lambda value: value or "no token",
)
def test_every_refusal_of_data_has_a_line_of_its_own(answers, name, token, message, hint):
    said = answers[(name, token)]
    assert message in said[0]
    assert hint in said[1]
    assert "\n" not in said[0]
    assert not token or token not in "".join(said)


def test_a_token_that_the_hub_does_not_know_is_said_to_be_one(answers):
    assert answers["forged"][0] == "the hub does not accept your token (401)"


@pytest.mark.parametrize("case", ["offline", "gone"])
def test_an_unreachable_hub_is_reported_for_data(answers, case):
    assert answers[case][0].startswith("the data set owner/never is neither here nor in ")


def test_data_that_may_be_read_is_read(answers):
    assert answers[("owner/whole", "")] == ["rows", "one", "two"]
