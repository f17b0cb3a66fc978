"""Checks that the project's container files can be read, and that tools support their keys."""

import re
from collections.abc import Iterator

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.project.containers import (
    ProjectContainer,
    build_file_finding,
    require_project,
    require_project_containers,
)
from devkit.doctor.model import (
    Confidence,
    Finding,
    Fix,
    Location,
    NotApplicable,
    Repair,
    RepairKind,
    Severity,
    Side,
    check,
)
from devkit.doctor.preconditions import require
from devkit.facts.model import Facts, FileState, HostRequirement
from devkit.facts.values import Unknown
from devkit.text import join_words

_BARE_IMAGE = re.compile(
    r"^(?:docker\.io/)?(?:library/)?(?:python|debian|ubuntu)(?::|$)|(?:^|/)nvidia/cuda:"
    r"|^mcr\.microsoft\.com/(?:vscode/)?devcontainers/(?:base|python)(?::|$)"
)
"""Images without Python packages of a project."""

_READ_PROGRAMS = frozenset(
    {"apt", "apt-get", "apk", "dnf", "yum", "dpkg", "gpg", "npm", "pip", "pip3", "python", "python3", "pre-commit"}
    | {"cat", "cd", "chgrp", "chmod", "chown", "cp", "curl", "echo", "export", "git", "install", "ln", "locale-gen"}
    | {"mkdir", "mv", "printf", "rm", "sed", "set", "su", "tee", "true", "wget"}
    | {"adduser", "groupadd", "useradd", "usermod"}
)
"""Programs whose commands say what they install; another one may install anything."""

_STOPS = ("devcontainer.json", "compose", "Dockerfile")

_MEMORY = re.compile(r"\d+(?:[tgmk]b)?")

_LOST_KEYS = {
    "gpus": 'hostRequirements: { "gpu": true }, or "--gpus", "all" in runArgs',
    "gpu": 'hostRequirements: { "gpu": true }',
    "runtime": '"--runtime=nvidia" in runArgs',
    "shm_size": '"--shm-size=8g" in runArgs',
    "shmSize": '"--shm-size=8g" in runArgs',
    "ipc": '"--shm-size=8g" in runArgs',
    "devices": '"--device" in runArgs',
    "deploy": "the Compose file",
    "environment": "containerEnv",
    "env": "containerEnv",
    "volumes": "mounts",
}
"""Keys of Compose that people write into devcontainer.json, and where the wish belongs."""


@check("PRJ001")
def files_parse(facts: Facts) -> Iterator[Finding]:
    project = require(facts.project)
    if project is None:
        raise NotApplicable("no project folder was looked into")
    if not project.files:
        raise NotApplicable("the project has no container files")
    for file in project.files:
        if file.state is FileState.BROKEN:
            yield build_file_finding(
                file,
                Severity.ERROR if file.kind in _STOPS else Severity.WARNING,
                f"{file.path} cannot be parsed: {file.problem} (line {file.line})",
                Fix("Correct the line.", where=Side.PROJECT),
                evidence=(f"{file.path}, line {file.line}: {file.problem}",),
            )
        elif file.state is FileState.MISSING and "$" not in file.path:
            yield build_file_finding(
                Location(file.named_by, file.line),
                Severity.ERROR if file.kind in _STOPS else Severity.WARNING,
                f"{file.named_by} names {file.path}, which does not exist",
                Fix("Correct the name, or add the file.", where=Side.PROJECT),
                evidence=(f"{file.named_by}, line {file.line}: {file.path}",),
            )


@check("PRJ008", causes=("PRJ005",))
def host_requirements_match_schema(facts: Facts) -> Iterator[Finding]:
    for dev in require_project(facts).dev_containers:
        for requirement in dev.host_requirements:
            mistake = _find_requirement_problem(requirement)
            if mistake is not None:
                problem, correction = mistake
                yield build_file_finding(
                    requirement,
                    Severity.WARNING,
                    f"hostRequirements.{requirement.name} {problem}, so tools pass over it",
                    Fix(
                        f"Write {correction}." if correction else "Leave the key out.",
                        where=Side.PROJECT,
                        docs="https://containers.dev/implementors/json_reference/#min-host-reqs",
                        repairs=_spelling_repairs(requirement, correction),
                    ),
                    evidence=(f"{requirement.name}: {requirement.value or requirement.kind}",),
                )


def _find_requirement_problem(requirement: HostRequirement) -> tuple[str, str] | None:
    """What is wrong, and what to write instead ("" for nothing)."""
    name, kind, value = requirement.name, requirement.kind, requirement.value
    if name == "gpu":
        is_right = kind in ("bool", "object") or value == "optional"
        return None if is_right else (f"is {value!r}, which is neither true nor optional", '"gpu": true')
    if name in ("gpus", "GPU", "nvidia", "cuda"):
        return "is no key of the schema", '"gpu": "optional"' if value == "optional" else '"gpu": true'
    if name in ("memory", "storage", "gpu.memory"):
        if kind == "text" and _MEMORY.fullmatch(value):
            return None
        found = re.fullmatch(r"\s*(\d+)\s*([TGMKtgmk])i?[Bb]?\s*", value)
        size = f"{found[1]}{found[2].lower()}b" if found else "16gb"
        return f"is {value!r} and not digits with a small unit", f'"{name.rpartition(".")[2]}": "{size}"'
    if name in ("cpus", "gpu.cores"):
        return None if kind == "number" and value.isdigit() else (f"is {value!r} and not a whole number", "")
    return "is no key of the schema", ""


def _spelling_repairs(requirement: HostRequirement, correction: str) -> tuple[Repair, ...]:
    """Request the GPU by its right name and value; every other correction is the author's."""
    name, _, value = correction.partition(": ")
    if name != '"gpu"':
        return ()
    repairs = (Repair(RepairKind.SET, requirement.path, ("hostRequirements", "gpu"), value),)
    wrong = Repair(RepairKind.REMOVE, requirement.path, ("hostRequirements", requirement.name))
    return repairs if requirement.name == "gpu" else (*repairs, wrong)


@check("PRJ009", causes=("PRJ005",))
def keys_are_supported(facts: Facts) -> Iterator[Finding]:
    for dev in require_project(facts).dev_containers:
        for key in dev.keys:
            if key.name in _LOST_KEYS:
                yield build_file_finding(
                    key,
                    Severity.WARNING,
                    f"devcontainer.json knows no key {key.name}, so it does nothing",
                    Fix(f"Say it where it is read: {_LOST_KEYS[key.name]}.", where=Side.PROJECT),
                    evidence=(f"{key.path}, line {key.line}: {key.name}",),
                )
        if dev.compose_files and dev.run_args:
            asks = bool(dev.requests)
            yield build_file_finding(
                Location(dev.path, dev.run_args_line),
                Severity.ERROR if asks else Severity.WARNING,
                "runArgs does nothing beside dockerComposeFile"
                + (", so the GPU that it asks for is never given" if asks else ""),
                Fix(
                    "Move the options into the Compose file, and remove runArgs.",
                    where=Side.PROJECT,
                ),
                evidence=(" ".join(argument.text for argument in dev.run_args),),
            )


@check("PRJ010")
def editors_support_the_keys(facts: Facts) -> Iterator[Finding]:
    if not require_project(facts).dev_containers:
        raise NotApplicable("the project has no devcontainer.json")
    rows = load_tables().editors.ignored
    for container in require_project_containers(facts):
        if container.dev is None:
            continue
        # An explicit request is supported by more tools, and is all that they need.
        present = {
            f"hostRequirements.{one.name}": one for one in container.dev.host_requirements if not container.requests
        }
        ignored = [row for row in rows if row.key in present]
        for name in dict.fromkeys(row.key for row in ignored):
            effects = [f"{row.editor} {row.effect}" for row in ignored if row.key == name]
            where = present[name]
            yield build_file_finding(
                where,
                Severity.NOTE,
                f"not every tool supports {name}: {join_words(effects)}",
                Fix(
                    "For JetBrains and DevPod ask in runArgs or in a Compose file; where neither is read, the machine's"
                    " own settings must give the GPU.",
                    where=Side.PROJECT,
                ),
                evidence=tuple(f"{row.editor}: {row.source[0]}" for row in ignored if row.key == name),
                confidence=Confidence.POSSIBLE,
            )


@check("PRJ036")
def main_list_is_installed(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        project, image = container.project, container.image
        path = "" if isinstance(project.main_list, Unknown) else project.main_list
        if container.dev is None or not path or image is None or not _BARE_IMAGE.search(image.value):
            continue
        programs = _list_programs(container)
        names_files = any(install.files for install in container.installs)
        if programs is None or programs - _READ_PROGRAMS or names_files:
            continue
        yield build_file_finding(
            container.location,
            Severity.NOTE,
            f"{container.name} installs nothing of {path}",
            Fix(
                "Install it when the container is created.",
                (f'"postCreateCommand": "pip install -r {path}"',),
                where=Side.PROJECT,
                docs="https://containers.dev/implementors/json_reference/#lifecycle-scripts",
            ),
            evidence=(f"{path}: named by no command", f"{image.path}: {image.value}"),
            confidence=Confidence.LIKELY,
        )


def _list_programs(container: ProjectContainer) -> set[str] | None:
    """List the programs that its image's and its own commands run; None where facts of another devkit lack them."""
    listed = [*(stage.programs for stage in container.image_stages), container.dev.programs if container.dev else ()]
    known = [each for each in listed if not isinstance(each, Unknown)]
    return {name for each in known for name in each} if len(known) == len(listed) else None
