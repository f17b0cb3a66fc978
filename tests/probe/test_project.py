import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.facts.project import FileState, Origin, RequestForm
from devkit.probe.host import LocalHost
from devkit.probe.project.files import CONTAINER_FILE_NAMES
from devkit.probe.project.reader import read_project
from tests.cases import cases
from tests.doctor.projects import COMPOSE, DEV, IMAGE, compose_dev, dev, files_of, read, service
from tests.hosts import MACHINES, written
from tests.hosts.golden import expected_facts


def states(project):
    return {file.path: file.state for file in project.files}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(".devcontainer/devcontainer.json", id="in its folder"),
        pytest.param(".devcontainer.json", id="in the project's"),
        pytest.param(".devcontainer/cuda/devcontainer.json", id="one of several"),
    ],
)
def test_dev_containers_are_found_where_tools_look(tmp_path, path):
    (found,) = read(tmp_path, {path: '{"image": "a"}'}).dev_containers
    assert (found.path, found.image.value, found.image.line) == (path, "a", 1)


def test_a_folder_without_files_is_an_empty_project_and_no_folder_is_none(tmp_path):
    empty = read(tmp_path, {})
    assert (empty.dev_containers, empty.services, empty.dockerfiles, empty.files) == ((), (), (), ())
    assert read_project(LocalHost(), project=str(tmp_path / "gone")) is None
    (tmp_path / "file").write_text("x")
    assert read_project(LocalHost(), project=str(tmp_path / "file")) is None


def test_names_lead_from_file_to_file(tmp_path):
    files = {
        DEV: compose_dev(dockerComposeFile=["../compose.yaml", "extra.yaml"]),
        "compose.yaml": "services:\n  dev:\n    build:\n      context: docker\n      dockerfile: Gpu.Dockerfile\n",
        ".devcontainer/extra.yaml": "services:\n  dev:\n    gpus: all\n",
        "docker/Gpu.Dockerfile": IMAGE,
    }
    project = read(tmp_path, files)
    (found,) = project.services
    assert found.files == ("compose.yaml", ".devcontainer/extra.yaml")
    assert (found.build.dockerfile, found.build.context) == ("docker/Gpu.Dockerfile", "docker")
    assert found.requests[0].path == ".devcontainer/extra.yaml"
    assert [one.path for one in project.dockerfiles] == ["docker/Gpu.Dockerfile"]


def test_links_that_lead_out_of_the_project_are_not_followed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "Dockerfile").write_text("FROM secret:1\n")
    project = tmp_path / "project"
    read(project, files_of(dev=dev()))
    (project / ".devcontainer" / "Dockerfile").symlink_to(tmp_path / "outside" / "Dockerfile")
    found = read_project(LocalHost(), project=str(project))
    assert states(found)[".devcontainer/Dockerfile"] is FileState.OUTSIDE
    assert found.dockerfiles == ()
    assert "secret:1" not in repr(found)


def test_a_project_that_is_itself_reached_by_a_link_is_read(tmp_path):
    read(tmp_path / "real", files_of(dev=dev(), image=IMAGE))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = read_project(LocalHost(), project=str(tmp_path / "link"))
    assert set(states(found).values()) == {FileState.READ}
    assert found.dockerfiles


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param("{" + " " * (1 << 20) + "}", FileState.TOO_LARGE, id="more than a mebibyte"),
        pytest.param("{", FileState.BROKEN, id="the end is missing"),
        pytest.param("", FileState.BROKEN, id="nothing in it"),
        pytest.param("\x00\x01", FileState.BROKEN, id="no text"),
        pytest.param("{}", FileState.READ, id="an empty object"),
    ],
)
def test_what_became_of_a_file_is_a_fact(tmp_path, text, state):
    assert states(read(tmp_path, {DEV: text}))[DEV] is state


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    host = written(
        tmp_path,
        'unreadable = ["/w/.devcontainer/devcontainer.json"]\n[files]\n"/w/.devcontainer/devcontainer.json"="{}"\n',
    )
    assert states(read_project(host, project="/w"))[DEV] is FileState.UNREADABLE


def test_windows_paths_are_read(tmp_path):
    host = written(tmp_path, '[files]\n"C:/w/.devcontainer/devcontainer.json"=\'{"image": "a"}\'\n')
    assert read_project(host, project="C:\\w").dev_containers[0].image.value == "a"


@cases(
    "text, form, count, ids",
    {
        "gpus: all": ("gpus: all", RequestForm.GPUS_KEY, "all", ()),
        "gpus as a list": ("gpus: [{driver: nvidia, count: 2}]", RequestForm.GPUS_KEY, "2", ()),
        "the runtime": ("runtime: nvidia", RequestForm.RUNTIME, "", ()),
        "a CDI name of a device": ("devices: ['nvidia.com/gpu=0']", RequestForm.CDI, "", ("nvidia.com/gpu=0",)),
        "a reservation by numbers": (
            "deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ['0', '3']}]}}}",
            RequestForm.RESERVATION,
            "",
            ("0", "3"),
        ),
        "a reservation by CDI": (
            "deploy: {resources: {reservations: {devices: [{driver: cdi, device_ids: [nvidia.com/gpu=all]}]}}}",
            RequestForm.RESERVATION,
            "",
            ("nvidia.com/gpu=all",),
        ),
    },
)
def test_every_form_of_a_request_in_compose(tmp_path, text, form, count, ids):
    project = read(tmp_path, {"compose.yaml": f"services:\n  a:\n    image: b\n    {text}\n"})
    (request,) = project.services[0].requests
    assert (request.form, request.count, request.device_ids) == (form, count, ids)
    assert (request.path, request.line, request.key[:2]) == ("compose.yaml", 4, ("services", "a"))


def test_compose_without_a_dev_container_is_read_as_compose_reads_it(tmp_path):
    files = {
        "docker-compose.yml": "services: {a: {image: x, gpus: all}}",
        "compose.yaml": "services: {a: {image: y}}",
        "compose.override.yaml": "services: {a: {shm_size: 1gb}}",
    }
    (found,) = read(tmp_path / "one", files).services
    assert (found.image.value, found.requests, found.settings[0].value) == ("y", (), "1gb")
    chosen = files | {".env": "COMPOSE_FILE=docker-compose.yml\nHF_TOKEN=abcdef\n"}
    project = read(tmp_path / "two", chosen)
    assert project.services[0].image.value == "x"
    assert project.env_files[0].names == ("COMPOSE_FILE", "HF_TOKEN")
    assert "abcdef" not in repr(project)


def test_included_and_extended_services_are_followed(tmp_path):
    files = {
        "compose.yaml": "include: [parts/db.yaml]\nservices: {a: {extends: {file: parts/base.yaml, service: gpu}}}\n",
        "parts/db.yaml": "services: {db: {image: postgres}}",
        "parts/base.yaml": "services:\n  gpu:\n    image: x\n    gpus: all\n",
    }
    services = {one.name: one for one in read(tmp_path, files).services}
    assert set(services) == {"db", "a"}
    (request,) = services["a"].requests
    assert (request.path, request.key, request.condition) == ("parts/base.yaml", ("services", "gpu", "gpus"), "")


def test_services_that_extend_each_other_in_a_circle_end(tmp_path):
    text = "services:\n  a: {extends: b, image: x}\n  b: {extends: a}\n"
    assert read(tmp_path, {"compose.yaml": text}).services[0].image.value == "x"
    circle = {"compose.yaml": "include: [other.yaml]\nservices: {}\n", "other.yaml": "include: [compose.yaml]\n"}
    assert read(tmp_path, circle).services == ()


@pytest.mark.parametrize(
    ("volume", "kind", "source", "target"),
    [
        pytest.param("hub:/cache", "volume", "hub", "/cache", id="a named volume"),
        pytest.param("./a:/b:ro", "bind", "./a", "/b", id="a folder of the project"),
        pytest.param("${X:-/tmp}:/b", "bind", "${X:-/tmp}", "/b", id="a variable with a default"),
        pytest.param("/cache", "volume", "", "/cache", id="an anonymous volume"),
        pytest.param("C:\\\\m:/m", "bind", "C:\\m", "/m", id="a drive of Windows"),
        pytest.param("~/.cache:/c", "bind", "~/.cache", "/c", id="home"),
    ],
)
def test_volumes_of_compose(tmp_path, volume, kind, source, target):
    text = f'services:\n  a:\n    image: b\n    volumes: ["{volume}"]\n'
    (mount,) = read(tmp_path, {"compose.yaml": text}).services[0].mounts
    assert (mount.kind, mount.source, mount.target) == (kind, source, target)


def test_mounts_of_a_dev_container_tell_of_their_source(tmp_path):
    mounts = ["source=${localWorkspaceFolder}/a,target=/a,type=bind", {"type": "volume", "source": "v", "target": "/v"}]
    (tmp_path / "a").mkdir()
    there, volume = read(tmp_path, {DEV: json.dumps({"image": "x", "mounts": mounts})}).dev_containers[0].mounts
    assert (there.exists, volume.exists, volume.owner_uid) == (True, None, None)
    unset = ["source=${localEnv:NOT_SET_ANYWHERE},target=/a,type=bind"]
    (unknown,) = read(tmp_path, {DEV: json.dumps({"mounts": unset})}).dev_containers[0].mounts
    assert unknown.exists is None


def test_run_args_carry_options_but_no_values_of_variables(tmp_path):
    arguments = ["-e", "HF_TOKEN=abcdef", "--env=OTHER=abcdef", "--ipc=host", "-v", "hub:/b", "--runtime", "nvidia"]
    (found,) = read(tmp_path, {DEV: json.dumps({"image": "x", "runArgs": arguments})}).dev_containers
    assert "abcdef" not in repr(found)
    assert [one.text for one in found.run_args][:3] == ["-e", "HF_TOKEN=…", "--env=OTHER=…"]
    assert [(one.name, one.value) for one in found.settings] == [("ipc", "host")]
    assert [(one.source, one.target) for one in found.mounts] == [("hub", "/b")]
    assert [one.form for one in found.requests] == [RequestForm.RUNTIME]
    assert [(one.name, one.origin) for one in found.variables] == [("HF_TOKEN", Origin.LITERAL)]


@pytest.mark.parametrize(
    ("command", "keys", "missing"),
    [
        ("sh scripts/gone.sh && ls", {}, ["scripts/gone.sh"]),
        ("sh ${X}.sh", {}, []),
        ("bash -c true", {}, []),
        ("sh /usr/local/share/gone.sh", {}, []),
        (". ../gone.sh", {}, []),
        ("curl -O x/gone.sh && sh gone.sh", {}, []),
        ("sh gone.sh", {"workspaceFolder": "/w/sub"}, []),
    ],
)
def test_the_first_script_of_a_lifecycle_command_has_to_be_there(tmp_path, command, keys, missing):
    content = json.dumps({"postCreateCommand": command} | keys)
    found = read(tmp_path, {".devcontainer/devcontainer.json": content})
    assert [each.path for each in found.files if each.state is FileState.MISSING] == missing


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("dev", []),
        ("0", []),
        ("site", ["pages"]),
        ("release", ["pages", "wheels"]),
        ("", ["pages", "wheels"]),
        ("${TARGET}", ["pages", "wheels"]),
    ],
)
def test_only_a_stage_that_is_built_needs_its_sources(tmp_path, target, missing):
    stages = "FROM x AS base\nFROM base AS dev\nFROM base AS site\nCOPY pages /p\n"
    stages += "FROM base AS release\nCOPY --from=site /p /p\nCOPY wheels /w\n"
    content = json.dumps(
        {"build": {"dockerfile": "../Dockerfile", "context": ".."} | ({"target": target} if target else {})}
    )
    found = read(tmp_path, {".devcontainer/devcontainer.json": content, "Dockerfile": stages})
    assert [each.path for each in found.files if each.state is FileState.MISSING] == missing


def test_lifecycle_commands_are_read_in_every_form(tmp_path):
    commands = {
        "initializeCommand": "nvidia-smi",
        "postCreateCommand": {"a": "pip install torch", "b": ["uv", "pip", "install", "vllm"]},
        "postStartCommand": ["echo", "x"],
    }
    (found,) = read(tmp_path, {DEV: json.dumps({"image": "x", **commands})}).dev_containers
    assert [(one.stage, one.needs_gpu) for one in found.commands] == [
        ("initializeCommand", True),
        ("postCreateCommand", False),
        ("postStartCommand", False),
    ]
    assert [one.requirements[0].name for one in found.installs] == ["torch", "vllm"]


@pytest.mark.full
def test_a_command_that_repeats_an_installation_counts_once(tmp_path):
    repeated = "pip install torch && " * 45_000 + "cd sub && pip install ."
    found = read(tmp_path, {".devcontainer/devcontainer.json": json.dumps({"postCreateCommand": repeated})})
    assert [one.requirements[0].name for one in found.dev_containers[0].installs] == ["torch"]


@cases(
    "name, text, found",
    {
        "requirements.txt": ("requirements.txt", "numpy\ntorch==2.9.1 # x\n", [("torch", "==2.9.1", 2)]),
        "another name": ("requirements-gpu.txt", "--hash=x\nbitsandbytes\n", [("bitsandbytes", "", 2)]),
        "pyproject": ("pyproject.toml", '[project]\ndependencies = [\n "torch>=2",\n]\n', [("torch", ">=2", 3)]),
        "an extra": (
            "pyproject.toml",
            "[project.optional-dependencies]\ngpu = [\"vllm; python_version>'3.9'\"]\n",
            [("vllm", "", 2)],
        ),
        "Poetry's table": ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "^2"\n', [("torch", "", 2)]),
        "conda": ("environment.yml", "dependencies:\n  - torch==2.9\n", [("torch", "==2.9", 2)]),
        "nothing for GPUs": ("requirements.txt", "numpy\n", []),
        "another file": ("notes.txt", "torch\n", []),
    },
)
def test_requirement_files_name_their_gpu_packages(tmp_path, name, text, found):
    project = read(tmp_path, {name: text})
    listed = [(one.name, one.specifier, one.line) for install in project.installs for one in install.requirements]
    assert listed == found


def test_the_index_of_a_requirement_file(tmp_path):
    text = "--extra-index-url https://download.pytorch.org/whl/cu128\ntorch\n"
    assert read(tmp_path, {"requirements.txt": text}).installs[0].index == "cu128"


@pytest.mark.parametrize(
    ("ignored", "verdict"),
    [
        pytest.param(None, None, id="no .gitignore"),
        pytest.param(".env\n", True, id="by name"),
        pytest.param("*.log\n", False, id="not at all"),
    ],
)
def test_whether_git_ignores_an_env_file(tmp_path, ignored, verdict):
    both = {".env": "A=1\nhf_bare_token\nno assignment\n", ".devcontainer/.env": "A=1\n"}
    found = read(tmp_path, both | ({".gitignore": ignored} if ignored else {})).env_files
    assert [(file.names, file.ignored_by_git) for file in found] == [(("A",), verdict)] * 2


WORDS = re.findall(
    r"\w+",
    "image build runArgs mounts hostRequirements gpu features dockerComposeFile service containerEnv services deploy"
    " postCreateCommand resources reservations devices gpus dev extends file volumes environment include args context"
    " dockerfile",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["--gpus", "all", "nvidia", "a", "${x}", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.full
@settings(max_examples=80, deadline=None)
@given(dev_container=JSON, compose=JSON)
def test_no_document_of_the_right_words_breaks_the_reader(tmp_path_factory, dev_container, compose):
    folder = tmp_path_factory.mktemp("odd")
    files = {DEV: json.dumps(dev_container), COMPOSE: json.dumps(compose), "compose.yaml": json.dumps(compose)}
    project = read(folder, files)
    assert project.folder


def test_a_compose_file_cut_anywhere_is_read_or_broken(tmp_path):
    text = service("environment: {A: b}", "volumes: [a:/b]")
    for end in range(0, len(text), 7):
        project = read(tmp_path, {"compose.yaml": text[:end]})
        assert {file.state for file in project.files} <= {FileState.READ, FileState.BROKEN, FileState.MISSING}


def test_every_file_that_is_read_is_looked_for():
    """A folder is passed over by the names in it: no file of a recorded project may be overlooked so."""
    files = [file for name in MACHINES for file in getattr(expected_facts(name).project, "files", ())]
    # An ignore file says nothing by itself, only of others that are there.
    for file in (one for one in files if one.kind != "ignore"):
        first = file.path.split("/")[0]
        assert file.path.startswith(("..", "/")) or CONTAINER_FILE_NAMES.match(first) or file.named_by, file.path
