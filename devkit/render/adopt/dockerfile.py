"""Repairs of a dev container's image that somebody wrote: each replaces the words that it must, every other byte stays.

Versions come from the plan, which the doctor does not know, so these repairs are here and not in its findings.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from devkit.compat.specifiers import canonicalize_name
from devkit.doctor.checks.project.containers import TORCH_PACKAGES, ProjectContainer, require_project_containers
from devkit.doctor.checks.project.images import CudaTag
from devkit.doctor.model import Finding
from devkit.facts.model import Dockerfile, Facts, Project
from devkit.facts.project import Policy, RequestForm
from devkit.formats.shell import (
    REQUIREMENT_FILE_OPTIONS,
    PackageInstall,
    find_package_install,
    parse_commands,
)
from devkit.probe.project.dockerfile import parse_instructions
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.splice.document import TextEdit, apply_text_edits, detect_newline, set_value
from devkit.render.splice.jsonc import JSONC
from devkit.solver.plan import Plan

_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extras>\[[^\]]*\])?(?:==(?P<version>[\w.+!-]+))?")
_REQUIREMENT_LINE = re.compile(r"\s*([\w.-]+(?:\[[^\]]*\])?(?:==[\w.+!-]+)?)(?=\s*(?:[;#\\]|$))")
_FROM = re.compile(r"(\s*FROM\s+(?:--\S+\s+)*)(\S+)", re.IGNORECASE)
_TORCH_URL = re.compile(r"https?://download\.pytorch\.org/whl\S*")
_SYSTEM = re.compile(r"(ubuntu|debian)([\d.]+)")
_NEEDS_NVCC = re.compile(r"\bnvcc\b|CUDA_HOME|TORCH_CUDA_ARCH_LIST|flash[-_]attn")
_NEEDS_ROOT = re.compile(r"\b(?:apt|apt-get|sudo|(?:pip|uv|conda|mamba|poetry)\d* .*(?:install|sync|update|create))\b")
_HAS_UBUNTU_USER = re.compile(r"ubuntu:?(?:23\.04|23\.10|2[4-9]\.)")
_CUDA_IMAGE_VARIABLES = "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_COMPILER = "# Triton, which torch.compile uses, compiles while a program runs."
_USER_FEATURE = "ghcr.io/devcontainers/features/common-utils:2"
"""Makes a user. Source: devcontainers/features, src/common-utils, options `username` and `installZsh`."""


@dataclass(frozen=True)
class PinnedVersions:
    """The torch of a plan, as the packages to pin by name; torch's wheel index and variant.

    With `before`, the packages of an earlier plan, only those versions are replaced.
    """

    packages: Mapping[str, str]
    torch_index: str
    variant: str
    before: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_plan(cls, plan: Plan) -> "PinnedVersions":
        """Return the versions of a plan: every package besides torch is for the installer to choose."""
        return cls({"torch": plan.torch}, plan.torch_index, plan.variant)

    def pin(self, text: str, *, with_variant: bool) -> str | None:
        """Return a requirement with the plan's version; None for an unknown one and one that somebody else pinned."""
        found = _PACKAGE.fullmatch(text)
        name = canonicalize_name(found["name"]) if found else ""
        if found is None or name not in self.packages:
            return None
        version = (found["version"] or "").partition("+")[0]
        is_ours = version == self.before.get(name) if self.before else not version
        label = f"+{self.variant}" if name == "torch" and with_variant else ""
        return f"{found['name']}{found['extras'] or ''}=={self.packages[name]}{label}" if is_ours else None


@dataclass(frozen=True)
class RepairContext:
    """The facts of the project, the plan's versions, and a function that reads a file with the changes so far."""

    facts: Facts
    versions: PinnedVersions
    read: Callable[[str], bytes]

    def find_containers(self, finding: Finding) -> Iterator[tuple[ProjectContainer, Dockerfile, str]]:
        """Yield the containers with a Dockerfile that the finding is about, the Dockerfile, and its text."""
        path = finding.location.path if finding.location else ""
        for container in require_project_containers(self.facts):
            dockerfile = container.dockerfile
            if dockerfile is None:
                continue
            dev = (container.dev.path,) if container.dev else ()
            if path in (dockerfile.path, *dev, *(install.path for install in container.installs)):
                yield container, dockerfile, self.read(dockerfile.path).decode()


def _remove_cuda_image(context: RepairContext, finding: Finding) -> Iterator[tuple[str, bytes]]:
    """Take the same system without CUDA's libraries: the system's packages stay the same."""
    for container, dockerfile, text in context.find_containers(finding):
        image = container.image
        tag = CudaTag.of(image.value) if image else None
        system = _SYSTEM.fullmatch(tag.system) if tag else None
        if image is None or tag is None or system is None or tag.flavor == "devel" or _NEEDS_NVCC.search(text):
            continue
        if container.stages[0].image_text != image.value:
            continue
        by_runtime = any(request.form is RequestForm.RUNTIME for request in container.requests)
        environment = _CUDA_IMAGE_VARIABLES if by_runtime else ""
        name = f"{system[1]}:{system[2]}"
        yield dockerfile.path, replace_base_image(text, line=image.line, image=name, environment=environment).encode()


def _install_compiler(context: RepairContext, finding: Finding) -> Iterator[tuple[str, bytes]]:
    for container, dockerfile, text in context.find_containers(finding):
        has_own_python = bool(container.image and re.search(r"(?:^|/)python:", container.image.value))
        line = container.stages[-1].line
        yield dockerfile.path, add_compiler(text, after=line, has_own_python=has_own_python).encode()


def _pin_versions(context: RepairContext, finding: Finding) -> Iterator[tuple[str, bytes]]:
    for container, dockerfile, text in context.find_containers(finding):
        lists = [
            requirement
            for install in container.installs
            for requirement in install.requirements
            if requirement.name in TORCH_PACKAGES and requirement.path.endswith((".txt", ".in"))
        ]
        own = [requirement for requirement in lists if is_dev_container_file(requirement.path)]
        for requirement in own:
            listed = context.read(requirement.path).decode()
            pinned = pin_requirement(listed, line=requirement.line, versions=context.versions)
            yield requirement.path, pinned.encode()
        files = {each.path.rpartition("/")[2]: each in own for each in lists if each.name == "torch"}
        yield dockerfile.path, pin_dockerfile(text, context.versions, files=files).encode()


def _replace_root_user(context: RepairContext, finding: Finding) -> Iterator[tuple[str, bytes]]:
    """Name an ordinary user in devcontainer.json, made by a Feature where the image has none: the Dockerfile may serve
    a production image, which this must not change.
    """
    policy = context.facts.project.policy if isinstance(context.facts.project, Project) else None
    for container in require_project_containers(context.facts):
        dev = container.dev
        if dev is None or container.image is None or container.user is not None:
            continue
        if finding.location is None or finding.location.path != container.image.path:
            continue
        paths = (dev.path, *(each.path for each in (container.dockerfile, container.service) if each is not None))
        texts = {path: context.read(path).decode() for path in paths}
        # The commands that the editor starts run as this user; which permissions they need cannot be seen from here.
        if _NEEDS_ROOT.search(texts[dev.path]) or any("/root" in text for text in texts.values()):
            continue
        text, user = texts[dev.path], "ubuntu" if _HAS_UBUNTU_USER.search(container.image.value) else "dev"
        if user == "dev":
            if isinstance(policy, Policy) and not policy.allows_image(_USER_FEATURE):
                continue
            text = set_value(text, ("features", _USER_FEATURE), {"username": user, "installZsh": False}, JSONC)
        yield dev.path, set_value(text, ("remoteUser",), user, JSONC).encode()


def _use_mirror(context: RepairContext, finding: Finding) -> Iterator[tuple[str, bytes]]:
    """Take the same image from the policy's mirror."""
    project = context.facts.project
    policy = project.policy if isinstance(project, Project) else None
    if finding.location is None or not isinstance(policy, Policy):
        return
    for container, dockerfile, text in context.find_containers(finding):
        for stage in container.stages:
            is_meant = (dockerfile.path, stage.line) == (finding.location.path, finding.location.line)
            image = policy.resolve_mirror(stage.image)
            if is_meant and stage.image_text == stage.image and image != stage.image and policy.allows_image(image):
                yield dockerfile.path, replace_base_image(text, line=stage.line, image=image).encode()


IMAGE_REPAIRS: Mapping[str, Callable[[RepairContext, Finding], Iterator[tuple[str, bytes]]]] = {
    "PRJ021": _remove_cuda_image,
    "PRJ022": _remove_cuda_image,
    "PRJ023": _install_compiler,
    "PRJ024": _pin_versions,
    "PRJ026": _pin_versions,
    "PRJ027": _remove_cuda_image,
    "PRJ029": _replace_root_user,
    "PRJ032": _use_mirror,
}
"""Code of a check -> the function that repairs its finding, as changed files by path."""


def is_dev_container_file(path: str) -> bool:
    """Return True for a file that serves dev containers alone: only these are edited."""
    return path == f"{DEVCONTAINER_FOLDER}.json" or path.startswith(f"{DEVCONTAINER_FOLDER}/")


def is_dockerfile(text: str) -> bool:
    """Return True for the text of a Dockerfile, which may have any name."""
    return any(each.keyword == "FROM" for each in parse_instructions(text))


def replace_base_image(text: str, *, line: int, image: str, environment: str = "") -> str:
    """Replace the image of the FROM on that line, and add variables that the old image set."""
    start, end = _find_line(text, line)
    found = _FROM.match(text, start, end)
    if found is None:
        return text
    edits = [TextEdit(found.start(2), found.end(2), image)]
    if environment:
        edits.append(TextEdit(end, end, f"{detect_newline(text)}ENV {environment}"))
    return apply_text_edits(text, edits)


def add_compiler(text: str, *, after: int, has_own_python: bool) -> str:
    """Add a C compiler before Python packages are installed in the stage whose FROM is on line `after`."""
    packages = f"gcc libc6-dev{'' if has_own_python else ' python3-dev'}"
    install = f"apt-get install -y --no-install-recommends {packages}"
    block = [_COMPILER, f"RUN apt-get update && {install} && rm -rf /var/lib/apt/lists/*"]
    for each in parse_instructions(text):
        installs = each.keyword == "RUN" and any(_find_pip_installs(f"{each.text}\n{each.heredoc}"))
        if each.line > after and (installs or each.keyword in ("USER", "CMD", "ENTRYPOINT")):
            return _insert_block(text, each.line, block)
    return _insert_block(text, None, block)


def _insert_block(text: str, line: int | None, block: list[str]) -> str:
    """Insert lines before that line and the comments that belong to it, or at the end."""
    newline = detect_newline(text)
    inserted = newline.join([*block, ""])
    if line is None:
        gap = "" if not text or text.endswith("\n") else newline
        return f"{text}{gap}{newline}{inserted}"
    lines = text.splitlines(keepends=True)
    index = line - 1
    while index > 0 and lines[index - 1].lstrip().startswith("#"):
        index -= 1
    gap = newline if index and lines[index - 1].strip() else ""
    return "".join([*lines[:index], gap, inserted, newline, *lines[index:]])


def pin_requirements_file(text: str, versions: PinnedVersions) -> str:
    """Pin the plan's versions in a requirement file."""
    for line in range(1, text.count("\n") + 2):
        text = pin_requirement(text, line=line, versions=versions)
    return text


def pin_requirement(text: str, *, line: int, versions: PinnedVersions) -> str:
    """Pin the plan's version of the package on that line of a requirement file; its comment and marker stay."""
    start, end = _find_line(text, line)
    found = _REQUIREMENT_LINE.match(text[:end], start)
    pinned = versions.pin(found[1], with_variant=False) if found else None
    return apply_text_edits(text, [TextEdit(found.start(1), found.end(1), pinned)]) if found and pinned else text


def pin_dockerfile(text: str, versions: PinnedVersions, *, files: Mapping[str, bool] = MappingProxyType({})) -> str:
    """Pin the plan's versions in every pip and uv command, with torch's index where torch is installed.

    `files` are the names of requirement files with torch in them, each with whether its own line names the version:
    otherwise the command that installs the file does.
    """
    edits: list[TextEdit] = []
    instructions = list(parse_instructions(text))
    for each, following in zip(instructions, [*instructions[1:], None], strict=False):
        if each.keyword == "RUN":
            end = _find_line(text, following.line)[0] if following else len(text)
            for install in _find_pip_installs(text, _find_line(text, each.line)[0], end):
                edits += _pin_install(install, versions, files)
    return apply_text_edits(text, edits)


def _find_pip_installs(text: str, start: int = 0, end: int | None = None) -> Iterator[PackageInstall]:
    """Yield the commands between two offsets of the text that install packages with pip or uv pip."""
    for command in parse_commands(text, start, end):
        install = find_package_install(command)
        if install is not None and install.tool in ("pip", "uv") and install.verb.value == "install":
            yield install


def _pin_install(install: PackageInstall, versions: PinnedVersions, files: Mapping[str, bool]) -> Iterator[TextEdit]:
    names = {name.rpartition("/")[2] for name in install.option_values(*REQUIREMENT_FILE_OPTIONS)} & files.keys()
    is_named = False
    for word in install.packages:
        pinned = versions.pin(word.value, with_variant=install.tool == "pip")
        if pinned is not None:
            is_named = is_named or pinned.startswith("torch==")
            if pinned != word.value:
                quote = word.text[0] if word.text[0] in "\"'" and word.text[-1] == word.text[0] else ""
                yield TextEdit(word.start, word.end, f"{quote}{pinned}{quote}")
    if names or is_named:
        yield from _set_torch_index(install, versions)
    torch = versions.pin("torch", with_variant=install.tool == "pip")
    if torch and not is_named and not all(files[name] for name in names):
        yield TextEdit(install.verb.end, install.verb.end, f" {torch}")


def _set_torch_index(install: PackageInstall, versions: PinnedVersions) -> Iterator[TextEdit]:
    for name, value in install.options:
        word = value or name
        url = _TORCH_URL.search(word.text)
        if url is not None:
            if url[0].strip("\"'") != versions.torch_index:
                yield TextEdit(word.start, word.end, word.text.replace(url[0].strip("\"'"), versions.torch_index))
            return
        if name.value.startswith("--torch-backend"):
            is_joined = "=" in name.value
            yield TextEdit(
                word.start, word.end, f"--torch-backend={versions.variant}" if is_joined else versions.variant
            )
            return
    is_uv = install.tool == "uv"
    added = f"--torch-backend={versions.variant}" if is_uv else f"--extra-index-url {versions.torch_index}"
    yield TextEdit(install.verb.end, install.verb.end, f" {added}")


def _find_line(text: str, line: int) -> tuple[int, int]:
    """Return the offsets of a line's start and of its end, before the line end."""
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: line - 1]))
    return start, start + len(lines[line - 1].rstrip("\r\n")) if line <= len(lines) else start
