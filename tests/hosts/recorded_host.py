"""A machine recorded in a file, for tests of hardware that is not here."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from devkit.probe.children.protocol import CHILDREN_FOLDER
from devkit.probe.engine.program_trials import PLUGIN_QUESTION, PLUGINS, PROGRAMS
from devkit.probe.host import CALL_DEADLINE_S, NOT_FOUND, ProgramResult, Stat

MACHINE_TABLES = ("env", "files", "links", "nodes", "free_bytes", "free_files")
MAX_LINKS = 40


class RecordedHost:
    """A machine described by `machine.toml` in `directory`, or by `variants.toml` beside it. Implements `Host`.

    `PARENT/variants.toml` has a table for each machine that differs from the one called PARENT, or from the one that
    its `extends` names; a `machine.toml` names a parent in `extends`, too.
    Everything is in these files, because device nodes, links and names like 0000:01:00.0 do not survive
    every checkout. Their keys:

    - `project`: the workspace's absolute path;
    - `python`: the interpreter that devkit runs in; commands write `{python}` for it, `{devkit}` for `devkit/probe`;
    - `[env]`, `[files]` (path to text), `[links]` (path to target), `[free_bytes]` (path to bytes);
    - `[free_files]`: path to the number of free inodes, where it matters;
    - `[nodes]`: path to `kind`, `mode`, `uid`, `gid`, `device` ("195:0"), and `open`, the errno name with which opening it fails;
    - `writable`: folders where the user may create files; `unreadable`: files that may not be read;
    - `remove`: paths of the extended machine that do not exist here, with all below;
    - `[[command]]`: `argv`, `code`, `out`, `err`. What is not recorded is "no such program". Before its words, "-NAME"
      stands for each variable, by name, without which the command then answers so.

    Raises: OSError and tomllib.TOMLDecodeError when there is no such machine.
    """

    def __init__(self, directory: Path, *, unreadable: Sequence[str] = ()) -> None:
        machine = _load(directory)
        self.project: str = machine.get("project", "/")
        self._python: str = machine.get("python", "/usr/bin/python3")
        self._writable: list[str] = machine.get("writable", [])
        self._unreadable: list[str] = [*machine.get("unreadable", []), *unreadable]
        self._env: dict[str, str] = machine["env"]
        self._files: dict[str, str] = machine["files"]
        self._links: dict[str, str] = machine["links"]
        self._nodes: dict[str, dict[str, Any]] = machine["nodes"]
        self._free_bytes: dict[str, int] = machine["free_bytes"]
        self._free_files: dict[str, int] = machine["free_files"]
        self._commands: dict[tuple[str, ...], dict[str, Any]] = machine["commands"]
        self._folders = {
            "/".join(path.split("/")[:depth]) or "/"
            for path in (*self._files, *self._links, *self._nodes)
            for depth in range(1, path.count("/") + 1)
        }

    def run(
        self, argv: Sequence[str], *, deadline_s: float = CALL_DEADLINE_S, without: Collection[str] = ()
    ) -> ProgramResult:
        """Return what the recording says that this command printed; nothing takes time here."""
        shown = tuple(self._shown(word) for word in argv)
        unset = tuple(sorted(name for name in without if name in self._env))
        recorded = self._commands.get((*(f"-{name}" for name in unset), *shown)) or self._commands.get(shown)
        is_asked = argv[-1] in ("--version", PLUGIN_QUESTION) and argv[0].rpartition("/")[2] in (*PROGRAMS, *PLUGINS)
        if recorded is None and is_asked and self.stat(argv[0]) is not None:
            return ProgramResult(0, "", "")  # it is there, and nothing is known of what it prints
        if recorded is None:
            return ProgramResult(NOT_FOUND, "", f"no such program: {argv[0]}")
        return ProgramResult(recorded.get("code", 0), recorded.get("out", ""), recorded.get("err", ""))

    def read(self, path: str) -> str | None:
        """Read the text of a file, or None when it cannot be read."""
        real = self._resolved(path)
        return None if path in self._unreadable else self._files.get(real)

    def list(self, path: str) -> tuple[str, ...]:
        """List sorted names in a directory, empty when there is none."""
        inside = self._resolved(path).rstrip("/") + "/"
        known = (*self._files, *self._links, *self._nodes)
        return tuple(sorted({entry.removeprefix(inside).split("/")[0] for entry in known if entry.startswith(inside)}))

    def stat(self, path: str) -> Stat | None:
        """Return the path's kind and owner, following links; None when it does not exist."""
        real = self._resolved(path)
        node = self._nodes.get(real, {})
        if real in self._files:
            kind, mode = "file", 0o644
        elif real in self._folders or node:
            kind, mode = "directory", 0o755
        else:
            return None
        return Stat(
            kind=node.get("kind", kind),
            mode=node.get("mode", mode),
            uid=node.get("uid", 0),
            gid=node.get("gid", 0),
            size=len(self._files.get(real, "")),
            device=node.get("device", ""),
        )

    def link(self, path: str) -> str | None:
        """Return the absolute path that `path` resolves to through symbolic links; None when it does not exist."""
        return self._resolved(path) if self.stat(path) is not None else None

    def open_error(self, path: str) -> str:
        """Return how opening `path` for reading and writing ends: "open", or the errno name."""
        if self.stat(path) is None:
            return "ENOENT"
        outcome: str = self._nodes.get(self._resolved(path), {}).get("open", "open")
        return outcome

    def is_writable(self, path: str) -> bool:
        """Return whether this user may create files in the directory `path`."""
        real = self._resolved(path)
        return self.stat(path) is not None and any(f"{real}/".startswith(f"{folder}/") for folder in self._writable)

    def is_withheld(self, path: str) -> bool:
        """Return whether opening the device ends as the device rules of a control group end it."""
        return self._nodes.get(self._resolved(path), {}).get("open") == "EPERM"

    def free_bytes(self, path: str) -> int | None:
        """Return space left on the file system of `path`, by the longest recorded folder above it."""
        return self._nearest(self._free_bytes, path)

    def free_files(self, path: str) -> int | None:
        """Return free inodes on the file system of `path`, by the longest recorded folder above it."""
        return self._nearest(self._free_files, path)

    def _nearest(self, counts: dict[str, int], path: str) -> int | None:
        real = self._resolved(path)
        above = [folder for folder in counts if f"{real}/".startswith(folder.rstrip("/") + "/")]
        return counts[max(above, key=len)] if above else None

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables of the recorded process."""
        return self._env

    @property
    def python(self) -> str:
        """The Python interpreter of the recorded machine."""
        return self._python

    def _shown(self, word: str) -> str:
        return "{python}" if word == self._python else word.replace(f"{CHILDREN_FOLDER}", "{devkit}").replace("\\", "/")

    def _resolved(self, path: str) -> str:
        path = path.replace("\\", "/")
        for _ in range(MAX_LINKS):
            above = next((link for link in self._links if f"{path}/".startswith(f"{link}/")), None)
            if above is None:
                return path
            path = self._links[above] + path.removeprefix(above)
        return path


@cache
def read_variants(folder: Path) -> dict[str, dict[str, Any]]:
    """The machines in the files `variants.toml` below `folder`, by name, each with the machine that it `extends`."""
    return {
        name: {"extends": path.parent.name, **table}
        for path in folder.glob("*/variants.toml")
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items()
    }


def read_description(directory: Path) -> dict[str, Any]:
    """What the files say of a machine, without what it inherits. Raises OSError when there is no such machine."""
    own = directory / "machine.toml"
    if not own.exists() and directory.name in read_variants(directory.parent):
        return read_variants(directory.parent)[directory.name]
    return tomllib.loads(own.read_text(encoding="utf-8"))


def _load(directory: Path) -> dict[str, Any]:
    """The machine's own keys over the machine's that it extends."""
    own = read_description(directory)
    base: dict[str, Any] = {table: {} for table in MACHINE_TABLES} | {"commands": {}}
    if parent := own.get("extends"):
        base = _without(_load(directory.parent / parent), own.get("remove", ()))
    commands = {tuple(command["argv"]): command for command in own.get("command", ())}
    tables = {table: {**base[table], **own.get(table, {})} for table in MACHINE_TABLES}
    return {**base, **own, **tables, "commands": {**base["commands"], **commands}}


def _without(machine: dict[str, Any], removed: Sequence[str]) -> dict[str, Any]:
    def stays(path: str) -> bool:
        return not any(f"{path}/".startswith(f"{gone}/") for gone in removed)

    paths = {
        table: {key: value for key, value in machine[table].items() if stays(key)} for table in MACHINE_TABLES[1:4]
    }
    return {**machine, **paths}
