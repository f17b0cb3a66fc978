"""A bundle grows in a folder of its own and takes its name only when it is whole; what was done is not done again."""

import hashlib
import json
import os
import stat
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.render.files import Artifact
from devkit.verify.bundle import Bundle, BundleBuilder, build_bundle, prepare_partial_folder, require_disk_space
from devkit.verify.dev_container import WorkingEngine
from tests.doctor.machines import healthy
from tests.render.plans import CPU_PLAN

PLAN = replace(CPU_PLAN, architectures=("x86_64",))
FILES = (
    Artifact.from_text("devkit.toml", "name = 'demo'\n"),
    Artifact.from_text(".devcontainer/Dockerfile", "FROM x\n"),
)
BUNDLE = Bundle(PLAN, "Demo", "localhost/devkit-base/demo:0123", FILES, "FROM x AS prepared\n", Path("/nowhere"))
TORCH, SIX = "torch-2.13.0-cp311-none-any.whl", "six-1.17.0-py2.py3-none-any.whl"

PROGRAM = f"""#!{sys.executable}
import hashlib, os, pathlib, sys
words, folder = sys.argv[1:], pathlib.Path(sys.argv[0]).parent
with open(folder / "calls", "a") as calls:
    calls.write(" ".join(words) + "\\n")
wheels = {{"{TORCH}": b"torch", "{SIX}": b"six"}}
out = pathlib.Path(next((word.partition("dest=")[2] for word in words if word.startswith("type=local")), "/nowhere"))
target = words[words.index("--target") + 1] if "--target" in words else words[0]
if (folder / "fails").exists() and (folder / "fails").read_text() in (target, " ".join(words)):
    sys.exit("no space left on device")
if target == "listing":
    out.mkdir(exist_ok=True)
    hashes = {{name: hashlib.sha256(content).hexdigest() for name, content in wheels.items()}}
    out.joinpath("sha256").write_text("".join(f"{{each}}  {{name}}\\n" for name, each in hashes.items()))
    out.joinpath("bytes").write_text("".join(f"{{len(b)}}  {{n}}\\n" for n, b in wheels.items()))
elif target == "wheels":
    out.mkdir(exist_ok=True)
    for name, content in wheels.items():
        out.joinpath(name).write_bytes(content)
elif target == "save":
    pathlib.Path(words[words.index("--output") + 1]).write_bytes(b"image")
elif target == "image":
    print("sha256:0123 5")
"""
"""Stands in for docker, to interrupt it at will. Real engines are in tests/engine."""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BundleBuilder:
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    engine = WorkingEngine(healthy().engine, ("docker", "compose"))
    return BundleBuilder(BUNDLE, engine, prepare_partial_folder(tmp_path / "out", force=False), None, lambda line: None)


def calls(builder: BundleBuilder, word: str) -> int:
    lines = (builder.folder.parent / "bin/calls").read_text().splitlines()
    return sum(word in line.split() for line in lines)


def fail_at(builder: BundleBuilder, target: str) -> None:
    (builder.folder.parent / "bin/fails").write_text(target)


def test_a_complete_bundle_gets_its_name_and_lists_every_file_with_its_hash(builder, tmp_path):
    document = build_bundle(builder, tmp_path / "out")
    out = tmp_path / "out"
    assert not builder.folder.exists()
    listed = {file["path"]: file["sha256"] for file in document["files"]} | {"manifest.json": "", "SHA256SUMS": ""}
    assert set(listed) == {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert listed[f"wheelhouse/{TORCH}"] == hashlib.sha256(b"torch").hexdigest()
    checked = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=False)
    assert checked.returncode == 0
    assert json.loads((out / "manifest.json").read_text())["wheels"][0]["name"] == "six"


@pytest.mark.parametrize("target", ["prepared", "save", "listing", "wheels"])
def test_after_a_failure_there_is_no_bundle_and_the_next_run_continues(builder, tmp_path, target):
    fail_at(builder, target)
    with pytest.raises(DevkitError, match="no space left") as failed:
        build_bundle(builder, tmp_path / "out")
    assert "Free " in failed.value.hint
    assert not (tmp_path / "out").exists()
    fail_at(builder, "nothing")
    saved_before = calls(builder, "save") if target in ("listing", "wheels") else 0
    build_bundle(builder, tmp_path / "out")
    assert (tmp_path / "out/SHA256SUMS").is_file()
    if saved_before:
        assert calls(builder, "save") == saved_before


def test_existing_wheels_are_reused_and_damaged_ones_written_again(builder, tmp_path):
    house = builder.folder / "wheelhouse"
    house.mkdir()
    (house / TORCH).write_bytes(b"torch")
    (house / SIX).write_bytes(b"xis")
    (house / "left-over-1-py3-none-any.whl").write_bytes(b"")
    kept = (house / TORCH).stat().st_ino
    build_bundle(builder, tmp_path / "out")
    assert (tmp_path / "out/wheelhouse" / TORCH).stat().st_ino == kept
    assert (tmp_path / "out/wheelhouse" / SIX).read_bytes() == b"six"
    assert {path.name for path in (tmp_path / "out/wheelhouse").iterdir()} == {TORCH, SIX}


def test_a_tar_is_reproducible_and_anonymous(builder, tmp_path):
    build_bundle(builder, tmp_path / "one.tar")
    again = replace(builder, folder=prepare_partial_folder(tmp_path / "two.tar", force=False))
    build_bundle(again, tmp_path / "two.tar")
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert "one/load.sh" in archive.getnames()
        assert {entry.uname for entry in archive} == {"root"}
        assert archive.getmember("one/load.sh").mode & 0o111
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path):
    with pytest.raises(DevkitError, match=r"needs .* more, .* left"):
        require_disk_space(tmp_path, 1 << 63)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        pytest.param(
            lambda out: (out.mkdir(), (out / "thesis.tex").touch()), "holds other files", id="a folder of mine"
        ),
        pytest.param(lambda out: out.touch(), "exists already", id="a file"),
        pytest.param(lambda out: (out.mkdir(), (out / "SHA256SUMS").touch()), "exists already", id="an older bundle"),
    ],
)
def test_an_existing_output_is_not_overwritten(tmp_path, prepare, says):
    prepare(tmp_path / "out")
    with pytest.raises(DevkitError, match=says):
        prepare_partial_folder(tmp_path / "out", force=False)


def test_force_replaces_an_older_bundle_and_nothing_else(builder, tmp_path):
    old = tmp_path / "out"
    old.mkdir()
    (old / "SHA256SUMS").touch()
    (old / "images").mkdir()
    build_bundle(replace(builder, folder=prepare_partial_folder(old, force=True)), old)
    assert (old / "images/base-amd64.tar").read_bytes() == b"image"
    assert not [path for path in tmp_path.iterdir() if "before" in path.name]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    with pytest.raises(DevkitError, match="holds other files"):
        prepare_partial_folder(tmp_path / "mine", force=True)
