"""Checks of the engine's programs, and of the docker command: whether they start, its origin, version and settings."""

from collections.abc import Iterator

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.cascades import CONTAINER_START_CODES
from devkit.doctor.model import Repair, RepairKind, Severity, check
from devkit.doctor.preconditions import require, require_nvidia_gpu, require_some, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.doctor.program_failures import report_failure
from devkit.facts.engine import Client, Engine, EngineFailure, EngineKind
from devkit.facts.model import Facts
from devkit.facts.project import Project
from devkit.facts.values import Unknown

_NOT_EXECUTABLE = 126
"""Source: POSIX, Shell Command Language, 2.8.2."""


def _require_docker(facts: Facts) -> Client:
    return require_some(require(facts.clients).named("docker"), "the docker command is not installed here")


@check("ENG011")
def docker_cli_is_current(facts: Facts) -> Iterator[Problem]:
    docker = _require_docker(facts)
    skip_if(require(docker.is_podman), "the docker command is Podman's")
    version = require(docker.version)
    features = load_tables().engines.features
    evidence = [f"{docker.path} --version: {version}"]
    served = None
    if isinstance(facts.engine, Engine):
        evidence.append(f"engine: API {facts.engine.api_version}, at least {facts.engine.min_api_version}")
        if facts.engine.kind is not EngineKind.PODMAN:
            served = features.get(("docker", f"api-{facts.engine.min_api_version}"))
    floor = features["docker", "gpus-flag"]
    if version < floor.version:
        yield problem("no-gpus-flag", version=version, floor=floor.version, subject=docker.path, evidence=evidence)
    elif served is not None and version < served.version:
        yield problem(
            "too-old-for-engine", version=version, floor=served.version, subject=docker.path, evidence=evidence
        )


@check("ENG012")
def docker_cli_is_dockers(facts: Facts) -> Iterator[Problem]:
    docker = _require_docker(facts)
    require_nvidia_gpu(facts)
    if not require(docker.is_podman):
        return
    floor = load_tables().engines.features["podman", "gpus-flag"]
    engine = facts.engine
    version = engine.version if isinstance(engine, Engine) and engine.kind is EngineKind.PODMAN else None
    ignores = version is not None and not isinstance(version, Unknown) and version < floor.version
    yield problem(
        "ignores-gpus" if ignores else "is-podman",
        version=version,
        subject=docker.path,
        evidence=(f"{docker.path} runs podman",),
    )


@check("ENG014")
def docker_cli_config_is_usable(facts: Facts) -> Iterator[Problem]:
    clients = require(facts.clients)
    _require_docker(facts)
    settings = require(clients.settings)
    path = settings.path
    if settings.error:
        evidence = (f"{path}: {settings.error}",)
        yield problem("invalid", path=path, error=settings.error, evidence=evidence)
    images: list[str] = []
    if isinstance(facts.project, Project):
        named = (
            *(each.image for each in facts.project.services),
            *(each.image for each in facts.project.dev_containers),
        )
        images = [image.value for image in named if image is not None]
        images += [stage.image for file in facts.project.dockerfiles for stage in file.stages]
    for helper in settings.credential_helpers:
        if not helper.path:
            key = ("credHelpers", helper.registry) if helper.registry else ("credsStore",)
            is_used = not helper.registry or any(image.startswith(f"{helper.registry}/") for image in images)
            yield problem(
                "helper-missing",
                severity=None if is_used else Severity.NOTE,
                images=f"images of {helper.registry}" if helper.registry else "images",
                helper=helper.name,
                key=key[0],
                subject=path,
                evidence=(f"{path}: {'.'.join(key)} is {helper.name}", f"no docker-credential-{helper.name} on PATH"),
                repairs=(Repair(RepairKind.REMOVE, path, key),),
            )


@check("ENG018", causes=("ENG001",))
def engine_programs_start(facts: Facts) -> Iterator[Problem]:
    if isinstance(facts.engine, EngineFailure):
        yield from map(report_failure, require(facts.engine.said))


@check("ENG019", causes=("ENG001", "ENG007", "ENG011", "ENG017", *CONTAINER_START_CODES))
def docker_works_with_these_variables(facts: Facts) -> Iterator[Problem]:
    docker = _require_docker(facts)
    failure = require(docker.failure)
    is_command = failure is not None and (failure.status == _NOT_EXECUTABLE or failure.program == docker.path)
    if failure is not None and (failure.works_without or is_command):
        yield report_failure(failure)
