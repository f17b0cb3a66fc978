"""What containers lack beside programs of this machine, from the files of both."""

from types import SimpleNamespace

from devkit.facts.runs import Lack
from devkit.trial.surroundings import LISTENING, find_lacks, list_sockets
from tests.cases import cases

RESOLVED = "/run/systemd/resolve/resolv.conf"
HERE = "     |-- 172.17.0.1\n        /32 host LOCAL\n"
HEADER = "sl local_address rem_address st\n"
LIMITS = "Limit Soft Hard Units\nMax open files            4096                 4096                 files\n"
SET = (("/etc/docker/daemon.json", "default-ulimits"), ("/etc/docker/daemon.json", "dns"))


def machine(own="10.0.0.1", resolved="", udp=""):
    files = {
        "/etc/resolv.conf": f"# {own}\nnameserver {own}\n",
        RESOLVED: resolved,
        "/proc/net/fib_trie": HERE,
        "/proc/net/udp": HEADER + udp,
        "/proc/self/limits": LIMITS,
    }
    return SimpleNamespace(read=files.get)


def limit(name, soft):
    return ["limit", f"Max {name}            {soft}                 {soft}                 units"]


def dns(*servers):
    return [["nameserver", each] for each in servers]


def bound(address):
    return f"0: {address}:0035 00000000:0000 07\n"


@cases(
    "host, seen, settings, kinds",
    {
        "the same server": (machine(), dns("10.0.0.1"), (), []),
        "one that was set, elsewhere": (machine(), dns("8.8.8.8"), SET, []),
        "one of its own loopback": (machine("127.0.0.1"), dns("8.8.8.8"), (), ["names"]),
        "one of its own loopback, and another was set": (machine("127.0.0.1"), dns("8.8.8.8"), SET, []),
        "systemd-resolved": (machine("127.0.0.53", "nameserver 10.0.0.1"), dns("10.0.0.1"), (), []),
        "no address": (machine("host.example"), dns("8.8.8.8"), (), []),
        "the bridge, where none listens": (machine(), dns("172.17.0.1"), SET, ["names"]),
        "the bridge, where one listens": (machine(udp=bound("010011AC")), dns("172.17.0.1"), SET, []),
        "one that listens everywhere": (machine(udp=bound("00000000")), dns("172.17.0.1"), SET, []),
        "nothing was printed": (machine(), [], (), []),
        "few files": (machine(), [limit("open files", 64)], SET, ["limit"]),
        "as usual, or unknown": (machine(), [limit("open files", 2048), limit("processes", 10)], SET, []),
        "little shared memory": (machine(), [["shm", "rw,size=1k"]], (), ["limit"]),
        "as much as usual, or unknown": (machine(), [["shm", "rw,size=65536k"], ["shm", "rw"]], (), []),
        "two ids": (machine(), [["ids", "1"], ["ids", "1"]], (), ["ids"]),
        "a range of ids": (machine(), [["ids", "1"], ["ids", "65536"]], (), []),
    },
)
def test_what_containers_lack(host, seen, settings, kinds):
    assert [each.kind for each in find_lacks(host, seen, settings)] == kinds


def test_the_setting_that_takes_something_away_is_named():
    assert [*find_lacks(machine(), [limit("open files", 64)], SET)] == [
        Lack("limit", "open files: 64", "default-ulimits in /etc/docker/daemon.json")
    ]


def test_sockets_are_read_of_both_families():
    files = {
        "/proc/net/tcp": HEADER + "0: 0100007F:1F90 00000000:0000 0A\n",
        "/proc/net/tcp6": f"0: {'0' * 24}01000000:0050 x 0A",
    }
    assert [*list_sockets(SimpleNamespace(read=files.get), "tcp", LISTENING)] == [("127.0.0.1", 8080), ("::1", 80)]
