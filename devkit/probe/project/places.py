"""The line of a setting in the project's files, by its path of keys or its value: the one way in which a fix finds its place."""

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from devkit.probe.documents import ABSENT, DocumentNode, InvalidDocument, parse_env, parse_jsonc_tree, parse_yaml_tree
from devkit.probe.host import Host
from devkit.probe.project.files import MAX_BYTES
from devkit.probe.project.scopes import judge_list, list_scoped
from devkit.probe.project.sources import find_base, find_context, judge_sources

_FOLDERS = ("", ".devcontainer")
_FILE = re.compile(r"[\w.-]+\.ya?ml|\.?devcontainer\.json")
_BUILD_FILE = re.compile(r"(?:[\w.-]+\.)?(?:Docker|Container)file(?:[.-][\w.-]+)?", re.IGNORECASE)
_SCRIPT = re.compile(r"[\w.-]+\.(?:ba|z)?sh|Makefile")
_MAX_FILES = 30
_MAX_NAMES = 300
"""Values that may be the path of a further file."""
_PATH = re.compile(r"\b(?:services|networks|volumes|configs|secrets)(?:\.[\w-]+|\[[\w-]+\])+")
"""A setting in the words of Compose: `services.app.privileged`, `services[app].stop_grace_period`."""
_QUOTED = re.compile(r"[\"']([\w.-]+)[\"']")
_VALUE = re.compile(r"\"([^\"\n]{2,200})\"|'([^'\n]{2,200})'|`([^`\n]{2,200})`|((?<![\w/.-])[\w/.$@{}:+-]{3,200})")
_TELLING = re.compile(r"[/$\d_-]|\w\.\w")
"""What a word without quotes has that is a value: those of a sentence have none of it."""
_SHORTEST_FOLDER = 4
_MAX_PLACES = 3
_COMMAND = re.compile(r"^\w+Command(?=\.|$)|(?<=\.)(?:command|entrypoint|healthcheck\.test)$")
_OF_EDITORS = re.compile(r"(?:\$\{(?:localEnv|env):\w+(?::[^}]*)?\})+")
"""Variables side by side are alternatives: HOME has a value on one system, USERPROFILE on the other."""
_OF_COMPOSE = re.compile(r"(?<!\$)(?:\$\$)*\$(?:(\w+)|\{(\w+)\})")
"""Without a default; two dollars are one of the text. Source: Compose specification, "Interpolation"."""
_SUGGESTION = re.compile(r"((?:[^:\n]+: )?[^:\n]+) \(did you mean ([^()?]+)\?\)")
"""Of Go's programs, where a name is nearly one that they know."""
_UNDEFINED = re.compile(r"depends on undefined service \"?([\w.-]+)")
OF_BUILD = re.compile(r"^\s*(\d+) \| >>> +(.*?)\s*$", re.MULTILINE)
"""The line at which BuildKit stopped. Source: moby/buildkit, solver/errdefs/source.go."""


@dataclass(frozen=True)
class Place:
    """A setting or an instruction in a file. `note` is what is wrong with it as it stands, `remedy` what mends that."""

    name: str
    file: str
    line: int
    text: str = ""
    note: str = ""
    remedy: str = ""
    entries: tuple[str, ...] = ()
    """The texts of the list that it is the first entry of."""

    def __str__(self) -> str:
        return f"{self.name} in {self.file}:{self.line}{f' ({self.note}: {self.remedy})' if self.note else ''}"


def locate_setting(host: Host, folder: str, keys: Sequence[str], value: str = "") -> Place | None:
    """Return the place of a setting in the project in `folder`: of the deepest key of its path that a file has.

    The short form of a list has no keys, so that below the last one the `value` counts. None where no file has the first two keys.
    """
    found = [_descend(root, keys, posixpath.basename(value)) for root in _read_documents(host, folder)]
    # A file that overrides others comes after them.
    depth, _, node = max(reversed(found), key=lambda each: each[:2], default=(0, 0, ABSENT))
    return (
        _note(host, folder, Place(".".join(keys), node.file, node.line, node.text))
        if depth >= min(2, len(keys))
        else None
    )


def locate_words(
    host: Host, folder: str, words: str, find_known: Callable[[], Collection[str]] = tuple
) -> tuple[str, ...]:
    """Return the setting that Compose's words name, as "key in file:line", and where their other values stand.

    `find_known` tells the keys that this Compose knows.
    """
    if profile := note_profile(host, folder, words):
        return (str(profile),)
    named, quoted = _PATH.search(words), _QUOTED.findall(words)
    keys = [*re.findall(r"[\w-]+", named[0]), *quoted[-1:]] if named else ["services", *quoted[:1]]
    place = locate_setting(host, folder, keys, "" if named else quoted[-1]) if named or quoted else None
    known = find_known() if place and named and quoted else ()
    if place and known and quoted[-1] not in known and (near := get_close_matches(quoted[-1], known, 1)):
        place = replace(
            place, note=f"Compose does not know {quoted[-1]}", remedy=f"write {near[0]} in place of {quoted[-1]}"
        )
    others = locate_values(host, folder, f'"{quoted[-1]}"') if quoted[1:] and not named else ()
    return tuple(map(str, drop_repeated((place, *others)))) if place else ()


def drop_repeated(places: Iterable[Place]) -> tuple[Place, ...]:
    """Return the places without those in a line that one before is in."""
    found: dict[tuple[str, int], Place] = {}
    for each in places:
        found.setdefault((each.file, each.line), each)
    return tuple(found.values())


def locate_excerpt(host: Host, folder: str, words: str) -> Place | None:
    """Return the instruction at which BuildKit says that it stopped; tools that add lines to a Dockerfile keep the others."""
    found = OF_BUILD.search(words)
    text = found[2].rstrip("\\ ") if found else ""
    number = int(found[1]) if found else 0
    places = [each for each, _ in list_instructions(host, folder) if text and each.text.startswith(text)]
    for path, content in _read_files(host, folder).items() if text.startswith("#") else ():
        # The line of the syntax is that of an image, which BuildKit pulls.
        if content.splitlines()[number - 1 : number] == [text]:
            places.append(Place(text.strip("# ").partition("=")[0], path, number, text))
    return min(places, key=lambda each: abs(each.line - number), default=None)


def note_profile(host: Host, folder: str, words: str) -> Place | None:
    """Return the place of the profile without which Compose does not know a service that another one needs."""
    found = _UNDEFINED.search(words)
    name = f"services.{found[1]}.profiles" if found else ""
    for each in list_settings(host, folder) if found else ():
        if each.name == name and each.text:
            note = f"{found[1]} is only in the profile {each.text}, which is not active" if found else ""
            remedy = f"run export COMPOSE_PROFILES={each.text} first, or write required: false where it is needed"
            return replace(each, note=note, remedy=remedy)
    return None


def note_list(host: Host, folder: str, key: str = "") -> Place | None:
    """Return the place of a command, of this key or of any, whose list has words that only a shell reads."""
    for each in list_settings(host, folder):
        found = _COMMAND.search(each.name)
        noted = _note_entries(each) if found and (not key or found[0] == key) else each
        if noted.note:
            return noted
    return None


def _note_entries(place: Place) -> Place:
    """Note a command whose list has words that only a shell reads."""
    found = _COMMAND.search(place.name)
    note, remedy = judge_list(place.entries, f"the list of {found[0]}") if found else ("", "")
    return replace(place, note=note, remedy=remedy)


def list_noted(host: Host, folder: str) -> Iterator[Place]:
    """Yield what cannot work as it is written, whatever the machine: instructions of builds, lists of commands, and mounts."""
    roots = [*_read_documents(host, folder)]
    for place, _ in list_instructions(host, folder):
        # A program may read a dollar sign itself, and a command on this machine may make the file that is copied.
        is_sure = place.name not in ("ADD", "CMD", "COPY", "ENTRYPOINT", "HEALTHCHECK")
        if place.note and is_sure and find_context(roots, place.file):
            yield place
    yield from filter(None, (note_list(host, folder),))
    for place in list_settings(host, folder):
        source, base = place.text.partition(":")[0], posixpath.dirname(find_base(roots, place.file))
        path, other = (posixpath.normpath(posixpath.join(each, source)) for each in (base, ""))
        is_mount = place.name.endswith((".volumes", ".volumes.source")) and source.startswith(".") and path != other
        # Else it may be a folder for results, which the engine makes.
        if is_mount and host.stat(f"{folder}/{path}") is None and host.stat(f"{folder}/{other}") is not None:
            wanted = posixpath.relpath(other, base)
            yield replace(
                place, note=f"{path} does not exist, but {other} does", remedy=f"write {wanted} in place of {source}"
            )


def take_suggestion(place: Place, words: str) -> Place:
    """Return the place with what a program itself suggests to write there."""
    found = _SUGGESTION.search(words)
    if found is None or place.note:
        return place
    note = found[1].strip().replace(":", "")
    return replace(place, note=note, remedy=f"write {found[2]} in place of {note.split()[-1]}")


def locate_variable(host: Host, folder: str, name: str) -> tuple[Place, ...]:
    """Return the places in which the project's files set a variable of its containers."""
    settings = list_settings(host, folder)
    return tuple(each for each in settings if name in (each.name.rpartition(".")[2], each.text.partition("=")[0]))


def locate_values(host: Host, folder: str, words: str, *, apart_from: Iterable[Place] = ()) -> tuple[Place, ...]:
    """Return the places of what a program's words repeat of the project's files: with a note first, then the longest.

    Of a path that no file of the project has, the folders above count if it is nowhere; what stands in a known line is left
    out.
    """
    known = {(each.file, each.line) for each in apart_from}
    values = [[*_list_values(each)] for each in _VALUE.finditer(words)]
    values = [each[:1] if each and _is_own(host, folder, each[0]) else each for each in values]
    groups = [[re.compile(rf"(?<![\w/.-]){re.escape(value)}(?![\w-]|/\w)") for value in each] for each in values]
    texts = [(place, text, place.name) for place, text in list_instructions(host, folder)]
    texts += [(each, each.text, each.name) for each in list_settings(host, folder)] if any(groups) else []
    texts = [each for each in texts if (each[0].file, each[0].line) not in known]
    able: dict[Place, int] = {}
    for group in groups:
        for pattern in group:
            found = [
                place for place, text, key in texts if pattern.fullmatch(key.rpartition(".")[2]) or pattern.search(text)
            ]
            able |= {each: len(pattern.pattern) for each in found}
            if found:
                break  # A part of a value says less than the whole.
    noted = [_note(host, folder, each) for each in sorted(able, key=lambda each: -able[each])]
    return tuple(sorted(noted, key=lambda each: not each.note))[:_MAX_PLACES]


def _is_own(host: Host, folder: str, path: str) -> bool:
    """Return True if the path of a container ends with that of a file in the project's folder, which it may be."""
    parts = path.strip("/").split("/")
    return any(host.stat(posixpath.join(folder, *parts[at:])) is not None for at in range(1, len(parts)))


def _list_values(found: re.Match[str]) -> Iterator[str]:
    value = (found[1] or found[2] or found[3] or found[4]).strip("./:")
    value = f"/{value}" if found[0].strip("\"'`").startswith("/") else value
    if found[4] is None or _TELLING.search(value):
        yield value
        if value.count("/") > 1:
            yield value.lstrip("/")  # BuildKit calls the context's folder "/".
        while (
            value.count("/") > 1
            and value.startswith("/")
            and len(value := posixpath.dirname(value)) >= _SHORTEST_FOLDER
        ):
            yield value


def _read_documents(host: Host, folder: str) -> Iterator[DocumentNode]:
    """Yield the Compose files and those of dev containers that lie in the project, the overriding ones last."""
    for path, text in _read_files(host, folder).items():
        parse = parse_jsonc_tree if path.endswith(".json") else parse_yaml_tree
        try:
            if _FILE.fullmatch(posixpath.basename(path)):
                yield parse(text, file=path)
        except InvalidDocument:
            continue  # what is wrong with it, another check says


def _read_files(host: Host, folder: str) -> dict[str, str]:
    """Read the files that say how the project's containers are made, and those that these name, by their paths in it."""
    paths = [posixpath.join(below, name) for below in _FOLDERS for name in host.list(posixpath.join(folder, below))]
    able = sorted(path for path in paths if _is_read(path) and not _SCRIPT.fullmatch(posixpath.basename(path)))
    waiting, texts = sorted(able, key=lambda each: "override" in each), dict[str, str]()
    while waiting and len(texts) < _MAX_FILES:
        path = waiting.pop(0)
        found = host.stat(f"{folder}/{path}")
        if path in texts or found is None or found.kind != "file" or found.size > MAX_BYTES:
            continue
        texts[path] = host.read(f"{folder}/{path}") or ""
        named = re.findall(r"[\w./-]+", texts[path])[:_MAX_NAMES]
        named += ["Makefile"] if "make" in named else []
        for name in dict.fromkeys(named):
            near = [posixpath.normpath(posixpath.join(where, name)) for where in (posixpath.dirname(path), "")]
            near += [posixpath.normpath(posixpath.join(each, "Dockerfile")) for each in near]
            waiting += [each for each in near if _is_read(each) and not each.startswith(("/", ".."))]
    return texts


def _is_read(path: str) -> bool:
    name = posixpath.basename(path)
    return bool(_FILE.fullmatch(name) or _BUILD_FILE.fullmatch(name) or _SCRIPT.fullmatch(name))


def _descend(node: DocumentNode, keys: Sequence[str], value: str) -> tuple[int, int, DocumentNode]:
    """Return how many keys are there, how many steps lead from the last of them to the value, and where they end."""
    depth = 0
    for key in keys:
        if key not in node.fields:
            break
        node, depth = node.fields[key], depth + 1
    path = _search(node, value, set()) if value else ()
    return depth, len(path), path[-1] if path else node


def _search(node: DocumentNode, value: str, seen: set[int]) -> tuple[DocumentNode, ...]:
    """Return the nodes from this one to the first that has the value; empty for none. Anchors are followed once."""
    if id(node) in seen:
        return ()
    seen.add(id(node))
    if value in node.text:
        return (node,)
    below = (_search(each, value, seen) for each in (*node.fields.values(), *node.items))
    return next(((node, *path) for path in below if path), ())


def list_settings(host: Host, folder: str) -> Iterator[Place]:
    """Yield each setting of the Compose files and of devcontainer.json by its path of keys, without a note."""
    for root in _read_documents(host, folder):
        waiting, seen = list[tuple[str, DocumentNode, tuple[str, ...]]]([("", root, ())]), set[int]()
        while waiting:
            key, node, entries = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            waiting += [(f"{key}.{name}".lstrip("."), each, ()) for name, each in node.fields.items()]
            texts = tuple(each.text for each in node.items)
            waiting += [(key, each, () if at else texts) for at, each in enumerate(node.items)]
            if key:
                yield Place(key, node.file, node.line, node.text, entries=entries)


def _note(host: Host, folder: str, place: Place) -> Place:
    """Note the first variable of a setting that has no value here, or a list that needs a shell."""
    if (listed := _note_entries(place)).note:
        return listed
    if place.file.endswith(".json"):
        for run in _OF_EDITORS.finditer(place.text):
            names = re.findall(r":(\w+)(?::([^}]*))?\}", run[0])
            if not any(host.env.get(name) or default for name, default in names):
                name = names[0][0]
                remedy = f"export {name}, or write a default, as in ${{localEnv:{name}:VALUE}}"
                return replace(place, note=f"{name} is not set", remedy=remedy)
    elif _FILE.fullmatch(posixpath.basename(place.file)):
        if place.name.endswith(".build.target") and "$" not in place.text:
            return _note_stage(host, folder, place)
        env = {**parse_env(host.read(f"{folder}/.env") or ""), **host.env}
        for name in (each[0] or each[1] for each in _OF_COMPOSE.findall(place.text)):
            if not env.get(name):
                return replace(place, note=f"{name} is not set", remedy=f"set {name} in .env, or write a default")
    return place


def _note_stage(host: Host, folder: str, place: Place) -> Place:
    """Note a stage to build that no Dockerfile of the project defines."""
    froms = [text.split() for each, text in list_instructions(host, folder) if each.name == "FROM"]
    stages = [words[-1] for words in froms if len(words) > 2]
    if not froms or place.text.lower() in map(str.lower, stages):
        return place
    near = get_close_matches(place.text, stages, 1, 0.5)
    remedy = (
        f"write {near[0]} in place of {place.text}"
        if near
        else f"write one of {', '.join(stages)}"
        if stages
        else "remove it"
    )
    return replace(place, note=f"no stage is called {place.text}", remedy=remedy)


def list_instructions(host: Host, folder: str) -> Iterator[tuple[Place, str]]:
    """Yield each instruction of the Dockerfiles and scripts with its text, as it is written and as it is filled in."""
    for path, content in _read_files(host, folder).items():
        if _BUILD_FILE.fullmatch(posixpath.basename(path)):
            lines, scoped = content.removeprefix("\ufeff").splitlines(), [*list_scoped(content)]
            context = find_context(_read_documents(host, folder), path)
            froms = [each for each in scoped if each.instruction.keyword == "FROM"]
            named = ((each.filled.lower().split(), each.instruction.line) for each in froms)
            stages = {words[-1] if "as" in words[1:-1] else f"line {line}": line for words, line in named}
            for each in scoped:
                made, judged = each.instruction, (each.note, each.remedy)
                judged = judged if each.note else judge_sources(host, folder, context, made, each.filled, stages)
                yield (
                    Place(made.keyword, path, made.line, lines[made.line - 1].strip(), *judged),
                    f"{made.text}\n{each.filled}",
                )
        elif _SCRIPT.fullmatch(posixpath.basename(path)):
            for number, line in enumerate(map(str.strip, content.splitlines()), 1):
                if line and not line.startswith("#"):
                    yield Place("command", path, number, line), line
