"""What a cluster would take: core kinds by Kubernetes' own schemas, the others by their CustomResourceDefinitions.

The schemas of the latter let unknown fields pass, which a cluster would drop: here they are errors.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from kubernetes_validate.utils import latest_version, schema_contents
from referencing import Registry, Resource

VERSION = latest_version()
CUSTOM = {
    "TrainJob": "crd-trainer.kubeflow.org_trainjobs.v1alpha1.json",
    "TrainingRuntime": "crd-trainer.kubeflow.org_clustertrainingruntimes.v1alpha1.json",
    "PyTorchJob": "crd-kubeflow.org_pytorchjobs.v1.json",
    "RayJob": "crd-ray.io_rayjobs.v1.json",
    "JobSet": "crd-jobset.x-k8s.io_jobsets.v1alpha2.json",
}
"""A TrainingRuntime's specification is that of the ClusterTrainingRuntime, for which there is a definition here."""


def problems(manifest: dict[str, Any]) -> list[str]:
    """What a cluster would refuse or drop. Skips the test where the definition is not here."""
    if manifest["kind"] in CUSTOM:
        return list(custom_problems(manifest))
    checks = _core(manifest["kind"], manifest["apiVersion"])
    return [f"{'/'.join(map(str, error.path))}: {error.message}" for error in checks.iter_errors(manifest)]


def custom_problems(manifest: dict[str, Any]) -> Iterator[str]:
    rules, checks = _custom(CUSTOM[manifest["kind"]], manifest["apiVersion"])
    body = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "metadata")}
    for error in checks.iter_errors(body):
        yield f"{'/'.join(map(str, error.path))}: {error.message}"
    yield from unknown(body, rules)


def unknown(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """The fields that the schema has no word for, wherever they are."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        for name, each in value.items():
            inner = schema.get("properties", {}).get(name, others)
            if inner is None or inner is False:
                yield f"{path}/{name} is unknown"
            elif isinstance(inner, dict):
                yield from unknown(each, inner, f"{path}/{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from unknown(each, schema.get("items", {}), f"{path}/{number}")


@cache
def _core(kind: str, api_version: str) -> jsonschema.Draft202012Validator:
    """What kubernetes_validate.validate(…, strict=True) uses, which reads it anew each time."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    folder = f"kubernetes-json-schema/v{VERSION}-local-strict"
    found = [schema_contents(f"{folder}/{name}.json", VERSION) for name in (f"{kind.lower()}-{group}", "_definitions")]
    registry = Registry()
    for each in found:
        registry = Resource.from_contents(each) @ registry
    return jsonschema.Draft202012Validator(found[0], registry=registry)


@cache
def _custom(name: str, api_version: str) -> tuple[dict[str, Any], jsonschema.Draft202012Validator]:
    definition = _definition(name)
    group, version = api_version.split("/")
    assert definition["spec"]["group"] == group
    schema = next(each for each in definition["spec"]["versions"] if each["name"] == version)
    rules = schema["schema"]["openAPIV3Schema"]
    return rules, jsonschema.Draft202012Validator(_readable(rules))


def _definition(name: str) -> dict[str, Any]:
    folder = os.environ.get("DEVKIT_SCHEMAS")
    if not folder:
        pytest.skip("the CustomResourceDefinitions are not here: set DEVKIT_SCHEMAS to the folder that holds them")
    if not Path(folder, name).is_file():
        pytest.skip(f"{name} is not in {folder}")
    return json.loads(Path(folder, name).read_text())


def _readable(schema: Any) -> Any:
    """The schema in words that JSON Schema has: an int-or-string is both."""
    if isinstance(schema, list):
        return [_readable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _readable(each) for name, each in schema.items() if not name.startswith("x-kubernetes-")}
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("anyOf", None)
        found["type"] = ["integer", "string"]
    return found
