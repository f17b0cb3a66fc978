"""devkit.lock: what is written can be read again, of every schema."""

import json

import pytest

from devkit.errors import DevkitError
from devkit.facts.values import ComputeCapability, Release
from devkit.render.artifact import Artifact
from devkit.render.lock import lock_artifact, read_lock
from devkit.solver.model import Machine

from .plans import GPU_PLAN

MACHINE = Machine(
    driver=Release.read("570.124.06"),
    cuda=Release.read("12.8"),
    gpus=(("NVIDIA GeForce RTX 4090", ComputeCapability(8, 9)),),
    machine="x86_64",
    platform="linux",
    glibc=Release.read("2.36"),
    origin="this machine",
    notes=("GPU 1 does not answer",),
    amd_gpus=(("MI300X", "gfx942"),),
    toolkit=Release.read("1.18.0"),
)
EMPTY = Machine(driver=None, cuda=None, gpus=(), machine="aarch64", platform="wsl2", glibc=None, origin="the flags")


def test_machines_come_back_as_they_were():
    lock = read_lock(lock_artifact(GPU_PLAN, (), (MACHINE, EMPTY)).content)
    assert lock.machines == (MACHINE, EMPTY)
    assert str(lock.machines[0].driver) == "570.124.06"


@pytest.mark.parametrize("text", ["", "\n", "one\n", "one", "\r\ntwo\r\n\n", "\ufeffé 大\n", 'quote " \\ \u2028'])
def test_texts_come_back_as_they_were(text):
    lock = read_lock(lock_artifact(GPU_PLAN, (Artifact.text("a", text),)).content)
    assert lock.files["a"].text == text


def test_what_is_no_text_or_written_by_programs_is_named_and_not_kept():
    artifacts = (Artifact("x.whl", b"\xff"), Artifact.text("large.txt", "x" * 70_000), Artifact.text("a.lock", "x\n"))
    lock = read_lock(lock_artifact(GPU_PLAN, artifacts).content)
    assert {path: written.text for path, written in lock.files.items()} == dict.fromkeys(lock.files)


def test_repaired_files_come_back_with_their_codes():
    lock = read_lock(lock_artifact(GPU_PLAN, (), (), {"b": ("PRJ020",), "a": ("PRJ022", "PRJ026")}).content)
    assert list(lock.repaired.items()) == [("a", ("PRJ022", "PRJ026")), ("b", ("PRJ020",))]


@pytest.mark.parametrize("key", ["machines", "files", "repaired", "plan"])
@pytest.mark.parametrize("value", [1, "x", [1], {"a": 1}, None], ids=repr)
def test_a_damaged_part_is_one_line(key, value):
    document = json.loads(lock_artifact(GPU_PLAN, (Artifact.text("a", "b"),), (MACHINE,), {"a": ("PRJ020",)}).content)
    document[key] = value
    try:
        read_lock(json.dumps(document).encode())
    except DevkitError as refusal:
        assert "devkit.lock" in refusal.message
