"""Checks of the container engine, its daemon and the docker command."""

import shlex

import pytest

from devkit.doctor.fixes import adapt_to_settings_files
from devkit.doctor.model import RepairKind, Severity, Skipped
from devkit.doctor.problems import list_problem_rows, show_commands
from devkit.doctor.signatures.catalog import PREFIXES, load_check_rows
from devkit.doctor.thresholds import CLOCK_SKEW_S
from devkit.facts.engine import (
    Client,
    Compose,
    CredentialHelper,
    DaemonFile,
    DockerSettings,
    Endpoint,
    EngineEnd,
    EngineFailure,
    EngineKind,
    Runtime,
)
from devkit.facts.machine import Platform
from devkit.facts.project import Project, Service, Setting
from devkit.facts.runs import ProgramFailure, Proxy
from devkit.facts.values import Unknown
from tests.cases import cases
from tests.doctor.judging import list_codes, list_wrong
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
    host,
    r,
    spec,
    windows_guest,
    without_gpu,
)
from tests.doctor.projects import read
from tests.doctor.running import build_full_report, find_codes, find_only, run_check

UNREAD = Unknown("not read here")
DEFAULT = Endpoint("unix:///var/run/docker.sock", "default")
BY_VARIABLE = Endpoint("unix:///var/run/docker.sock", "DOCKER_HOST")
ROOTLESS = Endpoint("unix:///run/user/1000/docker.sock", "DOCKER_HOST")
PODMANS = Endpoint("unix:///run/user/1000/podman/podman.sock", "DOCKER_HOST")
FAR = Endpoint("tcp://10.0.0.5:2376", "DOCKER_HOST")
ONLY_RUNC = (Runtime("runc", "runc"),)
NO_OFFER = {
    "engine.runtimes": ONLY_RUNC,
    "engine.cdi_devices": (),
    "engine.hook_on_path": False,
    "toolkit.version": None,
    "toolkit.daemon_files": (),
    "cdi": (),
}


def silent(end, endpoint=DEFAULT, message="it said nothing", facts=None, **changes):
    return host(host(facts, engine=EngineFailure(end, endpoint, message)), **changes)


def stopped(endpoint=DEFAULT, **changes):
    return silent(EngineEnd.NOT_RUNNING, endpoint, **changes)


def say(*words, program="dockerd", **changes):
    """No engine, and why, in the words of its program."""
    failure = ProgramFailure(program, words, "/var/log/docker.log", **changes)
    return host(engine=EngineFailure(EngineEnd.CANNOT_START, DEFAULT, "", said=(failure,), socket_kind=""))


def docker_fails(*variables):
    failure = ProgramFailure("docker version", ("client version 1.20 is too old",), works_without=variables)
    return host(clients__found=(Client("docker", "/usr/bin/docker", r("28.5.1"), False, failure),))


def bad(url, chosen_by):
    return silent(EngineEnd.BAD_ENDPOINT, Endpoint(url, chosen_by))


def refused(member, active):
    groups = {"system__in_docker_group": member, "system__docker_group_is_active": active}
    return silent(EngineEnd.PERMISSION_DENIED, **groups)


NO_ENGINE = silent(EngineEnd.NOT_INSTALLED)
RUNS_PODS = host(engine=EngineFailure(EngineEnd.NOT_INSTALLED, DEFAULT, "", pod_runtime="CRI-O"))
JOIN = "error: sudo usermod -aG docker $USER | newgrp docker | restart: login"
BY_WINDOWS_COMMAND = (Client("docker", "/mnt/c/Program Files/Docker/docker", r("28.5.1"), False),)
IN_WSL = {"facts": windows_guest()}


def client(version="28.5.1", is_podman=False, facts=None, **changes):
    """A machine with the docker command."""
    release = r(version) if isinstance(version, str) else version
    found = (Client("docker", "/usr/bin/docker", release, is_podman),)
    return host(facts, clients__found=found, **changes)


def serving(version, minimum):
    return client(version, engine__min_api_version=minimum)


def podman(version, **changes):
    return host(engine__kind=EngineKind.PODMAN, engine__version=r(version), **changes)


def settings(*helpers, error="", sets_proxy=False, **changes):
    return host(
        clients__settings=DockerSettings("/home/dev/.docker/config.json", error, helpers, sets_proxy), **changes
    )


def given(*proxies, network="bridge"):
    """The docker command gives containers these proxies, and the project has a service with this network."""
    own = Service("a", (), "compose.yaml", 1, None, None, (), (), (), (Setting("network", network, "compose.yaml", 1),))
    project = Project("/p", (), (), (own,), (), (), (), ())
    return changed(settings(sets_proxy=True), {"clients.settings.proxies": proxies, "project": project})


def programs(*paths, facts=None, **changes):
    return host(facts, clients__engine_programs=paths, **changes)


def proxied(name="HTTPS_PROXY", facts=None, **changes):
    return host(facts, hub__proxies=(Proxy(name, "http://proxy.example:3128"),), **changes)


def clock(ahead, **changes):
    return host(engine__clock_ahead_s=ahead, **changes)


def predicted(version, mode="auto", cgroups="systemd", cdi=()):
    toolkit = {"toolkit__version": r(version), "toolkit__mode": mode}
    return host(engine__cgroup_driver=cgroups, engine__cdi_devices=cdi, **toolkit)


def cgroups(*, rootless, left_out, cdi=()):
    return host(engine__is_rootless=rootless, toolkit__no_cgroups=left_out, engine__cdi_devices=cdi)


def specified(kind, version, cdi_version):
    return host(engine__kind=kind, engine__version=r(version), cdi=(spec(cdi_version=cdi_version),))


def no_offer(**changes):
    return host(changed(healthy(), NO_OFFER), **changes)


PASS = CredentialHelper("pass", "/usr/bin/docker-credential-pass", "")
GONE = CredentialHelper("desktop.exe", "", "")
ALL_CDI = ("nvidia.com/gpu=all",)
STALE = spec(path="/var/run/cdi/nvidia.yaml", driver=r("570.86.15"))
UNREADABLE = spec(kind="", devices=(), error="this user cannot read it")
SNAP = {"engine__is_snap": True, "engine__root_dir": "/var/snap/docker"}
BOTH_PROGRAMS = ("/usr/bin/dockerd", "/snap/bin/docker")
DESKTOP_LINUX = Endpoint("unix:///home/dev/.docker/desktop/docker.sock", "context desktop-linux")

NAMED = ("storage-driver in /etc/docker/daemon.json",)
BROKEN_COMPOSE = ProgramFailure("/usr/libexec/docker/cli-plugins/docker-compose", ("Exec format error",), status=126)
SHIM = ProgramFailure("/usr/local/bin/docker", ("exec: /usr/bin/podman: not found",), status=127)
TOO_NEW = ProgramFailure("/usr/bin/nvidia-ctk", ("libc.so.6: version `GLIBC_2.99' not found",))
NO_LFS = ProgramFailure("git-lfs", ("it is not installed",), status=127, needed_by=".gitattributes")
NO_AGENT = ProgramFailure(
    "ssh-add", ("Error connecting to agent: Connection refused",), status=2, needed_by="compose.yaml"
)
BROKEN_RUNC = ProgramFailure("/usr/bin/runc", ("its interpreter /x does not exist",), status=127)

CASES = [
    ("ENG018", healthy(), "passed", "an engine answers"),
    ("ENG018", say("failed: no such thing"), "error: dockerd fails: failed: no such thing | likely", "unknown words"),
    (
        "ENG018",
        say("btrfs?", settings=NAMED),
        "error: mentions storage-driver | sudoedit /etc/docker/daemon.json",
        "a setting",
    ),
    ("ENG018", say("no runtime", program="podman"), "error: podman fails | never Docker", "Podman says why"),
    (
        "ENG001",
        host(engine=EngineFailure(EngineEnd.PERMISSION_DENIED, DEFAULT, "", socket_group=0)),
        "error: belongs to root | docker.socket | never usermod",
        "a socket without the group docker",
    ),
    ("ENG001", say("failed: x"), "error: does not start", "an engine that said why"),
    ("ENG019", docker_fails("DOCKER_API_VERSION"), "error: unset DOCKER_API_VERSION | certain", "it works without"),
    ("ENG019", docker_fails("DOCKER_HOST", "DOCKER_TLS_VERIFY"), "error: unset DOCKER_HOST DOCKER_TLS_VERIFY", "two"),
    ("ENG019", docker_fails(), "passed", "it fails without any variable, too"),
    (
        "ENG019",
        host(clients__found=(Client("docker", SHIM.program, r("28.5.1"), False, SHIM),)),
        "error: docker cannot run: exec: /usr/bin/podman: not found | sudo rm /usr/local/bin/docker",
        "a script that starts a Podman which is not there",
    ),
    (
        "CTK018",
        host(programs=(BROKEN_COMPOSE,)),
        "warning: docker-compose cannot run: Exec format",
        "Compose is broken",
    ),
    (
        "CTK018",
        host(programs=(TOO_NEW,)),
        "error: GLIBC_2.99 | apt-get install -y --reinstall nvidia-container",
        "a loader",
    ),
    ("CTK018", host(programs=(NO_LFS,)), "passed", "the project alone needs it"),
    ("PRJ042", host(programs=(NO_LFS,)), "warning: git-lfs cannot run: it is not | --reinstall git-lfs", "no git-lfs"),
    ("PRJ042", host(programs=(NO_AGENT,)), "warning: Connection refused | ssh-agent -s", "an agent that is gone"),
    ("PRJ042", host(programs=(BROKEN_RUNC,)), "passed", "no file names it"),
    (
        "CTK018",
        host(programs=(BROKEN_RUNC,)),
        "error: runc cannot run: its | --reinstall $(dpkg -S /usr/bin/runc",
        "runc",
    ),
    ("ENG001", healthy(), "passed", "an engine answers"),
    ("ENG001", stopped(clients__engine_programs=()), "error: no container engine is | docker.io", "the command alone"),
    ("ENG001", NO_ENGINE, "warning: no container engine | docker.io", "none"),
    (
        "ENG001",
        RUNS_PODS,
        "note: CRI-O runs this machine's containers | never sudo",
        "a node that runs pods without Docker",
    ),
    ("ENG001", stopped(), "error: is not running | systemctl enable", "stopped"),
    ("ENG001", stopped(ROOTLESS), "error: is not running | systemctl --user", "rootless and stopped"),
    ("ENG001", stopped(system__runs_systemd=False), "error: sudo service docker start", "stopped without systemd"),
    ("ENG001", stopped(BY_VARIABLE), "error: is not running | systemctl enable", "DOCKER_HOST is the usual socket"),
    (
        "ENG001",
        stopped(Endpoint("unix:///old/docker.sock", "DOCKER_HOST")),
        "error: DOCKER_HOST points to unix:///old/docker.sock, where no engine listens | unset DOCKER_HOST",
        "a DOCKER_HOST that leads nowhere",
    ),
    ("ENG001", silent(EngineEnd.TIMED_OUT), "error: hangs | systemctl restart docker", "hung"),
    ("ENG001", silent(EngineEnd.TIMED_OUT, ROOTLESS), "error: hangs | systemctl --user restart", "rootless and hung"),
    ("ENG001", bad("tcp://nowhere:2375", "DOCKER_HOST"), "error: nowhere:2375 | unset DOCKER_HOST", "a wrong variable"),
    ("ENG001", bad("unix:///gone.sock", "context work"), "error: gone.sock | docker context use default", "context"),
    ("ENG001", bad("ssh://gpu-box", "DOCKER_HOST"), "error: ssh://gpu-box | devkit doctor", "an engine behind ssh"),
    ("ENG001", silent(EngineEnd.ERROR), "error: an error | journalctl", "an engine that only errs"),
    ("ENG001", refused(member=False, active=False), JOIN, "who is not a member of the group"),
    ("ENG001", refused(member=True, active=False), "error: newgrp docker | never usermod", "a member since then"),
    ("ENG001", refused(member=UNREAD, active=UNREAD), JOIN, "nobody knows who is a member"),
    ("ENG001", stopped(system__platform=Platform.MACOS), "error: Start Docker Desktop | never sudo", "on a Mac"),
    ("ENG001", stopped(system__platform=Platform.WINDOWS), "error: Start Docker Desktop | where: windows", "Windows"),
    ("ENG001", stopped(**IN_WSL), "error: is not running | WSL integration | where: wsl", "in WSL"),
    ("ENG001", stopped(**IN_WSL, clients=UNREAD), "error: is not running | where: wsl", "in WSL, commands unread"),
    (
        "ENG001",
        stopped(**IN_WSL, clients__found=BY_WINDOWS_COMMAND),
        "error: integration is off | where: windows",
        "in WSL, the integration is switched off",
    ),
    (
        "ENG001",
        stopped(**IN_WSL, system__runs_systemd=False),
        "error: systemd=true | sudo service docker start",
        "in WSL without systemd",
    ),
    (
        "ENG001",
        stopped(**IN_WSL, system__platform=Platform.WSL1, clients__found=BY_WINDOWS_COMMAND, wsl=None),
        "error: --set-version",
        "WSL 1 is converted",
    ),
    ("ENG003", host(**SNAP, engine__runtimes=ONLY_RUNC), "error", "a snap without GPUs"),
    ("ENG003", host(**SNAP), "warning", "a snap with a runtime all the same"),
    ("ENG004", podman("5.6.2"), "warning: Podman 5.6.2", "Podman behind Docker's socket"),
    ("ENG004", podman("5.6.2", engine__endpoint=PODMANS), "passed", "Podman behind its own"),
    ("ENG005", host(compose=Compose(r("1.28.0"))), "passed", "exactly the floor"),
    ("ENG005", host(compose=Compose(r("1.27.4"))), "error: 1.27.4", "just below the floor"),
    ("ENG005", host(compose=None), "warning", "no plugin"),
    ("ENG005", host(compose=UNREAD), "skipped", "no answer"),
    ("ENG007", no_offer(engine__endpoint=FAR), "note: tcp://10.0.0.5:2376", "an engine elsewhere"),
    ("ENG009", programs(*BOTH_PROGRAMS), "warning: /snap/bin/docker", "a package and a snap"),
    ("ENG009", programs("/snap/bin/docker"), "passed", "a snap alone"),
    ("ENG009", windows_guest(), "passed", "Docker Desktop alone"),
    ("ENG009", programs("/usr/bin/dockerd", **IN_WSL), "warning", "both in WSL"),
    ("ENG009", programs("/usr/bin/dockerd", **IN_WSL, wsl__desktop_tools=False), "passed", "WSL's own engine alone"),
    ("ENG009", host(clients__engine_programs=UNREAD), "skipped", "not read"),
    ("ENG010", host(engine__version=r("19.03.0")), "passed", "the first with device requests"),
    ("ENG010", host(engine__version=r("18.09.9")), "error: 18.09.9", "the last without"),
    ("ENG010", podman("4.9.4"), "skipped", "Podman counts otherwise"),
    ("ENG011", serving("28.5.1", "1.24"), "passed", "a current command"),
    ("ENG011", serving("19.03.0", "1.24"), "passed", "the first with --gpus"),
    ("ENG011", serving("18.09.9", "1.24"), "error: 18.09.9", "the last without --gpus"),
    ("ENG011", serving("25.0.0", "1.44"), "passed", "the oldest that Docker 29 serves"),
    ("ENG011", serving("24.0.9", "1.44"), "error: 24.0.9", "too old for Docker 29"),
    ("ENG011", serving("24.0.9", "1.77"), "passed", "an API version that the table does not know"),
    ("ENG011", serving("24.0.9", UNREAD), "passed", "an engine that does not say"),
    ("ENG011", serving(UNREAD, "1.44"), "skipped", "a command that does not say"),
    ("ENG012", client(), "passed", "Docker's own"),
    ("ENG012", client(is_podman=True), "note", "Podman of unknown version"),
    ("ENG012", client(is_podman=True, facts=podman("4.9.4", engine__endpoint=PODMANS)), "warning: 4.9.4", "Podman 4"),
    ("ENG012", client(is_podman=True, facts=podman("5.0.0", engine__endpoint=PODMANS)), "note", "Podman 5"),
    ("ENG012", client(is_podman=True, facts=without_gpu()), "skipped", "Podman without a GPU is nobody's business"),
    ("ENG013", healthy(), "passed", "no proxy anywhere"),
    ("ENG013", proxied(), "warning note: sudo systemctl daemon-reload | restart: engine", "the shell alone"),
    ("ENG013", proxied(engine__is_rootless=True), "warning note: systemctl --user daemon-reload", "rootless"),
    ("ENG013", proxied(system__runs_systemd=False), "warning note: sudo service docker restart", "without systemd"),
    ("ENG013", proxied(engine__proxy="http://proxy:1"), "note", "shell and daemon"),
    ("ENG013", given("http://127.0.0.1:3128"), "warning: itself | docker network inspect bridge", "loopback"),
    ("ENG013", given("localhost"), "warning", "loopback by name"),
    ("ENG013", given("http://127.0.0.1:1", network="host"), "passed", "loopback of this machine"),
    ("ENG013", given("http://localhost.corp:1", "http://10.0.0.1:1"), "passed", "proxies elsewhere"),
    ("ENG013", proxied("ALL_PROXY"), "passed", "a variable Docker does not read"),
    ("ENG013", proxied(facts=settings(sets_proxy=True), engine__proxy="http://proxy:1"), "passed", "all three"),
    ("ENG013", proxied(engine__kind=EngineKind.DOCKER_DESKTOP), "skipped", "Docker Desktop has its own"),
    ("ENG013", proxied(engine__kind=EngineKind.PODMAN), "skipped", "Podman"),
    ("ENG013", proxied(engine__proxy=UNREAD), "skipped", "an engine that does not say"),
    ("ENG014", settings(), "passed", "no helper"),
    ("ENG014", settings(PASS), "passed", "a helper on PATH"),
    ("ENG014", settings(GONE), "warning: desktop.exe", "a helper that left"),
    ("ENG014", settings(CredentialHelper("ecr-login", "", "aws.example"), GONE), "note warning: ecr-login", "two"),
    ("ENG014", settings(error="line 1, column 2: Expecting property name"), "warning: line 1, column 2", "broken"),
    ("ENG014", host(clients__settings=UNREAD), "skipped", "settings that were not read"),
    ("ENG015", clock(CLOCK_SKEW_S), "passed", "as far as is allowed"),
    ("ENG015", clock(CLOCK_SKEW_S + 1), "warning", "ahead"),
    ("ENG015", clock(-CLOCK_SKEW_S - 1), "warning", "behind"),
    ("ENG015", clock(UNREAD), "skipped", "not told"),
    (
        "ENG015",
        clock(-3600, engine__kind=EngineKind.DOCKER_DESKTOP),
        "warning: docker desktop restart",
        "a virtual one",
    ),
    ("ENG015", clock(-3600, engine__endpoint=FAR), "skipped", "an engine elsewhere"),
    ("CTK001", no_offer(), "error: sudo systemctl restart docker", "Docker under systemd"),
    ("CTK001", no_offer(system__runs_systemd=False), "error: sudo service docker restart", "without systemd"),
    (
        "CTK001",
        no_offer(engine__is_rootless=True),
        "error: systemctl --user restart docker | --config=$HOME/.config/docker/daemon.json",
        "rootless",
    ),
    ("CTK001", no_offer(toolkit__version=r("1.18.2")), "error: cannot find its hook", "a toolkit that is not seen"),
    (
        "CTK001",
        host(engine__hook_on_path=False, engine__cdi_devices=(), cdi=()),
        "error: sudo apt-get install -y nvidia-container-toolkit",
        "a registered runtime of the base package, which has no hook",
    ),
    ("CTK001", host(engine__hook_on_path=UNREAD, engine__cdi_devices=(), cdi=()), "passed", "nobody can see it"),
    (
        "CTK003",
        host(engine__runtimes=ONLY_RUNC, engine__cdi_devices=()),
        "warning: /etc/docker/daemon.json registers | sudo systemctl restart docker",
        "a runtime that waits for a restart",
    ),
    ("CTK004", predicted("1.17.9"), "warning", "legacy by default before 1.18"),
    ("CTK004", predicted("1.18.0"), "passed", "no longer legacy from 1.18 on"),
    ("CTK004", predicted("1.20.0", "legacy"), "warning", "legacy by choice"),
    ("CTK004", predicted("1.17.9", cgroups="cgroupfs"), "passed", "another cgroup driver"),
    ("CTK004", predicted("1.17.9", cdi=ALL_CDI), "passed", "CDI is there"),
    ("CTK005", cgroups(rootless=True, left_out=False), "error", "rootless may not write device rules"),
    ("CTK005", cgroups(rootless=True, left_out=False, cdi=ALL_CDI), "passed", "rootless by CDI"),
    ("CTK005", cgroups(rootless=False, left_out=True), "error", "copied from a rootless guide"),
    ("CTK005", cgroups(rootless=False, left_out=True, cdi=ALL_CDI), "warning", "copied, but CDI is there"),
    ("CTK005", cgroups(rootless=False, left_out=False), "passed", "as it comes"),
    ("CTK006", host(toolkit__version=r("1.17.8")), "passed", "every hole is closed"),
    ("CTK006", host(toolkit__version=r("1.17.7")), "warning: CVE-", "one behind"),
    ("CTK007", host(toolkit__driver_root="/run/nvidia/driver"), "error: /run/nvidia/driver", "a root left behind"),
    ("CTK007", host(toolkit__driver_root="/x", driver__libnvidia_ml=None), "passed", "the only root there is"),
    (
        "CDI001",
        host(cdi=(STALE,)),
        "error: describes driver 570.86.15, but 580.95.05 is loaded"
        " | sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml",
        "a specification of an older driver",
    ),
    ("CDI001", healthy(), "passed", "a specification of this driver"),
    ("CDI002", specified(EngineKind.PODMAN, "4.9.3", "0.7.0"), "error: 4.9.3 | 5.1.0", "Podman of Ubuntu 24.04"),
    ("CDI002", specified(EngineKind.PODMAN, "5.1.0", "0.7.0"), "passed", "the first Podman that can"),
    ("CDI002", specified(EngineKind.PODMAN, "4.9.3", "0.6.0"), "passed", "an older specification"),
    ("CDI002", specified(EngineKind.DOCKER, "26.0.2", "0.7.0"), "warning", "Docker just too old"),
    ("CDI002", specified(EngineKind.DOCKER, "26.1.0", "0.7.0"), "passed", "the first Docker that can"),
    ("CDI003", host(cdi=(UNREADABLE,)), "warning: this user cannot read it", "an unreadable specification"),
    ("CDI003", host(cdi=(spec(devices=()),)), "warning: it does not list a device", "an empty specification"),
    ("CDI003", healthy(), "passed", "a usable specification"),
]


def test_commands_edit_the_files_that_this_machine_reads():
    facts = host(toolkit__daemon_file="/etc/docker/my gpu.json", toolkit__config_path="/opt/nv.toml")
    configure, edit = "sudo nvidia-ctk runtime configure --runtime=docker", "sudo sed -i s/a/b/ /etc/docker/daemon.json"
    assert [
        adapt_to_settings_files(each, facts) for each in (configure, edit, "sudo nvidia-ctk config --in-place", "ls")
    ] == [
        f"{configure} --config='/etc/docker/my gpu.json'",
        "sudo sed -i s/a/b/ '/etc/docker/my gpu.json'",
        "sudo nvidia-ctk config --config=/opt/nv.toml --in-place",
        "ls",
    ]
    assert [adapt_to_settings_files(each, healthy()) for each in (configure, edit)] == [configure, edit]


def test_the_daemons_file_is_a_word_in_every_command_whatever_its_name():
    name = '/etc/it\'s "my" $gpu.json'
    rows = [row for prefix in PREFIXES for code in load_check_rows(prefix) for row in list_problem_rows(code).values()]
    shown = [each for row in rows for fix in row.fixes for each in show_commands(fix)]
    facts = host(toolkit__daemon_file=name)
    adapted = [
        to for each in shown if (to := adapt_to_settings_files(each, facts)) != each and not each.startswith("#")
    ]
    assert len(adapted) > 10
    assert [each for each in adapted if not any(word.endswith(name) for word in shlex.split(each))] == []


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_engine(code):
    assert list_wrong(code, CASES) == []


def test_a_machine_without_the_docker_command_is_not_judged():
    for code in ("ENG011", "ENG012", "ENG014"):
        assert run_check(code, host(clients__found=())) == Skipped("the docker command is not installed here")


@cases("version, holes", {"one behind": ("1.17.7", 2), "long ago": ("1.16.1", 9)})
def test_each_hole_of_the_toolkit_is_counted(version, holes):
    assert find_only("CTK006", host(toolkit__version=r(version))).evidence[1].count("CVE-") == holes


@pytest.mark.parametrize(
    ("image", "severity"), [("aws.example/train", Severity.WARNING), ("ubuntu:24.04", Severity.NOTE)]
)
def test_a_missing_helper_of_a_registry_matters_to_its_images_alone(tmp_path, image, severity):
    project = read(tmp_path, {"compose.yaml": f"services: {{app: {{image: '{image}'}}}}"})
    facts = changed(settings(CredentialHelper("ecr-login", "", "aws.example")), {"project": project})
    found = find_only("ENG014", facts)
    assert (found.severity, "cannot pull images of aws.example" in found.message) == (severity, True)


@cases("registry, key", {"all": ("", ("credsStore",)), "one": ("aws.example", ("credHelpers", "aws.example"))})
def test_a_missing_helper_is_repaired_in_the_users_own_file(registry, key):
    (repair,) = find_only("ENG014", settings(CredentialHelper("gone", "", registry))).fix.repairs
    assert (repair.kind, repair.path, repair.key) == (RepairKind.REMOVE, "/home/dev/.docker/config.json", key)


INSTALLS = (
    (UBUNTU, "sudo apt-get install -y nvidia-container-toolkit"),
    (DEBIAN, "sudo apt-get install -y nvidia-container-toolkit"),
    (FEDORA, "sudo dnf install -y nvidia-container-toolkit"),
    (ROCKY, "sudo dnf install -y nvidia-container-toolkit"),
    (LEAP, "sudo zypper --gpg-auto-import-keys install -y nvidia-container-toolkit"),
    (ARCH, "sudo pacman -S --needed nvidia-container-toolkit"),
    (NIXOS, "sudo nixos-rebuild switch"),
)


def test_a_missing_toolkit_is_the_root_with_this_distributions_commands():
    for distribution, command in INSTALLS:
        report = build_full_report(no_offer(system__distribution=distribution))
        assert report.root_causes == ("CTK001",)
        assert command in report.roots[0].finding.fix.commands
        assert {shown.check.code for shown in report.following("CTK001")} == {"CTK002", "CTK003"}


def test_podman_needs_a_specification_not_a_runtime():
    facts = no_offer(
        toolkit__version=r("1.18.2"),
        engine__kind=EngineKind.PODMAN,
        engine__cdi_devices=Unknown("not listed"),
        engine__endpoint=PODMANS,
    )
    report = build_full_report(facts)
    assert report.root_causes == ("CTK002",)
    assert report.roots[0].finding.fix.commands == ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)
    assert "CTK002" not in find_codes(host(facts, cdi=(spec(),)))


BROKEN_FILE = (DaemonFile("/etc/docker/daemon.json", "line 3 column 1: expected ','", False),)
DESKTOP = {"engine__kind": EngineKind.DOCKER_DESKTOP, "engine__runtimes": ONLY_RUNC, "engine__cdi_devices": ()}
BY_PODMAN = client(is_podman=True, facts=podman("4.9.4", engine__cdi_devices=UNREAD))


@cases(
    "facts, root, follows, command",
    {
        "settings that are broken": (stopped(toolkit__daemon_files=BROKEN_FILE), "ENG006", "ENG001", ""),
        "by context": (host(**DESKTOP, engine__endpoint=DESKTOP_LINUX), "ENG002", "", "docker context use default"),
        "Docker Desktop on Linux, by a variable": (
            host(**DESKTOP, engine__endpoint=Endpoint(DESKTOP_LINUX.url, "DOCKER_HOST")),
            "ENG002",
            "",
            "unset DOCKER_HOST",
        ),
        "a snap beside a package": (programs(*BOTH_PROGRAMS, **SNAP), "ENG003", "ENG009", ""),
        "Podman as command and behind the socket": (BY_PODMAN, "ENG004", "ENG012", ""),
    },
)
def test_what_follows_from_the_wrong_engine(facts, root, follows, command):
    report = build_full_report(facts)
    assert root in report.root_causes
    assert not follows or follows in {shown.check.code for shown in report.following(root)}
    assert not command or report.roots[0].finding.fix.commands == (command,)


def test_a_remote_engine_is_judged_on_its_own_machine():
    assert find_codes(no_offer(engine__endpoint=FAR)) == []


def test_no_engine_on_a_laptop_without_a_gpu_is_no_more_than_a_warning():
    assert build_full_report(silent(EngineEnd.NOT_INSTALLED, facts=without_gpu())).health.value == "warnings"
