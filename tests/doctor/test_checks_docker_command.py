"""Checks of the docker command, of engines beside each other, of proxies and clocks."""

import pytest

from devkit.doctor.model import Found, Passed, RepairKind, Restart, Severity, Side, Skipped
from devkit.doctor.thresholds import CLOCK_SKEW_S
from devkit.facts.model import (
    Client,
    CredentialHelper,
    DockerSettings,
    Endpoint,
    EngineEnd,
    EngineFailure,
    EngineKind,
    Platform,
    Proxy,
)
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, r, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_all, find_codes, find_only, run_check

UNREAD = Unknown("not read here")
CONFIG = "/home/dev/.docker/config.json"
THROUGH = (Proxy("HTTPS_PROXY", "http://proxy.example:3128"),)


def docker(**changes):
    values = {
        "name": "docker",
        "path": "/usr/bin/docker",
        "version": r("28.5.1"),
        "real_path": "/usr/bin/docker",
        "is_podman": False,
    }
    return (Client(**values | changes),)


def with_docker(engine=None, **changes):
    return changed(healthy(), {"clients.found": docker(**changes), **(engine or {})})


@pytest.mark.parametrize(
    ("version", "minimum", "verdict"),
    [
        pytest.param(r("28.5.1"), "1.24", Passed, id="a current command"),
        pytest.param(r("19.03.0"), "1.24", Passed, id="the first with --gpus"),
        pytest.param(r("18.09.9"), "1.24", Found, id="the last without --gpus"),
        pytest.param(r("25.0.0"), "1.44", Passed, id="the oldest that Docker 29 serves"),
        pytest.param(r("24.0.9"), "1.44", Found, id="too old for Docker 29"),
        pytest.param(r("24.0.9"), "1.77", Passed, id="an API version that the table does not know"),
        pytest.param(r("24.0.9"), UNREAD, Passed, id="an engine that does not say"),
        pytest.param(UNREAD, "1.44", Skipped, id="a command that does not say"),
    ],
)
def test_the_docker_command_is_new_enough(version, minimum, verdict):
    assert isinstance(run_check("ENG011", with_docker({"engine.min_api_version": minimum}, version=version)), verdict)


def test_a_machine_without_the_docker_command_is_not_judged():
    facts = changed(healthy(), {"clients.found": ()})
    for code in ("ENG011", "ENG012", "ENG014"):
        assert run_check(code, facts) == Skipped("there is no docker command on this side")


@pytest.mark.parametrize(
    ("is_podman", "engine", "severity"),
    [
        pytest.param(False, {}, None, id="Docker's own"),
        pytest.param(True, {}, "note", id="Podman of unknown version"),
        pytest.param(True, {"engine.kind": EngineKind.PODMAN, "engine.version": r("4.9.4")}, "warning", id="Podman 4"),
        pytest.param(True, {"engine.kind": EngineKind.PODMAN, "engine.version": r("5.0.0")}, "note", id="Podman 5"),
    ],
)
def test_docker_that_is_podman(is_podman, engine, severity):
    facts = changed(with_docker(engine, is_podman=is_podman), {"engine.endpoint": Endpoint("unix:///p.sock", "x")})
    verdict = run_check("ENG012", facts)
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


def test_podman_as_command_and_behind_the_socket_is_one_cause():
    podman = {"engine.kind": EngineKind.PODMAN, "engine.version": r("4.9.4"), "engine.cdi_devices": UNREAD}
    report = build_full_report(with_docker(podman, is_podman=True))
    assert "ENG012" in [shown.check.code for shown in report.following("ENG004")]


def test_podman_without_a_gpu_is_nobodys_business():
    assert isinstance(run_check("ENG012", changed(without_gpu(), {"clients.found": docker(is_podman=True)})), Skipped)


@pytest.mark.parametrize(
    ("helpers", "count"),
    [
        pytest.param((), 0, id="no helper"),
        pytest.param((CredentialHelper("pass", "/usr/bin/docker-credential-pass", ""),), 0, id="a helper on PATH"),
        pytest.param((CredentialHelper("desktop.exe", "", ""),), 1, id="a helper that left"),
        pytest.param((CredentialHelper("ecr-login", "", "aws.example"), CredentialHelper("x", "", "")), 2, id="two"),
    ],
)
def test_helpers_for_logins(helpers, count):
    facts = changed(healthy(), {"clients.settings": DockerSettings(CONFIG, "", helpers, False)})
    verdict = run_check("ENG014", facts)
    assert (len(verdict.findings) if isinstance(verdict, Found) else 0) == count


@pytest.mark.parametrize(
    ("registry", "key"), [("", ("credsStore",)), ("aws.example", ("credHelpers", "aws.example"))], ids=["all", "one"]
)
def test_a_missing_helper_is_repaired_in_the_users_own_file(registry, key):
    helper = CredentialHelper("gone", "", registry)
    facts = changed(healthy(), {"clients.settings": DockerSettings(CONFIG, "", (helper,), False)})
    (repair,) = find_only("ENG014", facts).fix.repairs
    assert (repair.kind, repair.path, repair.key) == (RepairKind.REMOVE, CONFIG, key)


def test_settings_that_do_not_parse():
    broken = DockerSettings(CONFIG, "line 1, column 2: Expecting property name", (), False)
    assert "line 1, column 2" in find_only("ENG014", changed(healthy(), {"clients.settings": broken})).message
    assert isinstance(run_check("ENG014", changed(healthy(), {"clients.settings": UNREAD})), Skipped)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(healthy(), Passed, id="one package"),
        pytest.param(
            changed(healthy(), {"clients.engine_programs": ("/usr/bin/dockerd", "/snap/bin/docker")}),
            Found,
            id="a package and a snap",
        ),
        pytest.param(changed(healthy(), {"clients.engine_programs": ("/snap/bin/docker",)}), Passed, id="a snap alone"),
        pytest.param(windows_guest(), Passed, id="Docker Desktop alone"),
        pytest.param(
            changed(windows_guest(), {"clients.engine_programs": ("/usr/bin/dockerd",)}), Found, id="both in WSL"
        ),
        pytest.param(
            changed(windows_guest(), {"clients.engine_programs": ("/usr/bin/dockerd",), "wsl.desktop_tools": False}),
            Passed,
            id="WSL with an engine of its own alone",
        ),
        pytest.param(changed(healthy(), {"clients.engine_programs": UNREAD}), Skipped, id="not read"),
    ],
)
def test_one_docker_on_this_side(facts, verdict):
    assert isinstance(run_check("ENG009", facts), verdict)


def test_a_snap_that_answers_beside_a_package_is_one_cause():
    facts = changed(
        healthy(),
        {
            "engine.is_snap": True,
            "engine.root_dir": "/var/snap/docker/common",
            "clients.engine_programs": ("/usr/bin/dockerd", "/snap/bin/docker"),
        },
    )
    report = build_full_report(facts)
    assert report.root_causes == ("ENG003",)
    assert "ENG009" in [shown.check.code for shown in report.following("ENG003")]


@pytest.mark.parametrize(
    ("version", "kind", "verdict"),
    [
        pytest.param("19.03.0", EngineKind.DOCKER, Passed, id="the first with device requests"),
        pytest.param("18.09.9", EngineKind.DOCKER, Found, id="the last without"),
        pytest.param("4.9.4", EngineKind.PODMAN, Skipped, id="Podman counts otherwise"),
    ],
)
def test_the_engine_is_new_enough(version, kind, verdict):
    facts = changed(healthy(), {"engine.version": r(version), "engine.kind": kind})
    assert isinstance(run_check("ENG010", facts), verdict)


def test_docker_desktop_on_windows_is_explained_and_healthy():
    assert find_only("ENG008", windows_guest()).severity is Severity.NOTE
    assert find_codes(windows_guest()) == []
    assert isinstance(run_check("ENG008", healthy()), Skipped)


@pytest.mark.parametrize(
    ("changes", "severities"),
    [
        pytest.param({}, [], id="no proxy anywhere"),
        pytest.param({"hub.proxies": THROUGH}, ["warning", "note"], id="the shell alone"),
        pytest.param({"hub.proxies": THROUGH, "engine.proxy": "http://proxy:1"}, ["note"], id="shell and daemon"),
        pytest.param({"hub.proxies": (Proxy("ALL_PROXY", "socks5://x:1"),)}, [], id="a variable Docker does not read"),
        pytest.param(
            {
                "hub.proxies": THROUGH,
                "engine.proxy": "http://proxy:1",
                "clients.settings": DockerSettings(CONFIG, "", (), True),
            },
            [],
            id="shell, daemon and containers",
        ),
    ],
)
def test_the_proxy_of_the_shell_and_of_the_daemon(changes, severities):
    verdict = run_check("ENG013", changed(healthy(), changes))
    findings = verdict.findings if isinstance(verdict, Found) else ()
    assert [finding.severity.value for finding in findings] == severities


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "sudo systemctl daemon-reload"),
        ({"engine.is_rootless": True}, "systemctl --user daemon-reload"),
        ({"system.runs_systemd": False}, "sudo service docker restart"),
    ],
    ids=["under systemd", "rootless", "without systemd"],
)
def test_the_daemon_gets_its_proxy_as_this_machine_does_it(changes, command):
    finding = find_all("ENG013", changed(healthy(), {"hub.proxies": THROUGH, **changes}))[0]
    assert command in finding.fix.commands
    assert finding.fix.restart is Restart.ENGINE


@pytest.mark.parametrize(
    "changes",
    [{"engine.kind": EngineKind.DOCKER_DESKTOP}, {"engine.kind": EngineKind.PODMAN}, {"engine.proxy": UNREAD}],
    ids=["Docker Desktop", "Podman", "an engine that does not say"],
)
def test_engines_with_proxies_of_their_own_are_not_accused(changes):
    facts = changed(healthy(), {"hub.proxies": THROUGH, **changes})
    assert isinstance(run_check("ENG013", facts), Skipped)


@pytest.mark.parametrize(
    ("ahead", "verdict"),
    [
        pytest.param(CLOCK_SKEW_S.value, Passed, id="as far as is allowed"),
        pytest.param(CLOCK_SKEW_S.value + 1, Found, id="ahead"),
        pytest.param(-CLOCK_SKEW_S.value - 1, Found, id="behind"),
        pytest.param(UNREAD, Skipped, id="not told"),
    ],
)
def test_the_clock_of_the_engine(ahead, verdict):
    assert isinstance(run_check("ENG015", changed(healthy(), {"engine.clock_ahead_s": ahead})), verdict)


def test_the_clock_of_a_virtual_machine_is_set_by_its_restart():
    desktop = {"engine.kind": EngineKind.DOCKER_DESKTOP, "engine.clock_ahead_s": -3600}
    assert find_only("ENG015", changed(healthy(), desktop)).fix.commands == ("docker desktop restart",)
    elsewhere = {"engine.endpoint": Endpoint("tcp://x:1", "DOCKER_HOST"), "engine.clock_ahead_s": -3600}
    assert isinstance(run_check("ENG015", changed(healthy(), elsewhere)), Skipped)


SILENT = EngineFailure(EngineEnd.NOT_RUNNING, Endpoint("unix:///var/run/docker.sock", "default"), "missing")
ONLY_WINDOWS = docker(path="/mnt/c/Program Files/Docker/Docker/resources/bin/docker")


@pytest.mark.parametrize(
    ("changes", "says", "side"),
    [
        pytest.param(
            {"clients.found": ONLY_WINDOWS}, "integration is off", Side.WINDOWS, id="integration switched off"
        ),
        pytest.param({}, "does not run", Side.WSL, id="a docker command of the guest's own"),
        pytest.param({"clients": UNREAD}, "does not run", Side.WSL, id="commands that were not read"),
    ],
)
def test_docker_desktop_that_does_not_reach_the_guest(changes, says, side):
    finding = find_only("ENG001", changed(windows_guest(), {"engine": SILENT, **changes}))
    assert says in finding.message
    assert finding.fix.where is side


def test_wsl_without_systemd_is_told_how_services_start():
    facts = changed(windows_guest(), {"engine": SILENT, "system.runs_systemd": False})
    finding = find_only("ENG001", facts)
    assert "systemd=true" in finding.fix.summary
    assert finding.fix.commands == ("sudo service docker start",)


def test_wsl1_is_converted():
    facts = changed(
        windows_guest(),
        {"engine": SILENT, "system.platform": Platform.WSL1, "clients.found": ONLY_WINDOWS, "wsl": None},
    )
    assert "--set-version" in find_only("ENG001", facts).fix.commands[1]
