"""Experiments with the container that was made: what it may do, how its program begins, what a mount hides, which variables reach it."""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from devkit.devcontainer.engine import EngineClient
from devkit.devcontainer.variations import find_setting
from devkit.facts.secrets import redact_tokens
from devkit.probe.documents import get_object, get_objects, get_text, get_texts, parse_env
from devkit.probe.project.places import Place, list_instructions, list_settings
from devkit.text import join_words, to_one_line
from devkit.trial.surroundings import LISTENING, parse_sockets

ABSENT = re.compile(r"(?<![\w/.+-])([\w.+-]+): (?:command )?not found|exec: \"([\w.+-]+)\": executable file not found")
_NAMED = re.compile(r"\bcontainer (\S+) (?:exited|is unhealthy)")
_NOT_RUN = re.compile(
    r"not found|no such file|permission denied|exec format|syntax error|bad interpreter|cannot execute", re.IGNORECASE
)
_PATH = re.compile(r"(?<![\w./-])\.{0,2}/?[\w.+-]+(?:/[\w.+-]+)+")
_WRAPPER = re.compile(r"(?:/usr)?(?:/bin/)?(?:ba|da|z)?sh|/sbin/docker-init|-\w*|.*\s.*", re.DOTALL)
"""What starts another program, of the dev container CLI or of an image, and its options."""
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9_]{2,}\b")
_MODULE = re.compile(r"No module named '([\w]+)")
_NEXT_PROGRAM = re.compile(r" (?:&&|\|\|?|;) |; ")
_OF_SHELL = ("cd", "export", "source", "set", "if", "for", "while", "exec", ".", "ulimit", "umask", "trap", "alias")
"""Words that only a shell knows."""
_ABSENT_FILE = re.compile(r"\bno\b|not (?:a |found|exist)|cannot (?:find|open)|empty|missing", re.IGNORECASE)
_UNREACHED = re.compile(
    r"connection refused|name or service not known|name resolution|could not (?:resolve|translate)", re.IGNORECASE
)
_ADDRESS = re.compile(r"(?:(?<=//)|(?<![\w./-]))([a-z][\w-]*)(?::(\d{2,5}))?(?=[/:]|$)")
_SELF = ("localhost", "ip6-localhost")
_REFERENCE = re.compile(r"(?<!\$)\$(\w+)")
"""Without braces, which nobody writes by mistake."""
_LACKS_ARGUMENTS = re.compile(r"\b(?:arguments?|operands?|usage|required|missing|help)\b", re.IGNORECASE)
_ENGINES_DNS = "127.0.0.11"
"""Where Docker answers for the names of services. Source: Docker, "Networking overview", "DNS services"."""
_LOCAL_PORT = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])[: ](\d{2,5})")
_CAPABILITIES = {
    "CHOWN": re.compile(r"chown|changing ownership", re.IGNORECASE),
    "FOWNER": re.compile(r"chmod|changing permissions|utime|setting times", re.IGNORECASE),
    "SETUID": re.compile(r"setuid|setresuid|switch(?:ing)? (?:to )?user|seteuid", re.IGNORECASE),
    "SETGID": re.compile(r"setgid|setgroups|setresgid|initgroups|group IDs?", re.IGNORECASE),
    "NET_RAW": re.compile(r"\bping\b|raw socket", re.IGNORECASE),
    "MKNOD": re.compile(r"mknod", re.IGNORECASE),
    "SYS_CHROOT": re.compile(r"chroot", re.IGNORECASE),
    "KILL": re.compile(r"\bkill\b", re.IGNORECASE),
}
"""Capabilities that root has in containers, and the words of what needs them. Source: capabilities(7)."""
_MANY = 20
_LISTING = '"$1" cp --follow-link "$2:$3" - | tar -tvf - | head -n 2'
_BEGINNING = '"$1" cp --follow-link "$2:$3" - | tar -xOf - | head -c 1024'
_FIRST_LINES = {".py": "#!/usr/bin/env python3", ".sh": "#!/bin/sh", ".bash": "#!/bin/bash"}
_READING_S = 10.0
_MAX_PROGRAMS = 4


class MadeContainer:
    """The container of a failure, running or not: what the engine and its files say of it."""

    def __init__(self, client: EngineClient, said: str) -> None:
        named, state = _NAMED.search(said), client.find()
        name = named[1] if named else state.id if state else ""
        done = client.call("container", "inspect", name) if name else None
        self._client, self._host, self._folder = client, client.host, str(client.container.folder)
        self._found: Mapping[str, Any] = json.loads(done.out)[0] if done and done.code == 0 else {}
        self._config = get_object(self._found, "Config")
        self._mounts = {get_text(each, "Destination"): each for each in get_objects(self._found, "Mounts")}
        self._service = get_text(get_object(self._config, "Labels"), "com.docker.compose.service")
        pairs = (each.partition("=") for each in get_texts(self._config, "Env"))
        self._variables = {name: value for name, _, value in pairs}
        self._read = cache(self._read_beginning)

    def is_older_than(self, file: str) -> bool:
        """Say if a file was changed after the container had ended."""
        ended_at = datetime.fromisoformat(get_text(get_object(self._found, "State"), "FinishedAt"))
        with suppress(OSError):
            return datetime.fromtimestamp(Path(file).stat().st_mtime, UTC) > ended_at
        return False

    def explain(self, words: str) -> Place | None:
        """Return the place to correct, with the reason and what mends it; None where nothing shows that."""
        if not self._found:
            return None
        ways = (
            *(self._explain_memory, self._explain_capability, self._explain_health),
            *(
                self._explain_folder,
                self._explain_program,
                self._explain_module,
                self._explain_owner,
                self._explain_file,
            ),
            *(self._explain_variable, self._explain_neighbor, self._explain_entrypoint),
            lambda _words: self.find_cut_command(),
        )
        return next(filter(None, (each(words) for each in ways)), None)

    def find_setting(self, words: str, command: Sequence[str]) -> Place | None:
        """Return the line of the setting without which the command works; of the container's own program for no command."""
        return find_setting(self._client, self._found, command, words) if self._found else None

    def _explain_memory(self, _words: str) -> Place | None:
        """Explain a program that the kernel killed at the limit of the container's memory."""
        limits = [each for each in self._list_settings() if each.name.rpartition(".")[2] in ("mem_limit", "memory")]
        own = [each for each in limits if each.name.startswith(f"services.{self._service}.")]
        if not get_object(self._found, "State").get("OOMKilled") or not own:
            return None
        above = [each for each in self._list_settings() if each.name == f"services.{self._service}.memswap_limit"]
        remedy = f"raise it{' and memswap_limit' if above else ''}, or use less memory"
        return replace(own[0], note=f"the program needs more memory than {own[0].text}, and was killed", remedy=remedy)

    def _explain_capability(self, words: str) -> Place | None:
        """Explain what root may not do by the capability that the project drops."""
        given = get_object(self._found, "HostConfig")
        dropped, added = (
            {each.removeprefix("CAP_") for each in get_texts(given, key)} for key in ("CapDrop", "CapAdd")
        )
        settings = [each for each in self._list_settings() if each.name == f"services.{self._service}.cap_drop"]
        is_root = get_text(self._config, "User").partition(":")[0] in ("", "root", "0")
        if not (is_root and dropped and settings) or not re.search(
            "not permitted|permission denied", words, re.IGNORECASE
        ):
            return None
        for capability in (name for name, needs in _CAPABILITIES.items() if needs.search(words)):
            if not dropped.isdisjoint((capability, "ALL")) and added.isdisjoint((capability, "ALL")):
                note = f"{to_one_line(words)[:80]}, because cap_drop takes away the capability {capability}"
                return replace(settings[0], note=note, remedy=f"write cap_add: [{capability}] in the service")
        return None

    def _explain_health(self, words: str) -> Place | None:
        """Explain a health check that asks a port on which nothing in the container listens."""
        check = " ".join(get_texts(get_object(self._config, "Healthcheck"), "Test"))
        asked = next(iter(_LOCAL_PORT.findall(check)), "")
        if not asked or not _UNREACHED.search(words):
            return None
        tables = ("sh", "-c", "cat /proc/net/tcp /proc/net/tcp6")
        said = self._client.call("exec", get_text(self._found, "Id"), *tables).out
        ports = sorted({port for address, port in parse_sockets(said, LISTENING) if address != _ENGINES_DNS})
        named = f"services.{self._service}.healthcheck"
        place = next(
            (each for each in self._list_settings() if each.name.startswith(named) and asked in each.text), None
        )
        if place is None or not ports or int(asked) in ports:
            return None
        note = f"the health check asks port {asked}, and the container listens on {join_words(map(str, ports))}"
        return replace(place, note=note, remedy=f"write {ports[0]} in place of {asked}")

    def _explain_folder(self, words: str) -> Place | None:
        """Explain a workspace folder that is a file, or in which the project is not mounted."""
        wanted = str(self._client.container.properties.get("workspaceFolder") or "").rstrip("/")
        real = self._host.link(self._folder) or self._folder
        own = [each for each, mount in self._mounts.items() if f"{real}/".startswith(f"{get_text(mount, 'Source')}/")]
        place = next((each for each in self._list_settings() if each.name == "workspaceFolder"), None)
        for target in (each for each in own if wanted.startswith(f"{each}/")):
            path = posixpath.join(get_text(self._mounts[target], "Source"), posixpath.relpath(wanted, target))
            if place and (found := self._host.stat(path)) and found.kind == "file":
                note = f"workspaceFolder is the file {posixpath.basename(path)}, and no folder"
                return replace(place, note=note, remedy=f"write {posixpath.dirname(wanted)}")
        is_mounted = any(f"{wanted}/".startswith(f"{each}/") for each in own)
        if not wanted or wanted not in words or not own or is_mounted:
            return None
        note = f"workspaceFolder is {wanted}, but the project is mounted at {own[0]}"
        return place and replace(place, note=note, remedy=f"write {own[0]}, or mount the project at {wanted}")

    def _explain_program(self, words: str) -> Place | None:
        """Explain a program that cannot be started by its first line, or by the mount that hides it."""
        if not _NOT_RUN.search(words):
            return None
        started = (get_text(self._found, "Path"), *get_texts(self._found, "Args"))
        own = [each for each in started if not _WRAPPER.fullmatch(each)]
        named = [first or second for first, second in ABSENT.findall(words)]
        if started[0] in _OF_SHELL and (place := self._locate_start()):
            note = f"{started[0]} is a word of the shell, and no shell runs the command"
            # Compose drops what follows `&&` in a text, and takes a list as it is.
            command = place.text if " " in place.text else " ".join(started)
            return replace(place, note=note, remedy=f"write sh -c '{command}'")
        for name in [*dict.fromkeys((*_PATH.findall(words), *own[:1], *named))][:_MAX_PROGRAMS]:
            places = [*self._list_paths(name)]
            path = next((each for each in places if self._read(each) is not None), "")
            if found := self._judge_first_line(path, words) if path else self._judge_mounts(places):
                return found
        return None

    def find_cut_command(self) -> Place | None:
        """Find a command of which Compose started only the first program, which ended well, because no shell reads the rest."""
        place = self._locate_start()
        if place is None or get_object(self._found, "State").get("ExitCode") != 0:
            return None
        if not place.name.endswith((".command", ".entrypoint")) or not _NEXT_PROGRAM.search(place.text):
            return None
        started = " ".join((get_text(self._found, "Path"), *get_texts(self._found, "Args")))
        first = _NEXT_PROGRAM.split(place.text)[0].strip()
        if not started.endswith(first) or _WRAPPER.fullmatch(first.partition(" ")[0]):
            return None
        note = f"no shell reads this command, so that only `{first}` is run"
        return replace(place, note=note, remedy=f"write sh -c {shlex.quote(place.text)}")

    def _explain_module(self, words: str) -> Place | None:
        """Explain a Python module that is in the container where the Python that was started does not look."""
        found, place = _MODULE.search(words), self._locate_start()
        if found is None or place is None or not (paths := self._search(found[1])):
            return None
        name, folder = found[1], posixpath.dirname(paths[0])
        home = folder.partition("/lib/")[0]
        if "-packages" in folder and self._read(f"{home}/pyvenv.cfg") is not None:
            note = f"{name} is installed in the virtual environment {home}, and another Python was started"
            return replace(place, note=note, remedy=f"start {home}/bin/python, or set PATH={home}/bin:$PATH")
        if "-packages" not in folder and any(f"{folder}/".startswith(f"{each}/") for each in self._mounts):
            note = f"{name} is in {folder}, where Python does not look"
            return replace(place, note=note, remedy=f"set PYTHONPATH={folder}, or install the project")
        return None

    def _locate_start(self) -> Place | None:
        """Return the place that says what the container runs."""
        settings = [each for each in self._list_settings() if each.name.startswith(f"services.{self._service}.")]
        own = [each for each in settings if each.name.rpartition(".")[2] in ("command", "entrypoint")]
        texts = [each for each, _ in list_instructions(self._host, self._folder)]
        return next(
            iter((*own, *(each for each in texts[::-1] if each.name in ("CMD", "ENTRYPOINT")), *settings)), None
        )

    def _search(self, module: str) -> list[str]:
        """Search the container's image and mounts for a module, and list its paths, the shortest first."""
        mounts = f"--volumes-from={get_text(self._found, 'Id')}:ro"
        words = (self._client.program, "run", "--rm", "--network=none", "--entrypoint=find", mounts)
        skipped = ("-path", "/proc", "-prune", "-o", "-path", "/sys", "-prune", "-o")
        tests = ("(", "-name", module, "-o", "-name", f"{module}.py", ")", "-print")
        find = (get_text(self._found, "Image"), "/", "-maxdepth", "8", *skipped, *tests)
        return sorted(self._host.run((*words, *find), deadline_s=_READING_S).out.split(), key=len)

    def _explain_owner(self, words: str) -> Place | None:
        """Explain a denied path by the owner of the mount in which it lies."""
        user = get_text(self._config, "User").partition(":")[0]
        if user in ("", "root", "0") or "denied" not in words.lower():
            return None
        able = ((path, target) for path in _PATH.findall(words) for target in self._mounts)
        for target in (target for path, target in able if f"{path}/".startswith(f"{target}/")):
            place = next((each for each in self._list_settings() if target in each.text), None)
            owner = self._describe(target)[1]
            if place is None or owner in ("", user):
                continue
            note = (
                f"{target} belongs to {'root' if owner == '0' else f'the user {owner}'}, and {user} may not write there"
            )
            if get_text(self._mounts[target], "Type") == "bind":
                remedy = f"give {user} the number {owner} in the image, or set user: {owner} for the service"
                return replace(place, note=note, remedy=remedy)
            named = [each for each, _ in list_instructions(self._host, self._folder) if each.name == "USER"]
            remedy = f"write RUN mkdir -p {target} && chown {user} {target} above that line, and remove the volume"
            return replace(next(iter(named[::-1]), place), note=note, remedy=remedy)
        return None

    def _explain_file(self, words: str) -> Place | None:
        """Explain an absent file by the mount that should bring it, or by the place where the image has it."""
        for path in _PATH.findall(words) if _ABSENT_FILE.search(words) else ():
            for target, mount in self._mounts.items():
                if f"{path}/".startswith(f"{target}/") and (found := self._judge_source(target, mount, path)):
                    return found
            name = posixpath.basename(path)
            others = [each for each in self._search(name) if posixpath.basename(posixpath.dirname(each)) != "proc"]
            texts = list_instructions(self._host, self._folder)
            copies = [(each, text.split()[-1].rstrip("/")) for each, text in texts if each.name == "COPY"]
            if found := self._judge_ignored(path, copies):
                return found
            for other in others if path.startswith("/") and "." in name and len(others) < _MANY else ():
                # What COPY takes of a folder is its content.
                place = next(
                    (each for each, to in copies if other == f"{to}/{name}" and path.startswith(f"{to}/")), None
                )
                if place:
                    note = f"{path} is absent, as line {place.line} puts {name} into {posixpath.dirname(other)}"
                    note += ": COPY takes the content of a folder, and not the folder"
                    return replace(place, note=note, remedy=f"copy that folder to {posixpath.dirname(path)}")
        return None

    def _judge_ignored(self, path: str, copies: Sequence[tuple[Place, str]]) -> Place | None:
        """Explain by .dockerignore a file of the project that a folder was copied without."""
        base = get_text(self._config, "WorkingDir") or "/"
        for place, to in copies:
            inner = posixpath.relpath(path, posixpath.join(base, to))
            own = [*filter(None, (each.strip("./") for each in place.text.split()[1:-1]))] or [""]
            names = [posixpath.join(each, inner) for each in own if not inner.startswith("..")]
            patterns = (self._host.read(f"{self._folder}/.dockerignore") or "").splitlines()
            kept = next((each for each in names if self._host.stat(f"{self._folder}/{each}")), "")
            paths = [kept, *(kept.rsplit("/", count)[0] for count in range(1, kept.count("/") + 1))]
            # A pattern of a folder also leaves out what is in it.
            rules = ((at, each.strip().strip("/").removeprefix("**/")) for at, each in enumerate(patterns, 1) if kept)
            for line in (at for at, rule in rules if any(fnmatch(each, rule) for each in paths)):
                note = f"this line leaves {kept} out of the build, so that line {place.line} of {place.file} does not copy it"
                return Place(".dockerignore", ".dockerignore", line, patterns[line - 1], note, f"add !{kept} below")
        return None

    def _judge_source(self, target: str, mount: Mapping[str, Any], path: str) -> Place | None:
        place = next((each for each in self._list_settings() if target in each.text), None)
        inner, source = posixpath.relpath(path, target), get_text(mount, "Source")
        name = get_text(mount, "Name").rpartition("_")[2] or posixpath.basename(source)
        near = [posixpath.join(below, name) for below in ("", *self._host.list(self._folder))]
        able = [each for each in near if self._host.stat(f"{self._folder}/{each}/{inner}")]
        listed = self._list_files(path)
        is_there = len(listed) > 1 or (listed and not listed[0].startswith("d"))
        if place is None or is_there or not able or f"{self._folder}/{able[0]}" == source:
            return None
        wanted = posixpath.relpath(able[0], posixpath.dirname(place.file))
        is_volume = get_text(mount, "Type") == "volume"
        what = f"the volume {name}" if is_volume else source
        note = f"{target} is {what}, which does not have the files of the folder {able[0]}"
        return replace(
            place, note=note, remedy=f"write {wanted if wanted.startswith('.') else f'./{wanted}'} in its place"
        )

    def _explain_neighbor(self, words: str) -> Place | None:
        """Explain a service that is not reached by its name or port."""
        if not _UNREACHED.search(words):
            return None
        settings = [*self._list_settings()]
        for name, value in self._variables.items():
            for host, port in _ADDRESS.findall(value):
                if host in _SELF and port and (found := self._find_listener(name, port)):
                    return found
                own = [each for each in settings if each.name.startswith(f"services.{host}.")]
                profile = next((each for each in own if each.name.endswith(".profiles") and each.text), None)
                if profile and not self._is_running(host):
                    note = f"{name} names {host}, which is only in the profile {profile.text}, which is not active"
                    return replace(profile, note=note, remedy=f"run export COMPOSE_PROFILES={profile.text} first")
                published = [each.text.split(":") for each in own if each.name.endswith(".ports")]
                inside = next(
                    (each[-1].partition("/")[0] for each in published if len(each) > 1 and each[-2] == port), ""
                )
                place = next((each for each in settings if f"{host}:{port}" in each.text), None)
                if place and inside not in ("", port):
                    note = f"{port} is the port of {host} on this machine, and between containers it is {inside}"
                    return replace(place, note=note, remedy=f"write {host}:{inside} in place of {host}:{port}")
        return None

    def _find_listener(self, variable: str, port: str) -> Place | None:
        """Find the other service of the project that has a port which a variable looks for in the container itself."""
        settings = [*self._list_settings()]
        for each in settings:
            _, service, key, *_ = *each.name.split("."), "", "", ""
            is_other = each.name.startswith("services.") and service != self._service
            if is_other and key in ("expose", "ports") and re.search(rf"(?<!\d){port}(?:/tcp)?$", each.text):
                place = next(
                    (one for one in settings if one.name.endswith(f".{variable}") or variable in one.text), None
                )
                note = f"localhost is the container of {self._service}, and port {port} is one of {service}"
                return place and replace(
                    place, note=note, remedy=f"write {service}:{port} in place of localhost:{port}"
                )
        return None

    def _is_running(self, service: str) -> bool:
        project = get_text(get_object(self._config, "Labels"), "com.docker.compose.project")
        labels = {"com.docker.compose.project": project, "com.docker.compose.service": service}
        filters = (f"--filter=label={name}={value}" for name, value in labels.items())
        return bool(self._client.call("ps", "--quiet", *filters).out.strip())

    def _explain_entrypoint(self, words: str) -> Place | None:
        """Explain arguments that are missing because an entrypoint of Compose drops the image's command."""
        if not _LACKS_ARGUMENTS.search(words):
            return None
        place = next(
            (each for each in self._list_settings() if each.name == f"services.{self._service}.entrypoint"), None
        )
        done = self._client.call("image", "inspect", get_text(self._found, "Image")) if place else None
        if place is None or done is None or done.code != 0 or get_texts(self._config, "Cmd"):
            return None
        dropped = get_texts(get_object(json.loads(done.out)[0], "Config"), "Cmd")
        note = f"an entrypoint in Compose drops the command of the image, {json.dumps(dropped)}"
        return replace(place, note=note, remedy=f"write command: {json.dumps(dropped)} below it") if dropped else None

    def _describe(self, path: str) -> tuple[str, str]:
        """Return the mode and the owner of a file or folder in the container, as ls shows them."""
        mode, owner, *_ = [*" ".join(self._list_files(path)[:1]).split(), "", ""]
        return mode, owner.partition("/")[0]

    def _list_files(self, path: str) -> list[str]:
        """List a file, or a folder and the first file in it; nothing where the container does not have it."""
        words = ("sh", "-c", _LISTING, "sh", self._client.program, get_text(self._found, "Id"), path)
        return self._host.run(words, deadline_s=_READING_S).out.splitlines()

    def _list_paths(self, name: str) -> Iterator[str]:
        """Yield where the container looks for a program."""
        base = get_text(self._config, "WorkingDir") or "/"
        folders = [base] if "/" in name else self._variables.get("PATH", "").split(":")
        yield from (posixpath.normpath(posixpath.join(each, name)) for each in folders)

    def _read_beginning(self, path: str) -> str | None:
        """Return how a file begins; None where the container does not have it."""
        words = ("sh", "-c", _BEGINNING, "sh", self._client.program, get_text(self._found, "Id"), path)
        done = self._host.run(words, deadline_s=_READING_S)
        return done.out if done.out or not done.err.strip() else None

    def _judge_first_line(self, path: str, words: str) -> Place | None:
        begins = self._read(path) or ""
        file, bringer = self._find_source(path)
        if not begins.startswith("#!"):
            # The kernel and shells have other words for it.
            is_able = file and "no such file" not in words.lower()
            first = _FIRST_LINES.get(posixpath.splitext(file.file)[1]) if file and is_able else None
            note = f"{path} has no #! line, which names the program that runs it"
            return (file and first and replace(file, note=note, remedy=f"write {first} as the first line")) or None
        line = begins.partition("\n")[0]
        interpreter, _, argument = line[2:].strip().partition(" ")
        wanted = argument.split()[-1] if interpreter.endswith("/env") and argument else interpreter
        if line.endswith("\r") and file:
            note = f"the first line of {path} ends with a carriage return, which Linux takes for a part of the name"
            return replace(file, note=note, remedy=f"save it with Unix line ends, as by sed -i 's/\\r$//' {file.file}")
        if not wanted or any(self._read(each) is not None for each in self._list_paths(wanted)):
            return self._judge_mode(path, file, bringer)
        note = f"{path} is run by {wanted}, which the container does not have"
        home, made = (posixpath.dirname(posixpath.dirname(each)) for each in (path, wanted))
        if self._read(f"{home}/pyvenv.cfg") is not None:
            texts = list_instructions(self._host, self._folder)
            bringer = next((each for each, text in texts if made in text and home in text), bringer)
            note += f": a virtual environment keeps the path {made} at which it was made"
            return bringer and replace(bringer, note=note, remedy=f"make the environment at {home} in the first place")
        return file and replace(file, note=note, remedy="name a program that the container has in the first line")

    def _judge_mode(self, path: str, file: Place | None, bringer: Place | None) -> Place | None:
        mode, _ = self._describe(path)
        if file is None or "x" in mode or not mode.startswith("-"):
            return None
        remedy = f"write {bringer.name} --chmod=755" if bringer else f"run chmod +x {file.file}"
        return replace(bringer or file, note=f"{path} is not executable", remedy=remedy)

    def _find_source(self, path: str) -> tuple[Place | None, Place | None]:
        """Return the first line of the project's file that a program is, and the instruction that copies it there."""
        for target, mount in self._mounts.items():
            file = posixpath.join(get_text(mount, "Source"), posixpath.relpath(path, target))
            own = posixpath.relpath(file, self._host.link(self._folder) or self._folder)
            if path.startswith(f"{target}/") and not own.startswith("..") and self._host.stat(file):
                return Place("file", own, 1), None
        for place, text in list_instructions(self._host, self._folder):
            *sources, target = text.splitlines()[-1].split() or [""]
            is_copy = place.name in ("COPY", "ADD") and "--from" not in text and target.strip("./") in path
            # What is copied into a folder keeps its name, or the names below it.
            inner = path.rpartition(target.strip("./"))[2] if target.strip("./") else posixpath.basename(path)
            for source in sources if is_copy else ():
                below = "" if inner.strip("/") == posixpath.basename(source) else inner.strip("/")
                for base in ("", posixpath.dirname(place.file)):
                    file = posixpath.normpath(posixpath.join(base, source, below))
                    if (found := self._host.stat(f"{self._folder}/{file}")) and found.kind == "file":
                        return Place("file", file, 1), place
        return None, None

    def _judge_mounts(self, paths: list[str]) -> Place | None:
        """Explain by a mount a file that the image has and the container does not."""
        for target in self._mounts:
            for path in (each for each in paths if each.startswith(f"{target}/")):
                words = ("--rm", "--network=none", "--entrypoint=/bin/sh", get_text(self._found, "Image"))
                if self._client.call("run", *words, "-c", 'test -e "$0"', path).code == 0:
                    place = next((each for each in self._list_settings() if target in each.text), None)
                    kept = posixpath.join(target, posixpath.relpath(path, target).split("/")[0])
                    note = f"the image has {path}, but the mount at {target} hides it"
                    remedy = (
                        f"mount a volume at {kept}, which takes over what the image has there, or install it elsewhere"
                    )
                    return place and replace(place, note=note, remedy=remedy)
        return None

    def _explain_variable(self, words: str) -> Place | None:
        """Explain a variable that a file of the project sets and that does not reach the container as it is written."""
        for name in dict.fromkeys(_VARIABLE.findall(words)):
            for place, value in self._list_written(name):
                given = self._variables.get(name)
                if given is None and self._service:
                    return self._explain_absent(name, place)
                if given is not None and given != value and self._is_text(value):
                    note = f"Compose takes what follows $ in the value of {name} for a variable"
                    return replace(place, note=note, remedy="put the value into single quotes")
                if given is not None and given != value and given == self._host.env.get(name):
                    note = f"{name} has another value in this shell, and that one counts"
                    return replace(place, note=note, remedy=f"run unset {name} first")
            if name not in self._variables and (elsewhere := self._find_elsewhere(name) or self._find_exported(name)):
                return elsewhere
            if name not in self._variables and (similar := self._find_similar(name)):
                return similar
        told = ((name, value) for name, value in self._variables.items() if len(value) > 2 and value in words)
        return next(filter(None, (self._find_overruled(*each) for each in told)), None)

    def _find_similar(self, name: str) -> Place | None:
        """Find the line that sets a variable of nearly this name."""
        near = get_close_matches(name, self._variables, 1, 0.7)
        settings = (each for each in self._list_settings() if near and re.search(r"env", each.name, re.IGNORECASE))
        for each in settings:
            if each.name.endswith(f".{near[0]}") or each.text.startswith(f"{near[0]}="):
                note = f"{name} is not set, and this line sets {near[0]}"
                return replace(each, note=note, remedy=f"write {name} in place of {near[0]}, or the other way round")
        return None

    def _find_overruled(self, name: str, given: str) -> Place | None:
        """Find the setting that gives a variable its value in place of an environment file of the service."""
        own = next((each for each in self._list_settings() if self._sets(each, name)), None)
        files = (place for place, value in self._list_written(name) if value != given)
        file = next((each for each in files if posixpath.basename(each.file) != ".env"), None)
        if own is None or file is None:
            return None
        note = f"{name} is {given} by this line, which counts before line {file.line} of {file.file}"
        return replace(own, note=note, remedy=f"remove {name} here, or set it in the .env file that Compose reads")

    def _sets(self, place: Place, name: str) -> bool:
        """Say if a line is one of the environment of the container's service, for a variable."""
        is_own = place.name.startswith(f"services.{self._service}.environment")
        return is_own and (place.name.endswith(f".{name}") or place.text.startswith(f"{name}="))

    def _is_text(self, value: str) -> bool:
        """Return True for a value with a dollar sign before a name that nothing sets, so that it is hardly a variable."""
        names = _REFERENCE.findall(value)
        return any(not self._host.env.get(each) and not any(self._list_written(each)) for each in names)

    def _find_elsewhere(self, name: str) -> Place | None:
        """Find a variable that the Compose file sets for others than the container's service."""
        service = self._service
        settings = [each for each in self._list_settings() if ".environment" in each.name]
        own = [each for each in settings if each.name.startswith(f"services.{service}.environment")]
        other = next(
            (each for each in settings if each.name.endswith(f".{name}") or each.text.startswith(f"{name}=")), None
        )
        if other is None or not service or other.name.startswith(f"services.{service}."):
            return None
        owner = other.name.partition(".environment")[0].removeprefix("services.")
        note = f"{name} is set for {owner} in line {other.line}, and {service} does not get it"
        note += ", because its own environment replaces that one" if own and owner.startswith("x-") else ""
        return replace((own or [other])[0], note=note, remedy=f"write {name} in the environment of {service}, too")

    def _find_exported(self, name: str) -> Place | None:
        """Find a step of the image that exports a variable, which ends with the step."""
        exported = re.compile(rf"\bexport {name}=([^\s;&|]+)")
        for place, text in list_instructions(self._host, self._folder):
            if place.name == "RUN" and (found := exported.search(text)):
                note = f"line {place.line} exports {name} for that step alone"
                return replace(place, note=note, remedy=redact_tokens(f"write ENV {name}={found[1]} in its place"))
        return None

    def _explain_absent(self, name: str, place: Place) -> Place | None:
        settings = [*self._list_settings()]
        if any(each.name == f"remoteEnv.{name}" for each in settings):
            return None
        own = next((each for each in settings if each.name.startswith(f"services.{self._service}.")), None)
        is_of_compose = posixpath.basename(place.file) == ".env"
        whose = "Compose reads for its own files only" if is_of_compose else f"{self._service} does not read"
        note = f"{name} is set in {place.file}, which {whose}"
        path = own and posixpath.relpath(place.file, posixpath.dirname(own.file))
        return own and replace(
            own, name=f"services.{self._service}", text="", note=note, remedy=f"write env_file: {path} in the service"
        )

    def _list_written(self, name: str) -> Iterator[tuple[Place, str]]:
        """Yield the lines of the project's environment files that set a variable, and the value without quotes."""
        named = [each for each in self._list_settings() if "env_file" in each.name]
        near = {posixpath.dirname(each.file) for each in self._list_settings()}
        paths = [posixpath.join(base, each.text) for each in named for base in ("", posixpath.dirname(each.file))]
        paths += [posixpath.join(each, ".env") for each in near]
        for path in dict.fromkeys(each for each in map(posixpath.normpath, paths) if not each.startswith(("..", "/"))):
            lines = (self._host.read(f"{self._folder}/{path}") or "").splitlines()
            for number, line in enumerate(lines, 1):
                if (found := parse_env(line)) and name in found:
                    yield Place(name, path, number), found[name]

    def _list_settings(self) -> Iterator[Place]:
        yield from list_settings(self._host, self._folder)
