"""Failed attempts: the words of the program that failed, and the variables of the environment without which it works."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from time import monotonic

from devkit.facts.runs import ProgramFailure
from devkit.probe.children.protocol import MAX_OUTPUT_CHARACTERS
from devkit.probe.host import TIMED_OUT, Host, ProgramResult

MAX_WORDS = 5
"""Error lines that are kept: the last says what ended, those before it often why."""

_KEPT_VARIABLES = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "LANG", "PWD", "TERM", "USERPROFILE", "SYSTEMROOT"})
"""What a clean environment still has: who asks, and where."""

_START_FILES = (
    *("/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc", "/etc/zsh/zshenv", "/etc/zsh/zshrc"),
    *("~/.profile", "~/.bash_profile", "~/.bash_login", "~/.bashrc", "~/.zshenv", "~/.zprofile", "~/.zshrc"),
    *("~/.config/fish/config.fish", "~/.pam_environment"),
)
_FOLDERS_OF_START_FILES = ("/etc/profile.d", "~/.config/environment.d")

_LOGFMT = re.compile(r'(?:time=\S+ )?level=(\w+) msg=("(?:[^"\\]|\\.)*"|\S+)(.*)')
_LOGFMT_ERROR = re.compile(r'\berror=("(?:[^"\\]|\\.)*"|\S+)')
_ESCAPE = re.compile(r"\\(.)")
_SERIOUS = re.compile(
    r"\b(?:error|fatal|panic|failed|failure|cannot|can't|could not|unable|not found|no such|denied|refused|invalid"
    r"|unknown|unsupported|not supported|unrecognized|undefined|unbound|not set|exec format|read-only|too old|too many|mismatch)\b",
    re.IGNORECASE,
)
_TRACE = re.compile(r"goroutine \d|\s+/\S+\.go:\d+|[\w./*()-]+\(0x|rax |r\d+ |created by ")
"""Lines of a Go program's crash that only its authors read."""


def find_error_lines(text: str) -> tuple[str, ...]:
    """Find the last lines of a program's output that tell of an error, or its last line where none does.

    Of lines with key=value pairs, as Go programs log, those with the level of an error count, and only their message
    and error are kept.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _TRACE.match(line)]
    errors = [words for words in map(read_error, lines) if words]
    found = errors[-MAX_WORDS:] or [_read_line(line)[1] for line in lines[-1:]]
    return tuple(dict.fromkeys(words[-MAX_OUTPUT_CHARACTERS:] for words in found))


def read_error(line: str) -> str:
    """Return the words of a line that tells of an error, "" for another."""
    level, words = _read_line(line)
    is_error = level in ("error", "fatal", "panic") or (not level and _SERIOUS.search(words))
    return words if is_error else ""


def _read_line(line: str) -> tuple[str, str]:
    """Return the level of a line, "" where it names none, and its words."""
    found = _LOGFMT.search(line)
    if found is None:
        return "", line
    error = _LOGFMT_ERROR.search(found[3])
    words = [_unquote(found[2]), *([_unquote(error[1])] if error else [])]
    return found[1].lower(), ": ".join(words)


def _unquote(value: str) -> str:
    return _ESCAPE.sub(lambda match: {"n": " ", "t": " "}.get(match[1], match[1]), value.strip('"'))


def run_or_explain(
    host: Host,
    argv: Sequence[str],
    *,
    deadline_s: float,
    name: str = "",
    works: Callable[[ProgramResult], bool] = lambda done: done.code == 0,
    family: str = "",
) -> tuple[ProgramResult, ProgramFailure | None]:
    """Run a program; where it fails, take its words, and try it without the variables of this environment.

    Args:
        name: The program as messages name it; by default its command line.
        deadline_s: For all attempts together. A program that took too long is not run again.
        works: Whether a result is good.
        family: How the names of the variables begin that are the program's own: they are suspected first.
    """
    ends_at = monotonic() + deadline_s
    done = host.run(argv, deadline_s=deadline_s)
    if works(done):
        return done, None
    shown = " ".join((argv[0].rpartition("/")[2], *argv[1:]))
    if done.code == TIMED_OUT:
        return done, ProgramFailure(name or shown, (f"no answer within {deadline_s:g} s",), shown, done.code)

    def attempt(without: Collection[str]) -> bool:
        left_s = ends_at - monotonic()
        return left_s > 0 and works(host.run(argv, deadline_s=left_s, without=without))

    guilty = find_guilty_variables(host, attempt, family=family)
    words = find_error_lines(done.err) or find_error_lines(done.out)
    return done, ProgramFailure(
        name or shown, words, shown, done.code, works_without=guilty, set_in=tuple(find_assignments(host, guilty))
    )


def find_guilty_variables(
    host: Host, works_without: Callable[[Collection[str]], bool], *, family: str = ""
) -> tuple[str, ...]:
    """Find the fewest variables without which what failed works; none where a clean environment does not help.

    Those whose names begin with `family` are tried alone first.
    """
    suspects = [name for name in sorted(host.env) if name not in _KEPT_VARIABLES]
    own = [name for name in suspects if family and name.startswith(family)]
    return find_guilty(own, works_without) or find_guilty(suspects, works_without)


def find_guilty(suspects: Sequence[str], works_without: Callable[[Collection[str]], bool]) -> tuple[str, ...]:
    """Find the fewest of the suspects without which what failed works; none where all of them are not enough.

    Halving finds each in as many attempts as the number of suspects has binary digits; none is made twice.
    """
    works = cache(lambda without: works_without(without))
    if not suspects or not works(tuple(suspects)):
        return ()
    guilty: tuple[str, ...] = ()
    left = tuple(suspects)
    while not guilty or not works(guilty):
        # The shortest head of the suspects that helps, beside those found: its last is guilty.
        short, long = 1, len(left)
        while short < long:
            middle = (short + long) // 2
            if works((*guilty, *left[:middle])):
                long = middle
            else:
                short = middle + 1
        if not left:
            return ()  # what failed and worked in turn is not a matter of variables
        guilty = (*guilty, left[long - 1])
        left = left[: long - 1]
    return tuple(sorted(guilty))


def find_assignments(host: Host, variables: Collection[str]) -> Iterator[str]:
    """Yield the lines of start-up files that set one of the variables, as file:line."""
    if not variables:
        return
    assignment = re.compile(
        rf"^\s*(?:export\s+|set\s+(?:-\w+\s+)*|declare\s+-x\s+)?(?:{'|'.join(map(re.escape, variables))})(?:=|\s+\S)"
    )
    home = host.env.get("HOME", "")
    folders = [folder.replace("~", home, 1) for folder in _FOLDERS_OF_START_FILES]
    paths = [path.replace("~", home, 1) for path in _START_FILES]
    paths += [f"{folder}/{name}" for folder in folders for name in host.list(folder)]
    for path in paths:
        for number, line in enumerate((host.read(path) or "").splitlines(), 1):
            if assignment.match(line):
                yield f"{path}:{number}"
