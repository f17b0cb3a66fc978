"""`devkit fleet compare`: what differs between machines, which ones deviate, and which check it matters to."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.output import OutputOptions, choose_marks, format_json, style_lines
from devkit.cli.terminal import show_status
from devkit.errors import DevkitError, ExitCode
from devkit.formats.jsonc import format_json_error
from devkit.reading import MAX_DOCUMENT_BYTES, read_bounded, suggest_path
from devkit.text import format_count, join_some, join_words, to_one_line

if TYPE_CHECKING:
    from devkit.doctor.comparison import Difference, Group, Node
    from devkit.doctor.report.lines import Line

MAX_NAMES = 4
MAX_ROWS = 20
"""Rows of a kind that the text shows; JSON has all of them."""


@click.command()
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def compare(ctx: click.Context, *, reports: tuple[str, ...], as_json: bool) -> None:
    """Show which machines deviate from the majority, and how.

    REPORT is a file of saved facts (devkit doctor --save-facts), a JSON report of doctor or verify, or a folder of
    such files, each named for its machine. Exits with 1 if something differs or a file cannot be read.
    """
    from devkit.doctor.comparison import compare_nodes

    with show_status("comparing the reports"):
        nodes, unreadable = _read_nodes(reports)
        groups = compare_nodes(nodes)
    differs = bool(unreadable) or any(group.odd or group.without_majority for group in groups)
    if as_json:
        document = {
            "schema": "devkit.compare/1",
            "verdict": "differ" if differs else "alike",
            "nodes": len(nodes),
            "groups": [asdict(group) for group in groups],
            "unreadable": [{"name": name, "problem": problem} for name, problem in unreadable.items()],
        }
        click.echo(format_json(document), nl=False)
    else:
        lines = list(_format_groups(groups))
        for name, problem in unreadable.items():
            lines += _fold(f"not compared: {name}: {problem}", tone="bad")
        click.echo(style_lines(lines, is_plain=False), nl=False)
    ctx.exit(ExitCode.ANSWER_IS_NO if differs else ExitCode.DONE)


def _read_nodes(arguments: Sequence[str]) -> "tuple[list[Node], dict[str, str]]":
    """Return the nodes, and why a file is none. Raises DevkitError where no two are of one kind."""
    from devkit.doctor.comparison import InvalidReport, read_node

    files: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        files += sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not path.exists() or not files:
            lacks = "contains no *.json file" if path.exists() else "does not exist"
            raise DevkitError(
                f"{argument} {lacks}", suggest_path(path, "Specify reports, or folders with *.json files.")
            )
    stems = [path.stem for path in files]
    nodes: list[Node] = []
    unreadable: dict[str, str] = {}
    for path in dict.fromkeys(files):
        name = path.stem if stems.count(path.stem) == 1 else str(path)
        try:
            nodes.append(read_node(name, json.loads(read_bounded(path, MAX_DOCUMENT_BYTES))))
        except (OSError, InvalidReport) as error:
            unreadable[name] = getattr(error, "strerror", None) or str(error)
        except (ValueError, RecursionError) as error:
            unreadable[name] = f"not JSON: {format_json_error(error)}"
    kinds = [node.kind for node in nodes]
    if len(kinds) == len(set(kinds)):
        found = [f"{name}: {problem}" for name, problem in list(unreadable.items())[:MAX_NAMES]] or kinds
        raise DevkitError(
            f"expected at least two reports of the same kind: {join_words(found)}",
            "Save facts on each machine: devkit doctor --save-facts NODE.json",
        )
    return nodes, unreadable


def _fold(text: str, indent: int = 0, tone: str = "plain") -> "list[Line]":
    """Fold a line to the terminal, with nothing in it that a terminal would act on: names come from files."""
    from devkit.doctor.report.lines import MAX_WIDTH, MIN_WIDTH, Tone, fold_lines

    width = max(MIN_WIDTH, min(shutil.get_terminal_size().columns, MAX_WIDTH))
    return fold_lines(to_one_line(text), width, indent=" " * indent, tone=Tone(tone))


def _format_groups(groups: "Sequence[Group]") -> "Iterator[Line]":
    from devkit.doctor.comparison import format_value
    from devkit.doctor.report.lines import Line

    marks = choose_marks(OutputOptions("text", None))
    odd = {name for group in groups for outlier in group.odd for name in outlier.nodes}
    size = format_count(sum(group.nodes for group in groups), "machine")
    yield from _fold(f"{size} compared, {len(odd) or 'none'} with a difference from the majority")
    for group in groups:
        yield Line("")
        yield from _fold(f"{group.of or group.kind}: {format_count(group.nodes, 'machine')}")
        for outlier in group.odd[:MAX_ROWS]:
            mark, tone = (marks.error, "bad") if outlier.matters == "decides" else (marks.warning, "warn")
            yield from _fold(f"{mark} {join_some(outlier.nodes, MAX_NAMES)}", 2, tone)
            for finding in outlier.findings:
                yield from _fold(f"{finding.code}: {finding.message}", 6)
            # A driver's version is read in many places.
            fields: dict[str, list[str]] = {}
            for each in outlier.differences:
                fields.setdefault(_describe(each), []).append(each.field)
            for text, names in list(fields.items())[:MAX_ROWS]:
                yield from _fold(f"{', '.join(names)}: {text}", 6)
            if (left := len(fields) - MAX_ROWS) > 0:
                yield from _fold(f"and {format_count(left, 'more difference')} (--json)", 6, "quiet")
        for split in group.without_majority[:MAX_ROWS]:
            yield from _fold(f"{marks.warning} {split.field}: no majority", 2, "warn")
            for value in split.values[:MAX_NAMES]:
                shown = format_value(value.value, split.field)
                yield from _fold(f"{shown} on {value.nodes}, such as {join_some(value.such_as, MAX_NAMES)}", 6)
        if (left := max(0, len(group.odd) - MAX_ROWS) + max(0, len(group.without_majority) - MAX_ROWS)) > 0:
            yield from _fold(f"and {left} more (--json)", 2, "quiet")


def _describe(each: "Difference") -> str:
    from devkit.doctor.comparison import format_value, list_missing

    others = "the other" if each.of == 2 else f"{each.agreeing} of {each.of}"
    lacks, more = list_missing(each.value, each.usual), list_missing(each.usual, each.value)
    if lacks or more:
        words = [*([f"lacks {lacks}"] if lacks else []), *([f"also has {more}"] if more else [])]
        said = f"{' and '.join(words)}, unlike {others}"
    else:
        value, usual = format_value(each.value, each.field), format_value(each.usual, each.field)
        said = f"{value} instead of {usual} as on {others}"
    return f"{said}; causes {join_words(each.settles)}" if each.settles else said
