"""Facts of this machine that `devkit doctor --since-last` keeps from one examination to the next."""

import json
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING
from zlib import crc32

from devkit.cli.output import OutputOptions, format_json
from devkit.cli.user_data import require_user_file, write_user_file
from devkit.text import wrap_text

if TYPE_CHECKING:
    from devkit.doctor.comparison.changes import Changes
    from devkit.facts.model import Facts

KEPT = 10
"""The newest facts of each machine that are kept."""


def compare_with_last(facts: "Facts") -> "Changes | None":
    """Return what changed since the facts that were kept last, None the first time, and keep these instead.

    Raises DevkitError where they cannot be written.
    """
    from devkit.doctor.comparison.changes import find_changes
    from devkit.doctor.comparison.documents import InvalidReport
    from devkit.facts.model import System
    from devkit.facts.redact import redact_facts
    from devkit.facts.store import format_facts

    # A home folder may be shared by the nodes of a cluster, and by a host and its containers.
    name = str(facts.system.host_name) if isinstance(facts.system, System) else ""
    folder = f"facts/{crc32(name.encode(errors='surrogateescape')):08x}"
    text = format_facts(redact_facts(facts))
    earlier = sorted(require_user_file(folder).glob("*.json"), reverse=True)
    changes = None
    for path in earlier:
        # A file that is damaged, or of an older devkit, is passed over.
        with suppress(OSError, ValueError, RecursionError, InvalidReport):
            changes = find_changes(json.loads(path.read_bytes()), json.loads(text))
            break
    write_user_file(f"{folder}/{facts.taken_at.replace(':', '')}.json", text.encode())
    for path in earlier[KEPT - 1 :]:
        path.unlink(missing_ok=True)
    return changes


def add_changes(text: str, changes: "Changes | None", options: OutputOptions) -> str:
    """Return a report in text or JSON with the changes behind it; None is the first time."""
    if options.style == "json":
        document = {"since": None, "fields": []} if changes is None else changes.to_document()
        return format_json({**json.loads(text), "changes": document})
    if changes is None:
        return f"{text}\nThese facts are kept for the next --since-last.\n"
    lines = [
        wrap_text(line, width=shutil.get_terminal_size().columns, indent="  ", hanging="  ")
        for line in changes.describe()
    ]
    return "\n".join(
        [text, f"{'Changed' if lines else 'Nothing changed'} since {changes.since}{':' if lines else ''}", *lines, ""]
    )
