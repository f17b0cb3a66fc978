"""A locked image on a real engine: built by its hashes, refused for a changed byte, rebuilt only where it must be."""

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from devkit.compat.version_tables import load_tables
from tests.wheels import make_wheel

from . import image, project, tools
from .commands import run
from .conftest import one_engine
from .daemon import Engine
from .package_index import serving, write_index
from .project import Clone
from .wheels import pins_of

TORCH_TAG = "cp311-cp311-manylinux_2_28_x86_64"
STEP = re.compile(r"^#(\d+) \[[^\]]*\d+/\d+\] (RUN .*)$", re.MULTILINE)
LOCK = ("--lock-only", "python")


@dataclass(frozen=True)
class Indexes:
    """The folder of both indexes, the flags that name them, and the wheels in them."""

    folder: Path
    flags: tuple[str, ...]
    wheels: Path

    def publish(self) -> None:
        """Write the pages anew: torch in its own index, beside a tempting other version of what others have."""
        torch = [wheel for wheel in self.wheels.glob("*.whl") if wheel.name.startswith("torch-")]
        others = [wheel for wheel in self.wheels.glob("*.whl") if wheel not in torch]
        write_index(self.folder, "whl/cpu", torch)
        write_index(self.folder, "simple", others)


@pytest.fixture
def indexes(engine: Engine, tmp_path: Path) -> Iterator[Indexes]:
    folder, wheels = tmp_path / "indexes", tmp_path / "wheels"
    folder.mkdir()
    wheels.mkdir()
    _make_wheels(wheels, tmp_path / "draft")
    with serving(folder) as address:
        made = Indexes(folder, ("--index", f"{address}/simple", "--torch-index", f"{address}/whl"), wheels)
        made.publish()
        yield made


def _make_wheels(folder: Path, draft: Path) -> None:
    """Small wheels for everything but uv, which is the real one."""
    project.init(draft, *project.PLAN)
    pins = pins_of(draft / ".devcontainer/Dockerfile")
    own = [Requirement(line).name for line in requires("devkit-gpu") or [] if "extra ==" not in line]
    version = pins.pop("torch")
    built = {
        "torch/__init__.py": f'__version__ = "{version}+cpu"\n',
        "torch/version.py": f"__version__ = '{version}+cpu'\ncuda = None\nhip = None\n",
    }
    make_wheel(folder, "torch", f"{version}+cpu", requires=["sympy"], tag=TORCH_TAG, files=built)
    for name, number in {"sympy": "1.14.0", "six": "1.17.0", **dict.fromkeys(own, "999"), **pins}.items():
        if name != "uv":
            make_wheel(folder, name, number)
    real = tools.wheelhouse([f"uv=={load_tables().images.tools[0].version}"])
    for wheel in real.glob("uv-*.whl"):
        (folder / wheel.name).write_bytes(wheel.read_bytes())


@pytest.fixture
def locked(engine: Engine, indexes: Indexes, tmp_path: Path) -> Iterator[Clone]:
    folder = tmp_path / "quickstart"
    project.init(folder, *project.PLAN, *indexes.flags, *LOCK)
    image.provide(engine, image.base_image_of(folder / ".devcontainer/Dockerfile"))
    yield Clone(folder, engine)
    engine.clear()
    engine.forget_wheels()


def build(clone: Clone, *, expect: int | None = 0) -> str:
    """What the builder said, step by step."""
    argv = ["docker", "compose", "--progress", "plain", "--file", clone.compose_file, "build"]
    done = run(argv, env=clone.engine.env, cwd=clone.folder, deadline_s=600, expect=expect)
    assert expect == 0 or done.returncode != 0
    return done.stdout + done.stderr


def repeated(log: str) -> list[str]:
    """The RUN steps that the builder did not take from its cache."""
    steps = dict(STEP.findall(log))
    assert len(steps) >= 7, log
    cached = set(re.findall(r"^#(\d+) CACHED$", log, re.MULTILINE))
    return [text for number, text in steps.items() if number not in cached]


def installations(steps: list[str]) -> list[str]:
    return [step for step in steps if "pip install" in step]


@one_engine
def test_the_image_holds_what_the_lock_holds_and_nothing_else(locked):
    build(locked)
    lock = (locked.folder / ".devcontainer/requirements.lock").read_text(encoding="utf-8")
    wanted = set(re.findall(r"^([\w.-]+==[^ ]+)", lock, re.MULTILINE))
    locked.compose("up", "--detach")
    found = set(locked.inside("uv", "pip", "freeze").split("\n")) - {""}
    assert {line for line in found if "devkit" not in line and not line.startswith(("pip==", "setuptools=="))} == wanted
    assert locked.inside("sh", "-c", "ls -A /root/.cache 2>/dev/null || true") == ""


@one_engine
@pytest.mark.parametrize("name", ["torch", "uv"])
def test_a_changed_byte_in_a_wheel_ends_the_build(locked, indexes, name):
    (served,) = (indexes.folder / "files").glob(f"{name}-*.whl")
    with zipfile.ZipFile(served, "a") as archive:
        archive.comment = b"!"  # Still a whole archive: only a hash can tell.
    log = build(locked, expect=None)
    assert re.search(r"hash mismatch|DO NOT MATCH THE HASHES", log, re.IGNORECASE), log[-3000:]
    assert name in log


@pytest.mark.nightly
@one_engine
def test_a_build_server_publishes_from_the_same_dockerfile(locked):
    argv = ["docker", "buildx", "bake", "--set", "dev.tags=devkit-test:baked", "dev"]
    attested = [*argv, "--sbom=true", "--provenance=mode=max"]
    folder = locked.folder / ".devcontainer"
    # The classic image store cannot hold them, and says so instead of leaving them out.
    refused = run(attested, env=locked.engine.env, cwd=folder, expect=1)
    assert "Attestation is not supported" in refused.stderr
    dated = {**locked.engine.env, "SOURCE_DATE_EPOCH": "1000000000"}
    run(argv, env=dated, cwd=folder, deadline_s=600)
    assert locked.engine.inspect("devkit-test:baked")["Created"] == "2001-09-09T01:46:40Z"


@pytest.mark.nightly
@one_engine
def test_only_what_a_change_touches_is_built_again(locked, indexes):
    build(locked)
    (locked.folder / "train.py").write_text("print('edited')\n", encoding="utf-8")
    assert repeated(build(locked)) == []
    project.init(locked.folder, "--pin", "six==1.17.0", *LOCK)
    again = installations(repeated(build(locked)))
    assert again
    assert not [step for step in again if "torch.lock" in step or "installer.lock" in step]
