"""The JSON Schemas of devkit's own documents, which every command in the tests is held to."""

import json
from functools import cache

from jsonschema import Draft202012Validator

from devkit.cli.documents import DOCUMENTS, build_document_schema


@cache
def validator(name: str) -> Draft202012Validator | None:
    """What judges a document by its `schema`; None for one that devkit does not print."""
    return Draft202012Validator(build_document_schema(name)) if name in DOCUMENTS else None


def assert_valid(text: str) -> None:
    """Judge what a command printed, if it is a document."""
    if not text.startswith("{\n"):
        return
    try:
        document = json.loads(text)
    except ValueError:
        return
    judge = validator(str(document.get("schema")))
    wrong = [f"{error.json_path}: {error.message[:300]}" for error in judge.iter_errors(document)] if judge else []
    assert not wrong, f"{document['schema']}: {wrong}"
