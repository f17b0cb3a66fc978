"""Which requirement files there are, which of them the project installs, and what is said of the others."""

import pytest

from devkit.facts.dependencies import PackageManager
from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_local_dependencies

from .test_dependencies import PROJECT, asked, read

# As in https://github.com/lllyasviel/Fooocus.
FOOOCUS = {
    "environment.yaml": "name: fooocus\ndependencies:\n  - python=3.10\n",
    "readme.md": "    conda env create -f environment.yaml\n    pip install -r requirements_versions.txt\n",
    "requirements_docker.txt": "torch==2.1.0\n",
    "requirements_versions.txt": "einops==0.8.0\n",
}
# As in https://github.com/oobabooga/text-generation-webui.
WEBUI = {
    "README.md": "pip install -r requirements/portable/requirements.txt\n"
    "pip install -r requirements/full/<requirements file according to table below>\n",
    "docs/11 - AMD Setup.md": "pip install -r requirements/full/requirements_amd.txt\n",
    "setup.cfg": "[pycodestyle]\nmax-line-length = 120\n",
    "requirements/full/requirements.txt": "gradio\n",
    "requirements/full/requirements_amd.txt": "amd\n",
    "requirements/portable/requirements.txt": "portable\n",
}


@pytest.mark.parametrize(
    ("files", "installed", "because", "others"),
    [
        pytest.param(
            FOOOCUS,
            {"requirements_versions.txt:1": "einops==0.8.0"},
            "the project has environment.yaml, and readme.md installs requirements_versions.txt",
            ("requirements_docker.txt",),
            id="by the readme, beside conda",
        ),
        pytest.param(
            WEBUI,
            {"requirements/full/requirements.txt:1": "gradio"},
            "the project has setup.cfg, and the project has requirements/full/requirements.txt, "
            "the most plausible of its lists",
            ("requirements/full/requirements_amd.txt", "requirements/portable/requirements.txt"),
            id="by the folder that the documentation names most",
        ),
        pytest.param(
            {"requirements_linux.txt": "a\n", "requirements_windows.txt": "b\n"},
            {"requirements_linux.txt:1": "a"},
            "the project has requirements_linux.txt",
            ("requirements_windows.txt",),
            id="by its name",
        ),
        pytest.param(
            {"src/requirements.txt": "a\n", "docs/requirements.txt": "sphinx\n"},
            {"src/requirements.txt:1": "a"},
            "the project has src/requirements.txt",
            (),
            id="in another folder",
        ),
        pytest.param(
            {"requirements.in": "a\n", "requirements.txt": "a==1\n", "requirements_versions.txt": "b\n"},
            {"requirements.txt:1": "a==1"},
            "the project has requirements.txt",
            ("requirements_versions.txt",),
            id="the usual name first",
        ),
        pytest.param(
            {"pyproject.toml": f'{PROJECT}dependencies = ["rich"]\n', "requirements/metrics.txt": "b\n"},
            {"pyproject.toml:4": "rich"},
            "the project has pyproject.toml",
            ("requirements/metrics.txt",),
            id="not where the project says what it needs",
        ),
        pytest.param(
            {"requirements-windows.txt": "a\n", "README.md": "no word of it"},
            {},
            "no file of the project names a package",
            ("requirements-windows.txt",),
            id="none for this system",
        ),
    ],
)
def test_the_most_plausible_list_is_the_projects(tmp_path, files, installed, because, others):
    found = read(tmp_path, files)
    assert asked(found) == installed
    assert found.because == because
    assert found.available.requirements == others
    assert read_local_dependencies(str(tmp_path)) == found


def test_a_chosen_list_replaces_those_that_are_found_and_a_lock(tmp_path):
    files = {
        "pyproject.toml": f'{PROJECT}dependencies = ["a"]\n',
        "uv.lock": '[[package]]\nname = "a"\nversion = "1"\n',
        "requirements.txt": "b\n",
        "requirements-dev.txt": "c\n",
        "more/train.txt": "-r ../common.txt\nd\n",
        "common.txt": "e\n",
    }
    found = read(tmp_path, files, requirements=("./more/train.txt",))
    assert (found.tool, found.lock, found.because) == (PackageManager.PIP, "", "./more/train.txt was chosen")
    assert {need.text for need in found.needs} == {"a", "d", "e"}
    assert found.lists == ("more/train.txt", "pyproject.toml")
    assert found.available.requirements == ("requirements-dev.txt", "requirements.txt")


def test_more_folders_and_documents_than_anyone_has_are_not_all_read(tmp_path):
    for number in range(120):
        (tmp_path / f"part{number}").mkdir()
        (tmp_path / f"part{number}/requirements.txt").write_text("a\n")
        (tmp_path / f"readme{number}.md").write_text("pip install -r part119/requirements.txt\n")
    host = CountingHost()
    from devkit.probe.project.reader import read_dependencies

    found = read_dependencies(host, project=str(tmp_path))
    assert len(found.available.requirements) < 60
    assert host.reads < 60


class CountingHost(LocalHost):
    """This machine, counting the files that are read."""

    reads = 0

    def read(self, path):
        self.reads += 1
        return super().read(path)
