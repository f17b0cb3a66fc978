"""The dev container Feature: its folder, its script, and a container's start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from devkit import __version__
from devkit.render.container.settings import FromWheel
from devkit.render.devcontainer_feature import FEATURE_ID, render_devcontainer_feature

WHEEL = FromWheel("devkit_gpu-0-py3-none-any.whl", b"a wheel")


@pytest.fixture
def folder(tmp_path):
    for artifact in render_devcontainer_feature(WHEEL):
        path = tmp_path / artifact.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(artifact.content)
        path.chmod(artifact.mode)
    return tmp_path / FEATURE_ID


def test_the_folder_holds_metadata_script_and_wheel(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["devcontainer-feature.json", WHEEL.filename, "install.sh"]
    metadata = json.loads((folder / "devcontainer-feature.json").read_text())
    assert (metadata["id"], metadata["version"]) == (folder.name, __version__)


@pytest.mark.skipif("DEVKIT_SCHEMAS" not in os.environ, reason="set DEVKIT_SCHEMAS to the folder of schemas")
def test_the_metadata_keeps_to_its_schema(folder):
    schema = json.loads(Path(os.environ["DEVKIT_SCHEMAS"], "devContainerFeature.schema.json").read_text())
    jsonschema.validate(json.loads((folder / "devcontainer-feature.json").read_text()), schema)


def test_shellcheck_has_nothing_to_say(folder):
    done = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), "--shell=sh", folder / "install.sh"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def run_install(folder, tmp_path, python, **options):
    """Run the script with programs of the test's own: `python` is the body of each Python, apt-get installs nothing."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in (("python3", python), ("apt-get", "exit 0")):
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    for name in ("sh", "dirname", "mkdir", "rm", "sed", "chmod", "ln", "printf"):
        (programs / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    script = (folder / "install.sh").read_text()
    (folder / "install.sh").write_text(
        script.replace("/opt/devkit/", f"{tmp_path}/opt/").replace("/usr/local/", f"{tmp_path}/usr-local/")
    )
    (tmp_path / "usr-local/bin").mkdir(parents=True)
    argv, env = ["/bin/sh", folder / "install.sh"], {"PATH": str(programs), **options}
    return subprocess.run(argv, env=env, capture_output=True, text=True)


MAKE_ENVIRONMENT = """[ "$1" = -m ] || exit 0
[ "$2" = venv ] && /bin/mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "pip $*" >>"$0.log"\\n' >"$3/bin/pip"
/bin/chmod +x "$3/bin/pip"
"""


@pytest.mark.parametrize(("check", "starts"), [("true", "#!/bin/sh\ndevkit doctor || :\n"), ("false", "#!/bin/sh\n")])
def test_options_reach_pip_and_the_start(folder, tmp_path, check, starts):
    done = run_install(folder, tmp_path, MAKE_ENVIRONMENT, CHECK=check, INDEX="http://user:x@index.example:8080/simple")
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "opt/bin/pip.log").read_text()
    assert "--index-url http://user:x@index.example:8080/simple --trusted-host index.example ./devkit_gpu" in asked
    assert (tmp_path / "usr-local/share/devkit/start.sh").read_text() == starts
    assert (tmp_path / "usr-local/bin/devkit").readlink() == tmp_path / "opt/bin/devkit"


def test_an_image_with_an_old_python_says_what_to_do(folder, tmp_path):
    done = run_install(folder, tmp_path, "exit 1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "devkit needs Python 3.11 or newer, and this image's system has none."
    assert "ghcr.io/devcontainers/features/python" in done.stderr
