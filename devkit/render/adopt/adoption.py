"""The repair of a dev container that somebody wrote, so that the doctor finds nothing in it.

The checks run on the project's files for the machines of the plan; their findings are repaired in memory, and the
checks run again, until a round finds nothing to repair. So init and doctor never disagree, and every change has a code.
"""

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
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
from devkit.doctor.model import Confidence, NotApplicable, Repair, RepairKind, Severity
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import ReportedFinding, build_report
from devkit.doctor.runner import run_checks
from devkit.errors import DevkitError
from devkit.facts.dependencies import Dependencies
from devkit.facts.gpu import Gpu, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.model import Facts, FileState, Platform, Project
from devkit.facts.project import Service
from devkit.facts.values import NOT_READ, Unknown
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost, Stat, decode_text
from devkit.probe.project.compose import read_compose_services
from devkit.probe.project.files import ProjectFiles
from devkit.release import __version__
from devkit.render.adopt.dockerfile import (
    IMAGE_REPAIRS,
    PinnedVersions,
    RepairContext,
    is_dev_container_file,
    is_dockerfile,
    pin_dockerfile,
    pin_requirements_file,
)
from devkit.render.adopt.gpu_overlay import OVERLAY_FOLDER, SETTLED_BY_OVERLAY, ServiceOverlays
from devkit.render.changes import FileChange, compute_changes
from devkit.render.devkit_lock import LOCK_PATH, DevkitLock, parse_lock, read_project_lock, render_lock
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact, get_staging_path, read_file
from devkit.render.ignore_files import update_gitignore
from devkit.render.project import DevkitProject, is_for_windows, render_user_files
from devkit.render.repair import CannotRepair, apply_repair
from devkit.render.splice.document import CannotSplice, set_value
from devkit.render.splice.jsonc import JSONC, load_jsonc
from devkit.solver.plan import Constraint, Machine, Plan
from devkit.text import join_words

_PROJECT_CHECKS = tuple(check for check in CHECKS if check.code.startswith("PRJ"))
_GPU_REQUIREMENT = tuple(check for check in CHECKS if check.code == "PRJ011")
_PINNING = ("PRJ024", "PRJ026")
_MAX_ROUNDS = 20
_PYTHON_IMAGE = re.compile(r"(?:^|/)python:(?:\d+-)?(3\.\d+)")
_SYSTEM = re.compile(r"([a-z]+)([\d.]+)")


@dataclass(frozen=True)
class ExistingContainer:
    """The dev containers that somebody wrote, and their requirements for a plan; "" leaves the choice to the plan.

    `torch` is the torch of each dev container by path. `takes_plan` says that devkit can give one of them the plan's
    torch: otherwise the constraints are those of the torch that they have. `needs_gpu` is False for containers without
    GPU work. `lock` is that of an earlier adoption, an empty one before the first. `extras` are those with which a
    container that takes the plan installs the project itself, None where none does. `new` are files that are yet to be
    written.
    """

    paths: tuple[str, ...]
    image: str
    python: str
    constraints: tuple[Constraint, ...]
    lock: DevkitLock
    torch: Mapping[str, TorchSource]
    takes_plan: bool
    needs_gpu: bool
    extras: tuple[str, ...] | None
    new: Mapping[str, bytes]


def read_existing_container(
    root: Path, paths: tuple[str, ...], dependencies: Dependencies, *, new: Mapping[str, bytes]
) -> ExistingContainer:
    """Read the project's own dev containers, whose devcontainer.json files have these paths.

    `new` are files that are yet to be written, by path.
    """
    lock = read_project_lock(root)
    host = PatchedHost({str(root.resolve() / path): decode_text(content) for path, content in new.items()})
    facts = gather_facts(host, only=("project",), project=str(root.resolve()))
    _require_readable_files(facts)
    try:
        containers = [each for each in require_project_containers(facts) if each.dev is not None]
    except NotApplicable:
        containers = []
    sources = [(each, find_torch_source(each, has_project_torch=requires_torch(dependencies))) for each in containers]
    open_ones = [container for container, source in sources if _can_take_plan(container, source, lock)]
    image, python = _select_image(open_ones or containers)
    constraints = [
        Constraint(each.name, each.specifier, f"{each.path}:{each.line}")
        for container in open_ones or containers
        for install in container.installs
        for each in install.requirements
        # Those of the project itself come from its dependencies, of which extras and markers are known.
        if each.path not in MANIFESTS
        and re.match(r"[=<>!~]", each.specifier)
        and not is_own_pin(lock, each.path, each.name, each.specifier)
    ]
    return ExistingContainer(
        paths,
        image,
        python,
        tuple(constraints),
        lock,
        torch={container.name: source for container, source in sources},
        takes_plan=bool(open_ones),
        # An overlay of an earlier run hides the service's own request.
        needs_gpu=bool(lock.plan) or any(_needs_gpu(container, source) for container, source in sources),
        extras=_find_extras(open_ones),
        new=new,
    )


def _find_extras(containers: list[ProjectContainer]) -> tuple[str, ...] | None:
    """Find the extras with which the containers' commands install the project; None where they do not."""
    found = [find_project_extras(install) for container in containers for install in container.installs]
    itself = [extras for extras in found if extras is not None]
    return tuple(dict.fromkeys(name for extras in itself for name in extras)) if itself else None


def _require_readable_files(facts: Facts) -> None:
    """Raise DevkitError for files that could not be read in time, and for broken ones."""
    if isinstance(facts.project, Unknown):
        raise DevkitError(
            f"the dev container was not read: {facts.project.reason}", "Repeat it when this machine has less to do."
        )
    for file in facts.project.files if isinstance(facts.project, Project) else ():
        if file.state is FileState.BROKEN:
            raise DevkitError(
                f"{file.path}, line {file.line}: {file.problem}", "Correct that line; nothing was written."
            )


def requires_torch(dependencies: Dependencies) -> bool:
    """Return whether the project itself requires torch, or a package of its family."""
    return any(need.name in TORCH_PACKAGES for need in dependencies.needs)


def _can_take_plan(container: ProjectContainer, source: TorchSource, lock: DevkitLock) -> bool:
    """Say if devkit can give the container the plan's torch: by its commands' environment, or in its own Dockerfile."""
    if source.tool not in ("pip", "uv") or source.variant == "cpu":
        return False
    if source.origin is TorchOrigin.COMMAND:
        return not (source.version and source.variant)
    is_own = not source.version or is_own_pin(lock, source.place.path, "torch", f"=={source.version}")
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
    """A change of one file, with the code and message of its finding."""

    code: str
    path: str
    message: str


@dataclass(frozen=True)
class LeftToUser:
    """Something that devkit does not change, with the lines that would."""

    code: str
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
    """The repaired files by path, the repairs in them, and what is left to the user.

    `overlay_files` are devkit's own files beside the user's, `local` paths that differ from host to host.
    """

    texts: Mapping[str, bytes] = field(default_factory=dict)
    overlay_files: tuple[Artifact, ...] = ()
    local: tuple[str, ...] = ()
    repairs: tuple[AppliedRepair, ...] = ()
    left: tuple[LeftToUser, ...] = ()
    torch: tuple[ContainerTorch, ...] = ()


def compute_adopted_changes(
    project: DevkitProject, existing: ExistingContainer, plan: Plan, machines: tuple[Machine, ...]
) -> tuple[tuple[FileChange, ...], Adoption]:
    """Compute the changes that fit the project's own dev container to the plan. Reads the disk, writes nothing.

    Raises: DevkitError for files that cannot be read or do not parse.
    """
    adoption = compute_adoption(project, existing, plan, machines)
    # A run that was killed between two files leaves its lock staged: what it repaired is no longer found.
    interrupted = read_file(project.root, get_staging_path(Path(LOCK_PATH)).name)
    repaired = dict(existing.lock.repaired)
    if interrupted is not None:
        with suppress(DevkitError):
            repaired |= parse_lock(interrupted).repaired
    for repair in adoption.repairs:
        repaired[repair.path] = tuple(sorted({*repaired.get(repair.path, ()), repair.code}))
    texts = [Artifact(path, content) for path, content in sorted(adoption.texts.items())]
    ignore_files, ignored = update_gitignore(project.root, adoption.local, existing.lock.ignored)
    lock = render_lock(plan, adoption.overlay_files, machines, repaired, ignored=ignored)
    # A reason names the line of a pin, and a repair may move that line: the plan is the same for all that.
    for before in (read_file(project.root, LOCK_PATH), interrupted):
        if before is not None and _strip_reasons(before) == _strip_reasons(lock.content):
            lock = replace(lock, content=before)
            break
    edited = [*render_user_files(project), *ignore_files, *texts]
    return compute_changes(project.root, (*adoption.overlay_files, lock), edited, adopts=True), adoption


def _strip_reasons(lock: bytes) -> object:
    try:
        document = json.loads(lock)
    except ValueError:
        return None  # half of a lock, which a killed run was writing
    reasons = document.get("plan", {}).get("reasons", [])
    document.get("plan", {})["reasons"] = [{**reason, "because": ""} for reason in reasons]
    return document


def compute_adoption(
    project: DevkitProject, existing: ExistingContainer, plan: Plan, machines: tuple[Machine, ...]
) -> Adoption:
    """Repair the project's own container files for the plan, in memory. Reads the disk, writes nothing.

    Raises: DevkitError for a file that does not parse.
    """
    has_project_torch = requires_torch(project.dependencies)
    session = _RepairSession(
        project.root,
        existing,
        plan,
        machines,
        has_project_torch=has_project_torch,
        for_windows=is_for_windows(project),
    )
    for path in find_pinned_files(existing.lock):
        session.update_pins(path, dict(existing.lock.plan.get("packages", {})))
    for _ in range(_MAX_ROUNDS):
        if not session.repair(session.run_checks()):
            break
    session.bind_torch()
    unresolved = session.run_checks()
    torch = tuple(session.find_torch())
    overlay_files, local = session.add_overlays()
    return Adoption(
        session.get_changed(),
        (*overlay_files, *session.render_constraints()),
        local,
        tuple(session.repairs),
        (*session.list_left(unresolved), *session.left),
        torch,
    )


def find_pinned_files(lock: DevkitLock) -> tuple[str, ...]:
    """Find the files in which an earlier run pinned versions."""
    return tuple(path for path, codes in lock.repaired.items() if any(code in _PINNING for code in codes))


def is_own_pin(lock: DevkitLock, path: str, name: str, specifier: str) -> bool:
    """Return True when an earlier run wrote this version into this file: then it constrains nothing."""
    version = specifier.removeprefix("==").partition("+")[0]
    return path in find_pinned_files(lock) and version == lock.plan.get("packages", {}).get(name)


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


class _RepairSession:
    """The project's files in memory while checks and repairs take turns."""

    def __init__(
        self,
        root: Path,
        existing: ExistingContainer,
        plan: Plan,
        machines: tuple[Machine, ...],
        *,
        has_project_torch: bool,
        for_windows: bool,
    ) -> None:
        self._root = root.resolve()
        self._paths = existing.paths
        self._plan = plan
        self._has_project_torch = has_project_torch
        self._versions = PinnedVersions.from_plan(plan)
        self._machines = machines
        self._facts: Facts | None = None
        self._on_disk: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = dict(existing.new)
        self._overlays = ServiceOverlays(self._root, plan, existing.paths, self.read, for_windows=for_windows)
        self.repairs: list[AppliedRepair] = []
        self._suggested: dict[str, tuple[str, ...]] = {}
        self.left: list[LeftToUser] = []

    def run_checks(self) -> list[ReportedFinding]:
        """Return the present findings on all machines of the plan, each finding once."""
        facts = gather_facts(self._host(), only=("system", "project"), project=str(self._root))
        _require_readable_files(facts)
        if self._facts is None:
            self._overlays.choose_existing(facts, self._host())
        self._facts = facts
        machines = [(_on_machine(facts, machine), _PROJECT_CHECKS) for machine in self._machines]
        if any(machine.gpus for machine in self._machines):
            # The container has to start on a teammate's machine without a GPU as well.
            machines.append((_without_gpu(facts), _GPU_REQUIREMENT))
        found: dict[tuple[str, str], ReportedFinding] = {}
        for on_machine, checks in machines:
            outcomes = run_checks(checks, on_machine, clock=lambda: 0.0)
            for root in build_report(on_machine, outcomes, devkit=__version__).roots:
                if not self._overlays.settles(root, facts):
                    found.setdefault((root.check.code, root.finding.message), root)
        return list(found.values())

    def repair(self, findings: list[ReportedFinding]) -> bool:
        """Make the changes that repair these findings. Returns True when there were any."""
        touched: set[str] = set()
        has_overlay = False
        for reported in findings:
            code, message = reported.check.code, reported.finding.message
            containers: list[ProjectContainer] = []
            if code in SETTLED_BY_OVERLAY and self._facts is not None:
                containers = self._overlays.find_containers(reported, self._facts)
            if overlaid := [each for each in containers if self._overlays.choose(each, self._host())]:
                self.repairs += [AppliedRepair(code, container.name, message) for container in overlaid]
                has_overlay = True
                continue
            try:
                changes = {path: text for path, text in self._compute_repair(reported) if text != self.read(path)}
            except UnicodeDecodeError:
                continue  # The file is not UTF-8: the finding is left to its author.
            if not all(map(is_dev_container_file, changes)):
                # A production image or service may come from it: its author decides.
                lines = (line for path, text in changes.items() for line in self._list_new_lines(path, text))
                self._suggested[message] = tuple(lines)
                continue
            # Findings have line numbers of the checked text: a file that was changed waits for the next round.
            if touched.isdisjoint(changes):
                touched |= changes.keys()
                self._texts |= changes
                self.repairs += [AppliedRepair(code, path, message) for path in changes]
        return bool(touched) or has_overlay

    def list_left(self, unresolved: list[ReportedFinding]) -> Iterator[LeftToUser]:
        """Yield what is left to the user of the findings."""
        for code, finding in ((each.check.code, each.finding) for each in unresolved):
            if finding.severity is not Severity.NOTE:
                lines = self._suggested.get(finding.message, ())
                yield LeftToUser(code, finding.message, finding.fix.summary, lines)

    def find_torch(self) -> Iterator[ContainerTorch]:
        """Yield the torch of each dev container, as its files are by now."""
        for container in self._list_dev_containers():
            source = find_torch_source(container, has_project_torch=self._has_project_torch)
            values = (container.value("PIP_CONSTRAINT"), container.value("UV_CONSTRAINT"))
            is_bound = source.origin is TorchOrigin.COMMAND and any(each.endswith(CONSTRAINTS_PATH) for each in values)
            is_changed = source.origin is TorchOrigin.BUILD and source.place.path in self._texts
            yield ContainerTorch(container.name, source, is_bound, is_changed)

    def bind_torch(self) -> None:
        """Give the plan's torch to lifecycle commands that install torch, by the environment of the container."""
        for container in self._list_dev_containers():
            source = find_torch_source(container, has_project_torch=self._has_project_torch)
            is_fixed = source.variant == "cpu" or (source.version and source.variant)
            if container.dev is None or source.origin is not TorchOrigin.COMMAND or is_fixed:
                continue
            path, tools = container.dev.path, {install.tool for install in container.dev.installs}
            text = self.read(path).decode()
            folder = find_project_folder(container, load_jsonc(text), name=self._root.name)
            environment = build_environment(self._plan, tools, folder) if folder else {}
            where = format_location(source.place.path, source.place.line)
            message = f"{where} installs torch, and nothing holds it at a build that fits the driver"
            try:
                bound = bind_torch(text, environment) if environment else None
            except CannotSplice:
                bound = None
            if bound is None:
                wanted = f"torch=={self._plan.torch}+{self._plan.variant} --extra-index-url {self._plan.torch_index}"
                advice = "Let this command install torch before it."
                self.left.append(LeftToUser("PRJ026", message, advice, (f"pip install {wanted}",)))
                continue
            if bound != text:
                self._texts[path] = bound.encode()
                self.repairs.append(AppliedRepair("PRJ026", path, message))

    def render_constraints(self) -> Iterator[Artifact]:
        """Yield the constraints file where a devcontainer.json names it, also for a command that is gone."""
        if any(CONSTRAINTS_PATH.encode() in self.read(path) for path in self._paths):
            yield render_constraints(self._plan)

    def _list_dev_containers(self) -> list[ProjectContainer]:
        facts = gather_facts(self._host(), only=("project",), project=str(self._root))
        _require_readable_files(facts)
        return [each for each in require_project_containers(facts) if each.dev is not None]

    def add_overlays(self) -> tuple[tuple[Artifact, ...], tuple[str, ...]]:
        """Add devkit's overlays to the lists of Compose files. Returns devkit's own files, and paths to ignore."""
        if self._facts is None:
            return (), ()
        files = self._overlays.render(self._facts, self._host())
        self._texts |= files.texts
        return files.own, files.local

    def update_pins(self, path: str, before: Mapping[str, str]) -> None:
        """Replace the versions that an earlier plan pinned by those of this plan."""
        text = self.read(path).decode()
        versions = replace(self._versions, before=before)
        pinned = pin_dockerfile(text, versions) if is_dockerfile(text) else pin_requirements_file(text, versions)
        if pinned != text:
            self._texts[path] = pinned.encode()
            self.repairs.append(AppliedRepair("PRJ026", path, "the plan has other versions now"))

    def read(self, path: str) -> bytes:
        """Return a file with the changes so far."""
        if path in self._texts:
            return self._texts[path]
        self._on_disk.setdefault(path, read_file(self._root, path) or b"")
        return self._on_disk[path]

    def _list_new_lines(self, path: str, content: bytes) -> Iterator[str]:
        """Yield the lines that differ from the file as it is: "Dockerfile:3: RUN pip install torch==2.13.0"."""
        before, after = (each.decode().splitlines() for each in (self.read(path), content))
        for tag, first, last, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag == "delete":
                yield from (f"{path}:{first + 1}: without {line.strip()}" for line in before[first:last])
            elif tag != "equal":
                yield from (
                    f"{path}:{first + 1}: {line}" for line in after[start:end] if not line.startswith("#") and line
                )

    def get_changed(self) -> dict[str, bytes]:
        """Return the files that differ from those on the disk."""
        return {path: content for path, content in self._texts.items() if content != self._on_disk.get(path)}

    def _host(self) -> PatchedHost:
        """Return the machine with the changes so far, and without devkit's own overlays."""
        texts = {path: decode_text(content) for path, content in self._texts.items()}
        texts |= dict(self._overlays.read_texts_without_overlays())
        return PatchedHost({str(self._root / path): text for path, text in texts.items()})

    def _compute_repair(self, reported: ReportedFinding) -> Iterator[tuple[str, bytes]]:
        if reported.finding.confidence is Confidence.POSSIBLE:
            return
        yield from self._apply_repairs(reported.finding.fix.repairs)
        if reported.check.code in IMAGE_REPAIRS and self._facts is not None:
            context = RepairContext(self._facts, self._versions, self.read)
            yield from IMAGE_REPAIRS[reported.check.code](context, reported.finding)

    def _apply_repairs(self, repairs: tuple[Repair, ...]) -> list[tuple[str, bytes]]:
        """Apply the doctor's own repairs: all of a finding, or none where one cannot be made."""
        texts: dict[str, bytes] = {}
        for repair in repairs:
            if repair.key[:1] == ("hostRequirements",) and _is_for_jetbrains(self.read(repair.path)):
                return []
            if repair.kind is RepairKind.MAKE_DIRECTORY or repair.path.startswith(("~", "/")):
                return []
            try:
                texts[repair.path] = apply_repair(texts.get(repair.path, self.read(repair.path)), repair).encode()
            except CannotRepair:
                return []
        return list(texts.items())


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


def _is_for_jetbrains(content: bytes) -> bool:
    """Return True for a devcontainer.json of JetBrains's tools: they ignore hostRequirements, and would lose the GPU."""
    try:
        return "jetbrains" in (load_jsonc(content.decode()).get("customizations") or {})
    except (ValueError, AttributeError):
        return False


# A dev container made of a service in one of the project's own Compose files.

DEV_CONTAINER_PATH = f"{DEVCONTAINER_FOLDER}/devcontainer.json"
_FOLDER = "${localWorkspaceFolder}"


def render_compose_dev_container(root: Path, name: str, *, compose: Path, service: str | None) -> bytes:
    """Render the devcontainer.json of a service; without a `service`, of the only one that asks for a GPU.

    Raises: DevkitError for a file outside of the project or without services, and for a service that it does not have.
    """
    path, services = _read_services(root, compose)
    chosen = _choose(services, service, path)
    # The service runs what it is released for: the editor needs a container that waits, and the project's files.
    folder = posixpath.dirname(path)
    sources = ((posixpath.normpath(posixpath.join(folder, each.source)), each.target) for each in chosen.mounts)
    mounted = next((target for source, target in sources if source == "."), "")
    folder = mounted or "/workspaces/${localWorkspaceFolderBasename}"
    document = {
        "name": name,
        "dockerComposeFile": posixpath.relpath(path, DEVCONTAINER_FOLDER),
        "service": chosen.name,
        "workspaceFolder": folder,
        "mounts": [] if mounted else [f"source={_FOLDER},target={folder},type=bind"],
        "overrideCommand": True,
        "shutdownAction": "stopCompose",
    }
    kept = {key: value for key, value in document.items() if value != []}
    return (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode()


def _read_services(root: Path, compose: Path) -> tuple[str, tuple[Service, ...]]:
    """Return the path of the file in the project, and its services."""
    files = ProjectFiles(LocalHost(), str(root.resolve()))
    path = files.within(str(compose if compose.is_absolute() else root.resolve() / compose))
    if path is None:
        raise DevkitError(f"{compose} is outside of the project", f"Name a Compose file in {root}.")
    services = read_compose_services((path,), files)
    if not services:
        problem = next((each.problem for each in files.seen if each.path == path and each.problem), "")
        what = "does not exist" if not files.has(path) else problem or "has no services"
        raise DevkitError(f"{compose} {what}", "Name a Compose file of the project, relative to its folder.")
    return path, services


def _choose(services: tuple[Service, ...], name: str | None, path: str) -> Service:
    wanted = [each for each in services if (each.name == name if name else each.requests)]
    if len(wanted) == 1:
        return wanted[0]
    names = join_words([each.name for each in services])
    if name:
        raise DevkitError(f"{path} has no service {name!r}", f"It has {names}.")
    which = "several services ask" if wanted else "no service asks"
    raise DevkitError(f"{which} for a GPU in {path}", f"Choose one with --service: {names}.")


# The plan's torch for lifecycle commands that install torch: environment variables of pip and uv, and a constraints file.
#
# The commands themselves stay as they are.
# Source: pip, "Environment Variables" and "Constraints Files"; uv, "Environment variables"; containers.dev, `containerEnv`.

CONSTRAINTS_PATH = f"{OVERLAY_FOLDER}/constraints.txt"
_LOCAL_FOLDER, _LOCAL_NAME = "${localWorkspaceFolder}", "${localWorkspaceFolderBasename}"
_SUDO = re.compile(r"\bsudo\s+(?:-\S+\s+)*(?:\S*python\S*\s+-m\s+)?(?:uv|pip)\b")
_BIND = re.compile(r"(?:^|,)(?:target|dst)=([^,]+)")


def render_constraints(plan: Plan) -> Artifact:
    """Render the constraints file."""
    return Artifact.from_text(
        CONSTRAINTS_PATH,
        f"# Written by devkit {__version__}: the torch that fits the machines of devkit.lock, from {plan.torch_index}\n"
        f"torch=={plan.torch}+{plan.variant}\n",
    )


def build_environment(plan: Plan, tools: Iterable[str], folder: str) -> dict[str, str]:
    """Build the variables by which these tools take the plan's torch; `folder` is the project's in the container."""
    path = f"{folder}/{CONSTRAINTS_PATH}"
    environment: dict[str, str] = {}
    if "pip" in tools:
        environment |= {"PIP_CONSTRAINT": path, "PIP_EXTRA_INDEX_URL": plan.torch_index}
    if "uv" in tools:
        environment |= {"UV_CONSTRAINT": path, "UV_TORCH_BACKEND": plan.variant}
    return environment


def find_project_folder(container: ProjectContainer, document: Mapping[str, object], *, name: str) -> str | None:
    """Find the project's folder in the container; None where the files do not show it, or pip could not read its name.

    `document` is devcontainer.json, `name` that of the project's folder on the host.
    """
    folder: str | None = "${containerWorkspaceFolder}"
    shown = str(document.get("workspaceFolder", f"/workspaces/{name}"))
    if container.is_compose:
        files = container.dev.compose_files if container.dev else ()
        base = posixpath.dirname(files[0]) if files else "."
        targets = [
            each.target.rstrip("/")
            for each in container.mounts
            if each.source == _LOCAL_FOLDER or posixpath.normpath(posixpath.join(base, each.source)) == "."
        ]
        folder = targets[0] if targets else ""
        shown = folder.replace(_LOCAL_NAME, name)
    elif "workspaceMount" in document:
        mount = str(document["workspaceMount"])
        found = _BIND.search(mount)
        folder = found[1].rstrip("/") if found and f"source={_LOCAL_FOLDER}," in mount else ""
        shown = folder.replace(_LOCAL_NAME, name)
    # pip and uv split these variables at blanks.
    return folder if folder and not re.search(r"\s", shown) else None


def bind_torch(text: str, environment: Mapping[str, str]) -> str | None:
    """Set the variables in devcontainer.json; None where it has other values for them, and where sudo drops them.

    Raises: CannotSplice for a layout that does not allow it.
    """
    document = load_jsonc(text)
    if _SUDO.search(text):
        return None
    present = {**(document.get("remoteEnv") or {}), **(document.get("containerEnv") or {})}
    is_ours = any(str(value).endswith(f"/{CONSTRAINTS_PATH}") for value in present.values())
    if not is_ours and present.keys() & environment.keys():
        return None
    for name, value in environment.items():
        text = set_value(text, ("containerEnv", name), value, JSONC)
    return text
