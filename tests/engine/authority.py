"""A company's certificate authority and a server that only those who trust it can read."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .cache import made_once
from .commands import run
from .network import ADDRESS

HOST = ADDRESS.partition("/")[0]
LOCAL_AUTHORITIES = Path("/usr/local/share/ca-certificates")
GREETING = b"only for those who trust the company\n"


@dataclass(frozen=True)
class Authority:
    """`bundle` is what a developer hands to --ca-certificate; the rest is for the server."""

    bundle: Path
    certificate: Path
    key: Path


def provide() -> Authority:
    """The authority, made once. The bundle also holds this machine's own, in case it sits behind a proxy."""
    folder = made_once("authority", _make)
    own = [path.read_text(encoding="ascii") for path in sorted(LOCAL_AUTHORITIES.glob("*.crt"))]
    bundle = folder / "company.pem"
    bundle.write_text("".join([(folder / "ca.pem").read_text(encoding="ascii"), *own]), encoding="ascii")
    return Authority(bundle, folder / "server.pem", folder / "server.key")


def _make(folder: Path) -> None:
    subject = ["-subj", "/O=Devkit Test Company/CN=Devkit Test Authority"]
    authority = ["-keyout", folder / "ca.key", "-out", folder / "ca.pem", "-days", "3650", "-nodes"]
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    run(["openssl", "req", "-x509", "-newkey", "rsa:2048", *authority, *subject, *usage])
    request = ["-keyout", folder / "server.key", "-out", folder / "server.csr", "-nodes", "-subj", f"/CN={HOST}"]
    run(["openssl", "req", "-newkey", "rsa:2048", *request])
    extensions = folder / "server.ext"
    extensions.write_text(f"subjectAltName=IP:{HOST}\nextendedKeyUsage=serverAuth\n", encoding="ascii")
    signing = ["-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "3650"]
    files = ["-in", folder / "server.csr", "-out", folder / "server.pem", "-extfile", extensions]
    run(["openssl", "x509", "-req", *files, *signing])


class _Greeter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Greet."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(GREETING)))
        self.end_headers()
        self.wfile.write(GREETING)

    def log_message(self, format: str, *words: object) -> None:
        """Stay quiet."""


@contextmanager
def serving(authority: Authority) -> Iterator[str]:
    """The URL of a TLS server on the bridge, whose certificate the company signed."""
    server = ThreadingHTTPServer((HOST, 0), _Greeter)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate, authority.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"https://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
