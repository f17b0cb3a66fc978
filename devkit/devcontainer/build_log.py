"""The steps of an image build, read from the plain progress of BuildKit, or of a builder before it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from devkit.text import format_duration, to_one_line

PLAIN_PROGRESS = {"BUILDKIT_PROGRESS": "plain", "COMPOSE_PROGRESS": "plain", "NO_COLOR": "1"}
MAX_NAME = 66
_BUILDKIT = re.compile(r"#(\d+) (.*)")
_STEP = re.compile(r"\[(?:[\w./-]+ )*(\d+/\d+)\] (.+)")
_END = re.compile(r"(?:DONE (\d+\.\d+)s|CACHED|ERROR:? .*)$")
_CLASSIC = re.compile(r"(?:\[\d+/\d+\] )?(?:Step|STEP) (\d+/\d+) ?: (.+)")
_OPTIONS = re.compile(r"^([A-Z]+ )(?:--\S+ )+")
"""Mounts and modes of an instruction, which would push its command off the line."""
_OUTPUT = re.compile(r"\d+\.\d+ (.*)")


@dataclass
class BuildStep:
    """One instruction of a Dockerfile, such as "3/9 RUN pip install torch". `end` is "" while it runs."""

    name: str
    end: str = ""
    output: list[str] = field(default_factory=list)

    @property
    def is_work(self) -> bool:
        """True if it does more than name a base image."""
        return not self.name.split(" ", 1)[-1].startswith("FROM")


class BuildLog:
    """Takes the lines of a build, and reports each step that does work when it begins and when it ends."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.lines: list[str] = []
        self.steps: dict[str, BuildStep] = {}
        self._report = report
        self._unfinished: list[str] = []
        """The output that the last line belongs to."""

    @property
    def built(self) -> tuple[str, ...]:
        """The steps that were not in the cache."""
        return tuple(step.name for step in self.steps.values() if step.end == "done" and step.is_work)

    @property
    def failed(self) -> BuildStep | None:
        """The step at which the build failed."""
        return next((step for step in self.steps.values() if step.end == "failed"), None)

    @property
    def excerpt(self) -> tuple[str, ...]:
        """The output of the step that failed."""
        return tuple(self.failed.output) if self.failed else ()

    def take(self, line: str) -> None:
        """Take one line of the build's output. Builders before BuildKit do not say how a step ends."""
        self.lines.append(line)
        if found := _BUILDKIT.fullmatch(line):
            self._take_buildkit(found[1], found[2])
        elif self._unfinished and line.strip():
            # BuildKit ends a line where a program had written only half of it.
            self._unfinished[-1] += line
        elif found := _CLASSIC.fullmatch(line.rstrip()):
            self._report(f"build {_name_step(found)} …")

    def _take_buildkit(self, number: str, text: str) -> None:
        step = self.steps.get(number)
        self._unfinished = step.output if step and _OUTPUT.fullmatch(text) else []
        if step is None:
            if found := _STEP.fullmatch(text):
                self.steps[number] = BuildStep(_name_step(found))
        elif found := _OUTPUT.fullmatch(text):
            if not step.output:
                self._report(f"build {step.name} …")
            step.output.append(found[1])
        elif (found := _END.fullmatch(text)) and (not step.end or text[0] == "E"):
            # BuildKit says DONE for each part of a base image; only an error comes later.
            step.end = {"C": "cached", "E": "failed"}.get(text[0], "done")
            if step.end == "failed":
                self._report(f"build {step.name} failed")
            elif step.end == "done" and step.is_work:
                self._report(f"build {step.name}  {format_duration(float(found[1]))}")


def _name_step(found: re.Match[str]) -> str:
    name = f"{found[1]} " + _OPTIONS.sub(r"\1", " ".join(to_one_line(found[2]).split()))
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
