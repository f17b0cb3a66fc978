"""Packages that compile against torch in the files: nvcc, the layer after all others, and the project's own install."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.compat.version_tables import RowConfidence
from devkit.errors import DevkitError
from devkit.facts.dependencies import (
    Dependencies,
    LocalBuild,
    LocalPackage,
    PackageManager,
    PackageRequirement,
    RequirementRole,
)
from devkit.render.container.devcontainer import render_devcontainer_json
from devkit.render.container.image import render_dockerfile
from devkit.render.container.image_locks import collect_lock_requirements
from devkit.render.container.settings import ContainerSettings, FromIndex
from devkit.solver.plan import AS_OF, FROM_WHEELS, CompiledPackage, CompileMode, Reason

from .plans import CPU_PLAN, GPU_PLAN

FLASH = CompiledPackage(
    "flash-attn",
    CompileMode.COMPILED,
    "the package index has no wheel for it",
    "",
    core_minutes=250,
    job_gb=9,
    requires=("psutil",),
    variables=("FLASH_ATTN_CUDA_ARCHS=80",),
)
OWN = CompiledPackage(
    "tiny",
    CompileMode.COMPILED,
    "its build imports torch (setup.py:3)",
    "",
    path=".",
    job_gb=4,
    requires=("numpy >= 2",),
)
NEEDS = (
    PackageRequirement("flash-attn", ">=2.5", "requirements.txt", 2),
    PackageRequirement("numpy", "", "requirements.txt", 3),
)
LIST = Dependencies(
    PackageManager.PIP,
    "the project has requirements.txt",
    ("requirements.txt",),
    lists=("requirements.txt",),
    needs=NEEDS,
    builds=(LocalBuild(".", "tiny", "setup.py:3", has_cuda=True, requires=()),),
    builds_itself=True,
)
SETTINGS = ContainerSettings("Demo", "demo", FromIndex("0.1.0"), dependencies=LIST)
CUDA_PLAN = replace(GPU_PLAN, compiled=(FLASH,), nvcc=FROM_WHEELS, capabilities=("8.9",))


def steps(plan, settings=SETTINGS) -> list[str]:
    text = render_dockerfile(plan, settings)
    return [found[0].replace("\\\n", " ") for found in re.finditer(r"^RUN (?:[^\n]*\\\n)*[^\n]*", text, re.MULTILINE)]


def step(word: str, plan, settings=SETTINGS) -> str:
    (found,) = [each for each in steps(plan, settings) if word in each]
    return " ".join(found.split())


def command(plan, settings=SETTINGS) -> str:
    return (
        json.loads(render_devcontainer_json(settings, plan.compiled)).get("updateContentCommand", {}).get("project", "")
    )


def test_it_is_installed_without_isolation_after_all_others():
    order = steps(CUDA_PLAN)
    last = step("no-build-isolation", CUDA_PLAN)
    places = [place for place, each in enumerate(order) if "uv pip install" in each and "/opt/devkit" not in each]
    assert "no-build-isolation-package=flash-attn" in order[places[-1]]
    assert "printf '%s\\n' flash-attn > /mnt/work/excluded.txt" in step("/mnt/project/requirements.txt", CUDA_PLAN)
    assert last.endswith('"flash-attn>=2.5"')
    resolved = replace(CUDA_PLAN, project_packages=(("flash-attn", "2.8.3"),), limits=("flash-attn==2.8.3",))
    assert step("no-build-isolation-package=flash-attn", resolved).endswith('"flash-attn==2.8.3"')
    assert '"setuptools<82" "wheel" "packaging" "ninja" "psutil"' in last
    assert 'FLASH_ATTN_CUDA_ARCHS="80"' in last


def test_what_is_built_for_one_torch_is_not_taken_for_another():
    caches = [
        re.search(r"id=(devkit-compiled[^,]+)", step("no-build-isolation", plan))[1]
        for plan in (
            CUDA_PLAN,
            replace(CUDA_PLAN, torch="2.12.0"),
            replace(CUDA_PLAN, variant="cu126"),
            replace(CUDA_PLAN, capabilities=("9.0",)),
            replace(CUDA_PLAN, python="3.11"),
        )
    ]
    assert len(set(caches)) == len(caches)


def test_a_wheel_from_elsewhere_needs_no_compiler():
    url = "https://example.org/flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"
    plan = replace(CUDA_PLAN, compiled=(replace(FLASH, mode=CompileMode.WHEEL, url=url),), nvcc="")
    found = step(url, plan)
    assert f'"flash-attn @ {url}"' in found
    assert "isolation" not in found
    assert "ccache" not in "".join(steps(plan))


def test_what_is_left_out_is_installed_by_no_layer():
    plan = replace(CPU_PLAN, compiled=(replace(FLASH, mode=CompileMode.LEFT_OUT),))
    assert "printf '%s\\n' flash-attn" in step("/mnt/project/requirements.txt", plan)
    assert not any("isolation" in each or "psutil" in each for each in steps(plan))


def test_a_repository_is_taken_from_where_the_project_takes_it():
    url = "git+https://github.com/facebookresearch/detectron2.git"
    needs = (PackageRequirement("detectron2", "", "requirements.txt", 1, url=url, role=RequirementRole.GENERATED),)
    settings = replace(SETTINGS, dependencies=replace(LIST, needs=needs))
    plan = replace(CPU_PLAN, compiled=(replace(OWN, name="detectron2", path=""),))
    assert f'"detectron2 @ {url}"' in step("no-build-isolation", plan, settings)


def test_nvcc_of_cuda_12_comes_from_an_image_of_which_nothing_else_is_taken():
    image = "nvidia/cuda:12.6.3-devel-ubuntu22.04"
    plan = replace(CUDA_PLAN, cuda="12.6", variant="cu126", nvcc=image)
    assert f"--mount=type=bind,from={image},source=/usr/local/cuda-12.6,target=/mnt/cuda" in step(
        "nvcc --version", plan
    )
    text = render_dockerfile(plan, SETTINGS)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == [plan.base_image]
    assert 'ENV TORCH_CUDA_ARCH_LIST="8.9"' in text


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("nvcc", "targets"),
    [
        pytest.param("nvidia/cuda:12.6.3-devel-ubuntu22.04", "targets/x86_64-linux/", id="from an image"),
        pytest.param(FROM_WHEELS, "", id="from wheels"),
    ],
)
def test_what_nvcc_needs_lies_where_torch_looks_for_it(tmp_path, nvcc, targets):
    """Stand-ins for the image and for uv have the folders of nvidia/cuda:12.6.3-devel and of the wheels of CUDA 13.0."""
    toolkit = tmp_path / ("image" if targets else "wheels/nvidia/cu13")
    write(toolkit / "bin" / "nvcc", "#!/bin/sh\necho compiled\n")
    write(toolkit / "nvvm" / "bin" / "cicc")
    write(toolkit / targets / "include" / "cuda_runtime.h", "toolkit")
    write(toolkit / targets / "lib" / "libcudart_static.a")
    write(toolkit / targets / "lib" / "libcudadevrt.a")
    write(toolkit / targets / "lib" / "libcudart.so.12")
    write(toolkit / targets / "lib" / "stubs" / "libcuda.so")
    write(toolkit / targets / "lib" / "libcublas_static.a")
    if targets:
        (toolkit / "include").symlink_to(f"{targets}include")
        (toolkit / "lib64").symlink_to(f"{targets}lib")
    site = tmp_path / "site"
    write(site / "nvidia" / "cublas" / "lib" / "libcublas.so.12")
    write(site / "nvidia" / "cublas" / "include" / "cublas.h")
    write(site / "nvidia" / "cublas" / "include" / "cuda_runtime.h", "torch's")
    write(tmp_path / "python", f"#!/bin/sh\necho {site}\n")
    write(tmp_path / "uv", "#!/bin/sh\n")
    plan = replace(CUDA_PLAN, cuda="12.6" if targets else "13.0", nvcc=nvcc)
    (layer,) = [each for each in steps(plan) if "nvcc --version" in each]
    script = re.sub(r"^RUN (?:\s*--mount=\S+)*", "", layer)
    for path, stand_in in (("/opt/cuda", "cuda"), ("/mnt/cuda", "image"), ("/mnt/work", "wheels")):
        script = script.replace(path, str(tmp_path / stand_in))
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script], env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "compiled\n", "")
    cuda = tmp_path / "cuda"
    assert (cuda / "nvvm/bin/cicc").exists()
    assert (cuda / "include/cuda_runtime.h").read_text() == "toolkit"
    assert (cuda / "include/cublas.h").exists()
    assert (cuda / "lib64/libcudadevrt.a").exists()
    assert (cuda / "lib64/libcublas.so").resolve() == site / "nvidia/cublas/lib/libcublas.so.12"
    assert (cuda / "lib64/libcublas_static.a").exists() is not bool(targets)


def test_nvcc_of_the_base_image_is_left_as_it_is():
    plan = replace(CUDA_PLAN, base_image="nvidia/cuda:13.0.3-devel-ubuntu24.04")
    plan = replace(plan, nvcc=plan.base_image)
    assert not any("/opt/cuda" in each for each in steps(plan))
    assert 'ENV TORCH_CUDA_ARCH_LIST="8.9"' in render_dockerfile(plan, SETTINGS)


def test_a_gcc_that_cuda_takes_stands_in_for_a_newer_one():
    plan = replace(CUDA_PLAN, cuda="11.8", variant="cu118", nvcc="nvidia/cuda:11.8.0-devel-ubuntu22.04")
    text = render_dockerfile(replace(plan, base_image="python:3.11.9-slim-bookworm"), SETTINGS)
    assert " g++-11" in text
    assert "CXX=g++-11" in text
    assert "g++-11" not in render_dockerfile(replace(plan, base_image="ubuntu:22.04"), SETTINGS)


def test_what_builds_old_packages_without_isolation_keeps_to_the_limits_of_their_day():
    day = Reason(AS_OF, "2022-08-01", "", "", RowConfidence.CONFIRMED)
    own = replace(OWN, requires=("Cython>=0.29", "numpy", "wheel>=0.37"))
    plan = replace(CPU_PLAN, compiled=(own,), reasons=(*CPU_PLAN.reasons, day))
    assert '"Cython>=0.29,<3" "numpy<2" "wheel>=0.37"' in step('"Cython', plan)
    old = replace(plan, compiled=(replace(own, requires=("oldest-supported-numpy", "Cython>=0.29")),))
    assert '"numpy<2" "Cython>=0.29,<3"' in step('"Cython', old), "the NumPy that is there is held"
    plan = replace(plan, project_packages=(("cython", "3.1"),))
    assert '"Cython>=0.29" "numpy<2"' in step('"Cython', plan)


def test_the_project_itself_finds_its_build_requirements_in_the_image():
    plan = replace(CPU_PLAN, compiled=(OWN,))
    assert step('"numpy>=2"', plan).endswith('"setuptools<82" "wheel" "packaging" "ninja" "numpy>=2"')
    assert "; uv pip install --no-build-isolation --no-deps --editable . || " in command(plan)


def test_folders_that_compile_are_installed_before_what_builds_in_isolation():
    folder = replace(OWN, name="simple-knn", path="submodules/simple-knn")
    left_out = replace(folder, path="submodules/other", mode=CompileMode.LEFT_OUT)
    local = tuple(LocalPackage(place, "uv.lock", 1) for place in ("submodules/simple-knn", "submodules/other", "lib"))
    settings = replace(SETTINGS, dependencies=replace(LIST, local=local, lock="uv.lock"))
    found = command(replace(CPU_PLAN, compiled=(folder, left_out)), settings).split("; ")
    assert [each.partition(" || ")[0] for each in found[-2:]] == [
        "uv pip install --no-build-isolation --no-deps --editable submodules/simple-knn",
        "uv pip install --no-deps --editable . --editable lib",
    ]


@pytest.mark.parametrize("path", ["a b", "a;b", "$(id)", "-x", "a'b"])
def test_a_folder_that_a_shell_would_read_is_refused(path):
    settings = replace(SETTINGS, dependencies=replace(LIST, local=(LocalPackage(path, "requirements.txt", 1),)))
    with pytest.raises(DevkitError, match="cannot be a path"):
        command(CPU_PLAN, settings)


def run_install(folder: Path, text: str, *, status: int) -> subprocess.CompletedProcess[str]:
    uv = folder / "uv"
    uv.write_text(f'#!/bin/sh\necho "$MAX_JOBS|$BUILD_NO_CUDA|$*" > {folder}/said\nexit {status}\n')
    uv.chmod(0o755)
    variables = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", text], env=variables, capture_output=True, text=True, check=False, timeout=60)


def test_a_build_that_fails_is_told_in_words_and_the_container_opens(tmp_path):
    done = run_install(tmp_path, command(replace(CPU_PLAN, compiled=(OWN,))), status=1)
    assert done.returncode == 0
    assert "not installed, because the build failed as the lines above say: the project itself" in done.stderr


def test_a_build_gets_as_many_jobs_as_the_memory_has_room_for(tmp_path):
    own = replace(OWN, variables=("BUILD_NO_CUDA=1",), job_gb=1 << 20)
    assert run_install(tmp_path, command(replace(CPU_PLAN, compiled=(own,))), status=0).stderr == ""
    assert (tmp_path / "said").read_text() == "1|1|pip install --no-build-isolation --no-deps --editable .\n"
    run_install(tmp_path, command(replace(CPU_PLAN, compiled=(replace(own, job_gb=1),))), status=0)
    assert 1 <= int((tmp_path / "said").read_text().partition("|")[0]) <= (os.cpu_count() or 1)


def test_from_a_wheelhouse_everything_comes_as_a_wheel():
    settings = replace(SETTINGS, uses_wheelhouse=True)
    text = "".join(steps(replace(CUDA_PLAN, compiled=(FLASH, OWN)), settings))
    assert not re.search(r"isolation|excluded|nvcc|ccache", text)
    assert command(replace(CUDA_PLAN, compiled=(OWN,)), settings) == ""


def test_a_lock_leaves_to_the_image_what_is_built_anew_in_it():
    assert any("flash-attn" in line for line in collect_lock_requirements(GPU_PLAN, SETTINGS).requirements)
    assert not any("flash-attn" in line for line in collect_lock_requirements(CUDA_PLAN, SETTINGS).requirements)
