"""What a project needs besides devkit's plan, read from the files of the tool that it uses. Nothing of it is run."""

import os
import re
from typing import TYPE_CHECKING

from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies

if TYPE_CHECKING:
    from devkit.probe.host import Host

MAY_ASK = re.compile(
    r"(?:dev-|)requirements[\w.-]*|pyproject\.toml|(?:uv|poetry|pdm|pixi)\.lock|pixi\.toml|Pipfile(?:\.lock)?"
    r"|environment\.ya?ml|conda-lock\.ya?ml|setup\.(?:cfg|py)|\.python-version"
)
"""The names of all files in a project's own folder that are read."""
MOST_BYTES = 16 << 20
"""A lock file of a large project holds a few mebibytes."""


def dependencies_in(folder: str) -> Dependencies:
    """What the files in a folder of this machine ask for. Where there are none, nothing is loaded to read them."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - pathlib is what would take the time
    except OSError:
        return NO_DEPENDENCIES
    if not any(map(MAY_ASK.fullmatch, names)):
        return NO_DEPENDENCIES
    from devkit.probe.host import LocalHost

    return read_dependencies(LocalHost(), project=folder)


def read_dependencies(host: "Host", *, project: str) -> Dependencies:
    """What the files in the folder `project` ask for; never raises for what they hold."""
    from devkit.probe.dependencies_tools import read_with_tool
    from devkit.probe.project_files import ProjectFiles

    files = ProjectFiles(host, project, most_bytes=MOST_BYTES)
    return read_with_tool(files) if any(map(MAY_ASK.fullmatch, files.names("."))) else NO_DEPENDENCIES
