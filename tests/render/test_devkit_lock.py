"""devkit.lock: what is written can be read again, of every schema."""

import json

import pytest

from devkit.errors import DevkitError
from devkit.facts.values import ComputeCapability, Release
from devkit.render.devkit_lock import parse_lock, render_lock
from devkit.render.files import Artifact
from devkit.solver.plan import Machine

from .plans import GPU_PLAN

MACHINE = Machine(
    driver=Release.parse("570.124.06"),
    cuda=Release.parse("12.8"),
    gpus=(("NVIDIA GeForce RTX 4090", ComputeCapability(8, 9)),),
    machine="x86_64",
    platform="linux",
    glibc=Release.parse("2.36"),
    origin="this machine",
    notes=("GPU 1 does not answer",),
    amd_gpus=(("MI300X", "gfx942"),),
    toolkit=Release.parse("1.18.0"),
)
EMPTY = Machine(driver=None, cuda=None, gpus=(), machine="aarch64", platform="wsl2", glibc=None, origin="the flags")


def test_machines_come_back_as_they_were():
    lock = parse_lock(render_lock(GPU_PLAN, (), (MACHINE, EMPTY)).content)
    assert lock.machines == (MACHINE, EMPTY)
    assert str(lock.machines[0].driver) == "570.124.06"


@pytest.mark.parametrize("text", ["", "\n", "one\n", "one", "\r\ntwo\r\n\n", "\ufeffé 大\n", 'quote " \\ \u2028'])
def test_texts_come_back_as_they_were(text):
    lock = parse_lock(render_lock(GPU_PLAN, (Artifact.from_text("a", text),)).content)
    assert lock.files["a"].text == text


def test_what_is_no_text_or_written_by_programs_is_named_and_not_kept():
    artifacts = (
        Artifact("x.whl", b"\xff"),
        Artifact.from_text("large.txt", "x" * 70_000),
        Artifact.from_text("a.lock", "x\n"),
    )
    lock = parse_lock(render_lock(GPU_PLAN, artifacts).content)
    assert {path: written.text for path, written in lock.files.items()} == dict.fromkeys(lock.files)


def test_repaired_files_come_back_with_their_codes():
    lock = parse_lock(render_lock(GPU_PLAN, (), (), {"b": ("PRJ020",), "a": ("PRJ022", "PRJ026")}).content)
    assert list(lock.repaired.items()) == [("a", ("PRJ022", "PRJ026")), ("b", ("PRJ020",))]


@pytest.mark.parametrize("key", ["machines", "files", "repaired", "plan"])
@pytest.mark.parametrize("value", [1, "x", [1], {"a": 1}, None], ids=repr)
def test_a_damaged_part_is_one_line(key, value):
    document = json.loads(
        render_lock(GPU_PLAN, (Artifact.from_text("a", "b"),), (MACHINE,), {"a": ("PRJ020",)}).content
    )
    document[key] = value
    try:
        parse_lock(json.dumps(document).encode())
    except DevkitError as refusal:
        assert "devkit.lock" in refusal.message
