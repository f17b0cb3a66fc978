"""Packages that a guide has its reader install, where a project has no dependency file."""

import time

import pytest

from devkit.facts.dependencies import PackageManager, RequirementRole
from devkit.probe.dependencies.steps import MAX_DEPTH, list_steps
from devkit.probe.host import LocalHost
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.reader import read_local_guide, read_local_imports
from devkit.solver.project import list_choices
from tests.cases import cases
from tests.engine.test_dependencies import CONTENT_HASH, POETRY

from .test_dependencies import asked, limits, read

# After https://github.com/microsoft/Swin-Transformer/blob/main/get_started.md.
GUIDE = """# Get started
### Install
```bash
conda create -n swin python=3.7 -y
conda install pytorch==1.8.0 torchvision==0.9.0 cudatoolkit=10.2 -c pytorch
pip install timm==0.4.12
```
- `pip3 install opencv-python==4.4.0.46 \\
    "termcolor==1.1.0" pyyaml`, or $ pip install timm
```
# for the CPU
pip install openvino
```
pip install git+https://github.com/microsoft/tutel@main
pip install -r ../elsewhere.txt && pip install -e . --no-deps && pip install --upgrade pip
## Optional: apex
pip install apex
"""


def test_the_first_guide_that_installs_packages_says_what_a_project_needs(tmp_path):
    files = {"README.md": "See get_started.md\n", "get_started.md": GUIDE, "docs/install.md": "pip install other\n"}
    found = read(tmp_path, files | {"train.py": "import torch\n"})
    assert (found.tool, found.because) == (PackageManager.PIP, "get_started.md has its reader install packages")
    assert found.files == ("get_started.md",)
    assert limits(found) == {"get_started.md:5": "torch>=1.8.0"}
    wanted = [f"{need.name}{need.specifier}" for need in found.needs if need.role is RequirementRole.GENERATED]
    assert wanted == ["torchvision", "timm==0.4.12", "opencv-python==4.4.0.46", "termcolor==1.1.0", "pyyaml"]
    assert [need.line for need in found.needs] == [5, 5, 6, 8, 8, 8]
    assert [(each.what, each.line) for each in found.left_out] == [("git+https://github.com/microsoft/tutel@main", 14)]


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"requirements.txt": "einops\n"}, id="a list"),
        pytest.param({"environment.yml": "dependencies: [numpy]\n"}, id="an environment of conda"),
        pytest.param({"setup.py": "from setuptools import setup\nsetup(install_requires=read())\n"}, id="computed"),
        pytest.param({"requirements.txt": "!!\n"}, id="a list that says nothing"),
        pytest.param({"pyproject.toml": '[project]\nname = "wrong"\n'}, id="the project itself"),
        pytest.param({"setup.py": "from setuptools import setup\nsetup(name='wrong')\n"}, id="itself by setup.py"),
    ],
)
def test_a_guide_is_not_read_beside_a_dependency_file(tmp_path, files):
    found = read(tmp_path, {**files, "run.py": "", "README.md": "pip install wrong\n"})
    assert "wrong" not in [need.name for need in found.needs]


@pytest.mark.parametrize(
    "line", ["pip install", "pip install <PACKAGE>", "pip install $NAME", "pip install 'a b'", "installed pip"]
)
def test_words_that_are_no_package_are_no_requirement(tmp_path, line):
    assert asked(read(tmp_path, {"README.md": f"{line}\n", "run.py": ""})) == {}


def test_a_project_of_another_language_gets_nothing_of_its_guide(tmp_path):
    assert asked(read(tmp_path, {"README.md": "pip install maturin\n", "Cargo.toml": "", "src/main.rs": ""})) == {}


PROJECT = """[project]
name = "Fold-It"
dependencies = ["numpy"]
optional-dependencies = {cuda = ["cuequivariance"], all = ["torch==2.6.0"], dev = ["ruff"]}
"""


@cases(
    "guide, extras",
    {
        # https://github.com/jwohlwend/boltz/blob/main/README.md
        "its name": ("Install with\n```\npip install fold_it[cuda] -U\n```\n", ("cuda",)),
        # https://github.com/black-forest-labs/flux/blob/main/README.md
        "the first command": ('cd x\npip install -e ".[all]"\npip install -e ".[cuda]"\n', ("all",)),
        "several, and one that is not there": ("pip install 'numpy>=1' ./[cuda,dev,gone]\n", ("cuda", "dev")),
        "uv": ("uv sync --extra cuda --extra=dev\n", ("cuda", "dev")),
        "uv, a synopsis": ("    uv sync [--extra cuda] [--extra dev]\n", ()),
        "uv, every extra": ("uv sync --all-extras --index https://a.example\n", ("cuda", "all", "dev")),
        "without extras first": ("pip install -e .\npip install -e .[cuda]\n", ()),
        "another purpose": ("## Development\npip install -e .[dev]\n", ()),
        "two purposes": ("## Quick start / Demo\npip install -e .[cuda]\n", ("cuda",)),
        "llm-foundry": ("## With Docker\npip install .[dev]\n## Without Docker\npip install .[cuda]\n", ("cuda",)),
        "other projects": ("pip install other[cuda] ./part[cuda] ../[cuda]\n", ()),
    },
)
def test_a_project_gets_the_extras_that_its_guide_installs_first(tmp_path, guide, extras):
    found = read(tmp_path, {"pyproject.toml": PROJECT, "README.md": guide})
    assert set(found.extras) == set(extras)
    assert bool(found.extras_origin) == bool(extras)
    shown = [line for line in list_choices(found) if line.startswith("installed with")]
    assert all(f"as {found.extras_origin} says" in line for line in shown) and bool(shown) == bool(extras)
    chosen = read(tmp_path, {}, extras=("dev",))
    assert (chosen.extras, chosen.extras_origin) == (("dev",), "")


def test_a_guide_s_address_of_a_known_package_is_taken_and_a_commit_before_none(tmp_path):
    # https://github.com/QwenLM/Qwen2.5-VL/blob/main/README.md
    source = "git+https://github.com/huggingface/transformers"
    guide = f"pip install {source} accelerate\npip install {source}@f3f6c865 accelerate\npip install {source}\n"
    found = read(
        tmp_path, {"README.md": f"{guide}pip install git+https://x.example/a/flash-attn {source}-x\n", "run.py": ""}
    )
    assert [(need.text, need.line) for need in found.needs] == [
        ("accelerate", 1),
        (f"transformers @ {source}@f3f6c865", 2),
    ]
    assert [each.line for each in found.left_out] == [4, 4]


def test_an_extra_that_only_the_build_knows_is_not_the_guide_s_to_choose(tmp_path):
    setup = "from setuptools import setup\nsetup(name='x', install_requires=['numpy'], extras_require={'gpu': %s, 'all': []})\n"
    files = {"README.md": "pip install -e .[gpu]\n", "setup.py": setup % "make()"}
    assert read(tmp_path, files).extras == ()
    assert read(tmp_path, {"setup.py": setup % "list(['flash-attn'])"}).extras == ("gpu",)


# After https://github.com/ByteDance-Seed/Bagel and https://github.com/hpcaitech/Open-Sora, whose programs import flash-attn at once.
BESIDE = """## Quick Start
```bash
conda create -n bagel python=3.10 -y
pip install -r requirements.txt
pip install flash_attn==2.5.8 --no-build-isolation
pip install open-clip-torch==2.30 "huggingface_hub[cli]"
```
### Demo
pip install gradio
"""


def guided(folder, files):
    found = read(folder, files)
    imports = read_local_imports(str(folder), found)
    return (
        [need.text for need in read_local_guide(str(folder), found)],
        {each.name: each.guide.text if each.guide else "" for each in imports},
    )


def test_what_a_guide_installs_beside_a_list_is_known_and_so_is_what_programs_import_of_it(tmp_path):
    files = {"requirements.txt": "torch==2.5.1\nnumpy\n", "README.md": BESIDE}
    programs = {"model/attention.py": "import numpy\nfrom flash_attn import flash_attn_func\nimport pandas\n"}
    named, imports = guided(tmp_path, files | programs)
    # The author's flash-attn was compiled for hours perhaps: later ones may have a wheel.
    assert named == ["flash-attn>=2.5.8,<3"]
    found = read(tmp_path, files | programs)
    assert {need.text for need in found.needs if need.path == "README.md"} == {
        "open-clip-torch==2.30",
        "huggingface-hub[cli]",
    }
    assert imports == {"flash-attn": "flash-attn>=2.5.8,<3", "pandas": ""}


def test_a_module_that_no_table_has_is_of_the_package_that_the_guide_names(tmp_path):
    files = {"requirements.txt": "torch\n", "README.md": "pip install very-own-kernels==0.3\n"}
    assert guided(tmp_path, files | {"run.py": "import very_own_kernels\n"})[1] == {
        "very-own-kernels": "very-own-kernels==0.3"
    }


@pytest.mark.parametrize(
    ("files", "because"),
    [
        ({"run.py": "try:\n    import flash_attn\nexcept ImportError:\n    pass\n"}, "it may fail"),
        ({"run.py": "def fast():\n    import flash_attn\n"}, "it is imported when it is used"),
        ({"run.py": "", "examples/fast.py": "import flash_attn\n"}, "an example imports it"),
        (
            {"run.py": "import flash_attn\n", "pyproject.toml": "[project]\nname='a'\ndependencies=['flash-attn']"},
            "named",
        ),
    ],
)
def test_what_programs_do_without_is_not_imported_at_once(tmp_path, files, because):
    assert guided(tmp_path, {"requirements.txt": "torch\n", "README.md": BESIDE, **files})[1] == {}, because


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("conda create -n bagel python=3.10 -y", "3.10"),
        ("$ conda create --name a python==3.10.9", "3.10"),
        ('mamba create -y -n a -c conda-forge "python=3.11" cmake', "3.11"),
        ("uv venv --python 3.12 .venv", "3.12"),
        ("uv venv -p python3.11", "3.11"),
        ("python3.11 -m venv .venv", "3.11"),
        ("virtualenv -p python3.9 -m venv", "3.9"),
        ("python3 -m venv .venv", None),
        ("conda create -n a # python=3.10", None),
        ("conda create -n a", None),
        ("Python 3.10 is recommended", "3.10"),
        ("Python version `3.10.8`.", "3.10"),
        ("Python 3.10 is not supported", None),
        ("![](https://img.shields.io/badge/Python-3.10-blue)", None),
        ("### Docker\nconda create -n bagel python=3.10", None),
    ],
)
def test_the_python_of_a_guides_environment(tmp_path, line, python):
    found = read(tmp_path, {"requirements.txt": "torch\n", "README.md": f"# Us\n{line}\nuv venv\n"}).guide_python
    assert (found and (found.specifier, found.origin)) == (python and (f"=={python}.*", "README.md:2"))


@pytest.mark.parametrize(
    ("line", "specifier"),
    [("Python >= 3.9", ">=3.9"), ("- Python 3.10+ and uv", ">=3.10"), ("**Python**: 3.8 to 3.11", ">=3.8,<3.12")],
)
def test_a_guide_may_ask_for_several_pythons(tmp_path, line, specifier):
    files = {"requirements.txt": "torch\n", "README.md": f"{line}\n"}
    assert read(tmp_path, files).guide_python.specifier == specifier
    made = {"README.md": f"{line}\nuv venv --python 3.12\n"}
    assert read(tmp_path, made).guide_python.specifier == "==3.12.*", "the environment that it makes goes before"


@pytest.mark.parametrize(
    "command",
    ["conda create ", "uv venv ", "Python version ", "conda create python ", "virtualenv -p ", "numpy 1.", "a1.", "(`"],
)
def test_a_guide_of_one_endless_line_takes_linear_time(tmp_path, command):
    (tmp_path / "README.md").write_text(command * (100_000 // len(command)))
    (tmp_path / "requirements.txt").write_text("torch\n")
    started = time.thread_time()
    assert read(tmp_path, {}).guide_python is None
    assert time.thread_time() - started < 2


# One reading order: the guide's installation section, then files by their names.

INTERN = """## Installation
```bash
pip install -r requirements/torch.txt
pip install -r requirements/runtime.txt
pip install -r requirements/test.txt
```
## For the CPU
pip install -r requirements/cpu.txt
"""
SOCIAL = """# SocialED
## Install
From source:
```
pip install -r requirements.txt
```
"""


def test_lists_that_one_section_installs_are_installed_together(tmp_path):
    names = ("torch", "runtime", "test", "cpu")
    files = {f"requirements/{name}.txt": f"of-{name}\n" for name in names} | {"README.md": INTERN}
    found = read(tmp_path, files)
    assert [need.name for need in found.needs] == ["of-torch", "of-runtime"]
    assert found.because == "README.md:3 installs requirements/torch.txt and requirements/runtime.txt"
    assert found.available.requirements == ("requirements/cpu.txt", "requirements/test.txt")


STEPS = """# Splats
## 1. Installation
### 1.1. Environment
conda create -yn gspl -c pytorch \\
  python=3.9 numpy=1.26.4
### Step 2: PyTorch
pip install -r torch.txt
### 1.3 The rest
pip install -r rest.txt
### With conda
pip install -r another.txt
## 2. Training
pip install -r training.txt
"""


def test_a_wheel_is_the_release_that_its_name_says(tmp_path):
    wheels = (
        "https://x.example/einops-0.8.0-py3-none-any.whl torch-2.6.0+cu126-cp312-cp312-linux_x86_64.whl unknown-1-py3-none-any.whl",
        "./flash_attn-2.7.4.post1%2Bcu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64.whl",
    )
    found = read(tmp_path, {"README.md": "".join(f"pip install {each}\n" for each in wheels), "run.py": ""})
    assert [need.text for need in found.needs] == ["einops==0.8.0", "torch>=2.6.0", "flash-attn==2.7.4.post1"]
    assert [each.what for each in found.left_out] == ["unknown-1-py3-none-any.whl"]


def test_what_a_target_of_make_installs_is_what_its_recipe_says(tmp_path):
    makefile = "UV ?= uv\nsetup: deps ## all\n\t@$(UV) sync --extra cuda --extra dev\n\tmake setup\nsetup-cpu:\n\tuv sync --extra all\n"
    guide = "make sure that\nmake setup-cpu\nmake setup  # once\n"
    found = read(tmp_path, {"pyproject.toml": PROJECT, "README.md": guide, "Makefile": makefile})
    assert (set(found.extras), found.extras_origin) == ({"cuda", "dev"}, "Makefile:3")
    assert len(list_steps(ProjectFiles(LocalHost(), str(tmp_path)), "README.md")) == MAX_DEPTH


def test_numbered_steps_below_one_heading_are_taken_together(tmp_path):
    names = ("torch", "rest", "another", "training")
    found = read(tmp_path, {f"{name}.txt": f"of-{name}\n" for name in names} | {"README.md": STEPS})
    assert [need.text for need in found.needs] == ["of-torch", "of-rest", "numpy==1.26.4"]
    assert (found.guide_python.specifier, found.guide_python.origin) == ("==3.9.*", "README.md:4")


KOOPMAN = (
    "from setuptools import setup\nsetup(name='koopman', install_requires=['mamba-ssm>=2'], python_requires='>=3.10')\n"
)


def test_the_folder_that_a_guide_enters_is_where_its_commands_read_and_install(tmp_path):
    guide = (
        "# Install\n```\ncd ours\ncd active\npip install -r requirements.txt\ncd ../kernels && pip install -e .\n```\n"
    )
    files = {
        "active/requirements.txt": "numpy\n",
        "kernels/setup.py": KOOPMAN,
        "older/requirements.txt": "tokenizers==0.8.1rc1\n",
    }
    found = read(tmp_path, files | {"README.md": guide})
    assert [(need.text, need.origin) for need in found.needs] == [
        ("numpy", "active/requirements.txt:1"),
        ("mamba-ssm>=2", "kernels/setup.py:2"),
    ]
    assert [(each.place, each.path, each.line) for each in found.local] == [("kernels", "README.md", 6)]


BUILT = '[project]\nname = "part"\nversion = "1"\n[build-system]\nrequires = ["setuptools"]\n'


def test_an_address_of_the_own_repository_is_a_folder_of_the_project(tmp_path):
    (folder := tmp_path / "ml-aim").mkdir()
    at = "#subdirectory="
    guide = f"## Setup\npip install git+https://x.example/a/ml-aim.git@main{at}one\npip install git+https://x.example/a/b{at}two\n"
    guide += "pip install -e two_x>=1\npip install three\n"
    found = read(
        folder,
        {"README.md": guide, "one/pyproject.toml": BUILT, "two-x/pyproject.toml": BUILT, "three/setup.py": KOOPMAN},
    )
    assert [each.place for each in found.local] == ["one", "two-x"]
    assert [each.name for each in found.needs] == ["three"]
    assert [each.what for each in found.left_out] == [f"git+https://x.example/a/b{at}two"]


def test_what_the_guide_builds_without_isolation_is_marked_with_its_line(tmp_path):
    address = "fused-grid @ git+https://example.org/fused-grid"
    flag = "--no-build-isolation"
    guide = (
        f"# Install\npip install -r list.txt\npip install own-ops {flag}\n## More\n`pip install -r list.txt {flag}`\n"
    )
    found = read(tmp_path, {"list.txt": f"numpy\n{address}\n", "README.md": guide, "other.txt": ""})
    assert {need.name: need.unisolated_by for need in found.needs} == {
        "numpy": "README.md:5",
        "fused-grid": "README.md:5",
        "own-ops": "README.md:3",
    }
    assert found.lists == (), "an installer would build what the list names with isolation"


def test_the_only_package_below_a_folder_that_says_nothing_is_the_project(tmp_path):
    found = read(tmp_path, {"fast/setup.py": KOOPMAN, "bench.py": "import wandb\n"})
    assert ([need.text for need in found.needs], found.because) == (["mamba-ssm>=2"], "fast is the only package here")
    assert [each.specifier for each in found.python] == [">=3.10"]
    assert [each.place for each in found.local] == ["fast"]
    assert not read(tmp_path, {"slow/setup.py": KOOPMAN}).needs, "of two, none is chosen"


def test_the_list_of_the_guide_goes_before_an_environment_of_another_purpose(tmp_path):
    environment = "name: sphinx-env\ndependencies: [python=3.8, {pip: [-r docs/requirements.txt]}]\n"
    files = {"environment.yml": environment, "requirements.txt": "numpy\n", "docs/requirements.txt": "sphinx\n"}
    found = read(tmp_path, files | {"README.md": SOCIAL})
    assert [need.name for need in found.needs] == ["numpy"]
    assert (found.files, found.set_aside) == (("requirements.txt",), ("environment.yml",))
    assert found.without_guide is not None
    assert "environment.yml" in found.without_guide.files


def test_an_environment_that_the_guide_names_counts_whatever_its_name(tmp_path):
    files = {
        "conda_environment.yaml": "dependencies: [python=3.9, {pip: [einops==0.4]}]\n",
        "train.py": "import torch\n",
    }
    found = read(tmp_path, files | {"README.md": "# Install\n`mamba env create -f conda_environment.yaml`\n"})
    assert (found.tool, [need.text for need in found.needs]) == (PackageManager.CONDA, ["einops==0.4"])


def test_a_script_that_the_guide_runs_says_what_is_installed_and_one_for_the_cpu_does_not(tmp_path):
    script = "#!/bin/bash\nset -e\n# pip install old\npip install -r $EXTRA\npip install torch==2.6 \\\n  e3nn wandb\npip install -e .\n"
    files = {
        "setup_env.sh": script,
        "setup_cpu.sh": "pip install nothing-else\n",
        "environment.yml": "dependencies: [abc]\n",
    }
    guide = "# Install\n```\nbash setup_cpu.sh\nbash setup_env.sh\n```\n"
    found = read(tmp_path, files | {"README.md": guide, "run.py": ""})
    assert [need.text for need in found.needs] == ["torch>=2.6", "e3nn", "wandb"]
    assert (found.because, found.set_aside) == ("setup_env.sh:5 installs the packages", ("environment.yml",))


@pytest.mark.parametrize(
    "guide", ["uv sync\n", "sh go.sh\n", "pip install -e .\n", "# Optional\npip install -r requirements.txt\n"]
)
def test_a_guide_that_names_no_file_leaves_the_choice_to_their_names(tmp_path, guide):
    files = {"pyproject.toml": '[project]\nname = "a"\ndependencies = ["numpy"]\n[tool.uv]\n', "README.md": guide}
    files["go.sh"] = "pip install uv\nuv sync\n"
    found = read(tmp_path, files | {"uv.lock": "version = 1\n", "requirements.txt": "old\n"})
    assert (found.tool, found.lock, found.without_guide) == (PackageManager.UV, "uv.lock", None)


def test_a_lock_counts_only_if_it_fits_its_manifest(tmp_path):
    manifest = '[tool.poetry]\nname = "a"\n[tool.poetry.dependencies]\npython = "^3.11"\n'
    lock = '[[package]]\nname = "x"\nversion = "1"\n[metadata]\ncontent-hash = "{}"\n'
    # What Poetry 2.2 wrote for a manifest; tests/engine has it read by Poetry itself.
    fits = lock.format(CONTENT_HASH)
    assert read(tmp_path, {"pyproject.toml": POETRY, "poetry.lock": fits}).lock == "poetry.lock"
    found = read(tmp_path, {"pyproject.toml": manifest, "poetry.lock": lock.format("0" * 64)})
    assert (found.tool, found.lock, found.set_aside) == (PackageManager.POETRY, "", ("poetry.lock",))


def test_a_folder_of_the_project_is_the_package_that_a_requirement_names(tmp_path):
    files = {
        "setup.py": "from setuptools import setup\nsetup(name='rf', install_requires=['torch', 'se3-transformer'])\n",
        "env/SE3Transformer/setup.py": "from setuptools import setup\nsetup(name='se3-transformer')\n",
    }
    found = read(tmp_path, files)
    assert [need.name for need in found.needs] == ["torch"]
    assert [each.place for each in found.local] == ["env/SE3Transformer"]


def test_packages_of_javascript_are_named_where_the_guide_installs_them(tmp_path):
    files = {"requirements.txt": "numpy\n", "web/package.json": "{}", "README.md": "# Run\n```\nnpm ci\n```\n"}
    assert [(each.what, each.path) for each in read(tmp_path, files).left_out] == [
        ("packages of JavaScript", "web/package.json")
    ]
    assert not read(tmp_path, {"README.md": "pip install -r requirements.txt\n"}).left_out


STATED = """# Networks and their packages for many tasks
We tested numpy 9.9.
## Requirements
- tensorflow 1.6.0
- python 3.5.3
* [PyTorch](https://pytorch.org) (>= 1.4.0), or scikit-learn 0.19.0
| `pandas` | 1.5 or newer |
Keras version 2.2.x, unheard-of 1.0
It runs without matplotlib 2.0.0
pip install pyyaml==9.9
### Details
numpy (v1.14)
## Results
With pillow 9.9, accuracy 0.95
'gym==0.16.0', 'torch==1.2.0+cu92'
## Docker
tqdm==9.9
"""


def test_versions_that_a_guide_states_are_known_with_their_line(tmp_path):
    found = read(tmp_path, {"README.md": STATED, "requirements.txt": "tqdm\npyyaml\nscipy==1.0\n", "run.py": ""})
    assert [f"{need.line} {need.text}" for need in found.stated] == [
        "10 pyyaml==9.9",
        "4 tensorflow==1.6.0",
        "6 torch>=1.4.0",
        "6 scikit-learn==0.19.0",
        "7 pandas>=1.5",
        "8 keras==2.2.*",
        "12 numpy==1.14.*",
        "15 gym==0.16.0",
    ]
    assert asked(found).keys() == {"requirements.txt:1", "requirements.txt:2", "requirements.txt:3"}


def test_a_script_whose_name_says_that_it_installs_is_a_guide(tmp_path):
    script = 'pip install "jax[tpu]==0.4.6" -f https://a\npip install -r requirements\n'
    files = {"prepareVM.sh": script, "requirements": "flax==0.6.3\n", "run.py": ""}
    found = read(tmp_path, files | {"README.md": "# On TPU\nsh prepareVM.sh\n"})
    assert asked(found) == {"requirements:1": "flax==0.6.3", "prepareVM.sh:1": "jax"}
    assert [each.because for each in found.not_followed] == ["the plan chooses the places of packages"]
    assert [each.text for each in found.stated] == ["jax==0.4.6"]
    assert found.because == "prepareVM.sh:2 installs requirements"
    listed = read(tmp_path, {"requirements.txt": "numpy\n", "prepareVM.sh": "pip install wrong\n"})
    assert asked(listed) == {"requirements.txt:1": "numpy"}


def test_what_a_script_says_about_itself_is_not_run(tmp_path):
    script = "cat <<'EOF'\nUsage: bash setup.sh [--check]\nEOF\npip install timm\n"
    found = read(tmp_path, {"README.md": "bash setup.sh\n", "setup.sh": script, "run.py": ""})
    assert asked(found) == {"setup.sh:4": "timm"}
    assert found.not_followed == ()


@cases(
    "files, is_own",
    {
        "an archive of a branch": ({}, True),
        "a remote": ({".git/config": '[remote "origin"]\n\turl = git@h.example:o/tool.git\n'}, True),
        "a submodule": ({".git/config": '[submodule "tool"]\n\turl = https://h.example/o/tool\n'}, False),
    },
)
def test_the_clone_of_a_guide_is_the_project_by_its_folder_or_its_remote(tmp_path, files, is_own):
    folder = tmp_path / ("other" if files else "tool-main")
    folder.mkdir()
    guide = "git clone https://h.example/o/tool\ncd tool\npip install -r more.txt\n"
    found = read(folder, {"README.md": guide, "more.txt": "timm\n", "run.py": "", **files})
    assert bool(found.needs) is is_own


def test_mim_installs_what_pip_does(tmp_path):
    found = read(tmp_path, {"README.md": "pip install -U openmim\nmim install 'mmcv-full==1.6.0'\n", "run.py": ""})
    assert asked(found) == {"README.md:1": "openmim", "README.md:2": "mmcv-full==1.6.0"}


# What each command means by its folder, its platform, its place among others, and its clone.

TWO = {"a/setup.py": KOOPMAN, "b-c/setup.py": "setup(name='b')\n", "requirements.txt": "numpy\n"}
MEANT = r"""
pip install -r requirements.txt\npip install ./a ./b_c => numpy mamba-ssm => a b-c =>
pip install -r requirements.txt\ncd a\npython setup.py develop => numpy mamba-ssm => a =>
cd D:\\me\\us\n.\\env\\pip install -r .\\requirements.txt -e .\\a => numpy mamba-ssm => a =>
- macOS: `pip install x`\n- Linux/macOS: `pip install timm` => timm => => 1 says macOS
| macOS | `pip install x` |\n| Linux | `pip install timm` | => timm => => 1 says macOS
## Windows\n### Steps\npip install x\n## Linux\npip install timm => timm => => 1 says Windows
### Conda\npip install timm\n### pip (recommended)\npip install x => timm => => 1 shows another way
### With pip\npip install peft\n### From source\npip install timm => peft timm => =>
**Option 1**\n`pip install timm`\n**Option 2**\n`pip install x` => timm => => 1 shows another way
### Conda\nconda create -n e python=3.10\n### pip\npip install timm\n### uv\nuv venv => timm => =>
```\npip install timm # or x\n# or\npip install x\n\npip install peft\n``` => timm peft => => 3 says or
If you want demos:\n```\npip install x\n```\nThen:\n```\npip install timm\n``` => timm => => 1 says If you want
git clone https://h.example/o/x.git\ncd x && pip install -r r.txt\ncd ..\npip install timm => timm => => it is a file of another repository
pip install timm -f https://h.example/torch-1.7 => timm => => the plan chooses the places of packages
conda env create -f e.yml\npip install timm => timm => => the project has no e.yml
```\n# one of cpu | cu126 | cu128\npip install timm\n``` => timm => =>
bash more.sh\nbash tools/setup.sh\nuv run ipython kernel install x\npip install timm => timm => => the project has no such file
"""


@pytest.mark.parametrize("row", MEANT.strip().splitlines())
def test_a_command_means_what_its_place_says(tmp_path, row):
    guide, needs, local, skipped = map(str.strip, row.split("=>"))
    files = {"README.md": guide.encode().decode("unicode_escape") + "\n", "run.py": ""}
    found = read(tmp_path, files | (TWO if local else {}))
    assert [need.name for need in found.needs] == needs.split()
    assert [each.place for each in found.local] == local.split()
    assert [each.because.removeprefix("README.md:") for each in found.not_followed] == [skipped][: bool(skipped)]
    shown = [line for line in list_choices(found) if line.startswith("not followed: README.md:")]
    assert len(shown) == len(found.not_followed)
    assert all(line.endswith(f", because {each.because}") for line, each in zip(shown, found.not_followed, strict=True))


def test_the_name_of_the_clone_before_a_path_is_the_project(tmp_path):
    (folder := tmp_path / "our-nets").mkdir()
    guide = "git clone https://h.example/o/our_nets.git\ncd our_nets/back\npip install -r requirements.txt\n"
    found = read(folder, {"README.md": guide, "back/requirements.txt": "numpy\n", "list.txt": "timm\n"})
    assert [need.origin for need in found.needs] == ["back/requirements.txt:1"]
    found = read(folder, {"README.md": "pip install -r our-nets/list.txt\n"})
    assert [need.origin for need in found.needs] == ["list.txt:1"]


def test_scripts_run_one_another_and_install_clones_by_their_address(tmp_path):
    inner = 'cd $(dirname "$0")\ngit clone git@h.example:o/own-ops.git\npip install -e ./own-ops timm\n'
    inner += "cd ..\n"
    inner += "git clone https://h.example/o/b --depth 1\npip install ./b/py\ncd b\n"
    inner += "git clone https://h.example/o/c\npip install ./c\ngit checkout v1\npip install .\n"
    inner += "apt-get install -y sox\n"
    files = {
        "sub/all.sh": "bash parts/install_ops.sh\n",
        "sub/parts/install_ops.sh": inner,
        "run.py": "",
        "setup_cu11.sh": "pip install timm==1",
    }
    found = read(tmp_path, files | {"README.md": "# Install\nbash sub/all.sh\n"})
    assert [(need.name, need.origin) for need in found.needs] == [("timm", "sub/parts/install_ops.sh:3")]
    assert [(each.what.removeprefix("git+https://h.example/o/"), each.line) for each in found.left_out] == [
        ("own-ops.git", 3),
        ("b#subdirectory=py", 6),
        ("c", 9),
        ("b@v1", 11),
    ]
    assert [(each.name, each.path) for each in found.system] == [("sox", "sub/parts/install_ops.sh")]
    assert not found.stated, "the guide does not run that script"


def test_a_submodule_that_the_guide_installs_counts_before_it_is_fetched(tmp_path):
    modules = '[submodule "x"]\n\tpath = sub/x\n\turl = https://h.example/x\n'
    (tmp_path / "sub/x").mkdir(parents=True)
    guide = "pip install -r requirements.txt\npip install -e sub/x\n"
    found = read(tmp_path, {".gitmodules": modules, "requirements.txt": "numpy\n", "README.md": guide})
    assert [(each.place, each.line) for each in found.local] == [("sub/x", 2)]
