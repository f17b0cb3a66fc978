"""What kustomize makes of the files here, in few lines: resources, JSON patches that add, and a namespace.

Strict: anything else in a kustomization is an error. Held against the real one where there is one.
"""

import copy
from pathlib import PurePosixPath
from typing import Any

import yaml

from devkit.export.targets import TargetFiles

KNOWN = {"apiVersion", "kind", "namespace", "sortOptions", "resources", "patches"}


def built(rendered: TargetFiles, folder: str = "") -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k` of the folder would send, in their order."""
    files = {artifact.path: artifact.content for artifact in rendered.artifacts}
    content = yaml.safe_load(files[_within(folder, "kustomization.yaml")])
    assert content.keys() <= KNOWN
    assert (content["apiVersion"], content["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    # Without it kubectl sorts: only a single object has no order.
    assert content.get("sortOptions", {"order": "fifo"}) == {"order": "fifo"}
    found = []
    for resource in content["resources"]:
        path = _within(folder, resource)
        if path in files:
            found += list(yaml.safe_load_all(files[path]))
        else:
            found += built(rendered, path)
    for patch in content.get("patches", ()):
        assert patch.keys() == {"target", "patch"}
        aims = [each for each in found if _is_target(each, patch["target"])]
        assert aims, f"nothing is {patch['target']}"
        for aim in aims:
            for operation in yaml.safe_load(patch["patch"]):
                _apply(aim, operation)
    for each in found:
        if content.get("namespace"):
            each["metadata"]["namespace"] = content["namespace"]
    return found


def _within(folder: str, path: str) -> str:
    parts: list[str] = []
    for part in PurePosixPath(folder, path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _is_target(manifest: dict[str, Any], target: dict[str, str]) -> bool:
    assert target.keys() == {"kind", "name"}
    return (manifest["kind"], manifest["metadata"]["name"]) == (target["kind"], target["name"])


def _apply(manifest: dict[str, Any], operation: dict[str, Any]) -> None:
    """RFC 6902's add: the parent must be there. A member that is there is not replaced: nothing here means to."""
    assert operation["op"] == "add"
    *above, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    inner: Any = manifest
    for part in above:
        inner = inner[int(part)] if isinstance(inner, list) else inner[part]
    value = copy.deepcopy(operation["value"])
    if isinstance(inner, list):
        assert last == "-"
        inner.append(value)
    else:
        assert last not in inner, f"{operation['path']} is there already"
        inner[last] = value
