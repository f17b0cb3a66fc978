"""Editors: what is written for each, and what each is said to pass over, with its source."""

import os
import re
import subprocess
from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.dependencies import Dependencies, LocalBuild, LocalPackage, PackageManager
from devkit.render.container.devcontainer import (
    FETCH_SUBMODULES,
    WHOLE_FILE,
    build_devcontainer_document,
    build_reports_for_settings,
)
from devkit.render.container.packages import KEEP_TORCH
from devkit.render.container.settings import FromCheckout
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.project import render_devcontainer
from tests.cases import cases

from .plans import GPU_PLAN
from .test_artifacts import PLAIN, texts

PACKAGE = Dependencies(PackageManager.UV, "uv.lock is there", builds_itself=True)
HELD = f"uv pip freeze | grep -E '{KEEP_TORCH}' > /tmp/held.txt"
EVERY = tuple(load_tables().editors.editors)


def document(*editors: str, **settings: object) -> dict[str, object]:
    return build_devcontainer_document(replace(PLAIN, editors=editors, **settings))


def reports(*editors: str) -> dict[str, list[str]]:
    """Editor -> the keys that it is said to drop."""
    found = build_reports_for_settings(ProjectSettings(name="Demo", editors=editors))
    return {report.name: [each.key for each in report.dropped] for report in found}


def test_without_a_choice_the_files_serve_vs_code_and_nothing_is_reported():
    assert document() == document("vscode")
    assert build_reports_for_settings(ProjectSettings(name="Demo")) == ()


@pytest.mark.parametrize(
    ("editors", "spaces"),
    [
        pytest.param(("vscode",), {"vscode"}, id="VS Code reads its own"),
        pytest.param(("jetbrains",), {"jetbrains"}, id="JetBrains reads its own alone"),
        pytest.param(("jetbrains", "devpod"), {"jetbrains", "vscode"}, id="two editors get both"),
    ],
)
def test_an_editor_gets_the_customizations_that_it_reads(editors, spaces):
    assert set(document(*editors)["customizations"]) == spaces


def test_the_image_has_what_an_editors_program_inside_needs():
    def installed(*editors: str) -> set[str]:
        dockerfile = texts(GPU_PLAN, replace(PLAIN, editors=editors))["Dockerfile"]
        (packages,) = re.findall(r"apt-get install -y --no-install-recommends (.*) \\", dockerfile)
        return set(packages.split())

    assert {"libxtst6", "unzip"} <= installed("jetbrains") - installed("vscode")
    assert "procps" in installed("jetbrains")
    assert installed("vscode") == installed() == installed("daytona")


def test_only_a_cloud_gets_host_requirements_and_never_a_gpu():
    for editor in EVERY:
        requirements = document(editor).get("hostRequirements")
        assert requirements == ({"cpus": 4, "memory": "16gb", "storage": "32gb"} if editor == "codespaces" else None)


@pytest.mark.parametrize(
    ("editor", "drops"),
    [
        pytest.param("vscode", {"secrets"}, id="VS Code"),
        pytest.param("jetbrains", {"updateRemoteUserUID", "remoteUser", "secrets"}, id="JetBrains"),
        pytest.param("codespaces", {"initializeCommand", "shutdownAction", "workspaceFolder"}, id="Codespaces"),
        pytest.param("devpod", {"secrets"}, id="DevPod"),
        pytest.param("daytona", {WHOLE_FILE}, id="Daytona"),
    ],
)
def test_the_report_names_what_an_editor_drops(editor, drops):
    assert set(reports(editor)[editor]) == drops


def test_every_key_in_the_report_says_what_becomes_of_it_and_where_that_is_written():
    for report in build_reports_for_settings(ProjectSettings(name="Demo", editors=EVERY)):
        for each in report.dropped:
            assert each.instead
            assert each.source.startswith("https://")


def test_an_unknown_editor_is_refused_before_anything_is_rendered():
    with pytest.raises(DevkitError, match="devkit does not write files for the editor 'emacs'") as refused:
        render_devcontainer(GPU_PLAN, replace(PLAIN, editors=("emacs",)))
    assert "jetbrains" in refused.value.hint


def test_every_lifecycle_command_has_a_name_and_its_own_moment():
    made = document(source=FromCheckout())
    assert set(made["updateContentCommand"]) == {"project"}
    assert made["postStartCommand"] == {"doctor": "devkit doctor || true"}
    assert "waitFor" not in made, "JetBrains drops it, and the default is right"
    assert "updateContentCommand" not in document()


@cases(
    "settings, command",
    {
        "devkit's own checkout": (
            {"source": FromCheckout()},
            "uv pip install --constraints .ci/constraints.txt --group test --editable '.[workload,mcp]'",
        ),
        "a project that is a package": ({"dependencies": PACKAGE}, "uv pip install --no-deps --editable ."),
        "a workspace with a lock": (
            {"dependencies": replace(PACKAGE, lock="uv.lock", local=(LocalPackage("libs/a", "pyproject.toml", 1),))},
            "uv pip install --no-deps --editable . --editable libs/a",
        ),
        "an archive, whose requirements nobody read": (
            {
                "dependencies": replace(
                    PACKAGE, builds_itself=False, local=(LocalPackage("a-1.0-py3-none-any.whl", "requirements.txt", 1),)
                )
            },
            f"{HELD} && uv pip install --constraint=/tmp/held.txt a-1.0-py3-none-any.whl",
        ),
        "a project with submodules": (
            {"dependencies": replace(PACKAGE, submodules=("sub",))},
            f"{FETCH_SUBMODULES}; uv pip install --no-deps --editable .",
        ),
        "one whose requirements only its build knows": (
            {"dependencies": replace(PACKAGE, is_computed=True)},
            f"{HELD} && uv pip install --constraint=/tmp/held.txt --editable .",
        ),
        "one in which setuptools finds no package": (
            {"dependencies": replace(PACKAGE, builds=(LocalBuild(".", "a", "", False, (), maps_nothing=True),))},
            "uv pip install --config-settings editable_mode=compat --no-deps --editable .",
        ),
        "no index to build it from": ({"dependencies": PACKAGE, "uses_wheelhouse": True}, None),
    },
)
def test_a_project_that_is_a_package_is_installed_when_its_content_changes(settings, command):
    found = document(**settings).get("updateContentCommand", {})
    says = re.compile(r" \|\| echo 'devkit: not installed[^']*' >&2")
    assert {name: says.sub("", words) for name, words in found.items()} == ({"project": command} if command else {})


def git(*words, cwd):
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always")
    return subprocess.run(["git", *identity, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.mark.full
def test_a_submodule_that_is_missing_is_fetched_and_another_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    for name in ("one", "two", "whole"):
        (tmp_path / name).mkdir()
        git("init", "-q", cwd=tmp_path / name)
        (tmp_path / name / f"{name}.py").write_text("")
        git("add", ".", cwd=tmp_path / name)
        git("commit", "-qm", "x", cwd=tmp_path / name)
    for name in ("one", "two"):
        git("submodule", "--quiet", "add", str(tmp_path / name), f"libs/{name}", cwd=tmp_path / "whole")
    git("commit", "-qm", "y", cwd=tmp_path / "whole")
    git("clone", "-q", str(tmp_path / "whole"), "clone", cwd=tmp_path)
    clone = tmp_path / "clone"
    git("submodule", "--quiet", "update", "--init", "libs/one", cwd=clone)
    git("commit", "-q", "--allow-empty", "-m", "mine", cwd=clone / "libs/one")
    mine = git("rev-parse", "HEAD", cwd=clone / "libs/one")
    done = subprocess.run(["sh", "-c", FETCH_SUBMODULES], cwd=clone, capture_output=True, text=True, check=True)
    assert "could not" not in done.stderr
    assert (clone / "libs/two/two.py").exists()
    assert git("rev-parse", "HEAD", cwd=clone / "libs/one") == mine


SNAPSHOT = replace(PLAIN, editors=("daytona",))


def run_snapshot(tmp_path, *words: str, programs: tuple[str, ...] = ("docker", "daytona")):
    """Run the script where programs of these names write down how they were called."""
    (tmp_path / "bin").mkdir()
    for program in programs:
        path = tmp_path / "bin" / program
        reads_input = "cat" if program == "docker" else "true"
        path.write_text(f'#!/bin/sh\n{{ echo "{program} $*"; {reads_input}; }} >>"{tmp_path}/calls"\n')
        path.chmod(0o755)
    for name in ("sh", "cat", "cksum", "tr", "cut", "dirname"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    for path, text in texts(GPU_PLAN, SNAPSHOT).items():
        file = tmp_path / "project" / DEVCONTAINER_FOLDER / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    script = tmp_path / "project" / DEVCONTAINER_FOLDER / "daytona/snapshot.sh"
    env = os.environ | {"PATH": str(tmp_path / "bin")}
    return subprocess.run(["/bin/sh", str(script), *words], env=env, capture_output=True, text=True, check=False)


def test_the_snapshot_is_pushed_from_the_image_that_compose_builds(tmp_path):
    done = run_snapshot(tmp_path, "mine")
    assert done.returncode == 0, done.stderr
    build, *override, push = (tmp_path / "calls").read_text().splitlines()
    image = next(line.split("image: ")[1] for line in override if "image: " in line)
    assert build.endswith("docker-compose.yml --file - build dev")
    assert "    platform: linux/amd64" in override
    assert push == f"daytona snapshot push {image} --name mine --cpu 4 --memory 16 --disk 30"
    name, tag = image.split(":")
    assert (name, tag.isdigit()) == ("demo", True), "Daytona refuses tags such as latest"
