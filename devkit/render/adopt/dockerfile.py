"""Changes of a Dockerfile that somebody wrote: each touches the words that it must, every other byte stays."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from devkit.compat.specifiers import canonicalize_name
from devkit.doctor.checks.project.containers import TORCH_PACKAGES, ProjectContainer, require_project_containers
from devkit.doctor.checks.project.images import CudaTag
from devkit.doctor.model import Finding
from devkit.facts.model import Dockerfile, Facts, Project
from devkit.facts.project import Policy, RequestForm
from devkit.formats.shell import (
    REQUIREMENT_FILE_OPTIONS,
    PackageInstall,
    ShellWord,
    find_package_install,
    parse_commands,
)
from devkit.probe.project.dockerfile import parse_instructions
from devkit.render.splice.document import TextEdit, apply_text_edits, detect_newline
from devkit.solver.plan import Plan

_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extras>\[[^\]]*\])?(?:==(?P<version>[\w.+!-]+))?")
_TORCH_URL = re.compile(r"https?://download\.pytorch\.org/whl\S*")
_FAMILY = ("torch", "torchvision", "torchaudio")
_COMPILER = "# Triton, which torch.compile uses, compiles while a program runs."
_USER = "# Not root: what is written into the workspace stays yours. The editor gives this user your ids."


@dataclass(frozen=True)
class PinnedVersions:
    """What a plan pins: its packages by name, torch's wheel index and variant.

    `before` is what an earlier plan pinned: with it, nothing else is touched.
    """

    packages: Mapping[str, str]
    torch_index: str
    variant: str
    before: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_plan(cls, plan: Plan) -> "PinnedVersions":
        """Those of a plan."""
        return cls(dict(plan.packages), plan.torch_index, plan.variant)

    def pin(self, text: str, *, with_variant: bool) -> str | None:
        """A requirement with the plan's version; None for one that the plan does not know or somebody else pinned."""
        found = _PACKAGE.fullmatch(text)
        name = canonicalize_name(found["name"]) if found else ""
        if found is None or name not in self.packages:
            return None
        version = (found["version"] or "").partition("+")[0]
        is_ours = version == self.before.get(name) if self.before else not version
        label = f"+{self.variant}" if name == "torch" and with_variant else ""
        return f"{found['name']}{found['extras'] or ''}=={self.packages[name]}{label}" if is_ours else None


def replace_base_image(text: str, *, line: int, image: str, environment: str = "") -> str:
    """The text with another image behind the FROM of that line, and variables that its old image set."""
    start, end = _line(text, line)
    found = re.compile(r"(\s*FROM\s+(?:--\S+\s+)*)(\S+)", re.IGNORECASE).match(text, start, end)
    if found is None:
        return text
    cuts = [TextEdit(found.start(2), found.end(2), image)]
    if environment:
        cuts.append(TextEdit(end, end, f"{detect_newline(text)}ENV {environment}"))
    return apply_text_edits(text, cuts)


def pin_dockerfile(text: str, versions: PinnedVersions, *, files: frozenset[str] = frozenset()) -> str:
    """The text with the plan's versions in every pip and uv command, and torch's index where torch is installed.

    `files` are the names of requirement files that hold torch.
    """
    cuts: list[TextEdit] = []
    for start, end in _runs(text):
        for command in _pip_installs(text, start, end):
            cuts += _of_command(command, versions, files)
    return apply_text_edits(text, cuts)


def is_dockerfile(text: str) -> bool:
    """Whether the text is a Dockerfile's, which may have any name."""
    return any(one.keyword == "FROM" for one in parse_instructions(text))


def pin_requirement(text: str, *, line: int, versions: PinnedVersions) -> str:
    """A requirement file with the plan's version of the package on that line; its comment and marker stay."""
    start, end = _line(text, line)
    found = re.compile(r"\s*([\w.-]+(?:\[[^\]]*\])?(?:==[\w.+!-]+)?)(?=\s*(?:[;#\\]|$))").match(text[:end], start)
    pinned = versions.pin(found[1], with_variant=False) if found else None
    return apply_text_edits(text, [TextEdit(found.start(1), found.end(1), pinned)]) if found and pinned else text


def pin_requirements_file(text: str, versions: PinnedVersions) -> str:
    """A requirement file with the plan's version wherever `PinnedVersions` has one."""
    for line in range(1, text.count("\n") + 2):
        text = pin_requirement(text, line=line, versions=versions)
    return text


def add_compiler(text: str, *, after: int, has_own_python: bool) -> str:
    """The text with a C compiler, before Python packages are installed in the stage whose FROM is on line `after`."""
    headers = "" if has_own_python else " python3-dev"
    packages = f"gcc libc6-dev{headers}"
    install = f"apt-get install -y --no-install-recommends {packages}"
    install = f"RUN apt-get update && {install} && rm -rf /var/lib/apt/lists/*"
    return _with_block(text, _before_packages(text, after), [_COMPILER, install])


def add_user(text: str, *, has_ubuntu: bool) -> str:
    """The text with an ordinary user at its end, before what the container runs. `has_ubuntu`: its image has one."""
    make = [] if has_ubuntu else ["RUN useradd --create-home --shell /bin/bash --uid 1000 dev"]
    last_run = [one.line for one in parse_instructions(text) if one.keyword in ("CMD", "ENTRYPOINT")]
    from_lines = [one.line for one in parse_instructions(text) if one.keyword == "FROM"]
    places = [line for line in last_run if line > max(from_lines, default=0)]
    block = [_USER, *make, f"USER {'ubuntu' if has_ubuntu else 'dev'}"]
    return _with_block(text, min(places) if places else None, block)


def _pip_installs(text: str, start: int = 0, end: int | None = None) -> Iterator[PackageInstall]:
    """The commands between two places of the text that install packages with pip or uv pip."""
    for command in parse_commands(text, start, end):
        install = find_package_install(command)
        if install is not None and install.tool in ("pip", "uv") and install.verb.value == "install":
            yield install


def _of_command(command: PackageInstall, versions: PinnedVersions, files: frozenset[str]) -> Iterator[TextEdit]:
    installs_torch = any(name.rpartition("/")[2] in files for name in command.option_values(*REQUIREMENT_FILE_OPTIONS))
    for word in command.packages:
        pinned = versions.pin(word.value, with_variant=command.tool == "pip")
        if pinned is not None:
            installs_torch = installs_torch or pinned.startswith("torch==")
            if pinned != word.value:
                yield TextEdit(word.start, word.end, _quoted_as(word, pinned))
    if installs_torch:
        yield from _index(command, versions)


def _index(command: PackageInstall, versions: PinnedVersions) -> Iterator[TextEdit]:
    for name, value in command.options:
        place = value or name
        url = _TORCH_URL.search(place.text)
        if url is not None:
            if url[0].strip("\"'") != versions.torch_index:
                yield TextEdit(place.start, place.end, place.text.replace(url[0].strip("\"'"), versions.torch_index))
            return
        if name.value.startswith("--torch-backend"):
            is_joined = "=" in name.value
            text = f"--torch-backend={versions.variant}" if is_joined else versions.variant
            yield TextEdit(place.start, place.end, text)
            return
    is_uv = command.tool == "uv"
    added = f"--torch-backend={versions.variant}" if is_uv else f"--extra-index-url {versions.torch_index}"
    yield TextEdit(command.verb.end, command.verb.end, f" {added}")


def _quoted_as(word: ShellWord, text: str) -> str:
    quote = word.text[0] if word.text[0] in "\"'" and word.text[-1] == word.text[0] else ""
    return f"{quote}{text}{quote}"


def _runs(text: str) -> Iterator[tuple[int, int]]:
    """Where each RUN begins and the next instruction begins."""
    found = list(parse_instructions(text))
    for place, one in enumerate(found):
        if one.keyword == "RUN":
            following = found[place + 1].line if place + 1 < len(found) else None
            yield _line(text, one.line)[0], _line(text, following)[0] if following else len(text)


def _before_packages(text: str, after: int) -> int | None:
    for one in parse_instructions(text):
        installs = one.keyword == "RUN" and any(_pip_installs(f"{one.text}\n{one.heredoc}"))
        if one.line > after and (installs or one.keyword in ("USER", "CMD", "ENTRYPOINT")):
            return one.line
    return None


def _with_block(text: str, line: int | None, block: list[str]) -> str:
    """The text with lines of devkit's before that line and the comments that belong to it, or at its end."""
    newline = detect_newline(text)
    shown = newline.join([*block, ""])
    if line is None:
        gap = "" if not text or text.endswith("\n") else newline
        return f"{text}{gap}{newline}{shown}"
    lines = text.splitlines(keepends=True)
    place = line - 1
    while place > 0 and lines[place - 1].lstrip().startswith("#"):
        place -= 1
    gap = newline if place and lines[place - 1].strip() else ""
    return "".join([*lines[:place], gap, shown, newline, *lines[place:]])


def _line(text: str, line: int) -> tuple[int, int]:
    """Where a line begins and where it ends, before its line end."""
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: line - 1]))
    return start, start + len(lines[line - 1].rstrip("\r\n")) if line <= len(lines) else start


# What devkit does about a finding on an image: the versions come from the plan, which the doctor does not know.

FileTexts = Iterator[tuple[str, bytes]]

_SYSTEM = re.compile(r"(ubuntu|debian)([\d.]+)")
_NEEDS_NVCC = re.compile(r"\bnvcc\b|CUDA_HOME|TORCH_CUDA_ARCH_LIST|flash[-_]attn")
_NEEDS_ROOT = re.compile(r"\b(?:apt|apt-get|sudo)\b")
_HAS_UBUNTU_USER = re.compile(r"ubuntu:?(?:23\.04|23\.10|2[4-9]\.)")
_CUDA_IMAGES_SET = "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"


@dataclass(frozen=True)
class RepairContext:
    """The project as it is judged, the plan's versions, and each file as it would be by now."""

    facts: Facts
    versions: PinnedVersions
    text: Callable[[str], bytes]

    def units(self, finding: Finding) -> Iterator[tuple[ProjectContainer, Dockerfile]]:
        """The containers with a Dockerfile that the finding concerns."""
        path = finding.location.path if finding.location else ""
        for unit in require_project_containers(self.facts):
            dockerfile = unit.dockerfile
            if dockerfile is not None and path in (dockerfile.path, *_files_of(unit)):
                yield unit, dockerfile


def _files_of(unit: ProjectContainer) -> tuple[str, ...]:
    """Where a finding about this container may stand."""
    dev = (unit.dev.path,) if unit.dev else ()
    return (*dev, *(install.path for install in unit.installs))


def _another_image(target: RepairContext, finding: Finding) -> FileTexts:
    """The same system without CUDA's libraries: the system's packages stay what they are."""
    for unit, dockerfile in target.units(finding):
        image, text = unit.image, target.text(dockerfile.path).decode()
        tag = CudaTag.of(image.value) if image else None
        system = _SYSTEM.fullmatch(tag.system) if tag else None
        if image is None or tag is None or system is None or tag.flavour == "devel" or _NEEDS_NVCC.search(text):
            continue
        if unit.stages[0].image_text != image.value:
            continue
        by_runtime = any(request.form is RequestForm.RUNTIME for request in unit.requests)
        environment = _CUDA_IMAGES_SET if by_runtime else ""
        name = f"{system[1]}:{system[2]}"
        yield dockerfile.path, replace_base_image(text, line=image.line, image=name, environment=environment).encode()


def _compiler(target: RepairContext, finding: Finding) -> FileTexts:
    for unit, dockerfile in target.units(finding):
        stage = unit.stages[-1]
        has_own_python = bool(unit.image and re.search(r"(?:^|/)python:", unit.image.value))
        text = target.text(dockerfile.path).decode()
        yield dockerfile.path, add_compiler(text, after=stage.line, has_own_python=has_own_python).encode()


def _pins(target: RepairContext, finding: Finding) -> FileTexts:
    for unit, dockerfile in target.units(finding):
        unpinned = [
            one
            for install in target.facts.project.installs  # type: ignore[union-attr] # units_of has looked
            for one in install.requirements
            if one.name in TORCH_PACKAGES and install in unit.installs
        ]
        lists = [one for one in unpinned if one.path.endswith((".txt", ".in"))]
        for one in lists:
            listed = target.text(one.path).decode()
            yield one.path, pin_requirement(listed, line=one.line, versions=target.versions).encode()
        files = frozenset(one.path.rpartition("/")[2] for one in lists if one.name == "torch")
        text = target.text(dockerfile.path).decode()
        yield dockerfile.path, pin_dockerfile(text, target.versions, files=files).encode()


def _user(target: RepairContext, finding: Finding) -> FileTexts:
    for unit, dockerfile in target.units(finding):
        commands = target.text(unit.dev.path).decode() if unit.dev else ""
        # A service runs as whoever its image says, and what it may do then nobody can tell from here.
        if unit.dev is None or unit.user is not None or _NEEDS_ROOT.search(commands):
            continue
        has_ubuntu = bool(unit.image and _HAS_UBUNTU_USER.search(unit.image.value))
        yield dockerfile.path, add_user(target.text(dockerfile.path).decode(), has_ubuntu=has_ubuntu).encode()


def _mirror(target: RepairContext, finding: Finding) -> FileTexts:
    """The same image under the name where the policy has it taken from."""
    project = target.facts.project
    policy = project.policy if isinstance(project, Project) else None
    if finding.location is None or not isinstance(policy, Policy):
        return
    for unit, dockerfile in target.units(finding):
        for stage in unit.stages:
            is_meant = (dockerfile.path, stage.line) == (finding.location.path, finding.location.line)
            image = policy.resolve_mirror(stage.image)
            if is_meant and stage.image_text == stage.image and image != stage.image and policy.allows_image(image):
                text = target.text(dockerfile.path).decode()
                yield dockerfile.path, replace_base_image(text, line=stage.line, image=image).encode()


IMAGE_REPAIRS: Mapping[str, Callable[[RepairContext, Finding], FileTexts]] = {
    "PRJ021": _another_image,
    "PRJ022": _another_image,
    "PRJ023": _compiler,
    "PRJ024": _pins,
    "PRJ026": _pins,
    "PRJ027": _another_image,
    "PRJ029": _user,
    "PRJ032": _mirror,
}
"""Code of a check -> the change that it asks for."""
