"""Which dev containers get devkit's overlay for their GPU, while their files are judged and changed in turns."""

import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from devkit.doctor.checks.project_host import wished_gpu
from devkit.doctor.checks.project_units import Unit, placed, units_of
from devkit.doctor.model import NotApplicable
from devkit.doctor.report import Shown
from devkit.facts.model import Facts
from devkit.probe.host import Host
from devkit.probe.project_files import ProjectFiles
from devkit.render.adopt.gpu_overlay import (
    Overlay,
    lists_overlay,
    overlay_artifacts,
    overlay_of,
    with_overlay,
    without_overlays,
)
from devkit.render.artifact import Artifact
from devkit.render.splice import CannotSplice
from devkit.solver.model import Plan

SETTLED = ("PRJ005", "PRJ007", "PRJ011")
"""Findings on a Compose service that the overlay settles: no request, one that only some editors hear, a hard one."""


@dataclass(frozen=True)
class Finished:
    """The texts of devcontainer.json files by path, devkit's own files, and paths to keep out of version control."""

    texts: dict[str, bytes]
    own: tuple[Artifact, ...]
    local: tuple[str, ...]


class Overlays:
    """The overlays of one project. `text` gives each file as it would be."""

    def __init__(self, root: Path, plan: Plan, paths: tuple[str, ...], text: Callable[[str], bytes]) -> None:
        self._root = root
        self._plan = plan
        self._paths = paths
        self._text = text
        self._chosen: dict[str, tuple[str, ...]] = {}

    def judged_texts(self) -> Iterator[tuple[str, str]]:
        """Each devcontainer.json without devkit's overlays: what is judged and repaired is the user's own."""
        for path in self._paths:
            try:
                now = self._text(path).decode()
                before = without_overlays(now)
            except (UnicodeDecodeError, ValueError, CannotSplice):
                continue  # What is wrong with it is said of the file itself.
            if before != now:
                yield path, before

    def keep(self, facts: Facts, host: Host) -> None:
        """Choose every dev container that has its overlay from an earlier run."""
        for unit in _units(facts):
            if unit.dev is not None and lists_overlay(self._text(unit.dev.path)):
                self.choose(unit, host)

    def settles(self, shown: Shown, facts: Facts) -> bool:
        """Whether this is a finding that a chosen overlay settles, or one on a service that is no dev container."""
        if shown.check.code not in SETTLED:
            return False
        units = self.concerned(shown, facts)
        if not units:
            return _is_of_service(shown, facts)
        return any(unit.dev is not None and unit.dev.path in self._chosen for unit in units)

    def concerned(self, shown: Shown, facts: Facts) -> list[Unit]:
        """The dev containers of Compose that the finding is about."""
        return [
            unit
            for unit in _units(facts)
            if unit.dev is not None and unit.is_compose and shown.finding.subject in _subjects(unit)
        ]

    def choose(self, unit: Unit, host: Host) -> bool:
        """Take the dev container among those with an overlay, where one can be written."""
        overlay = self._made(unit, host)
        # All overlays share the files for each way to a GPU, and these name the GPUs.
        if overlay is None or any(
            devices != overlay.devices for dev, devices in self._chosen.items() if dev != overlay.dev
        ):
            return False
        self._chosen[overlay.dev] = overlay.devices
        return True

    def finished(self, facts: Facts, host: Host) -> "Finished":
        """Each devcontainer.json with its overlay in the list, and devkit's own files."""
        chosen = [unit for unit in _units(facts) if unit.dev is not None and unit.dev.path in self._chosen]
        overlays = tuple(overlay for unit in chosen if (overlay := self._made(unit, host)) is not None)
        texts = {overlay.dev: with_overlay(self._text(overlay.dev).decode(), overlay).encode() for overlay in overlays}
        local = dict.fromkeys(posixpath.normpath(f"{overlay.folder}/.env") for overlay in overlays)
        return Finished(texts, tuple(overlay_artifacts(overlays, self._plan)), tuple(local))

    def _made(self, unit: Unit, host: Host) -> Overlay | None:
        overlay = overlay_of(unit, ProjectFiles(host, str(self._root)), self._plan)
        if overlay is None:
            return None
        try:
            with_overlay(self._text(overlay.dev).decode(), overlay)
        except (UnicodeDecodeError, CannotSplice):
            return None
        return overlay


def _units(facts: Facts) -> tuple[Unit, ...]:
    try:
        return units_of(facts)
    except NotApplicable:
        return ()


def _subjects(unit: Unit) -> set[str]:
    wish = wished_gpu(unit)
    places = [(unit.location.path, unit.location.line), *((one.path, one.line) for one in unit.requests)]
    return {placed(path, line) for path, line in places} | ({placed(wish.path, wish.line)} if wish else set())


def _is_of_service(shown: Shown, facts: Facts) -> bool:
    subjects = [_subjects(unit) for unit in _units(facts) if unit.dev is None]
    return any(shown.finding.subject in each for each in subjects)
