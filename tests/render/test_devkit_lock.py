"""devkit.lock: what is written can be read again, of every schema."""

import json
import subprocess

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


@pytest.mark.parametrize("text", ["", "one\n", "\r\ntwo\r\n", "\ufeffé 大\n"])
def test_a_file_is_known_by_the_id_that_git_gives_it(text, tmp_path):
    lock = parse_lock(render_lock(GPU_PLAN, (Artifact.from_text("a", text),)).content)
    (tmp_path / "a").write_bytes(text.encode())
    git = subprocess.run(["git", "hash-object", "--no-filters", str(tmp_path / "a")], capture_output=True, check=True)
    assert lock.files == {"a": git.stdout.decode().strip()}


def test_a_file_that_is_kept_out_of_version_control_is_named_alone():
    lock = parse_lock(render_lock(GPU_PLAN, (Artifact("x.whl", b"\xff", is_local=True),)).content)
    assert lock.files == {"x.whl": ""}


def test_a_review_of_the_lock_sees_a_line_for_each_file_reason_and_machine():
    files = (Artifact.from_text("a", "b"), Artifact.from_text("c", "d"))
    lines = render_lock(GPU_PLAN, files, (MACHINE,)).content.decode().splitlines()
    assert len([line for line in lines if '"because"' in line]) == len(GPU_PLAN.reasons)
    assert len([line for line in lines if line.startswith('    "a": ')]) == 1
    assert len(lines) < 50


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
