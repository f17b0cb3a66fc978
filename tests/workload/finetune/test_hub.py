"""What the real client of the hub makes of the hub's answers, and what a user then reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.workload.finetune.files import HubRepository, explain_hub_error, find_similar_names, resolve_model_folder
from tests.workload.finetune.fake_hub import client_environment, hub

pytestmark = pytest.mark.workload

ASK = """
import json, sys
from devkit.errors import DevkitError
from devkit.workload.finetune.files import resolve_model_folder
for name in sys.argv[1:]:
    try:
        print(json.dumps(["folder", str(resolve_model_folder(name))]))
    except DevkitError as error:
        print(json.dumps([error.message, error.hint]))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A whole model, one of PyTorch's own format with a copy of everything beside it, and GGUF alone."""
    root = tmp_path_factory.mktemp("models")
    contents = {
        "whole": ("config.json", "model.safetensors", "tokenizer.json", "README.md", "consolidated.safetensors"),
        "old": ("config.json", "pytorch_model.bin", "vocab.txt", "original/params.json"),
        "both": ("config.json", "model.safetensors", "pytorch_model.bin"),
        "gguf": ("model.Q4_K_M.gguf",),
    }
    for name, files in contents.items():
        for file in files:
            (root / name / file).parent.mkdir(parents=True, exist_ok=True)
            (root / name / file).write_text(f"{name} {file}")
    return {f"owner/{name}": root / name for name in contents} | {"owner/gated": root / "whole"}


def ask(address, cache, *names, token="", offline=False):
    """What `resolve_model_folder` says of each name, in a process of its own: the client reads its settings once."""
    env = client_environment(address, cache, token=token, offline=offline)
    done = subprocess.run([sys.executable, "-c", ASK, *names], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def answers(models, tmp_path_factory):
    """Name and token -> what is said, all asked of one hub in two processes."""
    cache = tmp_path_factory.mktemp("cache")
    names = (
        "owner/gated", "owner/revoked", "owner/busy", "owner/broken", "owner/disabled", "owner/unknown",
        "owner/whole@other", "owner/gguf", "owner/whole", "owner/old", "owner/both", "owner/wholly",
    )  # fmt: skip
    with hub(models) as stand_in:
        found = {
            (name, token): answer
            for token in ("", "stranger")
            for name, answer in zip(names, ask(stand_in.address, cache, *names, token=token), strict=True)
        }
        found["forged"] = ask(stand_in.address, cache, "owner/whole", token="forged")[0]
        found["cached"] = ask(stand_in.address, cache, "owner/whole", "owner/unknown", "owner/hole", offline=True)
        found["address"] = stand_in.address
    found["gone"] = ask(stand_in.address, cache, "owner/whole", "owner/unknown")
    return found


@pytest.mark.parametrize(
    ("name", "token", "message", "hint"),
    [
        ("owner/gated", "", "gated, and no token is set (401)", "hf auth login"),
        ("owner/gated", "stranger", "gated, and your token's account has no access (403)", "with that account"),
        ("owner/unknown", "", "no such model on the hub (404)", "log in with"),
        ("owner/unknown", "stranger", "no such model on the hub (404)", "your token's account may not have access"),
        ("owner/revoked", "stranger", "your token cannot read owner/revoked (403)", "permission"),
        ("owner/disabled", "", "the hub has disabled owner/disabled", "for the reason"),
        ("owner/whole@other", "", "owner/whole has no branch, tag or commit other", "tree/main lists them"),
        ("owner/gguf", "", "has no config.json, so it is not a transformers model", "GGUF"),
        ("owner/wholly", "stranger", "no such model", "Did you mean owner/whole"),
    ],
    ids=lambda value: value or "no token",
)
def test_every_refusal_of_the_hub_has_a_line_of_its_own(answers, name, token, message, hint):
    said = answers[(name, token)]
    assert message in said[0]
    assert hint in said[1]
    assert "\n" not in said[0]
    assert not token or token not in "".join(said)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("owner/busy", "the hub rejects requests from this address for now (429)", "Wait a few minutes, or log in."),
        ("owner/broken", "the hub failed to respond for owner/broken (500)", "Try again later"),
    ],
)
def test_finetune_itself_ends_with_that_line_when_the_hub_answers_none(models, tmp_path, name, message, hint):
    (tmp_path / "a.txt").write_text("a text")
    words = ["finetune", "--model", name, "--data", str(tmp_path / "a.txt"), "--output", str(tmp_path / "out")]
    with hub(models) as stand_in:
        env = client_environment(stand_in.address, tmp_path / "cache")
        done = subprocess.run(
            [sys.executable, "-m", "devkit", *words], env=env, capture_output=True, text=True, timeout=120
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"Error: {message}"
    assert done.stderr.splitlines()[1].strip().startswith(hint)
    assert any(name in each for each in stand_in.asked)


@pytest.mark.parametrize(
    ("status", "message"),
    [(429, "rejects requests from this address for now (429)"), (500, "failed to respond"), (504, "504")],
)
def test_an_answer_that_the_client_repeats_for_a_minute_has_its_line_too(status, message):
    import httpx2 as client
    from huggingface_hub.utils import hf_raise_for_status

    answer = client.Response(status, request=client.Request("HEAD", "https://huggingface.co/owner/name/resolve/main/x"))
    with pytest.raises(OSError, match=f"{status}") as raised:
        hf_raise_for_status(answer)
    refused = explain_hub_error(HubRepository("owner/name"), raised.value, nearest=())
    assert message in refused.message


def test_an_unknown_token_is_not_reported_as_a_gated_model(answers):
    assert answers["forged"][0] == "the hub does not accept your token (401)"


def files_of(answer):
    """The names of what was fetched."""
    assert answer[0] == "folder", answer
    return {f"{each.relative_to(answer[1])}" for each in Path(answer[1]).rglob("*") if each.is_file()}


def test_a_model_is_fetched_without_the_copies_for_other_programs(answers):
    assert files_of(answers[("owner/whole", "")]) == {"config.json", "model.safetensors", "tokenizer.json"}


def test_weights_in_pytorchs_own_format_are_fetched_where_there_are_no_others(answers):
    assert files_of(answers[("owner/old", "")]) == {"config.json", "pytorch_model.bin", "vocab.txt"}
    assert files_of(answers[("owner/both", "")]) == {"config.json", "model.safetensors"}


def test_what_the_cache_holds_is_used_offline_and_without_a_network(answers):
    whole, unknown, hole = answers["cached"]
    assert whole[0] == "folder"
    assert "HF_HUB_OFFLINE is set" in unknown[0]
    assert "Did you mean owner/whole" in hole[1]
    still_there, unknown = answers["gone"]
    assert still_there[0] == "folder"
    assert f"{answers['address']} cannot be reached" in unknown[0]


@pytest.mark.parametrize("name", ["./model", "/nowhere/model", "~/nowhere", "a/b/c", "model/", "back\\slash"])
def test_a_path_is_never_requested_from_the_hub(name):
    with pytest.raises(DevkitError, match=r"the model .* does not exist") as refused:
        resolve_model_folder(name)
    assert "owner/name" in refused.value.hint


def test_a_file_is_no_model(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(DevkitError, match="is a file"):
        resolve_model_folder(f"{tmp_path}/model.bin")


def test_a_folder_of_a_like_name_is_offered(tmp_path):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").touch()
    assert find_similar_names(f"{tmp_path}/my-modle") == (f"{tmp_path}/my-model",)
    assert find_similar_names(f"{tmp_path}/another") == ()
    assert find_similar_names("smollm-135m") == ("smollm2-135m",)
