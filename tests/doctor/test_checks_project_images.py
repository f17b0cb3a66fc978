"""Checks of the Dockerfile: its base image, and what it builds and installs."""

from dataclasses import replace

import pytest

from devkit.doctor.model import Confidence, Found, Passed, Severity, Skipped
from devkit.facts.model import Directory, EngineKind, Storage
from devkit.facts.values import ComputeCapability, Unknown
from tests.doctor.machines import changed, healthy, r, windows_guest, without_gpu
from tests.doctor.projects import DEV, DOCKERFILE, IMAGE, dev, files_of, on
from tests.doctor.running import find_all, find_only, run_check

TORCH = "RUN pip install --index-url https://download.pytorch.org/whl/cu128 torch==2.9.1\n"


def image(base, *lines, torch=TORCH, compiler="RUN apt-get install -y gcc\n"):
    return files_of(dev=dev(), image=f"FROM {base}\n" + compiler + torch + "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("base", "severity"),
    [
        pytest.param("nvidia/cuda:12.8.1-base-ubuntu24.04", None, id="a tag of a supported system"),
        pytest.param("nvidia/cuda:12.8.1-base-ubuntu20.04", Severity.WARNING, id="a system past its support"),
        pytest.param("nvidia/cuda:latest", Severity.ERROR, id="latest"),
        pytest.param("nvidia/cuda", Severity.ERROR, id="no tag at all"),
        pytest.param("docker.io/nvidia/cuda:11.0-base", Severity.ERROR, id="a deleted tag behind a registry's name"),
        pytest.param("nvidia/cuda:10.1-devel-ubuntu18.04", Severity.ERROR, id="a CUDA whose images are gone"),
        pytest.param("nvidia/cuda:11.8.0-base-ubuntu22.04", None, id="a CUDA of which one system's images are gone"),
        pytest.param("nvidia/cuda:99.0.0-base-ubuntu30.04", None, id="a tag newer than the tables"),
        pytest.param("nvidia/cuda:${TAG}", None, id="a tag that a variable decides"),
        pytest.param("python:3.12-slim", None, id="another image"),
    ],
)
def test_tags_stay(tmp_path, base, severity):
    verdict = run_check("PRJ021", on(tmp_path, image(base)))
    severities = [finding.severity for finding in getattr(verdict, "findings", ())]
    assert severities == ([severity] if severity else [])


@pytest.mark.parametrize(("torch", "advice"), [("", "the tag of a newer CUDA"), (TORCH, "a slim Python image")])
def test_an_image_to_compile_in_is_not_replaced_by_one_without_nvcc(tmp_path, torch, advice):
    finding = find_only("PRJ021", on(tmp_path, image("nvidia/cuda:11.4.3-devel-ubuntu18.04", torch=torch)))
    assert advice in finding.fix.summary


def test_the_default_of_an_argument_is_judged(tmp_path):
    files = files_of(dev=dev(), image="ARG TAG=11.0-base\nFROM nvidia/cuda:${TAG}\n")
    finding = find_only("PRJ021", on(tmp_path, files))
    assert finding.subject == f"{DOCKERFILE}:2"
    given = files_of(dev=dev(build={"dockerfile": "Dockerfile", "args": {"TAG": "12.8.1-base-ubuntu24.04"}}))
    assert isinstance(run_check("PRJ021", on(tmp_path, files | given)), Passed)


@pytest.mark.parametrize(
    ("base", "index", "severity"),
    [
        pytest.param("nvidia/cuda:12.8.1-base-ubuntu24.04", "cu128", None, id="the small base image"),
        pytest.param("nvidia/cuda:12.8.1-runtime-ubuntu24.04", "cu128", Severity.NOTE, id="runtime of the same CUDA"),
        pytest.param("nvidia/cuda:12.8.1-devel-ubuntu24.04", "cu128", None, id="devel of the same CUDA, to compile"),
        pytest.param("nvidia/cuda:12.6.3-devel-ubuntu24.04", "cu128", Severity.WARNING, id="devel of another CUDA"),
        pytest.param("nvidia/cuda:12.3.2-runtime-ubuntu22.04", "cu128", Severity.WARNING, id="a CUDA without wheels"),
        pytest.param("python:3.12-slim", "cu128", None, id="no CUDA in the image"),
    ],
)
def test_an_image_carries_cuda_once(tmp_path, base, index, severity):
    verdict = run_check("PRJ022", on(tmp_path, image(base, torch=TORCH.replace("cu128", index))))
    severities = [finding.severity for finding in getattr(verdict, "findings", ())]
    assert severities == ([severity] if severity else [])


def test_an_image_without_torch_may_carry_cuda(tmp_path):
    files = image("nvidia/cuda:12.3.2-runtime-ubuntu22.04", torch="")
    assert isinstance(run_check("PRJ022", on(tmp_path, files)), Passed)


@pytest.mark.parametrize(
    ("base", "compiler", "verdict"),
    [
        pytest.param("python:3.12-slim", "", Found, id="slim, without"),
        pytest.param("python:3.12-slim-bookworm", "RUN apt-get install -y gcc-13\n", Passed, id="slim, with gcc"),
        pytest.param("ubuntu:24.04", "RUN apt install -y build-essential\n", Passed, id="with build-essential"),
        pytest.param("nvidia/cuda:12.8.1-runtime-ubuntu24.04", "", Found, id="a runtime image"),
        pytest.param("nvidia/cuda:12.8.1-devel-ubuntu24.04", "", Passed, id="a devel image"),
        pytest.param("python:3.12", "", Passed, id="the whole Python image"),
        pytest.param("mcr.microsoft.com/devcontainers/python:3.12", "", Passed, id="an image that may have one"),
    ],
)
def test_an_image_has_a_compiler(tmp_path, base, compiler, verdict):
    assert isinstance(run_check("PRJ023", on(tmp_path, image(base, compiler=compiler))), verdict)


def test_a_compiler_in_a_lower_stage_counts(tmp_path):
    text = f"FROM python:3.12-slim AS low\nRUN apt-get install -y gcc\nFROM low\n{TORCH}"
    assert isinstance(run_check("PRJ023", on(tmp_path, files_of(dev=dev(), image=text))), Passed)


@pytest.mark.parametrize(
    ("index", "driver", "cuda", "verdict"),
    [
        pytest.param("cu128", "580.95.05", "13.0", Passed, id="older than the driver"),
        pytest.param("cu129", "570.124.06", "12.8", Passed, id="newer within a major"),
        pytest.param("cu130", "570.124.06", "12.8", Found, id="of the next major"),
        pytest.param("cpu", "570.124.06", "12.8", Passed, id="for the CPU"),
        pytest.param("cu999", "570.124.06", "12.8", Passed, id="an index that the tables do not know"),
    ],
)
def test_the_driver_runs_the_chosen_torch(tmp_path, index, driver, cuda, verdict):
    machine = changed(healthy(), {"nvml.driver": r(driver), "nvml.cuda": r(cuda)})
    files = files_of(dev=dev(), image=IMAGE.replace("cu128", index))
    assert isinstance(run_check("PRJ027", on(tmp_path, files, machine)), verdict)


@pytest.mark.parametrize(
    ("base", "lines", "verdict"),
    [
        pytest.param("nvidia/cuda:12.8.1-base-ubuntu24.04", (), Passed, id="as new as the driver's"),
        pytest.param("nvidia/cuda:12.9.1-base-ubuntu24.04", (), Found, id="newer than the driver's"),
        pytest.param(
            "nvidia/cuda:12.9.1-base-ubuntu24.04", ("ENV NVIDIA_DISABLE_REQUIRE=1",), Passed, id="with the demand off"
        ),
    ],
)
def test_the_image_asks_for_no_newer_driver(tmp_path, base, lines, verdict):
    machine = changed(healthy(), {"nvml.driver": r("570.124.06"), "nvml.cuda": r("12.8")})
    assert isinstance(run_check("PRJ027", on(tmp_path, image(base, *lines), machine)), verdict)


def test_the_driver_is_the_one_of_windows_in_wsl(tmp_path):
    finding = find_only(
        "PRJ027",
        on(
            tmp_path,
            files_of(dev=dev(), image=IMAGE.replace("cu128", "cu130")),
            changed(windows_guest(), {"nvml.driver": r("560.94"), "nvml.cuda": r("12.6")}),
        ),
    )
    assert finding.fix.where.value == "windows"
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "machine", [without_gpu(), changed(healthy(), {"nvml": Unknown("late")})], ids=["none", "late"]
)
def test_without_a_known_driver_nothing_is_too_new(tmp_path, machine):
    files = files_of(dev=dev(), image=IMAGE.replace("cu128", "cu132"))
    assert isinstance(run_check("PRJ027", on(tmp_path, files, machine)), Skipped)


@pytest.mark.parametrize(
    ("features", "verdict"),
    [
        pytest.param({"ghcr.io/devcontainers/features/nvidia-cuda:1": {"cudaVersion": "12.5"}}, Found, id="CUDA again"),
        pytest.param({"ghcr.io/devcontainers/features/git:1": {}}, Passed, id="another Feature"),
    ],
)
@pytest.mark.parametrize("has_torch", [True, False])
def test_a_feature_brings_no_second_cuda(tmp_path, features, verdict, has_torch):
    image = IMAGE if has_torch else IMAGE.replace("torch==2.9.1", "rich")
    verdict = verdict if has_torch else Passed
    facts = on(tmp_path, files_of(dev=dev(features=features), image=image))
    result = run_check("PRJ022", facts)
    assert isinstance(result, verdict)
    assert [finding.severity for finding in getattr(result, "findings", ())] in ([], [Severity.NOTE])


@pytest.mark.parametrize(
    ("base", "capability", "says"),
    [
        pytest.param("nvidia/cuda:11.4.3-devel-ubuntu18.04", "8.9", "11.8 or newer", id="older than the GPU"),
        pytest.param("nvidia/cuda:11.8.0-devel-ubuntu22.04", "8.9", None, id="the first that knows it"),
        pytest.param("nvidia/cuda:13.0.2-devel-ubuntu24.04", "7.0", "12.9 or older", id="newer than its last"),
        pytest.param("nvidia/cuda:12.9.1-devel-ubuntu24.04", "7.0", None, id="a patch of its last"),
        pytest.param("nvidia/cuda:12.8.1-devel-ubuntu24.04", "12.0", None, id="Blackwell"),
    ],
)
def test_nvcc_compiles_for_the_gpu(tmp_path, base, capability, says):
    machine = changed(healthy(), {"nvml.gpus.0.capability": ComputeCapability.parse(capability)})
    verdict = run_check("PRJ033", on(tmp_path, image(base), machine))
    found = [finding.fix.summary for finding in getattr(verdict, "findings", ())]
    assert found == ([f"Take a devel image of CUDA {says}."] if says else [])


@pytest.mark.parametrize("base", ["nvidia/cuda:11.4.3-runtime-ubuntu18.04", "python:3.12-slim"])
def test_an_image_without_nvcc_compiles_nothing(tmp_path, base):
    assert isinstance(run_check("PRJ033", on(tmp_path, image(base))), Skipped)


def built_image(*lines, base="python:3.12-slim"):
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
    assert isinstance(run_check("PRJ024", on(tmp_path, built_image(line))), verdict)


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
    verdict = run_check("PRJ025", on(tmp_path, built_image(line)))
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
    assert isinstance(run_check("PRJ026", on(tmp_path, built_image(f"RUN pip install {requirement}") | more)), verdict)


def test_torch_is_pinned_in_the_file_that_is_installed(tmp_path):
    line = "COPY requirements.txt /tmp/\nRUN pip install -r /tmp/requirements.txt"
    loose = built_image(line) | {"requirements.txt": "numpy==2\ntorch\n"}
    assert find_only("PRJ026", on(tmp_path, loose)).subject == "requirements.txt:2"
    assert isinstance(run_check("PRJ026", on(tmp_path, loose | {"requirements.txt": "torch==2.9.1\n"})), Passed)


def test_a_library_of_the_project_may_leave_torch_open(tmp_path):
    files = built_image("RUN pip install numpy") | {"pyproject.toml": '[project]\ndependencies = ["torch>=2.6"]\n'}
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
    verdict = run_check("PRJ028", on(tmp_path, built_image(*lines, base=base)))
    severities = [finding.severity for finding in getattr(verdict, "findings", ())]
    assert severities == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("owner", "host", "line", "keys", "commands"),
    [
        pytest.param(0, 0, "RUN useradd -m dev", {}, ('"remoteUser": "root"',), id="root everywhere"),
        pytest.param(
            0, 0, "RUN useradd -m -u 1234 dev", {}, ("sudo chown -R 1234 .",), id="root everywhere, a known number"
        ),
        pytest.param(0, 1000, "RUN useradd -m dev", {}, ("sudo chown -R 1000 .",), id="a folder that sudo made"),
        pytest.param(
            1001,
            1001,
            "RUN useradd -m -u 1000 dev",
            {"updateRemoteUserUID": False},
            ('"updateRemoteUserUID": true',),
            id="the number stays",
        ),
        pytest.param(1001, 1001, "RUN useradd -m -u 1000 dev", {}, (), id="the number is changed"),
        pytest.param(
            1001, 1001, "RUN useradd -m dev", {"updateRemoteUserUID": False}, (), id="a number that is not known"
        ),
        pytest.param(0, 0, "", {"remoteUser": "root"}, (), id="root in the container, too"),
        pytest.param(0, 0, "", {"remoteUser": None}, (), id="nobody named"),
        pytest.param(
            0, 0, "RUN useradd -m dev", {"workspaceMount": "source=v,target=/w,type=volume"}, (), id="a volume"
        ),
        pytest.param(
            0,
            0,
            "ARG USER_UID=1000\nRUN useradd -u $USER_UID dev",
            {"build": {"dockerfile": "Dockerfile", "args": {"USER_UID": "0"}}},
            (),
            id="the build is given a number",
        ),
    ],
)
def test_the_user_may_write_to_the_workspace(tmp_path, owner, host, line, keys, commands):
    files = files_of(dev=dev(**keys), image=f"FROM python:3.12-slim\n{line}\n")
    folder = Directory(str(tmp_path), "workspace", True, True, owner, "ext4", 1 << 40, 9_000_000)
    facts = on(tmp_path, files, storage=Storage(host, (folder,)))
    verdict = run_check("PRJ037", facts)
    assert (
        tuple(command for finding in getattr(verdict, "findings", ()) for command in finding.fix.commands) == commands
    )
    rootless = run_check("PRJ037", changed(facts, {"engine.is_rootless": True}))
    assert isinstance(rootless, Skipped)
    for_all = replace(folder, is_world_writable=True)
    assert isinstance(run_check("PRJ037", replace(facts, storage=Storage(host, (for_all,)))), Passed)


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
    files = built_image("RUN nvidia-smi", "RUN pip install torch", "RUN uv pip install --torch-backend=auto torch")
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
