"""Where an exported file lies, seen from the project, and the project seen from there."""

from pathlib import PurePosixPath


def way_back(folder: str) -> str:
    """The project's folder from that of the files, which is Context.folder; "" when they lie outside of the project."""
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts:
        return ""
    return "/".join([".."] * len(path.parts)) or "."


def project_from(folder: str, target: str) -> tuple[str, str]:
    """The project's folder as it is typed, "" for this one, and where the target's files are from there.

    `folder` is Context.folder. Files that do not lie where devkit puts them say nothing of the project.
    """
    path, own = PurePosixPath(folder), PurePosixPath("deploy", target)
    if path.parts[-2:] != own.parts:
        return "", folder
    above = str(path.parent.parent)
    return ("" if above == "." else above), str(own)
