"""The project's running dev container, read from its inside by the devkit that is installed there."""

from devkit.facts.model import Engine, EngineKind, Facts, RunningContainer
from devkit.facts.values import Unknown
from devkit.probe.host import TIMED_OUT, Done, Host

ASK = ("devkit", "doctor", "--save-facts", "/dev/stdout", "--output", "/dev/null")
"""Any release of devkit since the first answers this. Its exit status is the verdict, which is judged here instead."""

_CANNOT_EXECUTE = (126, 127)
"""Exit statuses of `docker exec` for a program that is not there or not executable; of a missing docker as well."""


def read_inside(host: Host, engine: object, *, project: str, deadline_s: float) -> Facts | Unknown | None:
    """What devkit reads inside the running dev container of `project`; None when none runs or it is not known.

    The container is found by the label that dev container tools and Compose put on it. Nothing is started.
    """
    if not isinstance(engine, Engine) or isinstance(engine.containers, Unknown):
        return None
    container = container_of_project(engine.containers, project)
    if container is None:
        return None
    from devkit.facts.store import WrongFacts, from_json

    command = "podman" if engine.kind is EngineKind.PODMAN else "docker"
    done = host.run([command, "exec", container.id, *ASK], deadline_s=deadline_s)
    try:
        return from_json(done.out)
    except WrongFacts as wrong:
        return Unknown(
            f"the dev container {container.name} runs, but {_problem(done, command, deadline_s, wrong.problem)}"
        )


def container_of_project(containers: tuple[RunningContainer, ...], project: str) -> RunningContainer | None:
    """The container whose labels name `project`, or the nearest folder above it."""
    inside = f"{_plain(project)}/"
    above = [one for one in containers if one.folder and inside.startswith(f"{_plain(one.folder)}/")]
    return max(above, key=lambda one: len(_plain(one.folder)), default=None)


def _plain(folder: str) -> str:
    """Windows writes the label with backslashes, and a trailing separator says nothing."""
    return folder.replace("\\", "/").rstrip("/")


def _problem(done: Done, command: str, deadline_s: float, wrong: str) -> str:
    if done.code == TIMED_OUT:
        return f"devkit inside of it did not answer within {deadline_s:.1f} s"
    if done.code in _CANNOT_EXECUTE:
        return f"devkit is not installed in it, or the {command} command is missing here"
    said = done.err.strip().rpartition("\n")[2]
    return f"looking into it ended with status {done.code}: {said or wrong}"
