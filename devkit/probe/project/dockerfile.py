"""Dockerfiles: stages, what instructions mean for GPUs, users and secrets, and the secrets in the build context."""

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from devkit.facts.project import Dockerfile, Setting, Stage, Variable
from devkit.facts.secrets import contains_token, holds_secret, redact_tokens
from devkit.facts.values import NOT_READ, Unknown
from devkit.probe.documents import InvalidDocument, parse_env, parse_words
from devkit.probe.project import gpu_packages, shell
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.mounts_and_variables import (
    build_variable,
    is_relevant,
    is_secret_name,
)

# Files with secrets that a build takes in: those of COPY without those in the ignore file.
SECRET_FILES = (".netrc", ".pypirc", "id_rsa", "id_ed25519", ".git-credentials", "kaggle.json", "credentials.json")
_INSTRUCTION = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
HEREDOC = re.compile(r"<<(-?)\s*([\"']?)([A-Za-z_]\w*)\2")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?([-+])([^}]{0,1000}))?\}|(\w+))")
_COPY_FROM = re.compile(r"--from=(\S+)")
FLAGS = re.compile(r"^(?:--[\w-]+(?:=\S*)?\s+)+")
_UNCERTAIN = re.compile(r"[*?\[<@]|://")
"""In a source that is a pattern, a here-document, or an address."""
_LONGEST = 160
MAX_EXPANDED_CHARACTERS = 1 << 20
"""Of all variables in a file together: each may hold the one before it twice."""
_ROOT = ("", "root", "0")
_NOTHING_FOUND: dict[str, Any] = {
    each: ()
    for each in get_type_hints(Stage)
    if each not in ("name", "image", "image_text", "line", "user", "removes_users")
}
"""What a stage lists, before its first instruction."""
FindSecretFiles = Callable[[str, int], tuple[str, ...]]
"""Tells which files with secrets a COPY source takes in, given the line of the instruction."""

_PAIR = re.compile(r"""([A-Za-z_]\w*)(?:=((?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s\\])*))?""")


@dataclass(frozen=True)
class Instruction:
    """One instruction with its continuation lines joined; `heredoc` is the text of its here-documents."""

    keyword: str
    text: str
    line: int
    heredoc: str = ""


class ExpandsTooFar(Exception):  # noqa: N818 - named for what the variables do
    """The variables of a Dockerfile make far more text than it has."""


class VariableExpansion:
    """Replaces the variables of one Dockerfile, which together may only add so much text."""

    def __init__(self) -> None:
        self._left = MAX_EXPANDED_CHARACTERS

    def expand(self, text: str, values: Mapping[str, str]) -> str:
        """Return `text` with variables replaced; one without value or default stays as written. Raises ExpandsTooFar."""

        def value_of(found: re.Match[str]) -> str:
            name, sign, default = found[1] or found[4], found[2], found[3]
            if sign == "+":
                value = default if values.get(name) else ""
            else:
                value = values.get(name) or (default if sign == "-" else found[0])
            self._left -= len(value)
            if self._left < 0:
                raise ExpandsTooFar(
                    f"not read: its variables make more than {MAX_EXPANDED_CHARACTERS >> 20} MiB of text"
                )
            return value

        return _VARIABLE.sub(value_of, text)


class _StageReader:
    """One FROM and what follows. `given` are build arguments from outside, which win over defaults."""

    def __init__(
        self,
        instruction: Instruction,
        path: str,
        defaults: Mapping[str, str],
        *,
        expansion: VariableExpansion,
        given: Mapping[str, str],
        secret_files: FindSecretFiles,
    ) -> None:
        words = FLAGS.sub("", instruction.text).split()
        name = words[2] if len(words) > 2 and words[1].upper() == "AS" else ""
        written = words[0] if words else ""
        image, line = expansion.expand(written, defaults), instruction.line
        self._stage = Stage(name, image, written, line, user=None, removes_users=False, **_NOTHING_FOUND)
        self._path, self._given, self._secret_files = path, given, secret_files
        self._arguments, self._expansion = dict(defaults), expansion
        self._user = self._folder = ""
        self._found: dict[str, list[object]] = {}

    def stage(self) -> Stage:
        """Return the stage with all that was found in it."""
        found: dict[str, Any] = {name: tuple(values) for name, values in self._found.items()}
        return replace(self._stage, **found)

    def take(self, instruction: Instruction) -> None:
        """Read one instruction of the stage."""
        keyword, text, line = instruction.keyword, instruction.text, instruction.line
        if keyword in ("ARG", "ENV"):
            self._add("variables", *_variables(instruction, keyword, self._path))
            self._arguments |= _values(
                instruction, self._given if keyword == "ARG" else {}, self._arguments, self._expansion
            )
        elif keyword == "USER" and text:
            self._user = self._expansion.expand(text.split()[0], self._arguments).partition(":")[0]
            self._stage = replace(self._stage, user=Setting("USER", self._user, self._path, line))
        elif keyword == "WORKDIR":
            named = self._expansion.expand(text, self._arguments)
            self._folder = (
                posixpath.normpath(posixpath.join(self._folder, named)) if self._folder or named[:1] == "/" else ""
            )
            if self._user not in _ROOT and self._folder:
                self._add("folders", self._folder)
        elif keyword in ("COPY", "ADD"):
            self._copy(instruction)
        elif keyword == "RUN":
            self._run(instruction)

    def _add(self, name: str, *values: object) -> None:
        self._found.setdefault(name, []).extend(values)

    def _copy(self, instruction: Instruction) -> None:
        flags = FLAGS.match(instruction.text)
        text = FLAGS.sub("", instruction.text).strip()
        words = parse_words(text) or text.split()
        if flags and "--chown" in flags[0] and words:
            self._add("folders", posixpath.normpath(posixpath.join(self._folder, words[-1])))
        if flags and (named := _COPY_FROM.search(flags[0])):
            self._add("copied_from", self._expansion.expand(named[1], self._arguments))
            return
        for source in words[:-1]:
            for name in self._secret_files(self._expansion.expand(source, self._arguments), instruction.line):
                self._add("secret_files", Setting(instruction.keyword, name, self._path, instruction.line))

    def _run(self, instruction: Instruction) -> None:
        path, line = self._path, instruction.line
        text = self._expansion.expand(FLAGS.sub("", instruction.text), self._arguments)
        interpreter = text.split("<<")[0].split()[:1]
        is_script = bool(instruction.heredoc) and (not interpreter or interpreter[0].endswith("sh"))
        commands = shell.parse_shell_text(instruction.heredoc if is_script else text)
        self._add("installs", *gpu_packages.find_installs(commands, path=path, line=line, text=text))
        self._add("compilers", *shell.find_compilers(commands))
        self._add("nvcc", *shell.find_nvcc_packages(commands))
        found = shell.find_driver_packages(commands)
        self._add("drivers", *(Setting("RUN", name, self._path, instruction.line) for name in found))
        known = self._found.get("programs", [])
        self._add("programs", *(name for name in shell.find_programs(commands) if name not in known))
        self._add(
            "folders", *shell.find_created_folders(commands, as_user=self._user not in _ROOT, folder=self._folder)
        )
        self._add("users", *shell.find_created_users(commands, line=line))
        for use in shell.find_gpu_uses(commands, heredoc="" if is_script else instruction.heredoc):
            self._add("gpu_uses", Setting(use, _excerpt(f"{text} {instruction.heredoc}"), path, line))
        if shell.removes_users(commands):
            self._stage = replace(self._stage, removes_users=True)
        if contains_token(instruction.text) or contains_token(instruction.heredoc):
            self._add("tokens_in_commands", Setting("RUN", _excerpt(text), path, line))


def find_secret_files(
    source: str, line: int, *, files: ProjectFiles, context: str, dockerfile: str, sources: list[tuple[str, int]]
) -> tuple[str, ...]:
    """Find files with secrets that `COPY source` takes: by name, or an .env file that sets a variable named like a secret.

    Only the top of the context is looked at. Adds to `sources` what the context has to hold, with the line.
    Source: Dockerfile reference, "COPY"; Docker, ".dockerignore files".
    """
    relative = files.within(f"{context}/{source.removeprefix('./').lstrip('/')}")
    if relative is None or "$" in source:
        return ()
    if not _UNCERTAIN.search(source):
        sources.append((relative, line))
    base = files.within(context) or "."
    if source.rstrip("/") in (".", "./", "", "*"):
        candidates = [name for name in files.names(base) if _is_candidate(name)]
    else:
        candidates = [relative.removeprefix(f"{base}/")] if _is_candidate(relative.rpartition("/")[2]) else []
    if not candidates:
        return ()
    # The ignore file named for the Dockerfile goes before the one of the context.
    ignore_files = (f"{dockerfile}.dockerignore", f"{base}/.dockerignore".removeprefix("./"))
    texts = (files.read(path.removeprefix("./"), "ignore") for path in ignore_files)
    lines = parse_ignore_file(next((text for text in texts if text is not None), ""))
    kept = [name for name in candidates if not is_ignored(name, lines) and files.has(f"{base}/{name}")]
    return tuple(
        name
        for name in kept
        if name.rpartition("/")[2] in SECRET_FILES
        or any(
            value and is_secret_name(key)
            for key, value in parse_env(files.read(f"{base}/{name}", ".env") or "").items()
        )
    )


def find_needed_stages(file: Dockerfile, targets: Iterable[str]) -> tuple[Stage, ...]:
    """Find the stages that BuildKit builds for these targets, "" for the last stage; all where that is not known."""
    names = {key: at for at, each in enumerate(file.stages) for key in (str(at), each.name.lower())}
    waiting = [names.get(target.lower(), -1) if target else len(file.stages) - 1 for target in targets]
    needed: set[int] = set()
    while waiting:
        at = waiting.pop()
        copied = file.stages[at].copied_from if 0 <= at < len(file.stages) else NOT_READ
        if isinstance(copied, Unknown):
            return file.stages
        if at not in needed:
            needed.add(at)
            named = (file.stages[at].image, *copied)
            waiting += [names[each.lower()] for each in named if each.lower() in names]
    return tuple(file.stages[at] for at in sorted(needed))


def _is_candidate(name: str) -> bool:
    is_sample = name.endswith((".example", ".sample", ".template", ".dist"))
    return not is_sample and (name in SECRET_FILES or name == ".env" or name.startswith(".env."))


def parse_dockerfile(
    text: str, *, path: str, arguments: Mapping[str, str], secret_files: FindSecretFiles = lambda _source, _line: ()
) -> Dockerfile:
    """Parse a Dockerfile as far as possible without building. `arguments` are build arguments with plain values.

    Raises InvalidDocument for one whose variables make far more text than it has.
    """
    plain = {name: value for name, value in arguments.items() if not _is_secret(name, value)}
    before: list[Variable] = []
    defaults: dict[str, str] = {}
    stages: list[Stage] = []
    current: _StageReader | None = None
    expansion = VariableExpansion()
    for instruction in parse_instructions(text):
        try:
            if instruction.keyword == "FROM":
                stages += [current.stage()] if current else []
                current = _StageReader(
                    instruction, path, defaults, expansion=expansion, given=plain, secret_files=secret_files
                )
            elif current is not None:
                current.take(instruction)
            elif instruction.keyword == "ARG":
                before += _variables(instruction, "ARG", path)
                defaults |= _values(instruction, plain, defaults, expansion)
        except ExpandsTooFar as error:
            raise InvalidDocument(str(error), instruction.line) from None
    stages += [current.stage()] if current else []
    return Dockerfile(path, tuple(before), tuple(stages))


def _variables(instruction: Instruction, place: str, path: str) -> list[Variable]:
    found = [
        build_variable(name, value, place=place, path=path, line=instruction.line)
        for name, value in read_pairs(instruction.text)
    ]
    return [one for one in found if is_relevant(one)]


def read_pairs(text: str) -> list[tuple[str, str | None]]:
    """Names and values of ARG and ENV, in either form: NAME=value NAME=value, or NAME value."""
    first = text.split(maxsplit=1)
    if len(first) == 2 and "=" not in first[0]:
        return [(first[0], first[1].strip())]
    return [
        (name, value.strip("\"'") if "=" in whole else None)
        for whole, name, value in ((found[0], found[1], found[2] or "") for found in _PAIR.finditer(text))
    ]


def _values(
    instruction: Instruction, given: Mapping[str, str], known: Mapping[str, str], expansion: VariableExpansion
) -> dict[str, str]:
    """Return the values for later substitution; secrets are never substituted."""
    pairs = [(name, given.get(name, value)) for name, value in read_pairs(instruction.text)]
    return {name: expansion.expand(value, known) for name, value in pairs if value and not _is_secret(name, value)}


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or holds_secret(f"{name}={value}")


def _excerpt(text: str) -> str:
    return redact_tokens(" ".join(text.split()))[:_LONGEST]


def parse_ignore_file(text: str) -> list[str]:
    """Return the patterns of an ignore file."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def is_ignored(name: str, lines: list[str]) -> bool:
    """Return whether an ignore file excludes `name`. The last line that matches decides; `!` includes a file again."""
    ignored = False
    for line in lines:
        pattern = line.removeprefix("!").removeprefix("/").removeprefix("**/").rstrip("/")
        # Compiling a pattern takes a hundred times longer than looking for its marks.
        has_marks = "*" in pattern or "?" in pattern or "[" in pattern
        if pattern in (name, "*", "**", ".") or (has_marks and fnmatch.fnmatchcase(name, pattern)):
            ignored = not line.startswith("!")
    return ignored


def parse_instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile without comments. Source: Dockerfile reference, "Format", "Here-documents"."""
    lines = text.removeprefix("\ufeff").splitlines()
    directive = re.match(r"#\s*escape\s*=\s*(`)", text, re.IGNORECASE)
    escape = directive[1] if directive else "\\"
    place = 0
    while place < len(lines):
        start, joined, place = place + 1, *_joined(lines, place, escape)
        found = _INSTRUCTION.match(joined)
        if found is None:
            continue
        keyword, rest = found[1].upper(), found[2].strip()
        heredoc: list[str] = []
        if keyword in ("RUN", "COPY", "ADD"):
            for dash, _, word in HEREDOC.findall(rest):
                while place < len(lines) and (lines[place].strip() if dash else lines[place].rstrip()) != word:
                    heredoc.append(lines[place])
                    place += 1
                place += 1
        yield Instruction(keyword, rest, start, "\n".join(heredoc))


def _joined(lines: list[str], place: int, escape: str) -> tuple[str, int]:
    """The text from `place` with its continuation lines, and where the next begins."""
    parts: list[str] = []
    while place < len(lines):
        line = lines[place]
        place += 1
        is_comment = line.lstrip().startswith("#")
        if is_comment or (parts and not line.strip()):
            if not parts:
                break
            continue
        ends = line.rstrip().endswith(escape)
        parts.append(line.rstrip()[:-1] if ends else line)
        if not ends:
            break
    return " ".join(parts), place
