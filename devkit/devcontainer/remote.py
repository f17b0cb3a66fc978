"""The project's folder on the machine of a remote engine: a volume there holds a copy, which each start brings up to date.

Nothing but the docker command is needed for it, so that Docker contexts over ssh and TCP serve alike.
"""

import io
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.devcontainer.configuration import DevContainer
from devkit.devcontainer.containers import QUERY_DEADLINE_S, ContainerState, EngineClient, explain_ssh_failure
from devkit.errors import DevkitError
from devkit.facts.model import Endpoint, Engine
from devkit.probe.engine.client import read_compose
from devkit.probe.engine.daemon import read_engine_over_ssh
from devkit.probe.host import ASK_GIT, Host, LocalHost
from devkit.text import format_count, join_words
from devkit.user_folder import find_user_file
from devkit.verify.engine import DOCKER_COMPOSE, WorkingEngine, require_engine

_LOCAL_HOSTS = ("unix://", "npipe://", "fd://", "tcp://127.", "tcp://localhost", "tcp://[::1]")
_NOT_COPIED = ("node_modules", "__pycache__")
_AT_ONCE = 200
_MAX_NAMED = 5

Fingerprint = list[int]
"""The seconds of a file's last change, and its size."""


@dataclass(frozen=True)
class RemoteFolder:
    """A folder of this machine, the volume that holds its copy, and where that is mounted."""

    root: Path
    target: str
    volume: str

    @property
    def mount(self) -> str:
        """The volume in the form of `docker run --mount`."""
        return f"type=volume,source={self.volume},target={self.target}"


def is_remote(endpoint: Endpoint) -> bool:
    """Say if an engine is on another machine, where this one's folders are not."""
    return bool(endpoint.url) and not endpoint.url.startswith(_LOCAL_HOSTS)


def require_remote_engine(host: Host, endpoint: Endpoint) -> WorkingEngine:
    """Return the remote engine if it answers. Raises DevkitError where it does not, or where Compose is missing here."""
    if not endpoint.url.startswith("ssh://"):
        return require_engine(host)
    engine = read_engine_over_ssh(host, endpoint, deadline_s=QUERY_DEADLINE_S)
    if not isinstance(engine, Engine):
        raise explain_ssh_failure(endpoint, engine.message)
    if read_compose(host) is None:
        raise DevkitError("this machine's docker command has no Compose plugin", "Install docker-compose-plugin.")
    return WorkingEngine(engine, DOCKER_COMPOSE)


def find_remote_folder(container: DevContainer, mounts: Sequence[Mapping[str, str]]) -> RemoteFolder:
    """Return the folder to copy: the source of the bind mount that holds the project. Raises DevkitError without one."""
    for mount in mounts:
        source = Path(mount.get("source", "")).resolve()
        if mount.get("type") == "bind" and container.folder.is_relative_to(source):
            return RemoteFolder(source, mount["target"], f"devkit-{container.key}")
    raise DevkitError(
        f"{container.file} mounts no folder that holds {container.folder}",
        "Mount the project's folder, or run devkit on the engine's machine.",
    )


def push_folder(
    client: EngineClient, container: DevContainer, state: ContainerState, folder: RemoteFolder, user: str
) -> tuple[str, ...]:
    """Copy what is new or changed here since the last copy, and remove what is gone here.

    Files that changed there as well stay as they are there. Returns what was done, a line each. Raises DevkitError.
    """
    known = find_user_file(f"containers/{container.key}.sent.json")
    created_at = client.require("volume", "inspect", "--format", "{{.CreatedAt}}", folder.volume).strip()
    sent = _read_sent(known, created_at)
    here = {name: found for name in _list_files(folder.root) if (found := _fingerprint(folder.root / name))}
    changed = [name for name, found in here.items() if sent.get(name) != found and not (sent and _is_history(name))]
    gone = [name for name in sent if name not in here and not _is_history(name)]
    there = dict(_ask_fingerprints(client, state, folder, [name for name in (*changed, *gone) if name in sent]))
    kept = sorted(name for name, found in there.items() if found != sent[name])
    changed = [name for name in changed if name not in kept]
    gone = [name for name in gone if name in there and name not in kept]
    said = []
    if changed:
        _copy(client, state, folder, changed, user)
        said.append(
            f"copied {format_count(len(changed), 'file')} of {folder.root} into the volume {folder.volume} there"
        )
    for start in range(0, len(gone), _AT_ONCE):
        words = ["sh", "-c", 'cd "$0" && rm -f -- "$@"', folder.target, *gone[start : start + _AT_ONCE]]
        client.require("exec", "--user", "0", state.id, *words)
    if gone:
        said.append(f"removed {format_count(len(gone), 'file')} there that this folder has no more")
    if kept:
        names = join_words(kept[:_MAX_NAMED]) + (" and more" if len(kept) > _MAX_NAMED else "")
        said.append(f"changed both here and there, and left there as it is: {names}")
    if known is not None:
        # What was kept is reported again next time.
        files = {
            name: sent[name] if name in kept else found for name, found in here.items() if name in {*sent, *changed}
        }
        Path(known).parent.mkdir(parents=True, exist_ok=True)
        files |= {name: sent[name] for name in kept}
        Path(known).write_text(json.dumps({"volume": created_at, "files": files}), encoding="utf-8")
    return tuple(said)


def _is_history(name: str) -> bool:
    """Say if a file is git's own: history is copied once, and grows on by itself on either side."""
    return name.startswith(".git/")


def _read_sent(file: str | None, created_at: str) -> dict[str, Fingerprint]:
    """Return what the last copy into this very volume held; {} for a new one."""
    try:
        found: Any = json.loads(LocalHost().read(file or "") or "")
    except ValueError:
        return {}
    is_same = isinstance(found, dict) and found.get("volume") == created_at
    return dict(found["files"]) if is_same else {}


def _list_files(root: Path) -> Iterator[str]:
    """Yield what git tracks or would add, and its history; without git every file but what is made for this machine."""
    top = root
    if (root / ".git").is_dir():
        yield from filter(
            None, _call_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        )
        top = root / ".git"
    for folder, folders, files in os.walk(top):
        folders[:] = [
            each for each in folders if each not in _NOT_COPIED and not Path(folder, each, "pyvenv.cfg").exists()
        ]
        yield from (Path(folder, name).relative_to(root).as_posix() for name in files)


def _call_git(root: Path, *words: str) -> str:
    """Return what git prints. Raises DevkitError: without it, data sets and environments would be copied, too."""
    argv = [*ASK_GIT, str(root), *words]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        raise DevkitError(f"git cannot be run to list the files of {root}: {error.strerror}", "Install git.") from None
    if done.returncode:
        said = os.fsdecode(done.stderr).strip().splitlines() or ["it said nothing"]
        raise DevkitError(f"git cannot list the files of {root}: {said[0]}", said[-1].strip())
    return os.fsdecode(done.stdout)


def _fingerprint(file: Path) -> Fingerprint | None:
    try:
        found = file.lstat()
    except OSError:
        return None
    is_copied = stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
    return [int(found.st_mtime), found.st_size] if is_copied else None


def _ask_fingerprints(
    client: EngineClient, state: ContainerState, folder: RemoteFolder, names: Sequence[str]
) -> Iterator[tuple[str, Fingerprint]]:
    """Yield the files that are there, as they are there."""
    script = (
        'cd "$0" && for name; do found=$(stat -c "%Y %s" -- "$name" 2>/dev/null) && echo "$found $name"; done; true'
    )
    for start in range(0, len(names), _AT_ONCE):
        words = ["sh", "-c", script, folder.target, *names[start : start + _AT_ONCE]]
        for line in client.require("exec", "--user", "0", state.id, *words).splitlines():
            changed_at, size, name = line.split(" ", 2)
            yield name, [int(changed_at), int(size)]


def _copy(client: EngineClient, state: ContainerState, folder: RemoteFolder, names: Sequence[str], user: str) -> None:
    """Copy files with the folders above them, as the user's who works there."""
    ids = [client.require("exec", "--user", user or "0", state.id, "id", flag).strip() for flag in ("-u", "-g")]
    client.require("exec", "--user", "0", state.id, "chown", ":".join(ids), folder.target)
    above = {parent.as_posix() for name in names for parent in Path(name).parents} - {"."}

    def give(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid, entry.gid, entry.uname, entry.gname = int(ids[0]), int(ids[1]), "", ""
        return entry

    argv = [client.program, "cp", "-", f"{state.id}:{folder.target}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            with (
                process.stdin or io.BytesIO() as stream,
                tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
            ):
                for name in (*sorted(above), *names):
                    archive.add(folder.root / name, name, recursive=False, filter=give)
            said = process.stderr.read().decode(errors="replace").strip() if process.stderr else ""
        except OSError as error:
            process.kill()
            raise DevkitError(f"cannot copy {folder.root}: {error.strerror or error}", "Repeat it.") from error
    if process.returncode != 0:
        raise DevkitError(f"`{client.program} cp` to the engine's machine failed: {said}", "Repeat it.")
