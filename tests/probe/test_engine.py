import json
import os
import subprocess
import sys
import time

import pytest

from devkit.facts.model import Endpoint, Engine, EngineEnd, EngineFailure, EngineKind
from devkit.facts.values import Unknown
from devkit.probe.engine.daemon import read_engine
from devkit.probe.host import LocalHost
from tests.hosts import written
from tests.probe.engines import INFO, VERSION, engine, silent_socket

DEADLINE_S = 5.0


@pytest.fixture
def ask(monkeypatch):
    """Ask for the engine at a URL, as DOCKER_HOST would name it."""

    def read(url, deadline_s=DEADLINE_S):
        monkeypatch.setenv("DOCKER_HOST", url)
        for name in ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
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


@pytest.mark.clock
def test_an_engine_on_a_port_that_never_answers_ends_within_the_deadline(ask):
    started = time.monotonic()
    with engine(None, answers={}, hang_at="version") as url:
        failure = ask(url, deadline_s=3.0)
    assert time.monotonic() - started < 4
    assert failure.end is EngineEnd.TIMED_OUT


@pytest.mark.parametrize(
    ("version", "info", "field", "value"),
    [
        pytest.param({}, {"OperatingSystem": "Docker Desktop"}, "kind", EngineKind.DOCKER_DESKTOP, id="Desktop"),
        pytest.param({"Components": [{"Name": "Podman Engine"}]}, {}, "kind", EngineKind.PODMAN, id="Podman"),
        pytest.param({"Components": None}, {}, "kind", EngineKind.DOCKER, id="an engine without components"),
        pytest.param({}, {"SecurityOptions": ["name=rootless"]}, "is_rootless", True, id="rootless"),
        pytest.param({}, {"SecurityOptions": ["name=selinux"]}, "has_selinux", True, id="SELinux"),
        pytest.param({}, {"SecurityOptions": None}, "has_selinux", False, id="no security options"),
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
    assert "answered nothing" in failure.message


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


@pytest.mark.parametrize("answers", [{"version": "<html>hello</html>"}, {}], ids=["another answer", "an error"])
@pytest.mark.parametrize("on_port", [True, False], ids=["on a port", "on a socket"])
def test_a_listener_that_is_no_engine_is_named_so(ask, path, answers, on_port):
    with engine(None if on_port else path, answers=answers) as url:
        failure = ask(url)
    assert failure.end is EngineEnd.BAD_ENDPOINT


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


@pytest.mark.parametrize(
    ("program", "end"),
    [
        pytest.param("", EngineEnd.NOT_INSTALLED, id="no engine program"),
        pytest.param("/usr/bin/docker", EngineEnd.NOT_RUNNING, id="the docker command"),
        pytest.param("/opt/bin/podman", EngineEnd.NOT_RUNNING, id="Podman on PATH"),
        pytest.param("/elsewhere/docker", EngineEnd.NOT_INSTALLED, id="a program that is not on PATH"),
    ],
)
def test_not_installed_differs_from_not_running(tmp_path, program, end):
    nodes = f'"{program}" = {{ kind = "file", mode = 0o755 }}' if program else ""
    host = written(
        tmp_path,
        f"""
        [env]
        PATH = "/opt/bin"
        [nodes]
        {nodes}
        [[command]]
        argv = ["{{python}}", "-P", "{{devkit}}/ask_engine.py", "unix:///var/run/docker.sock"]
        out = '''{MISSING}'''
        """,
    )
    assert read_engine(host, deadline_s=1).end is end


def test_a_chosen_socket_that_is_missing_means_not_running(tmp_path):
    host = written(
        tmp_path,
        f"""
        [env]
        DOCKER_HOST = "unix:///chosen.sock"
        [[command]]
        argv = ["{{python}}", "-P", "{{devkit}}/ask_engine.py", "unix:///chosen.sock"]
        out = '''{MISSING}'''
        """,
    )
    assert read_engine(host, deadline_s=1).end is EngineEnd.NOT_RUNNING


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
    host = written(
        tmp_path,
        f"""
[files]
{files}
[nodes]
"/opt/gpu/nvidia-container-runtime-hook" = {{ kind = "file", mode = 0o755 }}
[[command]]
argv = ["{{python}}", "-P", "{{devkit}}/ask_engine.py", "unix:///var/run/docker.sock"]
out = '''{said}'''
""",
    )
    hook = read_engine(host, deadline_s=1).hook_on_path
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
    url = "unix:///var/run/docker.sock"
    commands = f"""
    [[command]]
    argv = ["{{python}}", "-P", "{{devkit}}/ask_engine.py", "{url}"]
    out = '''{MISSING}'''
    [[command]]
    argv = ["/usr/bin/podman", "info", "--format=json"]
    out = '''{json.dumps(info)}'''
    """
    return read_engine(written(tmp_path, f"[env]\n{env}\n[nodes]\n{nodes}\n{commands}"), deadline_s=5)


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
    [[command]]
    argv = ["{{python}}", "-P", "{{devkit}}/ask_engine.py", "unix:///var/run/docker.sock"]
    out = '''{info}'''
    """
    nvidia, _ = read_engine(written(tmp_path, text), deadline_s=5).runtimes
    assert nvidia.program == program.format(tmp_path)
