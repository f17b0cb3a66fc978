"""`devkit verify`: prove the dev container, or this machine."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.command import OUTPUT_FILE, Command, OutputPath
from devkit.cli.dev_container import directory_argument
from devkit.cli.terminal import StepPrinter
from devkit.errors import DevkitError, ExitCode
from devkit.text import suggest
from devkit.whole_files import write_whole

if TYPE_CHECKING:
    from devkit.verify.report import VerificationReport

DEFAULT_TIMEOUT_S = 600.0


@click.command(cls=Command, removed={"--job": "Run: devkit finetune --settings FILE --steps 5 --output trial"})
@directory_argument
@click.option("--here", is_flag=True, help="Run the proof on this machine, without a container engine.")
@click.option("--quick", is_flag=True, help="Prove only the device, its kernels and a short LoRA run.")
@click.option("--standard", is_flag=True, hidden=True, expose_value=False)
@click.option("--full", is_flag=True, help="Also prove an 8-bit base, DPO and processes over Gloo.")
@click.option(
    "--model",
    metavar="PATH_OR_ID",
    default="",
    help="Also train this model and generate text with it. Give a path or a cached id that exists where the proof runs.",
)
@click.option(
    "--command",
    metavar="COMMAND",
    default="",
    help="Also require this project command to succeed; sh runs it in the project's folder.",
)
@click.option(
    "--bench",
    is_flag=True,
    help="Measure this machine's GPU instead: memory compared with the estimate, training and generation.",
)
@click.option(
    "--output",
    metavar="PATH",
    type=OutputPath(path_type=Path),
    help="Write the report as JSON; with --bench, write the results to this folder (default: gpu-report).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    help="Time limit for the proof, not counting the container's build.",
)
@click.pass_context
def verify(
    ctx: click.Context,
    directory: Path,
    *,
    here: bool,
    quick: bool,
    full: bool,
    model: str,
    command: str,
    bench: bool,
    output: Path | None,
    as_json: bool,
    timeout_s: float,
) -> None:
    """Prove that fine-tuning works in DIR's dev container or, with --here, on this machine.

    A tiny random model learns a sentence with LoRA and QLoRA; every claim is checked. Nothing is downloaded.
    In a project's environment, its packages and requirements must also be importable.

    --bench writes a JSON document, and resumes after an interruption. Without a GPU, --bench exits with 1.
    """
    from devkit.verify.process import interrupt_on_termination
    from devkit.verify.report import format_proof_report

    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    if bench:
        ctx.exit(_run_benchmark(output or Path("gpu-report"), as_json=as_json))
    if output is not None:  # a folder with --bench alone
        OUTPUT_FILE.convert(output, next(each for each in ctx.command.params if each.name == "output"), ctx)
    with interrupt_on_termination():
        report = _prove(
            directory,
            here=here,
            depth="quick" if quick else "full" if full else "standard",
            timeout_s=timeout_s,
            model=model,
            command=command,
        )
    document = json.dumps(report.to_document(), indent=2, allow_nan=False)
    write_error = None
    if output is not None:
        try:
            write_whole(output, f"{document}\n".encode())
        except DevkitError as error:
            # The report took minutes: it is shown before this error is.
            write_error = error
    click.echo(document if as_json else format_proof_report(report, width=shutil.get_terminal_size().columns))
    if write_error:
        raise write_error
    if report.verdict == "failed" and not any(map(report.find_cause, report.stages)):
        click.echo("To find the cause: devkit doctor --deep", err=True)
    ctx.exit(ExitCode.DONE if report.verdict == "passed" else ExitCode.ANSWER_IS_NO)


def _run_benchmark(folder: Path, *, as_json: bool) -> int:
    """Measure this machine's GPU into a folder. Returns the exit code."""
    from devkit.verify.benchmark import PARTS, RESULT_FILE, find_gpu_name, run_benchmark

    gpu = find_gpu_name()
    if gpu is None:
        click.echo("This machine has no GPU that torch can use. With a GPU, this would measure:")
        for part in PARTS:
            click.echo(f"  {part.name:10} {part.about}")
        return ExitCode.ANSWER_IS_NO
    document = run_benchmark(folder, gpu, progress=lambda text: click.echo(text, err=True))
    click.echo(json.dumps(document, indent=2) if as_json else f"Results: {folder / RESULT_FILE}")
    has_failed = any("error" in part for part in document["parts"].values())
    return ExitCode.ANSWER_IS_NO if has_failed else ExitCode.DONE


def _prove(
    directory: Path, *, here: bool, depth: str, timeout_s: float, model: str, command: str
) -> "VerificationReport":
    from devkit.probe.host import LocalHost
    from devkit.verify.report import ProofRequest
    from devkit.workload.proof.stages import Depth

    if here:
        _require_local_model(model)
        from devkit.verify.here import prove_machine_and_project as prove
    else:
        from devkit.verify.dev_container import prove_in_container as prove
    with contextlib.closing(StepPrinter()) as progress:
        return prove(LocalHost(), directory, ProofRequest(Depth(depth), timeout_s, progress, model, command))


def _require_local_model(model: str) -> None:
    """Raise DevkitError for a model that is neither a folder nor in the hub's cache: the proof downloads nothing."""
    from devkit.probe.host import LocalHost
    from devkit.probe.machine.resources import find_hub_cache
    from devkit.workload.finetune.files import find_local_model, find_similar_names

    cache = Path(find_hub_cache(LocalHost()) or os.devnull, f"models--{model.replace('/', '--')}")
    if model and not find_local_model(model) and not cache.exists():
        hint = suggest(
            find_similar_names(model), f"The proof does not download a model. Download it: hf download {model}"
        )
        raise DevkitError(f"model {model} was not found: it is neither a folder nor in {cache.parent}", hint)
