"""What must change in a dev container that somebody wrote, so that the doctor has nothing to say of it.

The checks judge the project's files for the machines of the plan; what they find is repaired in memory, and they judge
again, until a round finds nothing that can be repaired. So init and doctor never disagree, and every change has a code.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from devkit import __version__
from devkit.compat.images import find_image_system
from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.project.containers import ProjectContainer, require_project_containers
from devkit.doctor.checks.project.images import CudaTag
from devkit.doctor.model import Check, Confidence, NotApplicable, Repair, RepairKind
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import ReportedFinding, build_report
from devkit.doctor.runner import run_checks
from devkit.errors import DevkitError
from devkit.facts.gpu import Gpu, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.model import Facts, FileState, Platform, Project
from devkit.facts.values import NOT_READ, Unknown
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost, Stat, decode_text
from devkit.render.adopt.dockerfile import (
    IMAGE_REPAIRS,
    PinnedVersions,
    RepairContext,
    is_dockerfile,
    pin_dockerfile,
    pin_requirements_file,
)
from devkit.render.adopt.gpu_overlay import SETTLED_BY_OVERLAY, ServiceOverlays
from devkit.render.changes import FileChange, compute_changes
from devkit.render.devkit_lock import LOCK_PATH, DevkitLock, read_project_lock, render_lock
from devkit.render.files import Artifact, read_file
from devkit.render.ignore_files import update_gitignore
from devkit.render.project import DevkitProject, render_user_files
from devkit.render.repair import CannotRepair, apply_repair
from devkit.render.splice.jsonc import load_jsonc
from devkit.solver.plan import Constraint, Machine, Plan

# A machine on which some files of the project read as they would after a change that nobody has made yet.


class PatchedHost(LocalHost):
    """This machine with other texts in some of its files, by absolute path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def read(self, path: str) -> str | None:
        """The text of a file as it would be."""
        return self._texts[path] if path in self._texts else super().read(path)

    def stat(self, path: str) -> Stat | None:
        """Of a changed file its future size."""
        found = super().stat(path)
        return replace(found, size=len(self._texts[path])) if found and path in self._texts else found


_PROJECT_CHECKS = tuple(check for check in CHECKS if check.code.startswith("PRJ"))
_MOST_ROUNDS = 20


_PINNING = ("PRJ024", "PRJ026")
_START = tuple(check for check in CHECKS if check.code == "PRJ011")


@dataclass(frozen=True)
class AppliedRepair:
    """A change of one file, and the finding that asked for it."""

    code: str
    path: str
    message: str


@dataclass(frozen=True)
class Adoption:
    """The files as they would be, by path; the changes in them; and the findings that somebody has to see to.

    `own` are devkit's own files beside the user's, `local` paths that differ from host to host from now on.
    """

    texts: Mapping[str, bytes] = field(default_factory=dict)
    overlay_files: tuple[Artifact, ...] = ()
    local: tuple[str, ...] = ()
    repairs: tuple[AppliedRepair, ...] = ()
    unresolved: tuple[ReportedFinding, ...] = ()


def compute_adoption(
    root: Path, paths: tuple[str, ...], plan: Plan, machines: tuple[Machine, ...], lock: DevkitLock
) -> Adoption:
    """How the project's own container files become fit for the plan. Reads the disk, writes nothing.

    `paths` are its devcontainer.json files, `lock` tells what an earlier plan put into the files.
    Raises: DevkitError for a file that does not parse.
    """
    rounds = _Rounds(root, paths, plan, machines)
    for path in find_pinned_files(lock):
        rounds.pin_anew(path, dict(lock.plan.get("packages", {})))
    for _ in range(_MOST_ROUNDS):
        shown = rounds.look()
        if not rounds.repair(shown):
            break
    left = tuple(rounds.look())
    own, local = rounds.lay_overlays()
    return Adoption(rounds.changed(), own, local, tuple(rounds.made), left)


def find_pinned_files(lock: DevkitLock) -> tuple[str, ...]:
    """The files in which an earlier run pinned versions."""
    return tuple(path for path, codes in lock.repaired.items() if any(code in _PINNING for code in codes))


def is_own_pin(lock: DevkitLock, path: str, name: str, specifier: str) -> bool:
    """Whether an earlier run wrote this version into this file: then it is an answer, and asks for nothing."""
    version = specifier.removeprefix("==").partition("+")[0]
    return path in find_pinned_files(lock) and version == lock.plan.get("packages", {}).get(name)


class _Rounds:
    """The project's files while they are judged and changed in turns."""

    def __init__(self, root: Path, paths: tuple[str, ...], plan: Plan, machines: tuple[Machine, ...]) -> None:
        self._root = root.resolve()
        self._versions = PinnedVersions.from_plan(plan)
        self._machines = machines
        self._facts: Facts | None = None
        self._read: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = {}
        self._overlays = ServiceOverlays(self._root, plan, paths, self.text)
        self.made: list[AppliedRepair] = []

    def look(self) -> list[ReportedFinding]:
        """What the checks find now, for all machines of the plan, each finding once."""
        facts = gather_facts(self._host(), only=("system", "project"), project=str(self._root))
        if isinstance(facts.project, Project):
            _refuse_broken(facts.project)
        if self._facts is None:
            self._overlays.choose_existing(facts, self._host())
        self._facts = facts
        found: dict[tuple[str, str], ReportedFinding] = {}
        for judged, checks in _judged(facts, self._machines):
            outcomes = run_checks(checks, judged, clock=lambda: 0.0)
            for shown in build_report(judged, outcomes, devkit=__version__).roots:
                if not self._overlays.settles(shown, facts):
                    found.setdefault((shown.check.code, shown.finding.message), shown)
        return list(found.values())

    def repair(self, shown: list[ReportedFinding]) -> bool:
        """Make the changes that these findings ask for. Returns whether there were any."""
        touched: set[str] = set()
        has_overlay = False
        for one in shown:
            if self._choose_overlay(one):
                has_overlay = True
                continue
            try:
                changes = {path: content for path, content in self._changes(one) if content != self.text(path)}
            except UnicodeDecodeError:
                continue  # The file is not UTF-8: the finding is left to its author.
            # Findings know lines of the text as it was judged: a file that was changed waits for the next round.
            if touched.isdisjoint(changes):
                touched |= changes.keys()
                self._texts |= changes
                self.made += [AppliedRepair(one.check.code, path, one.finding.message) for path in changes]
        return bool(touched) or has_overlay

    def lay_overlays(self) -> tuple[tuple[Artifact, ...], tuple[str, ...]]:
        """Put devkit's overlays into the lists of Compose files. Returns devkit's own files, and paths to ignore."""
        if self._facts is None:
            return (), ()
        finished = self._overlays.render(self._facts, self._host())
        self._texts |= finished.texts
        return finished.own, finished.local

    def pin_anew(self, path: str, before: Mapping[str, str]) -> None:
        """Put the plan's versions in the place of those that an earlier plan put there."""
        now = self.text(path).decode()
        versions = replace(self._versions, before=before)
        content = pin_dockerfile(now, versions) if is_dockerfile(now) else pin_requirements_file(now, versions)
        if content != now:
            self._texts[path] = content.encode()
            self.made.append(AppliedRepair("PRJ026", path, "the plan has other versions now"))

    def text(self, path: str) -> bytes:
        """A file as it would be after the changes so far."""
        if path not in self._texts:
            self._read.setdefault(path, read_file(self._root, path) or b"")
            return self._read[path]
        return self._texts[path]

    def changed(self) -> dict[str, bytes]:
        """The files that differ from what is on the disk."""
        return {path: content for path, content in self._texts.items() if content != self._read.get(path)}

    def _host(self) -> PatchedHost:
        """The project as it is judged."""
        texts = {path: decode_text(content) for path, content in self._texts.items()} | dict(
            self._overlays.read_texts_without_overlays()
        )
        return PatchedHost({str(self._root / path): text for path, text in texts.items()})

    def _choose_overlay(self, shown: ReportedFinding) -> bool:
        """Settle the finding by an overlay; False for one that asks for something else."""
        if shown.check.code not in SETTLED_BY_OVERLAY or self._facts is None:
            return False
        units = self._overlays.find_units(shown, self._facts)
        chosen = [unit for unit in units if self._overlays.choose(unit, self._host())]
        self.made += [AppliedRepair(shown.check.code, unit.name, shown.finding.message) for unit in chosen]
        return bool(chosen)

    def _changes(self, shown: ReportedFinding) -> Iterator[tuple[str, bytes]]:
        if shown.finding.confidence is Confidence.POSSIBLE:
            return
        yield from self._of_repairs(shown.finding.fix.repairs)
        if shown.check.code in IMAGE_REPAIRS and self._facts is not None:
            target = RepairContext(self._facts, self._versions, self.text)
            yield from IMAGE_REPAIRS[shown.check.code](target, shown.finding)

    def _of_repairs(self, repairs: tuple[Repair, ...]) -> list[tuple[str, bytes]]:
        """The doctor's own repairs: all of a finding, or none where one cannot be made."""
        texts: dict[str, bytes] = {}
        for repair in repairs:
            if repair.key[:1] == ("hostRequirements",) and _is_for_jetbrains(self.text(repair.path)):
                return []
            if repair.kind is RepairKind.MAKE_DIRECTORY or repair.path.startswith(("~", "/")):
                return []
            try:
                texts[repair.path] = apply_repair(texts.get(repair.path, self.text(repair.path)), repair).encode()
            except CannotRepair:
                return []
        return list(texts.items())


def _judged(facts: Facts, machines: tuple[Machine, ...]) -> Iterator[tuple[Facts, tuple[Check, ...]]]:
    """The project on each machine of the plan; and on a teammate's without a GPU, where it has to start as well."""
    for machine in machines:
        yield _on(facts, machine), _PROJECT_CHECKS
    if any(machine.gpus for machine in machines):
        yield _without_gpu(facts), _START


def _without_gpu(facts: Facts) -> Facts:
    no_library = NvmlFailure(NvmlEnd.LIBRARY_NOT_FOUND, 0, "not a GPU machine", "nvmlInit")
    system = facts.system if isinstance(facts.system, Unknown) else replace(facts.system, platform=Platform.LINUX)
    # Wherever init runs, in WSL or in a container: it is the teammate's machine that is judged.
    return replace(facts, nvml=no_library, system=system, container=None)


def _on(facts: Facts, machine: Machine) -> Facts:
    """The project as it would be judged on a machine of the plan: all that is known of it are driver and GPUs."""
    if not machine.gpus:
        return _without_gpu(facts)
    gpus = tuple(
        Gpu(
            index=index,
            uuid=NOT_READ,
            name=name,
            capability=capability,
            memory_bytes=NOT_READ,
            free_bytes=NOT_READ,
            mig_enabled=NOT_READ,
            mig_instances=(),
        )
        for index, (name, capability) in enumerate(machine.gpus)
    )
    return replace(facts, nvml=NvmlAnswer(machine.driver or NOT_READ, machine.cuda or NOT_READ, gpus))


def _is_for_jetbrains(content: bytes) -> bool:
    """Whether a devcontainer.json says so: JetBrains's tools hear no hostRequirements, and would lose the GPU."""
    try:
        return "jetbrains" in (load_jsonc(content.decode()).get("customizations") or {})
    except (ValueError, AttributeError):
        return False


def _refuse_broken(project: Project) -> None:
    for file in project.files:
        if file.state is FileState.BROKEN:
            raise DevkitError(
                f"{file.path}, line {file.line}: {file.problem}", "Correct that line; nothing was written."
            )


# What a project's own dev container asks of a plan.

_PYTHON = re.compile(r"(?:^|/)python:(?:\d+-)?(3\.\d+)")
_SYSTEM = re.compile(r"([a-z]+)([\d.]+)")


@dataclass(frozen=True)
class ExistingContainer:
    """A dev container that somebody wrote, and what it asks of a plan; "" leaves the choice to the plan.

    `lock` is that of an earlier adoption, an empty one before the first.
    """

    paths: tuple[str, ...]
    image: str
    python: str
    constraints: tuple[Constraint, ...]
    lock: DevkitLock


def read_existing_container(root: Path, paths: tuple[str, ...]) -> ExistingContainer:
    """The project's own dev container, whose devcontainer.json files have these paths."""
    lock = read_project_lock(root)
    units = _units(root)
    image, python = _image(units)
    return ExistingContainer(paths, image, python, tuple(_constraints(units, lock)), lock)


def _units(root: Path) -> tuple[ProjectContainer, ...]:
    try:
        units = require_project_containers(gather_facts(LocalHost(), only=("project",), project=str(root.resolve())))
    except NotApplicable:
        return ()
    return tuple(unit for unit in units if unit.dev is not None)


def _image(units: tuple[ProjectContainer, ...]) -> tuple[str, str]:
    """The image to plan for, and its Python: the system of a CUDA image without CUDA, any other as it is."""
    image = next((unit.image.value for unit in units if unit.image is not None), "")
    tag = CudaTag.of(image)
    if tag is not None and tag.flavour != "devel" and (system := _SYSTEM.fullmatch(tag.system)):
        image = f"{system[1]}:{system[2]}"
    found = _PYTHON.search(image)
    return image, found[1] if found else _python_of_system(image)


def _python_of_system(image: str) -> str:
    """The Python that comes with a bare system, such as ubuntu:22.04; "" where nobody can tell."""
    system = find_image_system(image, load_tables().images.systems)
    return system.python if system and re.search(rf"(?:^|/){system.name}:", image) else ""


def _constraints(units: tuple[ProjectContainer, ...], lock: DevkitLock) -> Iterator[Constraint]:
    """What the image's own commands pin, except what devkit pinned there."""
    for unit in units:
        for install in unit.installs:
            for one in install.requirements:
                is_asked = re.match(r"[=<>!~]", one.specifier) is not None
                if is_asked and not is_own_pin(lock, one.path, one.name, one.specifier):
                    yield Constraint(one.name, one.specifier, f"{one.path}:{one.line}")


# A plan and the project's own dev container, as changes of files.


def compute_adopted_changes(
    project: DevkitProject, existing: ExistingContainer, plan: Plan, machines: tuple[Machine, ...]
) -> tuple[tuple[FileChange, ...], Adoption]:
    """What making the project's own dev container fit the plan would change. Reads the disk, writes nothing.

    Raises: DevkitError for files that cannot be read or do not parse.
    """
    adoption = compute_adoption(project.root, existing.paths, plan, machines, existing.lock)
    repaired = dict(existing.lock.repaired)
    for made in adoption.repairs:
        repaired[made.path] = tuple(sorted({*repaired.get(made.path, ()), made.code}))
    texts = [Artifact(path, content) for path, content in sorted(adoption.texts.items())]
    ignore_files, ignored = update_gitignore(project.root, adoption.local, existing.lock.ignored)
    lock = _kept_lock(project.root, render_lock(plan, adoption.overlay_files, machines, repaired, ignored=ignored))
    edited = [*render_user_files(project), *ignore_files, *texts]
    return compute_changes(project.root, (*adoption.overlay_files, lock), edited, adopts=True), adoption


def _kept_lock(root: Path, lock: Artifact) -> Artifact:
    """The lock as it lies in the project where only the words of reasons differ.

    A reason names the line of a pin, and a repair may move that line: nothing was decided anew.
    """
    before = read_file(root, LOCK_PATH)
    is_same = before is not None and _without_words(before) == _without_words(lock.content)
    return replace(lock, content=before) if before is not None and is_same else lock


def _without_words(content: bytes) -> object:
    document = json.loads(content)
    reasons = document.get("plan", {}).get("reasons", [])
    document.get("plan", {})["reasons"] = [{**reason, "because": ""} for reason in reasons]
    return document
