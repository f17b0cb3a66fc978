"""`devkit fleet`: diagnose many machines over ssh, compare them, and write monitoring files for other tools."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.command import FOLDER, OUTPUT_FOLDER, Command, PathType
from devkit.cli.facts import DEFAULT_TIMEOUT_S
from devkit.cli.output import OutputOptions, choose_marks, format_json, style_lines
from devkit.cli.terminal import show_status
from devkit.errors import DevkitError, ExitCode
from devkit.formats.jsonc import format_json_error
from devkit.reading import MAX_CONFIG_BYTES, MAX_DOCUMENT_BYTES, read_bounded, read_named_file, suggest_path
from devkit.render.files import resolve_inside
from devkit.text import escape_controls, format_count, join_some, join_words, to_one_line, wrap_text
from devkit.whole_files import write_whole

SCHEMA = "devkit.fleet/1"
_NO_ANSWER = "no-answer"
_VERDICTS = ("problems", _NO_ANSWER, "incomplete", "warnings", "no-gpu", "healthy")
"""The worst first."""


@click.group()
def fleet() -> None:
    """Diagnose many machines over ssh, compare them, and write monitoring files for other tools."""


@dataclass(frozen=True)
class _Answer:
    """What one machine answered. `problem` says why there is no `document`."""

    host: str
    document: dict[str, Any] | None = None
    problem: str = ""

    @property
    def verdict(self) -> str:
        return _NO_ANSWER if self.document is None else str(self.document["verdict"])

    def find_roots(self) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
        """Yield code, message, fix and its commands of each root cause that is more than a note."""
        from devkit.doctor.comparison import find_report_roots

        for code, message, fix in find_report_roots(self.document) if self.document else ():
            yield code, message, str(fix["summary"]), tuple(str(line) for line in fix["commands"])


@fleet.command("doctor", cls=Command, short_help="Run devkit doctor on each HOST over SSH, in parallel.")
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@click.option(
    "--hosts-file",
    metavar="FILE",
    type=PathType(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="File with one host per line; - for standard input, for example from scontrol show hostnames.",
)
@click.option(
    "--reports",
    metavar="DIR",
    type=FOLDER,
    help="Read saved reports of devkit doctor --json without connecting to a machine.",
)
@click.option("--ssh", default="ssh", show_default=True, help="The ssh command, with options: 'ssh -p 2222 -l admin'.")
@click.option("--command", default="devkit", show_default=True, help="The devkit command on those machines.")
@click.option(
    "--parallel", type=click.IntRange(1, 1000), default=32, show_default=True, help="Number of machines at a time."
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=60,
    show_default=True,
    help="Time limit for each machine, including the connection.",
)
@click.option(
    "--save", metavar="DIR", type=OUTPUT_FOLDER, help="Save each report as DIR/HOST.json, for devkit fleet compare."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def fleet_doctor(
    ctx: click.Context,
    *,
    hosts: tuple[str, ...],
    hosts_file: Path | None,
    reports: Path | None,
    ssh: str,
    command: str,
    parallel: int,
    timeout: float,
    save: Path | None,
    as_json: bool,
) -> None:
    """Run devkit doctor on every HOST over SSH in parallel, and report each shared finding only once.

    Install devkit on each of them first. ssh must not prompt: use keys or an agent. The exit code is 1 if a machine has
    problems or does not answer.
    """
    names = tuple(dict.fromkeys((*_refuse_lists(hosts), *_read_hosts(hosts_file))))
    if bool(names) == bool(reports):
        raise DevkitError(
            "no host given" if reports is None else "--reports does not connect to hosts, but hosts were given",
            "List hosts (devkit fleet doctor gpu01 gpu02, or --hosts-file FILE) or reports (--reports DIR).",
        )
    connect = [*shlex.split(ssh), "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(timeout / 4))}"]
    # By a variable, because a devkit of an older release, which tries nothing, does not know the option.
    remote = f"export DEVKIT_TRIAL=0; {command} doctor --json --timeout {max(0.1, min(DEFAULT_TIMEOUT_S * 4, timeout / 2)):g}"
    if save:
        save.mkdir(parents=True, exist_ok=True)

    def ask(host: str) -> _Answer:
        # Behind two dashes a host is never taken for an option.
        answer = _ask(host, [*connect, "--", host, remote], timeout_s=timeout)
        if save and answer.document is not None:
            path = resolve_inside(save, f"{host.replace('/', '_')}.json")
            write_whole(path, json.dumps(answer.document).encode())
        return answer

    with ThreadPoolExecutor(parallel) as pool:
        found = _read_reports(reports) if reports else pool.map(ask, names)
        answers = sorted(found, key=lambda each: (_VERDICTS.index(each.verdict), each.host))
    if as_json:
        rows = [
            {
                "host": each.host,
                "verdict": each.verdict,
                "problem": each.problem,
                "root_causes": [{"code": code, "message": message} for code, message, *_ in each.find_roots()],
            }
            for each in answers
        ]
        click.echo(format_json({"schema": SCHEMA, "hosts": rows}), nl=False)
    else:
        for line in _format_answers(answers, width=shutil.get_terminal_size().columns):
            click.echo(line)
    is_bad = any(each.verdict in ("problems", _NO_ANSWER) for each in answers)
    ctx.exit(ExitCode.ANSWER_IS_NO if is_bad else ExitCode.DONE)


def _read_hosts(file: Path | None) -> Iterator[str]:
    if file is None:
        return
    if str(file) == "-":
        text = sys.stdin.read(MAX_CONFIG_BYTES)
    else:
        text = read_named_file(file, MAX_CONFIG_BYTES, "Specify a file with one host per line.").decode(
            errors="replace"
        )
    for number, line in enumerate(text.splitlines(), 1):
        # An inventory of Ansible has headings and addresses, a host file of MPI or DeepSpeed slots.
        line = re.sub(r"^\s*\[[a-z_][\w-]*\]\s*$|^.*\bansible_host=", "", line.partition("#")[0], flags=re.IGNORECASE)
        for host in line.split()[:1]:
            if not re.fullmatch(r"(ssh://)?[\w.@:%\[\]-]*\w", _refuse_lists([host])[0]):
                raise DevkitError(f"{file}:{number}: {host} is not a host", "Write one host per line.")
            yield host


def _refuse_lists(hosts: Sequence[str]) -> Sequence[str]:
    """Return the hosts. Raises DevkitError for several in one word, which Slurm writes as gpu[01-04]."""
    for host in hosts:
        if re.search(r"\w\[", host):
            hint = f"scontrol show hostnames {shlex.quote(host)} | devkit fleet doctor --hosts-file -"
            raise DevkitError(f"{host} is a list of hosts", hint)
        if "," in host:
            names = filter(None, ",".join(hosts).split(","))
            hint = shlex.join(("devkit", "fleet", "doctor", *names))
            raise DevkitError(f"{host} has a comma, but spaces separate hosts", hint)
    return hosts


def _ask(host: str, words: Sequence[str], *, timeout_s: float) -> _Answer:
    from devkit.probe.host import NOT_FOUND, TIMED_OUT, run_program

    done = run_program(words, deadline_s=timeout_s)
    said = escape_controls(to_one_line(done.err))[-300:]
    if done.code == TIMED_OUT:
        return _Answer(host, problem=f"no answer within {timeout_s:g} s: the machine hangs or is down")
    if done.code == NOT_FOUND:
        return _Answer(host, problem=f"devkit is not installed there, or ssh is missing here: {said}")
    return _parse_report(host, done.out, problem=said or f"the command exited with {done.code} and printed no report")


def _read_reports(folder: Path) -> Iterator[_Answer]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DevkitError(f"{folder} contains no reports", "Specify the --save folder.")
    for file in files:
        try:
            text = read_bounded(file, MAX_DOCUMENT_BYTES)
        except OSError as error:
            yield _Answer(file.stem, problem=f"the file cannot be read: {error.strerror}")
        else:
            yield _parse_report(file.stem, text, problem="the file does not contain a devkit doctor report")


def _parse_report(host: str, text: str | bytes, *, problem: str) -> _Answer:
    """Return the report of a host, or `problem` where the text is none."""
    try:
        document = json.loads(text)
        if document["schema"] != "devkit.doctor/1" or document["verdict"] not in _VERDICTS:
            raise ValueError("another document")
        answer = _Answer(host, document)
        list(answer.find_roots())
    except (ValueError, KeyError, TypeError, RecursionError):
        return _Answer(host, problem=problem)
    return answer


def _format_answers(answers: Sequence[_Answer], *, width: int) -> Iterator[str]:
    counts = [(verdict, sum(each.verdict == verdict for each in answers)) for verdict in _VERDICTS]
    summary = ", ".join(f"{count} {verdict.replace('-', ' ')}" for verdict, count in counts if count)
    yield f"{format_count(len(answers), 'host')}: {summary}"
    found: dict[tuple[str, str], tuple[list[str], str, tuple[str, ...]]] = {}
    for answer in answers:
        for code, message, advice, commands in answer.find_roots():
            found.setdefault((code, message), ([], advice, commands))[0].append(answer.host)
    for (code, message), (hosts, advice, commands) in sorted(found.items(), key=lambda each: -len(each[1][0])):
        yield ""
        yield from _wrap(f"{code} on {join_some(hosts)}: {message}", width, "  ")
        # Its own text: the machine, or the author of a saved report, may name any command.
        yield from _wrap(f"    according to the report of {hosts[0]}: {advice}", width, "    ")
        yield from ("    Review that report's commands before you run them:",) if commands else ()
        yield from (f"      {escape_controls(line)}" for line in commands)
    problems: dict[str, list[str]] = {}
    for answer in answers:
        if answer.problem:
            problems.setdefault(answer.problem, []).append(answer.host)
    for problem, hosts in problems.items():
        yield ""
        yield from _wrap(f"no answer from {join_some(hosts)}: {problem}", width, "  ")


def _wrap(text: str, width: int, indent: str) -> Iterable[str]:
    return wrap_text(escape_controls(text), width=width, hanging=indent).splitlines()


@fleet.command("files", short_help="Write the monitoring files for a fleet.")
@click.argument("folder", metavar="[DIR]", default="fleet", type=OUTPUT_FOLDER)
@click.option("--command", default="devkit", show_default=True, help="The devkit command on the machines.")
@click.option("--force", is_flag=True, help="Replace existing files.")
def fleet_files(folder: Path, *, command: str, force: bool) -> None:
    """Write monitoring files for a fleet: node-problem-detector, Slurm, Prometheus, Grafana.

    Each file begins with its purpose and the place to install it.
    """
    from devkit.render.templates import find_templates

    found = sorted((find_templates() / "fleet").iterdir(), key=lambda each: each.name)
    made = {each.name: each.read_text(encoding="utf-8") for each in found}
    if taken := [name for name in made if (folder / name).exists() and not force]:
        raise DevkitError(
            f"{folder} already contains {join_words(taken)}", "Choose another folder, or replace them: --force"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        path = folder / name
        write_whole(path, text.replace("@COMMAND@", command).encode())
        if name.endswith(".sh"):
            path.chmod(0o755)
        click.echo(path)


if TYPE_CHECKING:
    from devkit.doctor.comparison import Difference, Group, Node
    from devkit.doctor.report.lines import Line

MAX_NAMES = 4
MAX_ROWS = 20
"""Rows of a kind that the text shows; JSON has all of them."""


@fleet.command()
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
