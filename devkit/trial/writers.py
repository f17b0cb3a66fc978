"""Where a project's programs write, and whether the user whom they run as may: a shell of this machine looks.

It is mounted into a container of the image, and runs as the image's user. Nothing of the image is run.
"""

import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from devkit.facts.model import Facts
from devkit.facts.project import Stage
from devkit.probe.documents import (
    InvalidDocument,
    get_object,
    get_objects,
    get_text,
    get_texts,
    parse_jsonc_tree,
)
from devkit.probe.host import Host
from devkit.probe.project.devcontainer import list_lifecycle_texts
from devkit.probe.project.dockerfile import parse_dockerfile, parse_instructions
from devkit.probe.project.mounts_and_variables import replace_variables
from devkit.probe.project.shell import find_written_paths, parse_shell_text
from devkit.trial.image import list_shell_files
from devkit.trial.programs import OF_KERNEL, LookUp, find_user, list_images_of_editors, list_words
from devkit.trial.project import FILES, list_binds, list_dev_containers, name_image, write_build

_SCRIPT = """
while read -r key value rest; do [ $key = Uid: ] && echo devkit user $value; done < /proc/self/status
read -r inside outside count < /proc/self/uid_map
echo devkit map $outside
[ -x /usr/bin/sudo ] && echo devkit sudo there
number=0
for path; do
    case $path in "~"*) path=$HOME${path#?} ;; esac
    near=$path
    case $near in /*) ;; *) near=/dev/null ;; esac
    # A folder that is there is not made; one that has to be there ends with a dot.
    case $near in */) [ -d "$near" ] && near=/dev/null ;; esac
    case $near in */.) ;; *) until [ -e "$near" ]; do near=${near%/*}; near=${near:-/}; done ;; esac
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
_NEW_USER = "61234"
"""In the place of a user whom the Dockerfile makes: owner of nothing in the image that it starts from."""


@dataclass(frozen=True)
class _Known:
    """The project: as Compose resolves it, its images as the engine describes them, its folder, and the engine's volumes."""

    config: Mapping[str, Any]
    images: Mapping[str, Mapping[str, Any]]
    facts: Facts
    host: Host
    folder: str
    volumes: Collection[str]

    def read(self, path: str) -> str:
        """Read a file of the project; "" for one that lies elsewhere, whatever a stranger's files name."""
        return (self.host.read(path) or "") if _is_below(posixpath.normpath(path), (self.folder,)) else ""


@dataclass(frozen=True)
class _Writer:
    """A container of the project, with the texts of its programs and what it mounts."""

    name: str
    image: str
    of_image: Mapping[str, Any]
    user: str
    texts: Sequence[str]
    folder: str
    """In which relative paths are; "" where nobody knows."""
    variables: Mapping[str, str]
    groups: tuple[str, ...]
    binds: Mapping[str, str]
    """Sources that are judged, by their places."""
    places: tuple[str, ...]
    """Those of other mounts, and folders that the Dockerfile gives to a user."""
    new: tuple[str, ...]
    """Those of volumes that the engine makes: like the folder of the image, or else for root."""
    is_new_user: bool = False
    is_of_editor: bool = False
    """Whether an editor writes to HOME."""

    @cached_property
    def paths(self) -> list[str]:
        """The paths that the texts write, folders with a slash at their end, without those that an unknown variable decides."""
        of_image = dict(each.split("=", 1) for each in get_texts(self.of_image, "Env") if "=" in each)
        values = {**of_image, **self.variables, "HOME": "~"}
        found = (path for text in self.texts for path in find_written_paths(text))
        named = ((replace_variables(path, values), path.endswith("/")) for path in found)
        whole = ((path if path[:2] == "~/" else posixpath.join(self.folder, path), is_made) for path, is_made in named)
        able = {
            posixpath.normpath(path) + "/" * is_made
            for path, is_made in whole
            if path.startswith(("/", "~/")) and not {"$", "*", "`"} & {*path}
        }
        return sorted(path for path in able if not _is_below(path, (*self.places, *OF_KERNEL)))

    @cached_property
    def asked(self) -> list[str]:
        """The paths to look at within the container."""
        made = [f"{place}/." for place in self.new if not any("chown" in text for text in self.texts)]
        paths = [path for path in self.paths if not _is_below(path, self.binds)]
        # The image that the Dockerfile starts from does not know the user whom it makes.
        home = [_HOME] if self.is_of_editor and not self.is_new_user else []
        return [*home, *made, *paths][:_MAX_PATHS]


def list_writers(
    config: Mapping[str, Any],
    images: Mapping[str, Mapping[str, Any]],
    facts: Facts,
    host: Host,
    folder: str,
    volumes: Collection[str] = (),
) -> Iterator[LookUp]:
    """Yield who is to be asked where they may not write, as `list_look_ups` has its arguments."""
    known, shell = _Known(config, images, facts, host, folder.rstrip("/"), volumes), list_shell_files(host)
    for each in (*_list_services(known), *_list_editors(known)) if shell else ():
        is_judged = each.user.partition(":")[0] not in _ROOT and "$" not in each.user and not each.image.startswith("-")
        if is_judged and (each.asked or each.binds):
            yield LookUp(("exec", each.name), tuple(_list_words(each, shell)), judge=partial(_judge, each, known))


def _list_words(writer: _Writer, shell: Mapping[str, str]) -> Iterator[str]:
    """Yield the arguments of `run` that start this machine's shell, without a variable of the image but HOME."""
    # The loader would take libraries of the image from that file.
    mounted = {**{f"{_INSIDE}/{name}": path for name, path in shell.items()}, "/etc/ld.so.preload": "/dev/null"}
    yield from (f"--mount=type=bind,readonly,source={path},target={place}" for place, path in mounted.items())
    names = (each.partition("=")[0] for each in get_texts(writer.of_image, "Env"))
    yield from (f"--env={name}=" for name in names if name != "HOME")
    yield from (f"--env=HOME={value}" for name, value in writer.variables.items() if name == "HOME")
    yield from (f"--group-add={each}" for each in writer.groups)
    loader = next((name for name in shell if name.startswith("ld")), "sh")
    yield from ("--read-only=false", "--workdir=/", f"--user={_NEW_USER if writer.is_new_user else writer.user}")
    yield from (f"--entrypoint={_INSIDE}/{loader}", writer.image, "--library-path", _INSIDE, f"{_INSIDE}/sh")
    yield from ("-c", _SCRIPT, "sh", *writer.asked)


def _judge(writer: _Writer, known: _Known, said: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], str] | None:
    """Return the words that tell the first fault, and the fault; None where the user may write, or nobody knows."""
    seen = {each[0]: each[1] for each in said if len(each) == 2}
    user, name, who, host = seen.get("user", ""), writer.name, writer.user, known.host
    if not user.isdecimal() or user == "0":
        return None
    for path, refused in ((path, seen.get(f"refused{number}", "")) for number, path in enumerate(writer.asked)):
        place = posixpath.dirname(refused) or "/"
        if refused and path == _HOME:
            return ("exec", "--env", "HOME"), f"HOME is {place}, where {who} may not write"
        if refused and path.endswith("/."):
            fault = f"the volume at {place} will belong to root, because {writer.image} has no folder of {who} there"
            is_mended = writer.is_of_editor and "sudo" in seen
            return ("run", "--mount", place) if is_mended else ("exec", "--user", who, place), fault
        if refused:
            return ("exec", "--user", who, place), f"{name} writes to {place}, where {who} may not write"
    # Where an engine maps users, the host knows them by different ids.
    doubts = []
    for target, source in writer.binds.items() if seen.get("map") == "0" and not writer.is_new_user else ():
        found = host.stat(source)
        written = [f"{source}{path.removeprefix(target)}" for path in writer.paths if _is_below(path, (target,))]
        kept = [path for path in written or [source] if not path.endswith("/") or host.stat(path) is None]
        owner = next(filter(None, (_find_owner(host, path, source, int(user)) for path in kept)), "")
        shown = posixpath.relpath(source, known.folder) if _is_below(source, (known.folder,)) else source
        fault = f"{name} runs as {who} and may not write to {target}: {shown} {owner}"
        is_seen = found is None or found.mode & 0o004 or host.is_writable(source)
        is_folder = found is None or found.kind == "directory"
        # A folder with nothing to read is there to be written.
        if owner and (written or (is_folder and is_seen and not host.list(source))):
            return ("run", "--volume", source), fault
        doubts += [(("create", "--volume", source), fault)] if owner and is_folder else []
    return next(iter(doubts), None)


def _find_owner(host: Host, path: str, source: str, user: int) -> str:
    """Say whom the nearest path belongs to that is there, if that keeps the user from writing; "" otherwise.

    What a group or everyone may write is fine.
    """
    while (found := host.stat(path)) is None and len(path) > len(source):
        path = posixpath.dirname(path)
    if found is None:
        return "does not exist, so the engine creates it as root"
    may_write = found.mode & 0o022 or (found.uid == user and found.mode & 0o200)
    return "" if may_write else f"belongs to {found.uid or 'root'}"


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{each.rstrip('/')}/") for each in places if each)


def _list_texts(words: Sequence[str], folder: str, binds: Mapping[str, str], context: str, known: _Known) -> list[str]:
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
        files = [f"{source}{inside[len(place) :]}" for place, source in binds.items() if _is_below(inside, (place,))]
        files += [f"{context}/{'/'.join(parts[first:])}" for first in range(len(parts)) if context]
        script = next(filter(None, map(known.read, files)), "")
        texts += [script] if _SCRIPT_LINE.match(script) or word.endswith((".sh", ".py")) else []
    return texts


def _list_services(known: _Known) -> Iterator[_Writer]:
    for name, service in get_object(known.config, "services").items():
        image, given, made = name_image(known.config, name), tuple[str, ...](), set[str]()
        of_image, build = known.images.get(image), get_object(service, "build")
        if of_image is None and build:
            image, of_image, given, made = _read_dockerfile(build, known)
        if of_image is None:
            continue
        # Compose doubles the mark of what the shell is to replace.
        words = tuple(word.replace("$$", "$") for word in list_words(service, of_image))
        folder = get_text(service, "working_dir") or get_text(of_image, "WorkingDir") or "/"
        user, binds = get_text(service, "user") or get_text(of_image, "User"), list_binds(service, is_written=True)
        mounts = [each for kind in ("volumes", *FILES) for each in get_objects(service, kind)]
        places = [*map(_find_place, mounts), *(each.partition(":")[0] for each in get_texts(service, "tmpfs"))]
        new = [_find_place(each) for each in mounts if not each.get("read_only") and _is_new(each, known)]
        yield _Writer(
            name=name,
            image=image,
            of_image=of_image,
            user=user,
            texts=_list_texts(words, folder, list_binds(service), get_text(build, "context"), known),
            folder=folder,
            variables={key: f"{value or ''}" for key, value in get_object(service, "environment").items()},
            groups=get_texts(service, "group_add"),
            binds=binds,
            places=(*given, *(each for each in places if each not in binds)),
            new=tuple(each for each in new if not _is_below(each, given)),
            is_new_user=user.partition(":")[0] in made,
        )


def _find_place(mount: Mapping[str, Any]) -> str:
    return get_text(mount, "target").rstrip("/")


def _is_new(mount: Mapping[str, Any], known: _Known) -> bool:
    """Say if the engine makes a mount's volume, and nothing of the project may give it to a user."""
    source = get_text(mount, "source")
    is_given = "chown" in str(known.config) or get_object(known.config, "volumes", source).keys() - {"name"}
    return (
        get_text(mount, "type") == "volume" and source not in known.volumes and "$" not in str(mount) and not is_given
    )


def _read_dockerfile(
    build: Mapping[str, Any], known: _Known
) -> tuple[str, Mapping[str, Any] | None, tuple[str, ...], set[str]]:
    """Read what a build changes of the image that it starts from, the folders that it gives to users, and the users it makes.

    The image is None where it is not here, or where a script of the build may have given anything to a user.
    """
    path = posixpath.normpath(posixpath.join(get_text(build, "context"), get_text(build, "dockerfile") or "Dockerfile"))
    arguments = {key: str(value) for key, value in get_object(build, "args").items() if value is not None}
    text, chain, wanted = known.read(path), list[Stage](), get_text(build, "target")
    try:
        stages = parse_dockerfile(text, path=path, arguments=arguments).stages
    except InvalidDocument:
        stages = ()  # what is wrong with it, another check says
    for stage in reversed(stages):
        if (not chain and wanted in ("", stage.name)) or (chain and stage.name == chain[0].image):
            chain.insert(0, stage)
    programs = {name for each in chain if isinstance(each.programs, tuple) for name in each.programs}
    given = tuple(folder for each in chain for folder in each.folders)
    is_unclear = any(name.endswith((".sh", ".py")) for name in programs) or ("chown" in programs and not given)
    is_unclear |= not all(folder.startswith("/") and "$" not in folder for folder in given)
    if not chain or chain[0].image not in known.images or is_unclear:
        return "", None, (), set()
    image, starts = dict(known.images[chain[0].image]), [each.line for each in chain]
    for each in parse_instructions(text):
        if max((stage.line for stage in stages if stage.line <= each.line), default=0) not in starts:
            continue
        words = parse_shell_text(each.text)[0].values if each.text.startswith("[") else ("sh", "-c", each.text)
        if each.keyword == "WORKDIR":
            image["WorkingDir"] = posixpath.join(get_text(image, "WorkingDir") or "/", each.text)
        elif each.keyword == "USER":
            image["User"] = each.text
        elif each.keyword in ("CMD", "ENTRYPOINT"):
            image |= {"Cmd": [*words]} if each.keyword == "CMD" else {"Entrypoint": [*words], "Cmd": []}
    return chain[0].image, image, given, {user.name for each in chain for user in each.users}


def _list_editors(known: _Known) -> Iterator[_Writer]:
    """Yield the dev containers of images that are here; a feature may still make users and folders."""
    built = [(each, "") for each in list_dev_containers(known.facts) if each.build]
    for container, image in (*list_images_of_editors(known.config, known.facts), *built):
        service = get_object(known.config, "services", container.service) if container.compose_files else {}
        of_image, given, made = known.images.get(image), tuple[str, ...](), set[str]()
        if container.build is not None:
            image, of_image, given, made = _read_dockerfile(write_build(container.build, known.folder), known)
        if of_image is None or "build" in service or container.features:
            continue
        try:
            root = parse_jsonc_tree(known.read(f"{known.folder}/{container.path}"), file=container.path)
        except InvalidDocument:
            continue  # what is wrong with it, another check says
        own = {name: node.text for name, node in root.at("containerEnv").fields.items()}
        variables = {**get_object(service, "environment"), **own}
        own_mounts = ({"type": each.kind, "source": each.source, "target": each.target} for each in container.mounts)
        mounts = [*own_mounts, *get_objects(service, "volumes")]
        yield _Writer(
            name=container.service or "the dev container",
            image=image,
            of_image=of_image,
            user=(user := find_user(container, service, of_image)),
            texts=[
                one for text in list_lifecycle_texts(root) for one in _list_texts((text,), "", {}, known.folder, known)
            ],
            folder="",
            variables={name: str(value) for name, value in variables.items() if value and "$" not in str(value)},
            groups=get_texts(service, "group_add"),
            binds={},
            places=(*given, *map(_find_place, mounts)),
            new=tuple(_find_place(each) for each in mounts if _is_new(each, known)),
            is_new_user=user.partition(":")[0] in made,
            is_of_editor=True,
        )
