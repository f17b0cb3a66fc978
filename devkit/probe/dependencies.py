"""What a project needs besides devkit's plan, read from the files of the tool that it uses. Nothing of it is run."""

import re

from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies
from devkit.probe.host import Host
from devkit.probe.project_files import ProjectFiles

MAY_ASK = re.compile(
    r"(?:dev-|)requirements[\w.-]*|pyproject\.toml|(?:uv|poetry|pdm|pixi)\.lock|pixi\.toml|Pipfile(?:\.lock)?"
    r"|environment\.ya?ml|conda-lock\.ya?ml|setup\.(?:cfg|py)|\.python-version"
)
"""The names of all files in a project's own folder that are read."""
MOST_BYTES = 16 << 20
"""A lock file of a large project holds a few mebibytes."""


def read_dependencies(host: Host, *, project: str) -> Dependencies:
    """What the files in the folder `project` ask for; never raises for what they hold."""
    files = ProjectFiles(host, project, most_bytes=MOST_BYTES)
    if not any(map(MAY_ASK.fullmatch, files.names("."))):
        return NO_DEPENDENCIES
    # Most of the reading is loaded only for projects that have something to read.
    from devkit.probe.dependencies_tools import read_with_tool

    return read_with_tool(files)
