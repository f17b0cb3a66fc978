"""A dev container of an image or a Dockerfile."""

import sys
from collections.abc import Iterator
from pathlib import Path

from devkit.devcontainer.configuration import DevContainer, list_mounts, list_texts
from devkit.devcontainer.containers import STOP_DEADLINE_S, ContainerState, EngineClient, ImageState
from devkit.devcontainer.making import (
    KEEP_RUNNING,
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
from devkit.facts.model import EngineKind
from devkit.verify.engine import WorkingEngine
from devkit.verify.process import CompletedCommand, run_streaming


class SingleContainer:
    """One container of an image or a Dockerfile."""

    def __init__(
        self, client: EngineClient, engine: WorkingEngine, container: DevContainer, *, is_remote: bool
    ) -> None:
        self.client, self.engine, self.container = client, engine, container
        mounted = list_mounts([container.workspace_mount])
        self.remote = find_remote_folder(container, [*mounted]) if is_remote else None
        self.image = str(container.properties.get("image") or "")
        dockerfile = container.dockerfile
        if dockerfile is None and not self.image:
            raise DevkitError(
                f"{container.file} names neither an image, nor a Dockerfile, nor a Compose file",
                "Name one: https://containers.dev/implementors/json_reference/",
            )
        if dockerfile is not None and not dockerfile.is_file():
            raise DevkitError(f"{container.file} names {dockerfile}, which does not exist", "Correct build.dockerfile.")
        if dockerfile is not None:
            slug = "".join(char for char in container.folder.name.lower() if char.isascii() and char.isalnum())
            self.image = f"devkit-{slug or 'project'}-{container.key}"

    def list_inputs(self) -> list[Path]:
        return [*list_own_files(self.container), *([self.container.dockerfile] if self.container.dockerfile else [])]

    def find(self) -> ContainerState | None:
        return self.client.find(self.container.labels)

    def build(self, options: StartOptions, log: BuildLog) -> CompletedCommand | None:
        dockerfile = self.container.dockerfile
        if dockerfile is None:
            if self.client.inspect_image(self.image) is not None:
                return None
            return run_build([self.client.program, "pull", self.image], log, self.container)
        build = self.container.build
        arguments = build.get("args")
        words = ["build", "--file", str(dockerfile), "--tag", self.image]
        words += ["--no-cache"] if options.no_cache else []
        words += ["--target", str(build["target"])] if build.get("target") else []
        for name, value in (arguments if isinstance(arguments, dict) else {}).items():
            words += ["--build-arg", f"{name}={value}"]
        words += [word for source in list_texts(build.get("cacheFrom")) for word in ("--cache-from", source)]
        words += list_texts(build.get("options"))
        context = self.container.file.parent / str(build.get("context") or dockerfile.parent)
        return run_build([self.client.program, *words, str(context)], log, self.container)

    def find_image(self) -> ImageState | None:
        image = self.client.inspect_image(self.image)
        if image is None:
            raise DevkitError(f"the engine has no image {self.image}", "devkit doctor")
        return image

    def _list_options(self, recipe: Recipe) -> Iterator[str]:
        settings, image = recipe.settings, recipe.image
        properties = self.container.properties
        for name, value in build_labels(self.container, recipe).items():
            yield from ("--label", f"{name}={value}")
        ports = properties.get("appPort")
        for port in ports if isinstance(ports, list) else [] if ports is None else [ports]:
            yield from ("--publish", f"127.0.0.1:{port}:{port}" if isinstance(port, int) else str(port))
        if workspace := self.remote.mount if self.remote else self.container.workspace_mount:
            yield from ("--mount", workspace)
        for mount in settings.mounts:
            yield from ("--mount", ",".join(f"{key}={value}" for key, value in mount.items()))
        for name, value in settings.container_env.items():
            yield from ("--env", f"{name}={value}")
        if settings.container_user:
            yield from ("--user", settings.container_user)
        if self.engine.facts.kind is EngineKind.PODMAN and sys.platform == "linux":
            yield from ("--security-opt", "label=disable")
            if self.engine.facts.is_rootless and (settings.remote_user or (image and image.user)) not in ("", "root"):
                yield "--userns=keep-id"
        yield from list_texts(properties.get("runArgs"))
        form = find_gpu_form(self.engine.facts) if has_gpu_request(self.container) else ""
        yield from {"driver": ("--gpus", "all"), "cdi": ("--device", "nvidia.com/gpu=all")}.get(form, ())
        yield from ("--init",) if settings.init else ()
        yield from ("--privileged",) if settings.privileged else ()
        for flag, values in (("--cap-add", settings.cap_add), ("--security-opt", settings.security_opt)):
            for value in values:
                yield from (flag, value)
        yield from ("--entrypoint", "/bin/sh", self.image, "-c")
        yield KEEP_RUNNING.format(entrypoints="\n".join(settings.entrypoints))
        yield from ("-", *(image.command if settings.overrides_command is False and image else ()))

    def start(self, before: ContainerState | None, action: str, recipe: Recipe) -> CompletedCommand:
        if before is not None and action == "recreated":
            self.client.require("rm", "--force", before.id, deadline_s=STOP_DEADLINE_S)
        words = (
            ["start", before.id]
            if before is not None and action == "started"
            else ["run", "--detach", *self._list_options(recipe)]
        )
        return run_streaming([self.client.program, *words], progress=ignore, folder=self.container.folder)
