"""Every engine, editor, vendor and network together: what is written is valid for whoever reads it.

The cases of test_artifacts.py are looked at each time; all combinations, and the linters, in `make test-all`.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml

from devkit.render.container.compose import render_gpu_files
from devkit.render.container.devcontainer import build_editor_reports
from devkit.render.container.image import render_dockerfile
from devkit.render.container.settings import FromWheel
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.wheel import render_devcontainer_feature
from tests.verify.test_bundle import bundled, content, written

from .matrix import EDITOR_SETS, combinations, distinct
from .plans import ARM_PLAN, CPU_PLAN, GPU_PLAN, ROCM_PLAN, UBUNTU_PLAN
from .test_artifacts import CASES, PLAIN, linter, texts
from .test_gpu_script import mistakes
from .test_python_lock import LOCKED, PLAN

COMPOSE = jsonschema.Draft7Validator(
    json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
)


def assert_valid(name: str, text: str) -> None:
    """Hold one file to what every reader of its kind asks; `name` is its path and where it is from."""
    path = name.split(" for ")[0]
    assert text.endswith("\n") and not text.endswith("\n\n"), name
    assert not re.search(r"[ \t]$", text, re.MULTILINE), name
    assert "\n\n\n" not in text, name
    if path.endswith(".json"):
        assert json.loads(text), name
    if path.endswith("devcontainer.json"):
        document = json.loads(text)
        assert "gpu" not in document.get("hostRequirements", {}), f"the overlays ask for the GPU, not {name}"
        assert "runArgs" not in document, name
    if path.endswith(".yml"):
        document = yaml.safe_load(text)
        assert document, name
        assert not [error.message for error in COMPOSE.iter_errors(document)], name
    if path.endswith("docker-compose.yml"):
        services = document["services"]
        for service in services.values():
            assert service.get("extends", {}).get("service", "gpu") in {"gpu", *services}, name


def test_every_file_of_the_cases_is_valid():
    for case, (plan, settings) in CASES.items():
        for path, text in texts(plan, settings).items():
            assert_valid(f"{path} for {case}", text)


def test_what_an_editor_drops_is_said_for_every_set_of_editors():
    for editors in EDITOR_SETS:
        document = json.loads(texts(GPU_PLAN, replace(PLAIN, editors=editors))["devcontainer.json"])
        reports = build_editor_reports(editors, document)
        assert [report.name for report in reports] == list(editors or ("vscode",))


@pytest.mark.full
def test_every_file_of_every_combination_is_valid():
    assert len({combination.options for combination in combinations()}) == len(combinations()) >= 240
    for name, text in distinct("").values():
        assert_valid(name, text)


def of_combinations(ending: str) -> Iterator[tuple[str, str]]:
    """The name and text of every different file with this ending, of the combinations and of the cases."""
    for name, text in distinct(ending).values():
        yield Path(name.split(" for ")[0]).name, text
    for case in CASES.values():
        yield from ((Path(path).name, text) for path, text in texts(*case).items() if path.endswith(ending))


def find_problems(tool: str, named: Iterator[tuple[str, str]], folder: Path) -> str:
    """What a linter says of texts, each once, in files of their own."""
    folder.mkdir()
    for number, (text, name) in enumerate({text: name for name, text in named}.items()):
        (folder / f"{number}-{name}").write_text(text)
    argv = [linter(tool), *map(str, folder.iterdir())]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


@pytest.mark.full
def test_shellcheck_finds_nothing_in_any_script(tmp_path):
    """Those of every combination, of a bundle and the Feature, and of names that a shell might take for its own."""
    scripts = dict.fromkeys(of_combinations(".sh"))
    for slug in ("every-editor", "a-1", "if", "1-2-3", "x", "let-x"):
        wanted = replace(PLAIN, slug=slug, editors=("daytona",))
        made = {(Path(path).name, text) for path, text in texts(GPU_PLAN, wanted).items() if path.endswith(".sh")}
        assert len(made) == 2
        scripts |= dict.fromkeys(made)
    for plan in (CPU_PLAN, GPU_PLAN, ARM_PLAN, ROCM_PLAN):
        for each in render_gpu_files(plan, ".", for_windows=True):
            text = each.content.decode()
            if each.path.endswith(".sh"):
                scripts[Path(each.path).name, text] = None
            assert not each.path.endswith(".ps1") or mistakes(text) == []
    scripts["load.sh", content(bundled(written(tmp_path / "demo")), "load.sh")] = None
    feature = {each.path: each.content for each in render_devcontainer_feature(FromWheel("a-0-py3-none-any.whl", b""))}
    scripts["install.sh", feature["devkit/install.sh"].decode()] = None
    assert find_problems("shellcheck", iter(scripts), tmp_path / "scripts") == ""


@pytest.mark.full
def test_hadolint_finds_nothing_in_any_dockerfile(tmp_path):
    """Those of every combination, of a bundle, and of an image with locks."""
    locked = [replace(LOCKED, **more) for more in ({}, {"uses_wheelhouse": True}, {"index": "https://x.example.org"})]
    dockerfiles = [*of_combinations("Dockerfile")]
    dockerfiles += [("Dockerfile", render_dockerfile(PLAN, settings)) for settings in locked]
    one = replace(UBUNTU_PLAN, architectures=("x86_64",))
    bundle = bundled(written(tmp_path / "demo", one, ProjectSettings(name="Demo")))
    dockerfiles.append(("Dockerfile", content(bundle, ".devcontainer/Dockerfile")))
    assert find_problems("hadolint", iter(dockerfiles), tmp_path / "images") == ""
