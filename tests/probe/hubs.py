"""Servers that behave like the model hub, or like one that cannot be reached."""

import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time


@contextmanager
def hub(*, answers=None, ahead_s=0, hang_at="", certificate=None, seen=None, texts=None):
    """Serve `answers`, a path to its status and the hub's word for an error; 200 for everything else.

    Its clock runs `ahead_s` seconds before this one. It never answers at the path `hang_at`. With `certificate`, the
    path of a file with key and certificate, it speaks TLS. Requests go into the list `seen` as method, path, login.
    `texts` are the bodies of its answers to GET, by path.
    """
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            if seen is not None:
                seen.append((self.command, self.path, self.headers.get("Authorization", "")))
            if hang_at and self.path.startswith(hang_at):
                released.wait(20)
                return
            status, error = (answers or {}).get(self.path, (200, ""))
            self.send_response_only(status)
            self.send_header("Date", formatdate(time() + ahead_s, usegmt=True))
            self.send_header("X-Error-Code", error)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            body = (texts or {}).get(self.path, "").encode() if self.command == "GET" else b""
            self.send_header("Content-Length", f"{len(body)}")
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.do_HEAD()

        def log_message(self, format, *args):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate:
        speak_tls(server, certificate)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def speak_tls(server, certificate):
    """Wrap the server's socket; a client that hangs up on an unknown certificate is no news."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None


def own_certificate(folder):
    """A file with a key and an untrusted certificate for 127.0.0.1."""
    path = folder / "hub.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{path}.key", "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(folder.joinpath("hub.pem.key").read_text() + folder.joinpath("hub.pem.crt").read_text())
    return path


def closed_port():
    """A closed port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
