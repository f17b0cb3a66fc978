"""Experiments after a failure: a look into the image at the step that failed, and the trials of the doctor."""

import json
import posixpath
import re
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any

from devkit.devcontainer.engine import EngineClient
from devkit.devcontainer.made_container import ABSENT
from devkit.doctor.model import Finding, Found, Side
from devkit.doctor.registry import CHECKS, select_checks
from devkit.doctor.runner import run_checks
from devkit.doctor.signatures.unknown import STATUS
from devkit.facts.project import Project
from devkit.facts.secrets import redact_tokens
from devkit.probe.attempts import find_error_lines
from devkit.probe.gather import gather_facts
from devkit.probe.host import CachingHost, Host, ProgramResult
from devkit.probe.project.places import Place, list_instructions
from devkit.text import join_words
from devkit.trial.containers import try_containers
from devkit.trial.project import write_build

_OF_SHELL = re.compile(r"\S*\bsh: (?:line )?\d+: ")
_NO_FILE = re.compile(r"no such file or directory", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w.:/+-])(?:[\w./+-]*\w[./][\w./+-]*\w|[\w-]+(?='?: No such file))")
_OF_STEP = re.compile(r"^#\d+ [\d.]+ ", re.MULTILINE)
_CHOWN = re.compile(r"--chown=([A-Za-z_][\w-]*)")
_INSTALL = {
    "apt-get": "apt-get update && apt-get install -y --no-install-recommends",
    **{"apk": "apk add --no-cache", "pacman": "pacman -Sy --noconfirm"},
    **{each: f"{each} install -y" for each in ("dnf", "microdnf", "yum", "zypper")},
}
"""How each package manager installs in an image. Source: their manuals."""
_SCRIPT = f"""
. /etc/os-release && echo "devkit os $PRETTY_NAME"
for each in {" ".join(_INSTALL)} useradd; do command -v $each >&2 && echo "devkit has $each"; done
while IFS=: read -r name rest; do echo "devkit user $name"; done </etc/passwd
[ -e "$1" ] || echo "devkit absent $1"
ls -A "$(dirname "$1")" | while read -r name; do echo "devkit entry $name"; done
"""
"""Tells what an image has: names and values, one a line."""
_LINE = re.compile(r"^(?:#\d+ [\d.]+ )?devkit (\w+) (.*)$", re.MULTILINE)
_FROM_STAGE = re.compile(r"^(?:COPY|ADD) .*?--from=([A-Za-z][\w.-]*)")
_NOT_IN_STAGE = re.compile(r'"(/[^"]+)": not found')
_FLAGS = re.compile(r"^\s*RUN\s+((?:--\S+\s+)*)", re.IGNORECASE)
_OF_SHELL_ALONE = re.compile(r"(?:^|&&|;)\s*((?:export|cd|source|\.|alias|conda activate)\s[^;&|<]+)")
"""What a command changes for the later ones of its shell."""
_ABSENCE = re.compile(r"\b(?:no|not|cannot|can't)\b", re.IGNORECASE)
_NEEDS_ROOT = re.compile(r"denied|not permitted|\broot\b|superuser|privilege", re.IGNORECASE)
_MAX_ENTRIES = 8
_MAX_REPEATS = 3
"""A busy machine loses the output of a program that ends at once more than once."""
_BUILD_S, _READING_S, _TRIALS_S = 30.0, 4.0, 8.0
_NEEDED = ("engine", "system", "container", "clients", "compose", "project", "compose_config")
_TELLING = re.compile(r"[\w.=@-]*[._=@\d-][\w.=@-]*")
_GENERAL = re.compile(
    r"[\d.]+|(?:[\w.-]+\.)?(?:Docker|Container)file|\.?devcontainer(?:\.json)?|[\w.-]*compose[\w.-]*|app-1"
)
"""Names that findings on anything may have."""


def find_tried(host: Host, folder: str, said: str, places: Collection[Place]) -> Finding | None:
    """Check the project and try its containers as the doctor does; return the finding that names something of what a program said.

    What the files show counts at one of the `places`. Where nothing was `said`, the first finding of a trial counts.
    """
    reader = CachingHost(deadline_s=_READING_S)
    facts = gather_facts(reader, deadline_s=_READING_S, project=folder, only=_NEEDED)
    lines = {(each.file, each.line) for each in places}
    of_files = tuple(each for each in CHECKS if each.code.startswith("PRJ"))
    for outcome in run_checks(of_files, facts, clock=time.monotonic) if said else ():
        for finding in outcome.verdict.findings if isinstance(outcome.verdict, Found) else ():
            place = finding.location
            if place and (place.path, place.line) in lines and _names(finding, said):
                return finding
    trials = try_containers(host, facts, deadline_s=_TRIALS_S, project=folder, reader=reader)
    outcomes = run_checks(select_checks(("PRJ038", "PRJ041")), replace(facts, trials=trials), clock=time.monotonic)
    found = ((each.check.code, each.verdict.findings) for each in outcomes if isinstance(each.verdict, Found))
    # Where Compose refuses a project and nothing is known of it, its words were told already.
    every = ((code, one) for code, findings in found for one in findings)
    for finding in (one for code, one in every if code == "PRJ041" or one.fix.where is Side.PROJECT):
        if "Error response from daemon" in said and any(
            " exec " in each for each in (finding.message, *finding.evidence)
        ):
            continue  # What a running container could not do comes after what the engine refused.
        if not said or _names(finding, said):
            return finding
    return None


def _names(finding: Finding, said: str) -> bool:
    """Say if a finding names something of what a program said."""
    told = (finding.message, *(each for each in finding.evidence if ": works" not in each))
    words = [*_TELLING.findall(" ".join(told)), finding.subject.rpartition(" ")[2]]
    telling = {each.strip(".!") for each in words if len(each) > 2}
    able = "|".join(re.escape(each) for each in telling if not _GENERAL.fullmatch(each))
    return bool(able and re.search(rf"(?<!\w)(?:{able})(?!\w)", said))


class Step:
    """An instruction of a Dockerfile, or a command in the running container, that failed."""

    def __init__(self, client: EngineClient, place: Place) -> None:
        self._host, self._folder, self._client, self._place = client.host, str(client.container.folder), client, place
        own = list_instructions(self._host, self._folder)
        self._instructions = [each for each, _ in own if each.file == place.file]
        self._lines = (self._host.read(f"{self._folder}/{place.file}") or "").splitlines()
        project = gather_facts(self._host, deadline_s=_READING_S, project=self._folder, only=("project",)).project
        self._build = None
        if isinstance(project, Project):
            builds = (*(each.build for each in project.dev_containers), *(each.build for each in project.services))
            self._build = next((each for each in builds if each and each.dockerfile == place.file), None)

    def explain(self, words: str) -> Place | None:
        """Return the place to correct, with the reason and what mends it; None where no experiment shows them."""
        place = self._place
        if place.name == "RUN" and _OF_SHELL.match(words) and self._works_in_bash():
            note = f"the command works in bash, but not in the image's /bin/sh ({words.partition(': ')[2]})"
            return replace(place, note=note, remedy=f'write SHELL ["/bin/bash", "-c"] above line {place.line}')
        if (stage := _FROM_STAGE.search(place.text)) and (wanted := _NOT_IN_STAGE.search(words)):
            return self._explain_stage(stage[1], wanted[1])
        if earlier := self._explain_earlier(words):
            return earlier
        absent = ABSENT.search(words)
        path = next(iter(_PATH.findall(words)[::-1]), "") if _NO_FILE.search(words) else ""
        seen = self._look(path or "/")
        if absent and seen and not path:
            return self._explain_program(absent[1] or absent[2], seen)
        found = self._explain_mount(words) or (self._explain_user(words, seen) if seen else None)
        found = found or self._explain_rights(words)
        return found or (self._explain_file(path, seen) if path in seen.get("absent", ()) else None)

    def repeat(self) -> str:
        """Repeat the instruction, whose output BuildKit drops where a program ends at once; returns its last error line, or ""."""
        for _ in range(_MAX_REPEATS) if self._build and self._place.name == "RUN" else ():
            done = self._make(*self._list_own_lines())
            if done is not None and done.code == 0:
                return ""
            said = find_error_lines(_OF_STEP.sub("", f"{done.out}\n{done.err}")) if done else ()
            if found := next((each for each in reversed(said) if not STATUS.search(each)), ""):
                return found
        return ""

    def _explain_program(self, name: str, seen: Mapping[str, Sequence[str]]) -> Place | None:
        place, image = self._place, next(iter(seen["os"]), "a system without a name")
        manager = next((each for each in _INSTALL if each in seen["has"]), "")
        note = f"the image is {image}, which does not have {name}"
        note += f" and installs packages with {manager}" if name in _INSTALL and manager else ""
        if place.name == "features":
            return replace(place, note=note, remedy=f"use a feature for {image}, or an image of a system with {name}")
        words = re.split(r"\b(?:install|add|-S\w*)\b", place.text)[-1] if name in _INSTALL else name
        wanted = " ".join(each for each in re.split(r"[;&|]", words)[0].split() if not each.startswith("-"))
        where = f"{'in place of' if name in _INSTALL else 'above'} line {place.line}"
        where = where if self._build else "in the Dockerfile of the image"
        return replace(place, note=note, remedy=f"write RUN {_INSTALL[manager]} {wanted} {where}") if manager else None

    def _explain_stage(self, stage: str, path: str) -> Place | None:
        """Explain a path that another stage lacks by what that has beside it."""
        seen = self._look(path, f"FROM {stage}")
        if path not in seen.get("absent", ()):
            return None
        folder = posixpath.dirname(path)
        note, has = f"the stage {stage} does not have {path}", join_words(sorted(seen["entry"])[:_MAX_ENTRIES])
        remedy = f"copy one of what {folder} has there ({has})" if has else f"make it in the stage {stage}"
        return replace(self._place, note=note, remedy=f"{remedy}, or correct the step of that stage which writes it")

    def _explain_mount(self, words: str) -> Place | None:
        """Explain a denied path by a mount of the build, which is root's where it names no other user."""
        text, users = "\n".join(self._list_own_lines()), [each for each in self._instructions if each.name == "USER"]
        user = next((each.text.split()[-1] for each in users[::-1] if each.line < self._place.line), "root")
        for options in re.findall(r"--mount=(\S+)", text) if "denied" in words.lower() and user != "root" else ():
            target = re.search(r"(?:target|dst|destination)=([^,\s]+)", options)
            if target and target[1] in words and "uid=" not in options:
                note = f"the build mounts {target[1]} as root's, and {user} runs this step"
                return replace(self._place, note=note, remedy=f"add uid= and gid=, those of {user}, to that --mount")
        return None

    def _list_above(self, keyword: str) -> list[Place]:
        """List the instructions of this kind above the step in its stage, the last first."""
        above = [each for each in self._instructions if each.line < self._place.line]
        start = max((each.line for each in above if each.name == "FROM"), default=0)
        return [each for each in above[::-1] if each.name == keyword and each.line > start]

    def _explain_rights(self, words: str) -> Place | None:
        """Explain a step that works as root, and not as the user who runs it."""
        is_able = self._place.name == "RUN" and self._build and _NEEDS_ROOT.search(words)
        is_roots = not is_able or not self._works('RUN [ "$(id -u)" != 0 ]')
        if is_roots or not self._works("USER root", *self._list_own_lines()) or not self._fails_again:
            return None
        line, set_by = self._place.line, next(iter(self._list_above("USER")), None)
        if set_by is None:
            note, remedy = (
                "the image's user runs it",
                f"write USER root above line {line}, and that user again below it",
            )
        else:
            user = set_by.text.split()[-1]
            note = f"line {set_by.line} makes {user} run it"
            remedy = f"move line {line} above line {set_by.line}, or write USER root above it and USER {user} below it"
        return replace(self._place, note=f"this step needs root, and {note}", remedy=remedy)

    def _explain_earlier(self, words: str) -> Place | None:
        """Explain a step that works once what an earlier one changed for its own shell alone holds for it, too."""
        own = self._list_own_lines() if self._place.name == "RUN" and self._build else []
        told = "\n".join((*own, words))
        every = (
            (each, piece.strip())
            for each in self._list_above("RUN")
            for piece in _OF_SHELL_ALONE.findall(_FLAGS.sub("", " ".join(self._list_own_lines(each))))[::-1]
        )
        able = (each for each in every if _may_matter(each[1], told))
        for each, piece in islice(able, _MAX_REPEATS) if own else ():
            flags = _FLAGS.match(own[0])
            first = f"RUN {flags[1] if flags else ''}{piece} && {_FLAGS.sub('', own[0])}"
            if self._works(first, *own[1:]) and self._fails_again:
                return replace(
                    each,
                    note=redact_tokens(f"`{piece}` holds for that step alone, and line {self._place.line} needs it"),
                    remedy=redact_tokens(_make_lasting(piece, self._place.line)),
                )
        return None

    def _explain_user(self, words: str, seen: Mapping[str, Sequence[str]]) -> Place | None:
        above = [each for each in self._instructions if each.name == "USER" and each.line < self._place.line]
        named = [(found[1], self._place) for found in _CHOWN.finditer(self._place.text)]
        named += [(each.text.split()[-1].partition(":")[0], each) for each in above[-1:]]
        for user, place in named:
            if user not in seen["user"] and re.search(rf"\b{re.escape(user)}\b", words):
                near = get_close_matches(user, seen["user"], 1, 0.75)
                command = "useradd --create-home" if "useradd" in seen["has"] else "adduser -D"
                made = f"write RUN {command} {user} above line {place.line}"
                remedy = f"write {near[0]} in place of {user}" if near else made
                return replace(place, note=f"the image has no user {user}", remedy=remedy)
        return None

    def _explain_file(self, path: str, seen: Mapping[str, Sequence[str]]) -> Place | None:
        place, name = self._place, posixpath.basename(path)
        context = f"{self._folder}/{self._build.context}" if self._build else "/nowhere"
        own = next((each for each in (path, name) if self._host.stat(f"{context}/{each}")), "")
        later = [each for each in self._instructions if each.name in ("COPY", "ADD") and each.line > place.line]
        copied = next((each.line for each in later if name in each.text or each.text.split()[1:2] == ["."]), 0)
        if own and copied:
            note = f"{path} is not in the image yet: line {copied} copies it only afterward"
            return replace(place, note=note, remedy=f"move line {copied} above line {place.line}")
        if near := get_close_matches(name, seen["entry"], 1, 0.75):
            note = f"{path} is not in the image, but {near[0]} is"
            return replace(place, note=note, remedy=f"write {near[0]} in place of {name}")
        note, remedy = (
            f"{path} is in the build context, but not in the image",
            f"write COPY {own} {path} above line {place.line}",
        )
        return replace(place, note=note, remedy=remedy) if own else None

    def _list_own_lines(self, place: Place | None = None) -> list[str]:
        """List the lines of an instruction, by default of the one that failed."""
        line = (place or self._place).line
        ends = [each.line - 1 for each in self._instructions if each.line > line]
        return self._lines[line - 1 : ends[0] if ends else None]

    def _works_in_bash(self) -> bool:
        return self._works('SHELL ["/bin/bash", "-c"]', *self._list_own_lines())

    def _works(self, *lines: str) -> bool:
        done = self._make(*lines)
        return done is not None and done.code == 0

    @cached_property
    def _fails_again(self) -> bool:
        """Whether the step also fails unchanged: what a network or a busy machine ended works the second time."""
        return not self._works(*self._list_own_lines())

    def _look(self, path: str, *stage: str) -> Mapping[str, Sequence[str]]:
        """Return the values that the script tells by their names, of the image or of another `stage`; empty where it cannot be run."""
        words = ["/bin/sh", "-c", f": {uuid.uuid4()}\n{_SCRIPT}", "sh", path]
        state = None if self._build else self._client.find()
        if state is not None and state.is_running:
            done: ProgramResult | None = self._client.call("exec", "--user=root", state.id, *words)
        else:
            done = self._make(*stage, "USER root", f"RUN {json.dumps(words)}")
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name, value in _LINE.findall(f"{done.out}\n{done.err}") if done else ():
            found[name].append(value)
        return found

    def _make(self, *lines: str) -> ProgramResult | None:
        """Build what stands above the instruction, and these lines; nothing is kept but the cache of the build."""
        image = self._client.container.properties.get("image")
        if not (self._build or image) or self._client.program != "docker":
            return None
        build: dict[str, Any] = {"args": {}, "context": self._folder}
        build |= write_build(self._build, self._folder) if self._build else {}
        above = self._lines[: self._place.line - 1] if self._build else [f"FROM {image}"]
        arguments = [f"--build-arg={key}={value}" for key, value in build["args"].items()]
        with tempfile.NamedTemporaryFile("w", suffix=".Dockerfile", encoding="utf-8") as file:
            file.write("\n".join((*above, *lines, "")))
            file.flush()
            options = ("--progress=plain", "--output=type=cacheonly", f"--file={file.name}", *arguments)
            return self._host.run(("docker", "buildx", "build", *options, build["context"]), deadline_s=_BUILD_S)


def _may_matter(piece: str, told: str) -> bool:
    """Say if a step that has and says `told` may need what a command changed: a variable that it names, or another folder."""
    word, _, rest = piece.partition(" ")
    name = rest.partition("=")[0].strip()
    if word == "export":
        return name == "PATH" or re.search(rf"\b{re.escape(name)}\b", told) is not None
    return word != "cd" or _ABSENCE.search(told) is not None


def _make_lasting(piece: str, line: int) -> str:
    """Say what makes a change of a step's shell hold for the later instructions of a Dockerfile."""
    word, _, rest = piece.partition(" ")
    environment = posixpath.dirname(rest) if word in ("source", ".") and rest.endswith("/bin/activate") else ""
    if word == "export" and "=" in rest:
        return f"write ENV {rest} in its place"
    if word == "cd":
        return f"write WORKDIR {rest} above line {line}"
    if environment.startswith("/"):
        return f"write ENV PATH={environment}:$PATH above line {line}"
    return f"write it at the beginning of line {line}, followed by &&"
