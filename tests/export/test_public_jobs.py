"""Jobs that others published, carried as they are: each by `devkit init` and one `devkit export`, their own words inside.

What is written is read by each engine's own rules: schemas of Kubernetes, bash and the grammar of #SBATCH, and the
launchers' own programs where they can be had (`tests/export/launchers/test_own_programs.py` has them).
"""

import os
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.cli.test_export import export
from tests.cli.test_init import GPU, devkit
from tests.engine import launchers
from tests.engine.binaries import NoEngineError
from tests.export.kubernetes import api
from tests.export.launchers.test_own_programs import read

JOBS = tomllib.loads((Path(__file__).parent / "public_jobs.toml").read_text())["job"]
pytestmark = pytest.mark.full
every_job = pytest.mark.parametrize("job", JOBS, ids=[job["name"] for job in JOBS])


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    root = tmp_path_factory.mktemp("public") / "project"
    assert devkit("init", root, *GPU).returncode == 0
    return root


@pytest.fixture
def carried(planned, tmp_path):
    """Exports a job of the table, and returns the folder of what was written."""

    def carry(job):
        target, *words = job["export"]
        # dstack's files lie within the project that they copy.
        folder = planned / f"deploy-{JOBS.index(job)}" if target == "dstack" else tmp_path / "out"
        done = export(planned, target, "--output", folder, *words)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return folder

    return carry


def own_words(job) -> list[str]:
    return job["export"][job["export"].index("--") + 1 :]


def test_there_are_twenty_six():
    assert len(JOBS) == 26
    assert all(job["source"].startswith("https://") for job in JOBS)


@every_job
def test_the_own_command_is_carried_and_the_engine_takes_the_files(carried, job):
    folder = carried(job)
    words = own_words(job)
    {"kubernetes": _on_kubernetes, "slurm": _on_slurm, "skypilot": _by_launcher, "dstack": _by_launcher}[
        job["export"][0]
    ](folder, words, job)


def _containers(node):
    if isinstance(node, dict):
        if "image" in node and "command" in node:
            yield node
        for value in node.values():
            yield from _containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from _containers(value)


def _on_kubernetes(folder, words, _job):
    objects = [
        each
        for path in sorted((folder / "base").glob("*.yaml")) + sorted((folder / "storage").glob("*.yaml"))
        for each in yaml.safe_load_all(path.read_text())
        if each["kind"] != "Kustomization"
    ]
    found = [each["command"] for manifest in objects for each in _containers(manifest)]
    found += [shlex.split(each["spec"]["entrypoint"]) for each in objects if each["kind"] == "RayJob"]
    assert any(each[-len(words) :] == words for each in found)
    for manifest in objects:
        if manifest["kind"] not in api.CUSTOM or os.environ.get("DEVKIT_SCHEMAS"):
            assert api.problems(manifest) == []


def _on_slurm(folder, words, _job):
    script = folder / "job.sbatch"
    for path in folder.glob("*.s*"):
        if path.suffix in (".sbatch", ".sh"):
            assert subprocess.run(["bash", "-n", path], capture_output=True, text=True).stderr == ""
    (line,) = (text for text in script.read_text().split("\n\n") if "\nset -- " in text)
    quoted = line[line.index("\nset -- ") + 1 :].split("\n# ")[0]
    command = quoted.split("\nmounts=")[0].split("\ntrap")[0]
    printed = subprocess.run(
        ["bash", "-c", f'{command}\nprintf "%s\\n" "$@"'], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert printed[-len(words) :] == words


def _by_launcher(folder, words, job):
    target = job["export"][0]
    name = {"skypilot": "task.yaml", "dstack": "task.dstack.yml"}[target]
    document = yaml.safe_load((folder / name).read_text())
    script = document["run"] if target == "skypilot" else document["commands"][0]
    last = script[script.index("cd /workspaces/project && ") :].partition("&& ")[2]
    shown = subprocess.run(
        ["bash", "-c", f'exec() {{ printf "%s\\n" "$@"; }}; timeout() {{ exec "$@"; }}\n{last}'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert shown[-len(words) :] == words
    try:
        python = launchers.python()
    except NoEngineError:
        return
    meant = read(python, target, folder.parent / "home", folder / name)
    assert meant
