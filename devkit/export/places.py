"""Where an exported file lies, seen from the project: for the commands that come next."""

from pathlib import PurePosixPath

FOLDER = "deploy"


def project_from(folder: str, target: str) -> tuple[str, str]:
    """The project's folder as people type it, "" for this one, and where the target's files are from there.

    `folder` is Context.folder. Files that were put elsewhere say nothing of the project: then it is this folder.
    """
    path = PurePosixPath(folder)
    own = PurePosixPath(FOLDER, target)
    if path.parts[-2:] != own.parts:
        return "", folder
    above = str(path.parent.parent)
    return ("" if above == "." else above), str(own)
