"""`devkit explain`: what a check's code or a pasted error text means, and what to do about it."""

import codecs
import shutil
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from devkit.cli import exit_codes
from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.doctor.model import Check
    from devkit.doctor.signatures.model import Match

MIN_WIDTH = 40
MAX_WIDTH = 100
_CHUNK_BYTES = 1024 * 1024
_HOW_TO_ASK = 'devkit explain "could not select device driver", or devkit explain - < build.log'


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("text", nargs=-1, metavar="CODE | TEXT | -", type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def explain(ctx: click.Context, *, text: tuple[str, ...], as_json: bool) -> None:
    """Say what an error text or a check's code means, and what to do.

    CODE is a check such as CTK001, TEXT an error as you saw it, noise and all, and - reads a log from standard input.
    Needs no GPU and no network. Ends with 1 when no known error is in the text.
    """
    from devkit.doctor.explain import find_check, is_code, suggest_codes

    said = _said(text)
    if check := find_check(said):
        _show_check(check, as_json=as_json)
        ctx.exit(exit_codes.DONE)
    from devkit.doctor.known_errors import find_known_errors

    found = find_known_errors(said)
    if not found and is_code(said):
        close = suggest_codes(said)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise DevkitError(f"no check has the code {said.strip()!r}", f"{hint}`devkit doctor --list` shows all codes.")
    _show_matches(found, said, as_json=as_json)
    ctx.exit(exit_codes.DONE if found else exit_codes.ANSWER_IS_NO)


def _said(words: tuple[str, ...]) -> str:
    """What to explain. Raises DevkitError where there is nothing."""
    is_piped = words == ("-",) or (not words and not sys.stdin.isatty())
    text = read_log(sys.stdin.buffer) if is_piped else " ".join(words)
    if not text.strip():
        raise DevkitError("there is nothing to explain", f"Give a code or an error text: {_HOW_TO_ASK}")
    return text


def read_log(stream: IO[bytes]) -> str:
    """The text of a stream: of a very long one the beginning and the end, which is all that is searched."""
    from devkit.doctor.signatures.matching import HEAD, TAIL

    head = stream.read(HEAD)
    tail = b""
    is_cut = False
    while chunk := stream.read(_CHUNK_BYTES):
        tail += chunk
        if len(tail) > TAIL + _CHUNK_BYTES:
            is_cut, tail = True, tail[-TAIL:]
    if is_cut:
        click.echo("A long text: only its beginning and its end were read.", err=True)
    return _decoded(head + tail) if not is_cut else f"{_decoded(head)}\n{_decoded(tail, like=head)}"


def _decoded(data: bytes, *, like: bytes = b"") -> str:
    """Text of whatever encoding: PowerShell writes UTF-16 with a mark, all others UTF-8."""
    start = like or data
    is_wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if is_wide:
        order = "utf-16-le" if start.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"
        return data.decode(order, errors="replace")
    return data.decode("utf-8", errors="replace")


def _show_check(check: "Check", *, as_json: bool) -> None:
    from devkit.cli.output import OutputOptions, format_json, style_lines, write_output
    from devkit.doctor.explain import build_explanation_document, format_explanation

    if as_json:
        write_output(format_json(build_explanation_document(check)), OutputOptions("json", None))
    else:
        write_output(
            style_lines(format_explanation(check, width=_width()), is_plain=False), OutputOptions("text", None)
        )


def _show_matches(found: "tuple[Match, ...]", text: str, *, as_json: bool) -> None:
    from devkit.cli.output import OutputOptions, choose_marks, format_json, style_lines, write_output
    from devkit.doctor.known_errors import NOTHING_KNOWN, build_matches_document, format_matches

    printing = OutputOptions("json" if as_json else "text", None)
    if as_json:
        write_output(format_json(build_matches_document(found)), printing)
    elif found:
        write_output(
            style_lines(format_matches(found, width=_width(), marks=choose_marks(printing)), is_plain=False), printing
        )
    else:
        lines = [*NOTHING_KNOWN, *_file_hint(text)]
        write_output("".join(f"{line}\n" for line in lines), printing)


def _file_hint(text: str) -> list[str]:
    """Help for who named a file in place of its text."""
    is_name = len(text) < 256 and "\n" not in text and "\0" not in text
    if is_name and Path(text.strip()).is_file():
        return [f"  To explain what stands in the file: devkit explain - < {text.strip()}"]
    return []


def _width() -> int:
    return max(MIN_WIDTH, min(shutil.get_terminal_size().columns, MAX_WIDTH))
