"""Checks of the docker command: its origin, its version, and its settings."""

from collections.abc import Iterator
from shlex import quote

from devkit.compat.version_tables import load_tables
from devkit.doctor.fixes import ENGINE_GUIDE, find_host_side, list_commands
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Repair, RepairKind, Severity, check
from devkit.doctor.preconditions import require, require_nvidia_gpu
from devkit.facts.model import Client, Engine, EngineKind, Facts
from devkit.facts.values import Release, Unknown

_LOGIN_GUIDE = "https://docs.docker.com/reference/cli/docker/login/#credential-stores"


def _docker(facts: Facts) -> Client:
    docker = require(facts.clients).named("docker")
    if docker is None:
        raise NotApplicable("there is no docker command on this side")
    return docker


@check("ENG011")
def docker_cli_is_current(facts: Facts) -> Iterator[Finding]:
    docker = _docker(facts)
    if require(docker.is_podman):
        raise NotApplicable("the docker command is Podman's")
    version = require(docker.version)
    engine = facts.engine if isinstance(facts.engine, Engine) else None
    problem = _find_version_problem(version, engine)
    if not problem:
        return
    yield Finding(
        Severity.ERROR,
        problem,
        Fix(
            "Install a current docker command, or take the older one off PATH.",
            ("type -a docker", *list_commands(facts, "install_engine")),
            where=find_host_side(facts),
            root=True,
            docs=ENGINE_GUIDE,
        ),
        subject=docker.path,
        evidence=(
            f"{docker.path} --version: {version}",
            *([f"engine: API {engine.api_version}, at least {engine.min_api_version}"] if engine else []),
        ),
    )


def _find_version_problem(version: Release, engine: Engine | None) -> str:
    features = load_tables().engines.features
    floor = features["docker", "gpus-flag"]
    if version < floor.version:
        return f"the docker command is {version}, which knows no --gpus; {floor.version} is the first that does"
    if engine is None or engine.kind is EngineKind.PODMAN or isinstance(engine.min_api_version, Unknown):
        return ""
    first = features.get(("docker", f"api-{engine.min_api_version}"))
    if first is None or version >= first.version:
        return ""
    return (
        f"the engine serves no docker command older than {first.version}, and this one is {version}: every request is"
        " refused"
    )


@check("ENG012")
def docker_cli_is_dockers(facts: Facts) -> Iterator[Finding]:
    docker = _docker(facts)
    require_nvidia_gpu(facts)
    if not require(docker.is_podman):
        return
    floor = load_tables().engines.features["podman", "gpus-flag"]
    engine = facts.engine
    version = engine.version if isinstance(engine, Engine) and engine.kind is EngineKind.PODMAN else Unknown("")
    ignores = not isinstance(version, Unknown) and version < floor.version
    yield Finding(
        Severity.WARNING if ignores else Severity.NOTE,
        f"docker is Podman {version} here, which ignores --gpus: containers start without a GPU"
        if ignores
        else "docker is Podman here: ask for GPUs by CDI, which it always understands",
        Fix(
            "Ask for GPUs by CDI.",
            ("docker run --rm --device nvidia.com/gpu=all ubuntu nvidia-smi",),
            where=find_host_side(facts),
        ),
        subject=docker.path,
        evidence=(f"{docker.path} hands over to podman",),
        confidence=Confidence.LIKELY,
    )


@check("ENG014")
def docker_cli_config_is_usable(facts: Facts) -> Iterator[Finding]:
    clients = require(facts.clients)
    _docker(facts)
    settings = require(clients.settings)
    if settings.error:
        yield Finding(
            Severity.WARNING,
            f"{settings.path} is not valid, so the docker command ignores its contexts and logins: {settings.error}",
            Fix(
                "Correct the file, or move it away and log in again.",
                (f"mv {quote(settings.path)} {quote(settings.path)}.broken",),
                where=find_host_side(facts),
            ),
            subject=settings.path,
            evidence=(f"{settings.path}: {settings.error}",),
        )
    for helper in settings.credential_helpers:
        if not helper.path:
            key = ("credHelpers", helper.registry) if helper.registry else ("credsStore",)
            yield Finding(
                Severity.WARNING,
                f"the docker command asks docker-credential-{helper.name} for logins, which is not on PATH: pulls fail",
                Fix(
                    f"Remove {key[0]} from the file, or bring the program back; then `docker login` where you need it.",
                    where=find_host_side(facts),
                    docs=_LOGIN_GUIDE,
                    repairs=(Repair(RepairKind.REMOVE, settings.path, key),),
                ),
                subject=settings.path,
                evidence=(
                    f"{settings.path}: {'.'.join(key)} is {helper.name}",
                    f"no docker-credential-{helper.name} on PATH",
                ),
                confidence=Confidence.LIKELY,
            )
