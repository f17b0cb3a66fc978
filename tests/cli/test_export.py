"""`devkit export` from the outside: files, kept flags, drift, refusals, and JSON."""

import io
import json
import subprocess
import sys
import tomllib
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from devkit import cli
from devkit.render.devkit_lock import compute_blob_id
from devkit.render.files import JOURNAL_PATH, Journal, Step, format_journal
from tests.cli.test_init import GPU, assert_refused, devkit, tree
from tests.cli.test_update import edit

JOB = ("--settings", "run.toml", "--gpu", "RTX 4090", "--image", "registry.example.org/tide:1")
TARGETS = ("kubernetes", "slurm", "skypilot", "daytona", "docker")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The files of a project with a dev container and the settings of a run."""
    root = tmp_path_factory.mktemp("p") / "tide"
    assert devkit("init", root, *GPU).returncode == 0
    (root / "run.toml").write_text('model = "meta-llama/Llama-3.2-1B"\ndata = ["chats.jsonl"]\noutput = "tuned"\n')
    return {path: (root / path).read_bytes() for path in tree(root)}


@pytest.fixture
def project(written, tmp_path) -> Path:
    root = tmp_path / "tide"
    for path, content in written.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def export(project, *words):
    """The command in this process: a process each would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    words = ["devkit", "export", *map(str, words)]
    with chdir(project), redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "stdin", io.StringIO())
        code = cli.run_command_line()
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def exported(project, *words):
    done = export(project, *words)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def deployed(project, target="docker"):
    return tree(project / "deploy" / target)


def test_help_names_every_target_and_without_one_it_ends_with_two(project):
    done = export(project)
    assert done.returncode == 2
    assert f"  One of {', '.join(TARGETS)}.\n" in done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_writes_its_files_and_is_then_up_to_date(project, target):
    before = tree(project)
    shown = exported(project, target, *JOB)
    assert "Next" in shown
    files = deployed(project, target)
    assert "devkit.lock" in files
    assert all(b"\0" not in content for content in files.values())
    assert {path for path in tree(project) if not path.startswith("deploy/")} == {*before}
    assert exported(project, target).splitlines()[-1] == "up to date: nothing to change."
    assert deployed(project, target) == files
    assert exported(project, target, "--check").splitlines()[-1] == "up to date: nothing to change."


def test_typed_flags_are_kept_with_comments_and_the_next_run_needs_none(project):
    before = (project / "devkit.toml").read_text()
    exported(project, "slurm", *JOB, "--partition", "gpu", "--set", "models=/scratch/hub", "--set", "shm=3Gi")
    text = (project / "devkit.toml").read_text()
    assert text.startswith(before)
    assert tomllib.loads(text)["job"] == {
        "slurm": {
            **{"image": "registry.example.org/tide:1", "settings": "run.toml", "gpu": "RTX 4090"},
            **{"models": "/scratch/hub", "partition": "gpu", "shm": "3Gi"},
        }
    }
    edit(project / "devkit.toml", 'partition = "gpu"', 'partition = "long"')
    assert "update  job.sbatch" in exported(project, "slurm")


def test_nothing_that_one_target_was_told_sticks_to_another_and_what_is_stored_is_said_with_its_line(project):
    exported(project, "skypilot", *JOB, "--gpus", "8", "--nodes", "2")
    exported(project, "daytona", *JOB)
    exported(project, "slurm", *JOB)
    assert "#SBATCH --nodes=1\n" in (project / "deploy/slurm/job.sbatch").read_text()
    lines = (project / "devkit.toml").read_text().splitlines()
    shown = exported(project, "skypilot", "--gpus", "4")
    assert (
        f"  nodes 2: devkit.toml:{lines.index(next(each for each in lines if each.startswith('nodes'))) + 1}\n" in shown
    )
    assert "  gpus " not in shown
    stored = json.loads(exported(project, "skypilot", "--nodes", "1", "--json"))["stored"]
    assert {each["setting"]: each["value"] for each in stored}["gpus"] == 4


def test_a_table_for_all_targets_is_still_read_and_a_refusal_names_its_line(project):
    with (project / "devkit.toml").open("a") as file:
        file.write('\n[job]\nsettings = "run.toml"\nnodes = 2\n')
    line = len((project / "devkit.toml").read_text().splitlines())
    done = export(project, "daytona", "--image", "registry.example.org/tide:1", "--gpu", "H100")
    assert_refused(done, "one machine, but the job needs 2")
    assert f"(nodes: devkit.toml:{line})" in done.stderr


def test_what_another_target_was_told_is_proposed(project):
    exported(project, "docker", *JOB)
    done = export(project, "slurm")
    assert_refused(done, "the job cannot build an image")
    assert "devkit export slurm --image registry.example.org/tide:1 --settings run.toml\n" in done.stderr


def test_init_and_update_leave_the_job_alone_and_plan_and_doctor_do_not_mind_it(project):
    exported(project, "slurm", *JOB, "--partition", "gpu")
    text = (project / "devkit.toml").read_text()
    assert devkit("update", project).returncode == 0
    assert (project / "devkit.toml").read_text() == text
    assert devkit("init", project, "--python", "3.11").returncode == 0
    job = tomllib.loads(text)["job"]
    assert tomllib.loads((project / "devkit.toml").read_text())["job"] == job
    assert text[text.index("[job.slurm]") :] in (project / "devkit.toml").read_text()
    assert devkit("plan", "--project", project, *GPU).returncode == 0
    assert devkit("doctor", "--project", project, "--only", "PRJ001").returncode in (0, 1)


def test_a_folder_elsewhere_keeps_nothing_and_both_stay_apart(project):
    exported(project, "docker", *JOB)
    text, first = (project / "devkit.toml").read_text(), deployed(project)
    shown = exported(project, "docker", "--output", "other", "--set", "shm=3Gi")
    assert f"in {project / 'other'}" in " ".join(shown.split())
    assert (project / "devkit.toml").read_text() == text
    assert deployed(project) == first
    assert set(tree(project / "other")) == set(first)
    assert tree(project / "other")["run.sh"] != first["run.sh"]


@pytest.mark.parametrize("folder", [".", "deploy/slurm"])
def test_a_folder_of_other_files_of_devkits_is_never_taken(project, folder):
    exported(project, "slurm", *JOB)
    before = tree(project)
    assert_refused(export(project, "docker", *JOB, "--output", folder), "holds")
    assert tree(project) == before


def test_files_that_devkit_did_not_write_are_never_overwritten(project):
    (project / "deploy/docker").mkdir(parents=True)
    (project / "deploy/docker/run.sh").write_text("mine\n")
    done = export(project, "docker", *JOB)
    assert_refused(done, "contains files that devkit did not write: run.sh")
    assert "dev container" not in done.stderr
    assert "--output" in done.stderr
    assert (project / "deploy/docker/run.sh").read_text() == "mine\n"
    assert "[job]" not in (project / "devkit.toml").read_text()


def test_an_edit_stays_while_the_rest_follows_the_settings(project):
    exported(project, "slurm", *JOB)
    script = project / "deploy/slurm/job.sbatch"
    edit(script, "set -eu\n", "set -eu\nulimit -n 4096\n")
    assert exported(project, "slurm", "--check").splitlines()[-1] == "up to date: nothing to change."
    assert "merge   job.sbatch" in exported(project, "slurm", "--time", "3h")
    assert "ulimit -n 4096" in script.read_text()
    assert "--time=03:00:00" in script.read_text()


def test_an_edit_that_meets_a_change_is_marked_and_ends_with_one(project):
    exported(project, "slurm", *JOB)
    script = project / "deploy/slurm/job.sbatch"
    edit(script, "#SBATCH --time=1-00:00:00", "#SBATCH --time=2-00:00:00")
    done = export(project, "slurm", "--time", "3h")
    assert (done.returncode, "conflict in job.sbatch, line" in done.stderr) == (1, True)
    assert "<<<<<<< yours" in script.read_text()


def test_check_writes_nothing_and_shows_the_difference(project):
    exported(project, "slurm", *JOB)
    edit(project / "devkit.toml", "[job.slurm]", '[job]\ntime = "5h"\ngrace = "60s"\n\n[job.slurm]')
    before = tree(project)
    done = export(project, "slurm", "--check")
    assert (done.returncode, "+#SBATCH --time=05:00:00" in done.stdout) == (1, True)
    assert tree(project) == before


@pytest.mark.parametrize("flag", ["--dry-run", "--json --dry-run"])
def test_a_dry_run_writes_nothing_and_says_what_it_would(project, flag):
    before = tree(project)
    shown = exported(project, "docker", *JOB, *flag.split())
    assert tree(project) == before
    assert "run.sh" in shown


def test_json_is_one_document_with_the_task(project):
    document = json.loads(exported(project, "docker", *JOB, "--json"))
    assert (document["schema"], document["verdict"], document["target"]) == ("devkit.export/1", "written", "docker")
    assert document["kept"] == ["job.docker.image", "job.docker.settings", "job.docker.gpu"]
    assert document["task"]["command"][:2] == ["devkit", "finetune"]
    assert document["estimate"]["verdict"] == "fits"
    assert {"path": "run.sh", "action": "create"} in document["files"]
    again = json.loads(exported(project, "docker", "--json"))
    assert (again["verdict"], again["kept"]) == ("unchanged", [])


def test_a_job_that_cannot_fit_is_refused_with_one_and_written_when_forced(project):
    (project / "run.toml").write_text('model = "meta-llama/Llama-3.1-70B"\ndata = ["chats.jsonl"]\n')
    before = tree(project)
    done = export(project, "docker", *JOB)
    assert (done.returncode, done.stdout, tree(project) == before) == (1, "", True)
    message, hint = done.stderr.splitlines()
    assert message.startswith("Error: the job does not fit: ")
    assert "--force" in hint
    document = json.loads(export(project, "docker", *JOB, "--json").stdout)
    assert (document["verdict"], document["files"]) == ("refused", [])
    assert document["hint"] == hint.strip()
    exported(project, "docker", *JOB, "--force")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param((), "the job has no command or settings to run", id="no settings"),
        pytest.param(("--settings", "other.toml"), "other.toml does not exist in", id="settings that are not there"),
        pytest.param((*JOB[:4], "--image", "a b"), "is not an image name", id="no image's name"),
        pytest.param((*JOB, "--gpus", "17"), "cannot share a batch of 16 rows", id="more GPUs than rows"),
        pytest.param((*JOB, "--set", "checkpoints_size=1M"), "checkpoints_size 1M is less than", id="too little room"),
        pytest.param((*JOB, "--set", "checkpoint=1"), "checkpoint is not a setting", id="no setting"),
        pytest.param((*JOB[4:], "--gpu=H1000", "--", "python"), "the GPU 'H1000' is not in", id="no GPU's name"),
        pytest.param((*JOB[:2], "--gpu=T4", "--gpus=0"), "--gpu T4 and --gpus 0 contradict", id="a GPU and none"),
        pytest.param((*JOB, "--gpus", "two"), "Invalid value for '--gpus'", id="no number"),
        pytest.param((*JOB, "--output", "run.toml"), "is a file", id="a file for a folder"),
    ],
)
def test_wrong_wishes_are_one_line_and_a_hint(project, words, said):
    before = tree(project)
    image = () if "--image" in words else JOB[4:]
    assert_refused(export(project, "docker", *words, *image), said)
    assert tree(project) == before


def test_wrong_tables_are_refused_with_their_place(project):
    with (project / "devkit.toml").open("a") as file:
        file.write("\n[job]\ngups = 2\n")
    line = len((project / "devkit.toml").read_text().splitlines())
    assert_refused(export(project, "docker", *JOB), f"devkit.toml:{line}:1: the setting 'gups' does not exist")


@pytest.mark.parametrize("output", ["../outside", "/outside", None], ids=["climbs", "absolute", "a link"])
def test_a_strangers_project_has_nothing_written_outside_of_it(project, tmp_path, output):
    outside = tmp_path / "outside"
    outside.mkdir()
    if output is None:
        (project / "deploy").symlink_to(outside)
    else:
        with (project / "devkit.toml").open("a") as file:
            file.write(
                f'[job.docker]\noutput = "{output.replace("/outside", str(outside)) if output[0] == "/" else output}"\n'
            )
    assert_refused(export(project, "docker", *JOB), "leads outside the project")
    assert not any(outside.iterdir())


@pytest.mark.parametrize(
    ("target", "words", "says"),
    [
        ("docker", ("--nodes", "2"), "a Docker context is one machine, but the job needs 2"),
        ("daytona", ("--nodes", "2"), "a Daytona sandbox is one machine, but the job needs 2"),
        ("skypilot", ("--infra", "aws us-east-1"), "--infra 'aws us-east-1' is not valid"),
        ("slurm", ("--partition", "a b"), "--partition 'a b' is not valid"),
        ("kubernetes", ("--namespace", "A_B"), "--namespace 'A_B'"),
    ],
)
def test_a_wrong_option_is_told_before_a_missing_image(project, target, words, says):
    assert_refused(export(project, target, *words), says)


@pytest.mark.parametrize("folder", ["", "deploy"])
def test_a_folder_without_a_dev_container_is_told_to_make_one(tmp_path, folder):
    (tmp_path / "deploy").mkdir()
    assert_refused(export(tmp_path, "docker", tmp_path / folder, *JOB), "no dev container's devkit.lock exists")
    assert_refused(export(tmp_path, "docker", tmp_path / "none", *JOB), "does not exist.")


def test_a_project_for_the_cpu_asks_for_no_gpu(tmp_path):
    assert devkit("init", tmp_path, "--vendor", "cpu").returncode == 0
    (tmp_path / "run.toml").write_text('model = "meta-llama/Llama-3.2-1B"\ndata = ["chats.jsonl"]\n')
    words = ("--settings", "run.toml", "--image", "r.example.org/x:1")
    document = json.loads(exported(tmp_path, "slurm", *words, "--json"))
    assert document["task"]["accelerator"]["count"] == 0
    assert "--gres" not in (tmp_path / "deploy/slurm/job.sbatch").read_text()
    assert_refused(export(tmp_path, "slurm", *words, "--gpu", "H100"), "planned for the CPU")


@pytest.mark.parametrize("target", TARGETS)
def test_a_command_after_two_dashes_is_exported_and_kept(project, target):
    words = (*JOB[2:], "--", "python", "train.py", "--lr=1e-4", "a b", "--check")
    exported(project, target, *words)
    assert any(b"train.py" in content for content in deployed(project, target).values())
    assert tomllib.loads((project / "devkit.toml").read_text())["job"][target]["command"] == list(words[5:])
    assert exported(project, target, "--check").splitlines()[-1] == "up to date: nothing to change."


def test_everything_that_is_missing_is_said_at_once_with_the_commands_that_end_in_the_export(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    done = export(tmp_path, "kubernetes", "--gpu", "H100")
    assert_refused(done, "no dev container's devkit.lock exists")
    message = done.stderr.splitlines()[0]
    assert "the job cannot build an image" in message and "the job has no command or settings to run" in message
    assert (
        "devkit init && " in done.stderr
        and "docker buildx bake --push --set dev.tags=registry.example.org/" in done.stderr
    )
    assert "devkit export kubernetes --image registry.example.org/" in done.stderr
    done = export(tmp_path, "kubernetes", "--image", "a/b:1", "--", "python", "train.py")
    assert "devkit init && " in done.stderr and "--settings" not in done.stderr.split("own")[0]


@pytest.mark.parametrize(
    ("more", "left_to_do"), [((), False), (("--gpus", "4"), True)], ids=["the same", "another job"]
)
def test_an_export_that_was_killed_at_its_last_step_is_finished_and_said(project, more, left_to_do):
    exported(project, "slurm", *JOB)
    before = deployed(project, "slurm")
    folder = project / "deploy/slurm"
    path, content = next(iter(before.items()))
    own_id = compute_blob_id(content)
    journal = Journal(folder.stat().st_ino, (Step(path, own_id, own_id),), is_staged=True)
    (folder / JOURNAL_PATH).write_bytes(format_journal(journal))
    done = export(project, "slurm", *JOB, *more, "--yes")
    assert done.returncode == 0
    assert "finished the changes of an interrupted devkit:" in done.stderr
    assert (deployed(project, "slurm") != before) == left_to_do
    assert not (folder / JOURNAL_PATH).exists()
