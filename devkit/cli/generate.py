"""`devkit generate`: generate text with a model, or with an adapter on it."""

import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.command import FOLDER, OUTPUT_FOLDER, Command, PathType
from devkit.cli.output import dump_json
from devkit.errors import DevkitError, ExitCode
from devkit.estimate.settings import Precision
from devkit.workload.finetune.files import BaseQuantization
from devkit.workload.generation.settings import (
    DecodingSettings,
    GenerateSettings,
    Prompt,
    find_generation_files,
    read_prompts,
    require_prompt_text,
    validate_decoding,
)
from devkit.workload.interpreter import continue_in_project

if TYPE_CHECKING:
    from devkit.workload.generation.decoding import Completion
    from devkit.workload.generation.program import GenerationSession

SCHEMA = "devkit.generate/1"
MAX_PROMPT_CHARACTERS = 16 << 20
"""More than any model's context holds."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


_REMOVED = (
    {"--chat": "Run: devkit serve MODEL, and chat with any client of the OpenAI protocol."}
    | dict.fromkeys(
        ("--static-cache", "--dynamic-cache"),
        "Remove it: answers are decoded with a growing KV cache. devkit serve starts an engine that compiles.",
    )
    | {
        "--gguf": "After --merge DIR, run llama.cpp's converter: convert_hf_to_gguf.py DIR --outfile FILE --outtype q8_0"
    }
)
"""Flags of the last release, and what does their part."""


@click.command(cls=Command, renamed={"--tokens": "--max-new-tokens", "--precision": "--dtype"}, removed=_REMOVED)
@click.option("--model", metavar="NAME", default="", help="Folder or hub id. Default: the adapter's base.")
@click.option("--adapter", metavar="DIR", type=FOLDER, help="Folder of a LoRA or DoRA adapter.")
@click.option("--any-base", is_flag=True, help="Use the adapter with weights that it was not trained on.")
@click.option("--prompt", metavar="TEXT", help="The prompt; - reads standard input.")
@click.option(
    "--file",
    metavar="FILE",
    type=PathType(path_type=Path, exists=True, dir_okay=False),
    help="Prompts, one per line (.txt) or as JSON lines (.jsonl); answers are printed as JSON lines.",
)
@click.option("--merge", metavar="DIR", type=OUTPUT_FOLDER, help="Merge the adapter and the model into DIR.")
@click.option(
    "--max-new-tokens",
    "tokens",
    metavar="TOKENS",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Maximum number of new tokens.",
)
@click.option(
    "--temperature",
    metavar="X",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Sampling temperature; 0 is greedy decoding.",
)
@click.option(
    "--top-p",
    metavar="X",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Nucleus sampling: keep this probability mass.",
)
@click.option(
    "--top-k",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="Sample from the N most likely tokens; 0 means all.",
)
@click.option("--stop", "stops", metavar="TEXT", multiple=True, help="Stop sequence.")
@click.option(
    "--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True, help="Seed for sampling."
)
@click.option(
    "--batch", metavar="N", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts in one batch."
)
@click.option("--raw", is_flag=True, help="Use prompts as they are, without the model's chat template.")
@click.option(
    "--quantization",
    type=click.Choice([each.value for each in BaseQuantization]),
    default=BaseQuantization.NONE.value,
    show_default=True,
    help="Quantization of the base weights.",
)
@click.option(
    "--dtype", "precision", type=click.Choice([each.value for each in Precision]), help="Data type for computation."
)
@click.option("--stats", is_flag=True, help="Print the speed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def generate(**given: Any) -> None:  # noqa: ANN401 - one for each option
    """Answer one prompt or a file of prompts, or merge an adapter into its model."""
    tasks = [f"--{name}" for name in ("prompt", "file", "merge") if given[name] is not None]
    if len(tasks) > 1:
        raise DevkitError(f"{tasks[0]} and {tasks[1]} cannot be used together", "Use only one of them.")
    if not tasks and sys.stdin.isatty():
        raise DevkitError("nothing to answer", "Give --prompt or --file.")
    if given["as_json"] and given["merge"]:
        raise DevkitError("--merge does not print JSON", "Remove --json.")
    decoding = ("tokens", "temperature", "top_p", "top_k", "seed", "stops", "batch")
    settings = GenerateSettings(
        model=given["model"],
        adapter=given["adapter"],
        any_base=given["any_base"],
        quantization=BaseQuantization(given["quantization"]),
        precision=Precision(given["precision"]) if given["precision"] else None,
        raw=given["raw"],
        decoding=validate_decoding(DecodingSettings(**{name: given[name] for name in decoding})),
    )
    continue_in_project("devkit generate")
    from devkit.workload.finetune.process import configure_libraries

    # Before torch is imported: errors in the prompts and the files show within a second.
    prompts = () if given["merge"] else _read_prompts(given)
    files = find_generation_files(settings)
    # Before the libraries are imported, which print much on the way.
    configure_libraries()
    from devkit.workload.generation.program import GenerationSession, merge_adapter_into, resolve_model

    if given["merge"]:
        merge_adapter_into(files, given["merge"], _print_note)
    else:
        _answer(settings, GenerationSession(resolve_model(files)), prompts, given)


def _answer(
    settings: GenerateSettings, session: "GenerationSession", prompts: Sequence[Prompt], given: dict[str, Any]
) -> None:
    if given["as_json"]:
        answers = [
            _serialize_answer(prompt, answer)
            for prompt, answer in zip(prompts, session.generate_many(prompts), strict=True)
        ]
        document = {
            "schema": SCHEMA,
            "model": settings.model,
            "adapter": f"{settings.adapter}" if settings.adapter else None,
            "answers": answers,
            "speed": session.compute_speed(),
        }
        click.echo(dump_json(document))
    elif given["file"] is None:
        answer = session.generate(prompts[0], _print_piece)
        click.echo()
        if answer.finish_reason.value == "stopped":
            raise click.exceptions.Exit(ExitCode.INTERRUPTED)
    else:
        for prompt, answer in zip(prompts, session.generate_many(prompts), strict=False):
            click.echo(json.dumps(_serialize_answer(prompt, answer), ensure_ascii=False))
    if given["stats"]:
        speed = session.compute_speed()
        _print_note(f"{speed['tokens']} tokens in {speed['seconds']:.1f} s: {speed['tokens_per_s']:g} tokens/s")


def _read_prompts(given: dict[str, Any]) -> tuple[Prompt, ...]:
    if given["file"] is not None:
        return read_prompts(given["file"])
    text = given["prompt"]
    if text not in (None, "-"):
        return (Prompt(require_prompt_text(text, "--prompt")),)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")
    text = sys.stdin.read(MAX_PROMPT_CHARACTERS + 1)
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise DevkitError("the prompt on standard input is too long", "Pass it with --prompt, or in a file.")
    return (Prompt(require_prompt_text(text.rstrip("\n"), "standard input")),)


def _serialize_answer(prompt: Prompt, answer: "Completion") -> dict[str, Any]:
    return {
        **prompt.to_document(),
        "answer": answer.text,
        "tokens": len(answer.ids),
        "ending": answer.finish_reason.value,
    }


def _print_piece(piece: str) -> None:
    """Print a piece of an answer; on a terminal without characters that move its cursor or change its colors."""
    click.echo(_CONTROL.sub("\ufffd", piece) if sys.stdout.isatty() else piece, nl=False)
    sys.stdout.flush()


def _print_note(line: str) -> None:
    click.echo(line, err=True)
