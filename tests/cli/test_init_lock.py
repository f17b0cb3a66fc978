"""`devkit init --lock` from the outside, with the real uv and wheels that lie here."""

import hashlib
import json
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.wheels import make_wheel

from .test_init import assert_refused, devkit, tree

PLAN = ("--vendor", "cpu", "--machine", "x86_64", "--python", "3.11")
LOCKS = {f".devcontainer/{name}.lock" for name in ("requirements", "torch", "tools", "installer")}


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A wheel for each package of the plan, and for each that devkit needs."""
    assert devkit("init", tmp_path / "draft", *PLAN).returncode == 0
    text = (tmp_path / "draft/.devcontainer/Dockerfile").read_text()
    folder = tmp_path / "wheels"
    folder.mkdir()
    pins = dict(re.findall(r"(?<!\S)([\w-]+)==([\w.+]+)(?=\s)", text))
    own = [Requirement(line) for line in requires("devkit-gpu") or [] if "extra ==" not in line]
    for name, version in {**{each.name: "999" for each in own}, **pins}.items():
        make_wheel(folder, name, version)
    return folder


@pytest.fixture
def locked(tmp_path: Path, wheels: Path) -> Path:
    root = tmp_path / "project"
    done = devkit("init", root, *PLAN, "--wheelhouse", wheels, "--lock-only", "python")
    assert done.returncode == 0, done.stderr
    return root


def test_the_lock_holds_the_hash_of_every_wheel_and_the_image_is_built_from_it(locked, wheels):
    project, tools = ((locked / f".devcontainer/{name}.lock").read_text() for name in ("requirements", "tools"))
    assert "\nuv==" not in project
    assert set(re.findall(r"sha256:(\w+)", project + tools)) == {
        hashlib.sha256(each.read_bytes()).hexdigest() for each in wheels.iterdir()
    }
    assert "--require-hashes" in (locked / ".devcontainer/Dockerfile").read_text()
    assert set(tree(locked)) >= LOCKS


def test_a_later_run_keeps_the_lock_without_asking_anybody(locked):
    before = tree(locked)
    again = devkit("init", locked, PATH="/nowhere")
    assert again.stdout.splitlines()[-1].startswith("unchanged"), again
    assert tree(locked) == before


def test_a_second_lock_of_the_same_wheels_changes_nothing(locked, wheels):
    before = tree(locked)
    assert devkit("init", locked, "--wheelhouse", wheels, "--lock-only", "python").returncode == 0
    assert tree(locked) == before


def test_another_plan_is_refused_until_the_lock_is_renewed_or_given_up(locked):
    before = tree(locked)
    assert_refused(devkit("init", locked, "--pin", "six==1.17.0"), "six==1.17.0")
    assert tree(locked) == before
    assert devkit("init", locked, "--pin", "six==1.17.0", "--no-lock").returncode == 0
    assert not LOCKS & set(tree(locked))
    assert "--require-hashes" not in (locked / ".devcontainer/Dockerfile").read_text()


def test_the_size_of_an_image_that_was_never_built_is_said_to_be_unknown(tmp_path):
    done = devkit("init", tmp_path, *PLAN, "--report")
    assert done.returncode == 0
    assert "size is not known" in done.stdout
    assert "docker compose -f .devcontainer/docker-compose.yml build" in done.stdout


def test_half_a_lock_is_none(tmp_path, wheels):
    root = tmp_path / "project"
    assert devkit("init", root, *PLAN, "--wheelhouse", wheels).returncode == 0
    before = tree(root)
    done = devkit("init", root, "--lock", DOCKER_HOST="tcp://127.0.0.1:9")
    assert done.returncode == 2
    assert "--lock-only python" in done.stderr
    assert tree(root) == before


def test_an_update_locks_anew_where_the_plan_has_changed_and_a_check_only_says_so(locked):
    settings = locked / "devkit.toml"
    settings.write_text(settings.read_text() + '\n[pins]\nsix = "1.17.0"\n')
    before = tree(locked)
    checked = devkit("update", locked, "--check", PATH="/nowhere")
    assert checked.returncode == 1
    assert (
        "would lock again: .devcontainer/requirements.lock does not fit: it does not hold six==1.17.0" in checked.stdout
    )
    assert json.loads(devkit("update", locked, "--dry-run", "--json").stdout)["verdict"] == "would-lock"
    assert tree(locked) == before


def test_an_update_with_a_changed_plan_takes_the_wheels_that_are_there(locked, wheels):
    settings = locked / "devkit.toml"
    settings.write_text(settings.read_text() + '\n[pins]\nsix = "1.17.0"\n')
    refused = devkit("update", locked, "--yes")
    assert refused.returncode == 2 and "six" in refused.stderr, "no wheel of it is here, so nothing was written"
    make_wheel(wheels, "six", "1.17.0")
    done = devkit("update", locked, "--yes")
    assert done.returncode == 0, done.stderr
    assert "six==1.17.0" in (locked / ".devcontainer/requirements.lock").read_text()
    assert devkit("update", locked, "--check").returncode == 0


def test_an_update_gives_the_lock_up_where_it_is_asked_to(locked):
    assert devkit("update", locked, "--no-lock", "--yes").returncode == 0
    assert not LOCKS & set(tree(locked))


def test_an_update_repeats_what_the_editors_drop(tmp_path):
    assert devkit("init", tmp_path, *PLAN, "--editor", "jetbrains").returncode == 0
    done = devkit("update", tmp_path)
    assert "JetBrains" in done.stdout
    assert "editors" in json.loads(devkit("update", tmp_path, "--json").stdout)
