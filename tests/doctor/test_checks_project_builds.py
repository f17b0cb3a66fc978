import pytest

from devkit.doctor.model import Found, Passed, Severity, Skipped
from devkit.facts.model import EngineKind
from tests.doctor.machines import changed, healthy
from tests.doctor.projects import DEV, DOCKERFILE, IMAGE, dev, files_of, on
from tests.doctor.running import find_all, find_only, run_check


def image(*lines, base="python:3.12-slim"):
    return files_of(dev=dev(remoteUser=None), image="\n".join((f"FROM {base}", *lines)) + "\n")


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        pytest.param("RUN uv pip install --torch-backend=auto torch", Found, id="auto"),
        pytest.param("RUN uv pip install --torch-backend auto torch", Found, id="auto as a word of its own"),
        pytest.param("RUN UV_TORCH_BACKEND=auto uv pip install torch", Found, id="auto by a variable of the command"),
        pytest.param("ENV UV_TORCH_BACKEND=auto\nRUN uv pip install torch", Found, id="auto by ENV"),
        pytest.param("RUN uv pip install --torch-backend=cu128 torch", Passed, id="an index by name"),
        pytest.param("ENV UV_TORCH_BACKEND=cu128\nRUN uv pip install torch", Passed, id="an index by ENV"),
        pytest.param("RUN pip install torch==2.9.1", Passed, id="pip"),
    ],
)
def test_a_build_names_its_index(tmp_path, line, verdict):
    assert isinstance(run_check("PRJ024", on(tmp_path, image(line))), verdict)


def test_auto_is_right_once_the_container_runs(tmp_path):
    command = "uv pip install --torch-backend=auto torch"
    files = files_of(dev=dev(postCreateCommand=command), image="FROM python:3.12\n")
    assert isinstance(run_check("PRJ024", on(tmp_path, files)), Passed)


ASSERTED = "import torch; assert torch.cuda.is_available()"


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        pytest.param("RUN nvidia-smi", Severity.ERROR, id="nvidia-smi"),
        pytest.param("RUN nvidia-smi || true", None, id="nvidia-smi that may fail"),
        pytest.param("RUN echo run nvidia-smi later", None, id="nvidia-smi as a word"),
        pytest.param(f'RUN python -c "{ASSERTED}"', Severity.ERROR, id="torch.cuda asserted"),
        pytest.param(f"RUN python - <<EOF\n{ASSERTED}\nEOF", Severity.ERROR, id="torch.cuda asserted in a heredoc"),
        pytest.param(
            'RUN python -c "import torch; print(torch.cuda.is_available())"', Severity.NOTE, id="torch.cuda printed"
        ),
        pytest.param('RUN python -c "import torch"', None, id="torch imported"),
        pytest.param("RUN pip install git+https://github.com/NVIDIA/apex.git", Severity.WARNING, id="an extension"),
        pytest.param("RUN pip install detectron2", Severity.WARNING, id="an extension from an index"),
        pytest.param(
            'ENV TORCH_CUDA_ARCH_LIST="8.9"\nRUN pip install git+https://github.com/NVIDIA/apex', None, id="for a GPU"
        ),
        pytest.param("RUN pip install flash-attn==2.8.3", None, id="a package with wheels"),
    ],
)
def test_a_build_needs_no_gpu(tmp_path, line, severity):
    verdict = run_check("PRJ025", on(tmp_path, image(line)))
    severities = [finding.severity for finding in getattr(verdict, "findings", ())]
    assert severities == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("requirement", "more", "verdict"),
    [
        pytest.param("torch==2.9.1", {}, Passed, id="a version"),
        pytest.param("torch~=2.9.1", {}, Passed, id="a patch level"),
        pytest.param("torch", {}, Found, id="any version"),
        pytest.param("'torch>=2.6'", {}, Found, id="a lower bound"),
        pytest.param("torch==${TORCH}", {}, Passed, id="a variable"),
        pytest.param("torch", {"uv.lock": ""}, Passed, id="a lock beside it"),
        pytest.param("numpy", {}, Passed, id="no torch"),
    ],
)
def test_torch_is_pinned(tmp_path, requirement, more, verdict):
    assert isinstance(run_check("PRJ026", on(tmp_path, image(f"RUN pip install {requirement}") | more)), verdict)


def test_torch_is_pinned_in_the_file_that_is_installed(tmp_path):
    line = "COPY requirements.txt /tmp/\nRUN pip install -r /tmp/requirements.txt"
    loose = image(line) | {"requirements.txt": "numpy==2\ntorch\n"}
    assert find_only("PRJ026", on(tmp_path, loose)).subject == "requirements.txt:2"
    assert isinstance(run_check("PRJ026", on(tmp_path, loose | {"requirements.txt": "torch==2.9.1\n"})), Passed)


def test_a_library_of_the_project_may_leave_torch_open(tmp_path):
    files = image("RUN pip install numpy") | {"pyproject.toml": '[project]\ndependencies = ["torch>=2.6"]\n'}
    assert isinstance(run_check("PRJ026", on(tmp_path, files)), Passed)


@pytest.mark.parametrize(
    ("base", "lines", "severity"),
    [
        pytest.param("ubuntu:24.04", ("RUN useradd -m dev",), Severity.WARNING, id="gets the next id"),
        pytest.param("ubuntu:24.04", ("RUN useradd -m -u 1000 dev",), Severity.ERROR, id="asks for the taken id"),
        pytest.param("ubuntu:24.04", ("RUN useradd -m -u 1234 dev",), None, id="asks for another"),
        pytest.param("ubuntu:24.04", ("RUN userdel -r ubuntu && useradd -m dev",), None, id="removes the other user"),
        pytest.param("ubuntu:24.04", ("RUN usermod -l dev ubuntu",), None, id="renames the other user"),
        pytest.param("ubuntu:24.04", ("USER ubuntu",), None, id="uses the other user"),
        pytest.param("ubuntu:22.04", ("RUN useradd -m dev",), None, id="an Ubuntu without that user"),
        pytest.param(
            "nvidia/cuda:12.8.1-base-ubuntu24.04", ("RUN useradd -m dev",), Severity.WARNING, id="the same below CUDA"
        ),
        pytest.param(
            "ubuntu:24.04",
            ("ARG UID=1000", "RUN useradd --uid $UID dev"),
            Severity.ERROR,
            id="by an argument's default",
        ),
        pytest.param("debian:12", ("RUN useradd -m dev",), None, id="Debian"),
    ],
)
def test_the_user_can_have_the_hosts_ids(tmp_path, base, lines, severity):
    verdict = run_check("PRJ028", on(tmp_path, image(*lines, base=base)))
    severities = [finding.severity for finding in getattr(verdict, "findings", ())]
    assert severities == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("lines", "user", "verdict"),
    [
        pytest.param((), None, Found, id="nobody named"),
        pytest.param(("USER root",), None, Found, id="root named"),
        pytest.param(("USER dev",), None, Passed, id="a user in the image"),
        pytest.param((), "dev", Passed, id="a user in devcontainer.json"),
    ],
)
def test_the_container_is_not_root(tmp_path, lines, user, verdict):
    text = "\n".join(("FROM python:3.12-slim", "RUN pip install torch==2.9.1", *lines)) + "\n"
    result = run_check("PRJ029", on(tmp_path, files_of(dev=dev(remoteUser=user), image=text)))
    assert isinstance(result, verdict)


@pytest.mark.parametrize(
    ("arguments", "rootless", "verdict"),
    [
        pytest.param(["--device", "nvidia.com/gpu=all"], True, Found, id="without"),
        pytest.param(["--userns=keep-id"], True, Passed, id="with it"),
        pytest.param(["--userns", "keep-id"], True, Passed, id="with it in two words"),
        pytest.param([], False, Skipped, id="Podman of root"),
    ],
)
def test_rootless_podman_keeps_ids(tmp_path, arguments, rootless, verdict):
    machine = changed(healthy(), {"engine.kind": EngineKind.PODMAN, "engine.is_rootless": rootless})
    result = run_check("PRJ030", on(tmp_path, files_of(dev=dev(runArgs=arguments), image=IMAGE), machine))
    assert isinstance(result, verdict)


def test_each_place_is_reported_once_for_two_dev_containers(tmp_path):
    files = image("RUN nvidia-smi", "RUN pip install torch", "RUN uv pip install --torch-backend=auto torch")
    files[".devcontainer/second/devcontainer.json"] = dev(build={"dockerfile": "../Dockerfile"})
    facts = on(tmp_path, files)
    assert len(find_all("PRJ025", facts)) == 1
    assert len(find_all("PRJ024", facts)) == 1
    assert find_only("PRJ025", facts).subject == f"{DOCKERFILE}:2"


SLIM = (
    "FROM python:3.12-slim-bookworm\nRUN apt-get update && apt-get install -y gcc g++\nRUN pip install torch==2.9.1\n"
)
DEVEL = "FROM nvidia/cuda:12.8.1-devel-ubuntu24.04 AS b\nRUN pip install torch==2.9.1 flash-attn\n"


@pytest.mark.parametrize(
    ("image", "more", "verdict"),
    [
        pytest.param(f"{SLIM}RUN pip install flash-attn --no-build-isolation\n", {}, Found, id="no nvcc"),
        pytest.param(f"{SLIM}RUN pip install -r r.txt\n", {"requirements.txt": "", "r.txt": "x"}, Passed, id="none"),
        pytest.param(f"{SLIM}RUN pip install 'flash-attn @ https://x.org/f.whl'\n", {}, Passed, id="a wheel's address"),
        pytest.param(f"{SLIM}RUN pip install deepspeed xformers\n", {}, Passed, id="wheels, and at first use"),
        pytest.param(
            f"{SLIM}RUN apt-get install -y nvidia-cuda-toolkit\nRUN pip install mamba-ssm\n", {}, Passed, id="by apt"
        ),
        pytest.param(
            f"{SLIM}RUN conda install -y -c nvidia cuda-nvcc=12.8\nRUN pip install mamba-ssm\n",
            {},
            Passed,
            id="by conda",
        ),
        pytest.param(
            f"{DEVEL}FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04\nCOPY --from=b /v /v\n",
            {},
            Passed,
            id="compiled elsewhere",
        ),
        pytest.param(
            "FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime\nRUN pip install flash-attn\n",
            {},
            Found,
            id="a runtime image",
        ),
        pytest.param(
            "FROM registry.example.org/ours:1\nRUN pip install flash-attn\n", {}, Passed, id="an unknown image"
        ),
        pytest.param(
            f"{SLIM}COPY . /src\nRUN pip install --no-build-isolation /src\n",
            {
                "setup.py": "import torch\nfrom x import CUDAExtension\nsetup(name='ours', ext_modules=[CUDAExtension()])\n"
            },
            Found,
            id="the project itself",
        ),
    ],
)
def test_what_compiles_cuda_code_has_nvcc(tmp_path, image, more, verdict):
    assert isinstance(run_check("PRJ035", on(tmp_path, files_of(dev=dev(), image=image) | more)), verdict)


def test_a_lifecycle_command_compiles_with_what_its_script_installs(tmp_path):
    files = files_of(dev=dev(postCreateCommand="bash setup.sh"), image=SLIM)
    script = "conda install -y -c nvidia cuda-compiler\npip install flash-attn\n"
    assert isinstance(run_check("PRJ035", on(tmp_path / "a", files | {"setup.sh": script})), Passed)
    finding = find_only("PRJ035", on(tmp_path / "b", files | {"setup.sh": script.partition("\n")[2]}))
    assert (finding.location.path, finding.location.line) == ("setup.sh", 1)


BARE = {"build": None, "image": "mcr.microsoft.com/devcontainers/python:3.12"}


@pytest.mark.parametrize(
    ("changes", "more", "verdict"),
    [
        pytest.param({}, {"requirements.txt": "torch"}, Found, id="nothing is installed"),
        pytest.param({}, {"requirements_versions.txt": "torch"}, Found, id="a list of another name"),
        pytest.param({}, {"requirements/full/requirements.txt": "torch"}, Found, id="a list two folders below"),
        pytest.param(
            {"postCreateCommand": "pip install rich"},
            {"requirements.txt": "torch"},
            Found,
            id="something else is installed",
        ),
        pytest.param(
            {"postCreateCommand": "pip install -r requirements.txt"},
            {"requirements.txt": "torch"},
            Passed,
            id="the list",
        ),
        pytest.param(
            {"postCreateCommand": "pip install -r dev.txt"},
            {"dev.txt": "-r requirements.txt", "requirements.txt": "torch"},
            Passed,
            id="another list, which may include it",
        ),
        pytest.param(
            {"postCreateCommand": "pip install -e ."}, {"requirements.txt": "torch"}, Passed, id="the project"
        ),
        pytest.param({"postCreateCommand": "make setup"}, {"requirements.txt": "torch"}, Passed, id="who knows"),
        pytest.param({"postCreateCommand": "uv sync"}, {"requirements.txt": "torch"}, Passed, id="another tool"),
        pytest.param({"image": "ours:1"}, {"requirements.txt": "torch"}, Passed, id="an image of somebody else's"),
        pytest.param({}, {"train.py": ""}, Passed, id="no list"),
    ],
)
def test_the_project_s_list_is_installed(tmp_path, changes, more, verdict):
    assert isinstance(run_check("PRJ036", on(tmp_path, {DEV: dev(**(BARE | changes))} | more)), verdict)
