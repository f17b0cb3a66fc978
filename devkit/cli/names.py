"""Names that shells complete: codes of checks, GPUs and models."""

import click


def complete_codes(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the code of a check."""
    from devkit.doctor.checks.loader import list_codes

    return sorted(code for code in list_codes() if code.startswith(incomplete.upper()))


def complete_gpus(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a GPU, however much of it is left out, in one word: bash would take a space for its end."""
    from devkit.compat.version_tables import load_tables

    names = (row.name.replace(" ", "-") for row in load_tables().gpus.models)
    return [name for name in names if incomplete.replace(" ", "-").lower() in name.lower()]


def complete_models(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a model that estimates know."""
    from devkit.estimate.model_catalog import list_models

    return [model.id for model in list_models() if incomplete.lower() in model.id.lower()]
