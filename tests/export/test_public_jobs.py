"""Jobs that others published, carried as they are: each by `devkit init` and one `devkit export`, their own words inside.

What is written is read by each engine's own rules: schemas of Kubernetes, and bash with the grammar of #SBATCH.
"""

import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.cli.test_export import export
from tests.cli.test_init import GPU, devkit
from tests.export.kubernetes import api

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
        folder = tmp_path / "out"
        done = export(planned, target, "--output", folder, *words)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return folder

    return carry


@every_job
def test_the_own_command_is_carried_and_the_engine_takes_the_files(carried, job):
    folder, target = carried(job), job["export"][0]
    words = job["export"][job["export"].index("--") + 1 :]
    read = {"kubernetes": on_kubernetes, "slurm": on_slurm}.get(target, by_launcher)
    assert any(each[-len(words) :] == words for each in read(folder))


def containers(node):
    if isinstance(node, dict):
        if "image" in node and "command" in node:
            yield node
        for value in node.values():
            yield from containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from containers(value)


def on_kubernetes(folder):
    paths = [*folder.glob("*.yaml"), *(folder / "storage").glob("*.yaml")]
    objects = [each for path in paths for each in yaml.safe_load_all(path.read_text())]
    objects = [each for each in objects if each["kind"] != "Kustomization"]
    for manifest in objects:
        assert manifest["kind"] in api.CUSTOM or api.problems(manifest) == []
    entrypoints = [shlex.split(each["spec"]["entrypoint"]) for each in objects if each["kind"] == "RayJob"]
    return [each["command"] for manifest in objects for each in containers(manifest)] + entrypoints


def printed(script):
    """The words that a script hands to its last command."""
    tells = 'exec() { printf "%s\\n" "$@"; }; timeout() { exec "$@"; }'
    argv = ["bash", "-c", f"{tells}\n{script}"]
    return [subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()]


def on_slurm(folder):
    for path in (*folder.glob("*.sbatch"), *folder.glob("*.sh")):
        assert subprocess.run(["bash", "-n", path], capture_output=True, text=True).stderr == ""
    (block,) = (text for text in (folder / "job.sbatch").read_text().split("\n\n") if "\nset -- " in text)
    command = block[block.index("\nset -- ") + 1 :].split("\n# ")[0]
    return printed(command.split("\nmounts=")[0].split("\ntrap")[0] + '\nexec "$@"')


def by_launcher(folder):
    script = yaml.safe_load((folder / "task.yaml").read_text())["run"]
    return printed(script[script.index("cd /workspaces/project && ") :].partition("&& ")[2])
