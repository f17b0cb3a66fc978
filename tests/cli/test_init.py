"""`devkit init`, `update` and `template` from the outside: what they write, print and end with."""

import json
import subprocess
from pathlib import Path

import pytest

from devkit.cli.changes import print_plan
from tests.forked_commands import run_devkit
from tests.render.plans import GPU_PLAN

# `devkit init` from the outside: what it writes, prints and ends with.


GPU = ("--gpu", "RTX 4090", "--driver", "570.124.06")


def devkit(*words: str | Path, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with no terminal and no engine."""
    return run_devkit(*words, cwd=cwd, **{"DOCKER_HOST": "unix:///nowhere/docker.sock", "NO_COLOR": "1", **environ})


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def assert_refused(done: subprocess.CompletedProcess[str], says: str) -> None:
    """Exit 2, one line and a hint on stderr, nothing on stdout."""
    assert done.returncode == 2, done
    first, *hint = done.stderr.splitlines()
    assert first.startswith(("Error: ", "Usage: ")) and says in done.stderr
    assert hint
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_fresh_directory_and_a_second_run(tmp_path):
    root = tmp_path / "new"
    first = devkit("init", root, *GPU)
    assert (first.returncode, first.stderr) == (0, "")
    assert f"to the new folder {root}" in first.stdout
    before = tree(root)
    assert {"devkit.toml", "devkit.lock", ".devcontainer/Dockerfile", ".devcontainer/gpu.sh"} <= set(before)
    second = devkit("init", root)
    assert second.stdout.splitlines()[-1].startswith("unchanged")
    assert tree(root) == before


def test_flags_are_recorded_and_win_over_the_file(tmp_path):
    (tmp_path / "devkit.toml").write_text("# ours\nname = 'demo'\n\n[versions]\npython = '3.12'\n")
    assert devkit("init", tmp_path, *GPU, "--python", "3.11").returncode == 0
    text = (tmp_path / "devkit.toml").read_text()
    assert text.startswith("# ours\nname = 'demo'\n")
    assert 'python = "3.11"' in text
    assert "FROM python:3.11" in (tmp_path / ".devcontainer/Dockerfile").read_text()
    assert json.loads((tmp_path / ".devcontainer/devcontainer.json").read_text())["name"] == "demo"


def test_the_directorys_name_is_the_projects(tmp_path):
    root = tmp_path / "Ma Démo"
    assert devkit("init", root, *GPU).returncode == 0
    assert json.loads((root / ".devcontainer/devcontainer.json").read_text())["name"] == "Ma Démo"
    assert "name: ${DEVKIT_PROJECT:-ma-demo}" in (root / ".devcontainer/docker-compose.yml").read_text()


@pytest.mark.parametrize("flag", ["--dry-run", "--json --dry-run", "--diff --dry-run"])
def test_a_dry_run_writes_nothing(tmp_path, flag):
    done = devkit("init", tmp_path / "new", *GPU, *flag.split())
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_the_home_folder_is_taken_only_by_name(tmp_path):
    assert_refused(devkit("init", "--dry-run", *GPU, cwd=tmp_path, HOME=str(tmp_path)), "is your home folder")
    assert devkit("init", ".", "--dry-run", *GPU, cwd=tmp_path, HOME=str(tmp_path)).returncode == 0


def test_the_json_document(tmp_path):
    done = devkit("init", tmp_path, *GPU, "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "devkit.init/1"
    assert document["verdict"] == "written"
    assert {file["action"] for file in document["files"]} == {"create"}
    assert document["plan"]["torch"] == document["plan"]["packages"]["torch"]
    assert json.loads(devkit("init", tmp_path, "--json").stdout)["verdict"] == "unchanged"


def test_a_diff_shows_what_changes(tmp_path):
    devkit("init", tmp_path, *GPU, "--python", "3.12")
    done = devkit("init", tmp_path, "--python", "3.11", "--diff")
    assert "-FROM python:3.12" in done.stdout
    assert "+FROM python:3.11" in done.stdout
    assert "b/devkit.lock" not in done.stdout
    assert "update  devkit.lock" in done.stdout


@pytest.mark.parametrize("as_json", [False, True], ids=["as text", "as JSON"])
def test_a_conflict_ends_with_one_and_writes_nothing(tmp_path, as_json):
    done = devkit("init", tmp_path, "--gpu", "RTX 5090", "--torch", "2.1.0", *(["--json"] if as_json else []))
    assert done.returncode == 1
    if as_json:
        document = json.loads(done.stdout)
        assert (document["verdict"], document["plan"]) == ("conflict", None)
        assert document["conflict"]["blockers"]
    else:
        assert "conflict" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(("--gpu", "RTX 9999"), "RTX 9999", id="an unknown GPU"),
        pytest.param(("--torch", "banana"), "banana", id="a version that is none"),
        pytest.param(
            ("--set", 'name=a"b\n$(touch owned)'), "project name", id="a name full of quotes, newlines and commands"
        ),
        pytest.param(("--ca-certificate", "missing.pem"), "missing.pem", id="a certificate that does not exist"),
        pytest.param(("--wheelhouse", "missing"), "missing", id="a wheelhouse that does not exist"),
        pytest.param(("--vendor", "banana"), "banana", id="an unknown vendor"),
    ],
)
def test_wrong_input_writes_nothing(tmp_path, words, says):
    root = tmp_path / "new"
    assert_refused(devkit("init", root, *GPU, *words, cwd=tmp_path), says)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["a file", "a missing parent"])
def test_a_target_that_cannot_hold_files_is_refused(tmp_path, where):
    target = tmp_path / "target"
    if where == "a file":
        target.write_text("mine")
    else:
        target = target / "sub"
    assert_refused(devkit("init", target, *GPU), "target")


def test_a_foreign_dev_container_without_gpu_work_stays_as_it_is_even_with_force(tmp_path):
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer/devcontainer.json").write_text('{"image": "mine"}\n')
    done = devkit("init", tmp_path, *GPU, "--force")
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(tmp_path) == {".devcontainer/devcontainer.json": b'{"image": "mine"}\n'}


def test_a_foreign_dev_container_that_does_not_parse_is_named_with_its_line_and_nothing_is_written(tmp_path):
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer/devcontainer.json").write_text('{\n  "image": "mine"\n  "name": "x"\n}\n')
    before = tree(tmp_path)
    assert_refused(devkit("init", tmp_path, *GPU), ".devcontainer/devcontainer.json, line 3")
    assert tree(tmp_path) == before


def test_a_closed_network_is_recorded_without_a_path_of_this_host(tmp_path):
    from tests.render.test_certificates import AUTHORITY

    root, wheels = tmp_path / "project", tmp_path / "wheels of mine"
    wheels.mkdir()
    (wheels / "x-1-py3-none-any.whl").touch()
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    done = devkit("init", root, *GPU, "--ca-certificate", tmp_path / "ca.pem", "--wheelhouse", wheels)
    assert done.returncode == 0, done.stderr
    made = tree(root)
    assert made[".devcontainer/.env"].decode() == f"DEVKIT_WHEELHOUSE='{wheels}'\n"
    assert made[".devcontainer/certificates/ca.crt"].decode() == AUTHORITY
    committed = b"".join(content for path, content in made.items() if path != ".devcontainer/.env")
    assert str(tmp_path).encode() not in committed
    assert devkit("init", root).stdout.splitlines()[-1].startswith("unchanged")


def test_files_for_windows_come_when_they_are_wanted(tmp_path):
    more = {".devcontainer/gpu.ps1", ".devcontainer/.gitattributes"}
    assert devkit("init", tmp_path, *GPU).returncode == 0
    assert not more & set(tree(tmp_path))
    assert devkit("init", tmp_path, "--platform", "windows", "--yes").returncode == 0
    assert more <= set(tree(tmp_path))
    command = json.loads((tmp_path / ".devcontainer/devcontainer.json").read_text())["initializeCommand"]
    assert "|| powershell -NoProfile -ExecutionPolicy Bypass -File .devcontainer/gpu.ps1 ||" in command
    lock = json.loads((tmp_path / "devkit.lock").read_text())
    assert lock["machines"][0]["platform"] == "wsl2", "it plans as for WSL"
    assert devkit("update", tmp_path, "--check").returncode == 0
    assert devkit("init", tmp_path, "--platform", "linux", "--yes").returncode == 0
    assert not more & set(tree(tmp_path))


# What `devkit init` says: what it read, what the image gets, and how to choose something else.


def said(root, *words: str) -> str:
    done = devkit("init", root, *GPU, *words)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_the_files_that_count_and_how_to_take_others(tmp_path):
    (tmp_path / "requirements.txt").write_text("-r more.txt\nrich\n")
    (tmp_path / "more.txt").write_text("torch\n")
    text = said(tmp_path)
    assert "read: requirements.txt and more.txt, because the project has requirements.txt; use a different file" in text
    assert "none with --ignore-dependencies" in text


@pytest.mark.parametrize(
    ("table", "flag"),
    [
        pytest.param('[project.optional-dependencies]\ntrain = ["trl"]\n', "--extra train", id="an extra"),
        pytest.param('[dependency-groups]\ndocs = ["mkdocs"]\n', "--group docs", id="a group"),
    ],
)
def test_the_next_step_names_what_this_project_offers(tmp_path, table, flag):
    project = '[project]\nname = "p"\nversion = "1"\ndependencies = ["rich"]\n'
    (tmp_path / "pyproject.toml").write_text(project + table)
    assert f"To install more first: `devkit init {flag}`." in said(tmp_path)
    (tmp_path / "pyproject.toml").write_text(project)
    assert "To install more first" not in said(tmp_path)


def test_a_project_whose_git_ignores_the_folder_is_told_by_which_line(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert "Next: commit the files, then" in said(tmp_path)
    (tmp_path / ".gitignore").write_text("*.pyc\n.devcontainer/\n")
    text = said(tmp_path, "--python", "3.11")
    assert "commit the files (`git add --force`, because .gitignore:2 ignores them)" in text


# `editors`: what the chosen editors drop is said, in text and in JSON.


def test_the_report_is_in_the_json_document(tmp_path):
    done = devkit("init", tmp_path / "new", *GPU, "--set", "editors=codespaces,daytona", "--json")
    editors = json.loads(done.stdout)["editors"]
    assert [editor["name"] for editor in editors] == ["codespaces", "daytona"]
    assert {"editor", "tool", "key", "effect", "instead", "source", "is_sure"} == set(editors[0]["dropped"][0])
    assert [each["key"] for each in editors[1]["dropped"]] == ["devcontainer.json"]
    assert (tmp_path / "new/.devcontainer/daytona/snapshot.sh").stat().st_mode & 0o111


# What `devkit init` and `devkit update` print of a plan.


@pytest.mark.parametrize(
    ("day", "is_said"),
    [
        pytest.param("2026-11-21", False, id="tables of the same day"),
        pytest.param("2027-05-20", False, id="tables that are 180 days old"),
        pytest.param("2027-05-21", True, id="tables that are 181 days old"),
    ],
)
def test_a_plan_from_old_tables_says_so(capsys, day, is_said):
    print_plan(GPU_PLAN, wants_cpu=False, on=day)
    assert ("181 days old" in " ".join(capsys.readouterr().out.split())) is is_said
