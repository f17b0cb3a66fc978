"""Checks of the Dockerfile: its base image, and what it builds and installs."""

from dataclasses import replace

import pytest

from devkit.facts.engine import EngineKind
from devkit.facts.machine import Directory, Storage
from devkit.facts.values import ComputeCapability, Unknown
from tests.doctor.judging import judge, list_codes, list_wrong_projects
from tests.doctor.machines import changed, healthy, r, windows_guest, without_gpu
from tests.doctor.projects import DEV, DOCKERFILE, IMAGE, dev, files_of, on
from tests.doctor.running import find_all

TORCH = "RUN pip install --index-url https://download.pytorch.org/whl/cu128 torch==2.9.1\n"
NO_TORCH = IMAGE.replace("torch==2.9.1", "rich")


def image(base, *lines, torch=TORCH, compiler="RUN apt-get install -y gcc\n"):
    """A project whose image is built on this base, with a compiler and torch."""
    return files_of(dev=dev(), image=f"FROM {base}\n" + compiler + torch + "".join(f"{line}\n" for line in lines))


def cuda(tag, *lines, **changes):
    return image(f"nvidia/cuda:{tag}", *lines, **changes)


def built(*lines, base="python:3.12-slim", more=None):
    """A project whose image is built by these lines alone."""
    return files_of(dev=dev(remoteUser=None), image="\n".join((f"FROM {base}", *lines)) + "\n") | (more or {})


def text(image, more=None, **changes):
    return files_of(dev=dev(**changes), image=image) | (more or {})


def indexed(label):
    return text(IMAGE.replace("cu128", label))


def user(*lines, base="ubuntu:24.04"):
    return built(*lines, base=base)


def root(*lines, user=None):
    return text("\n".join(("FROM python:3.12-slim", "RUN pip install torch==2.9.1", *lines)) + "\n", remoteUser=user)


def with_args(*arguments):
    return text(IMAGE, runArgs=list(arguments))


def feature(name, image=IMAGE, **options):
    return text(image, features={f"ghcr.io/devcontainers/features/{name}:1": options})


def run(version, says, facts=None):
    return changed(facts or healthy(), {"nvml.driver": r(version), "nvml.cuda": r(says)})


def capable(capability):
    return changed(healthy(), {"nvml.gpus.0.capability": ComputeCapability.parse(capability)})


def podman(*, rootless):
    return changed(healthy(), {"engine.kind": EngineKind.PODMAN, "engine.is_rootless": rootless})


DRIVER_12_8 = run("570.124.06", "12.8")
OLD_DEVEL = "11.4.3-devel-ubuntu18.04"
ARGUMENT = text("ARG TAG=11.0-base\nFROM nvidia/cuda:${TAG}\n")
GIVEN = files_of(dev=dev(build={"dockerfile": "Dockerfile", "args": {"TAG": "12.8.1-base-ubuntu24.04"}}))
LOW_STAGE = text(f"FROM python:3.12-slim AS low\nRUN apt-get install -y gcc\nFROM low\n{TORCH}")
AFTER_START = text("FROM python:3.12\n", postCreateCommand="uv pip install --torch-backend=auto torch")
ASSERTED = "import torch; assert torch.cuda.is_available()"
PRINTED = "import torch; print(torch.cuda.is_available())"
APEX = "RUN pip install git+https://github.com/NVIDIA/apex.git"
FROM_LIST = "COPY requirements.txt /tmp/\nRUN pip install -r /tmp/requirements.txt"
OPEN_LIST = {"requirements.txt": "numpy==2\ntorch\n"}
LIBRARY = {"pyproject.toml": '[project]\ndependencies = ["torch>=2.6"]\n'}
SLIM = "FROM python:3.12-slim\nRUN apt-get update && apt-get install -y gcc g++\nRUN pip install torch==2.9.1\n"
DEVEL = "FROM nvidia/cuda:12.8.1-devel-ubuntu24.04 AS b\nRUN pip install torch==2.9.1 flash-attn\n"
COPIED = f"{DEVEL}FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04\nCOPY --from=b /v /v\n"
RUNTIME = "FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime\nRUN pip install flash-attn\n"
OWN_CODE = {
    "setup.py": "import torch\nfrom x import CUDAExtension\nsetup(name='ours', ext_modules=[CUDAExtension()])\n"
}
SCRIPT = "conda install -y -c nvidia cuda-compiler\npip install flash-attn\n"
SET_UP = text(SLIM, {"setup.sh": SCRIPT}, postCreateCommand="bash setup.sh")


def slim(*lines, more=None):
    return text(SLIM + "".join(f"RUN {line}\n" for line in lines), more)


def bare(command=None, image="mcr.microsoft.com/devcontainers/python:3.12", **lists):
    """A dev container without a Dockerfile, and lists of requirements by name."""
    files = {DEV: dev(build=None, image=image, postCreateCommand=command)}
    return files | {f"{name}.txt": text for name, text in (lists or {"requirements": "torch"}).items()}


DRIVER = "RUN apt-get update && apt-get install -y nvidia-driver-580 libnvidia-container-tools libnvidia-compute-580"

CASES = [
    ("PRJ040", text(IMAGE), "passed", "torch of a CUDA index"),
    ("PRJ040", indexed("cpu"), "error: installs torch for the CPU | devkit plan", "torch of the CPU index"),
    ("PRJ040", text(IMAGE.replace("cu128", "cpu"), runArgs=None), "passed", "for the CPU on purpose"),
    (
        "PRJ040",
        text(IMAGE.replace("==2.9.1", "==2.9.1+cpu").replace("/cu128", "")),
        "error: 2.9.1+cpu",
        "a pinned build",
    ),
    (
        "PRJ040",
        built(DRIVER),
        "error: nvidia-driver-580 and libnvidia-compute-580 | belongs to the host",
        "the driver in the image",
    ),
    ("PRJ040", built("RUN apt-get install -y libnvidia-container-tools"), "passed", "the toolkit is no driver"),
    ("PRJ021", cuda("12.8.1-base-ubuntu24.04"), "passed", "a tag of a supported system"),
    ("PRJ021", cuda("12.8.1-base-ubuntu20.04"), "warning: 20.04", "a system past its support"),
    ("PRJ021", cuda("latest"), "error: latest", "latest"),
    ("PRJ021", image("nvidia/cuda"), "error", "no tag at all"),
    ("PRJ021", image("docker.io/nvidia/cuda:11.0-base"), "error", "a deleted tag behind a registry's name"),
    ("PRJ021", cuda("10.1-devel-ubuntu18.04"), "error", "a CUDA whose images are gone"),
    ("PRJ021", cuda("11.8.0-base-ubuntu22.04"), "passed", "a CUDA of which one system's images are gone"),
    ("PRJ021", cuda("99.0.0-base-ubuntu30.04"), "passed", "a tag newer than the tables"),
    ("PRJ021", cuda("${TAG}"), "skipped", "a tag that a variable decides"),
    ("PRJ021", image("python:3.12-slim"), "passed", "another image"),
    ("PRJ021", cuda(OLD_DEVEL, torch=""), "warning: the tag of a newer CUDA", "an image to compile in keeps nvcc"),
    ("PRJ021", cuda(OLD_DEVEL), "warning: a slim Python image", "an image for torch needs none"),
    ("PRJ021", ARGUMENT, f"error: {DOCKERFILE}:2", "the default of an argument"),
    ("PRJ021", ARGUMENT | GIVEN, "passed", "an argument that is given"),
    ("PRJ022", cuda("12.8.1-base-ubuntu24.04"), "passed", "the small base image"),
    ("PRJ022", cuda("12.8.1-runtime-ubuntu24.04"), "note", "runtime of the same CUDA"),
    ("PRJ022", cuda("12.8.1-devel-ubuntu24.04"), "passed", "devel of the same CUDA, to compile"),
    ("PRJ022", cuda("12.6.3-devel-ubuntu24.04"), "warning", "devel of another CUDA"),
    ("PRJ022", cuda("12.3.2-runtime-ubuntu22.04"), "warning", "a CUDA without wheels"),
    ("PRJ022", image("python:3.12-slim"), "passed", "no CUDA in the image"),
    ("PRJ022", cuda("12.3.2-runtime-ubuntu22.04", torch=""), "passed", "an image without torch may carry CUDA"),
    ("PRJ022", feature("nvidia-cuda", cudaVersion="12.5"), "note", "a Feature with a second CUDA"),
    ("PRJ022", feature("nvidia-cuda", NO_TORCH, cudaVersion="12.5"), "passed", "a Feature with the only CUDA"),
    ("PRJ022", feature("git"), "passed", "another Feature"),
    ("PRJ023", image("python:3.12-slim", compiler=""), "warning: gcc", "slim, without"),
    ("PRJ023", image("python:3.12-slim", compiler="RUN apt-get install -y gcc-13\n"), "passed", "slim, with gcc"),
    ("PRJ023", image("ubuntu:24.04", compiler="RUN apt install -y build-essential\n"), "passed", "build-essential"),
    ("PRJ023", cuda("12.8.1-runtime-ubuntu24.04", compiler=""), "warning", "a runtime image"),
    ("PRJ023", cuda("12.8.1-devel-ubuntu24.04", compiler=""), "passed", "a devel image"),
    ("PRJ023", image("python:3.12", compiler=""), "passed", "the whole Python image"),
    ("PRJ023", image("mcr.microsoft.com/devcontainers/python:3.12", compiler=""), "passed", "one that may have it"),
    ("PRJ023", LOW_STAGE, "passed", "a compiler in a lower stage counts"),
    ("PRJ024", built("RUN uv pip install --torch-backend=auto torch"), "error", "auto"),
    ("PRJ024", built("RUN uv pip install --torch-backend auto torch"), "error", "auto as a word of its own"),
    ("PRJ024", built("RUN UV_TORCH_BACKEND=auto uv pip install torch"), "error", "auto by the command's variable"),
    ("PRJ024", built("ENV UV_TORCH_BACKEND=auto\nRUN uv pip install torch"), "error", "auto by ENV"),
    ("PRJ024", built("RUN uv pip install --torch-backend=cu128 torch"), "passed", "an index by name"),
    ("PRJ024", built("ENV UV_TORCH_BACKEND=cu128\nRUN uv pip install torch"), "passed", "an index by ENV"),
    ("PRJ024", built("RUN pip install torch==2.9.1"), "passed", "pip"),
    ("PRJ024", AFTER_START, "passed", "auto is right once the container runs"),
    ("PRJ025", built("RUN nvidia-smi"), f"error: {DOCKERFILE}:2 | nvidia-smi", "nvidia-smi"),
    ("PRJ025", built("RUN nvidia-smi || true"), "passed", "nvidia-smi that may fail"),
    ("PRJ025", built("RUN echo run nvidia-smi later"), "passed", "nvidia-smi as a word"),
    ("PRJ025", built(f'RUN python -c "{ASSERTED}"'), "error", "torch.cuda asserted"),
    ("PRJ025", built(f"RUN python - <<EOF\n{ASSERTED}\nEOF"), "error", "torch.cuda asserted in a heredoc"),
    ("PRJ025", built(f'RUN python -c "{PRINTED}"'), "note", "torch.cuda printed"),
    ("PRJ025", built('RUN python -c "import torch"'), "passed", "torch imported"),
    ("PRJ025", built(APEX), "warning: TORCH_CUDA_ARCH_LIST", "an extension"),
    ("PRJ025", built("RUN pip install detectron2"), "warning", "an extension from an index"),
    ("PRJ025", built('ENV TORCH_CUDA_ARCH_LIST="8.9"', APEX), "passed", "an extension for a GPU"),
    ("PRJ025", built("RUN pip install flash-attn==2.8.3"), "passed", "a package with wheels"),
    ("PRJ026", built("RUN pip install torch==2.9.1"), "passed", "a version"),
    ("PRJ026", built("RUN pip install torch~=2.9.1"), "passed", "a patch level"),
    ("PRJ026", built("RUN pip install torch"), "warning", "any version"),
    ("PRJ026", built("RUN pip install 'torch>=2.6'"), "warning", "a lower bound"),
    ("PRJ026", built("RUN pip install torch==${TORCH}"), "passed", "a variable"),
    ("PRJ026", built("RUN pip install torch", more={"uv.lock": ""}), "passed", "a lock beside it"),
    ("PRJ026", built("RUN pip install numpy"), "passed", "no torch"),
    ("PRJ026", built(FROM_LIST, more=OPEN_LIST), "warning: requirements.txt:2", "any version in the list"),
    ("PRJ026", built(FROM_LIST, more={"requirements.txt": "torch==2.9.1\n"}), "passed", "a version in the list"),
    ("PRJ026", built("RUN pip install numpy", more=LIBRARY), "passed", "a library may leave torch open"),
    ("PRJ027", indexed("cu128"), "passed", "older than the driver", run("580.95.05", "13.0")),
    ("PRJ027", indexed("cu129"), "passed", "newer within a major", DRIVER_12_8),
    ("PRJ027", indexed("cu130"), "error: 13.0 | 12.8", "of the next major", DRIVER_12_8),
    ("PRJ027", indexed("cpu"), "passed", "for the CPU", DRIVER_12_8),
    ("PRJ027", indexed("cu999"), "passed", "an index that the tables do not know", DRIVER_12_8),
    ("PRJ027", cuda("12.8.1-base-ubuntu24.04"), "passed", "an image as new as the driver", DRIVER_12_8),
    ("PRJ027", cuda("12.9.1-base-ubuntu24.04"), "error: 12.9", "an image newer than the driver", DRIVER_12_8),
    (
        "PRJ027",
        cuda("12.9.1-base-ubuntu24.04", "ENV NVIDIA_DISABLE_REQUIRE=1"),
        "passed",
        "a newer image with its demand off",
        DRIVER_12_8,
    ),
    (
        "PRJ027",
        indexed("cu130"),
        "error: where: windows | confidence: likely",
        "in WSL the driver is the one of Windows",
        run("560.94", "12.6", windows_guest()),
    ),
    ("PRJ027", indexed("cu132"), "skipped", "no driver", without_gpu()),
    ("PRJ027", indexed("cu132"), "skipped", "a driver that is late", changed(healthy(), {"nvml": Unknown("late")})),
    ("PRJ028", user("RUN useradd -m dev"), "warning", "gets the next id"),
    ("PRJ028", user("RUN useradd -m -u 1000 dev"), "error: 1000", "asks for the taken id"),
    ("PRJ028", user("RUN useradd -m -u 1234 dev"), "passed", "asks for another"),
    ("PRJ028", user("RUN userdel -r ubuntu && useradd -m dev"), "passed", "removes the other user"),
    ("PRJ028", user("RUN usermod -l dev ubuntu"), "passed", "renames the other user"),
    ("PRJ028", user("USER ubuntu"), "passed", "uses the other user"),
    ("PRJ028", user("RUN useradd -m dev", base="ubuntu:22.04"), "passed", "an Ubuntu without that user"),
    ("PRJ028", user("RUN useradd -m dev", base="nvidia/cuda:12.8.1-base-ubuntu24.04"), "warning", "below CUDA"),
    ("PRJ028", user("ARG UID=1000", "RUN useradd --uid $UID dev"), "error", "by an argument's default"),
    ("PRJ028", user("RUN useradd -m dev", base="debian:12"), "passed", "Debian"),
    ("PRJ029", root(), "note", "nobody named"),
    ("PRJ029", root("USER root"), "note", "root named"),
    ("PRJ029", root("USER dev"), "passed", "a user in the image"),
    ("PRJ029", root(user="dev"), "passed", "a user in devcontainer.json"),
    ("PRJ030", with_args("--device", "nvidia.com/gpu=all"), "note: keep-id", "without", podman(rootless=True)),
    ("PRJ030", with_args("--userns=keep-id"), "passed", "with it", podman(rootless=True)),
    ("PRJ030", with_args("--userns", "keep-id"), "passed", "with it in two words", podman(rootless=True)),
    ("PRJ030", with_args(), "skipped", "Podman of root", podman(rootless=False)),
    ("PRJ033", cuda(OLD_DEVEL), "warning: devel image for CUDA 11.8 or newer.", "older than the GPU", capable("8.9")),
    ("PRJ033", cuda("11.8.0-devel-ubuntu22.04"), "passed", "the first that knows it", capable("8.9")),
    ("PRJ033", cuda("13.0.2-devel-ubuntu24.04"), "warning: CUDA 12.9 or older.", "newer than its last", capable("7.0")),
    ("PRJ033", cuda("12.9.1-devel-ubuntu24.04"), "passed", "a patch of its last", capable("7.0")),
    ("PRJ033", cuda("12.8.1-devel-ubuntu24.04"), "passed", "Blackwell", capable("12.0")),
    ("PRJ033", cuda("11.4.3-runtime-ubuntu18.04"), "skipped", "a runtime image compiles nothing"),
    ("PRJ033", image("python:3.12-slim"), "skipped", "an image without CUDA compiles nothing"),
    ("PRJ035", slim("pip install flash-attn --no-build-isolation"), "warning: nvcc | flash-attn", "no nvcc"),
    ("PRJ035", slim("pip install -r r.txt", more={"r.txt": "x"}), "passed", "nothing to compile"),
    ("PRJ035", slim("pip install 'flash-attn @ https://x.org/f.whl'"), "passed", "a wheel's address"),
    ("PRJ035", slim("pip install deepspeed xformers"), "passed", "wheels, and at first use"),
    ("PRJ035", slim("apt-get install -y nvidia-cuda-toolkit", "pip install mamba-ssm"), "passed", "nvcc by apt"),
    ("PRJ035", slim("conda install -y -c nvidia cuda-nvcc=12.8", "pip install mamba-ssm"), "passed", "by conda"),
    ("PRJ035", text(COPIED), "passed", "compiled elsewhere"),
    ("PRJ035", text(RUNTIME), "warning", "a runtime image"),
    ("PRJ035", text("FROM registry.example.org/ours:1\nRUN pip install flash-attn\n"), "passed", "an unknown image"),
    ("PRJ035", text(f"{SLIM}COPY . /src\nRUN pip install --no-build-isolation /src\n", OWN_CODE), "warning", "itself"),
    ("PRJ035", SET_UP, "passed", "a script that installs nvcc first"),
    ("PRJ035", SET_UP | {"setup.sh": "pip install flash-attn\n"}, "warning: setup.sh:1", "a script that does not"),
    ("PRJ036", bare(), "note: requirements.txt", "nothing is installed"),
    ("PRJ036", bare(requirements_versions="torch"), "note", "a list of another name"),
    ("PRJ036", bare(**{"requirements/full/requirements": "torch"}), "note", "a list two folders below"),
    ("PRJ036", bare("pip install rich"), "note", "something else is installed"),
    ("PRJ036", bare("pip install -r requirements.txt"), "passed", "the list"),
    ("PRJ036", bare("pip install -r dev.txt", dev="-r requirements.txt", requirements="torch"), "passed", "another"),
    ("PRJ036", bare("pip install -e ."), "passed", "the project"),
    ("PRJ036", bare("make setup"), "passed", "who knows"),
    ("PRJ036", bare("uv sync"), "passed", "another tool"),
    ("PRJ036", bare(image="ours:1"), "passed", "an image of somebody else's"),
    ("PRJ036", bare(train=""), "passed", "no list"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_image(tmp_path, code):
    assert list_wrong_projects(tmp_path, code, CASES) == []


NUMBERED = "RUN useradd -m -u 1000 dev"
FIXED = {"updateRemoteUserUID": False}
BUILD_NUMBER = {"build": {"dockerfile": "Dockerfile", "args": {"USER_UID": "0"}}}
VOLUME = {"workspaceMount": "source=v,target=/w,type=volume"}

WORKSPACES = [
    # the owner of the folder and the user of the host, a line of the image, devcontainer.json
    (0, 0, "RUN useradd -m dev", {}, 'warning: "remoteUser": "root"', "root everywhere"),
    (0, 0, "RUN useradd -m -u 1234 dev", {}, "warning: sudo chown -R 1234 .", "root everywhere, a known number"),
    (0, 1000, "RUN useradd -m dev", {}, "warning: sudo chown -R 1000 .", "a folder that sudo made"),
    (1001, 1001, NUMBERED, FIXED, 'warning: "updateRemoteUserUID": true', "the number stays"),
    (1001, 1001, NUMBERED, {}, "passed", "the number is changed"),
    (1001, 1001, "RUN useradd -m dev", FIXED, "passed", "a number that is not known"),
    (0, 0, "", {"remoteUser": "root"}, "passed", "root in the container, too"),
    (0, 0, "", {"remoteUser": None}, "passed", "nobody named"),
    (0, 0, "RUN useradd -m dev", VOLUME, "passed", "a volume"),
    (0, 0, "ARG USER_UID=1000\nRUN useradd -u $USER_UID dev", BUILD_NUMBER, "passed", "the build is given a number"),
]


def test_the_user_may_write_to_the_workspace(tmp_path):
    wrong = []
    for number, (owner, host, line, keys, expected, name) in enumerate(WORKSPACES):
        place = tmp_path / str(number)
        folder = Directory(str(place), "workspace", True, True, owner, "ext4", 1 << 40, 9_000_000)
        files = text(f"FROM python:3.12-slim\n{line}\n", **keys)
        facts = on(place, files, storage=Storage(host, (folder,)))
        wrong += [(name, each) for each in judge("PRJ037", facts, expected)]
        wrong += [(name, each) for each in judge("PRJ037", changed(facts, {"engine.is_rootless": True}), "skipped")]
        for_all = Storage(host, (replace(folder, is_world_writable=True),))
        wrong += [(name, each) for each in judge("PRJ037", replace(facts, storage=for_all), "passed")]
    assert wrong == []


def test_each_place_is_reported_once_for_two_dev_containers(tmp_path):
    files = built("RUN nvidia-smi", "RUN pip install torch", "RUN uv pip install --torch-backend=auto torch")
    files[".devcontainer/second/devcontainer.json"] = dev(build={"dockerfile": "../Dockerfile"})
    facts = on(tmp_path, files)
    assert [len(find_all(code, facts)) for code in ("PRJ024", "PRJ025")] == [1, 1]
