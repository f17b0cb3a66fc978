"""`devkit init` and `devkit update` in repositories with a dev container of their own, each messy in its own way.

tests/repositories/repositories.toml holds them as their authors left them; what init makes of each is recorded beside it,
as a difference of bytes.
"""

import difflib
import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from devkit.cli import devkit as commands
from devkit.doctor.model import Severity
from devkit.errors import DevkitError
from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_project
from tests.cli.test_init import GPU, tree
from tests.doctor.running import build_full_report
from tests.golden import assert_golden
from tests.hosts import facts_of
from tests.repositories import FOLDER, REPOSITORIES, write_repository

INSIDE = {"monorepo": "services/train"}
"""Where in the repository init is run."""
NAMES = sorted(REPOSITORIES)
OWN = ("devkit.toml", "devkit.lock")
OVERLAYS = ".devcontainer/devkit/"
"""The folder of devkit's own files in a project whose dev container is a Compose service."""
WITH_OVERLAY = ("compose-with-anchors", "env-files", "production-image")


@pytest.fixture
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a repository."""
    write_repository(request.param, tmp_path / "repository")
    (tmp_path / "repository/.git").mkdir()
    return tmp_path / "repository"


def devkit(*words: str | Path) -> Result:
    """Run the command line in this process: what it does with files is the same, and the start is spared."""
    result = CliRunner().invoke(commands, [str(word) for word in words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result


def home_of(repository: Path, name: str) -> Path:
    return repository / INSIDE.get(name, ".")


def difference(before: dict[str, bytes], after: dict[str, bytes]) -> str:
    """How the files changed; a carriage return is shown as \\r."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if path.endswith(OWN) or path.startswith(f"{OVERLAYS}gpu."):
            continue  # The scripts and the ways to a GPU are those of every project.
        old, new = (each.get(path, b"").decode().replace("\r", "\\r").split("\n") for each in (before, after))
        lines += [f"{line}\n" for line in difflib.unified_diff(old, new, path, path, lineterm="", n=0)]
    return "".join(lines)


def findings(root: Path, *, with_notes: bool = False) -> set[str]:
    """The codes of what the doctor says of the project's files where it cannot see the host, whatever this machine is."""
    facts = replace(facts_of("in-container-ok"), project=read_project(LocalHost(), project=str(root)))
    return {
        shown.check.code
        for shown in build_full_report(facts).findings
        if shown.check.code.startswith("PRJ") and (with_notes or shown.finding.severity is not Severity.NOTE)
    }


@pytest.mark.golden
@pytest.mark.parametrize(("repository", "name"), [(name, name) for name in NAMES], indirect=["repository"], ids=NAMES)
def test_init_changes_what_it_must_and_nothing_else(repository, name):
    before = tree(repository)
    done = devkit("init", home_of(repository, name), *GPU, "--json")
    assert (done.return_value, done.stderr) == (0, "")
    said = {left["code"] for left in json.loads(done.stdout)["left"]}
    assert findings(home_of(repository, name)) <= said, "what was repaired is gone, what was left is said"
    after = tree(repository)
    made = {path for path in after.keys() - before.keys() if not path.endswith(OWN)}
    beside = {path for path in made if not path.startswith(OVERLAYS) and path != ".gitignore"}
    assert beside == set(), "nothing is put beside the user's files"
    assert bool(made) == (name in WITH_OVERLAY), "and devkit's own folder is there only where it is used"
    edited = {path for path, content in before.items() if after[path] != content}
    ours = re.compile(r"(?:.*/)?(?:\.devcontainer/.*|\.devcontainer\.json|\.gitignore)")
    assert [path for path in edited if not ours.fullmatch(path)] == [], "what may serve a production image stays"
    assert_golden(FOLDER / f"{name}.diff", difference(before, after))
    again = devkit("init", home_of(repository, name))
    assert again.stdout.splitlines()[-1].startswith("unchanged"), again.stdout
    assert devkit("update", home_of(repository, name), "--check").return_value == 0
    assert tree(repository) == after


@pytest.mark.full
@pytest.mark.parametrize(("repository", "name"), [(name, name) for name in NAMES], indirect=["repository"], ids=NAMES)
def test_later_edits_of_the_user_stay_when_the_plan_changes(repository, name):
    root = home_of(repository, name)
    assert devkit("init", root, *GPU).return_value == 0
    edited = {}
    for path in (path for path in root.rglob("*") if path.is_file() and is_container_file(path)):
        end = b"\r\n" if b"\r\n" in path.read_bytes() else b"\n"
        mark = b"// mine" if path.suffix == ".json" else b"# mine"
        path.write_bytes(path.read_bytes() + mark + end)
        edited[path] = mark + end
    settings = root / "devkit.toml"
    settings.write_text(settings.read_text().replace('driver = "570.124.06"', 'driver = "580.95.05"'))
    done = devkit("update", root)
    assert (done.return_value, done.stderr) == (0, "")
    assert all(path.read_bytes().endswith(mark) for path, mark in edited.items())
    assert devkit("update", root, "--check").return_value == 0


def is_container_file(path: Path) -> bool:
    return path.suffix in (".json", ".yml", ".yaml") or "Dockerfile" in path.name


def test_of_the_named_baseline_three_kinds_of_faults_are_repaired_and_the_others_named(tmp_path):
    """A workshop's project: CUDA twice, nothing pinned, root, an engine's 64 MiB of shared memory, no compiler."""
    root = tmp_path / "seed"
    write_repository("seed", root)
    assert findings(root, with_notes=True) == {"PRJ020", "PRJ022", "PRJ023", "PRJ026", "PRJ029"}
    said = json.loads(devkit("init", root, *GPU, "--json").stdout)
    assert {each["code"] for each in said["repairs"]} == {"PRJ011", "PRJ020", "PRJ026"}
    assert {(each["code"], each["place"]) for each in said["left"]} == {
        ("PRJ022", ".devcontainer/Dockerfile:2"),
        ("PRJ023", ".devcontainer/Dockerfile:2"),
    }
    assert findings(root) == {"PRJ022", "PRJ023"}


def test_the_end_names_the_files_of_the_user_apart_from_those_of_devkit(tmp_path):
    root = tmp_path / "seed"
    write_repository("seed", root)
    yours = "2 files of yours (.devcontainer/Dockerfile, .devcontainer/devcontainer.json)"
    said = " ".join(devkit("init", root, *GPU, "--dry-run").stdout.split())
    assert said.endswith(f"would change {yours} and write 2 files of devkit's own; nothing was written.")
    said = " ".join(devkit("init", root, *GPU).stdout.split())
    assert f"repaired {yours}, and wrote 2 files of devkit's own. Next: read `git diff`" in said
    (root / "devkit.lock").unlink()
    said = " ".join(devkit("init", root).stdout.split())
    assert said.endswith("repaired none of your files, and wrote 1 file of devkit's own.")


@pytest.mark.parametrize(
    ("words", "flag"),
    [(("--lock",), "--lock"), (("--set", "hub=https://hub.example.org"), "--set")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_flag_of_files_that_the_repository_does_not_have_is_refused(tmp_path, words, flag):
    root = tmp_path / "seed"
    write_repository("seed", root)
    with pytest.raises(DevkitError, match=f"^{flag} would change nothing: .*devcontainer.json$"):
        devkit("init", root, *GPU, *words)
    assert not (root / "devkit.toml").exists()
    assert devkit("init", root, *GPU).return_value == 0


def init_killed_before(name, root):
    """Run `devkit init` in a process that is killed before the file of this name is put in its place."""
    child = os.fork()
    if child == 0:

        def kill(event, arguments):
            if event == "os.rename" and Path(arguments[0]).name == f"{name}.devkit-new":
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill)
        devkit("init", root, *GPU)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["seed", "production-image"], ids=["an image", "Compose"])
@pytest.mark.parametrize("before", [".devcontainer.json", ".devkit.lock"], ids=["the first half", "all but the lock"])
def test_after_a_kill_between_two_files_the_next_run_ends_where_a_whole_one_does(tmp_path, name, before):
    whole, killed = tmp_path / "whole/project", tmp_path / "killed/project"
    for root in (whole, killed):
        write_repository(name, root)
    devkit("init", whole, *GPU)
    init_killed_before(before, killed)
    assert not (killed / "devkit.lock").exists()
    devkit("init", killed, *GPU)
    assert tree(killed) == tree(whole)


WITH_RESERVATION = {
    "compose.yaml": "services:\n  app:\n    image: pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime\n    command: sleep infinity\n"
    "    runtime: nvidia\n    deploy:\n      resources:\n        reservations:\n          devices:\n"
    "            - driver: nvidia\n              count: 1\n              capabilities: [gpu]\n",
    ".devcontainer/devcontainer.json": '{"dockerComposeFile": "../compose.yaml", "service": "app", "workspaceFolder": "/w"}\n',
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_adoption_killed_before_its_last_file_is_finished_by_the_next_command(tmp_path):
    whole, killed = tmp_path / "whole/project", tmp_path / "killed/project"
    for root in (whole, killed):
        for name, text in WITH_RESERVATION.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    devkit("init", whole, *GPU)
    init_killed_before(".devkit.lock", killed)
    with pytest.raises(DevkitError, match="an earlier devkit was interrupted while it wrote"):
        devkit("update", killed, "--check")
    done = devkit("update", killed, "--yes")
    assert "finished the changes of an interrupted devkit:" in done.output
    assert tree(killed) == tree(whole)
    assert "asks for no GPU" not in devkit("init", killed, *GPU).output
