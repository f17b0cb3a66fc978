"""Any text whatever, in every value that reaches a generated file: refused, or carried exactly by each format."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.facts.project import Policy
from devkit.facts.values import Release
from devkit.render.container.packages import DEVKIT_PYTHON
from devkit.render.container.settings import FromIndex, slugify, validate_project_name
from devkit.render.devkit_toml import DEVKIT_TOML, ProjectSettings
from devkit.render.project import PathOptions, compute_project_changes, open_project
from devkit.solver.plan import Plan

from .injection import assert_same_but_for_the_value
from .plans import CPU_PLAN

Asked = tuple[ProjectSettings, Plan]

FRAGMENTS = [
    "\n",
    "\r",
    "\0",
    "'",
    '"',
    "\\",
    "$",
    "${",
    "}",
    "{{",
    "}}",
    "{%",
    "%}",
    "#",
    "`",
    "$(",
    ")",
    ";",
    "&",
    "|",
]
FRAGMENTS += [
    ": ",
    "- ",
    "*",
    "!!",
    "---\n",
    "RUN id",
    "\u2028",
    "\u202e",
    "\udcff",
    " ",
    "\t",
    "a",
    "1.0",
    "/",
    "@",
    ":",
]
texts = st.one_of(
    st.text(max_size=40), st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join), st.from_regex(r"[ -~]{1,20}")
)

VALUES: dict[str, tuple[str, Callable[[str], Asked]]] = {
    "name": ("Harmless One", lambda text: (ProjectSettings(name=text), CPU_PLAN)),
    "index": ("https://harmless.example/a", lambda text: (ProjectSettings(name="x", index=text), CPU_PLAN)),
    "torch_index": ("https://harmless.example/a", lambda text: (ProjectSettings(name="x", torch_index=text), CPU_PLAN)),
    "hub": ("https://harmless.example/a", lambda text: (ProjectSettings(name="x", hub=text), CPU_PLAN)),
    "label": ("harmless-value", lambda text: (labelled("org.example.team", text), CPU_PLAN)),
    "label's name": ("harmless-name", lambda text: (labelled(text, "team"), CPU_PLAN)),
    "base_image": ("harmless:1", lambda text: (ProjectSettings(name="x"), replace(CPU_PLAN, base_image=text))),
    "python": ("7.77", lambda text: (ProjectSettings(name="x"), replace(CPU_PLAN, python=text))),
    "old python": ("0.77", lambda text: (ProjectSettings(name="x"), replace(CPU_PLAN, python=text))),
    "torch": ("7.7.7", lambda text: (ProjectSettings(name="x"), replace(CPU_PLAN, torch=text))),
    "package": ("harmless-package", lambda text: (ProjectSettings(name="x"), packaged(text, "7.7.7"))),
    "package's version": ("7.7.7.7", lambda text: (ProjectSettings(name="x"), packaged("harmless-package", text))),
    "limit": ("harmless!=7.7", lambda text: (ProjectSettings(name="x"), replace(CPU_PLAN, limits=(text,)))),
    "wheels of torch": (
        "https://harmless.example/a",
        lambda text: (ProjectSettings(name="x"), replace(CPU_PLAN, torch_index=text)),
    ),
}
"""What may hold a text that devkit did not choose: a harmless one, and what to ask for with any other."""


def labelled(name: str, value: str) -> ProjectSettings:
    return ProjectSettings(name="x", policy=Policy(required_labels=((name, value),)))


def packaged(name: str, version: str) -> Plan:
    return replace(CPU_PLAN, packages=(*CPU_PLAN.packages, (name, version)))


def made(asked: Asked) -> dict[str, str]:
    """The files that a project gets, as texts."""
    project_settings, plan = asked
    with TemporaryDirectory() as folder:
        project = open_project(Path(folder), project_settings, PathOptions())
        changes = compute_project_changes(project, plan, source=FromIndex("0.1.0"))
    return {change.path: change.artifact.content.decode() for change in changes}


@cache
def harmless_files(kind: str) -> dict[str, str]:
    harmless, ask = VALUES[kind]
    return made(ask(harmless))


@pytest.mark.parametrize("kind", sorted(VALUES.keys() - {"old python"}))
@settings(max_examples=60, deadline=None)
@given(text=texts)
@pytest.mark.turns(3)
def test_a_text_is_refused_or_carried_by_every_format(kind, text):
    harmless, ask = VALUES[kind]
    before = harmless_files(kind)
    try:
        files = made(ask(text))
    except DevkitError as refused:
        assert refused.message and refused.hint
        return
    if not text.strip():
        return  # the same as nothing: devkit chooses
    if kind == "python" and Release.parse(text) < Release.parse(DEVKIT_PYTHON):
        harmless, before = "0.77", harmless_files("old python")  # the image gets a newer one for devkit
    swaps = {harmless: text.rstrip("/") if "index" in kind or kind == "hub" else text}
    if kind == "name":
        swaps = {harmless: validate_project_name(text), "harmless-one": slugify(validate_project_name(text))}
    if kind == "python":
        swaps |= {harmless.replace(".", ", "): text.replace(".", ", ")}
    assert files.keys() == before.keys()
    for path, content in files.items():
        if path not in ("devkit.lock", DEVKIT_TOML):
            assert_same_but_for_the_value(path, content, before[path], swaps)


def test_every_text_of_a_plan_that_is_rendered_is_tried():
    tried = {"base_image", "python", "torch", "torch_index", "packages", "limits"}
    chosen_by_devkit = {"vendor", "variant", "cuda", "rocm", "gpu_request", "architectures", "data_as_of"}
    # `additions` are validated where they are written.
    chosen_by_devkit |= {"compiled", "nvcc", "capabilities", "resolved_from", "framework", "additions"}
    for_people = {"reasons", "warnings", "project_packages", "resolution"}
    assert {field.name for field in fields(Plan)} == tried | chosen_by_devkit | for_people
