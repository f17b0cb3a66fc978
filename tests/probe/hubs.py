"""Servers that behave like the model hub, or like one that cannot be reached."""

import ssl
import subprocess
import threading
from contextlib import contextmanager
from email.utils import formatdate
from time import time

from tests.loopback import QuietHandler, serving


@contextmanager
def hub(*, answers=None, ahead_s=0, hang_at="", certificate=None, seen=None, texts=None):
    """Serve `answers`, a path to its status and the hub's word for an error; 200 for everything else.

    Its clock runs `ahead_s` seconds before this one. It never answers at the path `hang_at`. With `certificate`, the
    path of a file with key and certificate, it speaks TLS. Requests go into the list `seen` as method, path, login.
    `texts` are the bodies of its answers to GET, by path.
    """
    released = threading.Event()

    class Handler(QuietHandler):
        def do_HEAD(self):  # noqa: N802
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

        do_GET = do_HEAD  # noqa: N815 - a name that http.server calls

    with serving(Handler, prepare=lambda server: speak_tls(server, certificate)) as url:
        try:
            yield url.replace("http", "https") if certificate else url
        finally:
            released.set()


def speak_tls(server, certificate):
    """Wrap the server's socket; a client that hangs up on an unknown certificate is no news."""
    if not certificate:
        return
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
