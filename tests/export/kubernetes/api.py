"""What a cluster would take, by Kubernetes' own schemas: core kinds, and the pods within those of operators."""

import re
from functools import cache
from typing import Any

import jsonschema
from kubernetes_validate.utils import latest_version, schema_contents
from referencing import Registry, Resource

from .rendered import templates

VERSION = latest_version()
CUSTOM = {"TrainJob", "TrainingRuntime", "PyTorchJob", "RayJob", "JobSet"}
"""Kinds of operators, whose definitions copy a pod's fields. Their own fields are for the tests of the kinds."""


def problems(manifest: dict[str, Any]) -> list[str]:
    """What a cluster would refuse or drop."""
    if manifest["kind"] in CUSTOM:
        return [problem for template in templates(manifest) for problem in problems(_pod(manifest, template))]
    checks = _core(manifest["kind"], manifest["apiVersion"])
    return [f"{'/'.join(map(str, error.path))}: {error.message}" for error in checks.iter_errors(manifest)]


def _pod(manifest: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    spec = template["spec"]
    if "runtimePatches" in manifest["spec"]:  # the image is that of the runtime
        spec = spec | {"containers": [{"image": "patched", **each} for each in spec["containers"]]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | {"name": "one"}, "spec": spec}


@cache
def _core(kind: str, api_version: str) -> jsonschema.Draft202012Validator:
    """What kubernetes_validate.validate(…, strict=True) uses, which reads it from its files each time."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    folder = f"kubernetes-json-schema/v{VERSION}-local-strict"
    found = [schema_contents(f"{folder}/{name}.json", VERSION) for name in (f"{kind.lower()}-{group}", "_definitions")]
    registry = Registry()
    for each in found:
        registry = Resource.from_contents(each) @ registry
    return jsonschema.Draft202012Validator(found[0], registry=registry)
