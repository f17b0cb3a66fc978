"""A manifest says what a checkpoint held; anything else is noticed and named."""

import json

import pytest

from tests.cases import cases

pytestmark = pytest.mark.workload

from devkit.workload.finetune.checkpoint import (
    MANIFEST_FILE,
    BrokenCheckpointError,
    CheckpointManifest,
    FileRecord,
    TrainProgress,
    find_differences,
    read_manifest,
    verify_checkpoint,
)

WEIGHTS = b"0123456789abcdef"
RECORD = FileRecord(16, "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f")


@pytest.fixture
def folder(tmp_path):
    manifest = CheckpointManifest(
        progress=TrainProgress(step=20, tokens=4096, skipped=1, seconds=2.5, scaler={"scale": 1024.0}),
        settings={"rank": 8, "targets": ["q_proj", "v_proj"], "precision": None},
        world=2,
        versions={"torch": "2.13.0"},
        files={"weights": RECORD},
    )
    (tmp_path / "weights").write_bytes(WEIGHTS)
    (tmp_path / MANIFEST_FILE).write_text(manifest.text())
    return tmp_path


def test_a_whole_checkpoint_is_read_as_it_was_written(folder):
    manifest = verify_checkpoint(folder)
    assert manifest.progress == TrainProgress(step=20, tokens=4096, skipped=1, seconds=2.5, scaler={"scale": 1024.0})
    assert manifest.settings == {"rank": 8, "targets": ["q_proj", "v_proj"], "precision": None}
    assert (manifest.world, manifest.files) == (2, {"weights": RECORD})


def test_a_manifest_is_written_as_earlier_releases_read_it(folder):
    document = json.loads((folder / MANIFEST_FILE).read_text())
    assert document["sha256"] == "c466c8b3007d2907b08b68611af63b8d07ad0a9b392a8f33864a6889d7108051"
    assert sorted(document["content"]) == ["files", "progress", "settings", "versions", "world"]
    assert (folder / MANIFEST_FILE).read_text() == json.dumps(document, indent=1) + "\n"


@pytest.mark.parametrize("bit", [0, 7, 64, 127])
def test_one_flipped_bit_is_noticed(folder, bit):
    flipped = bytearray(WEIGHTS)
    flipped[bit // 8] ^= 1 << bit % 8
    (folder / "weights").write_bytes(flipped)
    with pytest.raises(BrokenCheckpointError, match="weights was changed after it was written"):
        verify_checkpoint(folder)


@pytest.mark.parametrize("kept", [0, 1, 15], ids=lambda kept: f"{kept} bytes of 16 left")
def test_a_truncated_file_is_noticed(folder, kept):
    (folder / "weights").write_bytes(WEIGHTS[:kept])
    with pytest.raises(BrokenCheckpointError, match=f"weights has {kept} bytes of 16"):
        verify_checkpoint(folder)


@cases(
    "spoil, says",
    {
        "a file is gone": (lambda folder: (folder / "weights").unlink(), "weights is missing"),
        "it has no manifest": (lambda folder: (folder / MANIFEST_FILE).unlink(), "manifest.json is missing"),
        "the manifest is a list": (lambda folder: (folder / MANIFEST_FILE).write_text("[]"), "is damaged"),
    },
)
def test_what_is_missing_or_no_manifest_is_named(folder, spoil, says):
    spoil(folder)
    with pytest.raises(BrokenCheckpointError, match=says):
        verify_checkpoint(folder)


def test_a_link_is_no_file_of_a_checkpoint(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "weights"
    (folder / "weights").replace(elsewhere)
    (folder / "weights").symlink_to(elsewhere)
    with pytest.raises(BrokenCheckpointError, match="weights is not a regular file"):
        verify_checkpoint(folder)


def test_a_manifest_of_another_form_is_named_by_its_form(folder):
    document = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps({**document, "schema": "devkit.checkpoint/9"}))
    with pytest.raises(
        BrokenCheckpointError, match=r"'devkit\.checkpoint/9', but this devkit reads devkit\.checkpoint/2"
    ):
        read_manifest(folder)


def test_other_texts_and_another_model_are_called_so_in_place_of_hashes():
    before = {"rank": 8, "model": "0f0f", "data": "abab"}
    assert find_differences(before, {**before, "data": "cdcd"}) == ["the data differ from the checkpoint's"]
    assert find_differences(before, {"rank": 9, "model": "1e1e", "data": "abab"}) == [
        "rank was 8, now 9",
        "the model differs from the checkpoint's",
    ]
    rows = {**before, "sequence": 64}
    assert find_differences(rows, {**rows, "sequence": 32, "data": "cdcd"}) == ["sequence was 64, now 32"]
