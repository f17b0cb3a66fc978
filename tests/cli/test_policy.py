"""A project's policy from the outside: plan and init keep to it, and what init wrote the doctor finds in order."""

import json

import pytest

from tests.forked_commands import run_devkit

TARGET = ("--gpu", "RTX 4090", "--driver", "580.95.05")
MIRRORED = """\
[policy]
registries = ["registry.example.org/ml"]
mirrors = { "docker.io" = "registry.example.org/ml/hub" }
required_labels = { "org.example.team" = "the \\"ML\\" team", "org.example.cost" = "$5 a \\\\ day" }
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def devkit(folder, *words):
    return run_devkit(*words, cwd=folder, NO_COLOR="1", COLUMNS="100")


def with_policy(folder, text):
    (folder / "devkit.toml").write_text(text)


def test_a_forbidden_image_is_a_conflict_for_plan_and_init_and_nothing_is_written(project):
    with_policy(project, '[policy]\nregistries = ["quay.io"]\n')
    planned, written = devkit(project, "plan", *TARGET, "--json"), devkit(project, "init", *TARGET, "--json")
    for done in (planned, written):
        assert (done.returncode, done.stderr) == (1, "")
        assert [each["rule"] for each in json.loads(done.stdout)["conflict"]["blockers"]] == ["policy"]
    assert [each.name for each in project.iterdir()] == ["devkit.toml"]


def test_what_init_writes_keeps_the_policy(project):
    with_policy(project, MIRRORED)
    done = devkit(project, "init", *TARGET, "--yes")
    assert done.returncode == 0, done.stderr
    dockerfile = (project / ".devcontainer" / "Dockerfile").read_text()
    assert "FROM registry.example.org/ml/hub/library/python:" in dockerfile
    assert r'"org.example.team"="the \"ML\" team"' in dockerfile and r'"\$5 a \\ day"' in dockerfile
    examined = devkit(project, "doctor", "--only", "PRJ032", "--json")
    (outcome,) = json.loads(examined.stdout)["outcomes"]
    assert outcome["status"] == "passed", outcome
    again = devkit(project, "init", *TARGET, "--yes")
    assert again.returncode == 0 and "unchanged" in again.stdout


@pytest.mark.parametrize("command", ["plan", "init"])
def test_a_rule_that_nobody_knows_is_named_with_its_place_and_the_nearest(project, command):
    with_policy(project, "[policy]\nregistry = []\n")
    done = devkit(project, command, *TARGET)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0].startswith("Error: devkit.toml:2:1: ")
    assert done.stderr.splitlines()[1] == "  Did you mean policy.registries?"


def test_an_index_that_is_not_allowed_stops_plan_as_it_stops_init(project):
    with_policy(project, '[policy]\nindexes = ["https://pypi.example.org"]\n')
    done = devkit(project, "plan", *TARGET)
    assert (done.returncode, done.stdout) == (2, "")
    assert "policy.indexes does not allow" in done.stderr


def foreign(project, dockerfile, **dev):
    """A dev container of somebody else's."""
    (project / ".devcontainer").mkdir()
    (project / ".devcontainer/Dockerfile").write_text(dockerfile)
    written = {"build": {"dockerfile": "Dockerfile", "context": ".."}, **dev}
    (project / ".devcontainer/devcontainer.json").write_text(json.dumps(written, indent=2))


@pytest.mark.parametrize(
    ("policy", "dockerfile", "dev", "says"),
    [
        pytest.param(
            'required_labels = { "org.example.team" = "ml" }', "USER dev\n", {}, "lacks labels", id="a label is missing"
        ),
        pytest.param("", "USER root\n", {}, "runs as root", id="root"),
        pytest.param(
            'registries = ["r.example.org"]\nmirrors = { "docker.io" = "r.example.org/hub" }',
            "USER dev\n",
            {},
            "left to you: PRJ032 .devcontainer/Dockerfile:1",
            id="an image that has a mirror",
        ),
        pytest.param(
            'indexes = ["https://pypi.org/simple", "https://download.pytorch.org/whl"]',
            "RUN pip install --extra-index-url https://u:secret@wheels.example.org/simple vllm\nUSER dev\n",
            {},
            "packages come from https://wheels.example.org/simple",
            id="an index",
        ),
    ],
)
def test_a_repair_stops_before_what_the_policy_forbids(project, policy, dockerfile, dev, says):
    with_policy(project, f"[policy]\n{policy}\n")
    foreign(project, f"FROM python:3.9-own\nRUN pip install torch\nRUN useradd dev\n{dockerfile}", **dev)
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    done = devkit(project, "init", *TARGET, "--yes")
    assert done.returncode == 1
    assert says in " ".join(done.stdout.split())
    assert "nothing was written" in done.stdout and "secret" not in done.stdout
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
