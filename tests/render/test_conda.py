"""The image of a conda project: micromamba makes the environment, and uv installs into it."""

import re
import subprocess
from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.facts.dependencies import CondaPackage, Dependencies, PackageManager
from devkit.facts.policy import parse_policy

from .plans import GPU_PLAN
from .test_dependencies import instructions, made

OPENFOLD = Dependencies(
    PackageManager.CONDA,
    "the project has environment.yml",
    files=("environment.yml",),
    conda=(CondaPackage("openmm>=8", "environment.yml", 9), CondaPackage("bioconda::hmmer", "environment.yml", 10)),
    conda_channels=("conda-forge", "bioconda"),
)


def test_the_environment_is_the_projects_with_the_plans_python():
    files = made(OPENFOLD)
    assert yaml.safe_load(files["conda.yaml"]) == {
        "channels": ["conda-forge", "bioconda"],
        "dependencies": [f"python={GPU_PLAN.python}", "pip", "openmm>=8", "bioconda::hmmer"],
    }
    assert "# environment.yml:10\n" in files["conda.yaml"]
    assert "!conda.yaml" in files[".dockerignore"]


def test_uv_finds_the_environment_and_no_other_is_made():
    dockerfile = made(OPENFOLD)["Dockerfile"]
    assert "CONDA_PREFIX=/opt/venv" in dockerfile
    # `uv sync` would empty it.
    assert "UV_PROJECT_ENVIRONMENT" not in dockerfile
    assert "VIRTUAL_ENV" not in dockerfile
    assert "-m venv" not in dockerfile
    assert re.search(r"^COPY --from=mambaorg/micromamba:[\d.]+ /bin/micromamba ", dockerfile, re.MULTILINE)
    assert dockerfile.index("micromamba create") < dockerfile.index("&& uv pip install")


def test_a_project_without_conda_packages_has_nothing_of_it():
    files = made(replace(OPENFOLD, conda=()))
    assert "conda.yaml" not in files
    assert "micromamba" not in files["Dockerfile"]


@pytest.mark.parametrize(
    ("packages", "names"),
    [
        pytest.param({"numpy-2.0-py_0": "python"}, [], id="none"),
        pytest.param({"pytorch-2.5.1-0": "python", "lightning-2.4-0": "pytorch >=2"}, ["lightning-2.4-0"], id="torch"),
        pytest.param({"libtorch-2.5.1-0": "mkl", "dgl-2.4-0": "libtorch"}, ["dgl-2.4-0"], id="its library"),
        pytest.param({"pytorch-lightning-2.4-0": "python"}, [], id="a name that begins alike"),
    ],
)
def test_a_torch_of_conda_ends_the_build_with_the_names_of_who_brought_it(tmp_path, packages, names):
    (run,) = instructions(made(OPENFOLD)["Dockerfile"], "micromamba create")
    (check,) = re.findall(r"&& (if \[ -n .*?\bfi) \\\n", run, re.DOTALL)
    (tmp_path / "conda-meta").mkdir()
    for name, needs in packages.items():
        (tmp_path / f"conda-meta/{name}.json").write_text(f'{{\n  "depends": [\n    "{needs}"\n  ]\n}}\n')
    script = check.replace("/opt/venv", str(tmp_path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if names else 0)
    assert re.findall(r"conda-meta/(.+)\.json", done.stderr) == names


def test_a_closed_network_has_no_channel():
    with pytest.raises(DevkitError, match="holds no packages of conda, and this project needs openmm"):
        made(OPENFOLD, uses_wheelhouse=True)


def test_the_policy_of_images_holds_for_micromambas():
    allowed = parse_policy({"registries": ["m.example.org"], "mirrors": {"docker.io": "m.example.org/hub"}})
    assert "COPY --from=m.example.org/hub/mambaorg/micromamba:" in made(OPENFOLD, policy=allowed)["Dockerfile"]
    with pytest.raises(DevkitError, match="micromamba comes from it"):
        made(OPENFOLD, policy=parse_policy({"registries": ["docker.io/library"]}))
