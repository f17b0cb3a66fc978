"""What devkit writes, against the published schemas of dev containers, which are not part of this repository."""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from devkit.render.wheel import render_devcontainer_feature

from .matrix import distinct
from .test_wheel import WHEEL


def read_schema(name: str) -> dict[str, Any]:
    folder = os.environ.get("DEVKIT_SCHEMAS")
    if not folder:
        pytest.skip("the JSON schemas are not here: set DEVKIT_SCHEMAS to the folder that holds them")
    return json.loads(Path(folder, name).read_text(encoding="utf-8"))


@pytest.mark.full
def test_every_devcontainer_json_follows_the_schema():
    check = jsonschema.Draft201909Validator(read_schema("devContainer.base.schema.json"))
    for name, text in distinct("devcontainer.json").values():
        assert not [error.message for error in check.iter_errors(json.loads(text))], name


def test_the_features_metadata_follows_the_schema():
    (metadata,) = (each for each in render_devcontainer_feature(WHEEL) if each.path.endswith("feature.json"))
    jsonschema.validate(json.loads(metadata.content), read_schema("devContainerFeature.schema.json"))
