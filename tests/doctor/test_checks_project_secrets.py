import json

import pytest

from devkit.doctor.model import Found, Passed, RepairKind, Severity, Skipped
from tests.doctor.machines import changed, healthy, inside
from tests.doctor.projects import COMPOSE, DEV, IMAGE, compose_dev, dev, files_of, on, service
from tests.doctor.running import find_all, find_only, run_check

TOKEN = "hf_" + "Zz" * 16


def image(*lines, context="."):
    text = "FROM python:3.12-slim\n" + "".join(f"{line}\n" for line in lines)
    return files_of(dev=dev(build={"dockerfile": "Dockerfile", "context": context}), image=text)


@pytest.mark.parametrize(
    ("files", "severity"),
    [
        pytest.param(image("ARG HF_TOKEN"), Severity.WARNING, id="ARG"),
        pytest.param(image("ENV WANDB_API_KEY=$KEY"), Severity.WARNING, id="ENV from an argument"),
        pytest.param(image(f"ENV HF_TOKEN={TOKEN}"), Severity.ERROR, id="ENV with a token"),
        pytest.param(image(f"RUN hf auth login --token {TOKEN}"), Severity.ERROR, id="a token in a command"),
        pytest.param(image("RUN --mount=type=secret,id=t,env=HF_TOKEN hf download x"), None, id="a secret mount"),
        pytest.param(image("ENV HF_TOKEN_PATH=/run/token TOKENIZERS_PARALLELISM=false"), None, id="names like a token"),
        pytest.param(image("ENV HF_TOKEN="), None, id="an empty ENV"),
        pytest.param(image("ENV PASSWORD_FILE=/x"), None, id="a file's name"),
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
    facts = on(tmp_path, image(copies, context="..") | more)
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
    files = image("ARG HF_TOKEN")
    files[".devcontainer/second/devcontainer.json"] = dev(build={"dockerfile": "../Dockerfile"})
    assert len(find_all("PRJ017", on(tmp_path, files))) == 1
