"""Checks of secrets, mounts and powers in the project's files."""

from dataclasses import replace

import pytest

from devkit.facts.project import FileState
from tests.doctor.judging import judge, list_codes, list_wrong, list_wrong_projects
from tests.doctor.machines import changed, healthy, inside
from tests.doctor.projects import COMPOSE, DEV, IMAGE, compose_dev, dev, files_of, on, service
from tests.doctor.running import find_all, find_only

GOOD = files_of(dev=dev(), image=IMAGE)

# PRJ017 to PRJ020: secrets, mounts, powers, shared memory.

TOKEN = "hf_" + "Zz" * 16


def built(*lines, context=".", more=None):
    text = "FROM python:3.12-slim\n" + "".join(f"{line}\n" for line in lines)
    return files_of(dev=dev(build={"dockerfile": "Dockerfile", "context": context}), image=text) | (more or {})


def with_dev(**changes):
    return files_of(dev=dev(**changes), image=IMAGE)


def with_service(*lines, **options):
    return files_of(dev=compose_dev(), compose=service(*lines, **options), image=IMAGE)


def mounted(mount, dockerfile=IMAGE, **env):
    return files_of(dev=dev(mounts=[mount], containerEnv=env), image=dockerfile)


def volume(target, lines=""):
    return mounted(f"source=data,target={target},type=volume", IMAGE + lines)


def shm(size):
    return with_service(shm=f"    shm_size: '{size}'\n" if size else "")


def with_args(*arguments, image=IMAGE):
    return files_of(dev=dev(runArgs=[*arguments]), image=image)


def ignored(*lines):
    """A file of tokens beside this .gitignore."""
    return GOOD | {".env": "HF_TOKEN=abc\n"} | ({".gitignore": "".join(f"{line}\n" for line in lines)} if lines else {})


ALL_OF_CACHE = "source=${localEnv:HOME}/.cache/huggingface,target=/home/dev/.cache/huggingface,type=bind"
CACHE_ALONE = "source=${localEnv:HOME}/.cache/huggingface/hub,target=/opt/cache/hub,type=bind"
CACHE_VOLUME = {"type": "volume", "source": "hub", "target": "/home/dev/.cache/huggingface"}
AT_HF_HOME = "source=hub,target=/opt/hf,type=volume"
SOCKET = "/var/run/docker.sock:/var/run/docker.sock"
HARMLESS = with_service(
    "ipc: shareable", "privileged: false", "security_opt: [no-new-privileges:true]", "pid: service:dev"
)
ROOTS_VOLUME = files_of(
    dev=dev(remoteUser=None, mounts=["source=d,target=/data,type=volume"]), image="FROM ubuntu:22.04\n"
)
BUILD_ARGUMENT = {"dockerfile": "Dockerfile", "args": {"HF_TOKEN": "${localEnv:X}"}}
CUDA = "FROM nvidia/cuda:12.8.1-devel-ubuntu24.04\n"
PYTORCH = "FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime\n"

CASES = [
    ("PRJ017", built("ARG HF_TOKEN"), "warning: HF_TOKEN", "ARG"),
    ("PRJ017", built("ENV WANDB_API_KEY=$KEY"), "warning", "ENV from an argument"),
    ("PRJ017", built(f"ENV HF_TOKEN={TOKEN}"), f"error: never {TOKEN}", "ENV with a token"),
    ("PRJ017", built(f"RUN hf auth login --token {TOKEN}"), f"error: never {TOKEN}", "a token in a command"),
    ("PRJ017", built("RUN --mount=type=secret,id=t,env=HF_TOKEN hf download x"), "passed", "a secret mount"),
    ("PRJ017", built("ENV HF_TOKEN_PATH=/run/token TOKENIZERS_PARALLELISM=false"), "passed", "names like a token"),
    ("PRJ017", built("ENV HF_TOKEN="), "passed", "an empty ENV"),
    ("PRJ017", built("ENV PASSWORD_FILE=/x"), "passed", "a file's name"),
    ("PRJ017", with_dev(containerEnv={"HF_TOKEN": TOKEN}), f"error: never {TOKEN}", "a token in containerEnv"),
    ("PRJ017", with_dev(remoteEnv={"HF_TOKEN": "${localEnv:HF_TOKEN}"}), "passed", "the host's value"),
    ("PRJ017", with_dev(containerEnv={"HF_TOKEN": "<your token>"}), "passed", "a stand-in"),
    ("PRJ017", with_dev(build=BUILD_ARGUMENT), "warning", "a build argument"),
    ("PRJ017", with_service("environment: [HF_TOKEN]"), "passed", "passed on"),
    ("PRJ017", with_service("environment: {POSTGRES_PASSWORD: postgres}"), "passed", "a database of one's own"),
    ("PRJ017", with_service("environment: {WANDB_API_KEY: 0123abcd}"), "warning: never 0123abcd", "an unknown shape"),
    ("PRJ017", ignored(), "passed", "a file of tokens in no repository"),
    ("PRJ017", ignored("*.pyc"), "warning: .env:1", "a file of tokens that the repository takes"),
    ("PRJ017", ignored(".env"), "passed", "a file of tokens that is kept out"),
    ("PRJ018", mounted(CACHE_VOLUME), "note", "a volume at the whole folder"),
    ("PRJ018", mounted(CACHE_ALONE), "passed", "only the cache"),
    ("PRJ018", mounted(AT_HF_HOME, HF_HOME="/opt/hf"), "note", "at HF_HOME"),
    ("PRJ018", mounted(AT_HF_HOME, HF_HOME="/opt/hf", HF_TOKEN_PATH="/home/dev/token"), "passed", "a token elsewhere"),
    ("PRJ018", mounted(AT_HF_HOME, HF_HOME="/opt/hf", HF_TOKEN_PATH="/opt/hf/token"), "note", "a token path in it"),
    ("PRJ019", volume("/opt/cache/hub"), "passed", "below a folder of the user"),
    ("PRJ019", volume("/data"), "warning: /data", "nobody's folder"),
    ("PRJ019", volume("/data", "RUN mkdir -p /data && chown dev /data\n"), "passed", "a folder given away"),
    ("PRJ019", volume("/data", "RUN mkdir -p /data\n"), "passed", "a folder that the user makes"),
    ("PRJ019", volume("/data", "USER root\nRUN mkdir -p /data\nUSER dev\n"), "warning", "a folder that root makes"),
    ("PRJ019", volume("/data", "COPY --chown=dev . /data\n"), "passed", "a folder that is copied for the user"),
    ("PRJ019", volume("/home/dev/.cache/hub"), "warning", "below home, where the engine makes it"),
    ("PRJ019", volume("/home/dev"), "passed", "home itself"),
    ("PRJ019", volume("/home/dev/.cache", "RUN mkdir -p /home/dev/.cache\n"), "passed", "below home, by the user"),
    ("PRJ019", ROOTS_VOLUME, "passed", "a volume for root belongs to root"),
    *((code, HARMLESS, "passed", "harmless settings") for code in ("PRJ014", "PRJ015", "PRJ016")),
    ("PRJ014", with_service("ipc: host"), f"warning: {COMPOSE}", "the host's IPC"),
    ("PRJ015", with_service("ipc: host"), "passed", "the host's IPC is no privilege"),
    ("PRJ015", with_service("privileged: true"), "warning: privileged", "privileged"),
    ("PRJ015", with_service("pid: host"), "warning", "the host's processes"),
    ("PRJ015", with_service("security_opt: [seccomp=unconfined]"), "note", "every system call"),
    ("PRJ016", with_service("privileged: true"), "passed", "a privilege is no socket"),
    ("PRJ016", with_service(f"volumes: ['{SOCKET}']"), "warning: docker.sock", "the engine's socket"),
    ("PRJ014", with_args("--ipc=host"), "warning", "the host's IPC by runArgs"),
    ("PRJ015", with_args("--privileged"), "warning", "privileged by runArgs"),
    ("PRJ015", with_args("--pid", "host"), "warning", "the host's processes by runArgs"),
    ("PRJ016", with_args("-v", SOCKET), "warning", "the engine's socket by runArgs"),
    ("PRJ020", shm("8gb"), "passed", "gigabytes"),
    ("PRJ020", shm("1g"), "passed", "a gibibyte, which is the limit"),
    ("PRJ020", shm("1023m"), "warning", "just below"),
    ("PRJ020", shm("64M"), "warning", "the engine's own"),
    ("PRJ020", shm("1073741824"), "passed", "bytes"),
    ("PRJ020", shm("${SHM:-8gb}"), "passed", "a variable"),
    ("PRJ020", shm(""), "warning: Set shm_size | never set services", "not set"),
    (
        "PRJ020",
        with_args("--gpus", '"device=0,1"'),
        'warning: set runArgs.- "--shm-size=8gb"',
        "the repair of runArgs keeps what is there",
    ),
    ("PRJ020", with_args("--gpus", "all", image=CUDA), "passed", "shared memory matters for torch alone"),
    ("PRJ020", with_args("--gpus", "all", image=PYTORCH), "warning: pytorch/pytorch:2.9.1", "an image with torch"),
    ("PRJ020", with_args(image="FROM python:3.12-slim\nUSER dev\n"), "passed", "neither GPU nor torch"),
    ("PRJ020", with_args("--ipc=host"), "passed", "the host's shared memory"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_project(tmp_path, code):
    assert list_wrong_projects(tmp_path, code, CASES) == []


@pytest.mark.parametrize(("token_from", "verdict"), [("file", "warning"), ("", "passed")])
def test_the_hosts_cache_is_reported_where_it_has_a_token(tmp_path, token_from, verdict):
    facts = on(tmp_path, mounted(ALL_OF_CACHE))
    facts = replace(facts, hub=replace(facts.hub, token_from=token_from))
    assert list(judge("PRJ018", facts, verdict)) == []


@pytest.mark.parametrize("text", ["name = 1\n[policy\n", "name = 'x'\n[policy]\n"])
def test_a_devkit_toml_that_init_refuses_is_said_to_be_broken(tmp_path, text):
    facts = on(tmp_path, {"devkit.toml": text, **GOOD})
    (broken,) = [file for file in facts.project.files if file.path == "devkit.toml"]
    assert (broken.state, broken.line) == (FileState.BROKEN, 2)


def test_no_fact_holds_a_token(tmp_path):
    for number, files in enumerate(files for code, files, *_ in CASES if code == "PRJ017"):
        facts = repr(on(tmp_path / str(number), files))
        assert TOKEN not in facts and "0123abcd" not in facts


HAS_TOKEN = {".env": "HF_TOKEN=abc\n"}

COPIES = [
    (HAS_TOKEN, "COPY . /app", [".env"], "everything"),
    (HAS_TOKEN, "COPY .env /app/", [".env"], "by name"),
    (HAS_TOKEN, 'COPY [".env", "/app/"]', [".env"], "by name, as a list"),
    (HAS_TOKEN, "COPY src /app", [], "something else"),
    ({".env": "BATCH=4\n"}, "COPY . /app", [], "without a token in it"),
    ({".env": "HF_TOKEN=\n"}, "COPY . /app", [], "with an empty token"),
    ({".env.example": "HF_TOKEN=abc\n"}, "COPY . /app", [], "an example"),
    (HAS_TOKEN | {".dockerignore": ".env\n"}, "COPY . /app", [], "kept out"),
    (HAS_TOKEN | {".dockerignore": "**/.env*\n"}, "COPY . /app", [], "kept out by shape"),
    (HAS_TOKEN | {".dockerignore": "*\n!.env\n"}, "COPY . /app", [".env"], "taken back in"),
    ({".netrc": "machine x password y\n"}, "ADD . /root", [".netrc"], "a file of passwords"),
    (HAS_TOKEN, "COPY --from=build . /app", [], "from another stage"),
]


def test_files_with_tokens_stay_out_of_the_image(tmp_path):
    for number, (more, copies, taken, name) in enumerate(COPIES):
        facts = on(tmp_path / str(number), built(copies, context="..", more=more))
        assert [one.value for one in facts.project.dockerfiles[0].stages[0].secret_files] == taken, name
        assert list(judge("PRJ017", facts, "error" if taken else "passed")) == [], name


def test_the_source_of_a_bind_mount_exists(tmp_path):
    files = mounted("source=${localWorkspaceFolder}/models,target=/opt/cache/hub,type=bind")
    finding = find_only("PRJ019", on(tmp_path, files))
    assert finding.subject.startswith(DEV)
    assert "mkdir -p" in finding.fix.commands[0]
    (tmp_path / "models").mkdir()
    owner = on(tmp_path, files).project.dev_containers[0].mounts[0].owner_uid
    expected = finding.severity if owner == 0 else "passed"
    assert list(judge("PRJ019", on(tmp_path, files), expected)) == []
    assert list(judge("PRJ019", on(tmp_path, files, system__is_root=True), "passed")) == []
    assert list(judge("PRJ019", on(tmp_path, files, inside()), "passed")) == []
    # Root may write to what root owns.
    files = {"compose.yaml": "services: {a: {image: x, volumes: ['./models:/cache']}}"}
    assert list(judge("PRJ019", on(tmp_path / "b", files), "note")) == []


BARE = {"driver.libcuda": None, "driver.libnvidia_ml": None}
LIBRARIES = [
    ("PRJ031", inside(), "passed", "devices and libraries"),
    ("PRJ031", changed(inside(), BARE), "error", "devices without libraries"),
    ("PRJ031", changed(inside(), BARE | {"driver.nvidiactl": "absent"}), "passed", "neither"),
    ("PRJ031", changed(inside(), BARE | {"container.driver_capabilities": "utility"}), "skipped", "fewer asked for"),
    ("PRJ031", changed(inside(), {"driver.libcuda": None}), "passed", "one of the libraries"),
    ("PRJ031", healthy(), "skipped", "on a host"),
]


def test_devices_come_with_libraries():
    assert list_wrong("PRJ031", LIBRARIES) == []


def test_two_units_with_one_dockerfile_report_a_token_once(tmp_path):
    files = built("ARG HF_TOKEN")
    files[".devcontainer/second/devcontainer.json"] = dev(build={"dockerfile": "../Dockerfile"})
    assert len(find_all("PRJ017", on(tmp_path, files))) == 1
