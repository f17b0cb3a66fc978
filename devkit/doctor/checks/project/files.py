"""Checks that the project's container files can be read, and that tools support their keys."""

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.project.containers import require_project, require_project_containers
from devkit.doctor.model import Location, NotApplicable, Repair, RepairKind, Severity, check
from devkit.doctor.preconditions import require_some, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.facts.model import Facts
from devkit.facts.project import FileState, HostRequirement, Project
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
_UNREAD = {
    FileState.OUTSIDE: "it is outside the project, or a link to outside",
    FileState.TOO_LARGE: "it is too large for a file of that name",
    FileState.UNREADABLE: "it is not a text file, is a broken link, or is not readable by this user",
}
"""Why nothing is known of a file."""
_MEMORY = re.compile(r"\d+(?:[tgmk]b)?")
_FEATURE = re.compile(r"\./[\w./-]+|https?://\S+|\w[\w.-]*(?::\d+)?(?:/[\w.-]+){2,}(?:[:@]\S+)?")
"""Source: containers.dev, "Dev Container Features reference"."""
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
def files_parse(facts: Facts) -> Iterator[Problem]:
    project = require_some(facts.project, "no project folder was checked")
    skip_if(not project.files, "the project has no container files")
    for file in project.files:
        severity = Severity.ERROR if file.kind in _STOPS else Severity.WARNING
        if file.state is FileState.BROKEN:
            evidence = (f"{file.path}, line {file.line}: {file.problem}",)
            yield problem(
                "broken",
                found_at=file,
                severity=severity,
                evidence=evidence,
                path=file.path,
                error=file.problem,
                line=file.line,
            )
        elif file.state is FileState.MISSING and "$" not in file.path:
            place, evidence = Location(file.named_by, file.line), (f"{file.named_by}, line {file.line}: {file.path}",)
            yield problem(
                "missing", found_at=place, severity=severity, evidence=evidence, named_by=file.named_by, path=file.path
            )
    yield from _find_missing_stages(project)
    unread = next((file for file in project.files if file.state in _UNREAD and file.kind in _STOPS), None)
    if unread is not None:
        raise NotApplicable(f"{unread.path} was not read: {_UNREAD[unread.state]}", is_lost=True)
    if all(file.state is FileState.READ for file in project.files if file.kind == "compose"):
        yield from _find_missing_services(project)


def _find_missing_stages(project: Project) -> Iterator[Problem]:
    """Find builds of a stage that their Dockerfile lacks. BuildKit compares names without case."""
    stages = {each.path: [stage.name.lower() for stage in each.stages] for each in project.dockerfiles}
    builds = (*(one.build for one in project.dev_containers), *(one.build for one in project.services))
    for build in filter(None, builds):
        names, target = stages.get(build.dockerfile), build.target
        if not names or not target or "$" in target or target.lower() in (*names, *map(str, range(len(names)))):
            continue
        values: dict[str, Any] = {"named_by": build.path, "target": target, "path": build.dockerfile}
        values["nearest"] = next(iter(get_close_matches(target, filter(None, names), 1, 0)), "the number of one")
        known = join_words(filter(None, names)) or "none"
        yield problem("missing-stage", found_at=build, evidence=(f"stages of {build.dockerfile}: {known}",), **values)


def _find_missing_services(project: Project) -> Iterator[Problem]:
    """Find dev containers that open a service which their Compose files lack."""
    for dev in project.dev_containers:
        names = [one.name for one in project.services if one.files == dev.compose_files]
        if not dev.compose_files or not names or dev.service in names or "$" in dev.service:
            continue
        repair = Repair(RepairKind.SET, dev.path, ("service",), json.dumps(names[0]))
        yield problem(
            "missing-service" if dev.service else "no-service",
            found_at=next((key for key in dev.keys if key.name == "service"), Location(dev.path)),
            evidence=(f"services of {join_words(dev.compose_files)}: {join_words(names)}",),
            repairs=(repair,) if len(names) == 1 else (),
            path=dev.path,
            service=dev.service,
            files=join_words(dev.compose_files),
            names=join_words(names),
        )


@check("PRJ008", causes=("PRJ005",))
def host_requirements_match_schema(facts: Facts) -> Iterator[Problem]:
    for requirement in (each for dev in require_project(facts).dev_containers for each in dev.host_requirements):
        name, kind, value = requirement.name, requirement.kind, requirement.value
        about: dict[str, Any] = {"found_at": requirement, "evidence": (f"{name}: {value or kind}",), "name": name}
        is_number = kind == "number" and value.isdigit()
        is_size = kind == "text" and _MEMORY.fullmatch(value)
        if name == "gpu":
            if kind not in ("bool", "object") and value != "optional":
                yield problem("no-gpu-value", **about, repairs=_request_gpu(requirement, "true"), value=value)
        elif name in ("gpus", "GPU", "nvidia", "cuda"):
            wanted = '"optional"' if value == "optional" else "true"
            yield problem("gpu-misspelled", **about, repairs=_request_gpu(requirement, wanted), wanted=wanted)
        elif name in ("memory", "storage", "gpu.memory"):
            if not is_size:
                found = re.fullmatch(r"\s*(\d+)\s*([TGMKtgmk])i?[Bb]?\s*", value)
                size = f"{found[1]}{found[2].lower()}b" if found else "16gb"
                yield problem("no-size", **about, value=value, key=name.rpartition(".")[2], size=size)
        elif name not in ("cpus", "gpu.cores"):
            yield problem("unknown-key", **about)
        elif not is_number:
            yield problem("no-number", **about, value=value)


def _request_gpu(requirement: HostRequirement, value: str) -> tuple[Repair, ...]:
    """Request the GPU by its right name and value; every other correction is the author's."""
    repairs = (Repair(RepairKind.SET, requirement.path, ("hostRequirements", "gpu"), value),)
    wrong = Repair(RepairKind.REMOVE, requirement.path, ("hostRequirements", requirement.name))
    return repairs if requirement.name == "gpu" else (*repairs, wrong)


@check("PRJ009", causes=("PRJ005",))
def keys_are_supported(facts: Facts) -> Iterator[Problem]:
    for dev in require_project(facts).dev_containers:
        for key in dev.keys:
            if key.name in _LOST_KEYS:
                evidence = (f"{key.path}, line {key.line}: {key.name}",)
                yield problem(
                    "compose-key", found_at=key, evidence=evidence, key=key.name, instead=_LOST_KEYS[key.name]
                )
        for feature in dev.features:
            if not _FEATURE.fullmatch(feature.name) and "$" not in feature.name:
                yield problem("feature", found_at=feature, feature=feature.name)
        if dev.compose_files and dev.run_args:
            yield problem(
                "run-args-with-gpu" if dev.requests else "run-args",
                found_at=Location(dev.path, dev.run_args_line),
                evidence=(" ".join(argument.text for argument in dev.run_args),),
            )


@check("PRJ010")
def editors_support_the_keys(facts: Facts) -> Iterator[Problem]:
    skip_if(not require_project(facts).dev_containers, "the project has no devcontainer.json")
    rows = load_tables().editors.ignored
    for container in require_project_containers(facts):
        # An explicit request is supported by more tools, and is all that they need.
        if container.dev is None or container.requests:
            continue
        present = {f"hostRequirements.{one.name}": one for one in container.dev.host_requirements}
        for key in dict.fromkeys(row.key for row in rows if row.key in present):
            ignored = [row for row in rows if row.key == key]
            yield problem(
                "ignored",
                found_at=present[key],
                evidence=(f"{row.editor}: {row.source[0]}" for row in ignored),
                key=key,
                effects=join_words(f"{row.editor} {row.effect}" for row in ignored),
            )


@check("PRJ036")
def main_list_is_installed(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        project, image = container.project, container.image
        path = "" if isinstance(project.main_list, Unknown) else project.main_list
        if container.dev is None or not path or image is None or not _BARE_IMAGE.search(image.value):
            continue
        names_files = any(install.files for install in container.installs)
        # Facts of another devkit may lack the programs that the image's and its own commands run.
        listed = (*(stage.programs for stage in container.image_stages), container.dev.programs)
        if names_files or any(isinstance(each, Unknown) or set(each) - _READ_PROGRAMS for each in listed):
            continue
        evidence = (f"{path}: named by no command", f"{image.path}: {image.value}")
        yield problem("nothing", found_at=container.location, evidence=evidence, container=container.name, path=path)
