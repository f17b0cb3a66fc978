"""What must change in a dev container that somebody wrote, so that the doctor has nothing to say of it.

The checks judge the project's files for the machines of the plan; what they find is repaired in memory, and they judge
again, until a round finds nothing that can be repaired. So init and doctor never disagree, and every change has a code.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from devkit import __version__
from devkit.doctor.model import Check, Confidence, Repair, RepairKind
from devkit.doctor.registry import CHECKS
from devkit.doctor.report import Shown, report_of
from devkit.doctor.run import run
from devkit.errors import DevkitError
from devkit.facts.gpu import Gpu, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.model import Facts, FileState, Platform, Project
from devkit.facts.values import NOT_READ, Unknown
from devkit.probe.gather import gather
from devkit.probe.host import decoded
from devkit.render.adopt.dockerfile import Versions, is_dockerfile, with_requirements, with_versions
from devkit.render.adopt.image_repairs import IMAGE_REPAIRS, Target
from devkit.render.adopt.laying import SETTLED, Overlays
from devkit.render.adopt.overlay import ChangedHost
from devkit.render.artifact import Artifact
from devkit.render.folder import read_file
from devkit.render.lock import Lock
from devkit.render.repair import CannotRepair, repaired
from devkit.render.splice_json import loads as read_json
from devkit.solver.model import Machine, Plan

_PROJECT_CHECKS = tuple(check for check in CHECKS if check.code.startswith("PRJ"))
_MOST_ROUNDS = 20


_PINNING = ("PRJ024", "PRJ026")
_START = tuple(check for check in CHECKS if check.code == "PRJ011")


@dataclass(frozen=True)
class Made:
    """A change of one file, and the finding that asked for it."""

    code: str
    path: str
    says: str


@dataclass(frozen=True)
class Adoption:
    """The files as they would be, by path; the changes in them; and the findings that somebody has to see to.

    `own` are devkit's own files beside the user's, `local` paths that differ from host to host from now on.
    """

    texts: Mapping[str, bytes] = field(default_factory=dict)
    own: tuple[Artifact, ...] = ()
    local: tuple[str, ...] = ()
    made: tuple[Made, ...] = ()
    left: tuple[Shown, ...] = ()


def adoption_of(root: Path, paths: tuple[str, ...], plan: Plan, machines: tuple[Machine, ...], lock: Lock) -> Adoption:
    """How the project's own container files become fit for the plan. Reads the disk, writes nothing.

    `paths` are its devcontainer.json files, `lock` tells what an earlier plan put into the files.
    Raises: DevkitError for a file that does not parse.
    """
    rounds = _Rounds(root, paths, plan, machines)
    for path in pinned_files(lock):
        rounds.pin_anew(path, dict(lock.plan.get("packages", {})))
    for _ in range(_MOST_ROUNDS):
        shown = rounds.look()
        if not rounds.repair(shown):
            break
    left = tuple(rounds.look())
    own, local = rounds.lay_overlays()
    return Adoption(rounds.changed(), own, local, tuple(rounds.made), left)


def pinned_files(lock: Lock) -> tuple[str, ...]:
    """The files in which an earlier run pinned versions."""
    return tuple(path for path, codes in lock.repaired.items() if any(code in _PINNING for code in codes))


def is_own_pin(lock: Lock, path: str, name: str, specifier: str) -> bool:
    """Whether an earlier run wrote this version into this file: then it is an answer, and asks for nothing."""
    version = specifier.removeprefix("==").partition("+")[0]
    return path in pinned_files(lock) and version == lock.plan.get("packages", {}).get(name)


class _Rounds:
    """The project's files while they are judged and changed in turns."""

    def __init__(self, root: Path, paths: tuple[str, ...], plan: Plan, machines: tuple[Machine, ...]) -> None:
        self._root = root.resolve()
        self._versions = Versions.of(plan)
        self._machines = machines
        self._facts: Facts | None = None
        self._read: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = {}
        self._overlays = Overlays(self._root, plan, paths, self.text)
        self.made: list[Made] = []

    def look(self) -> list[Shown]:
        """What the checks find now, for all machines of the plan, each finding once."""
        facts = gather(self._host(), only=("system", "project"), project=str(self._root))
        if isinstance(facts.project, Project):
            _refuse_broken(facts.project)
        if self._facts is None:
            self._overlays.keep(facts, self._host())
        self._facts = facts
        found: dict[tuple[str, str], Shown] = {}
        for judged, checks in _judged(facts, self._machines):
            outcomes = run(checks, judged, clock=lambda: 0.0)
            for shown in report_of(judged, outcomes, devkit=__version__).roots:
                if not self._overlays.settles(shown, facts):
                    found.setdefault((shown.check.code, shown.finding.message), shown)
        return list(found.values())

    def repair(self, shown: list[Shown]) -> bool:
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
                self.made += [Made(one.check.code, path, one.finding.message) for path in changes]
        return bool(touched) or has_overlay

    def lay_overlays(self) -> tuple[tuple[Artifact, ...], tuple[str, ...]]:
        """Put devkit's overlays into the lists of Compose files. Returns devkit's own files, and paths to ignore."""
        if self._facts is None:
            return (), ()
        finished = self._overlays.finished(self._facts, self._host())
        self._texts |= finished.texts
        return finished.own, finished.local

    def pin_anew(self, path: str, before: Mapping[str, str]) -> None:
        """Put the plan's versions in the place of those that an earlier plan put there."""
        now = self.text(path).decode()
        versions = replace(self._versions, before=before)
        content = with_versions(now, versions) if is_dockerfile(now) else with_requirements(now, versions)
        if content != now:
            self._texts[path] = content.encode()
            self.made.append(Made("PRJ026", path, "the plan has other versions now"))

    def text(self, path: str) -> bytes:
        """A file as it would be after the changes so far."""
        if path not in self._texts:
            self._read.setdefault(path, read_file(self._root, path) or b"")
            return self._read[path]
        return self._texts[path]

    def changed(self) -> dict[str, bytes]:
        """The files that differ from what is on the disk."""
        return {path: content for path, content in self._texts.items() if content != self._read.get(path)}

    def _host(self) -> ChangedHost:
        """The project as it is judged."""
        texts = {path: decoded(content) for path, content in self._texts.items()} | dict(self._overlays.judged_texts())
        return ChangedHost({str(self._root / path): text for path, text in texts.items()})

    def _choose_overlay(self, shown: Shown) -> bool:
        """Settle the finding by an overlay; False for one that asks for something else."""
        if shown.check.code not in SETTLED or self._facts is None:
            return False
        units = self._overlays.concerned(shown, self._facts)
        chosen = [unit for unit in units if self._overlays.choose(unit, self._host())]
        self.made += [Made(shown.check.code, unit.name, shown.finding.message) for unit in chosen]
        return bool(chosen)

    def _changes(self, shown: Shown) -> Iterator[tuple[str, bytes]]:
        if shown.finding.confidence is Confidence.POSSIBLE:
            return
        yield from self._of_repairs(shown.finding.fix.repairs)
        if shown.check.code in IMAGE_REPAIRS and self._facts is not None:
            target = Target(self._facts, self._versions, self.text)
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
                texts[repair.path] = repaired(texts.get(repair.path, self.text(repair.path)), repair).encode()
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
        return "jetbrains" in (read_json(content.decode()).get("customizations") or {})
    except (ValueError, AttributeError):
        return False


def _refuse_broken(project: Project) -> None:
    for file in project.files:
        if file.state is FileState.BROKEN:
            raise DevkitError(
                f"{file.path}, line {file.line}: {file.problem}", "Correct that line; nothing was written."
            )
