"""Checks that a container engine answers, and where it runs."""

from collections.abc import Iterator
from shlex import quote
from typing import assert_never

from devkit.doctor.fixes import ENGINE_GUIDE, find_host_side, has_systemd, list_commands
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Restart, Severity, Side, check
from devkit.doctor.preconditions import find_platform, is_in_container, is_in_wsl, require_container_engine
from devkit.facts.model import Clients, EngineEnd, EngineFailure, Facts, Platform, System
from devkit.facts.values import Unknown
from devkit.text import join_words

_DESKTOP_GUIDE = "https://docs.docker.com/desktop/"

_ENGINE_SOCKETS = ("/run/docker.sock", "/run/user/", "/podman/", "/desktop/", "/.docker/", "/pipe/")
"""Parts of the sockets that Docker, rootless Docker, Podman and Docker Desktop make for themselves."""


@check("ENG001")
def engine_answers(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.engine, Unknown):
        raise NotApplicable(facts.engine.reason, is_lost=facts.engine.is_lost)
    if isinstance(facts.engine, EngineFailure):
        if (
            is_in_container(facts)
            and facts.engine.endpoint.chosen_by == "default"
            and facts.engine.end in (EngineEnd.NOT_INSTALLED, EngineEnd.NOT_RUNNING)
        ):
            # No variable or context names an engine, and no socket was passed in.
            raise NotApplicable("a container needs no engine of its own")
        yield explain_engine_failure(facts, facts.engine)


def explain_engine_failure(facts: Facts, failure: EngineFailure) -> Finding:
    """Explain an engine that gave no answer.

    A machine without any engine gets a warning, not an error, and one that runs pods without Docker only a note.
    """
    message, fix, confidence = _explain(facts, failure)
    severity = Severity.WARNING if failure.end is EngineEnd.NOT_INSTALLED else Severity.ERROR
    return Finding(
        Severity.NOTE if failure.pod_runtime else severity,
        message,
        fix,
        subject=failure.endpoint.url,
        evidence=(
            f"endpoint {failure.endpoint.url}, chosen by {failure.endpoint.chosen_by}",
            *((failure.message,) if failure.message else ()),
        ),
        confidence=confidence,
    )


def _explain(facts: Facts, failure: EngineFailure) -> tuple[str, Fix, Confidence]:
    url = failure.endpoint.url
    match failure.end:
        case EngineEnd.NOT_INSTALLED if failure.pod_runtime:
            return (
                f"{failure.pod_runtime} runs the containers of this machine; dev containers need Docker or Podman beside it",
                Fix(
                    "Nothing to fix for pods: whether they get GPUs, the node check of `devkit export kubernetes` tells.",
                    where=find_host_side(facts),
                ),
                Confidence.CERTAIN,
            )
        case EngineEnd.NOT_INSTALLED:
            return (
                "no container engine is installed, so no dev container can start",
                _install_fix(facts),
                Confidence.CERTAIN,
            )
        case EngineEnd.NOT_RUNNING:
            return _explain_not_running(facts, failure)
        case EngineEnd.PERMISSION_DENIED:
            return _explain_no_permission(facts, failure)
        case EngineEnd.TIMED_OUT:
            return (
                f"the container engine hangs: it accepts requests on {url} but answers none",
                _restart_fix(facts, failure),
                Confidence.CERTAIN,
            )
        case EngineEnd.BAD_ENDPOINT:
            return f"no container engine can be reached at {url}", _endpoint_fix(facts, failure), Confidence.CERTAIN
        case EngineEnd.ERROR:
            return (
                f"the container engine at {url} answers with an error",
                Fix(
                    "Read the engine's log; restart it when the log does not help.",
                    _list_log_commands(facts),
                    where=find_host_side(facts),
                ),
                Confidence.POSSIBLE,
            )
        case _ as never:
            assert_never(never)


def _install_fix(facts: Facts) -> Fix:
    match find_platform(facts):
        case Platform.MACOS | Platform.WINDOWS:
            return Fix("Install Docker Desktop.", where=_desktop_side(facts), docs=_DESKTOP_GUIDE)
        case Platform.WSL2 | Platform.WSL1:
            return Fix(
                "Install Docker Desktop on Windows and switch on its WSL integration for this distribution, or install"
                " Docker Engine inside of WSL; not both.",
                where=Side.WINDOWS,
                docs=_DESKTOP_GUIDE,
            )
        case _:
            return Fix(
                "Install Docker Engine or Podman.",
                list_commands(facts, "install_engine"),
                root=True,
                restart=Restart.LOGIN,
                docs=ENGINE_GUIDE,
            )


def _desktop_side(facts: Facts) -> Side:
    return Side.WINDOWS if find_platform(facts) is Platform.WINDOWS else Side.HOST


def _explain_not_running(facts: Facts, failure: EngineFailure) -> tuple[str, Fix, Confidence]:
    url, chosen_by = failure.endpoint.url, failure.endpoint.chosen_by
    if chosen_by != "default" and not any(place in url for place in _ENGINE_SOCKETS):
        message = f"{chosen_by} points to {url}, where no engine listens"
        return message, _endpoint_fix(facts, failure), Confidence.CERTAIN
    if is_in_wsl(facts) and isinstance(facts.clients, Clients):
        # Docker Desktop leaves a script on Windows's PATH for those who lack the docker command.
        docker = facts.clients.named("docker")
        if docker is not None and "/Program Files/Docker/" in docker.path:
            return _explain_no_wsl_integration(facts)
    if chosen_by == "default" and _has_client_alone(facts):
        return (
            "the docker command is installed, but no container engine is, so no dev container can start",
            _install_fix(facts),
            Confidence.LIKELY,
        )
    if failure.listens_on:
        address = failure.listens_on[0]
        return (
            f"Docker runs, but listens on {join_words(failure.listens_on)} and not on {url}",
            Fix(
                "Add the usual socket to the daemon's hosts, and restart it; or name the address that it has.",
                (f"export DOCKER_HOST={quote(address)}",),
                where=find_host_side(facts),
            ),
            Confidence.LIKELY,
        )
    message = f"the container engine does not run: nothing listens on {url}"
    return message, _start_fix(facts, failure), Confidence.CERTAIN


def _has_client_alone(facts: Facts) -> bool:
    """Say if this Linux has the docker command and no daemon; where Docker Desktop serves WSL, that is its normal state."""
    if find_platform(facts) is not Platform.LINUX or isinstance(facts.clients, Unknown):
        return False
    return facts.clients.engine_programs == () and facts.clients.named("podman") is None


def _endpoint_fix(facts: Facts, failure: EngineFailure) -> Fix:
    if failure.endpoint.url.startswith("ssh:"):
        return Fix("This engine is on another machine: run devkit doctor there.", ("devkit doctor",))
    variable = failure.endpoint.chosen_by.partition("=")[0]
    if variable.startswith("DOCKER_"):
        return Fix(
            f"Correct {variable}, or remove it to use the default engine.",
            (f"unset {quote(variable)}",),
            where=find_host_side(facts),
        )
    return Fix(
        "Choose a Docker context that works.",
        ("docker context ls", "docker context use default"),
        where=find_host_side(facts),
    )


def _explain_no_wsl_integration(facts: Facts) -> tuple[str, Fix, Confidence]:
    if find_platform(facts) is Platform.WSL1:
        return (
            "Docker Desktop serves no distribution in WSL 1",
            Fix(
                "Convert the distribution to WSL 2, from Windows.",
                ("wsl.exe --list --verbose", "wsl.exe --set-version <distribution> 2"),
                where=Side.WINDOWS,
                restart=Restart.WSL,
            ),
            Confidence.CERTAIN,
        )
    return (
        "Docker Desktop is not connected to this distribution: it does not run, or its WSL integration is off here",
        Fix(
            "Start Docker Desktop on Windows, and switch this distribution on under Settings, Resources, WSL"
            " integration.",
            where=Side.WINDOWS,
            docs="https://docs.docker.com/desktop/features/wsl/",
        ),
        Confidence.LIKELY,
    )


def _start_fix(facts: Facts, failure: EngineFailure) -> Fix:
    if find_platform(facts) in (Platform.MACOS, Platform.WINDOWS):
        return Fix("Start Docker Desktop and wait until it says that the engine runs.", where=_desktop_side(facts))
    if "podman" in failure.endpoint.url:
        scope = "systemctl --user" if _is_rootless(failure) else "sudo systemctl"
        return Fix(
            "Start Podman's API socket.", (f"{scope} enable --now podman.socket",), root=not _is_rootless(failure)
        )
    if "/desktop/" in failure.endpoint.url or "/.docker/" in failure.endpoint.url:
        return Fix(
            "Start Docker Desktop, or go back to the Docker Engine of the system.",
            ("docker context use default",),
            where=find_host_side(facts),
        )
    if _is_rootless(failure):
        return Fix("Start your rootless Docker.", ("systemctl --user enable --now docker",))
    hint = ""
    if is_in_wsl(facts) and not has_systemd(facts):
        hint = " Services start by themselves once /etc/wsl.conf has systemd=true under [boot] and WSL was restarted."
    if is_in_wsl(facts):
        hint += " If Docker Desktop is your engine, start it on Windows and switch on its WSL integration."
    start = "sudo systemctl enable --now docker" if has_systemd(facts) else "sudo service docker start"
    return Fix(
        f"Start Docker.{hint}",
        (start,),
        where=find_host_side(facts),
        root=True,
    )


def _is_rootless(failure: EngineFailure) -> bool:
    """Say if the socket belongs to a rootless engine."""
    return "/run/user/" in failure.endpoint.url


def _explain_no_permission(facts: Facts, failure: EngineFailure) -> tuple[str, Fix, Confidence]:
    url = failure.endpoint.url
    system = facts.system
    if isinstance(system, System) and system.in_docker_group is True and system.docker_group_is_active is False:
        return (
            f"this session may not open {url} yet: you are in the group docker, but logged in before",
            Fix(
                "Log in again, so that the session carries the group. A VS Code server must be restarted too.",
                ("newgrp docker",),
                where=find_host_side(facts),
                restart=Restart.LOGIN,
            ),
            Confidence.CERTAIN,
        )
    return (
        f"you may not open {url}: your user is not in the group docker",
        Fix(
            "Add yourself to the group docker and log in again. The group is as powerful as root; rootless Docker and"
            " Podman need no such group.",
            ("sudo usermod -aG docker $USER", "newgrp docker"),
            where=find_host_side(facts),
            root=True,
            restart=Restart.LOGIN,
            docs="https://docs.docker.com/engine/install/linux-postinstall/",
        ),
        Confidence.LIKELY,
    )


def _restart_fix(facts: Facts, failure: EngineFailure) -> Fix:
    if find_platform(facts) in (Platform.MACOS, Platform.WINDOWS) or "/desktop/" in failure.endpoint.url:
        return Fix(
            "Restart Docker Desktop.", ("docker desktop restart",), where=_desktop_side(facts), restart=Restart.ENGINE
        )
    if _is_rootless(failure):
        return Fix("Restart your rootless engine.", ("systemctl --user restart docker",), restart=Restart.ENGINE)
    command = "sudo systemctl restart docker" if has_systemd(facts) else "sudo service docker restart"
    return Fix(
        "Restart the engine. If it hangs again, its log says what it waits for.",
        (command, *_list_log_commands(facts)),
        where=find_host_side(facts),
        root=True,
        restart=Restart.ENGINE,
    )


def _list_log_commands(facts: Facts) -> tuple[str, ...]:
    return ("journalctl -u docker -n 50 --no-pager",) if has_systemd(facts) else ()


@check("ENG007")
def engine_is_local(facts: Facts) -> Iterator[Finding]:
    engine = require_container_engine(facts)
    if engine.endpoint.url.startswith(("unix:", "npipe:", "/")):
        return
    yield Finding(
        Severity.NOTE,
        f"the engine is on another machine ({engine.endpoint.url}): its GPUs count, not the ones here",
        Fix("Run devkit doctor on that machine too.", ("devkit doctor",)),
        evidence=(f"chosen by {engine.endpoint.chosen_by}",),
        confidence=Confidence.LIKELY,
    )
