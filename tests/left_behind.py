"""What the tests leave on this machine: processes, bridges, rules, mounts, control groups and files.

`make test` looks before and after all suites, and fails where something is left:

    DEVKIT_TEST_SESSION=1234 python -m tests.left_behind >before
    DEVKIT_TEST_SESSION=1234 python -m tests.left_behind before

What other programs do meanwhile does not count. A process is the tests' where it inherited the variable; anything else
where it has a name that only tests and devkit give, and while nobody else tests here. In CI nobody else works on the
machine: there Python's own temporary names, new control groups and untracked files of the checkout count as well.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.engine import network

SESSION = "DEVKIT_TEST_SESSION"
PATIENCE_S = 30.0
"""What was told to end may take so long on a busy machine."""

ENGINE_LOCK = "@devkit-test-engine"
OURS = re.compile(r"devkit-(?!texts-)")
"""The beginning of names in the temporary folder. Tests kill trainings, whose ids of tokens stay where that is at once."""
OURS_IN_CI = re.compile(rf"{OURS.pattern}|tmp[a-z0-9_]{{8}}$|\.org\.chromium")
CONTAINER = re.compile(r"[0-9a-f]{64}")
ROOT = Path(__file__).resolve().parents[1]


def list_present(session: str) -> set[str]:
    """List what is the tests' on this machine at present, a line each."""
    present = set(list_processes(session))
    if not is_tested_by_others(session):
        is_ci = os.environ.get("CI") == "true"
        present |= {
            *list_files(Path(tempfile.gettempdir()), OURS_IN_CI if is_ci else OURS),
            *list_network(),
            *list_mounts(),
        }
        present |= {*list_control_groups(), *list_untracked()} if is_ci else set()
    return present


def list_processes(session: str) -> Iterator[str]:
    """Yield the processes that inherited this session's variable, but for this one."""
    for pid, words, variables in _read_processes():
        if f"{SESSION}={session}" in variables and pid != os.getpid():
            yield f"process {pid}: {' '.join(words)[:150]}"


def is_tested_by_others(session: str) -> bool:
    """Return True where another session of tests runs."""
    return any(
        "pytest" in " ".join(words[:4]) and f"{SESSION}={session}" not in variables
        for _, words, variables in _read_processes()
    ) or ENGINE_LOCK in _read(Path("/proc/net/unix"))


def _read_processes() -> Iterator[tuple[int, list[str], list[str]]]:
    for folder in Path("/proc").glob("[0-9]*"):
        words, variables = (_read(folder / name).split("\0") for name in ("cmdline", "environ"))
        yield int(folder.name), words, variables


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended meanwhile, is another user's, or there is no such file
        return ""


def list_files(folder: Path, ours: re.Pattern[str]) -> Iterator[str]:
    """Yield the files of such names."""
    yield from (f"file {each}" for each in folder.iterdir() if ours.match(each.name))


def list_network() -> Iterator[str]:
    """Yield the bridges and the rules of the engines that tests start."""
    links = json.loads(_run("ip", "-json", "addr", "show", "type", "bridge") or "[]")
    yield from (f"bridge {name}" for name in network.find_own(links))
    yield from (f"rule {line}" for line in _run("iptables-save").splitlines() if network.MARK[-1] in line)


def _run(*command: str) -> str:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    try:
        return subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False
        ).stdout
    except OSError:
        return ""


def list_mounts() -> Iterator[str]:
    """Yield what is mounted in a folder of the tests."""
    for line in _read(Path("/proc/self/mounts")).splitlines():
        target = line.split()[1]
        if "/devkit-" in target or "/pytest-of-" in target or target.startswith(f"{ROOT}/"):
            yield f"mount {target}"


def list_control_groups() -> Iterator[str]:
    """Yield the control groups of containers."""
    yield from (
        f"control group {each}" for each in Path("/sys/fs/cgroup").glob("**/docker/*") if CONTAINER.fullmatch(each.name)
    )


def list_untracked() -> Iterator[str]:
    """Yield the files of the checkout that git neither knows nor ignores."""
    yield from (f"file {line[3:]}" for line in _run("git", "-C", str(ROOT), "status", "--porcelain").splitlines())


def main() -> int:
    """Print what is there; with a file of an earlier list, what has come since. 1 for anything that stays."""
    session = os.environ[SESSION]
    if len(sys.argv) == 1:
        sys.stdout.write("".join(f"{line}\n" for line in sorted(list_present(session))))
        return 0
    before = set(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())
    ends_at = time.monotonic() + PATIENCE_S
    while (left := list_present(session) - before) and time.monotonic() < ends_at:
        time.sleep(0.5)
    for line in sorted(left):
        sys.stderr.write(f"==> LEFT BEHIND by the tests: {line}\n")
    return int(bool(left))


if __name__ == "__main__":
    raise SystemExit(main())
