"""What containers that were tried prove of a machine, and what is said of one on which nothing was tried."""

from dataclasses import replace

import pytest

from devkit.doctor.model import Severity
from devkit.doctor.report.lines import UNICODE_MARKS
from devkit.doctor.report.report import Health
from devkit.doctor.report.stack import build_stack
from devkit.doctor.report.text import format_report
from devkit.doctor.trials import describe_trials
from devkit.facts.engine import Endpoint, EngineEnd, EngineFailure
from devkit.facts.runs import Lack, ProgramFailure, Proxy, Trial, Trials, Way
from devkit.facts.values import NOT_READ, Unknown
from tests.cases import cases
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import changed, gpu, healthy, spec, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_only

ENDPOINT = Endpoint("unix:///var/run/docker.sock", "default")
UNSEEN = Unknown("the container did not get that far")
NODES = ("/dev/nvidia0", "/dev/nvidiactl")
ARGUMENTS = {
    Way.GPUS: ("--gpus", "all"),
    Way.RUNTIME: ("--runtime=nvidia",),
    Way.CDI: ("--device", "nvidia.com/gpu=all"),
}
NO_DRIVER = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]\n'
NO_RUNTIME = "docker: Error response from daemon: unknown or invalid runtime name: nvidia\n"
NO_RUNC = 'docker: Error response from daemon: exec: "runc": executable file not found in $PATH\n'
NO_LIMIT = (
    "docker: Error response from daemon: runc create failed: error setting rlimit type 8: operation not permitted\n"
)
NO_CGROUP = (
    "docker: Error response from daemon: nvidia-container-cli: container error: cgroup subsystem devices not found\n"
)
NO_SHIM = (
    "docker: Error response from daemon: start failed: : fork/exec /usr/bin/containerd-shim-runc-v2: permission denied"
)
NO_NODE = 'error gathering device information while adding custom device "/dev/nvidia3": no such file or directory'
NO_SUCH_RUNTIME = "docker: Error response from daemon: unknown or invalid runtime name: old"
STRANGE = "docker: Error response from daemon: the GPU is on holiday\n\nRun 'docker run --help' for more information\n"


def trial(way, **changes):
    """A container that started, and got what it asked for."""
    for_gpu = way in ARGUMENTS
    seen = {
        "device_nodes": NODES if for_gpu else (),
        "nvidiactl": "open" if for_gpu else "absent",
        "libcuda": "loaded" if for_gpu else "",
        "nvml": "loaded" if for_gpu else "",
        "nvidia_smi": "",
        "gpu_count": 1 if for_gpu else 0,
    }
    values = {"engine": "docker", "code": 0, "err": "", "ms": 300, "is_timed_out": False} | seen | changes
    return Trial(way=way, arguments=ARGUMENTS.get(way, ()), **values)


def refused(way, err, **changes):
    """A container that the engine did not start."""
    unseen = dict.fromkeys(("device_nodes", "nvidiactl", "libcuda", "nvml", "nvidia_smi", "gpu_count"), UNSEEN)
    return trial(way, **{"code": 125, "err": err} | unseen | changes)


PLAIN = trial(Way.PLAIN)
WORKS = trial(Way.GPUS)


def tried(*trials, machine=None, left_behind=(), **changes):
    return changed(machine or healthy(), {"trials": Trials((PLAIN, *trials), left_behind)} | changes)


def by_gpus(**changes):
    return tried(trial(Way.GPUS, **changes))


def alone(*trials, left_behind=()):
    """The healthy machine, with these trials and no others."""
    return changed(healthy(), {"trials": Trials(trials, left_behind)})


def broken_by(err, **changes):
    return alone(refused(Way.PLAIN, err, **changes))


FILE = "/etc/docker/daemon.json"
PROFILE, DEFAULT = (f"{key} in {FILE}" for key in ("seccomp-profile", "default-runtime"))


def own(**changes):
    """A service of the project, with what it asks of the machine."""
    return replace(trial(Way.PROJECT, **changes), arguments=("compose", "run", "train"))


def failing(*arguments, err="it", machine=None, code=1, **changes):
    """A container of the project that does not start, or shows a fault."""
    return tried(replace(own(code=code, err=err, **changes), arguments=arguments), machine=machine)


def lacking(kind, words, setting="", engine="docker"):
    """A plain container that started and lacks something."""
    return alone(replace(PLAIN, engine=engine, lacks=(Lack(kind, words, setting),)))


TWO = {"nvml.gpus": (gpu(0), gpu(1))}

CASES = [
    ("ENG017", tried(machine=without_gpu()), "passed", "a container starts on a machine without a GPU"),
    ("ENG017", healthy(), "skipped", "nothing was tried"),
    ("ENG017", broken_by(NO_RUNC), "error", "no runc"),
    ("ENG017", alone(refused(Way.IMAGE, "no space left")), "error: cannot import an image", "a full disk"),
    ("ENG017", tried(refused(Way.PLAIN, STRANGE, engine="podman")), "warning: podman", "Podman beside a sound Docker"),
    (
        "ENG017",
        alone(refused(Way.PLAIN, NO_RUNC), trial(Way.PLAIN, engine="podman")),
        "error",
        "a broken Docker beside a sound Podman",
    ),
    (
        "ENG017",
        tried(left_behind=("podman devkit-trial-1-2-3-gpus",)),
        "warning: podman rm --force devkit-trial-1-2-3-gpus",
        "a container that could not be removed",
    ),
    (
        "ENG017",
        alone(trial(Way.PLAIN, code=124, is_timed_out=True), left_behind=("docker devkit-trial:1",)),
        "warning: docker image rm",
        "what a container that hangs left behind",
    ),
    (
        "ENG017",
        tried(left_behind=("docker devkit-trial:1",)),
        "warning: docker image rm",
        "an image that could not be removed",
    ),
    (
        "ENG017",
        broken_by(NO_SHIM),
        "error: shim | sudo chmod a+x /usr/bin/containerd-shim-runc-v2",
        "a shim without its bit",
    ),
    ("ENG017", broken_by(NO_RUNC), "error: runc | apt-get install -y --reinstall runc", "a program that is missing"),
    (
        "ENG017",
        broken_by("does not match the specified platform", works_without=("DOCKER_DEFAULT_PLATFORM",)),
        "error: because of DOCKER_DEFAULT_PLATFORM | unset DOCKER_DEFAULT_PLATFORM",
        "a variable without which it starts",
    ),
    (
        "ENG017",
        broken_by("bind-mount /proc/3/ns/net: no such file", settings=(PROFILE,)),
        "error: because of seccomp-profile in /etc/docker/daemon.json | sudoedit /etc/docker/daemon.json",
        "a setting without which it starts",
    ),
    (
        "ENG017",
        broken_by("", code=124, is_timed_out=True, settings=(PROFILE,)),
        "error: does not end",
        "one that hangs",
    ),
    ("ENG017", broken_by("", code=124, is_timed_out=True), "skipped", "it hangs, or the machine is busy"),
    (
        "ENG017",
        changed(broken_by(STRANGE, settings=(DEFAULT,)), {"engine.default_runtime": "nvidia"}),
        "skipped",
        "the runtime nvidia is the default, and says what ails it",
    ),
    ("ENG017", broken_by(STRANGE, settings=(DEFAULT,)), "error: default-runtime", "another default runtime"),
    (
        "PRJ041",
        failing("inspect", "--type", "network", "ml", err="network ml not found"),
        "error: network ml not found | docker network create ml",
        "an external network that does not exist",
    ),
    ("PRJ041", tried(WORKS), "skipped", "no project"),
    ("PRJ041", tried(WORKS, own()), "passed", "a project that starts"),
    ("PRJ041", tried(own(code=125, err=STRANGE), own()), "error: docker compose run train", "one of two services"),
    (
        "PRJ041",
        tried(own(code=1, err=NO_NODE, settings=("train.devices in the project",), is_suspected=True)),
        "error: mentions train.devices in | docker compose config",
        "a device of another machine",
    ),
    (
        "PRJ041",
        tried(own(code=1, err="Minimum memoryswap", settings=("a.memswap_limit in dev/c.yaml:7",))),
        "error: fails because of a.memswap_limit in dev/c.yaml:7; it works without it | ${EDITOR:-vi} +7 dev/c.yaml",
        "a setting without which it starts",
    ),
    (
        "PRJ041",
        failing("compose", "up", err="bind source path does not exist: /d", settings=("configs.t.file in c.yaml:9",)),
        "error: because of configs.t.file in c.yaml:9 | ${EDITOR:-vi} +9 c.yaml",
        "a file that is missing",
    ),
    (
        "PRJ041",
        tried(own(code=125, err=NO_SUCH_RUNTIME)),
        "error: runtime name: old",
        "a runtime that nobody registered",
    ),
    ("PRJ041", tried(own(is_timed_out=True, code=124)), "skipped", "a busy machine"),
    (
        "PRJ041",
        failing("build", "--file", "app/Dockerfile", err="target x not found"),
        "warning: from app/Dockerfile: target x not found | docker build --check --file app/Dockerfile",
        "a Dockerfile that BuildKit refuses",
    ),
    (
        "PRJ041",
        failing("compose", "build", "D"),
        "error: from D: it | docker build --check",
        "an image that has no build",
    ),
    ("PRJ041", failing("build", "--ignorefile", "/i", "!r"), "error: it | echo '!r' >> /i", "an ignored file"),
    (
        "PRJ041",
        failing("compose", "up", "app", err='exec: "/e": permission denied', code=126),
        "error: docker compose up app | docker compose build app",
        "a program without its execute bit in the image",
    ),
    (
        "PRJ041",
        failing("run", "--interactive", "app", err="its program is bash"),
        "error: exits right after it starts: its program is bash | overrideCommand",
        "a shell with nothing to read",
    ),
    (
        "PRJ041",
        failing("run", "--mount", "/data", err="the volume at /data"),
        "warning: the volume at /data | sudo chown $(id -u):$(id -g) /data",
        "a new volume without a folder in the image",
    ),
    (
        "PRJ041",
        failing("exec", "--user", "me", "/d"),
        "warning: it | RUN mkdir -p /d && chown me /d",
        "a folder of root",
    ),
    ("PRJ041", failing("exec", "--env", "HOME"), "warning: lifecycle commands | grep -rnw HOME", "another's home"),
    ("PRJ041", failing("run", "--volume", "/s"), "warning: it | mkdir -p /s", "a mount of another"),
    ("PRJ041", failing("create", "--volume", "/s"), "note: it | stat --format", "a mount that may only be read"),
    ("PRJ041", failing("compose", "--env-file", "T=1"), "error: it | echo T=1 >> .env", "an unset tag"),
    ("PRJ041", failing("compose", "pull", "a"), "error: it | docker compose config --images", "a bad name"),
    ("PRJ041", failing("run", "--interpreter", "/s"), "error: it | sed -i '1i #!/bin/sh' /s", "no interpreter"),
    (
        "PRJ041",
        failing("compose", "up", err="bind source path does not exist: /d", settings=("a.volumes.source",)),
        "error: /d | mkdir -p /d",
        "a source that is missing",
    ),
    (
        "PRJ041",
        failing("run", "x", err="statfs /var/run/docker.sock: no such file or directory", engine="podman"),
        "error: statfs | source=/run/podman/podman.sock",
        "a socket of Docker with Podman",
    ),
    ("ENG020", tried(), "passed", "a container that lacks nothing"),
    ("ENG020", healthy(), "skipped", "nothing was tried, so nothing lacks"),
    ("ENG020", lacking("names", "they ask 8.8.8.8"), "warning: 8.8.8.8 | sudoedit", "another DNS server"),
    (
        "ENG020",
        lacking("limit", "open files: 64", f"default-ulimits in {FILE}"),
        f"warning: open files: 64 | {FILE}",
        "a limit",
    ),
    (
        "ENG020",
        lacking("limit", "open files: 64"),
        "warning: open files | systemctl edit docker",
        "a limit of the unit",
    ),
    (
        "ENG020",
        lacking("limit", "open files: 64", engine="podman"),
        "warning: open files | containers.conf",
        "a limit of a session",
    ),
    ("ENG020", lacking("ids", "1"), "warning: only 1 of the 65536 user IDs | usermod --add-subuids", "one user id"),
    ("CTK013", by_gpus(device_nodes=(), nvidiactl="absent"), "error: finds no GPU | --gpus all", "no nodes"),
    ("CTK013", by_gpus(nvidiactl="refused"), "error: cannot open | --gpus all", "nodes that may not be opened"),
    ("CTK013", by_gpus(libcuda="cannot open"), "error: cannot load libcuda.so.1", "no libcuda"),
    ("CTK013", by_gpus(nvml="cannot open"), "error: cannot load libnvidia-ml.so.1", "no NVML"),
    ("CTK013", by_gpus(libcuda="", nvml=""), "passed", "a loader that is not glibc's says nothing"),
    ("CTK013", by_gpus(nvidia_smi="Failed to initialize NVML: Unknown Error"), "error: Unknown Error", "NVML fails"),
    ("CTK013", by_gpus(is_timed_out=True, code=124), "skipped", "it hangs"),
    ("CTK013", by_gpus(libcuda=UNSEEN, nvidiactl=UNSEEN), "skipped", "its output is lost"),
    ("CTK013", tried(WORKS, **TWO), "error: gets 1 of 2", "one of two GPUs"),
    ("CTK013", tried(refused(Way.GPUS, STRANGE)), "error: the GPU is on holiday", "an error nobody knows"),
    ("CTK013", tried(refused(Way.RUNTIME, NO_RUNTIME), WORKS), "warning: --runtime=nvidia", "one of two ways"),
    (
        "CTK013",
        tried(trial(Way.GPUS, device_nodes=("/dev/dxg",), nvidiactl="absent"), machine=windows_guest()),
        "passed",
        "in WSL the GPU is one node",
    ),
    (
        "CTK013",
        tried(trial(Way.GPUS, device_nodes=(), nvidiactl="absent"), machine=windows_guest()),
        "error",
        "in WSL without it",
    ),
    ("CTK013", tried(machine=without_gpu()), "skipped", "without a GPU"),
    ("CTK013", healthy(), "skipped", "nothing was tried"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_how_containers_end(code):
    assert list_wrong(code, CASES) == []


def test_the_cause_of_a_long_error_is_shown_and_the_commands_help_is_not():
    far = "docker: Error response from daemon: failed to create task: " + "one layer after the other: " * 20
    finding = find_only("CTK013", tried(refused(Way.GPUS, f"{far}the cause of it all\n\nRun 'docker run --help'\n")))
    assert finding.message.endswith("the cause of it all")
    assert len(finding.message) < 320
    assert "--help" not in "".join(finding.evidence)


def test_a_known_error_is_explained():
    finding = find_only("CTK013", tried(refused(Way.GPUS, NO_DRIVER)))
    assert NO_DRIVER.strip() not in finding.message
    assert finding.fix.commands


NO_TOOLKIT = {
    "engine.runtimes": (),
    "engine.cdi_devices": (),
    "engine.hook_on_path": False,
    "engine.containers": (),
    "toolkit.version": None,
    "toolkit.daemon_files": (),
    "cdi": (),
}


def test_a_missing_toolkit_is_the_cause_where_the_engine_says_so():
    assert build_full_report(tried(refused(Way.GPUS, NO_DRIVER), **NO_TOOLKIT)).root_causes == ("CTK001",)


def test_settings_that_look_wrong_are_notes_where_containers_get_the_gpus():
    assert build_full_report(changed(healthy(), NO_TOOLKIT)).health is Health.PROBLEMS
    report = build_full_report(tried(WORKS, **NO_TOOLKIT))
    assert report.health is Health.HEALTHY
    (note,) = (each.finding for each in report.findings if each.check.code == "CTK001")
    assert note.severity is Severity.NOTE
    assert "docker run --gpus all: a container got the GPUs" in note.evidence


def test_a_cause_that_the_engine_does_not_name_is_a_note_beside_it():
    """The settings say that the toolkit is missing; the engine says that control groups are in its way."""
    report = build_full_report(tried(refused(Way.GPUS, NO_CGROUP), **NO_TOOLKIT))
    assert report.root_causes == ("CTK013",)


def test_a_setting_whose_file_the_engine_names_explains_the_way_that_fails():
    gone = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"
    words = f'docker: Error response from daemon: error mounting "{gone}" to rootfs: no such file or directory\n'
    stale = {"cdi": (spec(missing_paths=(gone,)),)}
    report = build_full_report(tried(WORKS, refused(Way.CDI, words), **stale))
    assert report.root_causes == ("CDI004",)
    assert build_full_report(tried(WORKS, **stale)).root_causes == ()


def test_a_container_that_may_not_write_is_not_one_that_does_not_start():
    assert "do not" not in describe_trials(failing("exec", "--user", "me", "/d"))


def test_cdi_that_is_disabled_is_the_cause_where_the_project_asks_for_it():
    off = {"engine.runtimes": (), "engine.hook_on_path": False, "engine.cdi_devices": (), "engine.cdi_spec_dirs": ()}
    asked = replace(own(code=1, err='could not select device driver "cdi"'), arguments=("compose", "up"))
    report = build_full_report(tried(refused(Way.GPUS, NO_DRIVER), asked, **off))
    assert report.root_causes == ("CDI010",)
    assert build_full_report(tried(refused(Way.GPUS, NO_DRIVER), **off)).root_causes == ("CTK013",)


@cases("words", {"words that nobody knows": NO_RUNC, "words that are known": NO_LIMIT})
def test_an_engine_that_starts_nothing_is_the_cause_of_what_gets_no_gpu(words):
    facts = changed(healthy(), {"trials": Trials((refused(Way.PLAIN, words), refused(Way.GPUS, words)), ())})
    assert build_full_report(facts).root_causes == ("ENG017",)


@cases(
    "facts, said",
    {
        "tried": (tried(WORKS), "containers start with 1 GPU"),
        "beside a project's container": (
            tried(WORKS, own()),
            "containers start with 1 GPU; not tried: the project's programs (devkit up)",
        ),
        "an image that is not here": (
            changed(healthy(), {"trials": Trials((WORKS, own()), (), pending=("the image pg:16",))}),
            "settings look right; not tried: the image pg:16 and the project's programs (devkit up)",
        ),
        "not tried": (healthy(), "settings look right, but not tried"),
        "facts of an older release": (changed(healthy(), {"trials": NOT_READ}), "not tried"),
        "only a container without a GPU": (tried(), "settings look right"),
    },
)
def test_healthy_is_said_only_of_what_was_tried(facts, said):
    report = build_full_report(facts)
    assert report.health is Health.HEALTHY
    assert said in report.headline
    assert report.tried is (said.startswith("containers"))


@pytest.mark.parametrize(("pending", "severity"), [((), Severity.NOTE), (("the image far",), Severity.WARNING)])
def test_a_project_whose_images_are_here_needs_no_proxy_of_the_daemon(pending, severity):
    proxies = (Proxy("HTTPS_PROXY", "http://proxy.example:3128"),)
    facts = changed(healthy(), {"hub.proxies": proxies, "trials": Trials((PLAIN, WORKS, own()), (), (), pending)})
    found = [each.finding.severity for each in build_full_report(facts).findings if each.check.code == "ENG013"]
    assert found[0] is severity


def test_what_is_wrong_in_a_line_is_told_and_what_mends_it_is_in_the_fix():
    failed = failing("create", "d.json").trials.tried[-1]
    setting = "mounts in d.json:6 (DATA is not set: export DATA)"
    facts = changed(healthy(), {"trials": Trials((PLAIN, WORKS, replace(failed, settings=(setting,))), ())})
    finding = find_only("PRJ041", facts)
    assert "because of mounts in d.json:6 (DATA is not set);" in finding.message
    assert finding.fix.summary == "Correct mounts in line 6 of d.json: export DATA."


def test_without_a_gpu_what_was_not_tried_of_the_project_is_told_too():
    facts = changed(without_gpu(), {"trials": Trials((PLAIN, own()), ())})
    report = build_full_report(facts)
    lines = format_report(report, build_stack(facts, report), width=300, marks=UNICODE_MARKS)
    assert report.health is Health.NO_GPU
    assert "; not tried: the project's programs (devkit up);" in " ".join(each.text.strip() for each in lines)


def test_beside_a_warning_what_was_not_tried_is_told_with_the_command_that_tries_it():
    warned = replace(own(code=1, err="the volume is root's"), arguments=("run", "--mount", "cache"))
    facts = changed(healthy(), {"trials": Trials((PLAIN, WORKS, warned), (), pending=("the build of app",))})
    report = build_full_report(facts)
    lines = format_report(report, build_stack(facts, report), width=300, marks=UNICODE_MARKS)
    assert "1 warning; not tried: the build of app and the project's programs (devkit up);" in " ".join(map(str, lines))


@cases(
    "facts, said",
    {
        "late": (tried(trial(Way.GPUS, is_timed_out=True, code=124)), "did not end in time"),
        "a late service": (tried(WORKS, own(is_timed_out=True, code=124)), "did not end in time"),
        "untried": (changed(healthy(), {"trials": Trials((PLAIN, WORKS, own()), (), ("db",))}), "were not tried: db"),
    },
)
def test_what_the_project_or_the_gpus_need_and_was_not_seen_is_never_healthy(facts, said):
    report = build_full_report(facts)
    assert report.health is Health.INCOMPLETE
    assert said in report.line


def test_a_builder_that_fails_was_run_and_is_no_note_where_containers_start():
    failure = ProgramFailure("docker build", ("use another context",), works_without=("BUILDX_BUILDER",))
    docker = replace(healthy().clients.named("docker"), failure=failure)
    found = replace(healthy().clients, found=(docker,))
    assert build_full_report(tried(WORKS, clients=found)).health is Health.WARNINGS


def test_a_way_that_fails_beside_one_that_works_does_not_make_settings_an_error():
    report = build_full_report(tried(refused(Way.RUNTIME, NO_RUNTIME), WORKS, **NO_TOOLKIT))
    assert report.health is Health.WARNINGS


def test_trials_of_one_engine_say_nothing_of_the_number_of_gpus_in_another_way():
    assert replace(WORKS, gpu_count=UNSEEN) != WORKS
    report = build_full_report(tried(replace(WORKS, gpu_count=UNSEEN)))
    assert report.headline == "containers start"


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (
            'failed to register "bridge" driver: failed to find iptables: exec: "iptables": executable file not found',
            "iptables",
        ),
        ("Error: could not find a working conmon binary (configured options: [/usr/bin/conmon])", "conmon"),
        ('exec: "docker-init": executable file not found in $PATH', "dpkg -S /usr/bin/docker-init"),
        ("fork/exec /usr/bin/runc: exec format error", "dpkg -S /usr/bin/runc"),
        ('default OCI runtime "crun2" not found: invalid argument', "devkit doctor"),
    ],
)
def test_a_program_that_the_last_words_name_is_repaired(words, fix):
    failure = EngineFailure(EngineEnd.CANNOT_START, ENDPOINT, "", said=(ProgramFailure("dockerd", (words,)),))
    assert fix in find_only("ENG018", changed(healthy(), {"engine": failure})).fix.commands[-1]
