"""The dev container Feature: its folder, its script, and a container's start."""

import subprocess
from pathlib import Path

import pytest

from devkit.render.container.settings import FromWheel
from devkit.render.wheel import FEATURE_ID, render_devcontainer_feature

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
