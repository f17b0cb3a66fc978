"""Where an image takes devkit from, the wheel that devkit packs of itself, and the dev container Feature that has it."""

import json
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path

import pytest

from devkit.release import __version__
from devkit.render.container.settings import FromIndex, FromUrl, FromWheel
from devkit.render.templates import find_templates
from devkit.render.wheel import (
    FEATURE_ID,
    build_devkit_wheel,
    find_devkit_source,
    pack_wheel,
    parse_direct_url,
    render_devcontainer_feature,
)
from tests.cases import cases


@pytest.fixture(scope="module")
def wheel() -> FromWheel:
    return pack_wheel(distribution("devkit-gpu"))


@cases(
    "recorded, source",
    {
        "a git revision": (
            {"url": "https://example.org/d.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            FromUrl("git+https://example.org/d.git@abc"),
        ),
        "a password in the URL stays behind": (
            {"url": "https://dev:secret@example.org/d.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            FromUrl("git+https://example.org/d.git@abc"),
        ),
        "the forge's public SSH user stays": (
            {"url": "ssh://git@example.org/d.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            FromUrl("git+ssh://git@example.org/d.git@abc"),
        ),
        "an archive with its hash": (
            {"url": "https://example.org/d.whl", "archive_info": {"hash": "sha256=12"}},
            FromUrl("https://example.org/d.whl#sha256=12"),
        ),
        "without": ({"url": "https://example.org/d.whl", "archive_info": {}}, FromUrl("https://example.org/d.whl")),
        "an editable checkout": ({"url": "file:///src/devkit", "dir_info": {"editable": True}}, None),
        "a wheel on this disk": ({"url": "file:///tmp/d.whl", "archive_info": {}}, None),
        "a repository on this disk": ({"url": "file:///src/d", "vcs_info": {"vcs": "git", "commit_id": "abc"}}, None),
    },
)
def test_source(recorded, source):
    assert parse_direct_url(recorded) == source


def test_devkit_comes_from_where_it_was_installed_from():
    recorded = distribution("devkit-gpu").read_text("direct_url.json")
    url = parse_direct_url(json.loads(recorded)) if recorded else FromIndex(__version__)
    assert find_devkit_source() == (url or build_devkit_wheel())


def test_the_same_files_give_the_same_bytes(wheel):
    assert pack_wheel(distribution("devkit-gpu")) == wheel


def test_the_wheel_holds_what_an_install_needs(wheel):
    with zipfile.ZipFile(BytesIO(wheel.content)) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        metadata = archive.read(f"devkit_gpu-{__version__}.dist-info/METADATA").decode()
    root = Path(str(find_templates()))
    templates = {f"devkit/templates/{path.relative_to(root)}" for path in root.rglob("*.j2")}
    assert templates <= names
    assert {"devkit/__init__.py", "devkit/cli/__init__.py", "devkit/solver/plan.py"} <= names
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)
    assert f"Version: {__version__}\n" in metadata
    assert "Requires-Dist: click" in metadata


@pytest.mark.full
def test_pip_installs_it_and_devkit_runs_from_it(wheel, tmp_path):
    file = tmp_path / wheel.filename
    file.write_bytes(wheel.content)
    target = tmp_path / "installed"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(file),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import devkit; assert devkit.__file__.startswith(sys.argv[1]);"
        "from devkit.render.templates import render_template;"
        "print(render_template('report/page.css.j2'))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(target)], check=True, capture_output=True, text=True)
    assert "color-scheme" in done.stdout
    assert (target / "bin/devkit").exists()


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
