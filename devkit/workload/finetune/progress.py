"""What a person sees of a run."""

import json
import sys

from devkit.workload.finetune.events import Event, Listener


def printer(*, as_json: bool) -> Listener:
    """Prints events: as JSON lines, or for people."""
    return _json_line if as_json else _plain_line


def _json_line(event: Event) -> None:
    print(json.dumps(event, allow_nan=False), flush=True)  # noqa: T201 - it is what was asked for


def _plain_line(event: Event) -> None:
    sys.stderr.write(" ".join(f"{name}={value}" for name, value in event.items()) + "\n")
