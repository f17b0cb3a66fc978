"""Folders of the cluster in a script: variables such as $SCRATCH are kept, everything else stands for itself."""

import re

from devkit.errors import DevkitError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_ROOTED = re.compile(r"/|~/|~$|\$")
_SPECIAL = re.compile(r'([\\"`$])')
_SEPARATORS = re.compile(r"[:,\x00-\x1f\x7f\u0085\u2028\u2029]")
"""What separates folders in --bind and --container-mounts, and what ends a line."""
SCRATCH = "${SCRATCH:-$HOME}"
"""Fast storage under the name that many sites give it; else home."""


def folder(text: str, flag: str) -> str:
    """A folder as a double-quoted word of a shell. Raises DevkitError for one that depends on where the job starts."""
    if not _ROOTED.match(text):
        raise DevkitError(
            f"{flag} {text!r} is no folder from the root on", "Write it as /scratch/me/models or $SCRATCH/models."
        )
    require_mountable(text, flag)
    home = "$HOME" if text[:1] == "~" else ""
    return f'"{home}{inside_quotes(text.removeprefix("~"))}"'


def inside_quotes(text: str) -> str:
    """Text as it stands between double quotes, its variables kept."""
    kept = []
    end = 0
    for found in _VARIABLE.finditer(text):
        kept += [_SPECIAL.sub(r"\\\1", text[end : found.start()]), f"${{{found[1] or found[2]}}}"]
        end = found.end()
    return "".join([*kept, _SPECIAL.sub(r"\\\1", text[end:])])


def literal(text: str) -> str:
    """Text as it stands between double quotes, every character for itself."""
    return _SPECIAL.sub(r"\\\1", text)


def require_mountable(text: str, flag: str) -> None:
    """Raises DevkitError for a path that Apptainer and Pyxis cannot be told to mount."""
    found = _SEPARATORS.search(text)
    if found:
        raise DevkitError(
            f"{flag} {text!r} has {found[0]!r} in it, which separates folders in the options of Apptainer and Pyxis",
            "Rename the folder.",
        )
