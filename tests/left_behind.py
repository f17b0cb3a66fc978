"""What a run of the tests leaves on this machine: processes, files, mounts, bridges and rules.

`make test` looks before and after all suites, and fails where something is left:

    export DEVKIT_TEST_SESSION=1234 DEVKIT_TEST_TMPDIR=/tmp/run TMPDIR=/tmp/run
    python -m tests.left_behind >before
    python -m tests.left_behind before

Other programs and other runs share the machine, so only what carries the mark of this run counts: processes that
inherited its DEVKIT_TEST_SESSION, and files and mounts in its DEVKIT_TEST_TMPDIR, which nobody else uses. The engine
tests have names and addresses that only one run can have at a time: they count while no run has them.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.engine import network
from tests.engine.cache import CACHE, LOCK

SESSION = "DEVKIT_TEST_SESSION"
FOLDER = "DEVKIT_TEST_TMPDIR"
PATIENCE_S = 30.0
"""What was told to end may take so long on a busy machine."""

OURS = re.compile(r"devkit-(?!texts-)|tmp[a-z0-9_]{8}$|\.org\.chromium")
"""What devkit, its tests, Python and the browser call their files. Tests kill trainings, which leave the ids of tokens."""


def list_present(session: str, folder: Path | None) -> set[str]:
    """List what is this run's on the machine at present, a line each."""
    present = {*list_processes(session), *(list_files(folder) if folder else ())}
    mounted_in = [folder] if folder else []
    if LOCK.replace("\0", "@") not in _read(Path("/proc/net/unix")):
        present.update(list_network())
        mounted_in.append(CACHE)
    return present.union(list_mounts(mounted_in))


def list_processes(session: str) -> Iterator[str]:
    """Yield the processes that inherited this session's variable, but for this one."""
    for process in Path("/proc").glob("[0-9]*"):
        if f"{SESSION}={session}" in _read(process / "environ").split("\0") and int(process.name) != os.getpid():
            yield f"process {process.name}: {_read(process / 'cmdline').replace(chr(0), ' ').strip()[:150]}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended meanwhile, is another user's, or there is no such file
        return ""


def list_files(folder: Path) -> Iterator[str]:
    """Yield the files of such names."""
    yield from (f"file {each}" for each in folder.iterdir() if OURS.match(each.name))


def list_mounts(folders: list[Path]) -> Iterator[str]:
    """Yield what is mounted in one of the folders."""
    for line in _read(Path("/proc/self/mounts")).splitlines():
        target = line.split()[1]
        if any(Path(target).is_relative_to(folder) for folder in folders):
            yield f"mount {target}"


def list_network() -> Iterator[str]:
    """Yield the bridges and the rules of the engines that tests start."""
    links = json.loads(_run("ip", "-json", "addr", "show", "type", "bridge") or "[]")
    yield from (f"bridge {name}" for name in network.find_own(links))
    yield from (f"rule {line}" for line in _run("iptables-save").splitlines() if network.MARK[-1] in line)


def _run(*command: str) -> str:
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    try:
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False).stdout
    except OSError:
        return ""


def main() -> int:
    """Print what is there; with a file of an earlier list, what has come since. 1 for anything that stays."""
    session = os.environ[SESSION]
    folder = Path(os.environ[FOLDER]) if os.environ.get(FOLDER) else None
    if len(sys.argv) == 1:
        sys.stdout.write("".join(f"{line}\n" for line in sorted(list_present(session, folder))))
        return 0
    before = set(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())
    ends_at = time.monotonic() + PATIENCE_S
    while (left := list_present(session, folder) - before) and time.monotonic() < ends_at:
        time.sleep(0.5)
    for line in sorted(left):
        sys.stderr.write(f"==> LEFT BEHIND by the tests: {line}\n")
    return int(bool(left))


if __name__ == "__main__":
    raise SystemExit(main())
