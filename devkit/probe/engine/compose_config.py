"""A Compose project as Compose itself resolves it: variables, .env, overrides, extends and profiles included."""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from devkit.facts.engine import ResolvedService
from devkit.facts.runs import ProgramFailure
from devkit.facts.values import Unknown
from devkit.probe.attempts import run_or_explain
from devkit.probe.documents import (
    InvalidDocument,
    get_int,
    get_object,
    get_objects,
    get_text,
    get_texts,
    parse_env,
    parse_jsonc_tree,
    parse_object_or_empty,
    parse_yaml,
)
from devkit.probe.engine.client import COMPOSE_PLUGIN, find_plugin
from devkit.probe.engine.last_words import find_named_settings
from devkit.probe.host import Host
from devkit.probe.machine.programs import find_program
from devkit.probe.project.compose import COMPOSE_NAMES
from devkit.probe.project.devcontainer import LOCAL_FOLDER, find_compose_file_nodes
from devkit.probe.project.files import MAX_BYTES
from devkit.probe.project.places import Place, list_settings, locate_setting, locate_words

PODMAN_COMPOSE = "podman-compose"
_DEADLINE_S = 3.0
_KEY = re.compile(r'"(\w+)"')
_USAGE = 2
"""The status of a refused argument. Source: Python's argparse."""
_IN_FOLDER = ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh")
"""Compose looks for the files that COMPOSE_FILE names in the current folder."""


def read_compose_config(host: Host, *, project: str) -> tuple[ResolvedService, ...] | ProgramFailure | Unknown:
    """Resolve the Compose project in a folder, or return why Compose refuses it."""
    config, failure = resolve_project(host, project)
    if isinstance(failure, Unknown):
        return failure
    if failure is None:
        # Compose may pull the others.
        built = {name: each for name, each in get_object(config, "services").items() if not get_text(each, "image")}
        if absent := find_absent_build(host, project.rstrip("/"), {"services": built}):
            return ProgramFailure("docker compose build", (absent.note,), settings=(str(absent),))
        return tuple(_list_services(config))
    if failure.status in (126, 127) or failure.status < 0 or not failure.words:
        return Unknown("the Compose plugin cannot run")  # what is wrong with it, another check says
    if failure.status == _USAGE and failure.program.startswith(PODMAN_COMPOSE):
        return Unknown("this release of podman-compose does not print what it resolves", is_lost=True)
    return failure


def resolve_project(host: Host, project: str) -> tuple[dict[str, Any], ProgramFailure | Unknown | None]:
    """Return the Compose project in a folder as Compose resolves it, and why there is none."""
    folder = project.rstrip("/")
    chosen = host.env.get("COMPOSE_FILE") or parse_env(host.read(f"{folder}/.env") or "").get("COMPOSE_FILE")
    able = (each for each in (folder, f"{folder}/.devcontainer") if not {*COMPOSE_NAMES}.isdisjoint(host.list(each)))
    if not (named := tuple(_list_named_files(host, folder))):
        folder = folder if chosen else next(able, "")
    if not folder:
        return {}, Unknown("the folder has no Compose file with a default name")
    plugin, program = find_plugin(host, COMPOSE_PLUGIN), find_program(host, PODMAN_COMPOSE)
    if not (plugin or program) or not folder.startswith("/"):
        return {}, Unknown("the Compose plugin is not installed, so the project was not resolved")
    argv = (plugin, *named, "config", "--format", "json") if plugin else (program, *named, "config")
    name = "docker compose config" if plugin else f"{PODMAN_COMPOSE} config"
    done, failure = run_or_explain(
        host,
        (*_IN_FOLDER, folder, *argv),
        deadline_s=_DEADLINE_S,
        name=name,
        family="COMPOSE_",
        # podman-compose prints YAML, of which JSON is a part.
        works=lambda done: done.code == 0 and bool(parse_object_or_empty(done.out, parse_yaml)),
    )
    if failure is None:
        return parse_object_or_empty(done.out, parse_yaml), None
    failure = replace(failure, read_from=name)
    if not failure.works_without:
        own = (("this shell", name, value) for name, value in host.env.items() if name.startswith("COMPOSE_"))
        words = " ".join(failure.words)
        settings = find_named_settings(words, own) or locate_words(
            host, project.rstrip("/"), words, partial(_list_keys, host, plugin or "/dev/null")
        )
        failure = replace(failure, settings=settings)
    return {}, failure


def find_absent_build(host: Host, folder: str, config: dict[str, Any]) -> Place | None:
    """Find a build whose Dockerfile is not where Compose looks for it, with the value under which it is found."""
    return next(_list_absent_builds(host, folder, config), None)


def _list_absent_builds(host: Host, folder: str, config: dict[str, Any]) -> Iterator[Place]:
    named = [*_list_named_files(host, folder)][1::2]
    first = posixpath.dirname(named[0]) if named else folder
    settings = [each for each in list_settings(host, folder) if each.name.endswith((".build", ".build.context"))]
    for build in (get_object(each, "build") for each in get_object(config, "services").values()):
        context, file = get_text(build, "context"), get_text(build, "dockerfile") or "Dockerfile"
        is_absent = host.stat(posixpath.join(context, file)) is None and "dockerfile_inline" not in build
        for place in settings if context.startswith("/") and is_absent else ():
            own = posixpath.join(folder, posixpath.dirname(place.file))
            resolved = {base: posixpath.normpath(posixpath.join(base, place.text or ".")) for base in (first, own)}
            base, other = (first, own) if resolved[first] == context else (own, first)
            if resolved[base] != context:
                continue
            if resolved[other] != context and host.stat(posixpath.join(resolved[other], file)):
                start = posixpath.relpath(named[0], folder) if base == first and named else place.file
                note = f"Compose takes this path from the folder of {start}, so that {place.text} is {context}"
                note += f", which has no {file}"
                wanted = posixpath.relpath(resolved[other], base)
                yield replace(place, note=note, remedy=f'write "{wanted}" in place of "{place.text}"')
                continue
            below = posixpath.dirname(posixpath.join(context, file))
            near = get_close_matches(posixpath.basename(file), host.list(below), 1)
            able = [posixpath.join(context, *file.split("/")[at:]) for at in range(1, file.count("/") + 1)]
            able += [posixpath.join(below, each) for each in near]
            found = next((posixpath.relpath(each, context) for each in able if host.stat(each)), "")
            able = [each for each in (folder, f"{folder}/.devcontainer") if host.stat(posixpath.join(each, file))]
            instead = f"set the context to {posixpath.relpath(able[0], base)}, which has it" if able else f"add {file}"
            remedy = f"write {found} in place of {file}" if found else instead
            keys = [*place.name.removesuffix(".context").split("."), "dockerfile"]
            where = locate_setting(host, folder, keys) if found else None
            yield replace(where or place, note=f"{file} is not in the build context, {context}", remedy=remedy)


def _list_keys(host: Host, plugin: str) -> tuple[str, ...]:
    """List the keys of the schema that Compose has within its program."""
    return tuple(dict.fromkeys(_KEY.findall(host.run(("grep", "-aoE", '^ +"[a-z_]+": [{]', plugin)).out)))


def _list_named_files(host: Host, folder: str) -> Iterator[str]:
    """Yield the options of Compose for the files that the first devcontainer.json of a project names."""
    for path in (f"{folder}/.devcontainer/devcontainer.json", f"{folder}/.devcontainer.json"):
        found = host.stat(path)
        if found is None or found.size > MAX_BYTES:
            continue
        try:
            root = parse_jsonc_tree(host.read(path) or "", file=path)
        except InvalidDocument:
            continue  # what is wrong with it, another check says
        for node in find_compose_file_nodes(root):
            name = node.text.replace(LOCAL_FOLDER, folder)
            yield from ("-f", posixpath.normpath(posixpath.join(posixpath.dirname(path), name)))
        return


def _list_services(config: dict[str, Any]) -> Iterator[ResolvedService]:
    services = get_object(config, "services")
    for name in services:
        service = get_object(services, name)
        resources = get_object(service, "deploy", "resources")
        requests = [
            one
            for one in (*get_objects(get_object(resources, "reservations"), "devices"), *get_objects(service, "gpus"))
            if get_text(one, "driver") in ("nvidia", "cdi")
            or "gpu" in get_texts(one, "capabilities")
            or one.keys() == {"count"}
        ]
        mapped = (get_text(one, "source") for one in get_objects(service, "devices"))
        counts = [count for one in requests if (count := get_int(one, "count")) is not None]
        yield ResolvedService(
            name=name,
            runtime=get_text(service, "runtime"),
            device_ids=(
                *(each for one in requests for each in get_texts(one, "device_ids")),
                *(source for source in mapped if source.startswith("nvidia.com/gpu=")),
            ),
            gpu_count=max(counts, default=0),
            shm_bytes=_parse_bytes(service.get("shm_size")),
            memory_bytes=_parse_bytes(service.get("mem_limit") or get_object(resources, "limits").get("memory")),
        )


def _parse_bytes(value: object) -> int | None:
    """Compose prints sizes in bytes, as text."""
    text = str(value) if value is not None else ""
    return int(text) if text.isdecimal() else None
