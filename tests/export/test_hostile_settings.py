"""Any text in any setting of a job and of each target is refused, or read back by each format's own parser as it was.

A file with a hostile text is compared with the one with a harmless text, as parsed: nothing but the text may differ. Of
scripts the words of each line are compared; tests/export/agreement runs them.
"""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.job_settings import JobSettings, validate_job_settings, validate_printable
from devkit.export.slurm.settings import ContainerRuntime
from devkit.export.targets import TARGETS, load_target
from devkit.export.task_builder import build_task
from devkit.facts.settings import describe_settings
from tests.export.subjects import JOB, subject
from tests.render.injection import HOSTILE

pytestmark = pytest.mark.full

HARMLESS = "harmless"
STORAGE = ("models", "data", "checkpoints")
SHAPES = ("{}", "NAME={}", "example.org/name={}", "{}:1", "/{}", "{}/1", "--comment={}")
"""What a setting may be made of; the first that is accepted is used."""
BESIDE = {"venv": {"flavor": ContainerRuntime.NONE}, "conda": {"flavor": ContainerRuntime.NONE}}
"""Settings that need others."""
CLOSED = {
    *("processes", "gpu", "time", "grace", "memory", "shm", "models_size", "data_size", "checkpoints_size"),
    *("flavor", "gpu_request", "kind", "access_mode"),
}
"""Settings that take numbers or some words, and no text."""
SHELL_OF_THE_USER = "setup"
"""The one setting that is shell, and runs as it is."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def text_settings() -> Iterator[tuple[str, type, str]]:
    """The settings that hold text, with the target that is rendered for them."""
    for target in TARGETS:
        for kind in (JobSettings, load_target(target).settings):
            for name in describe_settings(kind):
                if isinstance(getattr(kind(), name), (str, tuple)) and name != SHELL_OF_THE_USER:
                    yield target, kind, name


def render(target: str, kind: type, name: str, value: str) -> dict[str, str]:
    """The files of a job with this setting."""
    default = getattr(kind(), name)
    given = {name: (value,) if isinstance(default, tuple) else type(default)(value), **BESIDE.get(name, {})}
    job = validate_job_settings(replace(JOB, **given) if kind is JobSettings else JOB)
    own = load_target(target).settings(**(given if kind is not JobSettings else {}))
    validate_printable(own)
    task = build_task(subject(), job).task
    load_target(target).validate_name(task.name, "--name")
    made = load_target(target).render(task, own, f"deploy/{target}")
    return {each.path: each.content.decode() for each in made.artifacts}


@cache
def harmless(target: str, kind: type, name: str) -> tuple[str, dict[str, str]] | None:
    """A form of the setting that is accepted, and its files; None where no text is."""
    for shape in ("/srv/{}", *SHAPES) if name in STORAGE else SHAPES:
        try:
            return shape, render(target, kind, name, shape.format(HARMLESS))
        except (DevkitError, ValueError):
            pass
    return None


def parse(path: str, text: str) -> Any:
    """The file as its readers see it."""
    if path.endswith((".yaml", ".yml")):
        return list(yaml.load_all(text, LOADER))
    if path.endswith(".json"):
        return json.loads(text)
    if path.endswith(".py"):
        return ast.dump(ast.parse(re.sub(r"-[0-9a-f]{8}'", "'", text)))  # a hash of the rest
    return text


def is_same(found: Any, expected: Any, value: str) -> bool:
    """Whether two readings differ in nothing but the text, which a shell may read in its own quotes."""
    match expected:
        case dict():
            swapped = {key.replace(HARMLESS, value): each for key, each in expected.items()}
            return found.keys() == swapped.keys() and all(is_same(found[key], swapped[key], value) for key in found)
        case list():
            return len(found) == len(expected) and all(map(is_same, found, expected, [value] * len(found)))
        case str() if isinstance(found, str):
            kubelet = re.sub(r"\$(?=[$(])", "$$", value)
            forms = (value, value.replace("$", "$$"), kubelet, repr(value)[1:-1])
            return found in [expected.replace(HARMLESS, form) for form in forms] or _is_same_script(
                found, expected, value
            )
    return found == expected


def _is_same_script(found: str, expected: str, value: str) -> bool:
    """Whether two scripts have the same lines, but for the text among the words of some."""
    lines, before = re.split(r"[\n\r\v\f\x85\u2028\u2029]", found), expected.split("\n")
    return len(lines) == len(before) and all(
        line == other or _words(line) == [word.replace(HARMLESS, value) for word in _words(other)]
        for line, other in zip(lines, before, strict=True)
        if not re.match(r"made=|\s+\"uid\": ", line)  # a hash of the rest
    )


def _words(line: str) -> list[str]:
    return [re.sub(r"\\([\\$`])", r"\1", word) for word in shlex.split(line.removesuffix("\\"), comments=True)]


def cases(target: str, *, every: int) -> Iterator[tuple[type, str, str]]:
    """One of so many of all settings with all hostile texts."""
    settings = [(kind, name) for of, kind, name in text_settings() if of == target and name not in CLOSED]
    # Folders of a cluster may name variables, such as $SCRATCH.
    found = [
        (kind, name, value)
        for kind, name in settings
        for value in HOSTILE.values()
        if not (name in STORAGE and (value.startswith("https://") or '"' in value))  # other storage, other quotes
        and not (target == "docker" and name in STORAGE and "," in value)  # --mount's own quotes, in CSV
        and not (target == "slurm" and "$" in value and name in (*STORAGE, "image_file", "venv", "conda", "log"))
    ]
    yield from found[::every]


def find_wrong(target: str, *, every: int) -> list[object]:
    """The settings whose text is neither refused nor carried."""
    wrong = []
    for kind, name, value in cases(target, every=every):
        shape, before = harmless(target, kind, name) or ("{}", {})
        try:
            files = render(target, kind, name, shape.format(value))
        except DevkitError as refused:
            assert refused.hint
            continue
        changed = [path for path, text in files.items() if text != before.get(path)]
        if value.strip() and not (
            files.keys() == before.keys()
            and all(is_same(parse(path, files[path]), parse(path, before[path]), value) for path in changed)
        ):
            wrong.append((kind.__name__, name, value, changed))
    return wrong


@pytest.mark.parametrize("target", TARGETS)
def test_a_text_in_a_setting_is_refused_or_carried(target):
    assert find_wrong(target, every=47) == []


@pytest.mark.nightly
@pytest.mark.parametrize("target", TARGETS)
def test_any_text_in_any_setting_is_refused_or_carried(target):
    assert find_wrong(target, every=1) == []
