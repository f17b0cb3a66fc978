"""`devkit compare`: what differs between machines, and which one is the odd one out."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exits
from devkit.cli.printing import Printing, document_text, marks_of, painted, put
from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.cli.compare_files import Found, Place, Reports
    from devkit.doctor.comparing.comparison import Comparison, Group
    from devkit.doctor.comparing.gathered import Gathering

_HOW_TO_SAVE = (
    "Save one on each machine: devkit doctor --save-facts NODE.json, or devkit verify --here --output NODE.json"
)
_HOW_TO_GO_ON = f"{_HOW_TO_SAVE}\nWith --keep-going the others are compared without it."


@click.command()
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True)
@click.option(
    "--all", "keeps_all", is_flag=True, help="Show what matters to no check, too: times, serials, heat, space."
)
@click.option("--keep-going", is_flag=True, help="Compare the others where a report cannot be read; ends with 1 then.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the answer to FILE instead of printing it.",
)
@click.pass_context
def compare(
    ctx: click.Context,
    *,
    reports: tuple[str, ...],
    keeps_all: bool,
    keep_going: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Say what differs between machines, and which one is the odd one out.

    REPORT is a file of saved facts, of a report of doctor or verify, of such reports one a line, a folder of files, or
    - for standard input; packed with gzip or not. Ends with 0 when nothing differs that matters, and with 1 when
    something does.
    """
    from devkit.cli.compare_files import Reports
    from devkit.doctor.comparing.document import comparison_document
    from devkit.doctor.comparing.text import comparison_text

    with Reports(reports) as found:
        comparison = _compared(found, keeps_all=keeps_all, keep_going=keep_going)
    printing = Printing("json" if as_json else "text", output, is_verbose=keeps_all)
    if as_json:
        text = document_text(comparison_document(comparison))
    else:
        width = shutil.get_terminal_size().columns
        lines = comparison_text(comparison, width=width, marks=marks_of(printing), shows_all=keeps_all)
        text = painted(lines, is_plain=output is not None)
    put(text, printing)
    ctx.exit(exits.ANSWER_IS_NO if comparison.differs else exits.DONE)


def _compared(reports: "Reports", *, keeps_all: bool, keep_going: bool) -> "Comparison":
    from devkit.doctor.comparing.comparison import Comparison, Unreadable
    from devkit.doctor.comparing.gathered import Gathering

    gathering = Gathering(keeps_all=keeps_all)
    places: list[Place] = []
    names: dict[str, int] = {}
    unreadable: list[Unreadable] = []
    for found in reports:
        problem = found.problem or _added(gathering, found, names)
        if not problem:
            places.append(found.place)
        elif keep_going:
            unreadable.append(Unreadable(found.name, problem))
        else:
            raise DevkitError(f"{found.name} cannot be compared: {problem}", _HOW_TO_GO_ON)
    _require_two_of_a_kind(gathering)

    return Comparison(_finished(gathering, reports, places), tuple(unreadable))


def _finished(gathering: "Gathering", reports: "Reports", places: "Sequence[Place]") -> "tuple[Group, ...]":
    from devkit.doctor.comparing.kinds import WrongReport

    def reread(numbers: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        number_of = {places[number]: number for number in numbers}
        yield from ((number_of[place], document) for place, document in reports.again(list(number_of)))

    try:
        return gathering.finish(reread)
    except WrongReport as error:
        raise DevkitError(f"a report cannot be compared: {error}", _HOW_TO_SAVE) from error


def _added(gathering: "Gathering", found: "Found", names: dict[str, int]) -> str:
    """Count a document; why it cannot be, "" when it is. A node's second report gets a name of its own."""
    from devkit.doctor.comparing.kinds import WrongReport

    count = names.get(found.name, 0) + 1
    name = found.name if count == 1 else f"{found.name} #{count}"
    try:
        gathering.add(name, found.document, is_changed=_was_changed(found.document))
    except WrongReport as error:
        return str(error)
    names[found.name] = count
    return ""


def _was_changed(document: object) -> bool:
    """Whether a report has a hash that is not its own."""
    from devkit.verify.report import HASH, digest_of

    return isinstance(document, Mapping) and HASH in document and document[HASH] != digest_of(document)


def _require_two_of_a_kind(gathering: "Gathering") -> None:
    counts = gathering.kinds
    if any(count > 1 for count in counts.values()):
        return
    said = ", ".join(f"{count} of {kind.value}" for kind, count in counts.items()) or "none that can be read"
    raise DevkitError(
        f"there are no two reports of one kind: {said}",
        "Facts are compared with facts, reports with reports of the same.",
    )
