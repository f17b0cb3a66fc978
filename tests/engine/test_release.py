"""A release rehearsed: published to an index, a registry and a site of this machine, then used as a stranger would.

`make release-rehearsal` runs it. The forge's part is left out: its login, its attestations and its runners.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from devkit.release import __version__
from tests.verify.stages import NOT_ON_A_CPU, not_passed

from . import binaries, cache, image, leftovers, package_index, tools
from .commands import environment, run
from .conftest import one_engine
from .daemon import Engine
from .project import GIT, SERVICE, Clone

pytestmark = pytest.mark.nightly

OWNER = "acme"
UVX = (Path(sys.executable).with_name("uvx"), "--quiet")
UV = Path(sys.executable).with_name("uv")
START_DEADLINE_S = 30.0


@dataclass(frozen=True)
class Release:
    """The tagged repository, its files as built, and where they are published."""

    repository: Path
    wheel: Path
    index: str
    registry: str
    manifest: dict[str, object]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory, devcontainer_cli: Path) -> Iterator[Release]:
    """Set the owner, tag, build and publish: what the workflow does at a tag."""
    folder = tmp_path_factory.mktemp("release")
    online = environment(UV_OFFLINE="0")
    repository = folder / "devkit"
    run([*GIT, "clone", "--quiet", cache.ROOT, repository])
    settings = repository / "pyproject.toml"
    before = settings.read_text(encoding="utf-8")
    assert before.count("OWNER") == 1
    settings.write_text(before.replace("OWNER", OWNER), encoding="utf-8")
    run([*GIT, "commit", "--quiet", "--all", "--message", "Set the owner"], cwd=repository)
    run([*GIT, "tag", f"v{__version__}"], cwd=repository)
    run([UV, "build", "--quiet"], cwd=repository, env=online)
    (wheel,), (source,) = (list(repository.glob(f"dist/*.{kind}")) for kind in ("whl", "tar.gz"))
    run([*UVX, "twine", "check", "--strict", wheel, source], env=online)
    manifest = json.loads(run([sys.executable, ".ci/mcp_manifest.py"], cwd=repository).stdout)
    feature = folder / "feature"
    run([*UVX, "--from", wheel, "devkit", "init", feature / "src", "--as-feature", "--yes"], env=online)
    with serving_packages(folder / "packages") as index, serving_images(folder / "images") as registry:
        run([*UVX, "twine", "upload", "--repository-url", index, "-u", "", "-p", "", wheel, source], env=online)
        publish = ["features", "publish", feature / "src", "--registry", registry, "--namespace", f"{OWNER}/devkit"]
        run([devcontainer_cli / "devcontainer", *publish])
        yield Release(repository, wheel, f"{index}/simple/", registry, manifest)


@contextmanager
def serving_packages(folder: Path) -> Iterator[str]:
    """The address of a package index that takes uploads."""
    folder.mkdir()
    port = free_port()
    server = ["pypi-server", "run", "--interface", "127.0.0.1", "--port", str(port)]
    with started([*UVX, "--from", "pypiserver", *server, "--passwords", ".", "--authenticate", ".", folder], port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def serving_images(folder: Path) -> Iterator[str]:
    """The address of an OCI registry: the distribution project's, from Debian."""
    root = cache.made_once("registry", lambda folder: binaries.unpack("bookworm", ["docker-registry"], folder))
    port = free_port()
    settings = folder.with_suffix(".yml")
    storage = {"filesystem": {"rootdirectory": str(folder)}}
    settings.write_text(json.dumps({"version": 0.1, "http": {"addr": f"127.0.0.1:{port}"}, "storage": storage}))
    with started([root / "usr/bin/docker-registry", "serve", settings], port):
        yield f"localhost:{port}"


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def started(argv: list[str | Path], port: int) -> Iterator[None]:
    """Run a server for the block, from when it listens."""
    words = [*leftovers.WITH_THIS_SESSION, "TERM", *map(str, argv)]
    server = subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(UV_OFFLINE="0"),
        start_new_session=True,
    )

    until = time.monotonic() + START_DEADLINE_S
    try:
        while True:
            assert server.poll() is None and time.monotonic() < until, f"{argv} does not listen"
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


@pytest.fixture
def stranger(release: Release, tmp_path: Path) -> dict[str, str]:
    """An environment with an empty HOME, which knows the index and nothing else of the release."""
    home = tmp_path / "home"
    home.mkdir()
    return environment(
        HOME=home, UV_INDEX=release.index, NO_COLOR="1", DEVKIT_TRIAL="0", UV_OFFLINE="0", UV_CACHE_DIR=home / "uv"
    )


def test_the_wheel_runs_by_its_name_alone(stranger: dict[str, str]):
    done = run([*UVX, "devkit-gpu", "doctor", "--json"], env=stranger, expect=None)
    assert json.loads(done.stdout)["schema"] == "devkit.doctor/1"


def test_the_source_distribution_installs(stranger: dict[str, str], tmp_path: Path):
    venv = tmp_path / "venv"
    run([UV, "venv", "--quiet", venv], env=stranger)
    run([UV, "pip", "install", "--quiet", "--python", venv, "--no-binary", "devkit-gpu", "devkit-gpu"], env=stranger)
    assert run([venv / "bin/devkit", "--version"], env=stranger).stdout.split()[-1] == __version__


@one_engine
def test_a_dev_container_of_somebody_else_gets_the_feature_by_its_address(
    engine: Engine, release: Release, devcontainer_cli: Path, tmp_path: Path
):
    base = "devkit-test-base:latest"
    image.provide(engine, base)
    own = [line for line in metadata.requires("devkit-gpu") or [] if "extra ==" not in line]
    served = tmp_path / "served"
    served.mkdir()
    package_index.write_index(served, "simple", sorted(tools.wheelhouse(own).glob("*.whl")))
    project = tmp_path / "project"
    (project / ".devcontainer").mkdir(parents=True)
    with package_index.serving(served) as address:
        feature = f"{release.registry}/{OWNER}/devkit/devkit:{__version__.partition('.')[0]}"
        described = {"image": base, "features": {feature: {"index": f"{address}/simple"}}}
        (project / ".devcontainer/devcontainer.json").write_text(json.dumps(described))
        env = engine.env | {"PATH": os.pathsep.join([str(devcontainer_cli), engine.env["PATH"]])}
        cli = [devcontainer_cli / "devcontainer"]
        run([*cli, "up", "--workspace-folder", project], env=env, deadline_s=600)
        inside = run([*cli, "exec", "--workspace-folder", project, "devkit", "--version"], env=env)
    assert inside.stdout.split()[-1] == __version__


@one_engine
def test_the_image_of_the_proof_is_pulled_and_proves_itself(engine: Engine, release: Release, clone: Clone):
    clone.look()
    clone.compose("build")
    composed = json.loads(clone.compose("config", "--format", "json"))
    built = composed["services"][SERVICE].get("image") or f"{composed['name']}-{SERVICE}"
    name = f"{release.registry}/{OWNER}/devkit-proof:{__version__}"
    engine.docker("tag", built, name)
    engine.docker("push", name)
    engine.docker("rmi", name, built)
    proof = engine.docker("run", "--rm", "--network", "none", name, "devkit", "verify", "--here", "--json", "--quick")
    report = json.loads(proof)
    assert report["verdict"] == "passed"
    assert not_passed(report).items() <= dict.fromkeys(NOT_ON_A_CPU, "skipped").items()


def test_a_repository_takes_the_hook_of_pre_commit(stranger: dict[str, str], release: Release, tmp_path: Path):
    project = broken_project(tmp_path)
    hook = {"repo": release.repository.as_uri(), "rev": f"v{__version__}", "hooks": [{"id": "devkit-doctor"}]}
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [hook]}))
    run([*GIT, "add", "--all"], cwd=project)
    done = run([*UVX, "pre-commit", "run", "--all-files"], env=stranger, cwd=project, expect=1)
    assert "devkit doctor" in done.stdout
    assert "Failed" in done.stdout
    assert "PRJ" in done.stdout


def test_the_steps_of_the_action_write_sarif(stranger: dict[str, str], release: Release, tmp_path: Path):
    project = broken_project(tmp_path)
    action = yaml.safe_load((release.repository / "action.yml").read_text())
    steps = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    sarif = tmp_path / "devkit.sarif"
    bin_folder = tmp_path / "bin"
    env = stranger | {"GITHUB_ACTION_PATH": str(release.repository), "PROJECT": str(project), "SARIF": str(sarif)}
    env |= {"UV_TOOL_BIN_DIR": str(bin_folder), "PATH": f"{bin_folder}:{UV.parent}:{os.environ['PATH']}"}
    for step in steps:
        run(["bash", "-c", step], env=env, expect=None)
    assert json.loads(sarif.read_text())["runs"][0]["results"]


def test_a_client_starts_the_server_as_the_manifest_says(stranger: dict[str, str], release: Release, tmp_path: Path):
    (package,) = release.manifest["packages"]
    words = [word for each in package["runtimeArguments"] for word in (each["name"], each["value"])]
    words += [f"{package['identifier']}@{package['version']}", *(each["value"] for each in package["packageArguments"])]
    with zipfile.ZipFile(release.wheel) as archive:
        described = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    assert f"mcp-name: {release.manifest['name']}" in described
    assert package["runtimeHint"] == "uvx"
    server = StdioServerParameters(command=str(UVX[0]), args=words, env=stranger, cwd=tmp_path)

    async def ask() -> tuple[set[str], str]:
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            tools = await session.list_tools()
            answer = await session.call_tool("explain", {"text": "DRV001"})
            return {tool.name for tool in tools.tools}, answer.content[0].text

    names, answer = asyncio.run(ask())
    assert {"doctor", "explain", "plan"} <= names
    assert "driver" in answer


def test_the_site_is_built_as_its_host_does_and_its_pages_are_served(stranger, release: Release, tmp_path: Path):
    host = yaml.safe_load((release.repository / ".readthedocs.yaml").read_text())
    run([UV, "venv", "--quiet", "--seed", tmp_path / "venv"])
    env = stranger | {"PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}", "VIRTUAL_ENV": f"{tmp_path}/venv"}
    for command in [*host["build"]["jobs"]["install"], f"mkdocs build --site-dir {tmp_path}/site"]:
        run(["sh", "-c", command], cwd=release.repository, env=env)
    with package_index.serving(tmp_path / "site", "127.0.0.1") as address:
        for page, said in {"/": "devkit", "/guides/doctor/": "devkit doctor", "/reference/interface/": "JSON"}.items():
            with urllib.request.urlopen(address + page, timeout=10) as answer:
                assert said in answer.read().decode()


def broken_project(folder: Path) -> Path:
    """A repository whose dev container asks for a GPU in a way that does not work."""
    project = folder / "project"
    (project / ".devcontainer").mkdir(parents=True)
    described = {"image": "nvidia/cuda:12.4.1-base-ubuntu22.04", "runArgs": ["--gpus all"]}
    (project / ".devcontainer/devcontainer.json").write_text(json.dumps(described))
    run([*GIT, "init", "--quiet"], cwd=project)
    return project
