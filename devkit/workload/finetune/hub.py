"""From what a user calls a model to the folder that holds its files. Importable without torch."""

from pathlib import Path

from devkit.errors import DevkitError


def model_folder(name: str) -> Path:
    """The folder of a model: `name` itself, or where the hub's cache keeps what it calls `name`.

    Raises DevkitError where there is no such model, or it may not be read.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    raise DevkitError(f"there is no folder {name}", "Name a folder that holds a model.")
