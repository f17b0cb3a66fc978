"""Templates published to a registry and applied from it by the reference dev container CLI."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.render.published_folders import DEVCONTAINER_TEMPLATES, find_template
from tests.render.test_published_folders import applied, initialized

from .commands import environment, run
from .oci_registry import oci_registry
from .project import DEVKIT

pytestmark = pytest.mark.nightly

NAMESPACE = "team/templates"


@pytest.fixture(scope="module")
def published(devcontainer_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The registry that holds every Template, as `devkit template` wrote it and the CLI published it."""
    folder = tmp_path_factory.mktemp("templates")
    run([*DEVKIT, "template", folder], env=environment(NO_COLOR="1"))
    with oci_registry() as registry:
        argv = [devcontainer_cli / "devcontainer", "templates", "publish", folder, "--registry", registry]
        run([*argv, "--namespace", NAMESPACE], env=direct())
        yield registry


def direct() -> dict[str, str]:
    """This process's environment without a proxy: the registry is on this machine."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


def apply(cli: Path, registry: str, template: str, folder: Path, **options: str) -> list[str]:
    """Apply a Template in a folder; gives the files that the CLI says it wrote."""
    folder.mkdir(exist_ok=True)
    argv = [cli / "devcontainer", "templates", "apply", "--workspace-folder", folder]
    argv += ["--template-id", f"{registry}/{NAMESPACE}/{template}:latest", "--template-args", json.dumps(options)]
    return json.loads(run(argv, env=direct()).stdout)["files"]


def written(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("template", DEVCONTAINER_TEMPLATES, ids=[template.id for template in DEVCONTAINER_TEMPLATES])
def test_an_applied_template_is_what_init_writes(devcontainer_cli, published, template, tmp_path):
    said = apply(devcontainer_cli, published, template.id, tmp_path / "project")
    made = written(tmp_path / "project")
    assert {path.removeprefix("./") for path in said} == set(made)
    expected = initialized(template, tmp_path / "init", name="my-project")
    assert made == expected


def test_options_reach_every_file(devcontainer_cli, published, tmp_path):
    folder = tmp_path / "project"
    apply(devcontainer_cli, published, "pytorch-cpu", folder, projectName="Wörter", projectFolder="worter")
    assert written(folder) == applied(find_template("pytorch-cpu"), projectName="Wörter", projectFolder="worter")


def test_the_registry_tells_what_the_metadata_says(devcontainer_cli, published):
    argv = [devcontainer_cli / "devcontainer", "templates", "metadata", f"{published}/{NAMESPACE}/pytorch-cuda:latest"]
    metadata = json.loads(run(argv, env=direct()).stdout)
    assert metadata["id"] == "pytorch-cuda"
    assert set(metadata["options"]) == {"projectName", "projectFolder"}
