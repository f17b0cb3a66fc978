"""Projects with packages of their own, built: with the project's tool, from its own files, around the plan's torch."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.wheels import make_wheel

from . import image, project
from .commands import CommandError, run
from .conftest import one_engine
from .daemon import Engine
from .project import Clone
from .wheels import light_wheelhouse, lockers

SECRET = "hf_" + "S3cr3t" * 6
UV_LOCK = """\
version = 1
revision = 3
requires-python = ">=3.11"

[[package]]
name = "needle"
version = "1.0"
source = {{ registry = "https://pypi.org/simple" }}
wheels = [
    {{ url = "https://files.example.org/needle-1.0-py3-none-any.whl", hash = "sha256:{needle}", size = 1 }},
]

[[package]]
name = "p"
version = "1"
source = {{ virtual = "." }}
dependencies = [
    {{ name = "needle" }},
    {{ name = "torch" }},
]

[package.metadata]
requires-dist = [
    {{ name = "needle" }},
    {{ name = "torch" }},
]

[[package]]
name = "torch"
version = "2.13.0"
source = {{ registry = "https://pypi.org/simple" }}
dependencies = [
    {{ name = "nvidia-nccl-cu13" }},
]
wheels = [
    {{ url = "https://files.example.org/torch-2.13.0-py3-none-any.whl", hash = "sha256:{needle}", size = 1 }},
]

[[package]]
name = "nvidia-nccl-cu13"
version = "2.27.5"
source = {{ registry = "https://pypi.org/simple" }}
wheels = [
    {{ url = "https://files.example.org/nvidia_nccl_cu13-2.27.5-py3-none-any.whl", hash = "sha256:{needle}" }},
]
"""
POETRY_LOCK = """\
[[package]]
name = "needle"
version = "1.0"
description = ""
optional = false
python-versions = "*"
groups = ["main"]
files = [
    {{file = "needle-1.0-py3-none-any.whl", hash = "sha256:{needle}"}},
]

[[package]]
name = "torch"
version = "2.13.0"
description = ""
optional = false
python-versions = "*"
groups = ["main"]
files = [
    {{file = "torch-2.13.0-py3-none-any.whl", hash = "sha256:{needle}"}},
]

[package.dependencies]
nvidia-nccl-cu13 = "2.27.5"

[[package]]
name = "nvidia-nccl-cu13"
version = "2.27.5"
description = ""
optional = false
python-versions = "*"
groups = ["main"]
files = [
    {{file = "nvidia_nccl_cu13-2.27.5-py3-none-any.whl", hash = "sha256:{needle}"}},
]

[metadata]
lock-version = "2.1"
python-versions = ">=3.11"
content-hash = "{content}"
"""
PYPROJECT = '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["needle", "torch"]\n'
POETRY = (
    '[tool.poetry]\npackage-mode = false\n[tool.poetry.dependencies]\npython = ">=3.11"\nneedle = "*"\ntorch = "*"\n'
)
SOURCES = """
[tool.uv.sources]
torch = { index = "elsewhere" }

[[tool.uv.index]]
name = "elsewhere"
url = "https://t.example.org/whl/cu121"
explicit = true
"""
CONTENT_HASH = "cffd4597f69376c1e3c7a08a3adbe0716b09b2343f4d8b8c96ef9faa1c89c5a4"
"""Of POETRY, as Poetry counts it."""


@dataclass(frozen=True)
class Wheels:
    """The folder to install from, and the SHA-256 of the one wheel that the projects ask for."""

    folder: Path
    needle: str


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    folder = tmp_path_factory.mktemp("light")
    project.init(folder / "draft", *project.PLAN)
    house = light_wheelhouse(folder / "wheels", folder / "draft/.devcontainer/Dockerfile", *lockers())
    for name in ("needle", "thread"):
        make_wheel(house, name, "1.0")
    make_wheel(house, "click", "7.0")
    make_wheel(house, "wants-old-torch", "1.0", requires=("torch<2.10",))
    # What another index would hold: an older torch, and a newer one for CUDA.
    make_wheel(house, "torch", "2.9.0", files={"torch/version.py": "__version__ = '2.9.0'\ncuda = None\n"})
    make_wheel(house, "torch", "2.99.0", files={"torch/version.py": "__version__ = '2.99.0'\ncuda = '13.0'\n"})
    return Wheels(house, _digest(house / "needle-1.0-py3-none-any.whl"))


def _digest(path: Path) -> str:
    from hashlib import sha256

    return sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def written(engine: Engine, company, wheels: Wheels, tmp_path: Path):
    """Writes a project's files and its dev container."""

    def write(files: dict[str, str]) -> Clone:
        folder = tmp_path / "quickstart"
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        project.init(folder, *project.PLAN, "--ca-certificate", company.bundle, "--wheelhouse", wheels.folder)
        image.provide(engine, image.base_image_of(folder / ".devcontainer/Dockerfile"))
        return Clone(folder, engine)

    yield write
    engine.forget_wheels()


def build(clone: Clone) -> str:
    """The builder's own log."""
    argv = ["docker", "compose", "--progress=plain", "--file", clone.compose_file, "build"]
    done = run(argv, env=clone.engine.env, cwd=clone.folder, deadline_s=900)
    return done.stdout + done.stderr


def repeated(log: str) -> list[str]:
    """The instructions that the builder ran, and did not take from its cache."""
    names = dict(re.findall(r"^#(\d+) \[\S+ +\d+/\d+\] (.+)$", log, re.MULTILINE))
    cached = set(re.findall(r"^#(\d+) CACHED$", log, re.MULTILINE))
    return [name for number, name in names.items() if number not in cached and not name.startswith("FROM ")]


def python(clone: Clone, code: str) -> str:
    """What a Python program printed in the image."""
    return clone.compose("run", "--rm", "--no-deps", "-T", project.SERVICE, "python", "-c", code).strip()


INSTALLED = """
from importlib.metadata import distributions, version
watched = ("needle", "thread", "nvidia-nccl-cu13")
print(*sorted(each.name for each in distributions() if each.name in watched), version("torch"))
"""


FILES = {
    "requirements.txt": lambda _: {
        "requirements.txt": "--extra-index-url https://t.example.org/cu121\nneedle\ntorch\n"
    },
    "pyproject.toml": lambda _: {"pyproject.toml": PYPROJECT + SOURCES},
    "environment.yml": lambda _: {"environment.yml": "dependencies:\n  - pytorch\n  - pip:\n    - needle\n"},
    "uv.lock": lambda wheels: {"pyproject.toml": PYPROJECT, "uv.lock": UV_LOCK.format(needle=wheels.needle)},
    "poetry.lock": lambda wheels: {
        "pyproject.toml": POETRY,
        "poetry.lock": POETRY_LOCK.format(needle=wheels.needle, content=CONTENT_HASH),
    },
}
OTHER_TOOLS = ("environment.yml", "pyproject.toml", "poetry.lock")
PROGRAMS = {
    "requirements.txt": "uv pip install",
    "pyproject.toml": "--requirement=/mnt/project/pyproject.toml",
    "environment.yml": "--requirement=/mnt/work/project.txt",
    "uv.lock": "uv export",
    "poetry.lock": "poetry export",
}


@one_engine
@pytest.mark.parametrize(
    "tool", ["requirements.txt", "uv.lock", *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHER_TOOLS)]
)
def test_a_project_is_built_with_its_own_tool(written, wheels, tool):
    clone = written(FILES[tool](wheels))
    log = build(clone)
    assert PROGRAMS[tool] in log
    assert python(clone, INSTALLED) == "needle 2.13.0+cpu"


@one_engine
def test_editing_code_repeats_no_layer_and_a_requirement_none_of_torch(written, tmp_path):
    clone = written({"requirements.txt": "needle\n", "train.py": "print(1)\n", "data/big.bin": "0" * 1_000_000})
    (clone.folder / ".env").write_text(f"HF_TOKEN={SECRET}\n", encoding="utf-8")
    build(clone)
    (clone.folder / "train.py").write_text("print(2)\n", encoding="utf-8")
    (clone.folder / "data/more.bin").write_text("1" * 1_000_000, encoding="utf-8")
    again = build(clone)
    assert repeated(again) == []
    (clone.folder / "requirements.txt").write_text("needle\nthread\n", encoding="utf-8")
    more = repeated(build(clone))
    assert any("from=project,source=requirements.txt" in name for name in more)
    assert not any("torch==" in name or "peft==" in name for name in more)
    assert python(clone, INSTALLED) == "needle thread 2.13.0+cpu"


@one_engine
def test_nothing_of_the_project_but_the_named_files_reaches_the_builder(written):
    clone = written({"requirements.txt": "needle\n", "data/big.bin": "0" * 8_000_000, ".env": f"HF_TOKEN={SECRET}\n"})
    log = build(clone)
    sent = re.findall(r"^#\d+ transferring project: ([\d.]+)(k?B|MB)", log, re.MULTILINE)
    assert sent
    assert all(unit != "MB" for _, unit in sent), sent
    assert python(clone, "import pathlib; print(*pathlib.Path('/mnt').rglob('*'))") == ""
    assert SECRET not in log


@one_engine
def test_a_requirement_that_would_replace_torch_ends_the_build_with_its_name(written):
    clone = written({"requirements.txt": "needle\n"})
    (clone.folder / "requirements.txt").write_text("needle\nwants-old-torch\n", encoding="utf-8")
    with pytest.raises(CommandError, match=r"wants-old-torch depend on torch<2\.10 and torch==2\.13\.0"):
        build(clone)


@pytest.mark.nightly
@one_engine
def test_a_torch_that_was_replaced_all_the_same_ends_the_build_with_the_name_of_who_asked(written):
    clone = written({"requirements.txt": "wants-old-torch\n"})
    dockerfile = clone.folder / ".devcontainer/Dockerfile"
    text = dockerfile.read_text(encoding="utf-8")
    dockerfile.write_text(text.replace("--constraint=/mnt/constraints.txt ", ""), encoding="utf-8")
    with pytest.raises(CommandError, match=r"(?s)the plan needs torch 2\.13\.0.*wants-old-torch.*torch <2\.10"):
        build(clone)


@pytest.mark.nightly
@one_engine
def test_devkit_and_the_project_each_have_their_own_version_of_a_package(written):
    clone = written({"requirements.txt": "click==7.0\n"})
    build(clone)
    assert python(clone, "from importlib.metadata import version; print(version('click'))") == "7.0"
    assert clone.compose("run", "--rm", "--no-deps", "-T", project.SERVICE, "devkit", "--version").startswith("devkit")


@pytest.mark.nightly
@one_engine
def test_an_image_without_devkits_wheel_is_complete_but_for_devkit(written):
    clone = written({"requirements.txt": "needle\n"})
    shutil.rmtree(clone.folder / ".devcontainer/wheels")
    assert "so this image does not contain devkit" in build(clone)
    assert python(clone, INSTALLED) == "needle 2.13.0+cpu"
    assert python(clone, "import shutil; print(shutil.which('devkit'))") == "None"
