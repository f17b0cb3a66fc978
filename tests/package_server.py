"""A package index on the loopback that notes what it is asked for, and may want a login."""

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class PackageServer:
    """The wheels of an index, the requests to it as one text each, and its address."""

    def __init__(self, wheels: Sequence[Path], *, login: str = "", redirect: str = "") -> None:
        self.wheels = {wheel.name: wheel.read_bytes() for wheel in wheels}
        self.pythons: dict[str, str] = {}
        """By wheel, the Pythons that it is for."""
        self.days: dict[str, str] = {}
        """By wheel, the day of its upload; pages are JSON (PEP 691, PEP 700) where there is one."""
        self.requests: list[str] = []
        self.login = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
        self.redirect = redirect
        self.url = ""

    @property
    def index(self) -> str:
        """The address of the index."""
        return f"{self.url}/simple"

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        """Return the status and the body for a path: a project's page (PEP 503), or a wheel."""
        if self.redirect:
            return 302, b""
        if self.login and authorization != self.login:
            return 401, b""
        name = path.rstrip("/").rpartition("/")[2]
        if name in self.wheels:
            return 200, self.wheels[name]
        found = [each for each in self.wheels if each.partition("-")[0].replace("_", "-").lower() == name]
        if self.days and found:
            rows = [
                {"filename": each, "url": f"/files/{each}", "hashes": {}, "upload-time": f"{self.days[each]}T00:00:00Z"}
                for each in found
            ]
            return 200, json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": rows}).encode()
        needs = {each: f' data-requires-python="{escape(said)}"' for each, said in self.pythons.items()}
        links = "".join(f'<a href="/files/{each}"{needs.get(each, "")}>{each}</a>' for each in found)
        return (200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode()) if found else (404, b"")


@contextmanager
def serve_packages(wheels: Sequence[Path], *, login: str = "", redirect: str = "") -> Iterator[PackageServer]:
    """Serve the wheels. `login` is "name:password"; `redirect` an address that every request is sent on to."""
    served = PackageServer(wheels, login=login, redirect=redirect)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            served.requests.append(f"{self.command} {self.path} {self.headers} {self.rfile.read(length)!r}")
            status, body = served.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{served.redirect}{self.path}")
            if status == 401:
                self.send_header("WWW-Authenticate", "Basic")
            page = "application/vnd.pypi.simple.v1+json" if body.startswith(b"{") else "text/html"
            self.send_header("Content-Type", "application/zip" if self.path.endswith(".whl") else page)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST = do_PUT = do_CONNECT = do_OPTIONS = do_GET  # noqa: N815 - names that http.server calls

        def log_message(self, *_: object) -> None:
            """The list is the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
