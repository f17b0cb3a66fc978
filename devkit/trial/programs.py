"""What a project needs of images that are here, looked up by the runtime: nothing of an image is run."""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Any

from devkit.facts.model import Facts
from devkit.facts.project import DevContainer, Project
from devkit.facts.values import Unknown
from devkit.probe.documents import get_object, get_objects, get_text, get_texts, parse_list, parse_object_or_empty
from devkit.probe.host import TIMED_OUT, Host
from devkit.probe.project.devcontainer import LOCAL_FOLDER
from devkit.probe.project.scopes import list_scoped
from devkit.trial.project import FILES, list_binds, list_dev_containers, name_image

NO_EXEC = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["execve", "execveat"], "action": "SCMP_ACT_ERRNO"}],
}
"""A seccomp profile under which a runtime looks up user, folder and program of a container, and then cannot run it."""
NOT_STARTED = (125, 126, 127, TIMED_OUT)
"""Statuses of `run` for what the engine or its runtime refuses. Source: Docker, "docker container run", "Exit status"."""
MOUNTED = ("run", "--target")
_SHELL = "--entrypoint=/bin/sh"
_INSTRUCTION = re.compile(r"^[ \t]*(?:COPY|ADD|RUN|CMD|ENTRYPOINT)\b(.*(?:\\\r?\n.*)*)", re.MULTILINE | re.IGNORECASE)
_ENTRYPOINT = re.compile(r"^[ \t]*ENTRYPOINT[ \t]*\[[ \t]*\"([^\"]+)\"", re.MULTILINE | re.IGNORECASE)
"""In the form that no shell reads."""
_WORD = re.compile(r"[\w./-]*\w\.(?:ba|z)?sh\b|(?<=[\s/\"'])entry\w+\b")
_REPAIRS = {"chmod", "dos2unix", "sed"}
_CONVERTS = re.compile(r"dos2unix|\\r")
_PROGRAM = re.compile(r"[\w./-]*\w")
_BUILTINS = re.compile(
    r"[.:\[]|cd|command|echo|eval|exec|exit|export|false|for|if|kill|read|set|test|true|trap|until|wait|while"
)
"""Words of a shell that need no file. Source: POSIX, Shell Command Language, 2.14 and 2.9.4; dash(1)."""
_READS_INPUT = re.compile(r"(?:ba|da|a|z|fi)?sh|(?:i?python|node|ruby|R|julia|lua)[\d.]*")
"""Programs that read commands from a terminal, and end where there are none."""
_SUBSTITUTED = re.compile(r"\$\{?(\w+)\b(?!:?-)")
_MAX_SCRIPTS = 100
OF_KERNEL = ("/proc/", "/sys/", "/dev/")
_PATH = re.compile(r"/[^,\"\s]*")
"""A path that adds no option to `--mount`, which takes a line of CSV."""


@dataclass(frozen=True)
class LookUp:
    """A look-up in an image: the `arguments` by which its trial is known, and the `words` of `run`.

    `mounts` has, by the place of a mount that the image may refuse, the fault to report then. `absence` is the fault to report
    if the runtime starts the container; "" if it should.
    """

    arguments: tuple[str, ...]
    words: tuple[str, ...]
    mounts: Mapping[str, str] = field(default_factory=dict)
    absence: str = ""
    judge: Callable[[Sequence[Sequence[str]]], tuple[tuple[str, ...], str] | None] | None = None
    """Of the names and values that the container prints: the arguments of a fault's trial, and the fault."""


def name_images(config: Mapping[str, Any], facts: Facts) -> set[str]:
    """Name the images of the project's services and dev containers, and those that it builds on."""
    services = {name_image(config, each) for each in get_object(config, "services")}
    files = facts.project.dockerfiles if isinstance(facts.project, Project) else ()
    bases = {stage.image for each in files for stage in each.stages if "$" not in stage.image}
    return services | {image for _, image in list_images_of_editors(config, facts)} | bases


def list_look_ups(
    config: Mapping[str, Any],
    images: Mapping[str, Mapping[str, Any]],
    facts: Facts,
    host: Host | None,
    folder: str,
) -> Iterator[LookUp]:
    """Yield what is to be looked up in the images that are here.

    `images` has what the engine says of an image, by its name. `host` is the engine's machine, None if it is another one;
    `folder` is the project's.
    """
    for name, service in get_object(config, "services").items():
        image = name_image(config, name)
        if not image.startswith("-"):
            yield from _list_programs(name, service, image, images.get(image), host)
    yield from _list_health_checks(config, images, host)
    yield from _list_inactive(config, facts)
    for container, image in list_images_of_editors(config, facts):
        service = get_object(config, "services", container.service) if container.compose_files else {}
        # What it builds, the dev container CLI builds again before it starts.
        if image in images and not image.startswith("-") and "build" not in service:
            yield from _list_users(container, image)
            yield from _list_ending(container, service, image, images[image])
            if host is not None:
                yield from _list_workspaces(container, service, image, host, folder)


def list_scripts(config: Mapping[str, Any], facts: Facts, host: Host, folder: str) -> Iterator[LookUp]:
    """Yield the scripts of container files that cannot run: no execute bit, no interpreter, or a carriage return after it."""
    files = facts.project.dockerfiles if isinstance(facts.project, Project) else ()
    texts = {posixpath.dirname(each.path): host.read(f"{folder}/{each.path}") or "" for each in files}
    services = get_object(config, "services").values()
    said = [word for each in services for key in ("entrypoint", "command") for word in get_texts(each, key)]
    texts[""] = "\n".join((texts.get("", ""), *(f"RUN {word}" for word in said)))
    started = {posixpath.basename(word) for text in texts.values() for word in _ENTRYPOINT.findall(text)}
    named: dict[str, None] = {}
    for place, text in texts.items():
        # An image may convert them.
        lines = [] if _CONVERTS.search(text) else _INSTRUCTION.findall(text)
        for word in (word for line in lines for word in _WORD.findall(line)):
            parts = word.strip("/").split("/")
            tails = ("/".join(parts[first:]) for first in range(len(parts)))
            named |= dict.fromkeys(
                posixpath.normpath(posixpath.join(where, tail)) for tail in tails for where in ("", place)
            )
    known = facts.project.dev_containers if isinstance(facts.project, Project) else ()
    # A command before may have repaired them.
    own = [each for each in known if isinstance(each.programs, tuple) and _REPAIRS.isdisjoint(each.programs)]
    direct = [path for each in own if not isinstance(each.scripts, Unknown) for path in each.scripts]
    for path in dict.fromkeys(direct):
        found = host.stat(f"{folder}/{path}")
        if found is not None and not found.mode & 0o111:
            fault = f"{path} has no execute bit, and the dev container runs it by its path"
            yield LookUp(("run", "--exec", path), (), absence=fault)
    named |= dict.fromkeys(direct)
    for path in islice((each for each in named if not each.startswith("..")), _MAX_SCRIPTS):
        first = (host.read(f"{folder}/{path}") or "").partition("\n")[0]
        if first.startswith("#!") and first.endswith("\r"):
            fault = f"{path} has Windows line endings, so its interpreter {first[2:-1].strip()!r} cannot be found"
            yield LookUp(("run", "--entrypoint", path), (), absence=fault)
        elif first and posixpath.basename(path) in started and not first.startswith(("#!", "\x7fELF")):
            fault = f"{path} is the image's program and does not begin with the line of an interpreter"
            yield LookUp(("run", "--interpreter", path), (), absence=fault)


def list_image_users(
    images: Mapping[str, object], dockerfiles: Iterable[str], facts: Facts, host: Host, folder: str
) -> Iterator[LookUp]:
    """Yield the user that a Dockerfile's last stage asks of an image that is here, before it changes it.

    So does a dev container, of a Dockerfile that nowhere names the user whom it runs programs as.
    """
    for path in dict.fromkeys(dockerfiles):
        image, user, text, base = "", "", host.read(f"{folder}/{path}") or "", ""
        for each in list_scoped(text):
            keyword, word = each.instruction.keyword, each.filled.partition(" ")[0]
            if keyword == "FROM":
                image = base = word if word in images else ""
                user = ""
            elif keyword == "USER" and image and "$" not in word:
                user = user or word
            image = "" if keyword in ("RUN", "COPY", "ADD", "ONBUILD") and not user else image
        if image and user:
            yield LookUp(("run", "--user", user), (f"--user={user}", _SHELL, image))
        for container in list_dev_containers(facts):
            if base and container.build and container.build.dockerfile == path:
                yield from (each for each in _list_users(container, base) if each.arguments[-1] not in text)


def list_words(service: Mapping[str, Any], of_image: Mapping[str, Any]) -> tuple[str, ...]:
    """List the words of what a service runs: its program and the arguments, which an image may have."""
    entrypoint, command = get_texts(service, "entrypoint"), get_texts(service, "command")
    words = (*(entrypoint or get_texts(of_image, "Entrypoint")), *command)
    return words if command or entrypoint else (*words, *get_texts(of_image, "Cmd"))


def _list_programs(
    name: str, service: Mapping[str, Any], image: str, known: Mapping[str, Any] | None, host: Host | None
) -> Iterator[LookUp]:
    """Yield a service's program, with stand-ins for what is mounted; one that a bind mount brings is looked at here.

    `known` is what the engine says of the image, None for one that is not here.
    """
    of_image = known or {}
    entrypoint, command = get_texts(service, "entrypoint"), get_texts(service, "command")
    program = next(iter(list_words(service, of_image) if known is not None else entrypoint), "")
    path, is_brought, file = _find_brought(service, of_image, program)
    if host and file:
        yield from _list_faults(name, path, file, image if known is not None else "", host)
    if known is None:
        return
    places = dict(_list_places(service, image, host)) if host else {}
    stand_ins = tuple(f"--mount=type={kind},target={place}" for place, (kind, _) in places.items())
    faults = {place: fault for place, (_, fault) in places.items()}
    if program and not is_brought:
        given = {
            "user": get_text(service, "user"),
            "workdir": get_text(service, "working_dir"),
            "platform": get_text(service, "platform"),
            "env": f"PATH={search}" if (search := get_text(get_object(service, "environment"), "PATH")) else "",
            "entrypoint": next(iter(entrypoint), ""),
        }
        options = (f"--{key}={value}" for key, value in given.items() if value)
        yield LookUp(("compose", "up", name), (*options, *stand_ins, image, *entrypoint[1:], *command), faults)
    elif places:
        yield LookUp(MOUNTED, (*stand_ins, _SHELL, image), faults)


def _find_brought(service: Mapping[str, Any], of_image: Mapping[str, Any], program: str) -> tuple[str, bool, str]:
    """Find a program's path, whether a mount may bring it, and the file of this machine that a bind mount makes it.

    A program without a folder is looked for in those of PATH.
    """
    folder = get_text(service, "working_dir") or get_text(of_image, "WorkingDir") or "/"
    path, binds = posixpath.normpath(posixpath.join(folder, program)), list_binds(service)
    mounts = (each for kind in ("volumes", *FILES) for each in get_objects(service, kind))
    targets = [get_text(each, "target").rstrip("/") for each in mounts]
    above = [each for each in targets if f"{path}/".startswith(f"{each}/")]
    nearest = max(above, key=len, default="")
    file = f"{binds[nearest]}{path.removeprefix(nearest)}" if "/" in program and nearest in binds else ""
    return path, bool(above) or any("/" not in program and "bin" in each for each in targets), file


def _list_faults(name: str, path: str, file: str, image: str, host: Host) -> Iterator[LookUp]:
    """Yield what keeps the program at `path` from running, a file of this machine: its absence, its mode, its first line."""
    found, first = host.stat(file), (host.read(file) or "").partition("\n")[0]
    fault = f"{name} runs {file}, which"
    interpreter = re.sub(r"^\S*/env\s+", "", first[2:].strip()).partition(" ")[0]
    if found is None:
        yield LookUp((*MOUNTED, path), (), absence=f"{fault} does not exist")
    elif found.kind == "file" and not found.mode & 0o111:
        yield LookUp(("run", "--exec", file), (), absence=f"{fault} has no execute bit")
    elif first.startswith("#!") and first.endswith("\r"):
        fault = f"{fault} has Windows line endings, so its interpreter cannot be found"
        yield LookUp(("run", "--entrypoint", file), (), absence=fault)
    elif found.kind == "file" and found.size and not first.startswith(("#!", "\x7fELF")):
        yield LookUp(
            ("run", "--interpreter", file), (), absence=f"{fault} does not begin with the line of an interpreter"
        )
    elif image and first.startswith("#!") and _PROGRAM.fullmatch(interpreter):
        yield LookUp(("run", "--shebang", posixpath.basename(interpreter)), (f"--entrypoint={interpreter}", image))


def list_misnamed(config: Mapping[str, Any], facts: Facts, refusals: Mapping[str, str]) -> Iterator[LookUp]:
    """Yield the services whose image has a name that the engine refuses, by its words, with the variable that was not set."""
    known = facts.project.services if isinstance(facts.project, Project) else ()
    written = {each.name: each.image.value for each in known if each.image is not None}
    for name, service in get_object(config, "services").items():
        image = name_image(config, name)
        if image in refusals:
            variables = _SUBSTITUTED.findall(written.get(name, ""))
            values = {each: get_text(get_object(service, "environment"), each) or "VALUE" for each in variables}
            arguments = ("compose", "--env-file", *(f"{key}={value}" for key, value in list(values.items())[:1]))
            fault = f"the engine refuses {image!r}, the image of {name}: {refusals[image]}"
            yield LookUp(arguments if variables else ("compose", "pull", name), (), absence=fault)


def _list_places(service: Mapping[str, Any], image: str, host: Host) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the place of each mount with a stand-in for its source, a folder or a file, and the fault if that does not fit."""
    for each in get_objects(service, "volumes"):
        source, target = get_text(each, "source"), get_text(each, "target").rstrip("/")
        if not _PATH.fullmatch(target) or f"{target}/".startswith(OF_KERNEL):
            continue
        found = host.stat(source) if get_text(each, "type") == "bind" else None
        if found is None and get_object(each, "bind").get("create_host_path") is False:
            continue  # The engine refuses that without a look at the image.
        is_missing = found is None and get_text(each, "type") == "bind"
        if found is None or found.kind == "directory":
            made = "does not exist, so the engine creates a folder with that name" if is_missing else "is a folder"
            folder, name = posixpath.split(source)
            others = [each for each in host.list(folder) if each != name] if folder else []
            near = get_close_matches(name, others, 1, 0.8)
            near += [f"{each}/{name}" for each in others if host.stat(f"{folder}/{each}/{name}") is not None]
            made += "".join(f" ({each} is beside it)" for each in near[:1])
            yield target, ("tmpfs", f"{source or 'a volume'} {made}, and {target} is a file in the image {image}")
        else:
            fault = f"{source} is a file, and {target} is a folder in the image {image}"
            yield target, ("bind,readonly,source=/dev/null", fault)


def list_images_of_editors(config: Mapping[str, Any], facts: Facts) -> Iterator[tuple[DevContainer, str]]:
    """Yield the dev containers whose image has a name that is known."""
    known = facts.project.dev_containers if isinstance(facts.project, Project) else ()
    for each in known:
        if each.compose_files and each.service in get_object(config, "services"):
            yield each, name_image(config, each.service)
        elif not each.compose_files and each.image and "$" not in each.image.value:
            yield each, each.image.value


def _list_health_checks(
    config: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]], host: Host | None
) -> Iterator[LookUp]:
    """Yield the programs of health checks that others wait for, unless a shell has them built in."""
    services = get_object(config, "services")
    links = [each for service in services.values() for each in get_object(service, "depends_on").items()]
    for name in dict.fromkeys(name for name, link in links if get_text(link, "condition") == "service_healthy"):
        service, image = get_object(services, name), name_image(config, name)
        kind, *words = get_texts(get_object(service, "healthcheck"), "test") or ("NONE",)
        program = next(iter(" ".join(words).split() if kind == "CMD-SHELL" else words), "")
        is_sought = kind in ("CMD", "CMD-SHELL") and _PROGRAM.fullmatch(program) and not _BUILTINS.fullmatch(program)
        path, is_brought, file = _find_brought(service, images.get(image, {}), program)
        if is_sought and host and file:
            yield from _list_faults(f"the health check of {name}", path, file, "", host)
        if is_sought and image in images and not image.startswith("-") and not is_brought:
            yield LookUp(("run", "--health-cmd", program), (f"--entrypoint={program}", image))


def _list_inactive(config: Mapping[str, Any], facts: Facts) -> Iterator[LookUp]:
    """Yield the dev containers whose service Compose does not start, as its profile is not active."""
    known = facts.project if isinstance(facts.project, Project) else None
    defined = {each.name for each in known.services} if known else set()
    for each in known.dev_containers if known and "services" in config else ():
        is_named = any(key.name == "runServices" for key in each.keys)
        if each.service in defined and each.service not in get_object(config, "services") and not is_named:
            fault = f"the service {each.service} of the dev container has a profile that is not active"
            yield LookUp(("compose", "--profile", each.service), (), absence=fault)


def _list_users(container: DevContainer, image: str) -> Iterator[LookUp]:
    """Yield the users whom the dev container CLI runs programs as; a feature may still make them."""
    for each in container.settings:
        if each.name in ("remoteUser", "containerUser") and "$" not in each.value and not container.features:
            yield LookUp(("run", "--user", each.value), (f"--user={each.value}", _SHELL, image))


def find_user(container: DevContainer, service: Mapping[str, Any], of_image: Mapping[str, Any]) -> str:
    """Find the user whom an editor runs programs as."""
    named = [each.value for each in container.settings if each.name in ("remoteUser", "containerUser")]
    named += [get_text(each, key) for each in _read_metadata(of_image) for key in ("remoteUser", "containerUser")]
    return next(filter(None, (*named, get_text(service, "user"), get_text(of_image, "User"))), "root")


def _read_metadata(of_image: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of dev containers that an image brings, the last first. Source: containers.dev, "Image metadata"."""
    said = get_text(get_object(of_image, "Labels"), "devcontainer.metadata")
    rows = parse_list(said) or [parse_object_or_empty(said)]
    yield from (each for each in reversed(rows) if isinstance(each, dict))


def _list_ending(
    container: DevContainer, service: Mapping[str, Any], image: str, of_image: Mapping[str, Any]
) -> Iterator[LookUp]:
    """Yield the shell or interpreter that a dev container starts with nothing to read, so that it ends at once."""
    said = next((each.value.lower() for each in container.settings if each.name == "overrideCommand"), "")
    if said == "true" or (not said and not container.compose_files) or service.get("tty") or service.get("stdin_open"):
        return
    words = list_words(service, of_image)
    if len(words) == 1 and _READS_INPUT.fullmatch(posixpath.basename(words[0])):
        name = container.service or image
        fault = f"its program is {words[0]}, which has no input to read and ends at once"
        yield LookUp(("run", "--interactive", name), (), absence=fault)


def _list_workspaces(
    container: DevContainer, service: Mapping[str, Any], image: str, host: Host, folder: str
) -> Iterator[LookUp]:
    """Yield the folder in which the dev container opens, if a mount does not bring it: a file is put in its place."""
    wanted = next((each.value for each in container.settings if each.name == "workspaceFolder"), "").rstrip("/")
    wanted = wanted.replace(f"{LOCAL_FOLDER[:-1]}Basename}}", posixpath.basename(folder))
    if not _PATH.fullmatch(wanted) or "$" in wanted or any(key.name == "workspaceMount" for key in container.keys):
        return
    mounts = [(get_text(each, "target"), get_text(each, "source"), each) for each in get_objects(service, "volumes")]
    brought = {
        target.rstrip("/"): source if get_text(each, "type") == "bind" else "" for target, source, each in mounts
    }
    # The folder of a repository may be mounted with this one in it.
    usual = {"/workspaces": "", f"/workspaces/{posixpath.basename(folder)}": folder}
    brought |= {} if container.compose_files else usual
    brought |= {each.target.rstrip("/"): "" for each in container.mounts}
    above = [each for each in brought if f"{wanted}/".startswith(f"{each}/")]
    fault = f"the dev container opens in {wanted}, which the image {image} lacks and no mount brings"
    if above:
        nearest = max(above, key=len)
        path = posixpath.normpath(f"{brought[nearest]}{wanted.removeprefix(nearest)}")
        if brought[nearest] and host.stat(path) is None:
            yield LookUp(("run", "--workdir", wanted), (), absence=f"{fault}: {path} does not exist")
        return
    place = f"--mount=type=bind,readonly,source=/dev/null,target={wanted}"
    yield LookUp(("run", "--workdir", wanted), (place, _SHELL, image), absence=fault)
