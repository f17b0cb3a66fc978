"""Sockets that behave like an engine, or like one that is broken."""

import json
import socket
import socketserver
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

VERSION = {"Components": [{"Name": "Engine"}], "Version": "28.5.2", "ApiVersion": "1.51", "MinAPIVersion": "1.24"}
INFO = {
    "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
    "Architecture": "x86_64",
    "Runtimes": {"nvidia": {"path": "nvidia-container-runtime"}, "runc": {"path": "runc"}},
    "DefaultRuntime": "runc",
    "CDISpecDirs": ["/etc/cdi"],
    "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}],
    "SecurityOptions": ["name=seccomp,profile=builtin"],
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "DockerRootDir": "/var/lib/docker",
}


class _OnSocket(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self):
        request, _ = super().get_request()
        return request, ("local", 0)


class _OnPort(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


@contextmanager
def engine(path, *, answers, hang_at=""):
    """Serve `answers`, a whole resource or its last segment to its JSON; never answer at the segment `hang_at`.

    On the unix socket `path`, or on a free port when that is None.
    """
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            segment = self.path.rpartition("/")[2]
            if segment == hang_at:
                released.wait(20)
                return
            key = self.path if self.path in answers else segment
            body = answers.get(key, "page not found")
            text = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(200 if key in answers else 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format, *args):
            return

    server = _OnSocket(str(path), Handler) if path else _OnPort(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"unix://{path}" if path else f"tcp://127.0.0.1:{server.server_address[1]}"
    finally:
        released.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def silent_socket(path):
    """A unix socket that accepts every connection and never says a word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        yield f"unix://{path}"


@contextmanager
def raw_socket(path, reply):
    """A unix socket that reads a request, sends `reply` as it is, and hangs up."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(4096)
            self.request.sendall(reply)

    server = _OnSocket(str(path), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"unix://{path}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
