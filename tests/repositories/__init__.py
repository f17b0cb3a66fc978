"""Repositories with a dev container of their own, each messy in its own way."""

import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent
REPOSITORIES: dict[str, dict[str, str]] = tomllib.loads((FOLDER / "repositories.toml").read_text(encoding="utf-8"))
"""The text of each file by its path, for each repository."""


def write_repository(name: str, root: Path) -> Path:
    """Write a repository's files into a folder, byte for byte as they are recorded, and return the folder."""
    for path, text in REPOSITORIES[name].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode())
    return root
