"""The adoption of dev containers that somebody wrote: edited in three ways, and every other finding is named.

The project's checks run for the machines of the plan once before the edits and once after them. The edits are the GPU
request and the shared memory of a container, and the version and the index of its torch. init and doctor never disagree,
because a finding of the doctor calls for each edit, and those that are left are the doctor's, too.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from devkit.compat.images import find_image_system
from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.project.containers import (
    MANIFESTS,
    TORCH_PACKAGES,
    ProjectContainer,
    TorchOrigin,
    TorchSource,
    find_gpu_evidence,
    find_project_extras,
    find_torch_source,
    format_location,
    require_project_containers,
)
from devkit.doctor.checks.project.gpu_requests import find_gpu_host_requirement
from devkit.doctor.checks.project.images import CudaTag
from devkit.doctor.model import NotApplicable, Severity
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import ReportedFinding, build_report
from devkit.doctor.runner import run_checks
from devkit.errors import DevkitError
from devkit.facts.dependencies import Dependencies
from devkit.facts.gpu import Gpu, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.model import Facts, FileState, Platform, Project
from devkit.facts.values import NOT_READ, Unknown
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost, Stat
from devkit.probe.project.files import ProjectFiles
from devkit.release import __version__
from devkit.render.adopt.dev_container import (
    CONSTRAINTS_PATH,
    bind_torch,
    render_constraints,
    request_gpu,
    set_shared_memory,
)
from devkit.render.adopt.dockerfile import TorchPin, is_dev_container_file, pin_container
from devkit.render.adopt.gpu_overlay import (
    SETTLED_BY_OVERLAY,
    ServiceOverlay,
    add_overlay,
    build_service_overlay,
    has_overlay,
    hide_overlays,
    render_service_overlays,
)
from devkit.render.changes import FileChange, compute_changes
from devkit.render.devkit_lock import LOCK_PATH, DevkitLock, parse_lock, read_project_lock, render_lock
from devkit.render.files import Artifact, get_staging_path, read_file
from devkit.render.ignore_files import update_gitignore
from devkit.render.project import DevkitProject, is_for_windows, render_user_files
from devkit.render.text_edits import CannotEdit
from devkit.solver.plan import Constraint, Machine, Plan
from devkit.solver.project import strip_line_numbers

_PROJECT_CHECKS = tuple(check for check in CHECKS if check.code.startswith("PRJ"))
_START_CHECKS = tuple(check for check in CHECKS if check.code == "PRJ011")
_GPU_CODES = ("PRJ002", "PRJ003", "PRJ005", "PRJ008", "PRJ011")
_MEMORY_CODES = ("PRJ020",)
_TORCH_CODES = ("PRJ024", "PRJ026")
_PYTHON_IMAGE = re.compile(r"(?:^|/)python:(?:\d+-)?(3\.\d+)")
_SYSTEM = re.compile(r"([a-z]+)([\d.]+)")


class PatchedHost(LocalHost):
    """This machine with other texts in some of its files, by absolute path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def read(self, path: str) -> str | None:
        """Return the text of a file, the other one where there is one."""
        return self._texts[path] if path in self._texts else super().read(path)

    def stat(self, path: str) -> Stat | None:
        """Return the status of a file, with the size of its other text; an ordinary file where there is none yet."""
        found = super().stat(path)
        if path not in self._texts:
            return found
        return replace(found or Stat("file", 0o644, 0, 0, 0), size=len(self._texts[path]))

    def link(self, path: str) -> str | None:
        """Return the path that `path` resolves to; itself where there is no file yet."""
        return super().link(path) or (path if path in self._texts else None)


class EditedFiles:
    """The project's files with the edits so far, in memory. Bytes that are no UTF-8 come through unchanged."""

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
                f"the dev container was not read: {facts.project.reason}", "Repeat it when this machine has less to do."
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


@dataclass(frozen=True)
class ExistingContainer:
    """The dev containers that somebody wrote, and their requirements for a plan; "" leaves the choice to the plan.

    `torch` is the torch of each dev container by path. `takes_plan` says that devkit can give one of them the plan's
    torch: otherwise the constraints are those of the torch that they have. `needs_gpu` is False for containers without
    GPU work. `lock` is that of an earlier adoption, an empty one before the first, and `own_torch` are the versions that
    earlier runs pinned. `extras` are those with which a container that takes the plan installs the project itself, None
    where none does.
    """

    files: EditedFiles
    facts: Facts
    image: str
    python: str
    constraints: tuple[Constraint, ...]
    lock: DevkitLock
    own_torch: frozenset[str]
    torch: Mapping[str, TorchSource]
    takes_plan: bool
    needs_gpu: bool
    extras: tuple[str, ...] | None

    def is_own_pin(self, path: str, name: str, specifier: str) -> bool:
        """Return True when an earlier run wrote this version into this file: then it constrains nothing."""
        return _is_own_pin(self.lock, self.own_torch, path, name, specifier)


def _is_own_pin(lock: DevkitLock, own_torch: frozenset[str], path: str, name: str, specifier: str) -> bool:
    is_pinned = any(code in _TORCH_CODES for code in lock.repaired.get(path, ()))
    return is_pinned and name == "torch" and specifier.removeprefix("==").partition("+")[0] in own_torch


def read_existing_container(
    root: Path, paths: tuple[str, ...], dependencies: Dependencies, *, new: Mapping[str, bytes]
) -> ExistingContainer:
    """Read the project's own dev containers, whose devcontainer.json files have these paths.

    `new` are files that are yet to be written, by path.
    """
    lock, own_torch = _read_locks(root)
    files = EditedFiles(root, paths, new)
    facts = files.gather_facts()
    containers = [each for each in _list_containers(facts) if each.dev is not None]
    sources = [(each, find_torch_source(each, has_project_torch=requires_torch(dependencies))) for each in containers]
    open_ones = [each for each, source in sources if _can_take_plan(source, lock, own_torch)]
    image, python = _select_image(open_ones or containers)
    constraints = [
        Constraint(each.name, each.specifier, f"{each.path}:{each.line}")
        for container in open_ones or containers
        for install in container.installs
        for each in install.requirements
        # Those of the project itself come from its dependencies, of which extras and markers are known.
        if each.path not in MANIFESTS
        and re.match(r"[=<>!~]", each.specifier)
        and not _is_own_pin(lock, own_torch, each.path, each.name, each.specifier)
    ]
    return ExistingContainer(
        files,
        facts,
        image,
        python,
        tuple(constraints),
        lock,
        own_torch,
        torch={container.name: source for container, source in sources},
        takes_plan=bool(open_ones),
        needs_gpu=any(_needs_gpu(each, source) or has_overlay(files.read(each.name)) for each, source in sources),
        extras=_find_extras(open_ones),
    )


def _read_locks(root: Path) -> tuple[DevkitLock, frozenset[str]]:
    """Read devkit.lock with that of a run that was killed, and the versions of torch that they name.

    A killed run leaves its lock staged. What it edited before that is no longer found, and must still be known.
    """
    locks = [read_project_lock(root)]
    staged = read_file(root, get_staging_path(Path(LOCK_PATH)).name)
    if staged is not None:
        with suppress(DevkitError):  # One that is not whole was killed before any other file was written.
            locks.append(parse_lock(staged))
    repaired = {path: codes for lock in locks for path, codes in lock.repaired.items()}
    versions = frozenset(str(lock.plan["torch"]) for lock in locks if lock.plan.get("torch"))
    return replace(locks[0], repaired=repaired), versions


def _list_containers(facts: Facts) -> tuple[ProjectContainer, ...]:
    try:
        return require_project_containers(facts)
    except NotApplicable:
        return ()


def _find_extras(containers: list[ProjectContainer]) -> tuple[str, ...] | None:
    """Find the extras with which the containers' commands install the project; None where they do not."""
    found = [find_project_extras(install) for container in containers for install in container.installs]
    itself = [extras for extras in found if extras is not None]
    return tuple(dict.fromkeys(name for extras in itself for name in extras)) if itself else None


def requires_torch(dependencies: Dependencies) -> bool:
    """Return whether the project itself requires torch, or a package of its family."""
    return any(need.name in TORCH_PACKAGES for need in dependencies.needs)


def _can_take_plan(source: TorchSource, lock: DevkitLock, own_torch: frozenset[str]) -> bool:
    """Say if devkit can give the container the plan's torch: by its commands' environment, or in its own Dockerfile."""
    if source.tool not in ("pip", "uv") or source.variant == "cpu":
        return False
    if source.origin is TorchOrigin.COMMAND:
        return not (source.version and source.variant)
    is_own = not source.version or _is_own_pin(lock, own_torch, source.place.path, "torch", f"=={source.version}")
    return source.origin is TorchOrigin.BUILD and is_own and is_dev_container_file(source.place.path)


def _needs_gpu(container: ProjectContainer, source: TorchSource) -> bool:
    """Say if the container asks for a GPU, or has something that works on one."""
    if container.requests or find_gpu_host_requirement(container) is not None:
        return True
    if source.variant == "cpu":
        return False
    return source.origin in (TorchOrigin.BUILD, TorchOrigin.COMMAND) or find_gpu_evidence(container) is not None


def _select_image(containers: list[ProjectContainer]) -> tuple[str, str]:
    """Return the image to plan for, and its Python: the system of a CUDA image without CUDA, any other as it is."""
    image = next((each.image.value for each in containers if each.image is not None), "")
    tag = CudaTag.of(image)
    if tag is not None and tag.flavor != "devel" and (matched := _SYSTEM.fullmatch(tag.system)):
        image = f"{matched[1]}:{matched[2]}"
    if found := _PYTHON_IMAGE.search(image):
        return image, found[1]
    # A bare system, such as ubuntu:22.04, comes with a Python of its own.
    system = find_image_system(image, load_tables().images.systems)
    return image, system.python if system and re.search(rf"(?:^|/){system.name}:", image) else ""


@dataclass(frozen=True)
class AppliedRepair:
    """An edit of one file, with the code and message of its finding."""

    code: str
    path: str
    message: str


@dataclass(frozen=True)
class LeftToUser:
    """A finding that devkit does not repair: its place as path:line, and what to do, with the lines that would."""

    code: str
    place: str
    message: str
    advice: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContainerTorch:
    """The torch that one dev container has after the repair.

    `is_bound` says that the plan's constraints file holds it, `is_changed` that devkit changed the file that installs it.
    """

    path: str
    source: TorchSource
    is_bound: bool
    is_changed: bool

    def describe(self, plan: Plan) -> str:
        """Return a sentence on which torch it is, and what brings it."""
        if self.is_bound:
            where = format_location(self.source.place.path, self.source.place.line)
            return f"torch {plan.torch} ({plan.variant}), installed by {where} and held by {CONSTRAINTS_PATH}"
        is_kept = not self.is_changed and self.source.origin is not TorchOrigin.UNKNOWN
        return format_torch_source(self.source) + (", and stays so" if is_kept else "")


def format_torch_source(source: TorchSource) -> str:
    """Format what brings torch into a container, with the version and CUDA where its files say them."""
    where = format_location(source.place.path, source.place.line)
    if source.origin is TorchOrigin.UNKNOWN:
        return f"no file of the project installs torch; whether the image of {where} has one was not checked"
    verb = "brings" if source.origin is TorchOrigin.IMAGE else "installs"
    if not source.version:
        build = " for the CPU" if source.variant == "cpu" else f" ({source.variant})" if source.variant else ""
        return f"torch{build} is what {where} {verb}"
    build = f"({source.variant})" if source.variant else "with the CUDA of its default index"
    return f"torch {source.version} {build}, as {where} {verb} it"


@dataclass(frozen=True)
class Adoption:
    """The repairs of the user's files, what is left to the user, and the torch of each dev container."""

    overlay_files: tuple[Artifact, ...]
    repairs: tuple[AppliedRepair, ...]
    left: tuple[LeftToUser, ...]
    torch: tuple[ContainerTorch, ...]


def compute_adopted_changes(
    project: DevkitProject, existing: ExistingContainer, plan: Plan, machines: tuple[Machine, ...]
) -> tuple[tuple[FileChange, ...], Adoption]:
    """Compute the changes that fit the project's own dev container to the plan. Reads the disk, writes nothing.

    Raises: DevkitError for files that cannot be read or do not parse.
    """
    repair = _ContainerRepair(project, existing, plan, machines)
    adoption = repair.run()
    local = [each.folder for each in repair.overlays.values()]
    ignored_paths = tuple(dict.fromkeys(".env" if folder == "." else f"{folder}/.env" for folder in local))
    repaired = dict(existing.lock.repaired)
    for each in adoption.repairs:
        repaired[each.path] = tuple(sorted({*repaired.get(each.path, ()), each.code}))
    ignore_files, ignored = update_gitignore(project.root, ignored_paths, existing.lock.ignored)
    # An edit may move the line that a reason names: the plan is the same for all that.
    plan = strip_line_numbers(plan, project.dependencies)
    for constraint in existing.constraints:
        line = re.compile(rf"({re.escape(constraint.origin.rpartition(':')[0])}):\d+")
        reasons = (replace(reason, because=line.sub(r"\1", reason.because)) for reason in plan.reasons)
        plan = replace(plan, reasons=tuple(reasons))
    lock = render_lock(plan, adoption.overlay_files, machines, repaired, ignored=ignored)
    edited = [*render_user_files(project), *ignore_files, *existing.files.list_changed()]
    return compute_changes(project.root, (*adoption.overlay_files, lock), edited, adopts=True), adoption


class _ContainerRepair:
    """The edits of one project's dev containers, each called for by a finding."""

    def __init__(
        self, project: DevkitProject, existing: ExistingContainer, plan: Plan, machines: tuple[Machine, ...]
    ) -> None:
        self._project = project
        self._files = existing.files
        self._existing = existing
        self._plan = plan
        self._machines = machines
        self._for_windows = is_for_windows(project)
        self._repairs: list[AppliedRepair] = []
        self._left: list[LeftToUser] = []
        self.overlays: dict[str, ServiceOverlay] = {}

    def run(self) -> Adoption:
        """Make the edits in memory. Returns what was repaired, and what is left."""
        facts = self._existing.facts
        findings = self._find_findings(facts)
        containers = [each for each in _list_containers(facts) if each.dev is not None]
        # An overlay of an earlier run comes first: it decides which GPUs the others can have.
        for container in sorted(containers, key=lambda each: not has_overlay(self._files.read(each.name))):
            about = [each for each in findings if _is_about(each, container)]
            if container.is_compose:
                self._overlay_service(container, about)
            else:
                # The memory first: a list that loses its only item would go, and come again at the end of the file.
                self._edit(container.name, about, _MEMORY_CODES, set_shared_memory)
                self._edit(container.name, about, _GPU_CODES, request_gpu)
            self._pin_torch(container, about)
            self._bind_torch(container)
        after = self._files.gather_facts()
        for reported in self._find_findings(after):
            self._leave(reported)
        overlay_files = [*render_service_overlays(self.overlays.values(), self._plan, for_windows=self._for_windows)]
        torch = [self._describe_torch(each) for each in _list_containers(after) if each.dev is not None]
        # A file that a command no longer needs stays as long as devcontainer.json names it.
        if any(CONSTRAINTS_PATH in self._files.read(container.name) for container in containers):
            overlay_files.append(render_constraints(self._plan))
        return Adoption(tuple(overlay_files), tuple(self._repairs), tuple(self._left), tuple(torch))

    def _find_findings(self, facts: Facts) -> list[ReportedFinding]:
        """Return the findings on all machines of the plan, each once, without those that an overlay settles."""
        on_machines = [(_on_machine(facts, machine), _PROJECT_CHECKS) for machine in self._machines]
        if any(machine.gpus for machine in self._machines):
            # The container has to start on a teammate's machine without a GPU as well.
            on_machines.append((_without_gpu(facts), _START_CHECKS))
        found: dict[tuple[str, str], ReportedFinding] = {}
        for machine, checks in on_machines:
            outcomes = run_checks(checks, machine, clock=lambda: 0.0)
            for root in build_report(machine, outcomes, devkit=__version__).roots:
                found.setdefault((root.check.code, root.finding.message), root)
        containers = _list_containers(facts)
        return [each for each in found.values() if not self._is_settled(each, containers)]

    def _is_settled(self, reported: ReportedFinding, containers: Iterable[ProjectContainer]) -> bool:
        """Return True for a finding that an overlay settles, or one on a service that is no dev container."""
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
        had_overlay = has_overlay(self._files.read(container.name))
        if not settled and not had_overlay:
            return
        files = ProjectFiles(self._files.make_host(), str(self._project.root.resolve()))
        overlay = build_service_overlay(container, files, self._plan)
        # All overlays share the files for each way to pass on GPUs, and these name the GPUs.
        if overlay is None or any(each.devices != overlay.devices for each in self.overlays.values()):
            return
        try:
            text = add_overlay(self._files.read(container.name), overlay, for_windows=self._for_windows)
        except CannotEdit:
            return
        self._files.write(container.name, text)
        self.overlays[container.name] = overlay
        if not had_overlay:
            self._note(container.name, settled)

    def _edit(
        self,
        path: str,
        about: list[ReportedFinding],
        codes: tuple[str, ...],
        edit: Callable[[str], str],
    ) -> None:
        """Edit devcontainer.json where one of these findings calls for it."""
        called = [each for each in about if each.check.code in codes]
        if not called:
            return
        try:
            if self._files.write(path, edit(self._files.read(path))):
                self._note(path, called)
        except CannotEdit:
            return  # The finding stays, and is left to the user.

    def _note(self, path: str, findings: Iterable[ReportedFinding]) -> None:
        self._repairs += [AppliedRepair(each.check.code, path, each.finding.message) for each in findings]

    def _pin_torch(self, container: ProjectContainer, about: list[ReportedFinding]) -> None:
        """Pin the plan's torch in a Dockerfile of the dev container's own, anew where an earlier run did."""
        path = container.dockerfile.path if container.dockerfile else ""
        called = [each for each in about if each.check.code in _TORCH_CODES]
        is_renewed = any(code in _TORCH_CODES for code in self._existing.lock.repaired.get(path, ()))
        if not is_dev_container_file(path) or not (called or is_renewed):
            return
        pin = TorchPin(self._plan.torch, self._plan.variant, self._plan.torch_index, self._existing.own_torch)
        for changed, text in pin_container(container, pin, self._files.read):
            if self._files.write(changed, text):
                code, message = "PRJ026", "the plan has other versions now"
                for each in called:
                    code, message = each.check.code, each.finding.message
                    self._repairs.append(AppliedRepair(code, changed, message))
                if not called:
                    self._repairs.append(AppliedRepair(code, changed, message))

    def _bind_torch(self, container: ProjectContainer) -> None:
        """Give the plan's torch to lifecycle commands that install torch, by the environment of the container."""
        source = find_torch_source(container, has_project_torch=requires_torch(self._project.dependencies))
        is_fixed = source.variant == "cpu" or (source.version and source.variant)
        if source.origin is not TorchOrigin.COMMAND or is_fixed:
            return
        place = format_location(source.place.path, source.place.line)
        message = f"{place} installs torch, and nothing holds it at a build that fits the driver"
        path = container.name
        try:
            bound = bind_torch(self._files.read(path), container, self._plan, name=self._project.root.resolve().name)
        except CannotEdit:
            bound = None
        if bound is None:
            advice = "Let this command install torch before it."
            self._left.append(LeftToUser("PRJ026", place, message, advice, (self._format_install(),)))
        elif self._files.write(path, bound):
            self._repairs.append(AppliedRepair("PRJ026", path, message))

    def _format_install(self) -> str:
        plan = self._plan
        return f"pip install torch=={plan.torch}+{plan.variant} --extra-index-url {plan.torch_index}"

    def _leave(self, reported: ReportedFinding) -> None:
        """Leave a finding to the user, but for a note."""
        code, finding = reported.check.code, reported.finding
        if finding.severity is not Severity.NOTE:
            lines = (self._format_install(),) if code in _TORCH_CODES else finding.fix.commands
            self._left.append(LeftToUser(code, finding.subject, finding.message, finding.fix.summary, lines))

    def _describe_torch(self, container: ProjectContainer) -> ContainerTorch:
        """Return the torch of a dev container, as its files are by now."""
        source = find_torch_source(container, has_project_torch=requires_torch(self._project.dependencies))
        values = (container.value("PIP_CONSTRAINT"), container.value("UV_CONSTRAINT"))
        is_bound = source.origin is TorchOrigin.COMMAND and any(each.endswith(CONSTRAINTS_PATH) for each in values)
        changed = {each.path for each in self._files.list_changed()}
        is_changed = source.origin is TorchOrigin.BUILD and source.place.path in changed
        return ContainerTorch(container.name, source, is_bound, is_changed)


def _is_about(reported: ReportedFinding, container: ProjectContainer) -> bool:
    """Say if a finding is about this container: about its service, its GPU, or one of its files."""
    finding, requirement = reported.finding, find_gpu_host_requirement(container)
    if reported.check.code in SETTLED_BY_OVERLAY:
        located = ((container.location,), container.requests, (requirement,) if requirement else ())
        return finding.subject in {format_location(each.path, each.line) for group in located for each in group}
    files = {each.path for each in (container.dev, container.dockerfile) if each is not None}
    files |= {install.path for install in container.installs}
    return finding.location is not None and finding.location.path in files


def _on_machine(facts: Facts, machine: Machine) -> Facts:
    """Return the project's facts on a machine of the plan, of which only the driver and the GPUs are known."""
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


def _without_gpu(facts: Facts) -> Facts:
    no_library = NvmlFailure(NvmlEnd.LIBRARY_NOT_FOUND, 0, "not a GPU machine", "nvmlInit")
    system = facts.system if isinstance(facts.system, Unknown) else replace(facts.system, platform=Platform.LINUX)
    # init may run in WSL or in a container, but the teammate's machine is neither.
    return replace(facts, nvml=no_library, system=system, container=None)
