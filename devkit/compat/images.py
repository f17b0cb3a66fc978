"""Systems that images are built on, by the image's name alone."""

import re
from collections.abc import Iterable

from devkit.compat.version_tables import SystemImage

_PARTS = re.compile(r"(?:^|/)(?P<name>[^/:@]+)(?::(?P<tag>[^@/]+))?(?:@|$)")


def find_image_system(image: str, systems: Iterable[SystemImage]) -> SystemImage | None:
    """Find the system that the image's name or a part of its tag names; None where neither does.

    `ubuntu:22.04`, `debian:bookworm-slim`, `mcr.microsoft.com/devcontainers/python:3.12-bookworm`, `x/y:1-ubuntu22.04`.
    """
    found = _PARTS.search(image)
    if found is None or is_musl(image):
        return None
    rows = tuple(systems)
    parts = (found["tag"] or "").split("-")
    for part, before in zip(parts, (found["name"], *parts), strict=False):
        for row in rows:
            if any(_is_named(row.name, tag, part, before) for tag in row.tags if tag):
                return row
    return next((row for row in rows if row.tags == ("",) and row.name == found["name"]), None)


def is_musl(image: str) -> bool:
    """Return whether the image is one of Alpine, whose C library is musl."""
    return re.search(r"(?:^|[/:-])alpine", image) is not None


def _is_named(system: str, tag: str, part: str, before: str) -> bool:
    """Return whether a part of a tag names a system: by its code name, or by its number after the system's name."""
    if part == f"{system}{tag}":
        return True
    if tag[0].isdigit():
        return before == system and (part == tag or part.startswith(f"{tag}."))
    return part == tag
