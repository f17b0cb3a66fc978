"""A dev container that is a service of Compose files. An overlay adds the labels and what devcontainer.json asks for."""

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devkit.devcontainer.configuration import DevContainer, list_texts
from devkit.devcontainer.containers import (
    COMPOSE_PROJECT_LABEL,
    COMPOSE_SERVICE_LABEL,
    QUERY_DEADLINE_S,
    ContainerState,
    EngineClient,
    ImageState,
)
from devkit.devcontainer.making import (
    KEEP_RUNNING,
    PLAIN_PROGRESS,
    BuildLog,
    Recipe,
    StartOptions,
    build_labels,
    find_gpu_form,
    has_gpu_request,
    ignore,
    list_own_files,
    run_build,
)
from devkit.devcontainer.remote import find_remote_folder
from devkit.errors import DevkitError
from devkit.probe.host import Host
from devkit.text import join_words
from devkit.user_folder import find_user_file
from devkit.verify.engine import WorkingEngine
from devkit.verify.process import CompletedCommand, run_streaming


class ComposeService:
    """A service of Compose files. An overlay adds the labels and what devcontainer.json asks for."""

    def __init__(
        self, client: EngineClient, engine: WorkingEngine, container: DevContainer, *, is_remote: bool
    ) -> None:
        self.client, self.engine, self.container = client, engine, container
        self.service = str(container.properties.get("service") or "")
        missing = [file for file in container.compose_files if not file.is_file()]
        if missing:
            raise DevkitError(
                f"{container.file} names {missing[0]}, which does not exist", "Correct dockerComposeFile."
            )
        self.document = read_compose_document(client.host, engine.compose, container)
        services = self.document.get("services") or {}
        if self.service not in services:
            known = join_words(map(str, services), "or")
            raise DevkitError(f"the Compose files have no service {self.service!r}", f'Name one as "service": {known}')
        self.project = find_compose_project(container, self.document)
        named = find_user_file(f"containers/{container.key}.yml")
        self._overlay = Path(named) if named else Path(tempfile.gettempdir(), f"devkit-{container.key}.yml")
        mounted = services[self.service].get("volumes") or ()
        self.remote = find_remote_folder(container, mounted) if is_remote else None

    def command(self, *words: str, has_overlay: bool = False) -> list[str]:
        files = [*self.container.compose_files, *([self._overlay] if has_overlay else [])]
        options = [word for file in files for word in ("--file", str(file))]
        return [*self.engine.compose, "--project-name", self.project, *options, *words]

    def list_inputs(self) -> list[Path]:
        build = self.document["services"][self.service].get("build") or {}
        named = []
        if isinstance(build, dict) and build.get("dockerfile"):
            named = [Path(str(build.get("context") or ".")) / str(build["dockerfile"])]
        return list({*list_own_files(self.container), *self.container.compose_files, *named})

    def find(self) -> ContainerState | None:
        return self.client.find({COMPOSE_PROJECT_LABEL: self.project, COMPOSE_SERVICE_LABEL: self.service})

    def build(self, options: StartOptions, log: BuildLog) -> CompletedCommand | None:
        wanted = list_texts(self.container.properties.get("runServices"))
        names = list(dict.fromkeys([self.service, *wanted])) if wanted else []
        words = ["build", *(["--no-cache"] if options.no_cache else []), *names]
        return run_build(self.command(*words), log, self.container)

    def find_image(self) -> ImageState | None:
        name = self.document["services"][self.service].get("image") or f"{self.project}-{self.service}"
        return self.client.inspect_image(str(name))

    def start(self, before: ContainerState | None, action: str, recipe: Recipe) -> CompletedCommand:
        self._overlay.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self._build_overlay(recipe), indent=1).replace("$", "$$")
        self._overlay.write_text(text, encoding="utf-8")
        wanted = list_texts(self.container.properties.get("runServices"))
        names = list(dict.fromkeys([self.service, *wanted])) if wanted else []
        # What is up to date is started as it is, also where this Compose would make another of it.
        recreates = {"recreated": ["--force-recreate"], "started": ["--no-recreate"]}.get(action, [])
        waits = ["--wait"] if not self._is_podman_compose else []
        words = ["up", "--detach", *waits, "--no-build", *recreates, *names]
        if action == "started" and self._is_podman_compose:
            words = ["start", *names]  # its `up` makes every container anew
        return run_streaming(
            self.command(*words, has_overlay=True),
            progress=ignore,
            folder=self.container.folder,
            environment=PLAIN_PROGRESS,
        )

    @property
    def _is_podman_compose(self) -> bool:
        return self.engine.compose[0] == "podman"

    def _build_overlay(self, recipe: Recipe) -> dict[str, Any]:
        settings, image = recipe.settings, recipe.image
        service: dict[str, Any] = {"labels": build_labels(self.container, recipe)}
        service |= {"environment": dict(settings.container_env)} if settings.container_env else {}
        service |= {"user": settings.container_user} if settings.container_user else {}
        service |= {"init": True} if settings.init else {}
        service |= {"privileged": True} if settings.privileged else {}
        service |= {"cap_add": list(settings.cap_add)} if settings.cap_add else {}
        service |= {"security_opt": list(settings.security_opt)} if settings.security_opt else {}
        mounts: list[dict[str, Any]] = [
            {key: mount[key] for key in ("type", "source", "target") if key in mount}
            | ({"read_only": True} if "readonly" in mount else {})
            for mount in settings.mounts
        ]
        if self.remote:
            mounts.append({"type": "volume", "source": self.remote.volume, "target": self.remote.target})
        service |= {"volumes": mounts} if mounts else {}
        if settings.overrides_command or settings.entrypoints:
            entrypoints = "\n".join(settings.entrypoints)
            command = () if settings.overrides_command or image is None else image.command
            service["entrypoint"] = ["/bin/sh", "-c", KEEP_RUNNING.format(entrypoints=entrypoints), "-", *command]
            service["command"] = []
        if has_gpu_request(self.container) and find_gpu_form(self.engine.facts) == "driver":
            service["deploy"] = {"resources": {"reservations": {"devices": [{"capabilities": ["gpu"]}]}}}
        volumes: dict[str, Any] = {
            mount["source"]: {} for mount in settings.mounts if mount.get("type") == "volume" and mount.get("source")
        }
        if self.remote:
            volumes[self.remote.volume] = {"name": self.remote.volume}
        return {"services": {self.service: service}, **({"volumes": volumes} if volumes else {})}


def read_compose_document(host: Host, compose: Sequence[str], container: DevContainer) -> dict[str, Any]:
    """Return the Compose files, merged and with their variables replaced, by Compose itself. Raises DevkitError."""
    import yaml

    options = [word for file in container.compose_files for word in ("--file", str(file))]
    done = host.run([*compose, *options, "config"], deadline_s=QUERY_DEADLINE_S)
    try:
        found = yaml.safe_load(done.out) if done.code == 0 else None
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        said = [line for line in done.err.splitlines() if line.strip()] or ["it printed nothing"]
        raise DevkitError(
            f"Compose cannot read {container.compose_files[0]}: {said[-1].strip()}",
            f"devkit doctor --project {container.folder}",
        )
    return found


def find_compose_project(container: DevContainer, document: Mapping[str, Any]) -> str:
    """Return the name of the Compose project that the dev container CLI and editors use for these files."""
    name = str(document.get("name") or "")
    is_default = name in ("", "devcontainer") and "COMPOSE_PROJECT_NAME" not in os.environ
    if not is_default:
        return name
    folder = container.compose_files[0].parent
    base = f"{container.folder.name}_devcontainer" if folder == container.folder / ".devcontainer" else folder.name
    return re.sub(r"[^-_a-z0-9]", "", base.lower())
