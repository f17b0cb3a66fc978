"""Every profile, engine, editor, vendor and network together: what is written is valid for whoever reads it.

Cheap checks look at every different file of all combinations; a tool is called once, with all of its files.
"""

import json
import re
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml

from devkit.render.container.devcontainer import build_editor_reports
from tests.conftest import MATRIX

from .matrix import EDITOR_SETS, combinations, distinct, distinct_compose
from .plans import GPU_PLAN
from .test_artifacts import PLAIN, linter, schema, texts


def written(ending: str, folder: Path) -> list[str]:
    """Every different file with this ending, in files of their own."""
    paths = []
    for number, (name, text) in enumerate(distinct(ending).values()):
        path = folder / f"{number}-{Path(name.split(' for ')[0]).name}"
        path.write_text(text)
        paths.append(str(path))
    return paths


def said(*argv: str) -> tuple[int, str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_there_are_hundreds_of_combinations(record_property):
    everything = {text for combination in combinations() for text in combination.files.values()}
    record_property(MATRIX, [len(combinations()), len(everything), len(distinct_compose())])
    assert len(combinations()) >= 500
    assert len({combination.options for combination in combinations()}) == len(combinations())


def test_every_devcontainer_json_follows_the_schema():
    check = jsonschema.Draft201909Validator(schema("devContainer.base.schema.json"))
    for name, text in distinct("devcontainer.json").values():
        assert not [error.message for error in check.iter_errors(json.loads(text))], name


def test_no_devcontainer_json_asks_for_a_gpu_which_the_overlays_do():
    for name, text in distinct("devcontainer.json").values():
        document = json.loads(text)
        assert "gpu" not in document.get("hostRequirements", {}), name
        assert "runArgs" not in document, name


def test_every_compose_file_follows_the_specification():
    specification = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    check = jsonschema.Draft7Validator(specification)
    for name, text in distinct(".yml").values():
        if not name.startswith("monitoring/"):
            assert not [error.message for error in check.iter_errors(yaml.safe_load(text))], name


def test_every_json_and_yaml_file_parses():
    for name, text in (*distinct(".json").values(), *distinct(".yml").values()):
        assert (json.loads if name.split(" ")[0].endswith(".json") else yaml.safe_load)(text), name


def test_every_file_ends_its_last_line_and_leaves_no_space_behind():
    for name, text in distinct("").values():
        assert text.endswith("\n"), name
        assert not text.endswith("\n\n"), name
        assert not re.search(r"[ \t]$", text, re.MULTILINE), name
        assert "\n\n\n" not in text, name


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_every_script_parses(shell, tmp_path):
    for path in written(".sh", tmp_path):
        assert said(shell, "-n", path) == (0, ""), path


def test_shellcheck_finds_nothing(tmp_path):
    assert said(linter("shellcheck"), *written(".sh", tmp_path)) == (0, "")


def test_hadolint_finds_nothing(tmp_path):
    assert said(linter("hadolint"), *written("Dockerfile", tmp_path)) == (0, "")


def test_every_name_that_one_service_gives_another_is_a_service():
    for name, text in distinct("docker-compose.yml").values():
        services = yaml.safe_load(text)["services"]
        for service in services.values():
            assert service.get("extends", {}).get("service", "gpu") in {"gpu", *services}, name


def test_what_an_editor_drops_is_said_for_every_set_of_editors():
    for editors in EDITOR_SETS:
        for _, text in distinct("devcontainer.json").values():
            reports = build_editor_reports(editors, json.loads(text))
            assert [report.name for report in reports] == list(editors or ("vscode",))


@pytest.mark.parametrize("slug", ["every-profile", "a-1", "if", "1-2-3", "x", "let-x"])
def test_shellcheck_takes_no_project_name_for_something_else(slug, tmp_path):
    wanted = replace(PLAIN, slug=slug, editors=("daytona",), profiles=("jupyter",))
    scripts = {path: text for path, text in texts(GPU_PLAN, wanted).items() if path.endswith(".sh")}
    for path, text in scripts.items():
        (tmp_path / path.replace("/", "-")).write_text(text)
    assert len(scripts) == 3
    assert said(linter("shellcheck"), *map(str, tmp_path.iterdir())) == (0, "")
