"""Package indexes on the bridge: PEP 503 pages over wheels that lie here, for builds that ask an index."""

import functools
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .network import ADDRESS

HOST = ADDRESS.partition("/")[0]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *words: object) -> None:
        """Stay quiet."""


def write_index(folder: Path, name: str, wheels: Sequence[Path]) -> None:
    """The pages of an index `name`, which links to copies of the wheels beside it."""
    files = folder / "files"
    files.mkdir(exist_ok=True)
    pages: dict[str, list[str]] = {}
    for wheel in wheels:
        target = files / wheel.name
        if not target.exists():
            target.write_bytes(wheel.read_bytes())
        distribution = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        link = wheel.name.replace("+", "%2B")
        pages.setdefault(distribution, []).append(f'<a href="/files/{link}">{wheel.name}</a><br>')
    for distribution, links in pages.items():
        page = folder / name / distribution / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<!DOCTYPE html><html><body>\n" + "\n".join(links) + "\n</body></html>\n", encoding="utf-8")


@contextmanager
def serving(folder: Path, host: str = HOST) -> Iterator[str]:
    """The address under which containers, builds and this host reach the folder."""
    server = ThreadingHTTPServer((host, 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
