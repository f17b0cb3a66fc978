"""Folders to publish: Templates, which with their defaults are what `devkit init` writes, and the Feature."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.cli.plan_options import build_project_request, solve_request
from devkit.release import __version__
from devkit.render.container.settings import FromIndex, FromWheel
from devkit.render.files import Artifact
from devkit.render.project import DevkitProject, PathOptions, compute_project_changes, open_project
from devkit.render.published_folders import (
    DEVCONTAINER_TEMPLATES,
    FEATURE_ID,
    METADATA_PATH,
    render_devcontainer_feature,
    render_devcontainer_template,
)
from devkit.solver.plan import Plan

# Templates: with their defaults put in they are what `devkit init` writes, byte for byte.


SOURCE = FromIndex(__version__)
OPTION = re.compile(r"\$\{templateOption:\s*(\w+?)\s*\}")
"""How the reference implementation finds an option; an unknown one becomes nothing."""


each_template = pytest.mark.parametrize(
    "template", DEVCONTAINER_TEMPLATES, ids=[template.id for template in DEVCONTAINER_TEMPLATES]
)


def planned(template):
    """The plan for a Template, and the machines that it is for."""
    request = build_project_request(DevkitProject(None, replace(template.settings, name="my-project"), PathOptions()))
    plan = solve_request(request)
    assert isinstance(plan, Plan), plan
    return plan, request.machines


def folder(template, source=SOURCE) -> dict[str, Artifact]:
    plan, machines = planned(template)
    made = render_devcontainer_template(template, plan, source, machines)
    return {artifact.path.removeprefix(f"{template.id}/"): artifact for artifact in made}


def applied(template, **values: str) -> dict[str, bytes]:
    """The files as whoever applies the Template gets them: every option by its value or default."""
    files = folder(template)
    metadata = json.loads(files.pop(METADATA_PATH).content)
    chosen = {name: option["default"] for name, option in metadata["options"].items()} | values
    return {
        path: OPTION.sub(lambda found: chosen.get(found[1], ""), artifact.content.decode()).encode()
        for path, artifact in files.items()
    }


def initialized(template, root, **overrides: str) -> dict[str, bytes]:
    """What `devkit init` would write with the same settings."""
    plan, machines = planned(template)
    project = open_project(root, replace(template.settings, **overrides), PathOptions())
    changes = compute_project_changes(project, plan, machines=machines, source=SOURCE)
    return {change.path: change.artifact.content for change in changes}


@each_template
def test_a_template_with_its_defaults_is_what_init_writes(template, tmp_path):
    made, expected = applied(template), initialized(template, tmp_path, name="my-project")
    assert set(made) == set(expected)
    for path, content in expected.items():
        assert made[path] == content, path


# The dev container Feature: its folder, its script, and a container's start.


WHEEL = FromWheel("devkit_gpu-0-py3-none-any.whl", b"a wheel")


@pytest.fixture
def feature_folder(tmp_path):
    for artifact in render_devcontainer_feature(WHEEL):
        path = tmp_path / artifact.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(artifact.content)
        path.chmod(artifact.mode)
    return tmp_path / FEATURE_ID


def run_install(feature_folder, tmp_path, python, **options):
    """Run the script with programs of the test's own: `python` is the body of each Python, apt-get installs nothing."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in (("python3", python), ("apt-get", "exit 0")):
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    for name in ("sh", "dirname", "mkdir", "rm", "sed", "chmod", "ln", "printf"):
        (programs / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    script = (feature_folder / "install.sh").read_text()
    (feature_folder / "install.sh").write_text(
        script.replace("/opt/devkit/", f"{tmp_path}/opt/").replace("/usr/local/", f"{tmp_path}/usr-local/")
    )
    (tmp_path / "usr-local/bin").mkdir(parents=True)
    argv, env = ["/bin/sh", feature_folder / "install.sh"], {"PATH": str(programs), **options}
    return subprocess.run(argv, env=env, capture_output=True, text=True)


MAKE_ENVIRONMENT = """[ "$1" = -m ] || exit 0
[ "$2" = venv ] && /bin/mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "pip $*" >>"$0.log"\\n' >"$3/bin/pip"
/bin/chmod +x "$3/bin/pip"
"""


@pytest.mark.parametrize(("check", "starts"), [("true", "#!/bin/sh\ndevkit doctor || :\n"), ("false", "#!/bin/sh\n")])
def test_options_reach_pip_and_the_start(feature_folder, tmp_path, check, starts):
    done = run_install(
        feature_folder, tmp_path, MAKE_ENVIRONMENT, CHECK=check, INDEX="http://user:x@index.example:8080/simple"
    )
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "opt/bin/pip.log").read_text()
    assert "--index-url http://user:x@index.example:8080/simple --trusted-host index.example ./devkit_gpu" in asked
    assert (tmp_path / "usr-local/share/devkit/start.sh").read_text() == starts
    assert (tmp_path / "usr-local/bin/devkit").readlink() == tmp_path / "opt/bin/devkit"
