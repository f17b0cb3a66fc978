"""The names of the files that are read in a project."""

import re

DEPENDENCY_FILE_NAMES = re.compile(
    r"(?i:[\w.-]*(?:requirements?|reqs)[\w.-]*)|pyproject\.toml|(?:uv|poetry|pdm)\.lock|pixi\.toml|Pipfile(?:\.lock)?"
    r"|environment\.ya?ml|conda-lock\.ya?ml|setup\.(?:cfg|py)|\.python-version"
)
"""The names of all files in a project's own folder that are read."""
OTHER_LANGUAGES = re.compile(
    r"Cargo\.toml|go\.mod|package\.json|pom\.xml|build\.gradle(?:\.kts)?|Gemfile|Package\.swift|mix\.exs|build\.zig"
    r"|dune-project|.*\.(?:cabal|sln|csproj|vcxproj)"
)
"""Build files of languages besides Python, C and C++."""
C_BUILDS = re.compile(r"CMakeLists\.txt|meson\.build|(?:GNUm|[Mm])akefile")
"""Build files of C and C++, which projects of other languages have, too."""
MAX_FOLDERS = 50
"""Folders of the project in which a requirement file is looked for, where its own folder has none."""
CONTAINER_FILE_NAMES = re.compile(
    r"(?i)\.devcontainer|.*compose|.*docker|.*container|.*deploy|\.env|.*requirements|environment|pyproject|pipfile|conda|devkit\.toml|.*\.lock"
)
"""How the names begin of all files and folders that are read in a project's own folder."""
