"""Checks of the container engine, its daemon and the docker command."""

import pytest

from devkit.doctor.model import Found, Passed, RepairKind, Restart, Severity, Side, Skipped
from devkit.doctor.thresholds import CLOCK_SKEW_S
from devkit.facts.model import (
    Client,
    Compose,
    CredentialHelper,
    DaemonFile,
    DockerSettings,
    Endpoint,
    EngineEnd,
    EngineFailure,
    EngineKind,
    Platform,
    Proxy,
    Runtime,
)
from devkit.facts.values import Unknown
from tests.doctor.machines import (
    ARCH,
    DEBIAN,
    FEDORA,
    LEAP,
    NIXOS,
    ROCKY,
    UBUNTU,
    changed,
    healthy,
    r,
    spec,
    windows_guest,
    without_gpu,
)
from tests.doctor.running import build_full_report, find_all, find_codes, find_only, run_check

DEFAULT = Endpoint("unix:///var/run/docker.sock", "default")
ROOTLESS = Endpoint("unix:///run/user/1000/docker.sock", "DOCKER_HOST")
ONLY_RUNC = (Runtime("runc", "runc"),)
NO_OFFER = {
    "engine.runtimes": ONLY_RUNC,
    "engine.cdi_devices": (),
    "engine.hook_on_path": False,
    "toolkit.version": None,
    "toolkit.hook_path": "",
    "toolkit.daemon_files": (),
    "cdi": (),
}


def silent(end, endpoint=DEFAULT, message="it said nothing"):
    return changed(healthy(), {"engine": EngineFailure(end, endpoint, message)})


CLIENT_ALONE = changed(silent(EngineEnd.NOT_RUNNING), {"clients.engine_programs": ()})


@pytest.mark.parametrize(
    ("facts", "severity", "says", "command"),
    [
        pytest.param(CLIENT_ALONE, "error", "no container engine is", "docker.io", id="the docker command alone"),
        pytest.param(silent(EngineEnd.NOT_INSTALLED), "warning", "no container engine", "docker.io", id="none"),
        pytest.param(silent(EngineEnd.NOT_RUNNING), "error", "does not run", "systemctl enable", id="stopped"),
        pytest.param(
            silent(EngineEnd.NOT_RUNNING, ROOTLESS),
            "error",
            "does not run",
            "systemctl --user",
            id="rootless and stopped",
        ),
        pytest.param(silent(EngineEnd.TIMED_OUT), "error", "hangs", "systemctl restart docker", id="hung"),
        pytest.param(
            silent(EngineEnd.TIMED_OUT, ROOTLESS), "error", "hangs", "systemctl --user restart", id="rootless and hung"
        ),
        pytest.param(
            silent(EngineEnd.BAD_ENDPOINT, Endpoint("tcp://nowhere:2375", "DOCKER_HOST")),
            "error",
            "tcp://nowhere:2375",
            "unset DOCKER_HOST",
            id="a wrong DOCKER_HOST",
        ),
        pytest.param(
            silent(EngineEnd.BAD_ENDPOINT, Endpoint("unix:///gone.sock", "context work")),
            "error",
            "unix:///gone.sock",
            "docker context use default",
            id="a wrong context",
        ),
        pytest.param(
            silent(EngineEnd.BAD_ENDPOINT, Endpoint("ssh://gpu-box", "DOCKER_HOST")),
            "error",
            "ssh://gpu-box",
            "devkit doctor",
            id="an engine behind ssh",
        ),
        pytest.param(
            silent(EngineEnd.NOT_RUNNING, Endpoint("unix:///old/docker.sock", "DOCKER_HOST")),
            "error",
            "DOCKER_HOST points to unix:///old/docker.sock, where no engine listens",
            "unset DOCKER_HOST",
            id="a DOCKER_HOST that leads nowhere",
        ),
        pytest.param(
            silent(EngineEnd.NOT_RUNNING, Endpoint("unix:///var/run/docker.sock", "DOCKER_HOST")),
            "error",
            "does not run",
            "systemctl enable",
            id="a DOCKER_HOST that is the usual socket",
        ),
        pytest.param(silent(EngineEnd.ERROR), "error", "an error", "journalctl", id="an engine that only errs"),
        pytest.param(
            changed(silent(EngineEnd.NOT_RUNNING), {"system.runs_systemd": False}),
            "error",
            "does not run",
            "sudo service docker start",
            id="stopped without systemd",
        ),
    ],
)
def test_why_no_engine_answers(facts, severity, says, command):
    finding = find_only("ENG001", facts)
    assert finding.severity.value == severity
    assert says in finding.message
    assert any(command in line for line in finding.fix.commands)


@pytest.mark.parametrize(
    ("member", "active", "commands"),
    [
        pytest.param(False, False, ("sudo usermod -aG docker $USER", "newgrp docker"), id="not a member"),
        pytest.param(True, False, ("newgrp docker",), id="a member since this session began"),
        pytest.param(Unknown("?"), Unknown("?"), ("sudo usermod -aG docker $USER", "newgrp docker"), id="nobody knows"),
    ],
)
def test_who_may_open_the_socket(member, active, commands):
    facts = changed(
        silent(EngineEnd.PERMISSION_DENIED),
        {"system.in_docker_group": member, "system.docker_group_is_active": active},
    )
    fix = find_only("ENG001", facts).fix
    assert fix.commands == commands
    assert fix.restart is Restart.LOGIN
    assert fix.root is (len(commands) > 1)


@pytest.mark.parametrize(
    ("platform", "side"),
    [(Platform.MACOS, Side.HOST), (Platform.WINDOWS, Side.WINDOWS)],
    ids=["on a Mac", "on Windows"],
)
def test_docker_desktop_is_started_not_installed_again(platform, side):
    facts = changed(silent(EngineEnd.NOT_RUNNING), {"system.platform": platform})
    fix = find_only("ENG001", facts).fix
    assert "Start Docker Desktop" in fix.summary
    assert fix.where is side
    assert fix.commands == ()


def test_wsl_names_the_desktop_integration():
    facts = changed(windows_guest(), {"engine": EngineFailure(EngineEnd.NOT_RUNNING, DEFAULT, "refused")})
    fix = find_only("ENG001", facts).fix
    assert "WSL integration" in fix.summary
    assert fix.where is Side.WSL


def test_an_invalid_settings_file_is_why_the_daemon_does_not_start():
    facts = changed(
        silent(EngineEnd.NOT_RUNNING),
        {"toolkit.daemon_files": (DaemonFile("/etc/docker/daemon.json", "line 3 column 1: expected ','", False),)},
    )
    report = build_full_report(facts)
    assert report.root_causes == ("ENG006",)
    assert [shown.check.code for shown in report.following("ENG006")] == ["ENG001"]


@pytest.mark.parametrize(
    ("chosen_by", "command"),
    [("context desktop-linux", "docker context use default"), ("DOCKER_HOST", "unset DOCKER_HOST")],
    ids=["by a context", "by a variable"],
)
def test_docker_desktop_on_linux_has_no_gpu(chosen_by, command):
    endpoint = Endpoint("unix:///home/dev/.docker/desktop/docker.sock", chosen_by)
    facts = changed(
        healthy(),
        {
            "engine.kind": EngineKind.DOCKER_DESKTOP,
            "engine.endpoint": endpoint,
            "engine.runtimes": ONLY_RUNC,
            "engine.cdi_devices": (),
        },
    )
    report = build_full_report(facts)
    assert report.root_causes == ("ENG002",)
    assert report.roots[0].finding.fix.commands == (command,)


@pytest.mark.parametrize(
    ("runtimes", "severity"),
    [(ONLY_RUNC, Severity.ERROR), ((Runtime("nvidia", "x"), *ONLY_RUNC), Severity.WARNING)],
    ids=["without GPUs", "with a runtime all the same"],
)
def test_docker_from_a_snap(runtimes, severity):
    facts = changed(
        healthy(), {"engine.is_snap": True, "engine.root_dir": "/var/snap/docker", "engine.runtimes": runtimes}
    )
    assert find_only("ENG003", facts).severity is severity


def test_podman_behind_dockers_socket():
    facts = changed(healthy(), {"engine.kind": EngineKind.PODMAN, "engine.version": r("5.6.2")})
    assert "Podman 5.6.2" in find_only("ENG004", facts).evidence[0]
    own = changed(facts, {"engine.endpoint": Endpoint("unix:///run/user/1000/podman/podman.sock", "DOCKER_HOST")})
    assert run_check("ENG004", own) == Passed()


@pytest.mark.parametrize(
    ("compose", "verdict"),
    [
        pytest.param(Compose(r("1.28.0")), Passed, id="exactly the floor"),
        pytest.param(Compose(r("1.27.4")), Found, id="just below the floor"),
        pytest.param(None, Found, id="no plugin"),
        pytest.param(Unknown("it hung"), Skipped, id="no answer"),
    ],
)
def test_compose_can_request_gpus(compose, verdict):
    assert isinstance(run_check("ENG005", changed(healthy(), {"compose": compose})), verdict)


def test_a_remote_engine_is_judged_on_its_own_machine():
    facts = changed(healthy(), {"engine.endpoint": Endpoint("tcp://10.0.0.5:2376", "DOCKER_HOST")} | NO_OFFER)
    assert find_codes(facts) == []
    assert find_only("ENG007", facts).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        (UBUNTU, "sudo apt-get install -y nvidia-container-toolkit"),
        (DEBIAN, "sudo apt-get install -y nvidia-container-toolkit"),
        (FEDORA, "sudo dnf install -y nvidia-container-toolkit"),
        (ROCKY, "sudo dnf install -y nvidia-container-toolkit"),
        (LEAP, "sudo zypper --gpg-auto-import-keys install -y nvidia-container-toolkit"),
        (ARCH, "sudo pacman -S --needed nvidia-container-toolkit"),
        (NIXOS, "sudo nixos-rebuild switch"),
    ],
    ids=lambda value: getattr(value, "name", "its command"),
)
def test_a_missing_toolkit_is_the_root_with_this_distributions_commands(distribution, command):
    report = build_full_report(changed(healthy(), NO_OFFER | {"system.distribution": distribution}))
    assert report.root_causes == ("CTK001",)
    assert command in report.roots[0].finding.fix.commands
    assert {shown.check.code for shown in report.following("CTK001")} == {"CTK002", "CTK003"}


@pytest.mark.parametrize(
    ("changes", "restart"),
    [
        pytest.param({}, "sudo systemctl restart docker", id="Docker under systemd"),
        pytest.param({"system.runs_systemd": False}, "sudo service docker restart", id="without systemd"),
        pytest.param({"engine.is_rootless": True}, "systemctl --user restart docker", id="rootless"),
    ],
)
def test_the_right_unit_is_restarted(changes, restart):
    assert restart in find_only("CTK001", changed(healthy(), NO_OFFER | changes)).fix.commands


def test_rootless_docker_is_configured_in_the_users_file():
    commands = find_only("CTK001", changed(healthy(), NO_OFFER | {"engine.is_rootless": True})).fix.commands
    assert any("--config=$HOME/.config/docker/daemon.json" in command for command in commands)


def test_a_toolkit_that_the_daemon_does_not_see():
    facts = changed(healthy(), NO_OFFER | {"toolkit.version": r("1.18.2")})
    assert "does not find its hook" in find_only("CTK001", facts).message


def test_podman_needs_a_specification_not_a_runtime():
    facts = changed(
        healthy(),
        NO_OFFER
        | {
            "toolkit.version": r("1.18.2"),
            "engine.kind": EngineKind.PODMAN,
            "engine.cdi_devices": Unknown("not listed"),
            "engine.endpoint": Endpoint("unix:///run/user/1000/podman/podman.sock", "default"),
        },
    )
    report = build_full_report(facts)
    assert report.root_causes == ("CTK002",)
    assert report.roots[0].finding.fix.commands == ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)
    assert run_check("CTK002", changed(facts, {"cdi": (spec(),)})) == Passed()


def test_a_runtime_that_waits_for_a_restart():
    facts = changed(healthy(), {"engine.runtimes": ONLY_RUNC, "engine.cdi_devices": ()})
    finding = find_only("CTK003", facts)
    assert "/etc/docker/daemon.json registers" in finding.message
    assert finding.fix.commands == ("sudo systemctl restart docker",)


@pytest.mark.parametrize(
    ("version", "mode", "cgroups", "cdi", "verdict"),
    [
        pytest.param("1.17.9", "auto", "systemd", (), Found, id="legacy by default before 1.18"),
        pytest.param("1.18.0", "auto", "systemd", (), Passed, id="no longer legacy from 1.18 on"),
        pytest.param("1.20.0", "legacy", "systemd", (), Found, id="legacy by choice"),
        pytest.param("1.17.9", "auto", "cgroupfs", (), Passed, id="another cgroup driver"),
        pytest.param("1.17.9", "auto", "systemd", ("nvidia.com/gpu=all",), Passed, id="CDI is there"),
        pytest.param("1.17.9", "cdi", "systemd", (), Passed, id="mode cdi"),
    ],
)
def test_gpus_lost_at_a_reload_are_predicted(version, mode, cgroups, cdi, verdict):
    changes = {
        "toolkit.version": r(version),
        "toolkit.mode": mode,
        "engine.cgroup_driver": cgroups,
        "engine.cdi_devices": cdi,
    }
    assert isinstance(run_check("CTK004", changed(healthy(), changes)), verdict)


@pytest.mark.parametrize(
    ("rootless", "no_cgroups", "cdi", "severity"),
    [
        pytest.param(True, False, (), "error", id="rootless may not write device rules"),
        pytest.param(True, True, (), None, id="rootless, and set so"),
        pytest.param(True, False, ("nvidia.com/gpu=all",), None, id="rootless by CDI"),
        pytest.param(False, True, (), "error", id="copied from a rootless guide"),
        pytest.param(False, True, ("nvidia.com/gpu=all",), "warning", id="copied, but CDI is there"),
        pytest.param(False, False, (), None, id="as it comes"),
    ],
)
def test_no_cgroups(rootless, no_cgroups, cdi, severity):
    facts = changed(
        healthy(), {"engine.is_rootless": rootless, "toolkit.no_cgroups": no_cgroups, "engine.cdi_devices": cdi}
    )
    verdict = run_check("CTK005", facts)
    assert (verdict.findings[0].severity.value if isinstance(verdict, Found) else None) == severity


@pytest.mark.parametrize(
    ("version", "holes"), [("1.17.8", 0), ("1.17.7", 2), ("1.16.1", 9)], ids=["patched", "one behind", "long ago"]
)
def test_security_fixes_of_the_toolkit(version, holes):
    verdict = run_check("CTK006", changed(healthy(), {"toolkit.version": r(version)}))
    found = verdict.findings[0].evidence[1].count("CVE-") if isinstance(verdict, Found) else 0
    assert found == holes


def test_a_driver_root_left_behind():
    facts = changed(healthy(), {"toolkit.driver_root": "/run/nvidia/driver"})
    assert "/run/nvidia/driver" in find_only("CTK007", facts).message
    assert run_check("CTK007", changed(facts, {"driver.libnvidia_ml": None})) == Passed()


def test_a_stale_specification_is_written_anew_in_place():
    facts = changed(healthy(), {"cdi": (spec(path="/var/run/cdi/nvidia.yaml", driver=r("570.86.15")),)})
    finding = find_only("CDI001", facts)
    assert finding.message == "/var/run/cdi/nvidia.yaml describes driver 570.86.15, but 580.95.05 is loaded"
    assert finding.fix.commands == ("sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml",)


@pytest.mark.parametrize(
    ("kind", "version", "cdi_version", "verdict"),
    [
        pytest.param(EngineKind.PODMAN, "4.9.3", "0.7.0", Found, id="Podman of Ubuntu 24.04"),
        pytest.param(EngineKind.PODMAN, "5.1.0", "0.7.0", Passed, id="the first Podman that can"),
        pytest.param(EngineKind.PODMAN, "4.9.3", "0.6.0", Passed, id="an older specification"),
        pytest.param(EngineKind.DOCKER, "26.0.2", "0.7.0", Found, id="Docker just too old"),
        pytest.param(EngineKind.DOCKER, "26.1.0", "0.7.0", Passed, id="the first Docker that can"),
    ],
)
def test_specification_newer_than_the_engine(kind, version, cdi_version, verdict):
    facts = changed(
        healthy(), {"engine.kind": kind, "engine.version": r(version), "cdi": (spec(cdi_version=cdi_version),)}
    )
    assert isinstance(run_check("CDI002", facts), verdict)


@pytest.mark.parametrize(
    ("specification", "says"),
    [
        (spec(kind="", devices=(), error="this user may not read it"), "this user may not read it"),
        (spec(devices=()), "it names no device"),
    ],
    ids=["unreadable", "empty"],
)
def test_specifications_that_cannot_be_used(specification, says):
    assert says in find_only("CDI003", changed(healthy(), {"cdi": (specification,)})).message


def test_no_engine_on_a_laptop_without_a_gpu_is_no_more_than_a_warning():
    facts = changed(without_gpu(), {"engine": EngineFailure(EngineEnd.NOT_INSTALLED, DEFAULT, "")})
    assert build_full_report(facts).health.value == "warnings"


@pytest.mark.parametrize(
    ("hook", "verdict"),
    [
        pytest.param(True, Passed, id="with its hook"),
        pytest.param(False, Found, id="from the base package, which has no hook"),
        pytest.param(Unknown("the daemon is not visible"), Passed, id="where nobody can see the hook"),
    ],
)
def test_a_registered_runtime_needs_the_hook_for_device_requests(hook, verdict):
    facts = changed(healthy(), {"engine.hook_on_path": hook, "engine.cdi_devices": (), "cdi": ()})
    assert isinstance(run_check("CTK001", facts), verdict)
    if verdict is Found:
        assert "sudo apt-get install -y nvidia-container-toolkit" in " ".join(find_only("CTK001", facts).fix.commands)


def test_a_node_that_runs_pods_without_docker_has_nothing_to_repair():
    failure = EngineFailure(EngineEnd.NOT_INSTALLED, DEFAULT, "", pod_runtime="CRI-O")
    finding = find_only("ENG001", changed(healthy(), {"engine": failure}))
    assert (finding.severity, finding.fix.commands) == (Severity.NOTE, ())
    assert finding.message.startswith("CRI-O runs the containers of this machine")


# Checks of the docker command, of engines beside each other, of proxies and clocks.


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
