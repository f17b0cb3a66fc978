"""Which dev containers a project has that devkit did not write. Asked by every run, so it loads little."""

import re
from pathlib import Path

from devkit.render.artifact import FOLDER
from devkit.render.change import known_files
from devkit.render.folder import files_below, read_file

_SINGLE = ".devcontainer.json"
_DEV_CONTAINER = re.compile(rf"{re.escape(FOLDER)}/(?:[^/]+/)?devcontainer\.json")


def foreign_dev_containers(root: Path) -> tuple[str, ...]:
    """The paths of the project's own devcontainer.json files; none where devkit wrote one of them.

    Raises: DevkitError when a file leads out of the project, and for a lock that cannot be read.
    """
    found = [path for path in files_below(root, FOLDER) if _DEV_CONTAINER.fullmatch(path)]
    if read_file(root, _SINGLE) is not None:
        found.insert(0, _SINGLE)
    known = known_files(root).files if found else {}
    return () if any(path in known for path in found) else tuple(found)
