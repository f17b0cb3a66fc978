"""What programs of this machine have and its containers lack: names, limits and user ids."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from math import inf

from devkit.facts.runs import Lack
from devkit.probe.host import Host
from devkit.text import join_words

SCRIPT = """
while read -r word rest; do [ "$word" = nameserver ] && echo "devkit nameserver $rest"; done < /etc/resolv.conf
while read -r line; do echo "devkit limit $line"; done < /proc/self/limits
while read -r inside outside count; do echo "devkit ids $count"; done < /proc/self/uid_map
while read -r device folder kind options rest; do
    [ "$folder" = /dev/shm ] && echo "devkit shm $options"
done < /proc/self/mounts
"""
"""Shows them inside of a container."""
_RESOLVER_FILES = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
"""The second holds what systemd-resolved asks, which Docker gives to containers. Source: moby/moby, libnetwork/resolvconf."""
_NAMESERVER = re.compile(r"^\s*nameserver\s+(\S+)", re.MULTILINE)
_LIMIT = re.compile(r"Max (.*?)\s{2,}(\S+)")
_USUAL_LIMITS = {
    **{"open files": 1024, "processes": 1024, "stack size": 8 << 20, "locked memory": 64 << 10},
    **dict.fromkeys(("file size", "data size", "address space", "cpu time"), inf),
}
"""What programs expect at the least. Source: Linux, include/asm-generic/resource.h and include/uapi/linux/resource.h."""
_SHM_KIB = re.compile(r"\bsize=(\d+)k\b")
_USUAL_SHM_KIB = 64_000
"""Of /dev/shm: Podman's, of which Docker has slightly more. Source: dockerd and podman-run references, shm-size."""
_USUAL_IDS = 1 << 16
"""Files of an image may belong to any of them. Source: shadow, login.defs, SUB_UID_COUNT."""
_LOCAL = re.compile(r"\|-- (\S+)\s+/32 host LOCAL")
LISTENING, _BOUND = "0A", "07"
"""The states of a socket of TCP and one of UDP. Source: Linux, include/net/tcp_states.h."""


def find_lacks(host: Host, seen: Sequence[Sequence[str]], settings: Iterable[tuple[str, str]]) -> Iterator[Lack]:
    """Yield what a container lacks.

    Args:
        host: this machine.
        seen: names and values that SCRIPT printed there.
        settings: file and key of each setting of the engine.
    """
    found = [(key, f"{key} in {file}") for file, key in settings]

    def find_setting(name: str) -> str:
        return next((shown for key, shown in found if re.split(r"[._-]", key)[-1] == name), "")

    def list_values(name: str) -> list[str]:
        return [each[1] for each in seen if each[0] == name and len(each) == 2]

    yield from _find_lost_names(host, list_values("nameserver"), find_setting("dns"))
    own = dict(_parse_limits((host.read("/proc/self/limits") or "").splitlines()))
    for name, limit in _parse_limits(list_values("limit")):
        if limit < min(_USUAL_LIMITS.get(name, 0), own.get(name, 0)):
            yield Lack("limit", f"{name}: {limit:.0f}", find_setting("ulimits"))
    for size in filter(None, map(_SHM_KIB.search, list_values("shm"))):
        if int(size[1]) < _USUAL_SHM_KIB:
            yield Lack("limit", f"shared memory: {size[1]} KiB", find_setting("size"))
    if (ids := list_values("ids")) and sum(map(int, ids)) < _USUAL_IDS:
        yield Lack("ids", f"{sum(map(int, ids))}", "")


def _parse_limits(lines: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Yield the name of each limit and its soft value."""
    for found in filter(None, map(_LIMIT.match, lines)):
        yield found[1].removeprefix("max "), inf if found[2] == "unlimited" else int(found[2])


def _find_lost_names(host: Host, servers: list[str], setting: str) -> Iterator[Lack]:
    """Yield why the DNS servers that a container asks do not know the names of this machine."""
    own = [name for path in _RESOLVER_FILES for name in _NAMESERVER.findall(host.read(path) or "")]
    here = _LOCAL.findall(host.read("/proc/net/fib_trie") or "")
    answering = {address for address, port in list_sockets(host, "udp", _BOUND) if port == 53}
    if servers and all(each in here and answering.isdisjoint((each, "0.0.0.0", "::")) for each in servers):  # noqa: S104
        yield Lack("names", f"they ask {join_words(servers)} for names, where no DNS server listens", setting)
    elif own and servers and not setting and set(own).isdisjoint(servers) and all(map(_is_loopback, own)):
        words = (
            f"they ask {join_words(servers)} for names, because they cannot reach this machine's own {join_words(own)}"
        )
        yield Lack("names", words, "")


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def list_sockets(host: Host, protocol: str, state: str) -> Iterator[tuple[str, int]]:
    """Yield address and port of each socket of "tcp" or "udp" in a state."""
    for path in (f"/proc/net/{protocol}", f"/proc/net/{protocol}6"):
        yield from parse_sockets(host.read(path) or "", state)


def parse_sockets(text: str, state: str) -> Iterator[tuple[str, int]]:
    """Yield address and port of each socket in a state, of a table that Linux prints."""
    for row in map(str.split, text.splitlines()):
        if row[3:4] == [state]:
            address, _, port = row[1].partition(":")
            numbers = [
                int.from_bytes(bytes.fromhex(address[place : place + 8]), sys.byteorder)
                for place in range(0, len(address), 8)
            ]
            packed = b"".join(each.to_bytes(4) for each in numbers)
            yield str(ip_address(packed)), int(port, 16)
