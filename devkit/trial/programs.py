"""The programs of a project's services, looked up in images that are here, and never run."""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from devkit.probe.documents import get_object, get_objects, get_text, get_texts
from devkit.probe.host import TIMED_OUT
from devkit.trial.project import FILES, name_image

NO_EXEC = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["execve", "execveat"], "action": "SCMP_ACT_ERRNO"}],
}
"""A seccomp profile under which a runtime looks up user, folder and program of a container, and then cannot run it."""
NOT_STARTED = (125, 126, 127, TIMED_OUT)
"""Statuses of `run` for what the engine or its runtime refuses. Source: Docker, "docker container run", "Exit status"."""


def list_programs(
    config: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each service whose image is here, and the arguments of `run` for its program, unless a mount brings that.

    `images` has what the engine says of an image, by its name.
    """
    for name, service in get_object(config, "services").items():
        image = name_image(config, name)
        if image not in images or image.startswith("-"):
            continue
        entrypoint, command, of_image = get_texts(service, "entrypoint"), get_texts(service, "command"), images[image]
        words = (*(entrypoint or get_texts(of_image, "Entrypoint")), *command)
        program = next(iter(words or get_texts(of_image, "Cmd")), "")
        folder = get_text(service, "working_dir") or get_text(of_image, "WorkingDir") or "/"
        path = posixpath.normpath(posixpath.join(folder, program))
        mounts = (each for kind in ("volumes", *FILES) for each in get_objects(service, kind))
        targets = [get_text(each, "target").rstrip("/") for each in mounts]
        # A program without a folder is looked for in those of PATH.
        is_brought = any(
            f"{path}/".startswith(f"{each}/") or ("/" not in program and "bin" in each) for each in targets
        )
        if program and not is_brought:
            given = {
                "user": get_text(service, "user"),
                "workdir": get_text(service, "working_dir"),
                "env": f"PATH={search}" if (search := get_text(get_object(service, "environment"), "PATH")) else "",
                "entrypoint": next(iter(entrypoint), ""),
            }
            options = (f"--{key}={value}" for key, value in given.items() if value)
            yield name, (*options, image, *entrypoint[1:], *command)
