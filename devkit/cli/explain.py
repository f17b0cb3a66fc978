"""`devkit explain`: the meaning of a check's code or of a pasted error text, and what to do about it."""

import codecs
import json
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.command import FILE, OUTPUT_FILE, Command, complete_codes
from devkit.errors import DevkitError, ExitCode
from devkit.reading import MAX_LOG_BYTES, is_text, read_chunks, suggest_path
from devkit.text import format_bytes, format_count, to_one_line
from devkit.whole_files import write_whole

if TYPE_CHECKING:
    from devkit.cli.output import OutputOptions
    from devkit.doctor.signatures.log_text import Excerpt
    from devkit.doctor.signatures.witnesses import Machine
    from devkit.facts.releases import Contradiction, MissingName, NameHistory, SolvedSet
    from devkit.facts.values import Unknown

MIN_WIDTH = 40
MAX_WIDTH = 100
MAX_CODE_LENGTH = 16
"""A longer text cannot be a check's code, so the modules that explain checks are not imported."""
_CHUNK_BYTES = 1024 * 1024
_LONGEST_PATH = 1024
_LOG_SUFFIXES = (".err", ".log", ".out", ".txt")
_EXAMPLES = 'devkit explain "could not select device driver", or devkit explain build.log'


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument(
    "text", nargs=-1, metavar="CODE | TEXT | FILE | -", type=click.UNPROCESSED, shell_complete=complete_codes
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--facts", "facts_file", metavar="FILE", type=FILE, help="Saved facts of the machine that the text comes from."
)
@click.option("--no-facts", is_flag=True, help="Judge only the text; do not look at this machine.")
@click.option(
    "--new",
    "case_file",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write the text and this machine's facts to FILE, without names or secrets, to attach to an issue.",
)
@click.pass_context
def explain(
    ctx: click.Context,
    *,
    text: tuple[str, ...],
    as_json: bool,
    facts_file: Path | None,
    no_facts: bool,
    case_file: Path | None,
) -> None:
    """Explain an error text or a check's code, and show what to do.

    CODE is a check such as CTK001. TEXT is an error as you saw it, including surrounding log output. FILE is a log, and
    - reads a log from standard input. Does not need a GPU. If a name is missing from a library, devkit reads the library's
    wheels; if requirements conflict, uv looks for releases that work together. Neither happens if uv or pip is set to
    work offline. Exits with 1 if the error is unknown.
    """
    if facts_file and no_facts:
        raise DevkitError("--facts and --no-facts contradict each other", "Remove one of them.")
    from devkit.cli.output import OutputOptions, choose_marks, format_json, style_lines, write_output

    is_piped = text == ("-",) or (not text and not sys.stdin.isatty())
    log = None if is_piped else _find_log(text)
    excerpts: tuple[Excerpt, ...] = ()
    if is_piped:
        excerpts = read_log(iter(partial(sys.stdin.buffer.read, _CHUNK_BYTES), b""), "standard input")
    elif log:
        try:
            excerpts = read_log(read_chunks(log, sys.maxsize), f"{log}")
        except OSError as problem:
            raise DevkitError(
                f"cannot read {log}: {problem.strerror}", "Specify a file that you can read."
            ) from problem
    error = "\n".join(excerpt.text for excerpt in excerpts) if is_piped or log else " ".join(text)
    if not error.strip():
        empty = "standard input is empty" if is_piped else f"{log} is empty" if log else "the text is empty"
        hint = f"Write all the output of the command to it: COMMAND > {log} 2>&1" if log else ""
        raise DevkitError(f"{empty}: nothing to explain", hint or f"Give a code or an error text: {_EXAMPLES}")
    if case_file:
        write_case(case_file, error, facts_file, no_facts=no_facts)
        ctx.exit(ExitCode.DONE)
    options = OutputOptions("json" if as_json else "text", None)
    width = max(MIN_WIDTH, min(shutil.get_terminal_size().columns, MAX_WIDTH))
    if len(error.strip()) <= MAX_CODE_LENGTH:
        _explain_code(ctx, error, options, width=width)
    from devkit.doctor.checks.loader import build_unknown_code_error
    from devkit.doctor.explain import is_code
    from devkit.doctor.known_errors import explain_text, format_text_answer
    from devkit.doctor.report.documents import build_matches_document

    machine = _choose_machine(facts_file, no_facts=no_facts)
    answer = explain_text(excerpts or error, machine=machine, read_history=_read_history, solve=_solve)
    if not answer.matches and len(error.strip()) <= MAX_CODE_LENGTH and is_code(error):
        raise build_unknown_code_error(error)
    if as_json:
        document = build_matches_document(answer.matches, answer.nearest, answer.unknown, answer.not_read)
        write_output(format_json(document), options)
    else:
        lines = format_text_answer(answer, width=width, marks=choose_marks(options))
        write_output(style_lines(lines, is_plain=False), options)
    ctx.exit(ExitCode.DONE if answer.matches or answer.is_healthy else ExitCode.ANSWER_IS_NO)


def _read_history(missing: "MissingName") -> "NameHistory | Unknown":
    from devkit.probe.release_names import read_history

    return read_history(missing)


def _solve(contradiction: "Contradiction") -> "SolvedSet | Unknown":
    from devkit.probe.requirement_sets import solve_contradiction

    return solve_contradiction(contradiction)


def _find_log(words: tuple[str, ...]) -> Path | None:
    """Return the file that the only argument names, None where it is a code or a text. Raises DevkitError."""
    if len(words) > 1 and all(map(os.path.isfile, words)):
        logs = [each for each in words if not each.endswith(".json")] or words[:1]
        facts = [word for each in words if each not in logs for word in ("--facts", each)]
        hint = shlex.join(("devkit", "explain", *facts[:2], *logs[:1]))
        raise DevkitError(f"{len(words)} files were given, but devkit explains one at a time", hint)
    if len(words) != 1 or len(words[0]) > _LONGEST_PATH or "\n" in words[0] or "\0" in words[0]:
        return None
    path = Path(words[0])
    try:
        mode = path.stat().st_mode
    except OSError as problem:
        if path.suffix in _LOG_SUFFIXES and " " not in words[0]:
            hint = suggest_path(path, f"Specify an existing file, or give a code or an error text: {_EXAMPLES}")
            raise DevkitError(f"cannot read {path}: {problem.strerror}", hint) from problem
        return None
    if words[0] and stat.S_ISDIR(mode):
        raise DevkitError(f"{path} is a folder", f"Specify a log in it, or give a code or an error text: {_EXAMPLES}")
    # A pipe is what the shell makes of <(journalctl -k).
    is_file = stat.S_ISREG(mode) or stat.S_ISFIFO(mode)
    if is_file and len(words[0]) <= MAX_CODE_LENGTH:
        from devkit.doctor.explain import find_check

        is_file = find_check(words[0]) is None
    return path if is_file else None


def _choose_machine(facts_file: Path | None, *, no_facts: bool) -> "Machine | None":
    """Return the machine to ask about the causes: the one of saved facts, or this one at a glance."""
    if no_facts:
        return None
    from devkit.doctor.signatures.witnesses import describe_circumstances, describe_facts

    if facts_file:
        from devkit.probe.saved_facts import load_saved_facts

        return describe_facts(load_saved_facts((facts_file,)))
    from devkit.probe.circumstances import read_circumstances
    from devkit.probe.host import LocalHost

    return describe_circumstances(read_circumstances(LocalHost()))


def write_case(path: Path, text: str, facts_file: Path | None, *, no_facts: bool) -> None:
    """Write a text, its facts, and an empty field for its fix, without names and secrets. Raises DevkitError."""
    from devkit.cli.facts import read_this_machine
    from devkit.cli.output import format_json
    from devkit.facts.model import format_facts
    from devkit.facts.secrets import Redaction, build_redaction, count_removed, find_doubtful_lines, redact_facts
    from devkit.probe.saved_facts import load_saved_facts

    redaction, facts = Redaction(()), None
    if facts_file:
        facts = load_saved_facts((facts_file,))
    elif not no_facts:
        facts = read_this_machine(Path())
    if facts is not None:
        redaction = build_redaction(facts)
    cleaned = redaction.redact_text(text)
    case = {
        "url": "",
        "date": "",
        "area": "",
        "text": cleaned,
        "cause": "",
        "fix": "",
        "facts": None if facts is None else json.loads(format_facts(redact_facts(facts))),
    }
    removed = format_count(count_removed(text, cleaned), "place")
    click.echo(f"Names and secrets were removed from the text at {removed}.", err=True)
    for line in find_doubtful_lines(cleaned):
        click.echo(f"Check this line, which may contain another: {to_one_line(line)}", err=True)
    write_whole(path, format_json(case).encode(errors="backslashreplace"))
    click.echo(
        f"Written to {path}. Fill in the cause and the fix, review the file, and attach it to an issue.", err=True
    )


def _explain_code(ctx: click.Context, text: str, options: "OutputOptions", *, width: int) -> None:
    """Explain the check whose code `text` is, and exit; return if it is not a code."""
    from devkit.cli.output import format_json, style_lines, write_output
    from devkit.doctor.explain import find_check, format_explanation
    from devkit.doctor.report.documents import build_explanation_document

    if check := find_check(text):
        lines = format_explanation(check, width=width)
        document = build_explanation_document(check)
        is_json = options.style == "json"
        write_output(format_json(document) if is_json else style_lines(lines, is_plain=False), options)
        ctx.exit(ExitCode.DONE)


_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""The first bytes of a compressed file -> the program that reads it."""


def read_log(chunks: Iterator[bytes], name: str = "the log") -> "tuple[Excerpt, ...]":
    """Read a log; of a very long one the beginning, the end, and the lines of errors between. Raises DevkitError for an image."""
    from devkit.doctor.signatures.log_text import read_excerpts

    excerpts = read_excerpts(_read_utf8(chunks, name))
    if len(excerpts) > 1:
        click.echo(
            "The text is long: devkit read only its beginning, its end and the error lines between them.", err=True
        )
    return excerpts


def _read_utf8(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Read chunks as UTF-8. PowerShell writes UTF-16 with a byte order mark."""
    chunk = next(chunks, b"")
    if not chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not is_text(chunk):
        if program := next((each for magic, each in _COMPRESSED.items() if chunk.startswith(magic)), ""):
            raise DevkitError(f"{name} is compressed", f"{program} -dc {shlex.quote(name)} | devkit explain -")
        hint = "Paste the error's text, or save the command's output: COMMAND > train.log 2>&1"
        raise DevkitError(f"{name} is not text", hint)
    encoding = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(chunk[:2])
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace") if encoding else None
    count = 0
    while chunk:
        yield decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk
        count += len(chunk)
        if count > MAX_LOG_BYTES:
            click.echo(f"Only the first {format_bytes(MAX_LOG_BYTES)} were read.", err=True)
            return
        chunk = next(chunks, b"")
