"""What the drivers share: runs as JSON on stdin, answers as JSON on stdout. Needs nothing but Python."""

import json
import sys
from collections.abc import Callable
from typing import Any

Run = dict[str, Any]
"""A published run: its model's config.json and parameters, its settings, its GPU."""


def answer(ask: Callable[[Run], dict[str, float]]) -> None:
    """Print what `ask` says of each run: bytes of tensors and in total, or the error that it raises."""
    answers: dict[str, dict[str, Any]] = {}
    for run in json.load(sys.stdin):
        try:
            answers[run["id"]] = ask(run)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its answer
            answers[run["id"]] = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answers, sys.stdout)
