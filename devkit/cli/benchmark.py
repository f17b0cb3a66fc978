"""`devkit benchmark`: the figures of this machine's GPU, in one command."""

import json
from pathlib import Path

import click

from devkit.errors import ExitCode


@click.command()
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("gpu-report"),
    show_default=True,
    help="Folder for the results; an interrupted benchmark resumes there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.pass_context
def benchmark(ctx: click.Context, output: Path, *, as_json: bool) -> None:
    """Measure this machine's GPU: doctor, proof, memory against estimate, training and generation.

    Writes one JSON document and one HTML page. Random weights are made on the spot: nothing is downloaded. Without a
    GPU it says what it would measure, and ends with 1.
    """
    from devkit.verify.benchmark import PAGE_FILE, PARTS, find_gpu_name, run_benchmark

    gpu = find_gpu_name()
    if gpu is None:
        click.echo("No GPU that torch can use is on this machine. With one, this would measure:")
        for part in PARTS:
            click.echo(f"  {part.name:10} {part.about}")
        ctx.exit(ExitCode.ANSWER_IS_NO)
    document = run_benchmark(output, gpu, progress=lambda text: click.echo(text, err=True))
    click.echo(json.dumps(document, indent=2) if as_json else f"Results: {output / PAGE_FILE}")
    has_failed = any("error" in part for part in document["parts"].values())
    ctx.exit(ExitCode.ANSWER_IS_NO if has_failed else ExitCode.DONE)
