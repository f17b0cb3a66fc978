"""Manifests as plain structures whose values may carry a comment, their YAML text, folders of them, and labels.

PyYAML writes no comments, so the text is made here. Read back, it is the structure that it was made from.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from devkit.errors import DevkitError
from devkit.export.task import Task
from devkit.release import __version__
from devkit.render.files import Artifact
from devkit.text import wrap_text

Manifest = dict[str, Any]
"""An object of the API: mappings, lists, strings, numbers, booleans, and any of these `Commented`."""

WIDTH = 120
_PLAIN = re.compile(r"[0-9]+[TGM]i|[A-Za-z/][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})
"""Words that readers of YAML 1.1, such as Kubernetes' own, may not take for strings."""


@dataclass(frozen=True)
class Commented:
    """A value, and its reason, which is the comment above it."""

    value: Any
    because: str


def strip_comments(value: Any) -> Any:  # noqa: ANN401 - any value of a manifest
    """Return the value without comments, as the API gets it."""
    if isinstance(value, Commented):
        return strip_comments(value.value)
    if isinstance(value, Mapping):
        return {key: strip_comments(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [strip_comments(each) for each in value]
    return value


def render_yaml(documents: Sequence[Manifest], *, heading: str) -> str:
    """Render the documents of one file. Raises DevkitError for characters that no manifest can hold."""
    head = "".join(f"{line}\n" for line in _comment(heading, ""))
    return head + "---\n".join("".join(f"{line}\n" for line in _mapping(each, "")) for each in documents)


def _mapping(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, each in value.items():
        inner = each
        if isinstance(each, Commented):
            yield from _comment(each.because, indent)
            inner = each.value
        yield from _entry(f"{indent}{_scalar(key)}:", inner, indent)


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:  # noqa: ANN401 - any value of a manifest
    if isinstance(value, Mapping) and value:
        yield head
        yield from _mapping(value, f"{indent}  ")
    elif isinstance(value, list | tuple) and value:
        yield head
        yield from _sequence(value, f"{indent}  ")
    elif isinstance(value, str) and _is_block(value):
        yield f"{head} |"
        yield from (f"{indent}  {line}" if line else "" for line in value[:-1].split("\n"))
    else:
        yield f"{head} {_scalar(value)}"


def _sequence(values: Sequence[Any], indent: str) -> Iterator[str]:
    for each in values:
        inner = each
        if isinstance(each, Commented):
            yield from _comment(each.because, indent)
            inner = each.value
        if isinstance(inner, Mapping) and inner:
            # The first line goes beside the dash, and comments before it.
            lines = list(_mapping(inner, f"{indent}  "))
            first = next(number for number, line in enumerate(lines) if not line.lstrip().startswith("#"))
            yield from (line[2:] for line in lines[:first])
            yield f"{indent}- {lines[first].removeprefix(f'{indent}  ')}"
            yield from lines[first + 1 :]
        else:
            yield from _entry(f"{indent}-", inner, indent)


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from wrap_text(line, width=WIDTH, indent=f"{indent}# ").split("\n")


def _scalar(value: Any) -> str:  # noqa: ANN401 - any scalar, or an empty collection
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return json.dumps(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS and yaml.safe_load(text) == text:
        return text
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise DevkitError(f"{text!r} holds a character that no manifest can hold", "Write it without that character.")
    quoted = json.dumps(text, ensure_ascii=False)
    escapes = (f"\\u{ord(char):04x}" if ord(char) < 1 << 16 else f"\\U{ord(char):08x}" for char in quoted)
    return "".join(char if char.isprintable() else escape for char, escape in zip(quoted, escapes, strict=True))


def _is_block(text: str) -> bool:
    """True for whole lines that a block scalar keeps as they are, such as a script."""
    if "\n" not in text[:-1] or not text.endswith("\n") or text.endswith("\n\n") or text[0] in " \n":
        return False
    lines = text[:-1].split("\n")
    return all(line.isprintable() and line == line.rstrip() and "\ufeff" not in line for line in lines)


INSTANCE_LABEL = "app.kubernetes.io/instance"
"""The label with the job's name. Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/"""

COMPONENT_LABEL = "app.kubernetes.io/component"
TRAINING_COMPONENT = "training"
"""The component of the pods that train: the files pod and the checks are others."""


def build_training_selector(task: Task) -> dict[str, str]:
    """Build the labels that select the pods that train, and no others."""
    return {INSTANCE_LABEL: task.name, COMPONENT_LABEL: TRAINING_COMPONENT}


def build_labels(task: Task, component: str) -> dict[str, str]:
    """Build the labels of an object of the job."""
    return {
        "app.kubernetes.io/name": task.project,
        INSTANCE_LABEL: task.name,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/managed-by": "devkit",
    }


GENERATED_NOTICE = (
    f"Written by devkit {__version__}. To change it, edit [job] and [job.kubernetes] in devkit.toml and run "
    "`devkit export kubernetes` again."
)


def render_folder(folder: str, about: str, name: str, objects: Sequence[Manifest], namespace: str) -> list[Artifact]:
    """Render a folder for `kubectl apply -k`, "" for the topmost: a file of objects, in their order, and its kustomization.

    kubectl warns of sortOptions at each `apply -k`, since it has a flag of its own for the same.
    """
    content: Manifest = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if namespace:
        content["namespace"] = namespace
    if len(objects) > 1:
        order = "In this order: a TrainJob whose runtime comes after it is refused."
        content["sortOptions"] = {"order": Commented("fifo", order)}
    content["resources"] = [name]
    files = {"kustomization.yaml": ([content], f"{GENERATED_NOTICE}\n{about}"), name: (objects, GENERATED_NOTICE)}
    return [
        Artifact.from_text(f"{folder}/{file}".lstrip("/"), render_yaml(documents, heading=heading))
        for file, (documents, heading) in files.items()
    ]
