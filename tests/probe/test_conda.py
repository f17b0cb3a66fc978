"""Environments of conda: what micromamba installs, what uv does, and that torch is the plan's alone."""

from pathlib import Path

import pytest

from devkit.facts.dependencies import PackageManager
from devkit.probe.project.reader import read_local_dependencies

from .test_dependencies import asked, limits, read, unread

PROJECTS = Path(__file__).resolve().parents[1] / "projects"


def environment(*packages, channels="[conda-forge]", pip=()):
    lines = "".join(f"  - {each}\n" for each in packages)
    lines += "  - pip:\n" + "".join(f"    - {each}\n" for each in pip) if pip else ""
    return {"environment.yml": f"channels: {channels}\ndependencies:\n  - python=3.11\n{lines}"}


def test_openfold_gets_its_programs_from_conda_and_its_torch_from_the_plan():
    found = read_local_dependencies(str(PROJECTS / "openfold"))
    specs = [each.spec for each in found.conda]
    assert [spec for spec in specs if "::" in spec] == ["bioconda::hmmer", "bioconda::hhsuite", "bioconda::kalign2"]
    assert {"openmm", "pdbfixer", "numpy", "modelcif==0.7"} <= set(specs)
    assert not {"pytorch-cuda=12.4", "pytorch=2.5", "cuda", "gcc=12.4", "git", "pip"} & set(specs)
    assert found.conda_channels == ("conda-forge", "bioconda")
    assert found.conda[0].origin == "environment.yml:13"
    assert list(asked(found).values()) == [
        "pytorch-lightning",
        "deepspeed==0.14.5",
        "dm-tree==0.1.6",
        "dllogger @ git+https://github.com/NVIDIA/dllogger.git",
        "flash-attn",
    ]
    assert limits(found) == {"environment.yml:34": "torch==2.5.*"}
    assert [each.what for each in found.left_out] == ["cuda"]


def test_an_environment_of_which_the_package_index_has_everything_needs_no_conda(tmp_path):
    # As in https://github.com/CompVis/stable-diffusion, where pip brings the rest.
    files = environment(
        "pip=20.3", "cudatoolkit=11.3", "pytorch=2.1.0", "torchvision=0.16.0", "numpy=1.19.2", "opencv",
        channels="[pytorch, defaults]", pip=("omegaconf==2.1.1",),
    )  # fmt: skip
    found = read(tmp_path, files)
    assert (found.conda, found.left_out) == ((), ())
    assert sorted(asked(found).values()) == [
        "numpy==1.19.2",
        "omegaconf==2.1.1",
        "opencv-python",
        "torchvision==0.16.0",
    ]
    assert list(limits(found).values()) == ["torch==2.1.0"]


def test_where_conda_alone_has_one_package_it_brings_the_others_too(tmp_path):
    found = read(tmp_path, environment("numpy=1.26", "hmmer", "pytorch-lightning>=2", "pyg"))
    assert [(each.spec, each.name) for each in found.conda] == [("numpy=1.26", "numpy"), ("hmmer", "hmmer")]
    # Their recipes would bring conda's torch.
    assert sorted(asked(found).values()) == ["pytorch-lightning>=2", "torch-geometric"]


@pytest.mark.parametrize(
    ("written", "spec"),
    [
        pytest.param("hmmer", "hmmer", id="a name"),
        pytest.param("hmmer=3.4", "hmmer=3.4", id="a version"),
        pytest.param("hmmer==3.4", "hmmer==3.4", id="an exact version"),
        pytest.param("hmmer 3.4.*", "hmmer=3.4.*", id="a version behind a space"),
        pytest.param("hmmer >=3,<4", "hmmer>=3,<4", id="a range"),
        pytest.param("hmmer=3.4=h1234_0", "hmmer=3.4=h1234_0", id="a build"),
        pytest.param("bioconda::hmmer", "bioconda::hmmer", id="a channel"),
        pytest.param('"hmmer[version=3]"', "hmmer", id="brackets"),
    ],
)
def test_a_package_of_conda_is_passed_on_as_it_is_written(tmp_path, written, spec):
    assert [each.spec for each in read(tmp_path, environment(written)).conda] == [spec]


@pytest.mark.parametrize(
    ("channels", "expected", "problems"),
    [
        pytest.param("[pytorch, nvidia, bioconda]", ("bioconda",), [], id="those of torch alone go"),
        pytest.param("[https://c.example.org/my]", ("https://c.example.org/my",), [], id="by address"),
        pytest.param(
            "[https://c.example.org/t/s3cret/my]", (), ["a conda channel that needs a login"], id="with a token"
        ),
        pytest.param('["a; rm -rf /"]', (), ["is not a conda channel"], id="no channel"),
    ],
)
def test_channels_are_those_of_the_file(tmp_path, channels, expected, problems):
    found = read(tmp_path, environment("hmmer", channels=channels))
    assert found.conda_channels == expected
    assert all(shown in problem for shown, problem in zip(problems, unread(found).values(), strict=True))
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize("spec", ["hmmer$(id)", "hmmer;id", 'hmmer"', "hmmer`id`"])
def test_a_spec_that_no_file_may_hold_is_named(tmp_path, spec):
    found = read(tmp_path, {"environment.yml": f"dependencies:\n  - '{spec}'\n"})
    assert (found.conda, list(unread(found))) == ((), ["environment.yml:2"])


# Exported on Windows, as https://github.com/IDEA-Research/GroundingDINO/blob/main/environment.yaml was.
EXPORT = environment(
    "addict=2.4.0=pyhd8ed1ab_2", "pytorch=2.0.1=py3.9_cuda11.8_cudnn8_0", "icu=70.1=h0e60522_0", "opencv=4.5.3=py39h832f523_8",
    "pytz=2023.3.post1=pyhd8ed1ab_0", "tzdata=2023c=h71feb2d_0", "vs2015_runtime=14.36.32532=h05e6639_17",
    pip=("opencv-python==4.8.0.76",),
)  # fmt: skip


def test_an_export_of_another_system_gives_way_to_the_project_s_other_files(tmp_path):
    found = read(tmp_path, EXPORT | {"requirements.txt": "addict\n", "setup.py": ""})
    assert (found.tool, asked(found)) == (PackageManager.PIP, {"requirements.txt:1": "addict"})
    assert [(each.path, each.because) for each in found.left_out] == [("environment.yml", "it was exported on Windows")]


def test_of_an_export_of_another_system_alone_the_package_index_brings_what_it_has(tmp_path):
    found = read(tmp_path, EXPORT)
    assert (found.tool, found.conda) == (PackageManager.CONDA, ())
    assert sorted(asked(found).values()) == ["addict==2.4.0", "opencv-python==4.8.0.76", "pytz==2023.3.post1", "tzdata"]
    assert list(limits(found).values()) == ["torch==2.0.1"]
    assert [each.what for each in found.left_out] == ["conda's own packages"]


@pytest.mark.parametrize("package", ["libcxx=14", "pywin32 ; x", "vcpkg=1=2", "appnope"])
def test_packages_that_only_look_foreign_leave_an_environment_as_it_is(tmp_path, package):
    assert read(tmp_path, environment("hmmer", package)).left_out == ()


HEADER = "# This file may be used to create an environment using:\n# $ conda create --name <env> --file <this file>\n"


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        pytest.param(f"{HEADER}# platform: linux-64\n", [], id="with its header"),
        pytest.param("", [], id="without one"),
        pytest.param(f"{HEADER}# platform: osx-64\n", ["it was exported on osx-64"], id="of another system"),
    ],
)
def test_a_list_that_conda_exported_is_read_as_its_environment(tmp_path, text, left_out):
    lines = "numpy=1.26.4=py310h_0\npython=3.10.4=h12debd9_0\npytorch=2.1.0=cuda_0\nsacrebleu=2.3=pypi_0\n"
    found = read(tmp_path, {"requirements.txt": text + lines})
    assert sorted(asked(found).values()) == ["numpy==1.26.4", "sacrebleu==2.3"]
    assert (list(limits(found).values()), found.python[0].specifier) == (["torch==2.1.0"], "==3.10.4")
    assert ([each.because for each in found.left_out], found.lists, unread(found)) == (left_out, (), {})
