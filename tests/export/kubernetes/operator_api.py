"""The Prometheus operator's kinds, as far as they are written here: an unknown field is an error.

No definition of these is among the tests' schemas. This was written from the documentation of the API:
https://prometheus-operator.dev/docs/api-reference/api/
"""

from typing import Any

import jsonschema

API = "monitoring.coreos.com/v1"
DURATION = {
    "type": "string",
    "pattern": "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?)$",
}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


_RELABELING = _object(
    (),
    sourceLabels=_list({"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}),
    targetLabel={"type": "string"},
    regex={"type": "string"},
    replacement={"type": "string"},
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"]},
)
_ENDPOINT = _object(
    ("port",),
    port={"type": "string"},
    path={"type": "string"},
    scheme={"enum": ["http", "https"]},
    interval=DURATION,
    scrapeTimeout=DURATION,
    honorLabels={"type": "boolean"},
    relabelings=_list(_RELABELING),
    metricRelabelings=_list(_RELABELING),
)
_RULE = _object(
    ("expr", "alert"),
    alert={"type": "string"},
    expr={"type": "string"},
    **{"for": DURATION},
    keep_firing_for=DURATION,
    labels=TEXTS,
    annotations=TEXTS,
)
_GROUP = _object(("name",), name={"type": "string", "minLength": 1}, interval=DURATION, rules=_list(_RULE))
SPECS = {
    "ServiceMonitor": _object(
        ("selector", "endpoints"),
        jobLabel={"type": "string"},
        namespaceSelector=_object((), any={"type": "boolean"}, matchNames=_list({"type": "string"})),
        selector=_object(("matchLabels",), matchLabels=TEXTS),
        endpoints=_list(_ENDPOINT),
    ),
    "PrometheusRule": _object((), groups=_list(_GROUP)),
}


def operator_problems(manifest: dict[str, Any]) -> list[str]:
    """What the operator would refuse or drop."""
    metadata = _object(("name",), name={"type": "string"}, namespace={"type": "string"}, labels=TEXTS)
    kind = manifest["kind"]
    schema = _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": API},
        kind={"const": kind},
        metadata=metadata,
        spec=SPECS[kind],
    )
    found = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return [f"{kind} {'/'.join(map(str, error.path))}: {error.message}" for error in found]
