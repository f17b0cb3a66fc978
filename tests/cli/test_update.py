"""`devkit update` from the outside: new versions come in and are named, edits stay, and CI hears of drift."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.cli.update import list_version_changes
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import Resolved
from devkit.render.devkit_lock import parse_lock, parse_locked_plan, render_lock
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve
from tests.cli.test_init import GPU, assert_refused, devkit, tree
from tests.hosts.golden import facts_file

DOCKERFILE = ".devcontainer/Dockerfile"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a dev container for Python 3.12."""
    assert devkit("init", tmp_path, *GPU, "--python", "3.12").returncode == 0
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_nothing_to_do(project):
    before = tree(project)
    done = devkit("update", project)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "up to date: nothing to change.")
    assert tree(project) == before


def test_an_edit_stays_and_another_choice_comes_in(project):
    with (project / DOCKERFILE).open("a") as file:
        file.write("\n# ours\nRUN echo ours\n")
    edit(project / "devkit.toml", 'python = "3.12"', 'python = "3.11"')
    done = devkit("update", project)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"merge   {DOCKERFILE}" in done.stdout
    text = (project / DOCKERFILE).read_text()
    assert "FROM python:3.11" in text
    assert text.endswith("# ours\nRUN echo ours\n")
    assert devkit("update", project).stdout.splitlines()[-1] == "up to date: nothing to change."


def test_check_prints_the_difference_writes_nothing_and_ends_with_one(project):
    assert devkit("update", project, "--check").returncode == 0
    edit(project / "devkit.toml", 'python = "3.12"', 'python = "3.11"')
    before = tree(project)
    done = devkit("update", project, "--check")
    assert done.returncode == 1
    assert "+FROM python:3.11" in done.stdout
    assert tree(project) == before


@pytest.mark.parametrize("flag", ["--dry-run", "--json --dry-run"])
def test_a_dry_run_writes_nothing_and_ends_well(project, flag):
    edit(project / "devkit.toml", 'python = "3.12"', 'python = "3.11"')
    before = tree(project)
    assert devkit("update", project, *flag.split()).returncode == 0
    assert tree(project) == before


@pytest.fixture
def wheel(project: Path) -> Path:
    """The wheel of devkit in the project, which git leaves out."""
    (found,) = (project / ".devcontainer/wheels").glob("*.whl")
    return found


def test_a_clone_without_the_wheel_has_not_drifted_and_an_update_writes_it(project, wheel):
    before = tree(project)
    wheel.unlink()
    done = devkit("update", project, "--check")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "up to date: nothing to change.")
    assert json.loads(devkit("update", project, "--check", "--json").stdout)["verdict"] == "unchanged"
    assert not wheel.exists()
    assert f"create  .devcontainer/wheels/{wheel.name}" in devkit("update", project).stdout
    assert tree(project) == before


def test_the_wheel_of_an_earlier_pull_is_replaced_and_is_no_drift(project, wheel):
    before = tree(project)
    wheel.write_bytes(b"what another devkit wrote")
    assert devkit("update", project, "--check").returncode == 0
    assert devkit("update", project).returncode == 0
    assert tree(project) == before


def test_a_conflict_is_marked_in_text_and_must_be_decided(project):
    edit(project / DOCKERFILE, "FROM python:3.12", "FROM registry.example.org/python:3.12")
    edit(project / "devkit.toml", 'python = "3.12"', 'python = "3.11"')
    done = devkit("update", project)
    assert done.returncode == 1
    assert f"conflict in {DOCKERFILE}, line" in done.stderr
    text = (project / DOCKERFILE).read_text()
    assert "<<<<<<< yours\n" in text
    assert "FROM registry.example.org/python:3.12" in text
    edit(project / "devkit.toml", 'python = "3.11"', 'python = "3.12"')
    assert_refused(devkit("update", project), "still contains a conflict")


def test_a_conflict_in_json_keeps_yours_and_says_what_devkit_wants(project):
    path = project / ".devcontainer/devcontainer.json"
    edit(path, json.loads(path.read_text())["name"], "ours")
    edit(project / "devkit.toml", "name = ", 'name = "other" # was: ')
    done = devkit("update", project)
    assert done.returncode == 1
    assert 'devkit:   "name": "other"' in done.stderr
    assert json.loads(path.read_text())["name"] == "ours"
    assert devkit("update", project).returncode == 0, "decided: the user's stays"


def test_the_json_document(project):
    edit(project / DOCKERFILE, "FROM python:3.12", "FROM mirror/python:3.12")
    edit(project / "devkit.toml", 'python = "3.12"', 'python = "3.11"')
    document = json.loads(devkit("update", project, "--json").stdout)
    assert (document["schema"], document["verdict"]) == ("devkit.update/1", "conflicts")
    (clashing,) = [file for file in document["files"] if "conflicts" in file]
    assert (clashing["path"], clashing["conflicts"][0]["is_marked"]) == (DOCKERFILE, True)


def test_the_plan_is_for_the_machines_of_the_lock_and_not_for_this_one(tmp_path):
    facts = facts_file("ubuntu-4090-ok")
    assert devkit("init", tmp_path, "--facts", facts).returncode == 0
    lock = json.loads((tmp_path / "devkit.lock").read_text())
    assert lock["machines"][0]["gpus"][0]["compute_capability"] == "8.9"
    done = devkit("update", tmp_path, "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_lock_there_is_nothing_to_update(tmp_path):
    assert_refused(devkit("update", tmp_path), "has no devkit.lock")


def resolved(*packages: str, limits: tuple[str, ...] = ()):
    machine = build_machine_from_flags(driver="570.124.06", gpus=("RTX 4090",))
    plan = solve(build_request(machines=(machine,), torch="2.13.0"), load_tables())
    pairs = tuple((name, version) for name, _, version in (each.partition("==") for each in packages))
    return replace(plan, packages=(("torch", "2.13.0"),), limits=limits, resolution=Resolved(pairs, ("b",), ("c 1",)))


def test_each_version_that_changes_is_said_with_its_reason():
    lock = parse_lock(render_lock(resolved("a==1", "b==2", "gone==1"), ()).content)
    assert list(list_version_changes(lock.plan, resolved("a==1", "b==3", "new==1"))) == [
        "b 2 → 3: the newest that fits",
        "gone 1 was removed, because no package requires it anymore",
        "new 1 is new, because a package requires it",
    ]
    assert not list(list_version_changes(lock.plan, resolved("a==1", "b==2", "gone==1")))
    assert not list(list_version_changes({}, resolved("a==1")))


def test_a_lock_gives_back_the_resolution_and_what_is_held_of_it():
    plan = resolved("a==1", "b==2", "torch==2.13.0", limits=("a<2", "a==1", "b==2"))
    read = parse_locked_plan(parse_lock(render_lock(plan, ()).content).plan)
    assert (read.resolution, read.limits) == (plan.resolution, plan.limits)
