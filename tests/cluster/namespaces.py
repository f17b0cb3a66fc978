"""Two "nodes" on one machine: network namespaces with a cable between them, each with a host name of its own.

They have no name of the system's: each lives as long as a process that holds it, and that ends with whoever made it,
however that ended. So nothing is left behind by a test that was killed.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("ip", "nsenter", "setpriv", "unshare", "mount", "hostname")
_LONGEST_S = 600
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""The process is killed when the one that started it ends."""


def missing() -> str:
    """Why there can be no such nodes here, "" where there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"there is no {', '.join(absent)}"
    link = ("ip", "link", "add", "name", "here", "type", "veth")
    tried = subprocess.run(["unshare", "--net", *link], capture_output=True)
    return "" if tried.returncode == 0 else "this machine lets nobody make network interfaces"


@dataclass(frozen=True)
class Node:
    """A namespace, by the process that holds it, and its name and address in the small network."""

    name: str
    address: str
    holder: int

    def start(
        self, words: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path
    ) -> "subprocess.Popen[bytes]":
        """Start a command there, in a folder that all nodes share."""
        enter = ("nsenter", "--target", str(self.holder), "--net", "--uts", "--mount", "env", "-C", str(folder))
        with log.open("ab") as file:
            return subprocess.Popen(
                [*_WITH_US, *enter, *words],
                env={**os.environ, **environment},
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
            )

    def check(self, *words: str) -> None:
        """Run a command of the system there. Raises CalledProcessError."""
        subprocess.run(
            ["nsenter", "--target", str(self.holder), "--net", "--uts", "--mount", *words],
            check=True,
            capture_output=True,
        )


@contextmanager
def nodes(scratch: Path, count: int = 2) -> Iterator[tuple[Node, ...]]:
    """So many nodes on one network; their host names are known to all of them, as in a cluster."""
    with ExitStack() as held:
        made = tuple(held.enter_context(_node(f"node-{at}", f"10.97.0.{at + 1}")) for at in range(count))
        hosts = scratch / "hosts"
        hosts.write_text("".join(f"{each.address} {each.name}\n" for each in made) + "127.0.0.1 localhost\n")
        first, second = made
        first.check("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(second.holder))
        for each in made:
            each.check("hostname", each.name)
            each.check("mount", "--bind", str(hosts), "/etc/hosts")
            each.check("ip", "address", "add", f"{each.address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                each.check("ip", "link", "set", link, "up")
        yield made


@contextmanager
def _node(name: str, address: str) -> Iterator[Node]:
    holder = subprocess.Popen([*_WITH_US, "unshare", "--net", "--uts", "--mount", "sleep", str(_LONGEST_S)])
    try:
        _wait_until_apart(holder)
        yield Node(name, address, holder.pid)
    finally:
        holder.kill()
        holder.wait()


def _wait_until_apart(holder: "subprocess.Popen[bytes]") -> None:
    """Until the process has left this machine's network for its own, and is only asleep."""
    while b"sleep" not in Path(f"/proc/{holder.pid}/cmdline").read_bytes().split(b"\0")[:1]:
        assert holder.poll() is None
        time.sleep(0.01)
