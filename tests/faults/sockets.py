"""Sockets that answer as no engine should, by name."""

import itertools
import json
import socket
import threading
import time
from contextlib import contextmanager

from tests.probe.engines import INFO, VERSION


def reply(body, *, status="200 OK", headers=""):
    """A whole answer of HTTP."""
    text = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    return f"HTTP/1.1 {status}\r\n{headers}Content-Type: application/json\r\n\r\n".encode() + text


GOOD = {"/version": reply(VERSION), "/info": reply(INFO)}


def silent(connection, resource, released):
    released.wait(20)


def drip(connection, resource, released):
    for byte in itertools.cycle(b"HTTP/1.1 200 OK\r\n"):
        connection.sendall(bytes([byte]))
        if released.wait(0.05):
            return


def endless(head):
    def answer(connection, resource, released):
        connection.sendall(head)
        while not released.is_set():
            connection.sendall(b"X-Header: and so on\r\n" * 4096)

    return answer


def saying(content):
    return lambda connection, resource, released: connection.sendall(content)


def only(place, wrong):
    """A sound engine but for one resource."""

    def answer(connection, resource, released):
        if resource == place:
            wrong(connection, resource, released)
        else:
            connection.sendall(GOOD.get(resource, reply("page not found", status="404 Not Found")))

    return answer


HALF = GOOD["/info"][: len(GOOD["/info"]) // 2]
WRONG = {
    "never answers": silent,
    "drips": drip,
    "closes at once": saying(b""),
    "closes in the middle": saying(HALF),
    "says garbage": saying(bytes(range(256)) * 64),
    "speaks SSH": saying(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "sends headers without end": endless(b"HTTP/1.1 200 OK\r\n"),
    "sends a body without end": endless(b"HTTP/1.1 200 OK\r\n\r\n["),
    "sends chunks that are none": saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{\r\n-1\r\n"),
    "has an error": saying(reply('{"message": "boom"}', status="500 Internal Server Error")),
    "has an error and no words": saying(reply("", status="503 Service Unavailable")),
    "does not know the page": saying(reply("page not found", status="404 Not Found")),
    "sends elsewhere": saying(reply("", status="301 Moved Permanently", headers="Location: /login\r\n")),
    "is empty": saying(reply("")),
    "is not JSON": saying(reply("<html>Sign in</html>")),
    "is nested deeply": saying(reply("[" * 200_000)),
    "is null": saying(reply(None)),
    "is a list": saying(reply([1, 2])),
    "is a text": saying(reply('"ok"')),
    "is a number": saying(reply(7)),
    "is an empty object": saying(reply({})),
    "has no status": saying(b"\r\n\r\n{}"),
}


@contextmanager
def listening(path, answer):
    """Serve every connection on the Unix socket `path` with `answer(connection, resource, released)`."""
    released = threading.Event()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve(connection):
        with connection:
            connection.settimeout(20)
            try:
                words = connection.recv(65536).split()
                if len(words) > 1:
                    answer(connection, words[1].decode(), released)
            except OSError:
                return  # the child was killed

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"unix://{path}"
    finally:
        released.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        time.sleep(0)
