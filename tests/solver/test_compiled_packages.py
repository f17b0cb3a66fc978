"""Packages that compile against torch: what is done about each, on which torch, with which nvcc, at what cost."""

from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import NO_DEPENDENCIES, BuildNeed, LocalBuild, PackageRequirement, Resolved, SourceBuild
from devkit.solver.candidates import Problem
from devkit.solver.compiled_packages import add_compiled_packages, list_compile_costs
from devkit.solver.plan import FROM_WHEELS, CompileMode, Plan, Vendor
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve_project

NEW = build_machine_from_flags(driver="580.95.05", gpus=("H100",))
OLD = build_machine_from_flags(driver="570.124.06", gpus=("RTX 4090",))
EXTENSION = LocalBuild(".", "tiny-ext", "setup.py:3", has_cuda=True, requires=("numpy",))


def need(name, specifier="", url=""):
    return PackageRequirement(name, specifier, "requirements.txt", 1, url=url)


def solve(*needs, machine=NEW, builds=(), **wanted):
    dependencies = replace(
        NO_DEPENDENCIES, files=("requirements.txt",), needs=needs, builds=builds, builds_itself=bool(builds)
    )
    request = build_request(machines=(machine,), **wanted)
    answer = solve_project(request, dependencies, load_tables())
    assert isinstance(answer, Plan), answer
    return answer


def modes(plan):
    return {each.name: each.mode for each in plan.compiled}


def test_a_cuda_whose_images_are_deleted_has_no_nvcc():
    t4 = build_machine_from_flags(driver="570.124.06", gpus=("T4",))
    plan = solve(need("mamba-ssm"), machine=t4, torch="1.12.1+cu102")
    assert modes(plan) == {"mamba-ssm": CompileMode.LEFT_OUT}
    assert any("no nvcc of CUDA 10.2 is known" in each for each in plan.warnings)


def test_a_compiled_package_takes_the_newest_torch_that_it_compiles_with():
    plan = solve(need("mamba-ssm"))
    assert modes(plan) == {"mamba-ssm": CompileMode.COMPILED}
    assert plan.torch == "2.13.0"
    assert "mamba-ssm 2.3.2.post1 (C++17) wants torch<2.14" in plan.because("torch")


def test_where_torch_is_requested_what_does_not_compile_with_it_is_left_out_and_said():
    plan = solve(need("flash-attn"), torch="2.15")
    assert modes(plan) == {"flash-attn": CompileMode.LEFT_OUT}
    assert any("flash-attn is not installed" in each and "C++17" in each for each in plan.warnings)
    assert plan.nvcc == ""


def test_a_release_after_those_that_were_read_is_tried():
    plan = solve(need("flash-attn", "==2.9.0"), torch="2.15")
    assert modes(plan) == {"flash-attn": CompileMode.COMPILED}


@pytest.mark.parametrize(
    ("specifier", "url", "torch", "mode"),
    [
        pytest.param("", "", "2.8", CompileMode.WHEEL, id="published"),
        pytest.param("==2.8.3", "", "2.8", CompileMode.WHEEL, id="published in this version"),
        pytest.param("<2.8", "", "2.8", CompileMode.COMPILED, id="another version"),
        pytest.param("", "git+https://example.org/flash-attention", "2.8", CompileMode.COMPILED, id="a repository"),
        pytest.param("", "", "2.11", CompileMode.COMPILED, id="not for this torch"),
    ],
)
def test_a_wheel_from_elsewhere_is_taken_where_one_is_published(specifier, url, torch, mode):
    (found,) = solve(need("flash-attn", specifier, url), torch=torch).compiled
    assert found.mode is mode
    if mode is CompileMode.WHEEL:
        assert found.url.endswith("flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl")


@pytest.mark.parametrize(
    ("torch", "specifier", "file"),
    [
        # Without the C++11 ABI, as PyTorch builds were before 2.7, but for 2.6 with CUDA 12.6.
        ("2.5.1+cu124", "", "flash_attn-2.8.3+cu12torch2.5cxx11abiFALSE-cp312-cp312-linux_x86_64.whl"),
        ("2.6.0+cu124", "", "flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64.whl"),
        ("2.6.0+cu126", "", "flash_attn-2.8.3+cu12torch2.6cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"),
        ("2.4.0+cu121", "==2.6.3", "flash_attn-2.6.3+cu123torch2.4cxx11abiFALSE-cp312-cp312-linux_x86_64.whl"),
        ("2.3.1+cu118", "<2.7", "flash_attn-2.6.3+cu118torch2.3cxx11abiFALSE-cp312-cp312-linux_x86_64.whl"),
        ("2.4.0+cu118", ">=2.7", ""),
    ],
)
def test_the_wheel_is_of_the_abi_and_the_cuda_of_torch(torch, specifier, file):
    (found,) = solve(need("flash-attn", specifier), torch=torch).compiled
    assert found.url.rpartition("/")[2] == file


def test_the_version_that_uv_chose_goes_before_a_newer_wheel():
    dependencies = replace(NO_DEPENDENCIES, needs=(need("flash-attn"),))
    plan = replace(solve(torch="2.5.1"), resolution=Resolved((("flash-attn", "2.7.4.post1"),)))
    problem = Problem(build_request(machines=(NEW,)), Vendor.NVIDIA, load_tables())
    (found,) = add_compiled_packages(plan, dependencies, problem).compiled
    assert "/v2.7.4.post1/" in found.url
    says = "2.7.4.post1 is published for torch 2.5 and CUDA 12 by github.com/Dao-AILab/flash-attention"
    assert found.because == says


@pytest.mark.parametrize("cuda", ["12.6", "13.0", "13.2"])
@pytest.mark.parametrize("torch", ["2.12.1", "2.13.0", "2.14.1"])
def test_flash_attention_of_the_newest_torch_needs_no_nvcc_and_says_whose_wheel_it_is(torch, cuda):
    label = f"cu{cuda.replace('.', '')}"
    driver = build_machine_from_flags(driver="595.45.04", gpus=("L4",))
    plan = solve(need("flash-attn"), torch=f"{torch}+{label}", machine=driver)
    (found,) = plan.compiled
    assert (found.mode, plan.nvcc) == (CompileMode.WHEEL, "")
    assert f"flash_attn-2.8.3+{label}torch{torch.rpartition('.')[0]}-cp312-cp312-linux_x86_64.whl" in found.url
    assert "by github.com/mjun0812/flash-attention-prebuild-wheels" in found.because


def test_a_wheel_that_wants_a_newer_glibc_than_the_images_is_not_taken():
    # https://github.com/Dao-AILab/flash-attention/issues/1762
    image = "python:3.12-slim-bullseye"
    (found,) = solve(need("flash-attn"), torch="2.5.1", image=image).compiled
    assert "/v2.7.4.post1/" in found.url


@pytest.mark.parametrize(
    ("machine", "nvcc"),
    [
        pytest.param(NEW, FROM_WHEELS, id="CUDA 13: from packages of the index"),
        pytest.param(OLD, "nvidia/cuda:12.6.3-devel-", id="CUDA 12: from NVIDIA's image"),
    ],
)
def test_nvcc_is_of_the_cuda_of_torch_and_the_image_stays_slim(machine, nvcc):
    plan = solve(need("mamba-ssm"), machine=machine)
    assert plan.nvcc.startswith(nvcc)
    assert plan.base_image.startswith("python:3.12-slim")
    assert solve(need("numpy"), machine=machine).nvcc == ""
    assert solve(machine=machine, features=("nvcc",)).nvcc.partition(":")[0] == nvcc.partition(":")[0]


def test_a_build_of_the_projects_own_gets_nvcc_and_is_named():
    answer = solve_project(
        build_request(machines=(OLD,)), replace(NO_DEPENDENCIES, cuda_build="Makefile:69"), load_tables()
    )
    assert isinstance(answer, Plan)
    assert answer.nvcc.startswith("nvidia/cuda:12.6")
    assert [*list_compile_costs(answer, cores=2, memory_gb=8)] == [
        "nvcc of CUDA 12.6 is in the image: Makefile:69 has nvcc compile"
    ]


@pytest.mark.parametrize(
    ("torch", "gpu", "targets"),
    [("1.9.1", "RTX 4090", ("8.6",)), ("2.0.1", "RTX 4090", ("8.9",)), ("1.12.1", "T4", ("7.5",))],
)
def test_an_nvcc_older_than_the_gpu_compiles_for_the_one_before_it(torch, gpu, targets):
    machine = build_machine_from_flags(driver="570.124.06", gpus=(gpu,))
    assert solve(machine=machine, torch=torch).capabilities == targets


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param("flash-attn", CompileMode.LEFT_OUT, id="needs CUDA"),
        pytest.param("torch-scatter", CompileMode.COMPILED, id="compiles for the CPU"),
        pytest.param("deepspeed", None, id="compiles nothing on the CPU"),
        pytest.param("xformers", None, id="has wheels"),
    ],
)
def test_on_the_cpu(name, mode):
    plan = solve(need(name), vendor="cpu")
    assert modes(plan) == ({name: mode} if mode else {})
    assert plan.nvcc == ""


def test_the_project_itself_compiles_with_cuda_where_there_is_some():
    plan = solve(builds=(EXTENSION,))
    (found,) = plan.compiled
    assert (found.name, found.mode, found.path, found.requires) == ("tiny-ext", CompileMode.COMPILED, ".", ("numpy",))
    assert plan.nvcc == FROM_WHEELS
    assert solve(builds=(replace(EXTENSION, cxx=17),)).torch == "2.13.0"


@pytest.mark.parametrize(
    ("build", "mode", "variables"),
    [
        pytest.param(EXTENSION, CompileMode.COMPILED, (), id="not known: it is tried"),
        pytest.param(replace(EXTENSION, name="gsplat"), CompileMode.COMPILED, ("BUILD_NO_CUDA=1",), id="by a variable"),
        pytest.param(replace(EXTENSION, name="simple-knn"), CompileMode.LEFT_OUT, (), id="not without CUDA"),
    ],
)
def test_the_project_itself_on_the_cpu(build, mode, variables):
    (found,) = solve(builds=(build,), vendor="cpu").compiled
    assert (found.mode, found.variables) == (mode, variables)


def test_a_submodule_that_the_project_does_not_install_is_left_to_the_user():
    assert solve(builds=(EXTENSION, replace(EXTENSION, path="submodules/other"))).compiled[0].path == "."
    assert len(solve(builds=(EXTENSION, replace(EXTENSION, path="submodules/other"))).compiled) == 1


def test_what_the_guide_builds_without_isolation_compiles_if_it_has_no_wheel():
    address = replace(need("fused-grid", url="git+https://example.org/fused-grid"), unisolated_by="README.md:5")
    wheel = replace(need("numpy"), unisolated_by="README.md:5")
    plan = solve(address, wheel)
    assert modes(plan) == {"fused-grid": CompileMode.COMPILED}
    assert plan.compiled[0].because == "README.md:5 builds it without isolation"
    assert plan.nvcc == FROM_WHEELS


@pytest.mark.parametrize(("module", "nvcc"), [("torch", FROM_WHEELS), ("cython", "")])
def test_a_build_that_imports_what_isolation_lacks_is_built_beside_it(module, nvcc):
    build = SourceBuild("grid", (BuildNeed("module", module, "setup.py:2"),), ("setuptools<81", "torch>=2"))
    dependencies = replace(NO_DEPENDENCIES, files=("pyproject.toml",), needs=(need("grid"),))
    problem = Problem(build_request(machines=(NEW,)), Vendor.NVIDIA, load_tables())
    resolved = Resolved((("grid", "1.0"),), ("grid",), builds=(build,))
    plan = add_compiled_packages(replace(solve(need("grid")), resolution=resolved), dependencies, problem)
    assert modes(plan) == {"grid": CompileMode.COMPILED}
    assert (
        plan.compiled[0].because == f"the package index has no wheel for it, and its build takes {module} (setup.py:2)"
    )
    assert plan.compiled[0].requires == ("setuptools<81", *([] if module == "torch" else [module]))
    assert plan.nvcc == nvcc


def test_each_package_gets_the_gpus_as_it_writes_them():
    both = build_machine_from_flags(driver="580.95.05", gpus=("RTX 4090", "A100", "H100"))
    plan = solve(need("flash-attn"), need("natten"), need("tinycudann"), machine=both)
    assert plan.capabilities == ("8.0", "8.9", "9.0")
    assert {each.name: each.variables for each in plan.compiled} == {
        "flash-attn": ("FLASH_ATTN_CUDA_ARCHS=80;90",),
        "natten": ("NATTEN_CUDA_ARCH=8.0;8.9;9.0",),
        "tinycudann": ("TCNN_CUDA_ARCHITECTURES=80;89;90",),
    }


def test_the_cost_is_said_before():
    plan = solve(need("flash-attn", "<2.8"), need("deepspeed"), builds=(EXTENSION,))
    minutes = plan.compiled[1].core_minutes
    lines = list(list_compile_costs(plan, cores=16, memory_gb=40))
    assert lines[0].startswith("deepspeed compiles when it is first used")
    assert f"about {-(-minutes // 4)} minutes here with 4 jobs of up to 9 GB" in lines[1]
    assert "when the container is created, its duration is unknown" in lines[2]
    assert "1 job of" in list(list_compile_costs(plan, cores=16, memory_gb=2))[1]
