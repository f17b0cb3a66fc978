"""Debian's Prometheus and node exporter: unpacked, not installed, and run on ports of the loopback address."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from . import leftovers
from .binaries import NoEngineError, unpack
from .cache import made_once
from .commands import CommandError

SUITE = "bookworm"
PACKAGES = ("prometheus", "prometheus-node-exporter")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def programs() -> Path:
    """The folder with prometheus, promtool and the node exporter. Raises NoEngineError when they are not to be had."""
    if shutil.which("apt-get") is None:
        raise NoEngineError("Debian's packages of Prometheus need apt-get")
    try:
        return made_once(f"prometheus-{SUITE}", lambda folder: unpack(SUITE, PACKAGES, folder)) / "usr/bin"
    except (CommandError, OSError) as error:
        raise NoEngineError(f"Debian's packages of Prometheus: {error}") from None


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(*argv: str | Path) -> Iterator[None]:
    """A program that runs meanwhile."""
    with subprocess.Popen(
        [*leftovers.WITH_THIS_SESSION, "KILL", *map(str, argv)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def answer(port: int, query: str, *, deadline_s: float) -> list[dict[str, object]]:
    """What Prometheus answers to a query once it has data for it; [] when that takes longer than the deadline."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    ends = time.monotonic() + deadline_s
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):
            found = json.load(_DIRECT.open(url, timeout=5))["data"]["result"]
            if found:
                return list(found)
        time.sleep(0.5)
    return []
