"""The folder for this user's own data files."""

import os
import sys
from pathlib import Path

from devkit.errors import DevkitError
from devkit.whole_files import write_whole

_VARIABLES = {"win32": ("LOCALAPPDATA", "USERPROFILE", "AppData/Local")}
_DEFAULT_VARIABLES = (
    "XDG_DATA_HOME",
    "HOME",
    "Library/Application Support" if sys.platform == "darwin" else ".local/share",
)
"""The variable that names the data folder, else that of the home folder and the folder below it."""


def find_user_file(name: str) -> str | None:
    """Return the path of one of the user's data files; None without a home folder.

    Source: XDG Base Directory Specification (an XDG_DATA_HOME that is not absolute is ignored).
    """
    variable, home, below = _VARIABLES.get(sys.platform, _DEFAULT_VARIABLES)
    folder, home_folder = (os.environ.get(each, "") for each in (variable, home))
    if os.path.isabs(folder):  # noqa: PTH117
        return f"{folder}/devkit/{name}"
    # The home folder of a service, such as /nonexistent, is not made.
    has_home = os.path.isabs(home_folder) and os.path.isdir(home_folder)  # noqa: PTH112, PTH117
    return f"{home_folder}/{below}/devkit/{name}" if has_home else None


def require_user_file(name: str) -> Path:
    """Return the path of one of the user's data files. Raises DevkitError without a home folder."""
    path = find_user_file(name)
    if path is None:
        raise DevkitError(f"no home folder for {name}", "Set HOME or XDG_DATA_HOME to a folder.")
    return Path(path)


def write_user_file(name: str, content: bytes) -> Path:
    """Write one of the user's data files atomically. Raises DevkitError when the disk refuses."""
    path = require_user_file(name)
    hint = "Free some space, remove what blocks the path, or name another folder in XDG_DATA_HOME."
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DevkitError(f"cannot write {path}: {error.strerror}", hint) from None
    write_whole(path, content, hint=hint)
    return path
