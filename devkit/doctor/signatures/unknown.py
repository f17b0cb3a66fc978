"""What a text says itself where nothing in it is known: its first error, who raised it, versions, advice, a search line."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from devkit.doctor.signatures.frames import list_packages
from devkit.doctor.signatures.log_text import Excerpt, Words
from devkit.doctor.signatures.model import Consequence, Match
from devkit.doctor.signatures.text_facts import TextFacts
from devkit.facts.secrets import redact_tokens

MAX_LINE = 300
MAX_ADVICE = 3
MAX_VERSIONS = 12
_MAX_LINES = 20_000
_LAST_LINES = 6
_MIN_LINES = 3
"""Lines that a text needs before it counts as a log that shows no failure."""
_MAX_SEARCH_WORDS = 14
_MAX_SEARCHED = 4096
"""Characters of an error that its search words are taken from."""
_MIN_WORDS = 3

_ERROR = re.compile(
    r"(?:^|[\s(\[])(?:[\w.]{1,80}\.)?[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Warning\b.{0,80}error)\b(?:[:(]|$)"
    r"|\b(?:fatal|panic)(?: error)?:|\bfatal\s+:|\bERROR\b|NCCL WARN|\b[Ee]rror(?: \w{1,20})?[:=\]]|^error\b|CMake Error|\bE: |\[E\d{3}"
    r"|\b(?:[Ff]ailed|FAILED|[Ff]ailure|[Cc]annot|[Cc]ould not|[Cc]ouldn't|[Uu]nable to|[Aa]borted|Killed|core dumped)\b"
    r"|[Pp]ermission denied|[Nn]o such file|command not found|[Nn]o space left|[Uu]ndefined (?:symbol|reference)|[Dd]enied:"
    r"|\b(?:not recognized|refused|timed out|terminated|CrashLoopBackOff|BackOff|OOMKilled|ImagePullBackOff|invalid)\b"
    r"|\breturn(?:s|ed) -(?:\d|E[A-Z])|\*\*\* (?:.{1,160} Error \d|.{1,80}Stop\.)"
)
CHAINED = ("the above exception was the direct cause of", "during handling of the above exception, another")
"""Words between the exceptions of a chained traceback: the first is the cause."""
_LEVEL = re.compile(r"\W*(?:ERROR|FATAL|CRITICAL|PANIC)\b")
"""The level of a line of a log, which counts before the words of what it quotes."""
_EXCEPTION = re.compile(r"(?:^|\s)((?:[\w.]{1,80}\.)?[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit)): ?(.*)")
_RAISED = re.compile(
    r"(?:[A-Za-z_]\w{0,40}\.){0,8}_{0,2}[A-Z]\w{1,60}(?:: \S|$)|(?:[A-Za-z_]\w{0,40}\.){1,8}[a-z]\w{1,60}: \S"
)
"""The line below the frames of a traceback: the exception's class, whatever its name, and its message."""
STATUS = re.compile(
    r"^FAILED: |^ninja: build stopped|^(?:g?make: )?\*\*\* \[|\bCalledProcessError\b|: Error compiling objects for"
    r"|^error: (?:subprocess-exited|metadata-generation|command '.{1,300}' failed)|did not run successfully\.$|^\W*exit code: \d"
    r"|\bCommand failed: |did not complete successfully: exit code|failed with exit code \d+\. Skipping|^Exit code \d"
    r"|^ERROR ~ Error exec|terminated with an error exit|^Command error:$"
)
"""A line by which the driver of a build or a workflow reports a failure of a program: the program's own line says why."""
_TRACEBACK = "Traceback (most recent call last)"
_NO_ERROR = re.compile(
    r"\b(?:0|no|zero|without) (?:errors?|failed|failures?)\b|\b(?:errors?|failed|failures?)[ =:]{1,3}0\b|error_?(?:rate|bars?)\b"
    r"|^File \"|Persistence-M|ECC|[Uu]nable to find image '[^']{1,200}' locally"
)
_MILDER = re.compile(
    r"^[Ww]arning: |\b(?:Future|Deprecation|User|Resource|Pending\w*)Warning\b|(?<!NCCL )\bWARN(?:ING)?\b|\b(?:INFO|DEBUG)\b"
)
ADVICE = re.compile(
    r"\b(?:please|try (?:to|setting|using|installing|running|again with|increasing|reducing)|make sure"
    r"|you (?:can|need to|should|must|may want)|consider|instead of|(?:hint|help|suggestion|tip|solution): )"
    r"|(?:^|[.;:,] )(?:[Ss]et|[Uu]se|[Pp]ass|[Ii]nstall|[Uu]pgrade|[Dd]owngrade|[Uu]pdate|[Rr]einstall|[Rr]un|[Ss]pecify|[Ii]ncrease"
    r"|[Rr]educe|[Dd]ecrease|[Ee]nable|[Dd]isable) [`'\"\w-]",
    re.IGNORECASE,
)
_ENDED = re.compile(
    r"\bexit(?:ed)?(?: with)? (?:code|status)[:= ]{0,3}0\b|\bCOMPLETED\b|\b(?:completed|finished|exited|done)(?: \w{1,20})? successfully\b"
    r"|\b(?:training|run|job|build|evaluation|test)s? (?:is |has )?(?:completed?|finished|done|succeeded)\b"
    r"|\bsaved? (?:the )?(?:model|checkpoint|weights|adapter)|-> saved\b|'train_runtime'|\bBUILD SUCCESS"
    r"|\b\d+ passed\b(?!.*\bfailed\b)|\bInit COMPLETE\b",
    re.IGNORECASE,
)
"""Words of a program that ended as it should."""
_DONE = re.compile(
    r"\bSucceeded\b|\bSuccessfully (?:installed|built|tagged|created|pulled)\b|\bBuilt target\b|\bApplication startup complete\b"
    r"|\b200 OK\b|\bis listening on\b|\b100%\||\bDONE \d|\b(?:loss|epoch|step|iter(?:ation)?|accuracy|lr)\b\W{1,4}\d|\d(?:it/s|s/it)\b",
    re.IGNORECASE,
)
"""Words of a program that goes on, or of a step that ended well."""
_MILD_LINE = re.compile(r"\bwarn(?:ing)?\b|\w{3}Warning\b", re.IGNORECASE)
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`'\"])|;\s+")
_NOISE = re.compile(
    r"0x[0-9a-fA-F]{3,}|(?:/[\w.@+-]+){2,}/?|[A-Z]:\\\S+|https?://\S+|\b[0-9a-f]{12,}\b|\b\d{4}-\d\d-\d\d\S*"
    r"|['\"`,()\[\]{}<>|=]+"
)


_NEXT = (
    "devkit doctor  # checks the machine where it happened",
    "devkit explain --new case.json FILE  # the text and the machine's facts, without names, for an issue",
)


@dataclass(frozen=True)
class Unknown:
    """The content of a text without a known error.

    `package` is that whose code raised the error, `caller` the one that called it; `versions` are of the packages and of
    driver, CUDA and Python; `search` is a line for a search engine, `reports` are lines that only say that something failed.
    """

    is_healthy: bool
    first_error: Excerpt | None = None
    package: str = ""
    caller: str = ""
    file: str = ""
    versions: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    search: str = ""
    commands: tuple[str, ...] = ()
    reports: tuple[Consequence, ...] = ()


def describe_unknown(
    words: Words,
    facts: TextFacts,
    *,
    reports: tuple[Consequence, ...] = (),
    harmless: Iterable[int] = (),
    weak: Iterable[int] = (),
) -> Unknown:
    """Describe a text in which nothing is known by what it says itself.

    Args:
        harmless: Lines that only look like errors.
        weak: Lines of errors, whatever their form, whose cause the text leaves open.
    """
    lines = tuple(islice(words.list_lines(), _MAX_LINES))
    reported = {*harmless, *(each.line for each in reports)}
    open_lines = frozenset(weak)
    found = () if words.is_history else _find_errors(lines, words)
    formed = (each for each in found if each[0] not in reported)
    error = _choose_error(tuple(formed), words) or next((each for each in lines if each[0] in open_lines), None)
    stated = replace(_read_stated(facts), reports=reports)
    if error is None:
        is_traced = any(text.startswith(_TRACEBACK) for _, text, _ in lines)
        if len(lines) >= _MIN_LINES:
            return replace(stated, is_healthy=not reports and not is_traced)
        whole = f"{facts.find('command')[:MAX_LINE] or 'COMMAND'} 2>&1 | devkit explain -  # with all its output"
        commands = (*stated.commands[:-2], whole, *_NEXT)
        return replace(stated, search=_build_search(words.shown, "", facts), commands=commands)
    line, text, position = error
    packages = list_packages(words.shown[:position])
    package = next((each for each in reversed(packages) if each), "")
    caller = next((each for each in reversed(packages) if each and each != package), "")
    frames = re.findall(r'File "([^"]{1,300})", line (\d+)', words.shown[:position][-16 * 1024 :])
    files = [f"{re.sub(r'^.*(?:site|dist)-packages/', '', path)}:{number}" for path, number in frames[-1:]]
    return replace(
        stated,
        first_error=Excerpt(line, text[:MAX_LINE]),
        package=package.replace("_", "-"),
        caller=caller.replace("_", "-"),
        file="".join(files),
        advice=_find_advice(lines, line, text),
        search=_build_search(text, package, facts),
    )


def _choose_error(errors: tuple[tuple[int, str, int], ...], words: Words) -> tuple[int, str, int] | None:
    """Return the exception by which the last program ends, of a chain of them the first; else the first line of an error."""
    errors = tuple(each for each in errors if not STATUS.search(each[1])) or errors
    raised = [each for each in errors if _EXCEPTION.match(each[1])]
    chosen = next(iter(errors), None)
    for each in raised:
        is_chained = chosen is not None and any(said in words.lowered[chosen[2] : each[2]] for said in CHAINED)
        chosen = chosen if is_chained else each
    return chosen


def find_first_error(words: Words, *, before: int) -> Excerpt | None:
    """Find the first line with the form of an error above a line, other than a build's report; None without one."""
    errors = _find_errors(tuple(islice(words.list_lines(), _MAX_LINES)), words)
    error = next((each for each in errors if not STATUS.search(each[1])), None)
    return Excerpt(error[0], error[1][:MAX_LINE]) if error and error[0] < before else None


def goes_on_well(words: Words, matched: Iterable[Consequence | Match]) -> bool:
    """Say if a program ended as it should after the lines of errors, or went on after lines that are all warnings."""
    placed = tuple(matched)
    lines = tuple(islice(words.list_lines(), _MAX_LINES))
    last = max((each.line or 0 for each in placed), default=0)
    if not placed or any(text.startswith(_TRACEBACK) for line, text, _ in lines if line >= last):
        return False
    after = [each for each in lines if each[0] > last]
    numbers = {each.line for each in placed}
    others = (each for each in lines if each[0] not in numbers)
    if any(_is_error(text, has_level=position in words.errors) for _, text, position in others):
        return False
    if any(_ENDED.search(text) for _, text, _ in after[-_LAST_LINES:]):
        return True
    own = [(text, position) for line, text, position in lines if line in numbers]
    is_mild = all(words.is_warning(position) or _MILD_LINE.search(text) for text, position in own)
    return is_mild and any(_DONE.search(text) for _, text, _ in after)


def _is_error(text: str, *, has_level: bool) -> bool:
    if _NO_ERROR.search(text):
        return False
    return has_level or bool(_LEVEL.match(text) or (_ERROR.search(text) and not _MILDER.search(text)))


def _find_errors(lines: tuple[tuple[int, str, int], ...], words: Words) -> Iterator[tuple[int, str, int]]:
    """Yield the lines of errors, the messages of exceptions before the lines that only announce one."""
    later: list[tuple[int, str, int]] = []
    is_traced = False
    for line, text, position in lines:
        if text.startswith(_TRACEBACK):
            is_traced = True
        elif is_traced and (_EXCEPTION.match(text) or _RAISED.match(text)):
            yield line, text, position
            is_traced = False
        elif not is_traced and _is_error(text, has_level=position in words.errors):
            yield line, text, position
        elif not is_traced and _ERROR.search(text) and re.search(r"\b\w{2,40}(?:Error|Exception): ", text):
            later.append((line, text, position))
    yield from later


def _find_advice(lines: tuple[tuple[int, str, int], ...], line: int, error: str) -> tuple[str, ...]:
    """Return sentences that say what to do, those nearest to the error first."""
    found = sorted(
        (abs(number - line), place, sentence.strip()[:MAX_LINE])
        for place, (number, text, _) in enumerate(lines)
        for sentence in SENTENCE.split(text[:1200])
        if len(sentence.split()) >= _MIN_WORDS and ADVICE.search(sentence) and "most recent call last" not in sentence
    )
    return tuple(dict.fromkeys(each for *_, each in found if each != error))[:MAX_ADVICE]


def _read_stated(facts: TextFacts) -> Unknown:
    """Return the versions of a text, what it states with the lines, and the commands of its engine that show more."""
    names = dict.fromkeys(each.name for each in facts.stated if each.name.startswith("package:"))
    packages = [f"{name.removeprefix('package:')} {facts.find(name)}" for name in names if facts.find(name)]
    machine = {
        "driver": "driver",
        "reported_cuda": "CUDA of the driver",
        "cuda_toolkit": "CUDA Toolkit",
        "kernel": "kernel",
    }
    others = [f"{said} {facts.find(name)}" for name, said in machine.items() if facts.find(name)]
    python = [f"Python {facts.python}"] if facts.python else []
    said = {"engine": "engine", "command": "command", "gpu": "GPU", "exit_code": "exit code", "resource": "resource"}
    shown = []
    for name, words in said.items():
        each = next((each for each in facts.stated if each.name == name), None)
        if each is not None:
            place = f" (line {each.line})" if each.line else ""
            shown.append(f"{words}: {each.value[:120]}{place}")
    more = {
        "kubernetes": ("kubectl describe pod <pod>", "kubectl logs <pod> --previous"),
        "podman": ("podman info; podman logs <container>",),
    }.get(facts.engine, ())
    if any(each.name == "command" and each.value.startswith(("srun", "sbatch")) for each in facts.stated):
        more = (*more, "sacct -j <job> --format=JobID,State,ExitCode,MaxRSS")
    return Unknown(
        is_healthy=False,
        versions=(*others, *python, *packages)[:MAX_VERSIONS],
        facts=tuple(shown),
        commands=(*more, *_NEXT),
    )


def _build_search(text: str, package: str, facts: TextFacts) -> str:
    """Return the words of an error for a search engine: without paths, numbers of processes and quotes."""
    found = _EXCEPTION.match(text := redact_tokens(text[:_MAX_SEARCHED]))
    name, message = (found[1].rpartition(".")[2], found[2]) if found else ("", text)
    plain = _NOISE.sub(" ", message)
    words = [word for word in plain.split() if not re.fullmatch(r"[\d.:/\\*+_-]+", word)][:_MAX_SEARCH_WORDS]
    version = facts.find_version(package.replace("_", "-")) if package else ""
    return " ".join(filter(None, (package.replace("_", "-"), version, name, *words)))
