"""A registry for OCI artifacts on the loopback address: what the dev container CLI publishes to and takes from.

The parts of the distribution specification that Templates need: blobs, manifests and tags, kept in memory.
Source: https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

import hashlib
import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


class _Handler(BaseHTTPRequestHandler):
    blobs: ClassVar[dict[str, bytes]]
    manifests: ClassVar[dict[tuple[str, str], bytes]]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_POST(self) -> None:
        self._body()
        self._answer(202, headers={"Location": f"{self.path}{uuid.uuid4()}", "Docker-Upload-UUID": "x"})

    def do_PUT(self) -> None:
        content, path = self._body(), urlsplit(self.path)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if found := re.fullmatch(r"/v2/(.+)/manifests/(.+)", path.path):
            self.manifests[found[1], found[2]] = self.manifests[found[1], digest] = content
        elif parse_qs(path.query)["digest"] == [digest]:
            self.blobs[digest] = content
        else:
            return self._answer(400)
        return self._answer(201, headers={"Location": self.path, "Docker-Content-Digest": digest})

    def _get(self) -> None:
        path = urlsplit(self.path).path
        if found := re.fullmatch(r"/v2/(.+)/tags/list", path):
            tags = sorted(tag for name, tag in self.manifests if name == found[1] and not tag.startswith("sha256:"))
            document = {"name": found[1], "tags": tags}
            return self._answer(200 if tags else 404, json.dumps(document).encode(), kind="application/json")
        if found := re.fullmatch(r"/v2/(.+)/manifests/(.+)", path):
            return self._found(self.manifests.get((found[1], found[2])), MANIFEST_TYPE)
        if found := re.fullmatch(r"/v2/.+/blobs/(.+)", path):
            return self._found(self.blobs.get(found[1]), "application/octet-stream")
        return self._answer(200 if path == "/v2/" else 404)

    def _found(self, content: bytes | None, kind: str) -> None:
        if content is None:
            return self._answer(404)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return self._answer(200, content, kind=kind, headers={"Docker-Content-Digest": digest})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(
        self, code: int, content: bytes = b"", *, kind: str = "text/plain", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_words: object) -> None:
        """Say nothing: pytest shows what a failing test needs."""


@contextmanager
def oci_registry() -> Iterator[str]:
    """Run a registry; gives its `localhost:port`, for which the dev container CLI speaks plain HTTP."""
    handler = type("Handler", (_Handler,), {"blobs": {}, "manifests": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
