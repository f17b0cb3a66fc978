"""The project's own files, read and parsed where there are any: most of that is loaded only then."""

import re

from devkit.facts.model import Project
from devkit.facts.values import Unknown
from devkit.probe.host import Host
from devkit.probe.project_files import ProjectFiles

MAY_ASK = re.compile(
    r"(?i)\.devcontainer|.*compose|.*docker|\.env|.*requirements|environment|pyproject|pipfile|conda|devkit\.toml|.*\.lock"
)
"""How the names begin of all files and folders that are read in a project's own folder."""


def read_project(host: Host, *, project: str) -> Project | Unknown | None:
    """The files of the folder `project`; None when there is no such folder."""
    files = ProjectFiles(host, project)
    found = host.stat(files.folder)
    if found is None or found.kind != "directory":
        return None
    if not any(map(MAY_ASK.match, files.names("."))):
        return Project(
            folder=files.folder,
            dev_containers=(),
            services=(),
            dockerfiles=(),
            installs=(),
            locks=(),
            env_files=(),
            files=(),
            policy=None,
        )
    from devkit.probe.project_contents import read_contents

    return read_contents(files)
