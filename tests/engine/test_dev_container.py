"""The generated files, unchanged, on three kinds of host: plain Compose and the reference dev container CLI."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.verify.stages import NOT_ON_A_CPU, not_passed

from . import image, project
from .authority import GREETING, Authority, serving
from .cache import CACHE
from .commands import run
from .conftest import every_flavor, one_engine
from .daemon import INJECTED_FILE, Engine, Flavor
from .project import DEVKIT, SERVICE, Clone, Committed

SECRET = "hf_" + "S3cr3t" * 6
VERIFY = ("devkit", "verify", "--here", "--json")


@pytest.fixture
def started(clone: Clone) -> Clone:
    """A clone started the way the README says."""
    clone.look()
    clone.compose("up", "--build", "--detach")
    return clone


def cli(folder: Path, clone: Clone, *words: str | Path) -> str:
    """What the dev container CLI printed on its standard output."""
    path = os.pathsep.join([str(folder), clone.engine.env["PATH"]])
    env = {**clone.engine.env, "PATH": path}
    verb, *rest = words
    argv = clone.engine.on_host("devcontainer", verb, "--workspace-folder", clone.folder, *rest)
    return run(argv, env=env, cwd=clone.folder, deadline_s=900).stdout


AS_TEAMMATE = """
set -eu
mount --bind "$0" /etc/passwd
mount --bind "$1" "$2"
shift 2
exec "$@"
"""


def cli_as(uid: int, folder: Path, clone: Clone, *words: str) -> str:
    """The same, as an ordinary user who may use Docker, with a home and programs that this user can reach.

    The dev container CLI asks the system for the user's name, and the checkout may lie in root's home: so this user
    and a view of the cached programs exist in a mount namespace of their own.
    """
    state = clone.engine.state
    home, users, programs = state / f"home-{uid}", state / f"passwd-{uid}", state / "programs"
    users.write_text(f"root:x:0:0::/root:/bin/sh\nteammate:x:{uid}:{uid}::{home}:/bin/sh\n", encoding="ascii")
    programs.mkdir(exist_ok=True)
    if not home.exists():
        plugins = home / ".docker/cli-plugins"
        plugins.mkdir(parents=True)
        for link in (state / "client/cli-plugins").iterdir():
            (plugins / link.name).symlink_to(str(link.readlink()).replace(str(CACHE), str(programs)))
    choices = clone.folder / ".devcontainer/.env"
    choices.write_text(choices.read_text(encoding="utf-8").replace(str(CACHE), str(programs)), encoding="utf-8")
    for path in (home, *home.rglob("*"), clone.folder, *clone.folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)
    search = os.pathsep.join([str(folder), clone.engine.env["PATH"]]).replace(str(CACHE), str(programs))
    env = {**clone.engine.env, "HOME": str(home), "TMPDIR": str(home), "DOCKER_CONFIG": str(home / ".docker")}
    apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", AS_TEAMMATE, users, CACHE, programs]
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
    verb, *rest = words
    argv = [*apart, *user, "devcontainer", verb, "--workspace-folder", clone.folder, *rest]
    return run(argv, env=env | {"PATH": search}, cwd=clone.folder, deadline_s=900).stdout


def device_requests(engine: Engine, container: str) -> list[dict[str, object]]:
    """The GPU part of what the engine was asked for."""
    host = engine.inspect(container)["HostConfig"]
    assert isinstance(host, dict)
    return host["DeviceRequests"] or []


def assert_gpu_as_offered(clone: Clone, container: str) -> None:
    """The container got the GPU in the form that this engine offers, or none."""
    asked = [(request["Driver"], request["DeviceIDs"]) for request in device_requests(clone.engine, container)]
    # An exec does not inherit what the runtime added; the container's first process does.
    env = clone.engine.docker("exec", container, "cat", "/proc/1/environ").split("\0")
    match clone.engine.flavor:
        case Flavor.CPU:
            assert asked == []
            assert not [variable for variable in env if variable.startswith("NVIDIA_VISIBLE_DEVICES=")]
        case Flavor.NVIDIA:
            assert [driver for driver, _ in asked] == ["nvidia"]
            assert "NVIDIA_VISIBLE_DEVICES=all" in env
        case Flavor.CDI:
            assert asked == [("cdi", ["nvidia.com/gpu=all"])]
            assert "DEVKIT_CDI_DEVICE=all" in env
            assert "from the CDI specification" in clone.engine.docker("exec", container, "cat", INJECTED_FILE)


def inside_as_the_host_sees_it(clone: Clone) -> dict[str, Any]:
    """What `devkit doctor` on the host reads inside the project's running container."""
    # The facts are asked about, not the time: beside other tests, two interpreters may need more than five seconds.
    words = (
        "doctor",
        "--project",
        clone.folder,
        "--timeout",
        "60",
        "--save-facts",
        "/dev/stdout",
        "--output",
        "/dev/null",
    )
    # The verdict may be either: only the facts matter here.
    done = run(clone.engine.on_host(*DEVKIT, *words), env=clone.engine.env, cwd=clone.folder, expect=None)
    inside = json.loads(done.stdout)["inside"]
    assert "container" in inside, inside
    return inside


@every_flavor
def test_compose_starts_the_committed_files(started, committed):
    assert_gpu_as_offered(started, started.container())
    inside = inside_as_the_host_sees_it(started)
    assert inside["container"]["kind"] == "docker", inside
    assert (
        inside["python"]["torch"]["version"]
        == started.inside("python", "-c", "import torch; print(torch.__version__)").strip()
    )
    assert project.fingerprint(started.folder) == project.fingerprint(committed.folder)
    assert started.changed() == ""


@every_flavor
def test_the_cli_starts_the_committed_files_and_the_proof_passes_inside(devcontainer_cli, clone, committed):
    up = json.loads(cli(devcontainer_cli, clone, "up").splitlines()[-1])
    assert up["outcome"] == "success"
    assert_gpu_as_offered(clone, up["containerId"])
    assert inside_as_the_host_sees_it(clone)["container"]["kind"] == "docker"
    assert project.fingerprint(clone.folder) == project.fingerprint(committed.folder)
    assert clone.changed() == ""
    # Each way to ask for the GPU gives the same processor here, and the whole proof is that of test_commands.py.
    if clone.engine.flavor is not Flavor.CPU:
        return
    report = json.loads(cli(devcontainer_cli, clone, "exec", *VERIFY, "--quick"))
    assert report["schema"] == "devkit.verify/1"
    assert report["verdict"] == "passed", report
    assert "lora-memorizes" in {stage["name"] for stage in report["stages"]}
    assert not_passed(report).items() <= dict.fromkeys(NOT_ON_A_CPU, "skipped").items()
    assert project.fingerprint(clone.folder) == project.fingerprint(committed.folder)
    assert clone.changed() == ""


@one_engine
@pytest.mark.parametrize("uid", [1234], ids=["UID 1234"])
def test_what_the_developer_writes_inside_is_theirs_outside(devcontainer_cli, engine, committed, tmp_path, uid):
    image.provide(engine, committed.base_image)
    # pytest's own folders are closed to other users.
    clone = project.clone(committed, engine.state / f"of-{uid}" / "quickstart", engine)
    clone.without_packages()
    cli_as(uid, devcontainer_cli, clone, "up")
    cli_as(uid, devcontainer_cli, clone, "exec", "sh", "-c", "echo mine > note.txt; touch $HF_HUB_CACHE/.mine")
    assert (clone.folder / "note.txt").stat().st_uid == uid
    engine.clear()


@pytest.fixture
def ubuntu_like(engine: Engine, committed: Committed) -> Iterator[Engine]:
    """The base image with a user who holds UID 1000 already, as Ubuntu's images have had since 23.04."""
    image.provide(engine, committed.base_image)
    engine.docker("tag", committed.base_image, "devkit-test-kept:latest")
    # With the packages of the first stage in it, which then need not be fetched for one more image.
    context = committed.folder / ".devcontainer"
    engine.docker("build", "--target", "prepared", "--tag", image.PREPARED, context)
    image.provide_with_user(engine, committed.base_image, user="ubuntu", on=image.PREPARED)
    yield engine
    engine.clear()
    engine.docker("tag", "devkit-test-kept:latest", committed.base_image)


@pytest.mark.nightly
@one_engine
def test_a_base_image_whose_user_holds_uid_1000_gives_way(ubuntu_like, committed, tmp_path):
    holder = ubuntu_like.docker("run", "--rm", committed.base_image, "id", "--user", "--name", "1000")
    assert holder.strip() == "ubuntu"
    clone = project.clone(committed, tmp_path / "quickstart", ubuntu_like)
    clone.without_packages()
    clone.look()
    clone.compose("up", "--build", "--detach")
    owners = clone.inside("sh", "-c", "id -u; id -un; stat -c %U $HOME $HF_HUB_CACHE")
    assert owners.split() == ["1000", "dev", "dev", "dev"]


@pytest.mark.nightly
@one_engine
def test_a_build_server_that_runs_no_host_script_gets_the_cpu_form(devcontainer_cli, clone):
    assert json.loads(cli(devcontainer_cli, clone, "build").splitlines()[-1])["outcome"] == "success"
    shape = json.loads(clone.compose("config", "--format", "json"))
    assert not shape["services"][SERVICE].get("deploy", {}).get("resources")


@one_engine
def test_the_developer_inside_is_not_root_and_owns_the_workspace_and_the_caches(started):
    assert started.inside("id", "-u").strip() == "1000"
    write = 'set -eu; touch "$HF_HUB_CACHE/.written"; touch "$HOME/.written"; test ! -w /etc/passwd'
    started.inside("sh", "-c", write)
    info = started.engine.inspect(started.container())
    host = info["HostConfig"]
    assert isinstance(host, dict)
    assert host["Privileged"] is False
    assert not host["CapAdd"]
    assert host["IpcMode"] != "host"
    assert not [bind for bind in host["Binds"] or [] if "docker.sock" in bind]


@one_engine
def test_the_hub_cache_outlives_the_container(started):
    started.inside("sh", "-c", 'echo kept > "$HF_HUB_CACHE/.kept"')
    started.compose("down")
    started.compose("up", "--detach")
    assert started.inside("sh", "-c", 'cat "$HF_HUB_CACHE/.kept"') == "kept\n"


@one_engine
def test_no_secret_reaches_the_image(clone, tmp_path):
    proxy = f"http://dev:{SECRET}@192.0.2.1:3128"
    secrets = {"HF_TOKEN": SECRET, "HUGGING_FACE_HUB_TOKEN": SECRET, "GITHUB_TOKEN": SECRET, "FTP_PROXY": proxy}
    clone.compose("build", env=secrets)
    image = json.loads(clone.compose("config", "--format", "json"))["services"][SERVICE].get("image")
    image = image or clone.compose("images", "--format", "json") or ""
    names = clone.engine.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
    built = [name for name in names if "quickstart" in name or name == image]
    assert built
    for name in built:
        assert SECRET not in clone.engine.docker("history", "--no-trunc", "--format", "{{json .}}", name)
        assert SECRET not in json.dumps(clone.engine.inspect(name))


@one_engine
def test_the_company_authority_is_trusted_inside_and_only_there(started, company: Authority):
    fetch = (
        "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=20).read())"
    )
    with serving(company) as url:
        assert started.inside("python", "-c", fetch, url).encode() == GREETING
        assert "CERTIFICATE_VERIFY_FAILED" in started.compose(
            "exec",
            "-T",
            "--env",
            "SSL_CERT_FILE=/dev/null",
            "--env",
            "SSL_CERT_DIR=/nowhere",
            SERVICE,
            "sh",
            "-c",
            'python -c "$1" "$2" 2>&1 || true',
            "sh",
            fetch,
            url,
        )


@pytest.mark.nightly
@one_engine
def test_two_projects_run_side_by_side(started, committed: Committed, engine, tmp_path):
    other = Clone(tmp_path / "elsewhere", engine)
    project.init(other.folder, *project.PLAN, "--wheelhouse", committed.wheelhouse)
    other.without_packages()
    other.look()
    other.compose("up", "--build", "--detach")
    assert other.container() != started.container()
    assert len(engine.containers()) == 2
    other.compose("down", "--volumes")
    assert started.inside("true") == ""
