"""A file in memory, before anything touches the disk."""

from dataclasses import dataclass

FOLDER = ".devcontainer"
"""Where generated files go, relative to the project."""


@dataclass(frozen=True)
class Artifact:
    """A generated file: path relative to the project, contents, and permission bits."""

    path: str
    content: bytes
    mode: int = 0o644

    @classmethod
    def text(cls, path: str, text: str, mode: int = 0o644) -> "Artifact":
        """An artifact from text, in UTF-8."""
        return cls(path, text.encode(), mode)
