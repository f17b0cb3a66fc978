"""Debian packages that a project's files install with apt."""

import pytest

from devkit.facts.dependencies import SystemPackage
from devkit.probe.dependencies.system_packages import find_system_packages
from devkit.probe.host import LocalHost
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.reader import read_dependencies


def find(folder, **files):
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return find_system_packages(ProjectFiles(LocalHost(), str(folder)))


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        pytest.param(
            "Dockerfile", "FROM x\nRUN apt-get update && apt-get install -y ffmpeg\n", "ffmpeg", id="one line"
        ),
        pytest.param(
            "Dockerfile",
            "FROM x\nRUN apt-get install -y --no-install-recommends \\\n    # sound\n    sox \\\n    libsox-dev=14.4 \\\n && rm -rf /x\n",
            "sox libsox-dev",
            id="continued, with a comment and a version",
        ),
        pytest.param(
            "Dockerfile", "FROM x\nRUN <<EOF\napt-get update\napt-get install -y sox\nEOF\n", "sox", id="heredoc"
        ),
        pytest.param("Dockerfile", "FROM x\n# RUN apt-get install sox\n", "", id="only a comment"),
        pytest.param("Dockerfile", "FROM x\nRUN apt-get install -y $PACKAGES ${MORE} sox\n", "sox", id="variables"),
        pytest.param("docker/cuda.Dockerfile", "FROM x\nRUN apt install sox\n", "sox", id="in a folder, by its end"),
        pytest.param(
            ".github/workflows/test.yml",
            "- run: |\n    sudo apt-get install -y sox \\\n      swig\n",
            "sox swig",
            id="CI",
        ),
        pytest.param("README.md", "# on Ubuntu\nsudo apt update && sudo apt install ffmpeg\n", "ffmpeg", id="guide"),
        pytest.param("README.md", "Run `apt install sox`, then go on.\n", "sox", id="in the middle of a sentence"),
        pytest.param("README.md", "Run `pip install sox`, or `brew install ffmpeg`.\n", "", id="other installers"),
        pytest.param(".devcontainer/Dockerfile", "FROM x\nRUN apt-get install sox\n", "", id="devkit's own output"),
    ],
)
def test_finds_the_names(tmp_path, path, text, names):
    assert [each.name for each in find(tmp_path, **{path: text})] == names.split()


def test_tells_file_and_line_and_each_name_once(tmp_path):
    found = find(
        tmp_path,
        **{"README.md": "\n\napt install sox\n", ".github/workflows/a.yml": "- run: apt install sox swig\n"},
    )
    assert found == (
        SystemPackage("sox", "README.md", 3),
        SystemPackage("swig", ".github/workflows/a.yml", 1, is_from_ci=True),
    )


def test_they_and_the_projects_name_are_among_its_dependencies(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "Open_AI.whisper"\n')
    (tmp_path / "README.md").write_text("apt install ffmpeg\n")
    found = read_dependencies(LocalHost(), project=str(tmp_path))
    assert found.name == "open-ai-whisper"
    assert [each.origin for each in found.system] == ["README.md:1"]
