"""Which system an image is built on, by its name alone."""

import re
from collections.abc import Iterable

from devkit.compat.version_tables import SystemImage

_PARTS = re.compile(r"(?:^|/)(?P<name>[^/:@]+)(?::(?P<tag>[^@/]+))?(?:@|$)")


def find_image_system(image: str, systems: Iterable[SystemImage]) -> SystemImage | None:
    """The system that the image's name or a part of its tag names; None where neither does.

    `ubuntu:22.04`, `debian:bookworm-slim`, `mcr.microsoft.com/devcontainers/python:3.12-bookworm`, `x/y:1-ubuntu22.04`.
    """
    found = _PARTS.search(image)
    if found is None or is_musl(image):
        return None
    rows = tuple(systems)
    parts = (found["tag"] or "").split("-")
    for place, part in enumerate(parts):
        above = found["name"] if place == 0 else parts[place - 1]
        for row in rows:
            if _names(row, part, above):
                return row
    return next((row for row in rows if row.tags == ("",) and row.name == found["name"]), None)


def is_musl(image: str) -> bool:
    """Whether the image is one of Alpine, whose C library is musl."""
    return re.search(r"(?:^|[/:-])alpine", image) is not None


def _names(row: SystemImage, part: str, above: str) -> bool:
    """Whether a part of a tag names the system: by its code name, or by its number behind the system's name."""
    for tag in row.tags:
        if not tag:
            continue
        is_number = tag[0].isdigit()
        if part == f"{row.name}{tag}" or (part == tag and not is_number):
            return True
        if is_number and above == row.name and (part == tag or part.startswith(f"{tag}.")):
            return True
    return False
