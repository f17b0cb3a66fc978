"""Locks, made by the real uv from wheels that lie here, and digests as engines and registries tell them."""

import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.render.container.image_locks import LockRequirements, find_lock_mismatch
from devkit.verify.locking import PackageSources, pin_image, resolve_lock
from tests.cases import cases
from tests.wheels import make_index, make_wheel

ONE = LockRequirements("3.11", ("x86_64",), "cpu", ("torch==2.13.0", "uv==0.13.9"))
BOTH = replace(ONE, machines=("x86_64", "aarch64"))
CPU = "2.13.0+cpu"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    make_wheel(folder, "uv", "0.13.9")
    make_wheel(folder, "sympy", "1.14.0")
    make_wheel(folder, "torch", CPU, requires=["sympy>=1.13"], tag="cp311-cp311-manylinux_2_28_x86_64")
    return folder


def locked(wanted: LockRequirements, sources: PackageSources) -> str:
    return resolve_lock(wanted, sources, progress=lambda _line: None)


def from_wheels(folder: Path, wanted: LockRequirements = ONE) -> str:
    return locked(wanted, PackageSources("https://unused.example.org", wheelhouse=folder))


def hashes(text: str) -> set[str]:
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))


def test_every_hash_is_that_of_a_file_in_the_wheelhouse(wheels):
    text = from_wheels(wheels)
    assert hashes(text) == {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels.iterdir()}
    assert find_lock_mismatch(text, ONE) == ""


@pytest.mark.full
def test_pip_accepts_the_lock_and_rejects_a_changed_wheel(wheels, tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text(from_wheels(wheels))
    plain = next(wheel for wheel in wheels.iterdir() if wheel.name.startswith("sympy"))
    words = ["download", "--quiet", "--no-index", f"--find-links={wheels}", "--require-hashes", "--no-deps"]
    target = ["--dest", tmp_path / "got", "--python-version=3.11", "--platform=manylinux_2_28_x86_64"]
    argv = [sys.executable, "-m", "pip", "--isolated", *words, *target, "--only-binary=:all:", "-r", lock]
    assert subprocess.run(argv, check=False, capture_output=True).returncode == 0
    shutil.rmtree(tmp_path / "got")
    plain.write_bytes(plain.read_bytes().replace(b"1.14.0", b"1.14.1", 1))
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_torch_comes_from_its_index_and_everything_else_from_the_other(wheels, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ours = list(wheels.iterdir())
    wrong = [make_wheel(elsewhere, "torch", "2.13.0"), make_wheel(elsewhere, "sympy", "1.13.0")]
    torch_index = make_index(tmp_path / "torch-index", [wheel for wheel in ours if "torch" in wheel.name] + wrong[1:])
    index = make_index(tmp_path / "index", [wheel for wheel in ours if "torch" not in wheel.name] + wrong[:1])
    text = locked(ONE, PackageSources(torch_index, index))
    assert f"torch=={CPU}" in text
    assert "sympy==1.14.0" in text


def test_the_triton_of_rocm_comes_from_torchs_index(wheels, tmp_path):
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    torch = make_wheel(wheels, "torch", "2.13.0+rocm6.4", requires=["triton-rocm==3.5", "sympy"], tag=tag)
    triton = make_wheel(wheels, "triton-rocm", "3.5", tag=tag)
    others = [wheel for wheel in wheels.iterdir() if wheel.name.startswith(("uv", "sympy"))]
    torch_index = make_index(tmp_path / "torch-index", [torch, triton])
    index = make_index(tmp_path / "index", [*others, make_wheel(tmp_path, "torch", "2.13.0")])
    text = locked(replace(ONE, variant="rocm6.4"), PackageSources(torch_index, index))
    assert "torch==2.13.0+rocm6.4" in text
    assert "triton-rocm==3.5" in text


def test_what_is_built_for_one_torch_comes_from_its_index_too(wheels, tmp_path):
    vision = make_wheel(wheels, "torchvision", "0.28.0+cpu", requires=["torch==2.13.0"])
    torch_index = make_index(tmp_path / "torch-index", [*wheels.glob("torch-*"), vision])
    others = [wheel for wheel in wheels.iterdir() if wheel.name.startswith(("uv", "sympy"))]
    index = make_index(tmp_path / "index", [*others, make_wheel(tmp_path, "torchvision", "0.28.0")])
    text = locked(
        replace(ONE, requirements=(*ONE.requirements, "torchvision>=0.27")), PackageSources(torch_index, index)
    )
    assert "torchvision==0.28.0+cpu" in text


def test_a_constraint_limits_a_version_and_installs_nothing(wheels):
    make_wheel(wheels, "sympy", "1.15.0")
    text = from_wheels(wheels, replace(ONE, constraints=("sympy<1.15", "scipy<2")))
    assert "sympy==1.14.0" in text
    assert "scipy==" not in text


def test_a_machine_without_a_wheel_is_named_and_nothing_is_locked(wheels):
    with pytest.raises(DevkitError, match="aarch64"):
        from_wheels(wheels, BOTH)


def test_both_machines_are_locked_in_one_file(wheels):
    arm = make_wheel(wheels, "torch", CPU, requires=["sympy"], tag="cp311-cp311-manylinux_2_28_aarch64")
    text = from_wheels(wheels, BOTH)
    assert hashlib.sha256(arm.read_bytes()).hexdigest() in hashes(text)
    assert "platform_machine == 'aarch64'" in text


def test_unsatisfiable_requirements_are_reported(wheels):
    with pytest.raises(DevkitError, match="cannot be locked") as caught:
        from_wheels(wheels, replace(ONE, requirements=("torch==9.9",)))
    assert "torch==9.9" in caught.value.hint


@pytest.mark.parametrize(("offline", "host"), [("0", " at 127.0.0.1:9"), ("1", "")])
@pytest.mark.full
def test_an_unreachable_index_is_reported(monkeypatch, offline, host):
    monkeypatch.setenv("UV_OFFLINE", offline)
    nowhere = "http://127.0.0.1:9/simple"
    with pytest.raises(DevkitError, match=f"uv cannot reach the package index{host}: ") as caught:
        locked(ONE, PackageSources(nowhere, nowhere))
    assert "--wheelhouse" in caught.value.hint


def test_a_hanging_uv_ends_at_the_deadline(wheels):
    with pytest.raises(DevkitError, match="no answer within 0 s"):
        resolve_lock(ONE, PackageSources("", wheelhouse=wheels), progress=lambda _line: None, deadline_s=0.0)


def test_without_uv_the_hint_says_how_to_get_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "uv", None)
    with pytest.raises(DevkitError, match="uv is not installed") as caught:
        locked(ONE, PackageSources("https://a.example/whl"))
    assert "pip install uv" in caught.value.hint


DIGEST = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64
ENGINE = """#!/bin/sh
case "$1 $2" in
    "image inspect") {inspect} ;;
    "buildx imagetools") {registry} ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def speaks(*, inspect: str = "exit 1", registry: str = "exit 1") -> None:
        program = tmp_path / "bin" / "docker"
        program.parent.mkdir(exist_ok=True)
        program.write_text(ENGINE.format(inspect=inspect, registry=registry))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return speaks


@cases(
    "reference, inspect, registry, expected",
    {
        "the engine has it": ("python:3.11-slim", f"echo '[\"python@{DIGEST}\"]'", "exit 1", DIGEST),
        "the engine has it from two places": (
            "python:3.11-slim",
            f'echo \'["mirror.example.org/x@{OTHER}","docker.io/library/python@{DIGEST}"]\'',
            "exit 1",
            DIGEST,
        ),
        "a port": ("localhost:5000/python:3.11", f"echo '[\"localhost:5000/python@{DIGEST}\"]'", "exit 1", DIGEST),
        "built here": ("python:3.11-slim", "echo '[]'", f'echo \'{{"digest":"{DIGEST}"}}\'', DIGEST),
        "the registry": ("python:3.11-slim", "exit 1", f'echo \'{{"digest":"{DIGEST}"}}\'', DIGEST),
        "null": ("python:3.11-slim", "echo null", f'echo \'{{"digest":"{DIGEST}"}}\'', DIGEST),
    },
)
def test_the_digest_comes_from_the_engine_or_else_the_registry(engine, reference, inspect, registry, expected):
    engine(inspect=inspect, registry=registry)
    assert pin_image(reference, program="docker") == f"{reference}@{expected}"


def test_an_image_with_a_digest_is_locked_already(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert pin_image(f"python:3.11@{DIGEST}", program="docker") == f"python:3.11@{DIGEST}"


@cases(
    "inspect, registry, says",
    {
        "no network": ("exit 1", "echo 'no such host' >&2; exit 1", "no such host"),
        "an answer without a digest": ("exit 1", "echo '{}'", "neither"),
        "answers that are no answers": ("echo 'not JSON'", "echo '[1]'", "neither"),
        "half a digest": ("echo '[\"python@sha256:12\"]'", "exit 1", "neither"),
    },
)
def test_an_unknown_digest_is_an_error(engine, inspect, registry, says):
    engine(inspect=inspect, registry=registry)
    with pytest.raises(DevkitError, match=says) as caught:
        pin_image("python:3.11-slim", program="docker")
    assert "--lock-only python" in caught.value.hint


def test_a_hanging_registry_ends_at_the_deadline(engine):
    engine(registry="sleep 30")
    with pytest.raises(DevkitError, match="no answer within"):
        pin_image("python:3.11-slim", program="docker", deadline_s=0.5)


def test_without_an_engine_the_hint_says_what_can_still_be_locked(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DevkitError, match="docker is not installed"):
        pin_image("python:3.11-slim", program="docker")
