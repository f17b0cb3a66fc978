"""Why a dev container did not start: the failing program's own words, the lines of the project that they lead to, and the fix."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from devkit.devcontainer.configuration import LOCATIONS, DevContainer, find_dev_container
from devkit.devcontainer.engine import EngineClient, Failure
from devkit.devcontainer.experiments import Step, find_tried
from devkit.devcontainer.made_container import ABSENT, MadeContainer
from devkit.doctor.known_errors import explain_text
from devkit.doctor.model import Confidence, Fix
from devkit.doctor.program_failures import name_program
from devkit.doctor.signatures.unknown import STATUS
from devkit.errors import DevkitError
from devkit.facts.engine import StoppedContainer
from devkit.facts.runs import ProgramFailure
from devkit.facts.secrets import redact_tokens
from devkit.probe.attempts import find_error_lines
from devkit.probe.engine.compose_config import find_absent_build, resolve_project
from devkit.probe.host import Host, HurriedHost
from devkit.probe.machine.programs import find_program
from devkit.probe.project.places import (
    OF_BUILD,
    Place,
    drop_repeated,
    locate_excerpt,
    locate_setting,
    locate_values,
    locate_variable,
    note_list,
    note_profile,
    take_suggestion,
)
from devkit.text import join_words
from devkit.verify.dev_container import list_commands

_PREFIX = re.compile(r"^[\w.-]+-\d+ +\| ", re.MULTILINE)
"""The container in the log of Compose."""
_FRAME = re.compile(r"^\s+at (?:async )?\S+ \(.*\)$|^\s+at .*:\d+:\d+\)?$", re.MULTILINE)
"""Of the dev container CLI's own code."""
_WARNING = re.compile(
    r'^(?:time=\S+ level=(?:warning|info|debug) |WARN\w*\W.*" variable is not set\.).*$', re.MULTILINE
)
"""What Compose says of a project on each run, also of one that starts."""
_OF_GPU = re.compile("nvidia|gpu", re.IGNORECASE)
_OF_PYTHON = re.compile(r"[\w.]+(?:Error|Exception): ")
_LONGEST, _SHORTEST = 120, 40
"""Characters of a headline's words."""
_ENDED = re.compile(r"the container \S+ exited with status 0")
_SILENT = re.compile(r"^(?:devcontainer up failed: )?An error occurred starting Docker Compose up\.$")
_OF_SCRIPT = re.compile(r"\.sh: (?:line )?\d+: \S")
_KEY = re.compile(r"\b\w+Command\b")
"""A lifecycle command, in the title of its failure."""


@dataclass(frozen=True)
class Verdict:
    """The cause of a failure. `words` are the failing program's; `places` begin with the line where it failed."""

    words: str
    places: tuple[Place, ...]
    known: str
    """What the failure catalog says of the words; "" where it is not sure."""
    fix: Fix | None
    is_certain: bool
    """Also what an engine refuses of a GPU, which is a matter of its settings, whatever line requests it."""
    shown: tuple[str, ...]
    """The output of what failed, without what tools add for their authors."""
    is_tried: bool = False
    """True if an experiment of devkit found the cause, whose words these are then."""

    @property
    def headline(self) -> str:
        """The cause and its lines in one sentence."""
        wrong = next((each.note for each in self.places if each.note), "")
        places = ", ".join(f"{each.name} in {each.file}:{each.line}" for each in self.places[:2])
        words = re.sub(r"^error: ", "", self.words, flags=re.IGNORECASE)
        is_cut = not self.is_tried and not _OF_PYTHON.match(words)
        while is_cut and len(words) > _LONGEST and len(words.partition(": ")[2]) > _SHORTEST:
            words = words.partition(": ")[2]  # An engine tells the cause last.
        return f"{wrong or words}{f' ({places})' if places and places not in words else ''}"

    def list_lines(self) -> tuple[str, ...]:
        """List the lines of the project that it leads to, without secrets, which the key before a value shows."""
        texts = (each.text if each.text.startswith(each.name) else f"{each.name}: {each.text}" for each in self.places)
        return tuple(
            f"{each.file}:{each.line}: {redact_tokens(text).removesuffix(': ')}"
            for each, text in zip(self.places, texts, strict=True)
        )

    def list_steps(self) -> Iterator[str]:
        """Yield what to do: what mends the line, else what the catalog knows, else the line itself."""
        remedy = next((each.remedy for each in self.places if each.remedy), "")
        needed = name_program(self.words)
        copied = next((each for each in self.places if each.name in ("COPY", "ADD")), None)
        path = next(
            (each for each in self.places if each.name.endswith(".PATH") or each.text.startswith("PATH=")), None
        )
        if remedy:
            place = next(each for each in self.places if each.remedy)
            yield f"Fix in {place.file}:{place.line}: {remedy}."
        elif _ENDED.fullmatch(self.words):
            yield 'Fix: start a program that keeps running: "overrideCommand": true in devcontainer.json, or a command in the Compose file.'
        elif path and (program := ABSENT.search(self.words)):
            yield f"Fix: add the folder of {program[1] or program[2]} to PATH, which line {path.line} of {path.file} sets; or install it."
            return
        elif needed["fault"] == "no-execute-bit":
            where = f", or write COPY --chmod=755 in line {copied.line} of {copied.file}" if copied else ""
            yield f"Fix: make the file of {needed['needed']} executable with chmod +x{where}."
        elif self.places and not self.is_certain:
            lines = join_words((f"line {each.line} of {each.file}" for each in self.places[:2]), "and")
            yield f"The words lead to {lines}; no experiment shows what is wrong there."
        if self.fix is not None and not remedy:
            is_fix = self.is_certain or not self.places
            yield f"{'Fix' if is_fix else 'Perhaps'}: {f'{self.known}. ' if self.known else ''}{self.fix.summary}"
            yield from (f"    {command}" for command in self.fix.commands)


def judge_failure(host: Host, container: DevContainer, failure: Failure, client: EngineClient | None = None) -> Verdict:
    """Judge why the dev container did not start by the output of what failed, and with a `client` by experiments."""
    folder, whole = str(container.folder), _clean("\n".join(failure.lines))
    text = _clean("\n".join(failure.excerpt)).strip() or whole
    answer = explain_text(text, is_ours=True)
    able = (each for each in answer.matches if each.confidence is not Confidence.POSSIBLE and not each.is_harmless)
    match = next((each for each in able if each.follows_from is None), None)
    error = answer.unknown.first_error if answer.unknown else None
    said = find_error_lines(text)
    lines = text.splitlines()
    line = lines[match.line - 1].strip() if match and 0 < match.line <= len(lines) else match.matched if match else ""
    key = _KEY.search(failure.title)
    # A command of the user's may end with words that no error has.
    last = (each.strip() for each in reversed(lines) if key)
    if _ENDED.match(failure.title) and not match:
        said, error = (), None  # A program that ends well says nothing of an error.
    lines_told = (line, error.text if error else "", *said[::-1], *last, failure.title)
    # What only reports that something failed says less than the program itself.
    words = next((each for each in lines_told if each and not STATUS.search(each)), next(filter(None, lines_told)))
    stopped = locate_excerpt(host, folder, whole)
    started = locate_setting(host, folder, (key[0],)) if key else None
    if stopped is None and OF_BUILD.search(whole):
        # Of the instructions that the dev container CLI adds, only a feature's can fail.
        started = locate_setting(host, folder, ("features",))
        shell = (each for each in reversed(lines) if ABSENT.search(each) or _OF_SCRIPT.search(each))
        words = next(shell, words) if started else words
    if words.endswith(":") and words in (stripped := [each.strip() for each in lines]):
        # Some engines tell the cause in a second line.
        words = " ".join((words, *filter(None, stripped[stripped.index(words) + 1 :][:1])))
    own = [*filter(None, (stopped, started))]
    if client and stopped and words == failure.title:
        with suppress(DevkitError):
            words = Step(client, stopped).repeat() or words
    own += locate_variable(host, folder, "PATH") if ABSENT.search(words) else ()
    others = locate_values(host, folder, words, apart_from=own)
    # The rest of the output also repeats lines that are right: only one with a fault counts.
    faulty = () if own or others else (each for each in locate_values(host, folder, text) if each.note)
    places = drop_repeated((*own, *others, *faulty))
    places = (*(take_suggestion(each, words) for each in places[:1]), *places[1:])
    noted = note_profile(host, folder, words) or (note_list(host, folder, key[0]) if key else None)
    places = drop_repeated((noted, *places)) if noted else places
    with suppress(DevkitError):  # An engine that does not answer shows nothing.
        if client and not any(each.note for each in places):
            made = MadeContainer(client, f"{failure.title}\n{whole}") if stopped is None else None
            shown = (made and made.explain(words)) or _find_absent_build(host, folder, words)
            shown = shown or (Step(client, own[0]).explain(words) if own else None)
            if shown is not None and shown.remedy:
                places = drop_repeated((shown, *places))
            elif tried := find_tried(
                host,
                folder,
                "" if _SILENT.search(words) else "\n".join((words, *(each.text for each in places))),
                places,
            ):
                shown_lines, at = tuple(redact_tokens(text).splitlines()), tried.location
                own = own or [each for each in places if at and (each.file, each.line) == (at.path, at.line)]
                return Verdict(
                    tried.message, tuple(own), "", tried.fix, is_certain=True, shown=shown_lines, is_tried=True
                )
            elif made:
                commands = list_commands(container.properties.get(key[0])) if key else []
                blamed = made.find_setting(words, commands[0] if commands else ())
                places = drop_repeated((blamed, *places)) if blamed else places
    return Verdict(
        redact_tokens(words),
        places,
        match.cause if match else "",
        match.fix if match and not name_program(words)["fault"] else None,
        match is not None and (match.confidence is Confidence.CERTAIN or _OF_GPU.search(words) is not None),
        tuple(redact_tokens(text).splitlines()),
    )


def explain_ended(failed: Iterable[StoppedContainer], folder: Path, *, deadline_s: float) -> Iterator[ProgramFailure]:
    """Explain how containers of the project in `folder` ended, as after a start of them, but without a build.

    What a file says that was changed since is not to blame.
    """
    host = HurriedHost(deadline_s=deadline_s)
    try:
        container = find_dev_container(folder, env=host.env, takes_compose=True)
    except DevkitError:
        container = DevContainer(folder, folder / LOCATIONS[0], {})
    client = EngineClient(host, "docker" if find_program(host, "docker") else "podman", container)
    for one in failed:
        log = (client.program, "logs", "--tail", "50", one.name)
        said = host.run(log)
        lines = tuple(line for line in (*said.out.splitlines(), *said.err.splitlines()) if line != "Container started")
        title = f"the container {one.name} exited with status {one.exit_code}"
        verdict, places = judge_failure(host, container, Failure(title, lines, lines)), list[Place]()
        with suppress(DevkitError):  # An engine that does not answer shows nothing.
            made = MadeContainer(client, title)
            shown = None if any(each.note for each in verdict.places) else made.explain(verdict.words)
            every = (each for each in (shown, *verdict.places) if each and each.note and each.remedy)
            places += (each for each in every if not made.is_older_than(f"{folder}/{each.file}"))
        settings = tuple(map(str, places[:1]))
        name, words = f"the container {one.name}", (verdict.words,)
        yield ProgramFailure(name, words, " ".join(log), one.exit_code, settings=settings)


def _find_absent_build(host: Host, folder: str, words: str) -> Place | None:
    """Find the build that a missing file stopped before its first instruction."""
    config = resolve_project(host, folder)[0] if re.search("no such file|ENOENT|not found", words) else {}
    return find_absent_build(host, folder, config)


def _clean(text: str) -> str:
    return _WARNING.sub("", _FRAME.sub("", _PREFIX.sub("", text)))
