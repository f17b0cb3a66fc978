"""Where an exported file lies, seen from the project, and the project seen from there."""

from pathlib import PurePosixPath


def way_back(folder: str) -> str:
    """The project's folder from that of the files, which is Context.folder; "" when they lie outside of the project."""
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts:
        return ""
    return "/".join([".."] * len(path.parts)) or "."
