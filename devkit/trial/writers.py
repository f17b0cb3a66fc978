"""Where a project's programs write, and whether the user whom they run as may: a shell of this machine looks.

It is mounted into a container of the image, and runs as the image's user. Nothing of the image is run.
"""

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from devkit.facts.model import Facts
from devkit.probe.documents import (
    InvalidDocument,
    get_object,
    get_objects,
    get_text,
    get_texts,
    parse_json,
    parse_jsonc_tree,
)
from devkit.probe.host import Host
from devkit.probe.project.devcontainer import list_lifecycle_texts
from devkit.probe.project.dockerfile import parse_dockerfile, parse_instructions
from devkit.probe.project.mounts_and_variables import replace_variables
from devkit.probe.project.shell import find_written_paths, parse_shell_text
from devkit.trial.image import list_shell_files
from devkit.trial.programs import OF_KERNEL, LookUp, find_user, list_images_of_editors
from devkit.trial.project import FILES, list_binds, name_image

_SCRIPT = """
while read -r key value rest; do [ $key = Uid: ] && echo devkit user $value; done < /proc/self/status
read -r inside outside count < /proc/self/uid_map
echo devkit map $outside
number=0
for path; do
    case $path in "~"*) path=$HOME${path#?} ;; esac
    near=$path
    case $near in /*) ;; *) near=/dev/null ;; esac
    # A folder that is there is not made.
    case $near in */) [ -d "$near" ] && near=/dev/null ;; esac
    until [ -e "$near" ]; do near=${near%/*}; near=${near:-/}; done
    [ -w "$near" ] || echo "devkit refused$number $path"
    number=$((number + 1))
done
"""
"""Shows the id of a container's user, and which of the paths this user may not write."""
_INSIDE = "/run/devkit"
_MAX_PATHS = 32
_SCRIPT_LINE = re.compile(r"#!.*(?:sh|python)")
_ROOT = ("", "root", "0")
_HOME = "~/."
"""No folder to make: one to write in."""
_NEW_USER = "61234"
"""In the place of a user whom the Dockerfile makes: owner of nothing in the image that it starts from."""


@dataclass(frozen=True)
class _Writer:
    """A container of the project, its image as the engine describes it, and the texts of its programs."""

    name: str
    image: str
    of_image: Mapping[str, Any]
    service: Mapping[str, Any]
    user: str
    texts: Sequence[str]
    folder: str
    """In which relative paths are; "" where nobody knows."""
    variables: Mapping[str, str]
    given: tuple[str, ...]
    """Folders that the Dockerfile gives to a user, and places of mounts that nobody looks at."""
    is_new_user: bool = False
    is_of_editor: bool = False
    """Whether an editor writes to HOME."""


def list_writers(
    config: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]], facts: Facts, host: Host, folder: str
) -> Iterator[LookUp]:
    """Yield who is to be asked where they may not write, as `list_look_ups` has its arguments."""
    shell, folder = list_shell_files(host), folder.rstrip("/")
    for each in (*_list_services(config, images, host, folder), *_list_editors(config, images, facts, host, folder)):
        if not shell or each.user.partition(":")[0] in _ROOT or "$" in each.user or each.image.startswith("-"):
            continue
        binds = {} if each.is_of_editor else list_binds(each.service, is_written=True)
        paths = [path for path in _list_paths(each) if not _is_below(path, (*each.given, *OF_KERNEL))]
        asked = [_HOME] * each.is_of_editor + [path for path in paths if not _is_below(path, binds)]
        asked = asked[:_MAX_PATHS]
        if asked or binds:
            judge = partial(_judge, each, host, folder, asked, binds, paths)
            yield LookUp(("exec", each.name), tuple(_list_words(each, shell, asked)), judge=judge)


def _list_words(writer: _Writer, shell: Mapping[str, str], asked: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of `run` that start this machine's shell, without a variable of the image but HOME."""
    # The loader would take libraries of the image from that file.
    mounted = {**{f"{_INSIDE}/{name}": path for name, path in shell.items()}, "/etc/ld.so.preload": "/dev/null"}
    yield from (f"--mount=type=bind,readonly,source={path},target={place}" for place, path in mounted.items())
    names = (each.partition("=")[0] for each in get_texts(writer.of_image, "Env"))
    yield from (f"--env={name}=" for name in names if name != "HOME")
    yield from (f"--env=HOME={value}" for name, value in writer.variables.items() if name == "HOME")
    yield from (f"--group-add={each}" for each in get_texts(writer.service, "group_add"))
    loader = next((name for name in shell if name.startswith("ld")), "sh")
    yield from ("--read-only=false", "--workdir=/", f"--user={_NEW_USER if writer.is_new_user else writer.user}")
    yield from (f"--entrypoint={_INSIDE}/{loader}", writer.image, "--library-path", _INSIDE, f"{_INSIDE}/sh")
    yield from ("-c", _SCRIPT, "sh", *asked)


def _judge(
    writer: _Writer,
    host: Host,
    folder: str,
    asked: Sequence[str],
    binds: Mapping[str, str],
    paths: Sequence[str],
    said: Sequence[Sequence[str]],
) -> tuple[tuple[str, ...], str] | None:
    """Return the words that tell the first fault, and the fault; None where the user may write, or nobody knows."""
    seen = {each[0]: each[1] for each in said if len(each) == 2}
    user, name = seen.get("user", ""), writer.name
    if not user.isdecimal() or user == "0":
        return None
    for number, path in enumerate(asked):
        if refused := seen.get(f"refused{number}", ""):
            place = posixpath.dirname(refused) or "/"
            if path == _HOME:
                return ("exec", "--env", "HOME"), f"HOME is {place}, where {writer.user} may not write"
            return (
                "exec",
                "--user",
                writer.user,
                place,
            ), f"{name} writes to {place}, where {writer.user} may not write"
    # An engine that maps users has other ids than the host.
    doubts = None
    for target, source in binds.items() if seen.get("map") == "0" and not writer.is_new_user else ():
        found, written = host.stat(source), [path for path in paths if _is_below(path, (target,))]
        is_seen = found is None or bool(found.mode & 0o004) or host.is_writable(source)
        is_empty = (found is None or found.kind == "directory") and is_seen and not host.list(source)
        places = [f"{source}{path.removeprefix(target)}" for path in written] or [source]
        places = [path for path in places if not path.endswith("/") or host.stat(path) is None]
        owner = next(filter(None, (_find_owner(host, path, source, user) for path in places)), "")
        shown = posixpath.relpath(source, folder) if source.startswith(f"{folder}/") else source
        fault = f"{name} runs as {writer.user} and may not write to {target}: {shown} {owner}"
        # A folder with nothing to read is there to be written.
        if owner and (written or is_empty):
            return ("run", "--volume", source), fault
        if owner and found is not None and found.kind == "directory":
            doubts = doubts or (("create", "--volume", source), fault)
    return doubts


def _find_owner(host: Host, path: str, source: str, user: str) -> str:
    """Say whom the nearest path belongs to that is there, if that keeps the user from writing; "" otherwise.

    What a group or everyone may write is fine.
    """
    while (found := host.stat(path)) is None and len(path) > len(source):
        path = posixpath.dirname(path)
    if found is None:
        return "" if user == "0" else "does not exist, so that the engine makes it, as root"
    may_write = found.mode & 0o022 or (found.uid == int(user) and found.mode & 0o200)
    return "" if may_write else f"belongs to {found.uid or 'root'}"


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{each.rstrip('/')}/") for each in places if each)


def _read(host: Host, path: str, project: str) -> str:
    """Read a file of the project; "" for one outside of it, whatever a stranger's files name."""
    return (host.read(path) or "") if _is_below(posixpath.normpath(path), (project,)) else ""


def _list_paths(writer: _Writer) -> Iterator[str]:
    """Yield what the texts write, a folder with a slash at its end, but for what a variable decides that is not known."""
    of_image = dict(each.split("=", 1) for each in get_texts(writer.of_image, "Env") if "=" in each)
    values = {**of_image, **writer.variables, "HOME": "~"}
    for found in dict.fromkeys(path for text in writer.texts for path in find_written_paths(text)):
        path = replace_variables(found, values)
        path = path if path.startswith(("/", "~/")) else posixpath.join(writer.folder, path)
        if path.startswith(("/", "~/")) and not {"$", "*", "`"} & {*path}:
            yield posixpath.normpath(path) + "/" * found.endswith("/")


def _list_texts(
    words: Sequence[str], folder: str, binds: Mapping[str, str], context: str, host: Host, project: str
) -> list[str]:
    """List a program's words and, of the project's files, the scripts that they name.

    `binds` are mounts with their sources; `context` is the folder of which the image is built.
    """
    scripts = (word for before, word in zip(("-c", *words), words, strict=False) if re.fullmatch(r"-\w*c", before))
    texts = [shlex.join(words), *scripts]
    commands = (command for text in texts for command in parse_shell_text(text))
    named = (word for each in commands for word in each.values if "/" in word or word.endswith((".sh", ".py")))
    for word in dict.fromkeys(named):
        inside = posixpath.normpath(posixpath.join(folder, word))
        parts = inside.strip("/").split("/")
        files = [
            f"{source}{inside.removeprefix(place)}" for place, source in binds.items() if _is_below(inside, (place,))
        ]
        files += [f"{context}/{'/'.join(parts[first:])}" for first in range(len(parts)) if context]
        script = next(filter(None, (_read(host, path, project) for path in files)), "")
        texts += [script] if _SCRIPT_LINE.match(script) or word.endswith((".sh", ".py")) else []
    return texts


def _list_services(
    config: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]], host: Host, project: str
) -> Iterator[_Writer]:
    for name, service in get_object(config, "services").items():
        image, given, made = name_image(config, name), tuple[str, ...](), set[str]()
        of_image, context = images.get(image), get_text(get_object(service, "build"), "context")
        if of_image is None and context:
            image, of_image, given, made = _read_dockerfile(get_object(service, "build"), images, host, project)
        if of_image is None:
            continue
        entrypoint, command = get_texts(service, "entrypoint"), get_texts(service, "command")
        of_both = () if entrypoint else get_texts(of_image, "Entrypoint")
        words = (*entrypoint, *of_both, *(command or (() if entrypoint else get_texts(of_image, "Cmd"))))
        folder = get_text(service, "working_dir") or get_text(of_image, "WorkingDir") or "/"
        user, binds = get_text(service, "user") or get_text(of_image, "User"), list_binds(service, is_written=True)
        places = [get_text(each, "target") for kind in ("volumes", *FILES) for each in get_objects(service, kind)]
        places += [each.partition(":")[0] for each in get_texts(service, "tmpfs")]
        # Compose doubles the mark of what the shell is to replace.
        plain = [each.replace("$$", "$") for each in words]
        yield _Writer(
            name=name,
            image=image,
            of_image=of_image,
            service=service,
            user=user,
            texts=_list_texts(plain, folder, list_binds(service), context, host, project),
            folder=folder,
            variables={key: f"{value or ''}" for key, value in get_object(service, "environment").items()},
            given=(*given, *(each for each in places if each.rstrip("/") not in binds)),
            is_new_user=user.partition(":")[0] in made,
        )


def _read_dockerfile(
    build: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]], host: Host, folder: str
) -> tuple[str, dict[str, Any] | None, tuple[str, ...], set[str]]:
    """Read what a build changes of the image that it starts from, the folders that it gives to users, and the users it makes.

    The image is None where it is not here, or where a script of the build may have given anything to a user.
    """
    path = posixpath.normpath(posixpath.join(get_text(build, "context"), get_text(build, "dockerfile") or "Dockerfile"))
    text = _read(host, path, folder)
    arguments = {key: str(value) for key, value in get_object(build, "args").items() if value is not None}
    try:
        stages = parse_dockerfile(text, path=path, arguments=arguments).stages
    except InvalidDocument:
        stages = ()
    wanted = get_text(build, "target") or (stages[-1].name if stages else "")
    last = next((each for each in reversed(stages) if each.name == wanted), None)
    chain = [last] if last else []
    while chain and (base := next((each for each in stages if each.name and each.name == chain[0].image), None)):
        chain.insert(0, base)
        if len(chain) > len(stages):
            break
    programs = {name for each in chain if isinstance(each.programs, tuple) for name in each.programs}
    given = tuple(folder for each in chain for folder in each.folders)
    is_unclear = any(name.endswith((".sh", ".py")) for name in programs) or ("chown" in programs and not given)
    is_unclear |= not all(folder.startswith("/") and "$" not in folder for folder in given)
    if not chain or chain[0].image not in images or is_unclear:
        return "", None, (), set()
    image = dict(images[chain[0].image])
    starts = [each.line for each in chain]
    for each in parse_instructions(text):
        if max((stage.line for stage in stages if stage.line <= each.line), default=0) not in starts:
            continue
        try:
            words = (
                [*get_texts({"": parse_json(each.text)}, "")] if each.text.startswith("[") else ["sh", "-c", each.text]
            )
        except ValueError:
            words = ["sh", "-c", each.text]
        if each.keyword == "WORKDIR":
            image["WorkingDir"] = posixpath.join(get_text(image, "WorkingDir") or "/", each.text)
        elif each.keyword == "USER":
            image["User"] = each.text
        elif each.keyword == "ENTRYPOINT":
            image |= {"Entrypoint": words, "Cmd": []}
        elif each.keyword == "CMD":
            image["Cmd"] = words
    return chain[0].image, image, given, {user.name for each in chain for user in each.users}


def _list_editors(
    config: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]], facts: Facts, host: Host, folder: str
) -> Iterator[_Writer]:
    """Yield the dev containers of images that are here; a feature may still make users and folders."""
    for container, image in list_images_of_editors(config, facts):
        service = get_object(config, "services", container.service) if container.compose_files else {}
        if image not in images or "build" in service or container.features:
            continue
        try:
            root = parse_jsonc_tree(host.read(f"{folder}/{container.path}") or "", file=container.path)
        except InvalidDocument:
            continue  # what is wrong with it, another check says
        own = {name: node.text for name, node in root.at("containerEnv").fields.items()}
        known = {**get_object(service, "environment"), **own}
        mounts = (
            *(each.target for each in container.mounts),
            *(get_text(each, "target") for each in get_objects(service, "volumes")),
        )
        yield _Writer(
            name=container.service or "the dev container",
            image=image,
            of_image=images[image],
            service=service,
            user=find_user(container, service, images[image]),
            texts=[
                each
                for text in list_lifecycle_texts(root)
                for each in _list_texts((text,), "", {}, folder, host, folder)
            ],
            folder="",
            variables={name: str(value) for name, value in known.items() if value and "$" not in str(value)},
            given=tuple(mounts),
            is_of_editor=True,
        )
