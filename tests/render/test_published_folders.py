"""Folders to publish: Templates, which with their defaults are what `devkit init` writes, and the Feature."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from devkit.cli.plan_options import build_project_request, solve_request
from devkit.errors import DevkitError
from devkit.release import __version__
from devkit.render.container.settings import FromIndex, FromUrl, FromWheel
from devkit.render.devkit_lock import LOCK_PATH, parse_lock
from devkit.render.devkit_toml import DEVKIT_TOML
from devkit.render.files import Artifact
from devkit.render.project import DevkitProject, PathOptions, compute_project_changes, open_project
from devkit.render.published_folders import (
    DEVCONTAINER_TEMPLATES,
    FEATURE_ID,
    METADATA_PATH,
    TEMPLATE_OPTIONS,
    find_template,
    render_devcontainer_feature,
    render_devcontainer_template,
    select_template_source,
)
from devkit.solver.plan import Plan

# Templates: with their defaults put in they are what `devkit init` writes, byte for byte.


SOURCE = FromIndex(__version__)
OPTION = re.compile(r"\$\{templateOption:\s*(\w+?)\s*\}")
"""How the reference implementation finds an option; an unknown one becomes nothing."""

METADATA = {
    "type": "object",
    "required": ["id", "version", "name"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]*$"},
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
        "name": {"type": "string"},
        "description": {"type": "string"},
        "documentationURL": {"type": "string", "pattern": "^https://"},
        "licenseURL": {"type": "string", "pattern": "^https://"},
        "options": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["type", "default"],
                "properties": {
                    "type": {"enum": ["string", "boolean"]},
                    "description": {"type": "string"},
                    "default": {"type": ["string", "boolean"]},
                    "proposals": {"type": "array", "items": {"type": "string"}},
                    "enum": {"type": "array", "items": {"type": "string"}},
                },
                "additionalProperties": False,
            },
        },
        "platforms": {"type": "array", "items": {"type": "string"}},
        "publisher": {"type": "string"},
        "keywords": {"type": "array", "items": {"type": "string"}},
        "optionalPaths": {"type": "array", "items": {"type": "string"}},
    },
}
"""Fields of devcontainer-template.json. Source: https://containers.dev/implementors/templates/"""

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


@each_template
def test_another_name_gives_what_init_writes_for_it_but_for_the_locks_digests(template, tmp_path):
    made = applied(template, projectName="Wörter & Zahlen", projectFolder="worter-zahlen")
    expected = initialized(template, tmp_path, name="Wörter & Zahlen")
    assert [path for path, content in expected.items() if made[path] != content] == [LOCK_PATH]
    ours, theirs = parse_lock(made[LOCK_PATH]), parse_lock(expected[LOCK_PATH])
    assert (ours.plan, ours.machines, set(ours.files)) == (theirs.plan, theirs.machines, set(theirs.files))


@each_template
def test_the_metadata_follows_the_specification(template):
    metadata = json.loads(folder(template)[METADATA_PATH].content)
    jsonschema.validate(metadata, METADATA)
    assert metadata["id"] == template.id
    assert set(metadata["options"]) == set(TEMPLATE_OPTIONS)


@each_template
def test_every_option_is_used_and_every_used_one_is_declared(template):
    used = {name for artifact in folder(template).values() for name in OPTION.findall(artifact.content.decode())}
    assert used == set(TEMPLATE_OPTIONS)


@each_template
def test_devkit_can_go_on_from_an_applied_template(template, tmp_path):
    for path, content in applied(template, projectName="mine", projectFolder="mine").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    plan, machines = planned(template)
    project = open_project(tmp_path, replace(template.settings, name=""), PathOptions())
    changes = compute_project_changes(project, plan, machines=machines, source=SOURCE)
    assert project.settings.name == "mine"
    assert [change.path for change in changes if change.action != "unchanged"] == [LOCK_PATH]
    assert DEVKIT_TOML in {change.path for change in changes}


def test_a_template_holds_no_wheel():
    assert select_template_source(FromWheel("devkit.whl", b"PK")) == SOURCE
    assert select_template_source(FromUrl("git+https://example.org/d@abc")) == FromUrl("git+https://example.org/d@abc")


def test_an_unknown_template_is_refused_with_those_there_are():
    with pytest.raises(DevkitError, match="there is no Template 'tpu'") as refused:
        find_template("tpu")
    assert "pytorch-cuda" in refused.value.hint


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


def test_the_folder_holds_metadata_script_and_wheel(feature_folder):
    assert sorted(path.name for path in feature_folder.iterdir()) == [
        "devcontainer-feature.json",
        WHEEL.filename,
        "install.sh",
    ]
    metadata = json.loads((feature_folder / "devcontainer-feature.json").read_text())
    assert (metadata["id"], metadata["version"]) == (feature_folder.name, __version__)


@pytest.mark.skipif("DEVKIT_SCHEMAS" not in os.environ, reason="set DEVKIT_SCHEMAS to the folder of schemas")
def test_the_metadata_keeps_to_its_schema(feature_folder):
    schema = json.loads(Path(os.environ["DEVKIT_SCHEMAS"], "devContainerFeature.schema.json").read_text())
    jsonschema.validate(json.loads((feature_folder / "devcontainer-feature.json").read_text()), schema)


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


def test_an_image_with_an_old_python_says_what_to_do(feature_folder, tmp_path):
    done = run_install(feature_folder, tmp_path, "exit 1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "devkit needs Python 3.11 or newer, and this image's system has none."
    assert "ghcr.io/devcontainers/features/python" in done.stderr
