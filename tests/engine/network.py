"""A bridge of the tests' own, with address translation, so that builds reach the package indexes.

dockerd's own `"bridge": "none"` would delete another engine's docker0, and its own iptables rules would outlive
the test; so the bridge and its few rules are made here, under names nobody else uses, and removed here.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from . import leftovers
from .binaries import NoEngineError
from .commands import CommandError, run

BRIDGE = "devkittest0"
ADDRESS = "172.31.240.1/24"
POOL = "172.31.240.0/20"
"""The bridge's network is the first /24 of this pool; Compose networks take the others."""

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
MARK = ("-m", "comment", "--comment", "devkit tests")
OFF = tuple(
    (chain, way, POOL, *MARK, "-j", "REJECT") for chain in ("INPUT", "FORWARD", "OUTPUT") for way in ("-s", "-d")
)
"""What takes the network away from containers, until the block of `switched_off` ends."""

RULES = (
    ("nat", "POSTROUTING", "-s", POOL, "!", "-d", POOL, *MARK, "-j", "MASQUERADE"),
    ("filter", "FORWARD", "-s", POOL, *MARK, "-j", "ACCEPT"),
    ("filter", "FORWARD", "-d", POOL, *MARK, "-j", "ACCEPT"),
)


def mtu() -> int:
    """The default route's packet size in bytes: a larger one on the bridge makes downloads hang."""
    routes = json.loads(run(["ip", "-json", "route", "show", "default"]).stdout or "[]")
    if not routes:
        return 1500
    links = json.loads(run(["ip", "-json", "link", "show", "dev", routes[0]["dev"]]).stdout)
    return int(links[0]["mtu"])


@contextmanager
def bridged() -> Iterator[str]:
    """The bridge's name, up and translated, removed at the end. Raises NoEngineError where that is forbidden."""
    before = FORWARDING.read_text(encoding="ascii")
    leftovers.removed()
    try:
        _down()
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "addr", "add", ADDRESS, "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "mtu", str(mtu()), "up"])
        FORWARDING.write_text("1\n", encoding="ascii")
        for table, chain, *rule in RULES:
            run(["iptables", "-w", "-t", table, "-I", chain, *rule])
    except (CommandError, OSError) as error:
        _down()
        FORWARDING.write_text(before, encoding="ascii")
        raise NoEngineError(f"no bridge with address translation: {error}") from error
    try:
        yield BRIDGE
    finally:
        _down()
        FORWARDING.write_text(before, encoding="ascii")


@contextmanager
def switched_off() -> Iterator[None]:
    """Containers reach neither this machine nor any other while the block runs."""
    for chain, *rule in OFF:
        run(["iptables", "-w", "-I", chain, *rule])
    try:
        yield
    finally:
        _remove(("filter", *rule) for rule in OFF)


def _down() -> None:
    """Remove the bridge and every rule, also what a killed run left behind, its Compose networks among it."""
    _remove((*RULES, *(("filter", *rule) for rule in OFF)))
    links = json.loads(run(["ip", "-json", "addr", "show", "type", "bridge"]).stdout or "[]")
    for name in {BRIDGE, *find_own(links)}:
        run(["ip", "link", "del", name], expect=None)


def find_own(links: list[dict[str, Any]]) -> list[str]:
    """The names of the bridges, as `ip -json addr` lists them, that have an address of the tests."""
    own = ip_network(POOL)
    return [
        link["ifname"] for link in links if link and any(ip_address(each["local"]) in own for each in link["addr_info"])
    ]


def _remove(rules: Iterable[tuple[str, ...]]) -> None:
    for table, chain, *rule in rules:
        while run(["iptables", "-w", "-t", table, "-D", chain, *rule], expect=None).returncode == 0:
            pass
