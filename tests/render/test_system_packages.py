"""The layer of Debian packages, run by a shell with stand-ins for apt and dpkg, and what sudo changes."""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.facts.project import Policy
from devkit.render.container.compose import render_devcontainer_compose
from devkit.render.container.image import render_dockerfile
from devkit.render.container.settings import ContainerSettings, FromIndex
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.project import DevkitProject, PathOptions, build_container_settings
from devkit.solver.plan import SYSTEM_PACKAGE, Reason
from devkit.solver.system_packages import REQUESTED

from .plans import CPU_PLAN

PLAIN = ContainerSettings("Demo", "demo", FromIndex("0.1.0"))
MIRRORED = replace(PLAIN, index="https://pypi.example.org/simple")
"""A network whose base images may be prepared."""
INSTALLED = "ca-certificates g++ gcc git libc6-dev"
APT = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in *--simulate*) case " $MISSING " in *" $3 "*) exit 100 ;; esac ;; esac
"""
DPKG = """#!/bin/sh
for name; do :; done
case " $INSTALLED " in *" $name "*) printf installed ;; *) exit 1 ;; esac
"""


def planned(**because):
    reasons = tuple(Reason(name, SYSTEM_PACKAGE, why, "", "confirmed") for name, why in because.items())
    return replace(CPU_PLAN, reasons=(*CPU_PLAN.reasons, *reasons))


def run_layer(text: str, folder: Path, **variables: str) -> tuple[list[str], str]:
    """Run the first RUN instruction; return the calls of apt-get but for the trials, and the standard error."""
    script = next(found[0] for found in re.finditer(r"^RUN (?:[^\n]*\\\n)*[^\n]*", text, re.MULTILINE))
    for name, content in (("apt-get", APT), ("dpkg-query", DPKG)):
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    log = folder / "log"
    log.touch()
    script = script.removeprefix("RUN ").replace("\\\n", " ").replace("/var/lib/apt/lists", str(folder / "lists"))
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(log), "MISSING": "", **variables}
    done = subprocess.run(["sh", "-c", script], env=variables, capture_output=True, text=True, check=True, timeout=60)
    return [line for line in log.read_text().splitlines() if "--simulate" not in line], done.stderr


def test_each_package_of_the_project_stands_with_its_reason():
    text = render_dockerfile(planned(ffmpeg="openai-whisper runs the program ffmpeg"), PLAIN)
    assert "# ffmpeg: openai-whisper runs the program ffmpeg\n" in text


def test_only_what_is_not_there_is_installed(tmp_path):
    text = render_dockerfile(planned(ffmpeg="it runs it", sox=REQUESTED), MIRRORED)
    calls, _ = run_layer(text, tmp_path, INSTALLED=f"{INSTALLED} ffmpeg")
    assert calls == ["update", "install -y --no-install-recommends sox"]


def test_a_prepared_base_image_needs_no_mirror(tmp_path):
    text = render_dockerfile(planned(ffmpeg="it runs it"), MIRRORED)
    assert run_layer(text, tmp_path, INSTALLED=f"{INSTALLED} ffmpeg") == ([], "")


@pytest.mark.parametrize(
    ("settings", "installs"),
    [
        pytest.param(MIRRORED, ["ffmpeg"], id="in a prepared image"),
        pytest.param(PLAIN, [INSTALLED, "ffmpeg"], id="in a public image"),
    ],
)
def test_what_the_distribution_lacks_does_not_end_the_build(tmp_path, settings, installs):
    text = render_dockerfile(planned(ffmpeg="it runs it", libosmesa6="Dockerfile installs it"), settings)
    calls, said = run_layer(text, tmp_path, INSTALLED=INSTALLED, MISSING="libosmesa6")
    assert calls == ["update", *(f"install -y --no-install-recommends {each}" for each in installs)]
    assert "this distribution has no libosmesa6" in said


def test_what_the_user_named_does(tmp_path):
    text = render_dockerfile(planned(ffmpeg="it runs it", nothing=REQUESTED), MIRRORED)
    calls, said = run_layer(text, tmp_path, INSTALLED=INSTALLED, MISSING="nothing")
    assert calls == ["update", "install -y --no-install-recommends ffmpeg nothing"]
    assert said == ""


def test_a_name_that_a_shell_would_read_is_refused():
    with pytest.raises(DevkitError, match="Debian package"):
        render_dockerfile(planned(**{"a;b": REQUESTED}), PLAIN)


@pytest.mark.parametrize("sudo", [pytest.param(True, id="requested"), pytest.param(False, id="by default not")])
def test_sudo(sudo):
    settings = replace(PLAIN, sudo=sudo)
    text = render_dockerfile(CPU_PLAN, settings)
    assert ("NOPASSWD" in text and re.search(r"apt-get install .* sudo ", text) is not None) is sudo
    compose = next(each for each in render_devcontainer_compose(CPU_PLAN, settings) if "compose" in each.path)
    service = yaml.safe_load(compose.content)["services"]["dev"]
    assert ("security_opt" not in service) is sudo


@pytest.mark.parametrize(("allow_root", "is_refused"), [(False, True), (True, False)])
def test_a_policy_decides_on_sudo(tmp_path, allow_root, is_refused):
    settings = ProjectSettings(name="demo", sudo=True, policy=Policy(allow_root=allow_root))
    project = DevkitProject(tmp_path, settings, PathOptions())
    if is_refused:
        with pytest.raises(DevkitError, match="policy forbids"):
            build_container_settings(project)
    else:
        assert build_container_settings(project).sudo
