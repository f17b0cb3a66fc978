"""A bundle made where there is a network, and built from where there is none: an empty engine, and no route."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import daemon, image, leftovers, mounts, network, project, tools
from .authority import Authority
from .binaries import Binaries
from .commands import run
from .conftest import one_engine
from .daemon import Engine, Flavor
from .mirror import PASSWORD, USER, Mirror, serving
from .project import DEVKIT, Clone

pytestmark = pytest.mark.nightly

DEADLINE_S = 900.0


@pytest.fixture(scope="module")
def origin(tmp_path_factory, company: Authority, bridge: str) -> Iterator[Path]:
    """A project that installs from the company's mirror, which wants a login."""
    folder = tmp_path_factory.mktemp("bundled")
    wheels = folder / "wheels"
    wheels.mkdir()
    for source in (project.wheels_for(folder / "draft"), tools.wheelhouse(["iniconfig==2.1.0"])):
        for wheel in source.glob("*.whl"):
            (wheels / wheel.name).symlink_to(wheel)
    root = folder / "quickstart"
    root.mkdir()
    (root / "requirements.txt").write_text("iniconfig>=2\n", encoding="utf-8")
    with serving(wheels):
        mirrors = ("--index", Mirror.index, "--torch-index", Mirror.torch_index)
        project.init(root, *project.PLAN, "--ca-certificate", company.bundle, *mirrors)
        netrc = folder / "netrc"
        netrc.write_text(f"machine {Mirror.index.split('/')[2].split(':')[0]} login {USER} password {PASSWORD}\n")
        (root / ".devcontainer/.env").write_text(f"DEVKIT_NETRC='{netrc}'\n", encoding="utf-8")
        yield root


def bundle(engine: Engine, root: Path, output: Path, *words: str) -> dict[str, object]:
    """Run `devkit bundle`."""
    argv = [*DEVKIT, "bundle", root, "--output", output, "--json", *words]
    return json.loads(run(argv, env=engine.env, deadline_s=DEADLINE_S).stdout)


@pytest.fixture(scope="module")
def made(origin: Path, tmp_path_factory) -> dict[str, object]:
    """Where the bundle of this module goes; the first test fills it."""
    return {"path": tmp_path_factory.mktemp("carried") / "bundle"}


@contextmanager
def without_network(binaries: Binaries, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A new engine with nothing in it, whose containers reach nobody: not the mirror, not even this machine."""
    # By its name the next session knows it again, should this one be killed.
    data = Path(tempfile.mkdtemp(prefix=leftovers.PREFIXES[0]))
    monkeypatch.setattr(daemon, "CACHE", data)
    try:
        with network.switched_off(), daemon.engine(binaries, Flavor.CPU) as engine:
            yield engine
    finally:
        mounts.delete(data)


@one_engine
def test_a_bundle_holds_what_it_lists_and_no_login(engine, origin, made):
    image.provide(engine, image.base_image_of(origin / ".devcontainer/Dockerfile"))
    document = bundle(engine, origin, made["path"])
    folder = made["path"]
    assert document["verdict"] == "written"
    assert {file["path"] for file in document["files"]} | {"manifest.json", "SHA256SUMS"} == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    }
    assert {"torch", "uv", "iniconfig"} <= {wheel["name"] for wheel in document["wheels"]}
    assert (folder / "images/base-amd64.tar").stat().st_size > 50_000_000
    assert not [path for path in folder.rglob("*") if path.is_file() and holds(path, PASSWORD.encode())]
    tag = f"{document['image']['name']}-amd64"
    assert PASSWORD not in engine.docker("history", "--no-trunc", "--format", "{{json .}}", tag)
    again = run([*DEVKIT, "bundle", origin, "--output", folder], env=engine.env, expect=2)
    assert "exists already" in again.stderr


def holds(path: Path, word: bytes) -> bool:
    """Whether a file of any size holds a word."""
    with path.open("rb") as file:
        tail = b""
        while chunk := file.read(1 << 22):
            if word in tail + chunk:
                return True
            tail = chunk[-len(word) :]
    return False


@one_engine
def test_without_any_network_it_builds_starts_and_proves(engine, origin, made, found, tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    run(["cp", "-R", made["path"] / "project", root])
    with without_network(found, monkeypatch) as apart:
        said = run(["sh", made["path"] / "load.sh", root], env=apart.env, deadline_s=DEADLINE_S).stdout
        assert "all files are unchanged" in said and "ready" in said
        tag = apart.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()[0]
        reach = f"import urllib.request; urllib.request.urlopen('{Mirror.index}', timeout=5)"
        assert run(["docker", "run", "--rm", tag, "python3", "-c", reach], env=apart.env, expect=None).returncode != 0
        clone = Clone(root, apart)
        clone.look()
        clone.compose("build", deadline_s=DEADLINE_S)
        clone.compose("up", "--detach")
        report = json.loads(clone.inside("devkit", "verify", "--here", "--quick", "--json", deadline_s=DEADLINE_S))
        assert report["verdict"] == "passed", report
        assert clone.inside("python", "-c", "import iniconfig; print('ours')") == "ours\n"
        clone.compose("down", "--volumes")
