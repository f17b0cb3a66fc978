"""A company's mirror of the package indexes, on the bridge, which wants a login."""

import base64
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from .authority import HOST

PORT = 38417
"""Always the same, so that the engine's cache of layers knows the address again."""
USER, PASSWORD = "dev", "S3cr3t-of-the-mirror"
LOGIN = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@dataclass(frozen=True)
class Mirror:
    """A folder of wheels as /simple and /whl/cpu."""

    wheels: Path

    index = f"http://{HOST}:{PORT}/simple"
    torch_index = f"http://{HOST}:{PORT}/whl"

    def page(self, name: str) -> bytes:
        """The page of a project, by the simple repository API."""
        found = [path.name for path in self.wheels.glob("*.whl") if _normalized(path.name.split("-")[0]) == name]
        return "".join(f'<a href="/files/{escape(file)}">{escape(file)}</a>\n' for file in sorted(found)).encode()


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Handler(BaseHTTPRequestHandler):
    mirror: Mirror

    def do_GET(self) -> None:
        """Serve a page or a wheel to whoever logs in."""
        if self.headers.get("Authorization") != LOGIN:
            self._answer(401, b"")
            return
        page = re.fullmatch(r"/(?:simple|whl/cpu)/([^/]+)/", self.path)
        file = self.mirror.wheels / unquote(self.path).rpartition("/")[2]
        if page and (links := self.mirror.page(page[1])):
            self._answer(200, links)
        elif self.path.startswith("/files/") and file.is_file():
            self._answer(200, file.read_bytes())
        else:
            self._answer(404, b"")

    def do_HEAD(self) -> None:
        """Say what there is."""
        self.do_GET()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="mirror"')
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Stay quiet."""


@contextmanager
def serving(wheels: Path) -> Iterator[Mirror]:
    """The mirror, while the block runs."""
    mirror = Mirror(wheels)
    server = ThreadingHTTPServer((HOST, PORT), type("Handler", (_Handler,), {"mirror": mirror}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield mirror
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
