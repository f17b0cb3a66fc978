"""Which setting of a container makes a command fail: the same command again, each time without one of them.

The commands run in new containers without a network, in which the project and all that it mounts are read-only. A setting is
blamed only if the command fails there with the same words as before, and succeeds without it.
"""

import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devkit.devcontainer.engine import EngineClient
from devkit.facts.secrets import redact_tokens
from devkit.probe.documents import get_object, get_objects, get_text, get_texts
from devkit.probe.host import TIMED_OUT
from devkit.probe.project.places import Place, list_settings
from devkit.text import join_words
from devkit.trial.cleanup import end_politely, make_owner
from devkit.trial.run import LABEL, PREFIX

_RUN_S = 6.0
"""In which a program that cannot work has ended; one that still runs is taken to work."""
_MAX_TRIED = 8
_READ_ONLY = "Read-only file system"
_TELLING = 60
"""Characters at the end of an error that tell it from others; tools cut its beginning."""
_KEY = re.compile(
    r"(?:^|\.)(?:cap_drop|env_file|mounts|read_only|runArgs|security_opt|tmpfs|volumes|workspaceMount)(?:\.\w+)?$"
)
_QUOTES = ("''", '""')


@dataclass(frozen=True)
class Setting:
    """A setting of a container: the options of `docker run` that make it, and those in its place."""

    options: tuple[str, ...]
    named: tuple[str, ...]
    """What its line in the project's files has: the key in a Compose file, and words of its value or of runArgs."""
    note: str
    remedy: str
    instead: tuple[str, ...] = ()


def find_setting(
    client: EngineClient, inspected: Mapping[str, Any], command: Sequence[str], words: str
) -> Place | None:
    """Find the line of the setting without which `command` works in a container like the one that was inspected.

    Args:
        client: the engine.
        inspected: what it says of the container.
        command: the lifecycle command that failed, empty where the container's own program did.
        words: those with which it failed.
    """
    settings = [*_list_settings(inspected)]
    places = [*list_settings(client.host, str(client.container.folder))]
    blamed = [(each, place) for each in settings if (place := _locate(each, places, inspected))][:_MAX_TRIED]
    told = words[-_TELLING:]
    if not (blamed and told) or told not in _run(client, inspected, command, settings):
        return None
    for each, place in blamed:
        rest = [replace(one, options=one.instead) if one is each else one for one in settings]
        said = _run(client, inspected, command, rest)
        # It comes as far as the project, which is read-only here alone.
        is_past = _READ_ONLY in said and told not in said and all("--read-only" not in one.options for one in rest)
        if not said or is_past:
            return replace(_find_variable(client, each) or place, note=each.note, remedy=each.remedy)
    return None


def _find_variable(client: EngineClient, setting: Setting) -> Place | None:
    """Find the line of a variable in the file that runArgs names."""
    words = [each.removeprefix("--env-file=") for each in get_texts(client.container.properties, "runArgs")]
    for file in words if setting.instead else ():
        path = os.path.relpath(file, client.container.folder)
        lines = "" if path.startswith("..") else client.host.read(file) or ""
        for number, line in enumerate(lines.splitlines(), 1):
            if line.startswith(f"{setting.named[0]}="):
                return Place(setting.named[0], path, number)
    return None


def _list_settings(inspected: Mapping[str, Any]) -> Iterator[Setting]:
    config, given = get_object(inspected, "HostConfig"), get_object(inspected, "Config")
    if config.get("ReadonlyRootfs") is True:
        remedy = "remove it, or mount a tmpfs where the command writes, such as /tmp"
        note = "the file system of the container is read-only, and the command works where it is not"
        yield Setting(("--read-only",), ("read_only", "--read-only"), note, remedy)
    if dropped := get_texts(config, "CapDrop"):
        added = (f"--cap-add={each}" for each in get_texts(config, "CapAdd"))
        options = (*(f"--cap-drop={each}" for each in dropped), *added)
        note = f"the command works with the capabilities that this line takes away ({join_words(dropped)})"
        yield Setting(
            options, ("cap_drop", "--cap-drop"), note, "add with cap_add what the command needs, or remove it"
        )
    for each in get_texts(config, "SecurityOpt"):
        yield Setting((f"--security-opt={each}",), (each,), f"the command works without {each}", "remove it")
    for target, options in get_object(config, "Tmpfs").items():
        hidden = f"the command works without this tmpfs, which hides what the image has at {target}"
        yield Setting(
            (f"--tmpfs={target}:{options}".rstrip(":"),), (target,), hidden, "remove it, or mount it elsewhere"
        )
    for mount in get_objects(inspected, "Mounts"):
        target, source = get_text(mount, "Destination"), get_text(mount, "Name") or get_text(mount, "Source")
        option = f"--mount=type={get_text(mount, 'Type')},source={source},target={target},readonly"
        if get_text(mount, "Type") in ("bind", "volume"):
            hidden = f"the command works without the mount at {target}"
            yield Setting((option,), (target,), hidden, "remove it, or mount it elsewhere")
    for name, _, value in (each.partition("=") for each in get_texts(given, "Env")):
        if redact_tokens(value) != value or redact_tokens(f"{name}={value}") != f"{name}={value}":
            continue  # Every user sees the words of a command.
        if value[:1] + value[1:][-1:] in _QUOTES:
            note = f"the quotes around the value of {name} are part of it, because docker run keeps them"
            plain = (f"--env={name}={value[1:-1]}",)
            yield Setting(
                (f"--env={name}={value}",), (name, "--env-file"), note, "write the value without quotes", plain
            )
        else:
            yield Setting((f"--env={name}={value}",), (), "", "")
    if user := get_text(given, "User"):
        yield Setting((f"--user={user}",), (), "", "")


def _locate(setting: Setting, places: Sequence[Place], inspected: Mapping[str, Any]) -> Place | None:
    """Find the line that makes a setting, of the container's own service where it is one of Compose."""
    service = get_text(get_object(get_object(inspected, "Config"), "Labels"), "com.docker.compose.service")
    own = (each for each in places if each.name.startswith(f"services.{service}.") or "services." not in each.name)
    able = [each for each in own if _KEY.search(each.name)]
    found = (each for word in setting.named for each in able if each.name.endswith(f".{word}") or word in each.text)
    return next(found, None)


def _run(
    client: EngineClient, inspected: Mapping[str, Any], command: Sequence[str], settings: Sequence[Setting]
) -> str:
    """Run the command in a container with these settings; return what it says where it fails, "" where it works."""
    given = get_object(inspected, "Config")
    start = [*command] or [*get_texts(given, "Entrypoint"), *get_texts(given, "Cmd")]
    folder = get_text(given, "WorkingDir")
    if command:
        own = (get_text(each, "Destination") for each in get_objects(inspected, "Mounts") if _is_project(client, each))
        folder = str(client.container.properties.get("workspaceFolder") or "") or next(own, folder)
    if not start:
        return ""
    owner = make_owner()
    name, done = f"{PREFIX}-{owner}-varied-{uuid.uuid4().hex[:8]}", None
    named = (f"--name={name}", f"--label={LABEL}={owner}")  # what a kill leaves the next trial removes
    options = (*named, "--rm", "--network=none", *([f"--workdir={folder}"] if folder else []))
    made = (option for each in settings for option in each.options)
    argv = ("run", *options, *made, f"--entrypoint={start[0]}", get_text(inspected, "Image"), *start[1:])
    with end_politely():
        try:
            done = client.host.run([client.program, *argv], deadline_s=_RUN_S)
        finally:
            if done is None or done.code == TIMED_OUT:
                client.host.run([client.program, "rm", "--force", name], deadline_s=_RUN_S)
    return "" if done.code in (0, TIMED_OUT) else f"{done.out}\n{done.err}"


def _is_project(client: EngineClient, mount: Mapping[str, Any]) -> bool:
    folder = str(client.container.folder)
    return get_text(mount, "Source") in (folder, client.host.link(folder))
