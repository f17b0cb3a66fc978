"""A bundle's contents and load.sh, which checks it before use; it takes its name only when it is whole."""

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
from devkit.render.changes import write_changes
from devkit.render.container.settings import FromIndex
from devkit.render.devkit_lock import parse_locked_plan
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.files import Artifact
from devkit.render.project import compute_project_changes, open_project
from devkit.solver.output import serialize_plan
from devkit.verify.bundle import (
    Bundle,
    BundleBuilder,
    build_bundle,
    prepare_bundle,
    prepare_partial_folder,
    require_disk_space,
)
from devkit.verify.dev_container import WorkingEngine
from tests.doctor.machines import healthy
from tests.render.gpu_host import every_shell
from tests.render.plans import CPU_PLAN, GPU_PLAN, UBUNTU_PLAN

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


ONE_PLAN = replace(CPU_PLAN, architectures=("x86_64",))


def written(root: Path, plan=ONE_PLAN, settings: ProjectSettings = ProjectSettings(name="Demo")) -> Path:  # noqa: B008 - frozen
    """A project as `devkit init` leaves it."""
    project = open_project(root, settings)
    write_changes(root, compute_project_changes(project, plan, source=FromIndex("0.1.0")))
    return root


def bundled(root: Path) -> Bundle:
    return prepare_bundle(open_project(root, ProjectSettings(wheelhouse=True)))


def content(bundle: Bundle, path: str) -> str:
    return next(file.content.decode() for file in (*bundle.files, *bundle.render_texts()) if file.path == path)


@pytest.mark.parametrize("plan", [CPU_PLAN, GPU_PLAN, UBUNTU_PLAN], ids=["the CPU", "a GPU", "Ubuntu"])
def test_the_plan_of_a_lock_is_the_plan_that_was_written(plan):
    assert parse_locked_plan(json.loads(json.dumps(serialize_plan(plan)))) == replace(plan, warnings=())


def test_the_files_are_those_of_a_build_from_a_wheelhouse_with_devkit_beside_them(tmp_path):
    bundle = bundled(written(tmp_path / "demo"))
    assert "wheelhouse = true" in content(bundle, "devkit.toml")
    assert "--no-index --find-links=/mnt/wheelhouse" in content(bundle, ".devcontainer/Dockerfile")
    assert any(file.path.startswith(".devcontainer/wheels/devkit_gpu-") for file in bundle.files)
    assert json.loads(content(bundle, "devkit.lock"))["plan"]["torch"] == ONE_PLAN.torch


def test_wheels_come_from_the_mirror_and_nothing_below_the_base_is_built_for_them(tmp_path):
    mirrors = ProjectSettings(
        name="Demo", index="https://pypi.example.org/simple", torch_index="https://t.example.org/whl"
    )
    text = bundled(written(tmp_path / "demo", settings=mirrors)).wheels_dockerfile
    assert "--index-url=https://t.example.org/whl/cpu torch==2.13.0" in text
    assert "ENV PIP_INDEX_URL=https://pypi.example.org/simple" in text
    assert text.count("type=secret,id=netrc") == text.count("pip wheel") == 4
    assert "uv pip install" not in text
    assert "useradd" not in text


ENGINE = """#!/bin/sh
echo "$@" >> "$0.calls"
case $1 in version) echo "${ARCHITECTURE:-amd64}" ;; esac
"""
"""Stands in for docker: load.sh asks it for its processor and hands it the image. Real engines are in tests/engine."""


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """A bundle with a wheel and an image of a few bytes."""
    bundle = bundled(written(tmp_path / "demo"))
    folder = tmp_path / "it's carried"
    files = {f"project/{file.path}": file.content for file in bundle.files}
    files |= {file.path: file.content for file in bundle.render_texts()}
    files |= {"wheelhouse/torch-2.13.0-cp311-none-any.whl": b"wheel", "images/base-amd64.tar": b"image"}
    for path, written_bytes in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(written_bytes)
    (folder / "project/.devcontainer/gpu.sh").chmod(0o755)
    sums = [f"{hashlib.sha256(written_bytes).hexdigest()}  {path}\n" for path, written_bytes in sorted(files.items())]
    (folder / "SHA256SUMS").write_text("".join(sums))
    (tmp_path / "bin").mkdir()
    for name in ("docker", "podman"):
        (tmp_path / "bin" / name).write_text(ENGINE)
        (tmp_path / "bin" / name).chmod(0o755)
    return folder.rename(tmp_path / "carried")


def load(folder: Path, *words: str | Path, shell: str = "sh", **environ: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATH": f"{folder.parent / 'bin'}:{os.environ['PATH']}"} | environ
    argv = [*(["busybox", "sh"] if shell == "busybox" else [shell]), str(folder / "load.sh"), *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd=folder.parent)


def settings(project: Path) -> list[str]:
    return (project / ".devcontainer/.env").read_text().splitlines()


@pytest.mark.parametrize("shell", every_shell)
def test_a_whole_bundle_is_loaded_and_named_in_the_project(carried, shell):
    done = load(carried, shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert hashlib.sha256((carried / "SHA256SUMS").read_bytes()).hexdigest() in done.stdout
    assert "load --input images/base-amd64.tar" in (carried.parent / "bin/docker.calls").read_text()
    wheels, image = settings(carried / "project")
    assert wheels == f"DEVKIT_WHEELHOUSE='{carried}/wheelhouse'"
    assert image.startswith("DEVKIT_BASE_IMAGE='localhost/devkit-base/demo:") and image.endswith("-amd64'")
    assert load(carried, shell=shell).returncode == 0
    assert len(settings(carried / "project")) == 2


@pytest.mark.parametrize("shell", every_shell)
@pytest.mark.parametrize(
    ("damage", "names"),
    [
        pytest.param("change", "wheelhouse/torch-2.13.0-cp311-none-any.whl", id="a wheel with another byte"),
        pytest.param("remove", "images/base-amd64.tar", id="an image that is gone"),
        pytest.param("add", "wheelhouse/torch-99-py3-none-any.whl", id="a wheel that is not listed"),
    ],
)
def test_a_bundle_that_is_not_as_written_is_refused_by_the_name_of_the_file(carried, damage, names, shell):
    path = carried / names
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes((path.read_bytes() if path.exists() else b"") + b"\n")
    done = load(carried, shell=shell)
    assert done.returncode == 1
    assert names in done.stderr
    assert not (carried / "project/.devcontainer/.env").exists()
    assert not (carried.parent / "bin/docker.calls").exists()


@pytest.mark.parametrize(
    ("environ", "says"),
    [pytest.param({"DEVKIT_ENGINE": "missing"}, "missing does not respond", id="an engine that does not exist")],
)
def test_an_engine_that_cannot_take_it_has_a_message_of_its_own(carried, environ, says):
    done = load(carried, **environ)
    assert (done.returncode, says in done.stderr) == (1, True)
