"""A server on the loopback that notes what it is asked for, and has nothing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serve_requests() -> Iterator[tuple[str, list[str]]]:
    """Yield the server's address, and the list to which each request's path and headers are added."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(f"{self.path} {self.headers}")
            self.send_error(404)

        def do_HEAD(self):
            self.do_GET()

        def log_message(self, *_):
            """The list is the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
