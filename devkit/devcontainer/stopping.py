"""Find the dev container of a folder, and stop it."""

from devkit.devcontainer.compose_service import find_compose_project, read_compose_document
from devkit.devcontainer.configuration import DevContainer
from devkit.devcontainer.containers import (
    COMPOSE_PROJECT_LABEL,
    COMPOSE_SERVICE_LABEL,
    STOP_DEADLINE_S,
    ContainerState,
    EngineClient,
    Failure,
)
from devkit.devcontainer.making import PLAIN_PROGRESS, ignore
from devkit.verify.process import run_streaming


def find_running(client: EngineClient, container: DevContainer) -> ContainerState | None:
    """Return the container of this configuration, running or not; None where none was made."""
    found = client.find(container.labels)
    if found is None and container.compose_files:
        document = read_compose_document(client.host, (client.program, "compose"), container)
        labels = {
            COMPOSE_PROJECT_LABEL: find_compose_project(container, document),
            COMPOSE_SERVICE_LABEL: str(container.properties.get("service") or ""),
        }
        found = client.find(labels)
    return found


def stop_dev_container(
    client: EngineClient,
    container: DevContainer,
    state: ContainerState,
    *,
    removes: bool,
) -> Failure | None:
    """Stop the dev container and the services beside it; with `removes` also remove them and their volumes."""
    project = state.labels.get(COMPOSE_PROJECT_LABEL)
    if project and container.compose_files:
        options = [word for file in container.compose_files for word in ("--file", str(file))]
        words = ["down", "--volumes", "--remove-orphans"] if removes else ["stop"]
        argv = [client.program, "compose", "--project-name", project, *options, *words]
        done = run_streaming(argv, progress=ignore, folder=container.folder, environment=PLAIN_PROGRESS)
        if done.code != 0:
            return Failure(f"compose {words[0]} ended with status {done.code}", done.log)
    elif removes:
        client.require("rm", "--force", "--volumes", state.id, deadline_s=STOP_DEADLINE_S)
    elif state.is_running:
        client.require("stop", state.id, deadline_s=STOP_DEADLINE_S)
    if removes:
        # Also those that the Compose files do not name, such as the copy of this folder on a remote engine's machine.
        volumes = [str(mount["Name"]) for mount in state.mounts if mount.get("Type") == "volume" and mount.get("Name")]
        if volumes:
            client.require("volume", "rm", "--force", *volumes, deadline_s=STOP_DEADLINE_S)
    return None
