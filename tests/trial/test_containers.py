"""Containers that are tried, with programs named docker and podman that answer as the engines do."""

import errno
import json
import os
import re
import shlex
import socket
import sys
import time
from pathlib import Path

import pytest

from devkit.facts.engine import EngineKind
from devkit.facts.runs import Trials, Way
from devkit.facts.values import Unknown
from devkit.probe.host import LocalHost
from devkit.trial.cleanup import _is_abandoned, make_owner
from devkit.trial.containers import PREFIX, try_containers
from devkit.trial.image import build_image, has_glibc
from devkit.trial.project import build_rehearsal, list_requests, list_run_arguments
from tests.doctor.machines import changed, healthy, no_library, windows_guest, without_gpu
from tests.doctor.projects import files_of, read

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers are tried only on Linux")

SEEN = """devkit node /dev/nvidia0
devkit node /dev/nvidiactl
devkit nvidiactl open
devkit libcuda loaded
devkit nvml ERROR: ld.so: object 'libnvidia-ml.so.1' cannot be preloaded
devkit gpus 1
devkit end"""

SAYS = f"cat <<'END'\n{SEEN}\nEND\n"


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Write a stand-in for a client, whose `run` does what the test says."""
    (tmp_path / "home").mkdir()
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def write(run=SAYS, *, made=":", containers="", networks="", images="", removes=":", name="docker"):
        script = f"""#!/bin/sh
echo "{name} $*" >> {tmp_path}/calls
case " $* " in
*" image inspect "*) {run} ;;
*" run "* | *" up "*) {run} ;;
*" import "*) {made} ;;
*" network inspect "*) {run} ;;
*" network ls "*) printf {shlex.quote(networks)} ;;
*" ps "*) printf {shlex.quote(containers)} ;;
*" image ls "*) printf {shlex.quote(images)} ;;
*" image rm "*) {removes} ;;
esac
"""
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)

    write.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    return write


def attempt(facts, deadline_s=30.0):
    return try_containers(LocalHost(), facts, deadline_s=deadline_s)


def try_project(folder, *, deadline_s=30.0, **found):
    """Try the project in a folder, as Compose's stand-in resolves it."""
    facts = changed(changed(without_gpu(), {"engine": healthy().engine}), {"compose_config": ()} | found)
    return try_containers(LocalHost(), facts, deadline_s=deadline_s, project=str(folder))


def list_lookups(found):
    """List what was tried of the project beside its rehearsal."""
    return [each for each in found.tried if each.way is Way.PROJECT and each.arguments[0] != "compose"]


def rehearse(config, *, present=(), has_health_check=lambda _image: None):
    return build_rehearsal(
        config, "ours", label="of=me", folder="/p", present=present, has_health_check=has_health_check
    )


def list_started(folder, keys, where):
    """List the arguments with which a dev container is started."""
    facts = changed(without_gpu(), {"project": read(folder, files_of(dev=json.dumps(keys)))})
    return [*list_run_arguments(facts, list_requests(LocalHost(), facts, where), where)]


def runs(engine):
    return [call for call in engine.calls() if " run " in call]


def test_what_is_seen_inside_is_read(engine):
    engine()
    found = attempt(healthy())
    assert isinstance(found, Trials)
    by_gpus = next(each for each in found.tried if each.way is Way.GPUS)
    assert (by_gpus.code, by_gpus.nvidiactl, by_gpus.libcuda, by_gpus.gpu_count) == (0, "open", "loaded", 1)
    assert "cannot be preloaded" in by_gpus.nvml
    assert by_gpus.device_nodes == ("/dev/nvidia0", "/dev/nvidiactl")
    assert found.left_behind == ()


def test_a_container_that_was_cut_off_says_nothing_of_the_rest(engine):
    engine("echo 'devkit node /dev/nvidia0'")
    assert all(isinstance(each.device_nodes, Unknown) for each in attempt(healthy()).tried)


@pytest.mark.parametrize(
    ("changes", "ways"),
    [
        pytest.param({}, [Way.RUNTIME, Way.GPUS, Way.CDI], id="all that is set up"),
        pytest.param({"engine.hook_on_path": False, "engine.runtimes": ()}, [Way.CDI], id="CDI alone"),
        pytest.param({"engine.cdi_devices": (), "engine.runtimes": ()}, [Way.GPUS], id="the hook alone"),
        pytest.param(
            {"engine.hook_on_path": False, "engine.cdi_devices": (), "engine.runtimes": ()},
            [Way.GPUS],
            id="nothing: the engine's refusal is telling",
        ),
        pytest.param({"nvml": no_library()}, [Way.RUNTIME, Way.GPUS, Way.CDI], id="NVML that does not answer"),
    ],
)
def test_each_way_that_is_set_up_is_tried(engine, changes, ways):
    engine()
    assert [each.way for each in attempt(changed(healthy(), changes)).tried] == [Way.PLAIN, *ways]


def test_without_a_gpu_it_is_tried_whether_a_container_starts(engine):
    engine()
    facts = changed(without_gpu(), {"engine": healthy().engine})
    assert [each.way for each in attempt(facts).tried] == [Way.PLAIN]


def test_podman_runs_by_its_own_command(engine):
    engine(name="podman")
    tried = attempt(changed(healthy(), {"engine.kind": EngineKind.PODMAN})).tried
    assert [(each.engine, each.way) for each in tried] == [("podman", Way.PLAIN), ("podman", Way.CDI)]


@pytest.mark.parametrize(
    ("others", "codes"),
    [("exit 0", [0, 0]), ("echo 'no conmon' >&2; exit 126", [126, 126])],
    ids=["the host's network works", "nothing works"],
)
def test_an_isolation_that_the_machine_refuses_is_no_fault_of_podman(engine, others, codes):
    refused = "echo 'mounting sysfs: operation not permitted' >&2; exit 126"
    engine(f'case "$*" in *" --network=none "*) {refused};; esac; {others}', name="podman")
    tried = attempt(changed(healthy(), {"engine.kind": EngineKind.PODMAN})).tried
    assert [each.code for each in tried] == codes
    assert all("sysfs" in each.err for each in tried if each.code)


def test_podman_is_tried_beside_docker_where_it_is_in_use(engine, tmp_path):
    engine()
    engine(name="podman")
    assert {each.engine for each in attempt(healthy()).tried} == {"docker"}
    (tmp_path / "home/.local/share/containers/storage/overlay").mkdir(parents=True)
    assert {each.engine for each in attempt(healthy()).tried} == {"docker", "podman"}


def test_a_container_may_do_nothing_and_nothing_is_pulled(engine):
    engine()
    attempt(healthy())
    for call in runs(engine):
        assert {"--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=ALL"} < set(call.split())


def test_an_engines_refusal_is_kept_in_its_words(engine):
    engine("echo 'could not select device driver' >&2; exit 125")
    assert {(each.code, each.err) for each in attempt(healthy()).tried} == {(125, "could not select device driver\n")}


def test_an_engine_that_takes_no_image_is_asked_for_no_container(engine):
    engine(made="echo 'no space left on device' >&2; exit 1")
    (only,) = attempt(healthy()).tried
    assert (only.way, only.err) == (Way.IMAGE, "no space left on device\n")
    assert runs(engine) == []
    assert not any(" rm " in each for each in engine.calls())


@pytest.mark.clock
def test_a_client_that_hangs_is_not_waited_for_twice(engine, monkeypatch):
    monkeypatch.setattr("devkit.trial.containers.make_owner", lambda: "1-2-3")
    engine(made="sleep 60", removes="sleep 60", images=f"{PREFIX}:1-2-3")
    started = time.monotonic()
    found = attempt(healthy(), deadline_s=3)
    assert time.monotonic() - started < 4.5
    assert [each.is_timed_out for each in found.tried] == [True]
    assert found.left_behind == (f"docker {PREFIX}:1-2-3",)


@pytest.mark.clock
def test_names_that_no_trial_made_take_no_time(engine):
    engine(containers="9" * 200_000, images=f"{PREFIX}:{'9-' * 100_000}")
    started = time.monotonic()
    assert attempt(healthy()).left_behind == ()
    assert time.monotonic() - started < 5


@pytest.mark.clock
def test_a_container_that_hangs_is_removed_and_the_deadline_kept(engine):
    engine("sleep 60", removes="exit 1")
    started = time.monotonic()
    found = attempt(healthy(), deadline_s=2)
    assert time.monotonic() - started < 8
    assert all(each.is_timed_out for each in found.tried)


def test_an_image_that_cannot_be_kept_in_memory_is_a_reason(engine, monkeypatch):
    def refuse(*_words):
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr("os.memfd_create", refuse)
    assert attempt(healthy()).reason == "the image that they are made of cannot be kept in memory: File too large"


def test_without_proc_the_time_alone_tells_what_is_abandoned(monkeypatch):
    monkeypatch.setattr(Path, "readlink", lambda path: (_ for _ in ()).throw(FileNotFoundError(path)))
    owner = make_owner()
    assert owner.startswith("0-")
    assert not _is_abandoned(f"{PREFIX}-{owner}-gpus")
    assert _is_abandoned(f"{PREFIX}-0-1-1000-gpus")


def test_what_a_killed_trial_left_is_removed_and_what_another_still_uses_is_not(engine):
    space = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    dead, alive = f"{space}-4194305-{int(time.time())}", f"{space}-{os.getpid()}-{int(time.time())}"
    old = f"1-1-{int(time.time()) - 1000}"
    engine(
        containers="\n".join(f"{PREFIX}-{owner}-gpus" for owner in (dead, alive, old)),
        networks=f"{PREFIX}-{dead}_default",
        images="\n".join(f"{PREFIX}:{owner}" for owner in (dead, alive, old)),
    )
    attempt(healthy())
    removed = " ".join(call for call in engine.calls() if " rm " in call)
    assert f"network rm {PREFIX}-{dead}_default" in removed
    calls = engine.calls()
    assert calls.index(runs(engine)[0]) > next(number for number, call in enumerate(calls) if " network rm " in call)
    assert f"{PREFIX}-{dead}-gpus" in removed
    assert f"{PREFIX}:{old}" in removed
    assert f"{PREFIX}-{alive}-gpus" not in removed


def test_networks_of_a_project_are_removed_where_no_container_was_made(engine, tmp_path, monkeypatch):
    owner = f"1-2-{int(time.time())}"
    monkeypatch.setattr("devkit.trial.containers.make_owner", lambda: owner)
    write_project(tmp_path, {"services": {"a": {}}})
    engine(networks=f"{PREFIX}-{owner}_default")
    try_project(tmp_path)
    assert any(f" network rm {PREFIX}-{owner}_default" in each for each in engine.calls())


def test_a_refusal_beside_another_rehearsal_may_be_of_its_networks(engine, tmp_path):
    write_project(tmp_path, {"services": {"a": {}}})
    engine("exit 1", networks=f"{PREFIX}-1-2-{int(time.time())}_default")
    found = try_project(tmp_path).tried
    assert [each.is_timed_out for each in found if each.way is Way.PROJECT] == [True]


@pytest.mark.full
@pytest.mark.clock
def test_what_cannot_be_removed_is_named(engine, monkeypatch):
    monkeypatch.setattr("devkit.trial.containers.make_owner", lambda: f"1-2-{int(time.time())}")
    engine(removes="exit 1", containers=f"{PREFIX}-1-2-{int(time.time())}-gpus")
    assert attempt(healthy()).left_behind


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param(changed(healthy(), {"engine": Unknown("?")}), "no container engine", id="no engine"),
        pytest.param(changed(healthy(), {"engine.endpoint.url": "tcp://far:2376"}), "another machine", id="far away"),
        pytest.param(changed(healthy(), {"system": Unknown("?")}), "only on Linux", id="an unknown system"),
    ],
)
def test_where_nothing_is_started_and_why(engine, facts, reason):
    engine()
    assert reason in attempt(facts).reason


def test_where_no_time_is_left_nothing_is_started(engine):
    engine()
    assert "no time" in attempt(healthy(), deadline_s=0.2).reason


def test_a_command_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("devkit.trial.containers.find_program", lambda _host, _name: "")
    assert "the command docker is missing" in attempt(healthy()).reason


def test_in_wsl_the_gpu_is_known_by_its_node(engine):
    engine()
    tried = attempt(changed(windows_guest(), {"nvml": no_library()})).tried
    assert any(each.is_for_gpu for each in tried)


def test_the_image_is_made_of_this_machines_shell():
    image = build_image(LocalHost())
    assert isinstance(image, bytes)
    assert has_glibc(image) is Path("/lib64/ld-linux-x86-64.so.2").exists()
    assert len(image) < 16 << 20


def test_a_variable_without_which_a_container_starts_is_found_and_nothing_is_removed_with_it(
    engine, monkeypatch, tmp_path
):
    monkeypatch.setenv("DOCKER_DEFAULT_PLATFORM", "linux/arm64")
    is_set = '[ -z "$DOCKER_DEFAULT_PLATFORM" ]'
    engine(f"{is_set} || exit 125; {SAYS}", removes=f"{is_set} || touch {tmp_path}/set")
    plain = next(each for each in attempt(without_gpu()).tried if each.way is Way.PLAIN)
    assert plain.works_without == ("DOCKER_DEFAULT_PLATFORM",)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("setting", "works_with"),
    [
        ({"seccomp-profile": "/etc/strict.json"}, "--security-opt=seccomp=unconfined"),
        ({"default-ulimits": {"memlock": {"Name": "memlock", "Hard": -1}}}, "--ulimit=memlock=1024"),
        ({"default-runtime": "nvidia"}, "--runtime=runc"),
    ],
)
def test_a_setting_of_the_daemon_without_which_a_container_starts_is_found(engine, monkeypatch, setting, works_with):
    content = setting | {"init": True, "data-root": "/data"}
    monkeypatch.setattr(
        "devkit.trial.containers.read_daemon_settings", lambda _host: ("/etc/docker/daemon.json", content)
    )
    engine(f'case "$*" in *{works_with}*) {SAYS};; *) exit 125;; esac')
    plain = next(each for each in attempt(without_gpu()).tried if each.way is Way.PLAIN)
    assert plain.settings == (f"{next(iter(setting))} in /etc/docker/daemon.json",)


@pytest.mark.clock
@pytest.mark.parametrize(("slow_s", "named"), [(0, 1), (1.8, 0)])
def test_a_busy_machine_is_no_fault_of_a_setting(engine, monkeypatch, slow_s, named):
    settings = ("/etc/docker/daemon.json", {"log-driver": "fluentd"})
    monkeypatch.setattr("devkit.trial.containers.read_daemon_settings", lambda _host: settings)
    engine(f'case "$*" in *--log-driver=none*) sleep {slow_s}; {SAYS};; *) sleep 60;; esac')
    plain = next(each for each in attempt(without_gpu(), 6.0).tried if each.way is Way.PLAIN)
    assert len(plain.settings) == named


def test_networks_and_volumes_that_have_to_exist_are_looked_up(engine, tmp_path):
    external = {"external": True, "name": "ml"}
    config = {"services": {}, "networks": {"a": external, "b": {"name": "p_b"}}, "volumes": {"v": external}}
    write_project(tmp_path, config)
    engine('echo "network ml not found" >&2; exit 1')
    tried = try_project(tmp_path)
    asked = [each.arguments for each in list_lookups(tried)]
    assert asked == [("inspect", "--type", "network", "ml"), ("inspect", "--type", "volume", "ml")]


def test_a_container_whose_network_a_service_joins_is_looked_up(engine, tmp_path):
    write_project(tmp_path, {"services": {"a": {"network_mode": "container:vpn"}}})
    engine('echo "no such container: vpn" >&2; exit 1')
    found = try_project(tmp_path)
    assert [each.arguments for each in list_lookups(found)] == [("inspect", "--type", "container", "vpn")]


def test_the_hosts_network_is_kept_and_no_port_is_published(engine, tmp_path):
    service = {"network_mode": "host", "ipc": "private", "sysctls": {"net.core.somaxconn": 1024}, "ports": ["80:80"]}
    found = rehearse({"services": {"a": service}})[0]["services"]["a"]
    assert (found["network_mode"], found.keys() & {"ports", "ipc"}) == ("host", set())
    keys = {
        "image": "x",
        "runArgs": ["--network", "host", "--ipc=shareable", "-p", "80:80", "--sysctl=net.core.somaxconn=1"],
    }
    engine()
    attempt(changed(without_gpu(), {"project": read(tmp_path / "p", files_of(dev=json.dumps(keys)))}))
    # Beside it, the client parses all that the container says.
    own = next(call for call in runs(engine) if "--sysctl" in call and "--help" not in call).split()
    assert ("--network=host" in own, {"--network=none", "-p=80:80", "--ipc=shareable"} & set(own)) == (True, set())


@pytest.mark.parametrize("program", ["docker-compose", "podman-compose"])
def test_podmans_projects_are_tried_by_its_compose(engine, tmp_path, monkeypatch, program):
    waits = {"train": {"condition": "service_healthy"}}
    networks = {"n": {"ipam": {"config": [{"subnet": "10.0.0.0/8"}]}}, "d": None}
    config = {"services": {"train": {"cpus": 1}, "b": {"depends_on": waits}}, "networks": networks}
    write_project(tmp_path, config, program=program)
    monkeypatch.setattr("devkit.probe.engine.client.COMPOSE_PLUGIN_FOLDERS", ())
    engine(name="podman")
    podman = {"engine.kind": EngineKind.PODMAN, "engine.endpoint.url": f"unix://{tmp_path}", "compose_config": ()}
    facts = changed(changed(without_gpu(), {"engine": healthy().engine}), podman)
    found = try_containers(LocalHost(), facts, deadline_s=30.0, project=str(tmp_path))
    own = [each for each in found.tried if each.way is Way.PROJECT]
    assert {each.arguments for each in own} == {("compose", "run", "train"), ("compose", "run", "b")}
    assert found.untried == ("the order of the services", "the addresses of the networks")
    assert {(each.engine, each.code) for each in own} == {("podman", 0)}


@pytest.mark.parametrize(
    ("kind", "runtime", "options"),
    [
        pytest.param(EngineKind.DOCKER, "runsc", ["--runtime=runc"], id="Docker starts it by runc"),
        pytest.param(EngineKind.PODMAN, "crun", [], id="Podman by its own"),
        pytest.param(EngineKind.PODMAN, "runsc", None, id="a runtime that does not heed the profile"),
    ],
)
def test_a_program_of_the_project_is_looked_up_where_it_cannot_run(
    engine, tmp_path, monkeypatch, kind, runtime, options
):
    write_project(tmp_path, {"services": {"a": {"image": "own"}, "b": {"image": "own"}}})
    monkeypatch.setattr("devkit.probe.engine.client.COMPOSE_PLUGIN_FOLDERS", ())
    image = {"RepoTags": ["own:latest"], "Config": {"Cmd": ["train"]}}
    # Podman 4 prints a list over several lines.
    image = json.dumps(image) if kind is EngineKind.DOCKER else json.dumps([image], indent=1)
    engine(f"echo '{image}'", name=kind.value)
    found = {"engine.kind": kind, "engine.default_runtime": runtime, "compose_config": ()}
    found |= {"engine.endpoint.url": f"unix://{tmp_path}"} if kind is EngineKind.PODMAN else {}
    facts = changed(changed(without_gpu(), {"engine": healthy().engine}), found)
    try_containers(LocalHost(), facts, deadline_s=30.0, project=str(tmp_path))
    calls = [call.split() for call in runs(engine) if call.endswith(" own")]
    assert [[word for word in call if word.startswith("--runtime")] for call in calls] == (
        [options] if options is not None else []
    )
    safe = {"--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=ALL"}
    assert all(safe < set(call) and "--security-opt=seccomp=/proc/" in " ".join(call) for call in calls)


def test_what_shows_only_where_the_project_starts_is_named(engine, tmp_path):
    waits = {"a": {"condition": "service_healthy"}, "c": {"condition": "service_started"}}
    joins = {"pid": "service:a", "ipc": "service:a", "image": "own"}
    services = {"a": {"image": "own"}, "b": {"image": "far", "depends_on": waits}, "c": {"build": {"context": "/c"}}}
    services["d"] = joins
    write_project(tmp_path, {"services": services})
    image = json.dumps({"RepoTags": ["own:latest"], "Config": {"Cmd": ["train"]}})
    engine(f"echo '{image}'")
    found = try_project(tmp_path).pending
    assert found == ("the build of c", "the image far", "b's wait for a", "d's wait for a")


@pytest.mark.parametrize(
    ("words", "codes"),
    [("exec: train: not found in $PATH", [127]), ("seccomp: config provided but seccomp not supported", [])],
    ids=["refused", "a profile that holds nowhere"],
)
def test_a_look_up_whose_profile_is_refused_says_nothing(engine, tmp_path, words, codes):
    write_project(tmp_path, {"services": {"a": {"image": "own"}}})
    image = json.dumps({"RepoTags": ["own:latest"], "Config": {"Cmd": ["train"]}})
    engine(f"case \"$*\" in *' run '*' own') echo '{words}' >&2; exit 127 ;; esac; echo '{image}'")
    tried = try_project(tmp_path).tried
    assert [each.code for each in tried if each.arguments == ("compose", "up", "a")] == codes


LOOKED_UP = {"dockerComposeFile": "../compose.yaml", "service": "a", "workspaceFolder": "/work", "remoteUser": "me"}


@pytest.mark.parametrize(
    ("answer", "faults"),
    [
        ("exit 1", ["--workdir /work"]),
        ("echo 'error mounting tmpfs at \"/work\": not a directory' >&2; exit 127", []),
        ('echo \'mounting "tmpfs" to rootfs at "/data": not a directory\' >&2; exit 125', ["--target /data"]),
        ("echo 'unable to find user me' >&2; exit 125", ["--user me"]),
        ("echo 'exec: /bin/sh: no such file' >&2; exit 127", []),
    ],
    ids=["the folder is absent", "it is there", "a mount onto a file", "no such user", "no shell"],
)
def test_what_the_runtime_refuses_is_told_of_the_place_that_it_names(engine, tmp_path, answer, faults):
    files = {**files_of(dev=json.dumps(LOOKED_UP)), "compose.yaml": "services: {a: {image: own}}"}
    project = read(tmp_path / "p", files)
    write_project(tmp_path, {"services": {"a": {"image": "own", "volumes": [{"type": "volume", "target": "/data"}]}}})
    image = json.dumps({"RepoTags": ["own:latest"], "Config": {"Cmd": ["train"]}})
    engine(f"case \"$*\" in *' run '*' own') {answer} ;; esac; echo '{image}'")
    found = try_project(tmp_path, project=project).tried
    told = [" ".join(each.arguments[1:]) for each in found if each.code and each.arguments[:1] == ("run",)]
    assert sorted(told) == faults


def test_what_a_shell_says_of_an_image_and_the_engine_of_a_name_is_told(engine, tmp_path):
    own = {"image": "own", "user": "me", "command": ["touch", "/data/x"]}
    write_project(tmp_path, {"services": {"a": own, "b": {"image": "Bad"}}})
    image = json.dumps({"RepoTags": ["own:latest"], "Config": {}})
    said = "printf 'devkit user 7\ndevkit map 0\ndevkit refused0 /data/x\n'; exit 0"
    refusal = "echo 'Error: invalid reference format: must be lowercase' >&2; exit 1"
    engine(f"case \"$*\" in *' --user=me '*'/data/x') {said} ;; *'-- Bad') {refusal} ;; esac; echo '{image}'")
    found = try_project(tmp_path).tried
    told = {each.arguments: each.err for each in found if each.code == 1}
    assert told["exec", "--user", "me", "/data"] == "a writes to /data, where me may not write"
    assert "'Bad', the image of b: invalid reference format: must be lowercase" in told["compose", "pull", "b"]


@pytest.mark.parametrize(("known", "code"), [(["loki:latest"], 0), (["json-file"], 1), (None, 0)])
def test_a_driver_that_the_engine_lacks_is_told(engine, tmp_path, known, code):
    write_project(tmp_path, {"services": {"a": {"image": "far", "logging": {"driver": "loki"}}}})
    engine(f"echo '{json.dumps(known)}'")
    (tmp_path / "docker").write_text((tmp_path / "docker").read_text().replace('*" run "*', '*" info "* | *" run "*'))
    found = try_project(tmp_path).tried
    assert [each.code for each in found if each.arguments == ("run", "--log-driver", "loki")] == [code]


@pytest.mark.clock
@pytest.mark.parametrize(("builder", "is_late"), [("sleep 60", True), ("echo '{}'", False), ("exit 1", False)])
def test_a_dockerfile_that_buildkit_has_not_read_in_time_is_not_fine(engine, tmp_path, builder, is_late):
    write_project(tmp_path, {"services": {"a": {"build": {"context": str(tmp_path)}}}})
    plugin = tmp_path / "home/.docker/cli-plugins/docker-buildx"
    plugin.write_text(f"#!/bin/sh\n{builder}\n")
    plugin.chmod(0o755)
    project = read(tmp_path, {"compose.yaml": "services: {a: {build: .}}", "Dockerfile": "FROM x"})
    engine()
    found = try_project(tmp_path, deadline_s=5.0, project=project).tried
    assert [each.is_timed_out for each in found if each.arguments[:1] == ("build",)] == [is_late]


def test_a_project_that_no_compose_resolves_is_not_tried(engine, tmp_path):
    compose = "services: {train: {image: x}}"
    (tmp_path / "p").mkdir()
    project = read(tmp_path / "p", {"compose.yaml": compose})
    engine(name="podman")
    podman = {"engine.kind": EngineKind.PODMAN, "project": project, "compose_config": Unknown("no Compose")}
    assert attempt(changed(healthy(), podman)).untried == ("train",)


def test_the_network_that_a_dev_container_joins_is_looked_up(engine, tmp_path):
    keys = {
        "image": "x",
        "runArgs": ["--network", "ml", "--network=host", "--net=container:vpn", "--network=${localEnv:N}"],
    }
    engine("exit 1")
    found = attempt(changed(without_gpu(), {"project": read(tmp_path / "p", files_of(dev=json.dumps(keys)))})).tried
    asked = [each.arguments for each in found if each.arguments[:1] == ("inspect",)]
    assert asked == [("inspect", "--type", "network", "ml"), ("inspect", "--type", "container", "vpn")]


def test_a_volume_that_is_a_bind_mount_needs_its_folder():
    volumes = {
        "models": {"driver_opts": {"type": "none", "o": "ro,bind", "device": "/data"}},
        "v": {"driver_opts": {"o": "size=1"}},
    }
    mounts = [{"type": "volume", "source": name, "target": f"/{name}"} for name in volumes]
    config = {"services": {"a": {"volumes": mounts}}, "volumes": volumes}
    found = rehearse(config)[0]["services"]["a"]
    assert [(each["source"], each["target"], each["read_only"]) for each in found["volumes"]] == [
        ("/data", "/models", True)
    ]


@pytest.mark.parametrize(("folder", "code"), [("/other", 1), ("{}/.devcontainer", 0)], ids=["another's", "our own"])
def test_a_published_port_on_which_another_listens_is_told(engine, tmp_path, folder, code):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = str(listener.getsockname()[1])
        published = [{"protocol": "tcp", "published": each} for each in (number, "1")]
        write_project(tmp_path, {"name": "p", "services": {"a": {"ports": published}}})
        engine(containers=f"x\t0.0.0.0:{number}->80/tcp\t{folder.format(tmp_path)}\n")
        found = try_project(tmp_path)
    own = [(each.arguments, each.code) for each in list_lookups(found)]
    assert own == [(("run", "--publish", number), code)]


@pytest.mark.parametrize(("host_ip", "told"), [("", [("run", "--publish", "81")]), ("127.0.0.1", [])])
def test_a_port_that_two_services_publish_is_told(engine, tmp_path, host_ip, told):
    first, second = ({"protocol": "tcp", "published": "81", "host_ip": each} for each in ("", host_ip))
    write_project(tmp_path, {"services": {"a": {"ports": [first]}, "b": {"ports": [second, {"target": 8}]}}})
    engine()
    assert [each.arguments for each in list_lookups(try_project(tmp_path))] == told


@pytest.mark.parametrize(("folder", "code"), [("/other", 1), ("{}", 0)], ids=["another's", "our own"])
def test_a_name_that_a_container_of_another_project_has_is_taken(engine, tmp_path, folder, code):
    write_project(tmp_path, {"name": "mine", "services": {"a": {"container_name": "train"}}})
    engine(containers=f"trainer\t\t/other\ntrain\t\t{folder.format(tmp_path)}\n")
    found = try_project(tmp_path)
    own = [(each.arguments, each.code) for each in list_lookups(found)]
    assert own == [(("create", "--name", "train"), code)]


def test_services_beyond_those_that_are_tried_are_named(engine, tmp_path):
    networks = {"lan": {"driver": "macvlan"}, "six": {"ipam": {"config": [{"subnet": "fd00::/64"}]}}}
    services = {f"s{number}": {"cpus": 1, "networks": dict.fromkeys(networks)} for number in range(10)}
    write_project(tmp_path, {"services": services, "networks": networks})
    engine()
    untried = try_project(tmp_path).untried
    assert {*untried} == {"s8", "s9", "network lan", "network six"}


def test_a_rehearsal_has_the_projects_networks_without_an_address_or_a_way_out_on_this_machine():
    networks = {
        "own": {"name": "p_own", "driver": "bridge", "driver_opts": {"com.docker.network.bridge.name": "eth0"}},
        "ours_already": {"name": "p_ours_already"},
        "theirs": {"name": "theirs", "external": True},
    }
    networks["own"]["ipam"] = {"config": [{"subnet": "10.0.0.0/8", "gateway": "10.0.0.1"}]}
    service = {"networks": {name: {"ipv4_address": "10.0.0.9", "aliases": ["x"]} for name in networks}}
    built, untried = rehearse({"services": {"a": service}, "networks": networks}, present={"ours_already"})
    assert built["networks"] == {
        "own": {
            "internal": True,
            "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"},
            "ipam": {"config": [{"subnet": "10.0.0.0/8", "gateway": "10.0.0.1"}]},
            "labels": {"of": "me"},
        }
    }
    assert (built["services"]["a"]["networks"], untried) == ({"own": {"ipv4_address": "10.0.0.9"}}, ())


@pytest.mark.parametrize(
    ("own", "of_image", "has_check", "untried"),
    [
        pytest.param({"test": ["CMD", "x"]}, False, True, (), id="its file has one"),
        pytest.param({"test": ["NONE"]}, True, False, (), id="its file takes it away"),
        pytest.param({"disable": True}, True, False, (), id="its file disables it"),
        pytest.param({}, True, True, (), id="its image has one"),
        pytest.param({}, False, False, (), id="nobody has one"),
        pytest.param({}, None, True, ("the health of db",), id="its image is not here"),
    ],
)
def test_a_rehearsal_waits_for_health_where_something_watches_it(own, of_image, has_check, untried):
    waits = {"depends_on": {"db": {"condition": "service_healthy", "required": True}}}
    config = {"name": "p", "services": {"app": waits, "db": {"healthcheck": own}}}
    asked = []
    built, left_out = rehearse(config, has_health_check=lambda image: asked.append(image) or of_image)
    assert ("healthcheck" in built["services"]["db"], left_out) == (has_check, untried)
    assert built["services"]["app"]["depends_on"] == waits["depends_on"]
    assert set(asked) <= {"p-db"}


def test_in_a_rehearsal_only_what_has_to_end_ends_and_nothing_of_the_project_runs():
    ends = {"condition": "service_completed_successfully", "required": True}
    services = {"app": {"depends_on": {"migrate": ends}}, "migrate": {"command": ["rm"], "entrypoint": ["x"]}}
    services["app"]["network_mode"] = "service:migrate"
    built, _ = rehearse({"services": services})
    commands = {name: each["entrypoint"][-1] for name, each in built["services"].items()}
    assert commands == {"app": "read line", "migrate": ":"}
    assert built["services"]["app"]["network_mode"] == "service:migrate"
    assert not built["services"]["migrate"].keys() & {"command"}


@pytest.mark.parametrize(("address", "code"), [("10.1.2.3", 0), ("10.9.2.3", 1), ("10.1.2.300", 1)])
def test_an_address_in_a_network_that_exists_is_one_of_its_own(engine, tmp_path, address, code):
    networks = {"ml": {"external": True, "name": "lab"}}
    write_project(tmp_path, {"services": {"a": {"networks": {"ml": {"ipv4_address": address}}}}, "networks": networks})
    engine("echo 10.1.0.0/16")
    found = try_project(tmp_path).tried
    own = {each.arguments: each.code for each in found}
    assert own["run", "--network", "lab", "--ip", address] == code


def test_what_a_dev_container_says_is_parsed_by_the_client_without_an_engine(engine, tmp_path):
    arguments = ["--v", "${localWorkspaceFolder}:/w", "--name=${localEnv:HOME}", "-c=${localEnv:NO_SUCH:1}"]
    keys = {"image": "x", "runArgs": arguments}
    engine('case "$*" in *" --help "*) echo "unknown flag: --v" >&2; exit 125;; esac')
    facts = changed(without_gpu(), {"project": read(tmp_path / "p", files_of(dev=json.dumps(keys)))})
    (own,) = (each for each in attempt(facts).tried if each.way is Way.PROJECT)
    assert (own.arguments, own.err) == (("run", ".devcontainer/devcontainer.json"), "unknown flag: --v\n")
    calls = [each for each in runs(engine) if "--help" in each]
    assert f"--host unix:///dev/null run --help --v :/w --name={tmp_path}/home -c=1" in calls[0]
    assert not [each for each in engine.calls() if " create " in each]


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("failed to write 450000: invalid argument", ["runArgs in .devcontainer/devcontainer.json:4"]),
        ("nvidia: failed to write 450000", []),
    ],
)
def test_the_argument_that_the_engine_refuses_has_its_line_unless_it_is_about_a_gpu(engine, tmp_path, said, settings):
    text = '{\n"image": "x",\n"runArgs": ["--init",\n"--cpu-rt-runtime=450000"]}'
    engine(f'case "$*" in *cpu-rt*) echo "{said}" >&2; exit 125;; esac')
    folder = tmp_path / "p"
    facts = changed(without_gpu(), {"engine": healthy().engine, "project": read(folder, files_of(dev=text))})
    found = try_containers(LocalHost(), facts, deadline_s=30.0, project=str(folder))
    own = next(each for each in found.tried if each.arguments[:1] == ("run",) and each.code)
    assert [*own.settings] == settings


@pytest.mark.parametrize("argument", ["--help=false", "--cpus=${containerEnv:X}"])
def test_words_that_would_start_something_or_that_nobody_knows_are_not_parsed(engine, tmp_path, argument):
    keys = {"image": "x", "runArgs": ["--name", "me", argument]}
    engine()
    attempt(changed(without_gpu(), {"project": read(tmp_path / "p", files_of(dev=json.dumps(keys)))}))
    assert not any("--help" in each for each in runs(engine))


def test_a_dev_container_is_tried_with_its_workspace(tmp_path):
    mount = f"--mount=type=bind,readonly,source={tmp_path},target=/run/devkit/workspace"
    assert list_started(tmp_path, {"image": "x"}, str(tmp_path)) == [(mount,)]
    keys = {"image": "x", "workspaceMount": "source=v,target=/w,type=volume"}
    assert list_started(tmp_path, keys, str(tmp_path)) == []


def write_project(folder, config, *, program="docker-compose"):
    """Write a Compose file, and a stand-in for Compose that resolves it so."""
    (folder / "compose.yaml").write_text("services: {}")
    plugins = folder / "home/.docker/cli-plugins" if program == "docker-compose" else folder
    plugins.mkdir(parents=True, exist_ok=True)
    (plugins / program).write_text(f"#!/bin/sh\necho {shlex.quote(json.dumps(config))}\n")
    (plugins / program).chmod(0o755)


def test_a_service_is_tried_with_what_it_asks_of_the_machine_alone():
    bind = {"type": "bind", "source": "/data", "target": "/data"}
    service = {
        "image": "x",
        "command": ["rm", "-r", "/data"],
        "privileged": True,
        "ports": [{"target": 80}],
        "user": "me",
        "cpuset": "0-15",
        "restart": "on-failure:-3",
        "security_opt": ["no-new-privilege"],
        "logging": {"driver": "local", "options": {"max-sise": "1m"}},
        "deploy": {"replicas": 9, "resources": {"limits": {"cpus": "64"}}},
        "environment": {"TOKEN": "secret", "NVIDIA_VISIBLE_DEVICES": "all"},
        "volumes": [{**bind, "bind": {"create_host_path": True}}, bind],
    }
    found = rehearse({"services": {"a": service, "b": {"image": "y"}}})[0]["services"]["a"]
    assert found == {
        "cpuset": "0-15",
        "restart": "on-failure:-3",
        "security_opt": ["no-new-privilege"],
        "logging": {"driver": "local", "options": {"max-sise": "1m"}},
        "deploy": {"resources": {"limits": {"cpus": "64"}}},
        "volumes": [{**bind, "read_only": True, "bind": {"create_host_path": False}}],
        "environment": {"NVIDIA_VISIBLE_DEVICES": "all"},
        "image": "ours",
        "pull_policy": "never",
        "entrypoint": ["/bin/sh", "-c", "read line"],
        "stdin_open": True,
        "depends_on": {},
        "network_mode": "none",
        "read_only": True,
        "labels": {"of": "me"},
    }


def test_what_a_stranger_could_run_read_or_change_by_a_trial_is_left_out(tmp_path):
    bind = {"type": "bind", "source": "/home", "target": "/h", "bind": {"selinux": "Z", "propagation": "shared"}}
    service = {
        "cpuset": "0",
        "runtime": "/work/project/shim",
        "logging": {"driver": "syslog", "options": {"syslog-address": "tcp://evil.example:1"}},
        "security_opt": ["seccomp=/dev/zero"],
        "restart": "unless-stopped",
        "volumes": [bind],
        "post_start": [{"command": ["x"], "privileged": True}],
        "provider": {"type": "/work/project/program"},
        "key_of_a_later_compose": "x",
    }
    found = rehearse({"services": {"a": service}})[0]["services"]["a"]
    left_out = {"runtime", "logging", "security_opt", "restart", "post_start", "provider", "key_of_a_later_compose"}
    assert not found.keys() & left_out
    assert found["volumes"] == [
        {"type": "bind", "source": "/home", "target": "/h", "read_only": True, "bind": {"create_host_path": False}}
    ]
    arguments = (
        "--runtime /work/shim --runtime=./shim --log-driver=syslog --security-opt seccomp=/dev/zero --privileged"
    )
    others = ["-v", "/:/h", "--cpus=${localEnv:NO_SUCH:2}", "--memory=${containerEnv:X}"]
    keys = {"image": "x", "runArgs": [*arguments.split(), *others]}
    assert list_started(tmp_path / "p", keys, "") == [("--cpus=2",)]


def test_a_service_that_does_not_start_names_the_setting_that_the_engine_names(engine, tmp_path):
    config = {"services": {"train": {"devices": [{"source": "/dev/nvidia3", "target": "/dev/nvidia3"}]}}}
    write_project(tmp_path, config)
    engine('case "$*" in *compose*) echo "device /dev/nvidia3: no such file" >&2; exit 1;; esac')
    own = [each for each in try_project(tmp_path).tried if each.way is Way.PROJECT]
    assert [(each.arguments, each.settings) for each in own] == [
        (("compose", "up"), ("train.devices.source in the project", "train.devices.target in the project"))
    ]


def test_files_that_a_container_reads_are_mounts_of_its_stand_in(tmp_path):
    options = ["seccomp=./own.json", "seccomp:unconfined", "label=disable"]
    service = {"secrets": [{"source": "token"}], "security_opt": options}
    config = {"services": {"a": service}, "secrets": {"token": {"file": "/p/secrets/token"}}}
    found = rehearse(config)[0]["services"]["a"]
    assert [each["source"] for each in found["volumes"]] == ["/p/secrets/token", "/p/own.json"]
    arguments = ["--security-opt", "seccomp=train.json", "--env-file=a.env", "--security-opt=seccomp=unconfined"]
    others = ["-v", "v:/v", "--env=A=b", "--mount", "type=volume,source=v,target=/v", "-itd", "--name=me", "--init"]
    facts = changed(
        without_gpu(),
        {"project": read(tmp_path, files_of(dev=json.dumps({"image": "x", "runArgs": arguments + others})))},
    )
    (request,) = list_requests(LocalHost(), facts, "/p")
    assert [*map(" ".join, request.list_created("/p").values())] == [
        "--mount type=bind,readonly,source=/p/train.json,target=/run/devkit/train.json",
        "--mount type=bind,readonly,source=/p/a.env,target=/run/devkit/a.env",
        "--security-opt=seccomp=unconfined",
        "--init",
    ]


@pytest.mark.parametrize("made", [{}, {"initializeCommand": "mkdir -p cache"}])
def test_a_source_that_a_command_of_this_machine_may_make_is_not_missed(tmp_path, made):
    mounts = [f"source={tmp_path}/{name},target=/{name},type=bind" for name in ("cache", "own")]
    (tmp_path / "own").mkdir()
    keys = json.dumps({"image": "x", "mounts": mounts} | made)
    facts = changed(without_gpu(), {"project": read(tmp_path, files_of(dev=keys))})
    (request,) = list_requests(LocalHost(), facts, str(tmp_path))
    assert len(request.options) == (1 if made else 2)


def test_a_dev_container_is_created_with_all_that_its_file_says_and_names_the_line_without_which_it_can_be(
    engine, tmp_path
):
    keys = {"image": "own", "appPort": 80, "capAdd": ["GPU"], "init": True, "containerEnv": {"A": "b"}}
    keys |= {"mounts": [{"source": "${localWorkspaceFolder}", "target": "/w", "type": "bind"}]}
    project = read(tmp_path, files_of(dev=json.dumps(keys, indent=1)))
    engine()
    script = 'case "$*" in *" create "*GPU*) echo "unknown capability" >&2; exit 1;; esac'
    (tmp_path / "docker").write_text((tmp_path / "docker").read_text().replace("case", f"{script}\ncase", 1))
    facts = changed(without_gpu(), {"project": project, "engine": healthy().engine})
    found = try_containers(LocalHost(), facts, deadline_s=30.0, project=str(tmp_path)).tried
    (own,) = (each for each in found if each.arguments[:1] == ("create",))
    assert own.settings == ("capAdd in .devcontainer/devcontainer.json:5",)
    created = next(call for call in engine.calls() if " create " in call)
    assert f" create --pull=never --entrypoint=/bin/sh --name {PREFIX}-" in created
    assert f" --publish=80 --mount=source={tmp_path},target=/w,type=bind --cap-add=GPU --init devkit-trial:" in created


@pytest.mark.parametrize("arguments", [["evil.example/x"], ["--init", "evil.example/x"], ["--privileged", "x", "sh"]])
def test_no_word_of_a_stranger_is_the_image_or_the_command_of_a_container(engine, tmp_path, arguments):
    keys = {"image": "own", "runArgs": ["--cpus", "2", *arguments]}
    engine()
    attempt(changed(without_gpu(), {"project": read(tmp_path / "p", files_of(dev=json.dumps(keys)))}))
    started = [call.split() for call in engine.calls() if re.search(r" (?:run|create) ", call) and "--help" not in call]
    assert any("--cpus=2" in words for words in started)
    assert not [words for words in started if {"evil.example/x", "x", "sh"} & {*words}]


def test_a_setting_without_which_a_service_starts_is_found_with_its_line(engine, tmp_path):
    kept = {"mem_limit": "2", "memswap_limit": "1", "restart": "on-failure:3", "dns": ["9.9.9.9"]}
    write_project(tmp_path, {"services": {"train": kept}})
    (tmp_path / "compose.yaml").write_text("services:\n  train:\n    dns: 9.9.9.9\n    memswap_limit: 1\n")
    words = "Minimum memoryswap limit should be larger"
    engine(f'case "$*" in *compose*) {sys.executable} -c "$READ" "$*" || {{ echo {words} >&2; exit 1; }};; esac')
    script = "import re,sys; sys.exit('memswap' in open(re.search('--file (\\S+)', sys.argv[1])[1]).read())"
    (tmp_path / "docker").write_text((tmp_path / "docker").read_text().replace("case", f'READ="{script}"\ncase', 1))
    found = try_project(tmp_path).tried
    (own,) = (each for each in found if each.arguments == ("compose", "up"))
    assert (own.settings, own.is_suspected) == (("train.memswap_limit in compose.yaml:4",), False)


def test_the_setting_whose_name_the_engine_says_is_suspected_where_no_time_is_left(engine, tmp_path):
    networks = {"n": {"ipam": {"config": [{"subnet": "10.0.0.0/24"}]}}}
    write_project(
        tmp_path, {"services": {"a": {"restart": "on-failure:-3", "networks": {"n": {}}}}, "networks": networks}
    )
    words = (
        "printf ' Network n  Created\\ninvalid restart policy: maximum retry count cannot be negative\\n' >&2; exit 1"
    )
    engine(f'case "$*" in *compose*) {words};; esac')
    (own,) = (each for each in try_project(tmp_path).tried if each.arguments == ("compose", "up"))
    assert (own.settings, own.is_suspected) == (("a.restart in the project",), True)


def test_a_dev_container_is_tried_with_its_arguments_for_the_machine(engine, tmp_path):
    keys = {"image": "x", "runArgs": ["--runtime", "nvidia-legacy", "--name", "me", "--gpus all"]}
    project = read(tmp_path / "p", files_of(dev=json.dumps(keys)))
    engine()
    own = [
        each.arguments
        for each in attempt(changed(without_gpu(), {"project": project})).tried
        if each.way is Way.PROJECT
    ]
    assert ("run", "--runtime=nvidia-legacy", "--gpus all") in own
