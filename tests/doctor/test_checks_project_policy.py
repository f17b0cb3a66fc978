"""Checks of rules in devkit.toml, and of secrets in the project's files."""

import json

import pytest

from devkit.doctor.model import Found, Passed, RepairKind, Severity, Skipped
from devkit.facts.project import FileState
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, inside
from tests.doctor.projects import COMPOSE, DEV, IMAGE, compose_dev, dev, files_of, on, service
from tests.doctor.running import find_all, find_only, run_check

# PRJ032: the rules in devkit.toml, each kept and broken.


GOOD = files_of(dev=dev(), image=IMAGE)
LABELED = '[policy]\nrequired_labels = { team = "ml", "org.example.cost" = "a b" }\n'


def with_policy(policy, **files):
    return {"devkit.toml": policy, **(files_of(**files) if files else GOOD)}


def image(*lines):
    return IMAGE + "".join(f"{line}\n" for line in lines)


KEPT = {
    "a project without rules on anything": with_policy("[policy]\n"),
    "an image of an allowed registry": with_policy('[policy]\nregistries = ["docker.io/library"]\n'),
    "a name that is completed": with_policy('[policy]\nregistries = ["docker.io/library/python"]\n'),
    "root where it is allowed": with_policy("[policy]\nallow_root = true\n", dev=dev(remoteUser="root"), image=IMAGE),
    "privileges where they are allowed": with_policy(
        "[policy]\nallow_privileged = true\n", dev=dev(privileged=True), image=IMAGE
    ),
    "privileged: false": with_policy("[policy]\n", dev=dev(privileged=False), image=IMAGE),
    "labels on one line": with_policy(LABELED, dev=dev(), image=image('LABEL team=ml "org.example.cost"="a b"')),
    "labels on two lines": with_policy(
        LABELED, dev=dev(), image=image("LABEL team ml", "LABEL org.example.cost='a b'")
    ),
    "a label by a variable": with_policy(
        LABELED, dev=dev(), image=image("ARG TEAM=ml", 'LABEL team=$TEAM org.example.cost="a b"')
    ),
    "an image that only a variable names": with_policy(
        '[policy]\nregistries = ["quay.io"]\n', dev=dev(), image="ARG BASE\nFROM $BASE\nUSER dev\n"
    ),
    "a stage built on another stage": with_policy(
        '[policy]\nregistries = ["quay.io"]\n', dev=dev(), image="FROM quay.io/a/b:1 AS base\nFROM base\nUSER dev\n"
    ),
    "the name that a built service gives its image": with_policy(
        '[policy]\nregistries = ["docker.io/library"]\n',
        dev=compose_dev(),
        image=IMAGE,
        compose=service("image: registry.other.example/mine:1"),
    )
    | {".devcontainer/Dockerfile": IMAGE},
}


@pytest.mark.parametrize("files", KEPT.values(), ids=KEPT)
def test_what_keeps_the_policy_is_silent(tmp_path, files):
    assert isinstance(run_check("PRJ032", on(tmp_path, files)), Passed)


BROKEN = {
    "an image of another registry": (with_policy('[policy]\nregistries = ["quay.io"]\n'), "not of an allowed registry"),
    "a builder's image": (
        with_policy(
            '[policy]\nregistries = ["docker.io/library"]\n', dev=dev(), image=f"FROM ghcr.io/a/b:1 AS tools\n{IMAGE}"
        ),
        "ghcr.io/a/b:1",
    ),
    "the image of a service beside": (
        with_policy(
            '[policy]\nregistries = ["docker.io/library"]\n',
            dev=compose_dev(),
            image=IMAGE,
            compose=service() + "  db:\n    image: quay.io/db:1\n    user: db\n",
        ),
        "quay.io/db:1",
    ),
    "an image in devcontainer.json": (
        with_policy(
            '[policy]\nregistries = ["docker.io/library"]\n', dev=dev(build=None, image="mcr.microsoft.com/base:1")
        ),
        "mcr.microsoft.com/base:1",
    ),
    "root by name": (with_policy("[policy]\n", dev=dev(remoteUser="root"), image=IMAGE), "works as root"),
    "root by number": (with_policy("[policy]\n", dev=dev(remoteUser=None), image=image("USER 0:0")), "works as root"),
    "root because nobody is named": (
        with_policy("[policy]\n", dev=dev(remoteUser=None), image="FROM python:3.12\n"),
        "names no user",
    ),
    "a privileged dev container": (with_policy("[policy]\n", dev=dev(privileged=True), image=IMAGE), "privileged"),
    "a privileged service": (
        with_policy("[policy]\n", dev=compose_dev(), image=IMAGE, compose=service("privileged: true")),
        "privileged",
    ),
    "a label that is missing": (
        with_policy(LABELED, dev=dev(), image=image("LABEL team=ml")),
        "org.example.cost=a b",
    ),
    "a label with another value": (
        with_policy(LABELED, dev=dev(), image=image('LABEL team=vision org.example.cost="a b"')),
        "team=ml",
    ),
    "a label of a stage that is not built on": (
        with_policy(
            '[policy]\nrequired_labels = { team = "ml" }\n',
            dev=dev(),
            image=f"FROM python:3.12 AS tools\nLABEL team=ml\n{IMAGE}",
        ),
        "team=ml",
    ),
}


@pytest.mark.parametrize(("files", "says"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_the_policy_is_named_with_its_place(tmp_path, files, says):
    finding = find_only("PRJ032", on(tmp_path, files))
    assert says in finding.message
    assert finding.location is not None and finding.location.path in files


def test_a_mirror_is_the_way_out(tmp_path):
    policy = '[policy]\nregistries = ["m.example"]\nmirrors = { "docker.io" = "m.example/hub" }\n'
    finding = find_only("PRJ032", on(tmp_path, with_policy(policy)))
    assert "m.example/hub/library/python" in finding.fix.summary


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(GOOD, id="no devkit.toml"),
        pytest.param({"devkit.toml": "name = 'x'\n", **GOOD}, id="no policy in it"),
        pytest.param(with_policy("[policy]\nregistries = 3\n"), id="a policy that cannot be read"),
        pytest.param(with_policy("[policy\n"), id="a file that is no TOML"),
        pytest.param(with_policy(f"x = {'9' * 5000}\n"), id="a number that nobody can read"),
        pytest.param(with_policy(f"x = {'[' * 9000}\n"), id="brackets without end"),
        pytest.param({"devkit.toml": "[policy]\n"}, id="no container"),
    ],
)
def test_without_rules_there_is_nothing_to_judge(tmp_path, files):
    assert isinstance(run_check("PRJ032", on(tmp_path, files)), Skipped)


def test_a_broken_devkit_toml_is_said_to_be_broken(tmp_path):
    facts = on(tmp_path, with_policy("name = 1\n[policy\n"))
    (broken,) = [file for file in facts.project.files if file.path == "devkit.toml"]
    assert (broken.state, broken.line) == (FileState.BROKEN, 2)
    assert isinstance(facts.project.policy, Unknown)


def test_facts_of_an_older_release_have_no_labels_to_judge(tmp_path):
    facts = on(tmp_path, with_policy(LABELED))
    (dockerfile,) = facts.project.dockerfiles
    facts = changed(
        facts,
        {"project.dockerfiles": (changed(dockerfile, {"stages": tuple(_older(one) for one in dockerfile.stages)}),)},
    )
    assert isinstance(run_check("PRJ032", facts), Passed)


def _older(stage):
    return changed(stage, {"labels": Unknown("not recorded")})


def test_a_finding_stands_for_each_rule(tmp_path):
    policy = '[policy]\nregistries = ["quay.io"]\nrequired_labels = { team = "ml" }\n'
    files = with_policy(policy, dev=dev(remoteUser="root", privileged=True), image=IMAGE)
    verdict = run_check("PRJ032", on(tmp_path, files))
    assert isinstance(verdict, Found) and len(verdict.findings) == 4


TOKEN = "hf_" + "Zz" * 16


def files_with_image(*lines, context="."):
    text = "FROM python:3.12-slim\n" + "".join(f"{line}\n" for line in lines)
    return files_of(dev=dev(build={"dockerfile": "Dockerfile", "context": context}), image=text)


@pytest.mark.parametrize(
    ("files", "severity"),
    [
        pytest.param(files_with_image("ARG HF_TOKEN"), Severity.WARNING, id="ARG"),
        pytest.param(files_with_image("ENV WANDB_API_KEY=$KEY"), Severity.WARNING, id="ENV from an argument"),
        pytest.param(files_with_image(f"ENV HF_TOKEN={TOKEN}"), Severity.ERROR, id="ENV with a token"),
        pytest.param(files_with_image(f"RUN hf auth login --token {TOKEN}"), Severity.ERROR, id="a token in a command"),
        pytest.param(
            files_with_image("RUN --mount=type=secret,id=t,env=HF_TOKEN hf download x"), None, id="a secret mount"
        ),
        pytest.param(
            files_with_image("ENV HF_TOKEN_PATH=/run/token TOKENIZERS_PARALLELISM=false"), None, id="names like a token"
        ),
        pytest.param(files_with_image("ENV HF_TOKEN="), None, id="an empty ENV"),
        pytest.param(files_with_image("ENV PASSWORD_FILE=/x"), None, id="a file's name"),
        pytest.param(
            files_of(dev=dev(containerEnv={"HF_TOKEN": TOKEN}), image=IMAGE),
            Severity.ERROR,
            id="a token in containerEnv",
        ),
        pytest.param(
            files_of(dev=dev(remoteEnv={"HF_TOKEN": "${localEnv:HF_TOKEN}"}), image=IMAGE), None, id="the host's value"
        ),
        pytest.param(files_of(dev=dev(containerEnv={"HF_TOKEN": "<your token>"}), image=IMAGE), None, id="a stand-in"),
        pytest.param(
            files_of(dev=dev(build={"dockerfile": "Dockerfile", "args": {"HF_TOKEN": "${localEnv:X}"}}), image=IMAGE),
            Severity.WARNING,
            id="a build argument",
        ),
        pytest.param(
            files_of(dev=compose_dev(), compose=service("environment: [HF_TOKEN]"), image=IMAGE), None, id="passed on"
        ),
        pytest.param(
            files_of(dev=compose_dev(), compose=service("environment: {POSTGRES_PASSWORD: postgres}"), image=IMAGE),
            None,
            id="a password of a database of one's own",
        ),
        pytest.param(
            files_of(dev=compose_dev(), compose=service("environment: {WANDB_API_KEY: 0123abcd}"), image=IMAGE),
            Severity.WARNING,
            id="a key without a known shape",
        ),
    ],
)
def test_no_token_gets_into_images_or_files(tmp_path, files, severity):
    facts = on(tmp_path, files)
    verdict = run_check("PRJ017", facts)
    severities = [finding.severity for finding in getattr(verdict, "findings", ())]
    assert severities == ([severity] if severity else [])
    assert TOKEN not in repr(facts)
    assert "0123abcd" not in repr(facts)


@pytest.mark.parametrize(
    ("more", "copies", "taken"),
    [
        pytest.param({".env": "HF_TOKEN=abc\n"}, "COPY . /app", [".env"], id="everything"),
        pytest.param({".env": "HF_TOKEN=abc\n"}, "COPY .env /app/", [".env"], id="by name"),
        pytest.param({".env": "HF_TOKEN=abc\n"}, 'COPY [".env", "/app/"]', [".env"], id="by name, as a list"),
        pytest.param({".env": "HF_TOKEN=abc\n"}, "COPY src /app", [], id="something else"),
        pytest.param({".env": "BATCH=4\n"}, "COPY . /app", [], id="without a token in it"),
        pytest.param({".env": "HF_TOKEN=\n"}, "COPY . /app", [], id="with an empty token"),
        pytest.param({".env.example": "HF_TOKEN=abc\n"}, "COPY . /app", [], id="an example"),
        pytest.param({".env": "HF_TOKEN=abc\n", ".dockerignore": ".env\n"}, "COPY . /app", [], id="kept out"),
        pytest.param(
            {".env": "HF_TOKEN=abc\n", ".dockerignore": "**/.env*\n"}, "COPY . /app", [], id="kept out by shape"
        ),
        pytest.param(
            {".env": "HF_TOKEN=abc\n", ".dockerignore": "*\n!.env\n"}, "COPY . /app", [".env"], id="taken back in"
        ),
        pytest.param({".netrc": "machine x password y\n"}, "ADD . /root", [".netrc"], id="a file of passwords"),
        pytest.param({".env": "HF_TOKEN=abc\n"}, "COPY --from=build . /app", [], id="from another stage"),
    ],
)
def test_files_with_tokens_stay_out_of_the_image(tmp_path, more, copies, taken):
    facts = on(tmp_path, files_with_image(copies, context="..") | more)
    stage = facts.project.dockerfiles[0].stages[0]
    assert [one.value for one in stage.secret_files] == taken
    assert isinstance(run_check("PRJ017", facts), Found if taken else Passed)


def test_env_files_are_kept_out_of_the_repository(tmp_path):
    base = files_of(dev=dev(), image=IMAGE) | {".env": "HF_TOKEN=abc\n"}
    assert isinstance(run_check("PRJ017", on(tmp_path / "a", base)), Passed)
    assert find_only("PRJ017", on(tmp_path / "b", base | {".gitignore": "*.pyc\n"})).subject == ".env:1"
    assert isinstance(run_check("PRJ017", on(tmp_path / "c", base | {".gitignore": ".env\n"})), Passed)


def mounted(mount, env=None, dockerfile=IMAGE):
    return files_of(dev=dev(mounts=[mount], containerEnv=env or {}), image=dockerfile)


@pytest.mark.parametrize(
    ("files", "severity"),
    [
        pytest.param(
            mounted("source=${localEnv:HOME}/.cache/huggingface,target=/home/dev/.cache/huggingface,type=bind"),
            Severity.WARNING,
            id="the whole folder of the host",
        ),
        pytest.param(
            mounted({"type": "volume", "source": "hub", "target": "/home/dev/.cache/huggingface"}),
            Severity.NOTE,
            id="a volume at the whole folder",
        ),
        pytest.param(
            mounted("source=${localEnv:HOME}/.cache/huggingface/hub,target=/opt/cache/hub,type=bind"),
            None,
            id="the cache alone",
        ),
        pytest.param(
            mounted("source=hub,target=/opt/hf,type=volume", {"HF_HOME": "/opt/hf"}), Severity.NOTE, id="at HF_HOME"
        ),
        pytest.param(
            mounted(
                "source=hub,target=/opt/hf,type=volume", {"HF_HOME": "/opt/hf", "HF_TOKEN_PATH": "/home/dev/token"}
            ),
            None,
            id="with a token path of its own",
        ),
        pytest.param(
            mounted("source=hub,target=/opt/hf,type=volume", {"HF_HOME": "/opt/hf", "HF_TOKEN_PATH": "/opt/hf/token"}),
            Severity.NOTE,
            id="with a token path in it",
        ),
    ],
)
def test_a_shared_cache_holds_no_token(tmp_path, files, severity):
    verdict = run_check("PRJ018", on(tmp_path, files))
    severities = [finding.severity for finding in getattr(verdict, "findings", ())]
    assert severities == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("target", "lines", "verdict"),
    [
        pytest.param("/opt/cache/hub", "", Passed, id="below a folder of the user"),
        pytest.param("/data", "", Found, id="nobody's folder"),
        pytest.param("/data", "RUN mkdir -p /data && chown dev /data\n", Passed, id="a folder given away"),
        pytest.param("/data", "RUN mkdir -p /data\n", Passed, id="a folder that the user makes"),
        pytest.param("/data", "USER root\nRUN mkdir -p /data\nUSER dev\n", Found, id="a folder that root makes"),
        pytest.param("/data", "COPY --chown=dev . /data\n", Passed, id="a folder that is copied for the user"),
        pytest.param("/home/dev/.cache/hub", "", Found, id="below home, where the engine makes it"),
        pytest.param("/home/dev", "", Passed, id="home itself"),
        pytest.param("/home/dev/.cache", "RUN mkdir -p /home/dev/.cache\n", Passed, id="below home, made by the user"),
    ],
)
def test_volumes_belong_to_the_user(tmp_path, target, lines, verdict):
    files = mounted(f"source=data,target={target},type=volume", dockerfile=IMAGE + lines)
    assert isinstance(run_check("PRJ019", on(tmp_path, files)), verdict)


def test_a_volume_for_root_belongs_to_root(tmp_path):
    files = files_of(
        dev=dev(remoteUser=None, mounts=["source=d,target=/data,type=volume"]), image="FROM ubuntu:22.04\n"
    )
    assert isinstance(run_check("PRJ019", on(tmp_path, files)), Passed)


def test_the_source_of_a_bind_mount_exists(tmp_path):
    files = mounted("source=${localWorkspaceFolder}/models,target=/opt/cache/hub,type=bind")
    finding = find_only("PRJ019", on(tmp_path, files))
    assert finding.subject.startswith(DEV)
    assert "mkdir -p" in finding.fix.commands[0]
    (tmp_path / "models").mkdir()
    as_root = healthy().system.is_root
    assert as_root is False
    owner = on(tmp_path, files).project.dev_containers[0].mounts[0].owner_uid
    assert isinstance(run_check("PRJ019", on(tmp_path, files)), Found if owner == 0 else Passed)
    assert isinstance(run_check("PRJ019", on(tmp_path, files, system__is_root=True)), Passed)
    assert isinstance(run_check("PRJ019", on(tmp_path, files, inside())), Passed)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        pytest.param(("ipc: host",), "PRJ014", id="the host's IPC"),
        pytest.param(("privileged: true",), "PRJ015", id="privileged"),
        pytest.param(("pid: host",), "PRJ015", id="the host's processes"),
        pytest.param(("security_opt: [seccomp=unconfined]",), "PRJ015", id="every system call"),
        pytest.param(("volumes: ['/var/run/docker.sock:/var/run/docker.sock']",), "PRJ016", id="the engine's socket"),
    ],
)
def test_a_service_has_no_more_power_than_it_needs(tmp_path, lines, code):
    files = files_of(dev=compose_dev(), compose=service(*lines), image=IMAGE)
    finding = find_only(code, on(tmp_path, files))
    assert finding.location.path == COMPOSE
    for other in {"PRJ014", "PRJ015", "PRJ016"} - {code}:
        assert isinstance(run_check(other, on(tmp_path, files)), Passed)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(["--ipc=host"], "PRJ014", id="the host's IPC"),
        pytest.param(["--privileged"], "PRJ015", id="privileged"),
        pytest.param(["--pid", "host"], "PRJ015", id="the host's processes"),
        pytest.param(["-v", "/var/run/docker.sock:/var/run/docker.sock"], "PRJ016", id="the engine's socket"),
    ],
)
def test_run_args_give_no_more_power_than_needed(tmp_path, arguments, code):
    assert isinstance(run_check(code, on(tmp_path, files_of(dev=dev(runArgs=arguments), image=IMAGE))), Found)


def test_harmless_settings_pass(tmp_path):
    lines = ("ipc: shareable", "privileged: false", "security_opt: [no-new-privileges:true]", "pid: service:dev")
    facts = on(tmp_path, files_of(dev=compose_dev(), compose=service(*lines), image=IMAGE))
    assert all(isinstance(run_check(code, facts), Passed) for code in ("PRJ014", "PRJ015", "PRJ016"))


def test_the_repair_sizes_shared_memory_instead(tmp_path):
    files = files_of(dev=compose_dev(), compose=service("ipc: host", shm=""), image=IMAGE)
    removed, sized = find_only("PRJ014", on(tmp_path, files)).fix.repairs
    assert (removed.kind, removed.key) == (RepairKind.REMOVE, ("services", "dev", "ipc"))
    assert (sized.kind, sized.key, json.loads(sized.value)) == (RepairKind.SET, ("services", "dev", "shm_size"), "8gb")


@pytest.mark.parametrize(
    ("size", "verdict"),
    [
        pytest.param("8gb", Passed, id="gigabytes"),
        pytest.param("1g", Passed, id="a gibibyte, which is the limit"),
        pytest.param("1023m", Found, id="just below"),
        pytest.param("64M", Found, id="the engine's own"),
        pytest.param("1073741824", Passed, id="bytes"),
        pytest.param("${SHM:-8gb}", Passed, id="a variable"),
        pytest.param("", Found, id="not set"),
    ],
)
def test_shared_memory_is_sized(tmp_path, size, verdict):
    compose = service(shm=f"    shm_size: '{size}'\n" if size else "")
    files = files_of(dev=compose_dev(), compose=compose, image=IMAGE)
    assert isinstance(run_check("PRJ020", on(tmp_path, files)), verdict)


def test_the_repair_of_run_args_keeps_what_is_there(tmp_path):
    files = files_of(dev=dev(runArgs=["--gpus", '"device=0,1"']), image=IMAGE)
    (repair,) = find_only("PRJ020", on(tmp_path, files)).fix.repairs
    assert json.loads(repair.value) == ["--gpus", '"device=0,1"', "--shm-size=8gb"]


def test_shared_memory_matters_for_torch_alone(tmp_path):
    cuda = files_of(dev=dev(runArgs=["--gpus", "all"]), image="FROM nvidia/cuda:12.8.1-devel-ubuntu24.04\n")
    assert isinstance(run_check("PRJ020", on(tmp_path, cuda)), Passed)
    pytorch = files_of(dev=dev(runArgs=["--gpus", "all"]), image="FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime\n")
    assert "pytorch/pytorch:2.9.1" in find_only("PRJ020", on(tmp_path, pytorch)).evidence[1]
    files = files_of(dev=dev(runArgs=[]), image="FROM python:3.12-slim\nUSER dev\n")
    assert isinstance(run_check("PRJ020", on(tmp_path, files)), Passed)
    with_ipc = files_of(dev=dev(runArgs=["--ipc=host"]), image=IMAGE)
    assert isinstance(run_check("PRJ020", on(tmp_path, with_ipc)), Passed)


def test_devices_come_with_libraries():
    bare = {"driver.libcuda": None, "driver.libnvidia_ml": None}
    assert isinstance(run_check("PRJ031", inside()), Passed)
    assert find_only("PRJ031", changed(inside(), bare)).severity is Severity.ERROR
    assert isinstance(run_check("PRJ031", changed(inside(), bare | {"driver.nvidiactl": "absent"})), Passed)
    fewer = bare | {"container.driver_capabilities": "utility"}
    assert isinstance(run_check("PRJ031", changed(inside(), fewer)), Skipped)
    assert isinstance(run_check("PRJ031", changed(inside(), {"driver.libcuda": None})), Passed)
    assert isinstance(run_check("PRJ031", healthy()), Skipped)


def test_two_units_with_one_dockerfile_report_a_token_once(tmp_path):
    files = files_with_image("ARG HF_TOKEN")
    files[".devcontainer/second/devcontainer.json"] = dev(build={"dockerfile": "../Dockerfile"})
    assert len(find_all("PRJ017", on(tmp_path, files))) == 1
