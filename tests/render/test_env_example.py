"""The variables of .env: each that a template uses is explained in .env.example."""

import re
from dataclasses import replace

import pytest

from devkit.render.container.dotenv import ENV_VARIABLES
from devkit.render.templates import find_templates

from .plans import CPU_PLAN, GPU_PLAN
from .test_artifacts import CLOSED, PLAIN, texts

WITHIN = {"DEVKIT_JUPYTER_IP"}
"""Variables that Compose sets inside a container, which .env has no part in."""


def templates():
    folders = [find_templates() / "devcontainer"]
    while folders:
        for entry in folders.pop().iterdir():
            if entry.is_dir():
                folders.append(entry)
            elif entry.name.endswith(".j2"):
                yield entry


def test_every_variable_of_a_template_is_in_the_table_and_every_one_of_the_table_in_a_template():
    used = {name for each in templates() for name in re.findall(r"\bDEVKIT_[A-Z]+(?:_[A-Z]+)*\b", each.read_text())}
    assert used - WITHIN == {each.name for each in ENV_VARIABLES if each.name.startswith("DEVKIT_")}


@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        pytest.param(CPU_PLAN, PLAIN, id="the CPU"),
        pytest.param(GPU_PLAN, PLAIN, id="NVIDIA GPUs"),
        pytest.param(GPU_PLAN, CLOSED, id="a closed network"),
        pytest.param(GPU_PLAN, replace(PLAIN, profiles=("jupyter", "monitoring")), id="every profile"),
    ],
)
def test_what_compose_substitutes_is_explained_beside_it(plan, settings):
    made = texts(plan, settings)
    substituted = {
        name for path, text in made.items() if path.endswith(".yml") for name in re.findall(r"\$\{(\w+)", text)
    }
    explained = set(re.findall(r"^#(\w+)=", made[".env.example"], re.MULTILINE))
    assert substituted <= explained
    assert ("DEVKIT_JUPYTER_PORT" in explained) is ("jupyter" in settings.profiles)


def test_the_example_sets_nothing_when_it_is_copied_as_it_is():
    lines = texts(GPU_PLAN, PLAIN)[".env.example"].splitlines()
    assert {line[:1] for line in lines} == {"#", ""}
