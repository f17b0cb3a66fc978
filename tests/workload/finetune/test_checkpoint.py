"""Checkpoints are whole or not there, the newest good one wins, and what the disk refuses loses nothing."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.workload

from transformers import LlamaForCausalLM

from devkit.errors import DevkitError
from devkit.workload.finetune import checkpoint
from devkit.workload.finetune.checkpoint import TrainProgress
from tests.workload.finetune.disks import files_of_at_most, made_read_only, mounted
from tests.workload.finetune.small_run import ALONE, adapted, made, step, tiny_llama, trained

SETTINGS = {"rank": 4, "seed": 0}


@pytest.fixture(scope="module")
def state():
    """A run that took one step, so that its optimizer remembers something."""
    run = made(adapted())
    step(run, 0)
    return run


@pytest.fixture
def saved(tmp_path, state):
    """An output folder with the checkpoints of steps 10 and 20."""
    for number in (10, 20):
        save(tmp_path, state, number)
    return tmp_path


def save(output, state, number, **options):
    progress = TrainProgress(step=number, tokens=number * 24)
    return checkpoint.save_checkpoint(output, state, progress, settings=SETTINGS, ranks=ALONE, **options)


def newest(output, settings=SETTINGS):
    return checkpoint.find_newest_checkpoint(output, settings=settings, ranks=ALONE)


def names(output):
    return sorted(path.name for path in output.iterdir())


def flip_a_bit(path, *, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_the_newest_checkpoint_is_found_by_its_number_and_not_by_its_name(tmp_path, state):
    for number in (9, 10):
        save(tmp_path, state, number)
    found = newest(tmp_path)
    assert found.path == tmp_path / "step-10"
    assert found.manifest.progress == TrainProgress(step=10, tokens=240)
    assert found.broken == ()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is flushed")
def test_all_of_a_checkpoint_is_on_the_disk_before_it_takes_its_name(tmp_path, state, monkeypatch):
    done: list[Path] = []
    synced, replaced = os.fsync, Path.replace

    def fsync(descriptor):
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        synced(descriptor)

    def replace(path, target):
        done.append(target)
        return replaced(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    save(tmp_path, state, 10)
    named = done.index(tmp_path / "step-10")
    before, after = done[:named], done[named:]
    folder = before[-1]
    files = {path.name for path in (tmp_path / "step-10").iterdir()}
    assert {path.name for path in before if path.parent == folder} == files
    assert folder.parent == tmp_path, "the names of the files, at last"
    assert tmp_path in after, "the name of the folder"


@pytest.mark.parametrize("tied", [True, False], ids=["tied head", "head of its own"])
def test_transformers_reads_a_checkpoint_of_a_whole_model(tmp_path, tied):
    run = made(tiny_llama(tied=tied).train())
    step(run, 0)
    save(tmp_path, run, 1)
    loaded = LlamaForCausalLM.from_pretrained(str(tmp_path / "latest"))
    expected = dict(run.model.named_parameters())
    assert all(torch.equal(each, expected[name]) for name, each in loaded.named_parameters())


@pytest.mark.parametrize(("keep", "kept"), [(1, 2), (2, 2), (3, 3)], ids=["one alone is never kept", "two", "three"])
def test_keep_is_the_number_of_checkpoints(tmp_path, state, keep, kept):
    for number in range(1, 7):
        save(tmp_path, state, number, keep=keep)
    assert names(tmp_path) == ["latest", *(f"step-{number}" for number in range(7 - kept, 7))]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "optimizer.safetensors", "adapter_config.json"])
def test_a_broken_checkpoint_is_named_and_the_older_one_taken(saved, name):
    flip_a_bit(saved / "step-20" / name)
    found = newest(saved)
    assert found.path == saved / "step-10"
    assert found.broken == (f"step-20: {name} was changed after it was written",)
    assert names(saved) == ["latest", "step-10", "step-20.broken"]


def test_a_broken_checkpoint_is_gone_when_the_run_has_passed_it(saved, state):
    flip_a_bit(saved / "step-20" / "optimizer.safetensors")
    newest(saved)
    save(saved, state, 15)
    assert "step-20.broken" in names(saved)
    save(saved, state, 20)
    assert names(saved) == ["latest", "step-15", "step-20"]
    assert newest(saved).path == saved / "step-20"


def test_a_run_whose_checkpoints_are_all_broken_does_not_begin_anew_by_itself(saved):
    for number in (10, 20):
        flip_a_bit(saved / f"step-{number}" / "manifest.json", at=40)
    with pytest.raises(DevkitError, match=r"no checkpoint in .* can be resumed from: step-20: .*; step-10: "):
        newest(saved)
    assert names(saved) == ["latest", "step-10", "step-20"]


def test_a_checkpoint_of_other_settings_is_refused_with_what_differs(saved):
    with pytest.raises(DevkitError, match="step-20 was saved with different settings: rank was 4, now 8") as refused:
        newest(saved, {"rank": 8, "seed": 0})
    assert "--no-resume" in refused.value.hint


def test_a_link_to_a_checkpoint_elsewhere_is_skipped(saved, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "step-30"
    shutil.copytree(saved / "step-20", elsewhere)
    (saved / "step-30").symlink_to(elsewhere)
    found = newest(saved)
    assert found.path == saved / "step-20"
    assert found.broken == ("step-30: is not a separate folder",)
    assert names(elsewhere)


def test_a_checkpoint_is_never_written_through_a_link(saved, state, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (saved / "step-30").symlink_to(elsewhere)
    save(saved, state, 30)
    assert names(elsewhere) == []
    assert not (saved / "step-30").is_symlink()


def test_leftovers_of_killed_saves_are_swept_and_nothing_else(saved):
    for name in ("step-30.tmp", "step-10.old", "step-30.tmp-4711"):
        (saved / name).mkdir()
        (saved / name / "half").write_text("half")
    kept = ["step-x.tmp", "notes.tmp", "my step-30.tmp", "step-30.tmp-"]
    for name in kept:
        (saved / name).mkdir()
    found = newest(saved)
    assert found.path == saved / "step-20"
    assert names(saved) == sorted(["latest", "step-10", "step-20", *kept])


def test_a_leftover_that_is_a_link_loses_the_link_alone(saved, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "precious").write_text("mine")
    (saved / "step-30.tmp").symlink_to(elsewhere)
    newest(saved)
    assert names(saved) == ["latest", "step-10", "step-20"]
    assert names(elsewhere) == ["precious"]


def test_a_disk_that_fills_up_in_a_save_gives_one_line_and_loses_nothing(saved, state):
    with (
        files_of_at_most(5000),
        pytest.raises(DevkitError, match=r"cannot save step 30 into .*: File too large") as told,
    ):
        save(saved, state, 30)
    assert told.value.hint == "Free space. step-20 is untouched; the same command resumes from it."
    assert names(saved) == ["latest", "step-10", "step-20"]
    assert newest(saved).path == saved / "step-20"


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, state):
    with mounted(tmp_path / "disk", "size=160k") as disk:
        save(disk, state, 10)
        with pytest.raises(DevkitError, match=r"cannot save step 30 into .*: .* are free, .* needed"):
            for number in (20, 30):
                save(disk, state, number)
        assert names(disk) == ["latest", "step-10", "step-20"]
        assert newest(disk).broken == ()


def test_a_disk_too_small_for_what_is_kept_is_noticed_before_the_first_step(tmp_path, state):
    with mounted(tmp_path / "disk", "size=64k") as disk:
        with pytest.raises(DevkitError, match=r"has 64 KiB for checkpoints, but they need 1.*KiB"):
            checkpoint.require_checkpoint_space(disk, state, ranks=ALONE)
        assert names(disk) == []


def test_a_model_of_another_shape_is_refused_by_the_tensor_that_differs(saved):
    found = newest(saved)
    other = made(adapted(rank=8))
    before = trained(other)
    with pytest.raises(DevkitError, match=r"adapter_model.safetensors does not fit this model: .*lora_A"):
        checkpoint.load_checkpoint(found, other)
    assert all(torch.equal(each, before[name]) for name, each in trained(other).items())


@pytest.mark.parametrize(("world", "notes"), [(1, 0), (2, 1)])
def test_another_number_of_processes_is_noted(saved, world, notes):
    found = checkpoint._find_newest(saved, SETTINGS, world)
    assert len(found.notes) == notes
    assert all(note.startswith("saved by 1 process, resumed by 2 processes: ") for note in found.notes)


def test_a_checkpoint_that_another_machine_does_not_see_is_known(saved):
    found = newest(saved)
    assert checkpoint._is_visible(found) is True
    flip_a_bit(saved / "step-20" / "manifest.json", at=40)
    assert checkpoint._is_visible(found) is False


def test_a_read_only_disk_gives_one_line(tmp_path, state):
    with mounted(tmp_path / "disk", "size=1m") as disk:
        save(disk, state, 10)
        made_read_only(disk)
        with pytest.raises(DevkitError, match=r"cannot save step 20 into .*: Read-only file system") as told:
            save(disk, state, 20)
        assert told.value.hint.startswith("Make it writable by this user. step-10 is untouched")
        assert newest(disk).path == disk / "step-10"
