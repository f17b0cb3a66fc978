"""The steps of an image build, read from the plain progress of BuildKit, or of a builder before it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

_BUILDKIT = re.compile(r"#(\d+) (.*)")
_STEP = re.compile(r"\[(?:[\w./-]+ )*(\d+)/(\d+)\] (.+)")
_END = re.compile(r"(?:DONE (\d+\.\d+)s|CACHED|CANCELED|ERROR:? .*)$")
_CLASSIC = re.compile(r"(?:\[\d+/\d+\] )?(?:Step|STEP) (\d+)/(\d+) ?: (.+)")
_OPTIONS = re.compile(r"^(\d+/\d+ [A-Z]+ )(?:--\S+ )+")
"""Mounts and modes of an instruction, which would push its command off the line."""
_OUTPUT = re.compile(r"\d+\.\d+ (.*)")


class StepEnd(StrEnum):
    """The ways in which a build step ends."""

    DONE = "done"
    CACHED = "cached"
    FAILED = "failed"


@dataclass
class BuildStep:
    """One instruction of a Dockerfile, such as "3/9 RUN pip install torch". `end` is None while it runs."""

    name: str
    end: StepEnd | None = None
    seconds: float = 0.0
    output: list[str] = field(default_factory=list)


class BuildLog:
    """Takes the lines of a build and reports each step when it begins and when it ends."""

    def __init__(self, report: Callable[[BuildStep], None]) -> None:
        self.lines: list[str] = []
        self._report = report
        self._steps: dict[str, BuildStep] = {}
        self._classic: BuildStep | None = None

    @property
    def steps(self) -> tuple[BuildStep, ...]:
        """The instructions that were begun, in their order."""
        return tuple(self._steps.values())

    @property
    def failed(self) -> BuildStep | None:
        """The step at which the build failed."""
        return next((step for step in self.steps if step.end is StepEnd.FAILED), None)

    def take(self, line: str) -> None:
        """Take one line of the build's output."""
        self.lines.append(line)
        if found := _BUILDKIT.fullmatch(line):
            self._take_buildkit(found[1], found[2])
        elif found := _CLASSIC.fullmatch(line.rstrip()):
            self._end_classic(StepEnd.DONE)
            self._classic = self._begin(f"classic {len(self._steps)}", f"{found[1]}/{found[2]} {found[3]}")
        elif self._classic is not None:
            if line.strip(" ->") == "Using cache" or line.startswith("--> Using cache"):
                self._end_classic(StepEnd.CACHED)
            else:
                self._classic.output.append(line)

    def close(self, *, is_failed: bool) -> None:
        """End the steps that no line has ended."""
        if is_failed and self._classic is not None:
            self._end_classic(StepEnd.FAILED)
        self._end_classic(StepEnd.DONE)

    def _take_buildkit(self, number: str, text: str) -> None:
        step = self._steps.get(number)
        if step is None:
            if found := _STEP.fullmatch(text):
                self._begin(number, f"{found[1]}/{found[2]} {found[3]}")
            return
        if found := _END.fullmatch(text):
            ended = {"C": StepEnd.CACHED, "E": StepEnd.FAILED}.get(text[0], StepEnd.DONE)
            # A step that waits for a base image says DONE for each part; the last one counts.
            is_new = step.end is None or ended is StepEnd.FAILED
            step.end, step.seconds = (step.end if text == "CANCELED" else ended), float(found[1] or 0)
            if is_new:
                self._report(step)
        elif found := _OUTPUT.fullmatch(text):
            step.output.append(found[1])

    def _begin(self, key: str, name: str) -> BuildStep:
        step = self._steps[key] = BuildStep(_OPTIONS.sub(r"\1", " ".join(name.split())))
        self._report(step)
        return step

    def _end_classic(self, end: StepEnd) -> None:
        if self._classic is not None:
            self._classic.end = end
            self._report(self._classic)
            self._classic = None
