"""Servers on the loopback, and one that notes what it is asked for and has nothing."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """A handler of requests whose log is what the test keeps of them."""

    def reply(self, body: bytes = b"", *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send a whole response; a HEAD request gets no body."""
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], *, prepare: Callable[[ThreadingHTTPServer], None] = lambda _: None
) -> Iterator[str]:
    """Yield the address of a server; `prepare` is called with it before it starts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    prepare(server)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serve_requests() -> Iterator[tuple[str, list[str]]]:
    """Yield the server's address, and the list to which each request's path and headers are added."""
    requests: list[str] = []

    class Handler(QuietHandler):
        def do_GET(self):
            requests.append(f"{self.path} {self.headers}")
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815 - a name that http.server calls

    with serving(Handler) as url:
        yield url, requests


def find_free_port() -> int:
    """A port of the loopback on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
