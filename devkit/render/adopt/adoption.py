"""The adoption of dev containers that somebody wrote: edited in three ways, and every other finding is named.

The project's checks run for the machines of the plan once before the edits and once after them. The edits are the GPU
request and the shared memory of a container, and the version and the index of its torch. init and doctor never disagree,
because a finding of the doctor calls for each edit, and those that are left are the doctor's, too.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from devkit.doctor.checks.project.containers import (
    MANIFESTS,
    TORCH_PACKAGES,
    ProjectContainer,
    TorchOrigin,
    TorchSource,
    find_gpu_evidence,
    find_torch_source,
    require_project_containers,
)
from devkit.doctor.checks.project.gpu_requests import find_gpu_host_requirement
from devkit.doctor.model import NotApplicable, Severity, format_location
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import ReportedFinding, build_report
from devkit.doctor.runner import run_checks
from devkit.errors import DevkitError
from devkit.facts.dependencies import Dependencies
from devkit.facts.gpu import Gpu, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.machine import Platform
from devkit.facts.model import Facts
from devkit.facts.project import FileState, Project
from devkit.facts.values import NOT_READ, Unknown
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost, Stat
from devkit.probe.project.files import ProjectFiles
from devkit.release import __version__
from devkit.render.adopt.dev_container import (
    TorchPin,
    is_dev_container_file,
    pin_container,
    request_gpu,
    set_shared_memory,
)
from devkit.render.adopt.gpu_overlay import (
    OVERLAY_FOLDER,
    SETTLED_BY_OVERLAY,
    ServiceOverlay,
    add_overlay,
    build_service_overlay,
    has_overlay,
    hide_overlays,
    render_service_overlays,
)
from devkit.render.changes import FileChange, compute_changes
from devkit.render.devkit_lock import DevkitLock, read_project_lock, render_lock
from devkit.render.files import Artifact, read_file
from devkit.render.project import DevkitProject, is_for_windows, render_user_files
from devkit.render.text_edits import CannotEdit, update_gitignore
from devkit.solver.plan import Constraint, Machine, Plan
from devkit.solver.project import strip_line_numbers

_PROJECT_CHECKS = tuple(check for check in CHECKS if check.code.startswith("PRJ"))
_START_CHECKS = tuple(check for check in CHECKS if check.code == "PRJ011")
_GPU_CODES = frozenset(("PRJ002", "PRJ003", "PRJ005", "PRJ008", "PRJ011"))
_MEMORY_CODES = frozenset(("PRJ020",))
_TORCH_CODES = frozenset(("PRJ024", "PRJ026"))
_CONSTRAINTS_PATH = f"{OVERLAY_FOLDER}/constraints.txt"


class PatchedHost(LocalHost):
    """This machine with other texts in some of its files, by absolute path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def read(self, path: str) -> str | None:
        """Return the text of a file, the other one where there is one."""
        return self._texts[path] if path in self._texts else super().read(path)

    def stat(self, path: str) -> Stat | None:
        """Return the status of a file; an ordinary one where there is none yet."""
        return super().stat(path) or (Stat("file", 0o644, 0, 0, 0) if path in self._texts else None)

    def link(self, path: str) -> str | None:
        """Return the path that `path` resolves to; itself where there is no file yet."""
        return super().link(path) or (path if path in self._texts else None)


class EditedFiles:
    """The project's files with the edits so far, in memory. Bytes that are not UTF-8 come through unchanged."""

    def __init__(self, root: Path, paths: Iterable[str], new: Mapping[str, bytes]) -> None:
        self._root = root.resolve()
        self._paths = tuple(paths)
        self._texts = {path: content.decode() for path, content in new.items()}
        self._on_disk: dict[str, str] = {}

    def read(self, path: str) -> str:
        """Return the text of a file, "" where there is none."""
        if path in self._texts:
            return self._texts[path]
        if path not in self._on_disk:
            self._on_disk[path] = (read_file(self._root, path) or b"").decode(errors="surrogateescape")
        return self._on_disk[path]

    def write(self, path: str, text: str) -> bool:
        """Keep the new text of a file. Returns False where it is the present one."""
        is_changed = text != self.read(path)
        if is_changed:
            self._texts[path] = text
        return is_changed

    def gather_facts(self) -> Facts:
        """Gather the facts of the edited project without devkit's overlays, which hide the user's own requests.

        Raises: DevkitError for files that could not be read in time, and for broken ones.
        """
        facts = gather_facts(self.make_host(), only=("system", "project"), project=str(self._root))
        if isinstance(facts.project, Unknown):
            raise DevkitError(
                f"the dev container was not read: {facts.project.reason}", "Repeat it when the machine is less busy."
            )
        for file in facts.project.files if isinstance(facts.project, Project) else ():
            if file.state is FileState.BROKEN:
                raise DevkitError(
                    f"{file.path}, line {file.line}: {file.problem}", "Correct that line; nothing was written."
                )
        return facts

    def make_host(self) -> PatchedHost:
        """Return the machine with the edited files, without devkit's overlays."""
        texts = self._texts | {path: hide_overlays(self.read(path)) for path in self._paths}
        return PatchedHost({str(self._root / path): text for path, text in texts.items()})

    def list_changed(self) -> list[Artifact]:
        """List the files that differ from those on the disk."""
        changed = sorted((path, text) for path, text in self._texts.items() if text != self._on_disk.get(path))
        return [Artifact(path, text.encode(errors="surrogateescape")) for path, text in changed]


Pin = tuple[str, str, str]
"""A file's path, a package and its specifier, such as "==2.9.1"."""


@dataclass(frozen=True)
class ExistingContainer:
    """The dev containers that somebody wrote, and their requirements for a plan; "" leaves the choice to the plan.

    `torch` is the torch of each dev container by path. `takes_plan` says that devkit can give one of them the plan's
    torch: otherwise the constraints are those of the torch that they have. `needs_gpu` is False for containers without
    GPU work. `lock` is that of an earlier adoption, an empty one before the first. `own_pins` are those that earlier runs
    wrote: they constrain nothing.
    """

    files: EditedFiles
    facts: Facts
    image: str
    constraints: tuple[Constraint, ...]
    lock: DevkitLock
    own_pins: frozenset[Pin]
    torch: Mapping[str, TorchSource]
    takes_plan: bool
    needs_gpu: bool


def read_existing_container(
    root: Path, paths: tuple[str, ...], dependencies: Dependencies, *, new: Mapping[str, bytes]
) -> ExistingContainer:
    """Read the project's own dev containers, whose devcontainer.json files have these paths.

    `new` are files that are yet to be written, by path.
    """
    lock, own_pins = _read_lock(root)
    files = EditedFiles(root, paths, new)
    facts = files.gather_facts()
    sources = find_torch_sources(facts, dependencies)
    open_ones = [each for each, source in sources if _can_take_plan(source, own_pins)]
    planned = open_ones or [each for each, _ in sources]
    constraints = [
        Constraint(each.name, each.specifier, f"{each.path}:{each.line}")
        for container in planned
        for install in container.installs
        for each in install.requirements
        # Those of the project itself come from its dependencies, of which extras and markers are known.
        if each.path not in MANIFESTS
        and re.match(r"[=<>!~]", each.specifier)
        and (each.path, each.name, each.specifier) not in own_pins
    ]
    return ExistingContainer(
        files,
        facts,
        next((each.image.value for each in planned if each.image is not None), ""),
        tuple(constraints),
        lock,
        own_pins,
        torch={container.name: source for container, source in sources},
        takes_plan=bool(open_ones),
        needs_gpu=any(_needs_gpu(each, source) or has_overlay(files.read(each.name)) for each, source in sources),
    )


def _read_lock(root: Path) -> tuple[DevkitLock, frozenset[Pin]]:
    """Read devkit.lock, and the pins that it says devkit wrote."""
    lock = read_project_lock(root)
    plans = [lock.plan] if "torch" in lock.plan else []
    versions = [f"=={plan['torch']}{label}" for plan in plans for label in ("", f"+{plan['variant']}")]
    paths = [path for path, codes in lock.repaired.items() if not _TORCH_CODES.isdisjoint(codes)]
    return lock, frozenset((path, "torch", each) for path in paths for each in versions)


def list_containers(facts: Facts) -> tuple[ProjectContainer, ...]:
    """List the containers that the project's files describe."""
    try:
        return require_project_containers(facts)
    except NotApplicable:
        return ()


def find_torch_sources(facts: Facts, dependencies: Dependencies) -> list[tuple[ProjectContainer, TorchSource]]:
    """Find what brings torch into each dev container."""
    has_torch = any(need.name in TORCH_PACKAGES for need in dependencies.needs)
    containers = [each for each in list_containers(facts) if each.dev is not None]
    return [(each, find_torch_source(each, has_project_torch=has_torch)) for each in containers]


def _can_take_plan(source: TorchSource, own_pins: frozenset[Pin]) -> bool:
    """Say if devkit can give the container the plan's torch: pip or uv installs one without a version in its own Dockerfile."""
    is_open = not source.version or (source.place.path, "torch", f"=={source.version}") in own_pins
    is_own = source.origin is TorchOrigin.BUILD and is_dev_container_file(source.place.path)
    return is_own and is_open and source.tool in ("pip", "uv") and source.variant != "cpu"


def _needs_gpu(container: ProjectContainer, source: TorchSource) -> bool:
    """Say if the container asks for a GPU, or has something that works on one."""
    if container.requests or find_gpu_host_requirement(container) is not None:
        return True
    if source.variant == "cpu":
        return False
    return source.origin in (TorchOrigin.BUILD, TorchOrigin.COMMAND) or find_gpu_evidence(container) is not None


@dataclass(frozen=True)
class AppliedRepair:
    """An edit of one file, with the code and message of its finding."""

    code: str
    path: str
    message: str


@dataclass(frozen=True)
class ContainerTorch:
    """The torch that one dev container has after the repair; `is_changed` where devkit changed what installs it."""

    path: str
    source: TorchSource
    is_changed: bool

    def describe(self) -> str:
        """Return a sentence on which torch it is, and what brings it."""
        is_kept = self.source.is_known and not self.is_changed
        return format_torch_source(self.source) + (", and stays so" if is_kept else "")


def format_torch_source(source: TorchSource) -> str:
    """Format what brings torch into a container, with the version and CUDA where its files say them."""
    where = format_location(source.place)
    if source.origin is TorchOrigin.UNKNOWN:
        return f"none of the project's files installs torch; devkit did not check the image of {where}"
    verb = "brings" if source.origin is TorchOrigin.IMAGE else "installs"
    if not source.version:
        build = " for the CPU" if source.variant == "cpu" else f" ({source.variant})" if source.variant else ""
        return f"torch{build} is what {where} {verb}"
    build = f"({source.variant})" if source.variant else "with the CUDA of its default index"
    return f"torch {source.version} {build}, as {where} {verb} it"


@dataclass
class Adoption:
    """The repairs of one project's dev containers, the findings that are left to the user, and the torch of each container.

    `overlay_files` are devkit's own files, `overlays` those that devcontainer.json files name.
    """

    project: DevkitProject
    existing: ExistingContainer
    plan: Plan
    machines: tuple[Machine, ...]
    overlays: dict[str, ServiceOverlay] = field(default_factory=dict)
    overlay_files: list[Artifact] = field(default_factory=list)
    repairs: list[AppliedRepair] = field(default_factory=list)
    left: list[ReportedFinding] = field(default_factory=list)
    torch: list[ContainerTorch] = field(default_factory=list)

    def make_edits(self) -> None:
        """Make the edits in memory."""
        files, facts = self.existing.files, self.existing.facts
        findings = self._find_findings(facts)
        containers = [each for each in list_containers(facts) if each.dev is not None]
        # An overlay of an earlier run comes first: it decides which GPUs the others can have.
        for container in sorted(containers, key=lambda each: not has_overlay(files.read(each.name))):
            about = [each for each in findings if _is_about(each, container)]
            if container.is_compose:
                self._overlay_service(container, about)
            else:
                # The memory first: a list that loses its only item would go, and come again at the end of the file.
                self._edit(container.name, about, _MEMORY_CODES, set_shared_memory)
                self._edit(container.name, about, _GPU_CODES, request_gpu)
            self._pin_torch(container, about)
        for_windows = is_for_windows(self.project)
        self.overlay_files += render_service_overlays(self.overlays.values(), self.plan, for_windows=for_windows)
        # Releases up to 0.2.0 held the torch of lifecycle commands by this file: it stays as long as it is named.
        held = files.read(_CONSTRAINTS_PATH)
        if held and any(_CONSTRAINTS_PATH in files.read(container.name) for container in containers):
            self.overlay_files.append(Artifact.from_text(_CONSTRAINTS_PATH, held))
        after = files.gather_facts()
        self.left += [each for each in self._find_findings(after) if each.finding.severity is not Severity.NOTE]
        changed = {artifact.path for artifact in files.list_changed()}
        for container, source in find_torch_sources(after, self.project.dependencies):
            is_changed = source.origin is TorchOrigin.BUILD and source.place.path in changed
            self.torch.append(ContainerTorch(container.name, source, is_changed))

    def list_lines(self, left: ReportedFinding) -> list[str]:
        """List the lines that do what a finding calls for: with the plan's torch, or the commands of its fix."""
        if left.check.code not in _TORCH_CODES:
            return list(left.finding.fix.commands)
        return [f"pip install torch=={self.plan.torch}+{self.plan.variant} --extra-index-url {self.plan.torch_index}"]

    def _find_findings(self, facts: Facts) -> list[ReportedFinding]:
        """Return the findings on all machines of the plan, each once, without those that an overlay settles."""
        on_machines = [(_on_machine(facts, machine), _PROJECT_CHECKS) for machine in self.machines]
        if any(machine.gpus for machine in self.machines):
            # The container has to start on a teammate's machine without a GPU as well.
            on_machines.append((_without_gpu(facts), _START_CHECKS))
        found: dict[tuple[str, str], ReportedFinding] = {}
        for machine, checks in on_machines:
            outcomes = run_checks(checks, machine, clock=lambda: 0.0)
            for root in build_report(machine, outcomes, devkit=__version__).roots:
                found.setdefault((root.check.code, root.finding.message), root)
        containers = list_containers(facts)
        return [each for each in found.values() if not self._is_settled(each, containers)]

    def _is_settled(self, reported: ReportedFinding, containers: Iterable[ProjectContainer]) -> bool:
        """Return True for a finding that an overlay settles, or one on a service that is not a dev container."""
        if reported.check.code not in SETTLED_BY_OVERLAY:
            return False
        about = [each for each in containers if _is_about(reported, each)]
        services = [each for each in about if each.dev is not None and each.is_compose]
        if services:
            return any(each.name in self.overlays for each in services)
        return any(each.dev is None for each in about)

    def _overlay_service(self, container: ProjectContainer, about: list[ReportedFinding]) -> None:
        """Give the service its GPU and its shared memory by an overlay, where a finding or an earlier run calls for it."""
        settled = [each for each in about if each.check.code in SETTLED_BY_OVERLAY]
        had_overlay = has_overlay(self.existing.files.read(container.name))
        if not settled and not had_overlay:
            return
        files = ProjectFiles(self.existing.files.make_host(), str(self.project.root.resolve()))
        overlay = build_service_overlay(container, files, self.plan)
        # All overlays share the files for each way to pass on GPUs, and these name the GPUs.
        if overlay is None or any(each.devices != overlay.devices for each in self.overlays.values()):
            if had_overlay:
                advice = "Remove the files in devkit/ from dockerComposeFile, and run this again."
                raise DevkitError(f"the overlay in {container.name} no longer matches its service", advice)
            return
        with suppress(CannotEdit):
            text = add_overlay(
                self.existing.files.read(container.name), overlay, for_windows=is_for_windows(self.project)
            )
            self.overlays[container.name] = overlay
            self._write(container.name, text, [] if had_overlay else settled)

    def _edit(
        self, path: str, about: list[ReportedFinding], codes: Collection[str], edit: Callable[[str], str]
    ) -> None:
        """Edit devcontainer.json where a finding calls for it. One that cannot be edited is left to the user."""
        called = [each for each in about if each.check.code in codes]
        if called:
            with suppress(CannotEdit):
                self._write(path, edit(self.existing.files.read(path)), called)

    def _write(self, path: str, text: str, findings: Iterable[ReportedFinding]) -> None:
        if self.existing.files.write(path, text):
            self.repairs += [AppliedRepair(each.check.code, path, each.finding.message) for each in findings]

    def _pin_torch(self, container: ProjectContainer, about: list[ReportedFinding]) -> None:
        """Pin the plan's torch in a Dockerfile of the dev container's own, and again where an earlier run did."""
        path = container.dockerfile.path if container.dockerfile else ""
        called = [each for each in about if each.check.code in _TORCH_CODES]
        before = {specifier for pinned, _, specifier in self.existing.own_pins if pinned == path}
        if not is_dev_container_file(path) or not (called or before):
            return
        pin = TorchPin(self.plan.torch, self.plan.variant, self.plan.torch_index, before)
        for changed, text in pin_container(container, pin, self.existing.files.read):
            if not called and text != self.existing.files.read(changed):
                self.repairs.append(AppliedRepair("PRJ026", changed, "the plan now has different versions"))
            self._write(changed, text, called)


def _is_about(reported: ReportedFinding, container: ProjectContainer) -> bool:
    """Say if a finding is about this container: about its service, its GPU, or one of its files."""
    finding, requirement = reported.finding, find_gpu_host_requirement(container)
    if reported.check.code in SETTLED_BY_OVERLAY:
        located = ((container.location,), container.requests, (requirement,) if requirement else ())
        return finding.subject in {format_location(each) for group in located for each in group}
    files = {each.path for each in (container.dev, container.dockerfile) if each is not None}
    files |= {install.path for install in container.installs}
    return finding.location is not None and finding.location.path in files


def compute_adopted_changes(
    project: DevkitProject, existing: ExistingContainer, plan: Plan, machines: tuple[Machine, ...]
) -> tuple[tuple[FileChange, ...], Adoption]:
    """Compute the changes that fit the project's own dev container to the plan. Reads the disk, writes nothing.

    Raises: DevkitError for files that cannot be read or do not parse.
    """
    adoption = Adoption(project, existing, plan, machines)
    adoption.make_edits()
    folders = [each.folder for each in adoption.overlays.values()]
    local = tuple(dict.fromkeys(".env" if folder == "." else f"{folder}/.env" for folder in folders))
    repaired = dict(existing.lock.repaired)
    for each in adoption.repairs:
        repaired[each.path] = tuple(sorted({*repaired.get(each.path, ()), each.code}))
    ignore_files, ignored = update_gitignore(project.root, local, existing.lock.ignored)
    # An edit may move the line that a reason names: the plan is the same for all that.
    plan = strip_line_numbers(plan, project.dependencies)
    for constraint in existing.constraints:
        line = re.compile(rf"({re.escape(constraint.origin.rpartition(':')[0])}):\d+")
        reasons = (replace(reason, because=line.sub(r"\1", reason.because)) for reason in plan.reasons)
        plan = replace(plan, reasons=tuple(reasons))
    lock = render_lock(plan, adoption.overlay_files, machines, repaired, ignored=ignored)
    edited = [*render_user_files(project), *ignore_files, *existing.files.list_changed()]
    return compute_changes(project.root, (*adoption.overlay_files, lock), edited, adopts=True), adoption


def _on_machine(facts: Facts, machine: Machine) -> Facts:
    """Return the project's facts on a machine of the plan, of which only the driver and the GPUs are known."""
    if not machine.gpus:
        return _without_gpu(facts)
    gpus = [
        Gpu(index, NOT_READ, name, capability, NOT_READ, NOT_READ, NOT_READ, ())
        for index, (name, capability) in enumerate(machine.gpus)
    ]
    return replace(facts, nvml=NvmlAnswer(machine.driver or NOT_READ, machine.cuda or NOT_READ, tuple(gpus)))


def _without_gpu(facts: Facts) -> Facts:
    no_library = NvmlFailure(NvmlEnd.LIBRARY_NOT_FOUND, 0, "not a GPU machine", "nvmlInit")
    system = facts.system if isinstance(facts.system, Unknown) else replace(facts.system, platform=Platform.LINUX)
    # init may run in WSL or in a container, but the teammate's machine is neither.
    return replace(facts, nvml=no_library, system=system, container=None)
