"""`devkit generate`: let a model, or one with an adapter on it, answer."""

import contextlib
import importlib
import io
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exit_codes
from devkit.cli.runtime import require_workload_extra
from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.finetune.model.files import BaseQuantization
from devkit.workload.generation.settings import DecodingSettings, GenerateSettings, validate_decoding

if TYPE_CHECKING:
    from devkit.workload.generation.decoding import Completion
    from devkit.workload.generation.files import Prompt
    from devkit.workload.generation.program import GenerationSession

SCHEMA = "devkit.generate/1"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@click.command()
@click.option("--model", metavar="NAME", default="", help="Folder or hub id; by default the adapter's own base.")
@click.option("--adapter", metavar="DIR", type=click.Path(path_type=Path), help="Folder of a LoRA or DoRA adapter.")
@click.option("--any-base", is_flag=True, help="Use the adapter on other weights than it was trained on.")
@click.option("--prompt", metavar="TEXT", help="What to answer; - reads standard input.")
@click.option(
    "--file",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Prompts, one a line (.txt) or as JSON lines (.jsonl); answers come as JSON lines.",
)
@click.option("--chat", is_flag=True, help="Talk: Ctrl-C ends an answer, Ctrl-D the chat.")
@click.option("--merge", metavar="DIR", type=click.Path(path_type=Path), help="Write model and adapter as one model.")
@click.option(
    "--tokens", metavar="N", type=click.IntRange(min=1), default=256, show_default=True, help="Longest answer."
)
@click.option(
    "--temperature",
    metavar="X",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="How freely to choose; 0 always takes the likeliest token.",
)
@click.option(
    "--top-p", metavar="X", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Least likely left out."
)
@click.option("--top-k", metavar="N", type=click.IntRange(min=0), default=0, help="Choose among this many.")
@click.option("--stop", "stops", metavar="TEXT", multiple=True, help="End an answer before this text. Repeat.")
@click.option("--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of choices.")
@click.option(
    "--batch", metavar="N", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts side by side."
)
@click.option("--raw", is_flag=True, help="Give prompts as they stand, without the model's chat template.")
@click.option(
    "--quantisation",
    type=click.Choice([each.value for each in BaseQuantization]),
    default=BaseQuantization.NONE.value,
    show_default=True,
    help="How the base's weights are kept.",
)
@click.option(
    "--precision", type=click.Choice([each.value for each in Precision]), help="Data type of the computation."
)
@click.option(
    "--static-cache/--dynamic-cache",
    default=None,
    help="Compile decoding on GPUs, with a cache of fixed size.  [default: where it pays]",
)
@click.option("--stats", is_flag=True, help="Say how fast it was, and how near to what the GPU allows.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def generate(**given: Any) -> None:  # noqa: ANN401 - one for each option
    """Let a model answer: one prompt, a file of them, or a chat; or merge an adapter into its model."""
    _require_one_task(given)
    settings = _settings(given)
    require_workload_extra()
    if given["merge"]:
        _merge(settings, given["merge"])
    elif given["chat"]:
        _chat(settings)
    else:
        _answer(settings, given)


def _require_one_task(given: dict[str, Any]) -> None:
    tasks = [f"--{name}" for name in ("prompt", "file", "chat", "merge") if given[name] not in (None, False)]
    if len(tasks) > 1:
        raise DevkitError(f"{tasks[0]} and {tasks[1]} are two tasks", "Give one of them.")
    if not tasks and sys.stdin.isatty():
        raise DevkitError("there is nothing to answer", "Give --prompt, --file or --chat.")
    if given["as_json"] and (given["chat"] or given["merge"]):
        raise DevkitError(f"{tasks[0]} prints no JSON", "Leave --json out.")


def _settings(given: dict[str, Any]) -> GenerateSettings:
    decoding = DecodingSettings(
        **{
            name: given[name]
            for name in ("tokens", "temperature", "top_p", "top_k", "seed", "stops", "static_cache", "batch")
        }
    )
    return GenerateSettings(
        model=given["model"],
        adapter=given["adapter"],
        any_base=given["any_base"],
        quantisation=BaseQuantization(given["quantisation"]),
        precision=Precision(given["precision"]) if given["precision"] else None,
        raw=given["raw"],
        decoding=validate_decoding(decoding),
    )


def _remark(line: str) -> None:
    click.echo(line, err=True)


def _show(piece: str) -> None:
    """A piece of an answer; on a terminal without what would move its cursor or change its colours."""
    is_terminal = sys.stdout.isatty()
    click.echo(_CONTROL.sub("\ufffd", piece) if is_terminal else piece, nl=False)
    sys.stdout.flush()


def _merge(settings: GenerateSettings, folder: Path) -> None:
    from devkit.workload.generation.files import find_generation_files

    found = find_generation_files(settings)
    from devkit.workload.finetune.process import configure_libraries

    # Before the libraries are imported, which say much on the way.
    configure_libraries()
    from devkit.workload.generation.program import merge_adapter_into

    merge_adapter_into(found, folder, _remark)


def _opened(settings: GenerateSettings) -> "GenerationSession":
    from devkit.workload.generation.files import find_generation_files

    # Before torch is imported: what is wrong with the files is said within a second.
    found = find_generation_files(settings)
    from devkit.workload.finetune.process import configure_libraries

    configure_libraries()
    from devkit.workload.generation.program import GenerationSession, resolve_model

    generation = GenerationSession(resolve_model(found))
    for note in generation.notes:
        _remark(note)
    return generation


def _chat(settings: GenerateSettings) -> None:
    generation = _opened(settings)
    _prepare_typing()
    from devkit.workload.generation.chat import ChatSession
    from devkit.workload.generation.tokenization import require_chat_template

    require_chat_template(generation.generator.tokenizer)
    ChatSession(generation.generator, settings.decoding, say=_show, remark=_remark).run(_read_turn)


def _prepare_typing() -> None:
    """Take whatever bytes come; on a terminal let the arrows edit a line, and a paste of many lines be one turn."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    if sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(ImportError):  # Python for Windows has none
            # Older ones know it, and leave it off.
            importlib.import_module("readline").parse_and_bind("set enable-bracketed-paste on")


def _read_turn() -> str | None:
    """What the user types next; None at the end of input. Ctrl-C takes back the line."""
    while True:
        try:
            return input("\n> " if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            _remark("\n(Ctrl-D ends the chat)")


def _answer(settings: GenerateSettings, given: dict[str, Any]) -> None:
    # Read before the model is loaded: what is wrong with the prompts shows at once.
    prompts = _prompts(given)
    generation = _opened(settings)
    is_streamed = given["file"] is None and not given["as_json"]
    if is_streamed:
        answer = generation.generate(prompts[0], _show)
        click.echo()
        if answer.finish_reason.value == "stopped":
            raise click.exceptions.Exit(exit_codes.INTERRUPTED)
    elif given["as_json"]:
        _print_document(settings, generation, prompts)
    else:
        for prompt, answer in zip(prompts, generation.generate_many(prompts), strict=False):
            click.echo(json.dumps(_answered(prompt, answer), ensure_ascii=False))
    if given["stats"]:
        _remark(f"{generation.compute_speed()}")


def _prompts(given: dict[str, Any]) -> "tuple[Prompt, ...]":
    from devkit.workload.generation.files import Prompt, read_prompts, require_prompt_text

    if given["file"] is not None:
        return read_prompts(given["file"])
    text = given["prompt"]
    return (Prompt(_piped() if text in (None, "-") else require_prompt_text(text, "--prompt")),)


def _piped() -> str:
    from devkit.workload.generation.files import require_prompt_text

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")
    return require_prompt_text(sys.stdin.read().rstrip("\n"), "standard input")


def _answered(prompt: "Prompt", answer: "Completion") -> dict[str, Any]:
    return {
        **prompt.to_document(),
        "answer": answer.text,
        "tokens": len(answer.ids),
        "ending": answer.finish_reason.value,
    }


def _print_document(settings: GenerateSettings, generation: "GenerationSession", prompts: "tuple[Prompt, ...]") -> None:
    found = [
        _answered(prompt, answer) for prompt, answer in zip(prompts, generation.generate_many(prompts), strict=True)
    ]
    document = {
        "schema": SCHEMA,
        "model": settings.model,
        "adapter": f"{settings.adapter}" if settings.adapter else None,
        "answers": found,
        "speed": generation.compute_speed().to_document(),
    }
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))
