"""The engine over sockets that behave like one, or like one that is broken; and where it is asked."""

import hashlib
import json
import os
import subprocess
import sys
import time

import pytest

from devkit.facts.engine import Endpoint, Engine, EngineEnd, EngineFailure, EngineKind
from devkit.facts.values import Unknown
from devkit.probe.engine.client import resolve_endpoint
from devkit.probe.engine.daemon import compute_engine_clock_skew_s, parse_proxy, read_engine
from devkit.probe.host import LocalHost
from tests.cases import cases
from tests.hosts import written
from tests.probe.engines import INFO, VERSION, engine, raw_socket, silent_socket

DEADLINE_S = 5.0


@pytest.fixture
def ask(monkeypatch):
    """Ask for the engine at a URL, as DOCKER_HOST would name it."""

    def read(url, deadline_s=DEADLINE_S):
        monkeypatch.setenv("DOCKER_HOST", url)
        for name in ("DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
            monkeypatch.delenv(name, raising=False)
        return read_engine(LocalHost(), deadline_s=deadline_s)

    return read


@pytest.fixture
def path(tmp_path):
    return tmp_path / "engine.sock"


def test_an_engine_says_what_it_is(ask, path):
    with engine(path, answers={"version": VERSION, "info": INFO}) as url:
        found = ask(url)
    assert isinstance(found, Engine)
    assert found.endpoint == Endpoint(url, "DOCKER_HOST")
    assert (found.kind, str(found.version), found.api_version) == (EngineKind.DOCKER, "28.5.2", "1.51")
    assert [(one.name, one.path) for one in found.runtimes] == [
        ("nvidia", "nvidia-container-runtime"),
        ("runc", "runc"),
    ]
    assert found.cdi_devices == ("nvidia.com/gpu=all",)
    assert (found.is_rootless, found.has_selinux, found.is_snap) == (False, False, False)


def test_an_engine_on_a_port_says_the_same(ask):
    with engine(None, answers={"version": VERSION, "info": INFO}) as url:
        found = ask(url)
    assert (str(found.version), found.api_version, found.default_runtime) == ("28.5.2", "1.51", "runc")
    assert found.hook_on_path == Unknown("the engine is not on this machine")


def test_a_proxy_for_the_web_is_not_used_for_an_engine(ask, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with engine(None, answers={"version": VERSION, "info": INFO}) as url:
        assert isinstance(ask(url), Engine)


@pytest.mark.parametrize(
    ("version", "info", "field", "value"),
    [
        pytest.param({}, {"OperatingSystem": "Docker Desktop"}, "kind", EngineKind.DOCKER_DESKTOP, id="Desktop"),
        pytest.param({"Components": [{"Name": "Podman Engine"}]}, {}, "kind", EngineKind.PODMAN, id="Podman"),
        pytest.param({"Components": None}, {}, "kind", EngineKind.DOCKER, id="an engine without components"),
        pytest.param({}, {"SecurityOptions": ["name=rootless"]}, "is_rootless", True, id="rootless"),
        pytest.param({}, {"SecurityOptions": ["name=selinux"]}, "has_selinux", True, id="SELinux"),
        pytest.param({}, {"DockerRootDir": "/var/snap/docker/common/x"}, "is_snap", True, id="snap"),
        pytest.param({}, {"Runtimes": None}, "runtimes", (), id="no runtimes"),
        pytest.param({}, {"CDISpecDirs": None}, "cdi_spec_dirs", (), id="CDI switched off"),
        pytest.param({"ApiVersion": "1.50"}, {"DiscoveredDevices": None}, "cdi_devices", (), id="first API that lists"),
        pytest.param(
            {"ApiVersion": "1.49"},
            {"DiscoveredDevices": None},
            "cdi_devices",
            Unknown("this engine's API does not list CDI devices"),
            id="last API that does not",
        ),
    ],
)
def test_each_trait_is_read_from_its_own_field(ask, path, version, info, field, value):
    with engine(path, answers={"version": VERSION | version, "info": INFO | info}) as url:
        assert getattr(ask(url), field) == value


@pytest.mark.clock
def test_a_socket_that_accepts_and_never_answers_ends_within_the_deadline(ask, path):
    started = time.monotonic()
    with silent_socket(path) as url:
        failure = ask(url, deadline_s=3.0)
    assert time.monotonic() - started < 4
    assert failure.end is EngineEnd.TIMED_OUT
    assert "did not respond" in failure.message


@pytest.mark.full
@pytest.mark.clock
def test_an_engine_stuck_in_its_settings_ends_within_the_deadline(ask, path):
    started = time.monotonic()
    with engine(path, answers={"version": VERSION}, hang_at="info") as url:
        unread = ask(url, deadline_s=3.0)
    assert time.monotonic() - started < 5
    assert unread.is_lost
    assert "its version, but not its settings" in unread.reason


def test_a_socket_file_without_a_listener_is_refused(ask, path):
    with silent_socket(path) as url:
        pass
    failure = ask(url)
    assert failure.end is EngineEnd.NOT_RUNNING
    assert failure.message.startswith("Connection refused")


@pytest.mark.parametrize(
    ("url", "end", "message"),
    [
        pytest.param("unix:///nowhere/x.sock", EngineEnd.NOT_RUNNING, "No such file", id="no socket"),
        pytest.param("tcp://127.0.0.1:9", EngineEnd.NOT_RUNNING, "Connection refused", id="a closed port"),
        pytest.param("tcp://no-such.invalid:2375", EngineEnd.BAD_ENDPOINT, "no-such.invalid", id="no such host"),
        pytest.param("tcp://localhost:port", EngineEnd.BAD_ENDPOINT, "port", id="a port that is no number"),
        pytest.param("ssh://me@gpu-box", EngineEnd.BAD_ENDPOINT, "run devkit on that machine", id="over ssh"),
        pytest.param("carrier-pigeon://x", EngineEnd.BAD_ENDPOINT, "is not an address", id="an unknown scheme"),
    ],
)
def test_every_dead_end_says_why(ask, url, end, message):
    failure = ask(url)
    assert isinstance(failure, EngineFailure)
    assert failure.end is end
    assert message in failure.message


def test_a_socket_that_this_user_may_not_use_is_denied(path):
    with silent_socket(path) as url:
        path.chmod(0)
        script = (
            "from devkit.probe.host import LocalHost; from devkit.probe.engine.daemon import read_engine;"
            "print(read_engine(LocalHost(), deadline_s=5).end)"
        )
        # Root passes every permission by a capability; without it, it is a user like any other.
        humbly = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*humbly, sys.executable, "-c", script],
            env={**os.environ, "DOCKER_HOST": url},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.strip() == EngineEnd.PERMISSION_DENIED


def test_tls_without_certificates_is_a_bad_endpoint(monkeypatch, tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
        (tmp_path / "cert.pem").write_text("no certificate")
        failure = read_engine(LocalHost(), deadline_s=5)
    assert isinstance(failure, EngineFailure)
    assert failure.end is EngineEnd.BAD_ENDPOINT


MISSING = '{"failed": "missing", "message": "No such file or directory: /var/run/docker.sock"}'


def read_recorded(folder, out, text="", *, url="unix:///var/run/docker.sock", code=0):
    """Read the engine of a machine on which the child that asks at this URL prints `out`."""
    argv = f'["{{python}}", "-P", "{{devkit}}/ask_engine.py", "{url}"]'
    host = written(folder, f"{text}\n[[command]]\nargv = {argv}\ncode = {code}\nout = '''{out}'''\n")
    return read_engine(host, deadline_s=DEADLINE_S)


@pytest.mark.parametrize(
    ("program", "end"),
    [
        pytest.param("", EngineEnd.NOT_INSTALLED, id="no engine program"),
        pytest.param("/usr/bin/docker", EngineEnd.NOT_RUNNING, id="the docker command"),
        pytest.param("/opt/bin/podman", EngineEnd.CANNOT_START, id="a Podman on PATH that fails"),
        pytest.param("/elsewhere/docker", EngineEnd.NOT_INSTALLED, id="a program that is not on PATH"),
    ],
)
def test_not_installed_differs_from_not_running(tmp_path, program, end):
    nodes = f'"{program}" = {{ kind = "file", mode = 0o755 }}' if program else ""
    assert read_recorded(tmp_path, MISSING, f'[env]\nPATH = "/opt/bin"\n[nodes]\n{nodes}').end is end


def test_a_chosen_socket_that_is_missing_means_not_running(tmp_path):
    chosen = "unix:///chosen.sock"
    found = read_recorded(tmp_path, MISSING, f'[env]\nDOCKER_HOST = "{chosen}"', url=chosen)
    assert found.end is EngineEnd.NOT_RUNNING


DAEMON = '"/proc/{0}/comm" = "dockerd\\n"\n'
PATH_OF = '"/proc/{0}/environ" = "HOME=/\\u0000PATH={1}\\u0000"\n'
SYSTEMD = '"/proc/1/comm" = "systemd\\n"\n'


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param(DAEMON.format(7) + PATH_OF.format(7, "/opt/gpu"), True, id="on the listener's own PATH"),
        pytest.param(DAEMON.format(7) + PATH_OF.format(7, "/usr/bin"), False, id="not on the listener's own PATH"),
        pytest.param(SYSTEMD + DAEMON.format(9) + PATH_OF.format(9, "/opt/gpu"), True, id="behind systemd's socket"),
        pytest.param(DAEMON.format(7), False, id="an unreadable environment means systemd's PATH"),
        pytest.param('"/proc/self/x" = ""\n', None, id="a daemon that cannot be seen from here"),
    ],
)
def test_the_hook_is_looked_for_where_the_daemon_looks(tmp_path, files, found):
    listener = 1 if files.startswith(SYSTEMD) else 7
    said = "\n".join(json.dumps(line) for line in ({"listener_pid": listener}, {"version": VERSION}, {"info": INFO}))
    nodes = '"/opt/gpu/nvidia-container-runtime-hook" = { kind = "file", mode = 0o755 }'
    hook = read_recorded(tmp_path, said, f"[files]\n{files}\n[nodes]\n{nodes}").hook_on_path
    assert (None if isinstance(hook, Unknown) else hook) is found


PODMAN_INFO = {
    "host": {
        "remoteSocket": {"path": "unix:///run/user/1000/podman/podman.sock", "exists": False},
        "security": {"rootless": True},
    },
    "store": {"graphRoot": "/home/dev/.local/share/containers/storage"},
    "version": {"Version": "5.6.2"},
}


def without_socket(tmp_path, *, programs=("podman",), info=PODMAN_INFO, env=""):
    nodes = "".join(f'"/usr/bin/{name}" = {{ kind = "file", mode = 0o755 }}\n' for name in programs)
    podman = f"""[[command]]\nargv = ["/usr/bin/podman", "info", "--format=json"]\nout = '''{json.dumps(info)}'''"""
    return read_recorded(tmp_path, MISSING, f"[env]\n{env}\n[nodes]\n{nodes}\n{podman}")


def test_podman_without_its_socket_is_an_engine(tmp_path):
    found = without_socket(tmp_path)
    assert isinstance(found, Engine)
    assert (found.kind, found.is_rootless, str(found.version)) == (EngineKind.PODMAN, True, "5.6.2")
    assert found.endpoint == Endpoint("unix:///run/user/1000/podman/podman.sock", "podman info")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"programs": ("podman", "dockerd")}, id="beside a Docker daemon that does not run"),
        pytest.param({"programs": ()}, id="no Podman"),
        pytest.param({"info": "Error"}, id="a Podman that fails"),
    ],
)
def test_an_engine_that_does_not_run_stays_silent(tmp_path, changes):
    assert isinstance(without_socket(tmp_path, **changes), EngineFailure)


@cases(
    "out, said",
    {
        "says so": ('{"failed": "no-sdk", "message": "No module named docker"}', "No module named docker"),
        "last line": ("Segmentation fault", "Segmentation fault"),
    },
)
def test_a_child_that_could_not_ask_is_told_in_its_own_words(tmp_path, out, said):
    found = read_recorded(tmp_path, out, code=1)
    assert found == Unknown(f"the engine child ended with status 1: {said}", is_lost=True)


@pytest.mark.parametrize(
    ("folder", "program"),
    [pytest.param("bin", "{}/bin/nvidia-container-runtime", id="there"), pytest.param("other", "", id="elsewhere")],
)
def test_the_program_of_a_runtime_is_looked_up_where_the_daemon_would(tmp_path, folder, program):
    daemon, runtime = tmp_path / "bin", tmp_path / folder / "nvidia-container-runtime"
    info = json.dumps({"info": INFO, "version": VERSION})
    text = f"""
    [files]
    "/proc/7/comm" = "dockerd\\n"
    "/proc/7/environ" = "PATH={daemon}\\u0000"
    [nodes]
    "{runtime}" = {{ kind = "file", mode = 0o755 }}
    """
    nvidia, _ = read_recorded(tmp_path, info, text).runtimes
    assert nvidia.program == program.format(tmp_path)


# Sockets that answer badly, and what an engine says of its clients, its proxy and its clock.


def answer(status, body, length=None):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        pytest.param(b"", EngineEnd.BAD_ENDPOINT, id="hangs up at once"),
        pytest.param(answer("200 OK", b'{"Version": "28.', 900), EngineEnd.BAD_ENDPOINT, id="hangs up half way"),
        pytest.param(answer("200 OK", b"[" * 100_000), EngineEnd.BAD_ENDPOINT, id="nests without end"),
        pytest.param(answer("403 Forbidden", b"authorization denied by plugin"), EngineEnd.BAD_ENDPOINT, id="forbids"),
        pytest.param(answer("500 Internal Server Error", b"oh"), EngineEnd.ERROR, id="is in trouble"),
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
    assert found.proxy == Unknown("this engine does not report whether it uses a proxy")


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        pytest.param({"HttpProxy": "", "HttpsProxy": ""}, "", id="none"),
        pytest.param({"HttpProxy": "http://a:1", "HttpsProxy": "http://b:2"}, "http://b:2", id="the one for https"),
        pytest.param({"HttpProxy": "http://a:1"}, "http://a:1", id="the other one"),
        pytest.param({"HttpsProxy": "http://xxxxx:xxxxx@b:2"}, "http://b:2", id="without its login"),
        pytest.param({"HttpsProxy": None, "HttpProxy": None}, "", id="nulls"),
        pytest.param({}, Unknown("this engine does not report whether it uses a proxy"), id="no proxy in the answer"),
    ],
)
def test_the_proxy_of_the_engine(info, expected):
    assert parse_proxy(info) == expected


@cases(
    "told, read_at, expected",
    {
        "the same second": ("2025-11-21T12:00:00.123456789Z", 1763726400.0, 0),
        "another zone": ("2025-11-21T13:00:00+01:00", 1763726400.0, 0),
        "an hour behind": ("2025-11-21T11:00:00Z", 1763726400, -3600),
        "no time in the answer": ("", 1763726400.0, Unknown("the engine does not report its time")),
        "garbage": ("yesterday", 1.0, Unknown("the engine does not report its time")),
        "not recorded": ("2025-11-21T11:00:00Z", None, Unknown("the time of the request was not recorded")),
    },
)
def test_the_clock_of_the_engine(told, read_at, expected):
    assert compute_engine_clock_skew_s({"SystemTime": told}, read_at) == expected


def context(name, host):
    folder = hashlib.sha256(name.encode()).hexdigest()
    meta = json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}})
    return f"\"/h/.docker/contexts/meta/{folder}/meta.json\" = '{meta}'\n"


CURRENT = '"/h/.docker/config.json" = \'{"currentContext": "far"}\'\n'
FAR, NEAR = context("far", "tcp://far:2376"), context("near", "unix:///near.sock")


def machine(tmp_path, env="", files="", nodes=()):
    sockets = "".join(f'"{path}" = {{ kind = "socket" }}\n' for path in nodes)
    return written(tmp_path, f'[env]\nHOME = "/h"\n{env}\n[files]\n{files}\n[nodes]\n{sockets}')


@cases(
    "env, files, url, chosen_by",
    {
        "no settings": ("", "", "unix:///var/run/docker.sock", "default"),
        "DOCKER_HOST": ('DOCKER_HOST = "unix:///x.sock"', "", "unix:///x.sock", "DOCKER_HOST"),
        "no scheme is TCP": ('DOCKER_HOST = "10.0.0.1:2375"', "", "tcp://10.0.0.1:2375", "DOCKER_HOST"),
        "a path is no port": ('DOCKER_HOST = "unix:/x.sock"', "", "unix:/x.sock", "DOCKER_HOST"),
        "a password is not kept": ('DOCKER_HOST = "ssh://me:pw@h"', "", "ssh://me@h", "DOCKER_HOST"),
        "empty is unset": ('DOCKER_HOST = ""', "", "unix:///var/run/docker.sock", "default"),
        "the current context": ("", CURRENT + FAR, "tcp://far:2376", "context far"),
        "a variable over it": (
            'DOCKER_CONTEXT = "near"',
            CURRENT + FAR + NEAR,
            "unix:///near.sock",
            "DOCKER_CONTEXT=near",
        ),
        "the address over the variable": (
            'DOCKER_HOST = "unix:///x.sock"\nDOCKER_CONTEXT = "near"',
            NEAR,
            "unix:///x.sock",
            "DOCKER_HOST",
        ),
        "the default by name": ('DOCKER_CONTEXT = "default"', CURRENT + FAR, "unix:///var/run/docker.sock", "default"),
        "broken settings": ("", '"/h/.docker/config.json" = "{broken"', "unix:///var/run/docker.sock", "default"),
        "odd settings": ("", '"/h/.docker/config.json" = "[]"', "unix:///var/run/docker.sock", "default"),
        "Windows": ('OS = "Windows_NT"', "", "npipe:////./pipe/docker_engine", "default"),
        "settings elsewhere": ('DOCKER_CONFIG = "/c"', CURRENT + FAR, "unix:///var/run/docker.sock", "default"),
    },
)
def test_the_endpoint_is_chosen_as_the_docker_command_does(tmp_path, env, files, url, chosen_by):
    chosen = resolve_endpoint(machine(tmp_path, env, files))
    assert (chosen.endpoint.url, chosen.endpoint.chosen_by, chosen.problem) == (url, chosen_by, "")


RUN = 'XDG_RUNTIME_DIR = "/run/user/7"'
ROOTLESS, PODMAN = "/run/user/7/docker.sock", "/run/user/7/podman/podman.sock"


@pytest.mark.parametrize(
    ("nodes", "chosen_by"),
    [
        pytest.param(["/var/run/docker.sock", ROOTLESS, PODMAN], "default", id="the default first"),
        pytest.param([ROOTLESS, PODMAN], "rootless socket", id="then rootless Docker"),
        pytest.param([PODMAN, "/run/podman/podman.sock"], "rootless Podman socket", id="then rootless Podman"),
        pytest.param(["/run/podman/podman.sock"], "Podman socket", id="then the system's Podman"),
        pytest.param(["/h/.docker/run/docker.sock"], "Docker Desktop's own socket", id="Desktop on macOS"),
    ],
)
def test_without_the_default_socket_its_stand_ins_are_tried(tmp_path, nodes, chosen_by):
    endpoint = resolve_endpoint(machine(tmp_path, RUN, nodes=nodes)).endpoint
    assert (endpoint.url, endpoint.chosen_by) == (f"unix://{nodes[0]}", chosen_by)


def test_a_context_that_does_not_exist_or_is_for_another_kind_of_engine_is_a_problem(tmp_path):
    said = {"gone": "no Docker context is named 'gone'", "cloud": "the context 'cloud' has no Docker endpoint"}
    for name, problem in said.items():
        chosen = resolve_endpoint(machine(tmp_path, f'DOCKER_CONTEXT = "{name}"', context("cloud", "")))
        assert chosen.problem == problem


OF_FAR = f"/h/.docker/contexts/tls/{hashlib.sha256(b'far').hexdigest()}/docker"


@cases(
    "env, files, folder",
    {
        "not requested": ('DOCKER_HOST = "tcp://x:1"', "", None),
        "in its usual folder": ('DOCKER_HOST = "tcp://x:1"\nDOCKER_TLS_VERIFY = "1"', "", "/h/.docker"),
        "elsewhere": ('DOCKER_HOST = "tcp://x:1"\nDOCKER_TLS = "1"\nDOCKER_CERT_PATH = "/c"', "", "/c"),
        "of a context": ("", CURRENT + FAR + f'"{OF_FAR}/ca.pem" = "x"\n', OF_FAR),
    },
)
def test_tls_files_are_found_where_environment_and_context_say(tmp_path, env, files, folder):
    assert resolve_endpoint(machine(tmp_path, env, files)).tls_folder == folder
