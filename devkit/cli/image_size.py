"""What `devkit init --report` says of the image that was built for a project."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.text import human_bytes, table

if TYPE_CHECKING:
    from devkit.facts.values import Unknown
    from devkit.verify.image_report import ImageReport

_BUILD = "Build it first: docker compose -f .devcontainer/docker-compose.yml build"


def print_image(root: Path) -> None:
    """The image's size and that of its parts, or why nobody knows them."""
    from devkit.facts.values import Unknown

    found = _report(root)
    if isinstance(found, Unknown):
        click.echo(f"The image's size is not known: {found.reason}.\n{_BUILD}")
        return
    click.echo(f"{found.image}: {human_bytes(found.total_bytes)} on the disk")
    click.echo(table([(human_bytes(size), name) for name, size in found.parts], indent="  "))


def image_fields(root: Path) -> dict[str, object]:
    """The same for JSON. `parts` stand in the order of the Dockerfile."""
    from devkit.facts.values import Unknown

    found = _report(root)
    if isinstance(found, Unknown):
        return {"image": {"unknown": found.reason}}
    parts = [{"name": name, "bytes": size} for name, size in found.parts]
    return {"image": {"name": found.image, "bytes": found.total_bytes, "parts": parts}}


def _report(root: Path) -> "ImageReport | Unknown":
    from devkit.probe.host import LocalHost
    from devkit.verify.image_report import image_report

    return image_report(root, LocalHost())
