"""Checks that a container engine answers, and where it runs."""

from collections.abc import Iterator

from devkit.doctor.model import NotApplicable, check
from devkit.doctor.preconditions import find_platform, is_in_container, is_in_wsl, require_container_engine
from devkit.doctor.problems import Problem, problem
from devkit.facts.engine import Clients, Endpoint, Engine, EngineEnd, EngineFailure
from devkit.facts.machine import Platform, System
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import join_words

_ENGINE_SOCKETS = ("/run/docker.sock", "/run/user/", "/podman/", "/desktop/", "/.docker/", "/pipe/")
"""Parts of the sockets that Docker, rootless Docker, Podman and Docker Desktop make for themselves."""
_DESKTOP_SOCKETS = ("/desktop/", "/.docker/")


@check("ENG001")
def engine_answers(facts: Facts) -> Iterator[Problem]:
    if isinstance(facts.engine, Unknown):
        raise NotApplicable(facts.engine.reason, is_lost=facts.engine.is_lost)
    if isinstance(facts.engine, Engine):
        return
    failure, endpoint = facts.engine, facts.engine.endpoint
    is_absent = failure.end in (EngineEnd.NOT_INSTALLED, EngineEnd.NOT_RUNNING)
    if is_in_container(facts) and endpoint.chosen_by == "default" and is_absent:
        # No variable or context names an engine, and no socket was passed in.
        raise NotApplicable("containers do not need an engine inside")
    yield problem(
        _name_problem(facts, failure),
        subject=endpoint.url,
        evidence=filter(
            None, (f"endpoint {endpoint.url or 'unknown'}, chosen by {endpoint.chosen_by}", failure.message)
        ),
        url=endpoint.url or f"the endpoint of {endpoint.chosen_by}",
        chosen_by=endpoint.chosen_by,
        variable=endpoint.chosen_by.partition("=")[0],
        choice="ssh" if endpoint.url.startswith("ssh:") else name_choice(endpoint),
        socket=_name_socket(facts, endpoint.url),
        path=endpoint.url.removeprefix("unix://"),
        pod_runtime=failure.pod_runtime,
        addresses=join_words(failure.listens_on),
        address=next(iter(failure.listens_on), ""),
    )


def _name_problem(facts: Facts, failure: EngineFailure) -> str:
    match failure.end:
        case EngineEnd.NOT_INSTALLED:
            return "pods-without-docker" if failure.pod_runtime else "not-installed"
        case EngineEnd.CANNOT_START:
            return "cannot-start"
        case EngineEnd.NOT_RUNNING:
            if failure.socket_kind == "directory":
                return "socket-is-folder"
            return _name_cause_of_silence(facts, failure)
        case EngineEnd.PERMISSION_DENIED if failure.socket_group == 0:
            return "socket-of-root"
        case EngineEnd.PERMISSION_DENIED:
            system = facts.system
            is_member = isinstance(system, System) and system.in_docker_group is True
            is_before = isinstance(system, System) and system.docker_group_is_active is False
            return "session-before-group" if is_member and is_before else "not-in-group"
        case EngineEnd.TIMED_OUT:
            return "hangs"
        case EngineEnd.BAD_ENDPOINT:
            return "unreachable"
        case EngineEnd.ERROR:
            return "answers-with-error"


def _name_cause_of_silence(facts: Facts, failure: EngineFailure) -> str:
    is_default = failure.endpoint.chosen_by == "default"
    if not is_default and not any(place in failure.endpoint.url for place in _ENGINE_SOCKETS):
        return "points-nowhere"
    clients = facts.clients if isinstance(facts.clients, Clients) else Clients(())
    docker = clients.named("docker")
    # Docker Desktop leaves a script on Windows's PATH for those who lack the docker command.
    if is_in_wsl(facts) and docker is not None and "/Program Files/Docker/" in docker.path:
        return "wsl-1" if find_platform(facts) is Platform.WSL1 else "no-wsl-integration"
    # Where Docker Desktop serves WSL, the docker command without a daemon is its normal state.
    has_no_engine = clients.engine_programs == () and clients.named("podman") is None
    if is_default and has_no_engine and find_platform(facts) is Platform.LINUX:
        return "client-alone"
    return "listens-elsewhere" if failure.listens_on else "not-running"


def name_choice(endpoint: Endpoint) -> str:
    """Name what chose the endpoint, as variants of fixes do: variable, or context."""
    return "variable" if endpoint.chosen_by.startswith("DOCKER_") else "context"


def _name_socket(facts: Facts, url: str) -> str:
    """Name the engine that the socket belongs to."""
    is_rootless = "/run/user/" in url
    if find_platform(facts) in (Platform.MACOS, Platform.WINDOWS):
        return "desktop"
    if "podman" in url:
        return "rootless-podman" if is_rootless else "podman"
    if any(place in url for place in _DESKTOP_SOCKETS):
        return "desktop"
    return "rootless" if is_rootless else "docker"


@check("ENG007")
def engine_is_local(facts: Facts) -> Iterator[Problem]:
    endpoint = require_container_engine(facts).endpoint
    if not endpoint.url.startswith(("unix:", "npipe:", "/")):
        yield problem("elsewhere", url=endpoint.url, evidence=(f"chosen by {endpoint.chosen_by}",))
