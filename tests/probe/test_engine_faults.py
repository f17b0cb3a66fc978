"""Sockets that answer badly, and what an engine says of its clients, its proxy and its clock."""

import time

import pytest

from devkit.facts.model import Engine, EngineEnd, EngineFailure
from devkit.facts.values import Unknown
from devkit.probe.engine.daemon import compute_engine_clock_skew_s, parse_proxy, read_engine
from devkit.probe.host import LocalHost
from tests.probe.engines import INFO, VERSION, engine, raw_socket


@pytest.fixture
def ask(monkeypatch):
    """A function that reads the engine at an address."""
    for name in ("DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY"):
        monkeypatch.delenv(name, raising=False)

    def read(url, deadline_s=5.0):
        monkeypatch.setenv("DOCKER_HOST", url)
        return read_engine(LocalHost(), deadline_s=deadline_s)

    return read


@pytest.fixture
def path(tmp_path):
    return tmp_path / "engine.sock"


def answer(status, body, length=None):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        pytest.param(b"", EngineEnd.BAD_ENDPOINT, id="hangs up at once"),
        pytest.param(b"\x00\xff\x16\x03" * 50, EngineEnd.BAD_ENDPOINT, id="speaks something else"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", EngineEnd.BAD_ENDPOINT, id="is an ssh server"),
        pytest.param(answer("200 OK", b'{"Version": "28.', 900), EngineEnd.BAD_ENDPOINT, id="hangs up half way"),
        pytest.param(answer("200 OK", b"[" * 100_000), EngineEnd.BAD_ENDPOINT, id="nests without end"),
        pytest.param(answer("404 Not Found", b"no"), EngineEnd.BAD_ENDPOINT, id="knows no such path"),
        pytest.param(answer("403 Forbidden", b"authorization denied by plugin"), EngineEnd.BAD_ENDPOINT, id="forbids"),
        pytest.param(answer("500 Internal Server Error", b"oh"), EngineEnd.ERROR, id="is in trouble"),
        pytest.param(answer("503 Service Unavailable", b"wait"), EngineEnd.ERROR, id="is not ready yet"),
    ],
)
def test_a_socket_that_answers_badly(ask, path, reply, end):
    with raw_socket(path, reply) as url:
        failure = ask(url)
    assert isinstance(failure, EngineFailure)
    assert failure.end is end
    assert failure.message


def test_an_engine_whose_settings_fail_is_an_engine_with_an_error(ask, path):
    with engine(path, answers={"version": VERSION, "info": "<html>proxy error</html>"}) as url:
        failure = ask(url)
    assert failure.end is EngineEnd.ERROR


def test_an_engine_in_front_of_the_deadline(ask, path):
    with engine(path, answers={"version": VERSION, "info": INFO | {"SystemTime": "2001-01-01T00:00:00Z"}}) as url:
        started = time.time()
        found = ask(url)
    assert isinstance(found, Engine)
    assert found.min_api_version == "1.24"
    assert abs(found.clock_ahead_s - (978_307_200 - started)) < 5
    assert found.proxy == Unknown("this engine does not say whether it uses a proxy")


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        pytest.param({"HttpProxy": "", "HttpsProxy": ""}, "", id="none"),
        pytest.param({"HttpProxy": "http://a:1", "HttpsProxy": "http://b:2"}, "http://b:2", id="the one for https"),
        pytest.param({"HttpProxy": "http://a:1"}, "http://a:1", id="the other one"),
        pytest.param({"HttpsProxy": "http://xxxxx:xxxxx@b:2"}, "http://b:2", id="without its login"),
        pytest.param({"HttpsProxy": None, "HttpProxy": None}, "", id="nulls"),
        pytest.param({}, Unknown("this engine does not say whether it uses a proxy"), id="no proxy in the answer"),
    ],
)
def test_the_proxy_of_the_engine(info, expected):
    assert parse_proxy(info) == expected


@pytest.mark.parametrize(
    ("told", "read_at", "expected"),
    [
        pytest.param("2025-11-21T12:00:00.123456789Z", 1763726400.0, 0, id="the same second"),
        pytest.param("2025-11-21T13:00:00+01:00", 1763726400.0, 0, id="another zone"),
        pytest.param("2025-11-21T11:00:00Z", 1763726400, -3600, id="an hour behind"),
        pytest.param("", 1763726400.0, Unknown("the engine does not say what time it is"), id="no time in the answer"),
        pytest.param("yesterday", 1.0, Unknown("the engine does not say what time it is"), id="garbage"),
        pytest.param("2025-11-21T11:00:00Z", None, Unknown("the moment of asking was not recorded"), id="not recorded"),
    ],
)
def test_the_clock_of_the_engine(told, read_at, expected):
    assert compute_engine_clock_skew_s({"SystemTime": told}, read_at) == expected
