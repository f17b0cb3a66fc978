"""A package index on the loopback that notes what it is asked for, and may want a login."""

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path

from tests.loopback import QuietHandler, serving


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

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802
            length = int(self.headers.get("Content-Length") or 0)
            served.requests.append(f"{self.command} {self.path} {self.headers} {self.rfile.read(length)!r}")
            status, body = served.answer(self.path, self.headers.get("Authorization", ""))
            page = "application/vnd.pypi.simple.v1+json" if body.startswith(b"{") else "text/html"
            headers = {"Content-Type": "application/zip" if self.path.endswith(".whl") else page}
            headers |= {"Location": f"{served.redirect}{self.path}"} if status == 302 else {}
            headers |= {"WWW-Authenticate": "Basic"} if status == 401 else {}
            self.reply(body, status=status, headers=headers)

        do_HEAD = do_POST = do_PUT = do_CONNECT = do_OPTIONS = do_GET  # noqa: N815 - names that http.server calls

    with serving(Handler) as served.url:
        yield served
