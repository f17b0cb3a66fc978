"""Names of the last release: commands and flags that were renamed still run, and those that went say what replaces them."""

import json

import pytest

from devkit.cli import COMMANDS, REMOVED, RENAMED
from devkit.cli.doctor import doctor
from devkit.cli.finetune import finetune
from devkit.cli.generate import generate
from devkit.cli.init import init
from devkit.cli.plan import plan
from devkit.cli.verify import verify
from tests.cli.test_init import GPU, devkit


@pytest.mark.parametrize(
    ("words", "new", "starts"),
    [
        pytest.param(("install", *GPU, "--no-resolve"), "plan --install", "uv pip install ", id="install"),
        pytest.param(("data", "show"), "tables", "driver", id="data show"),
        pytest.param(("data",), "tables", "driver", id="data"),
        pytest.param(("feature", "made", "--dry-run"), "init --as-feature", "create", id="feature"),
        pytest.param(("benchmark", "--help"), "verify --bench", "Usage: devkit verify ", id="benchmark"),
        pytest.param(("toolkit", "--help"), "doctor --setup", "Usage: devkit doctor ", id="toolkit"),
        pytest.param(("model", "fetch", "--help"), "fetch", "Usage: devkit fetch ", id="model fetch"),
    ],
)
def test_an_old_command_runs_and_names_the_new_one(tmp_path, words, new, starts):
    done = devkit(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].endswith(f"is now `devkit {new}`; devkit 0.4 removes the old name.")
    assert done.stdout.lstrip().startswith(starts)


def test_every_old_name_leads_to_a_command_and_hides_none():
    assert {new.split()[0] for new in RENAMED.values()} <= COMMANDS.keys()
    assert not (RENAMED.keys() | REMOVED.keys()) & COMMANDS.keys()


@pytest.mark.parametrize(
    ("command", "flag"),
    [(command, flag) for command in (doctor, finetune, generate, init, plan, verify) for flag in command.removed],
)
def test_a_removed_flag_says_what_does_its_part(tmp_path, command, flag):
    for words in ((flag, "x"), (f"{flag}=x",)):
        done = devkit(command.name, *words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"Error: {flag} was removed\n  {command.removed[flag]}\n"


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_command_says_what_does_its_part(tmp_path, name):
    done = devkit(name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: devkit {name} was removed\n  {REMOVED[name]}\n"


def test_old_flags_of_init_are_settings(tmp_path):
    old = ("--name", "mine", "--sudo", "--device=0", "--device=1", "--engine=podman", "--no-hold")
    new = ("name=mine", "sudo=true", "devices=0,1", "engine=podman", "no_hold=true")
    first, second = tmp_path / "first", tmp_path / "second"
    done = devkit("init", first, *GPU, *old, "--no-resolve")
    assert done.returncode == 0, done.stderr
    assert "--device is now --set devices=VALUE; devkit 0.4 removes the old flag." in done.stderr.splitlines()
    words = (word for each in new for word in ("--set", each))
    assert devkit("init", second, *GPU, *words, "--no-resolve").stderr == ""
    made = (first / "devkit.toml").read_text(encoding="utf-8")
    assert made == (second / "devkit.toml").read_text(encoding="utf-8")
    assert 'devices = ["0", "1"]' in made and "sudo = true" in made


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        pytest.param("sudo", "expected KEY=VALUE", id="no value"),
        pytest.param("color=red", "color is not a setting", id="an unknown key"),
        pytest.param("profiles=ci", "profiles was removed", id="a removed key"),
        pytest.param("sudo=maybe", "must be", id="a word for yes or no"),
        pytest.param("platform=beos", "cannot be 'beos'", id="a value that is none of the possible ones"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path, assignment, says):
    done = devkit("init", tmp_path / "new", *GPU, "--set", assignment, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: invalid --set {assignment}: ") and says in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(
            ("init", "made", "--as-feature", "--gpu", "T4"), "--gpu has no effect with --as-feature", id="a GPU"
        ),
        pytest.param(("plan", "--install", "--json", *GPU), "--install does not print JSON", id="a command as JSON"),
        pytest.param(("plan", "--run", *GPU), "--run needs --install", id="a run of nothing"),
        pytest.param(("doctor", "--setup", "--fix"), "--setup prints installation steps", id="a set-up and a repair"),
    ],
)
def test_options_of_a_command_that_was_taken_in_are_refused_where_they_say_nothing(tmp_path, words, says):
    done = devkit(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert not (tmp_path / "made").exists()


def test_tables_say_their_age(tmp_path):
    document = json.loads(devkit("tables", "--json", cwd=tmp_path).stdout)
    assert {"driver", "torch", "gpus"} <= {each["name"] for each in document["tables"]}
    assert all(each["rows"] > 0 for each in document["tables"])


def test_old_flags_of_export_are_settings(tmp_path):
    assert devkit("init", *GPU, "--no-resolve", cwd=tmp_path).returncode == 0
    image = ("--image", "registry.example/x:1")
    old = ("--cpus", "12", "--memory=64Gi", "--data", "/scratch/x", "--foreign-image", "--gpu-type", "a100")
    new = ("cpus=12", "memory=64Gi", "data=/scratch/x", "foreign_image=true", "gpu_type=a100")
    named = [word for each in new for word in ("--set", each)]
    both = [
        devkit("export", "slurm", *words, *image, "--output", folder, "--", "python", "train.py", cwd=tmp_path)
        for words, folder in ((old, tmp_path / "old"), (named, tmp_path / "new"))
    ]
    assert [done.returncode for done in both] == [0, 0], both
    assert "--cpus is now --set cpus=VALUE; devkit 0.4 removes the old flag." in both[0].stderr.splitlines()
    made, again = [(tmp_path / name / "job.sbatch").read_text(encoding="utf-8") for name in ("old", "new")]
    assert made == again.replace("new/", "old/")
    assert "#SBATCH --mem=64G" in made


def test_the_project_of_a_plan_is_an_argument(tmp_path):
    old, new = (
        devkit("plan", "--project", tmp_path, *GPU, "--no-resolve"),
        devkit("plan", tmp_path, *GPU, "--no-resolve"),
    )
    assert (old.returncode, old.stdout) == (0, new.stdout)
    assert old.stderr.startswith("--project is now an argument without a flag; ") and not new.stderr
