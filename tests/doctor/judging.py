"""Cases of checks as rows: the code of a check, a machine, what the check says of it, and what the case shows.

What a check says is "passed", "skipped", or the severity of each finding ("error", "warning note"). Words that the
finding must have follow behind a colon, with bars between them: "error: does not run | sudo systemctl". "never" before a
word stands for a word that it must not have.
"""

from devkit.doctor.model import Found
from tests.doctor.projects import on
from tests.doctor.running import find_all, run_check


def list_wrong(code, rows):
    """List the cases of one check whose verdict is not the expected one, each with what the check says instead."""
    return [
        f"{name}: {wrong}"
        for own, facts, expected, name in rows
        if own == code
        for wrong in judge(code, facts, expected)
    ]


def list_wrong_projects(folder, code, rows):
    """The same for rows that have the files of a project, and behind their name the machine if it is not `healthy()`."""
    own = [row[1:] for row in rows if row[0] == code]
    return [
        f"{name}: {wrong}"
        for number, (files, expected, name, *machine) in enumerate(own)
        for wrong in judge(code, on(folder / str(number), files, *machine), expected)
    ]


def list_codes(rows):
    """List the codes of rows, each once."""
    return list(dict.fromkeys(row[0] for row in rows))


def judge(code, facts, expected):
    """Yield what is not as expected in the verdict of a check."""
    verdict = run_check(code, facts)
    findings = find_all(code, facts) if isinstance(verdict, Found) else ()
    said = " ".join(finding.severity for finding in findings) or type(verdict).__name__.lower()
    wanted, _, words = expected.partition(": ")
    if said != wanted:
        yield f"expected {wanted}, and it is {said} ({verdict})"
    text = "\n".join(line for finding in findings for line in _show(finding)) or str(verdict)
    for word in words.split(" | ") if words else ():
        if (word.removeprefix("never ") in text) is word.startswith("never "):
            yield f"expected {word!r} in:\n{text}"


def _show(finding):
    fix = finding.fix
    yield from (finding.message, finding.subject, *finding.evidence, f"confidence: {finding.confidence}")
    yield from (fix.summary, *fix.commands, f"where: {fix.where}", f"restart: {fix.restart}")
    yield from (f"{repair.kind} {'.'.join(repair.key)} {repair.value}" for repair in fix.repairs)
