"""A project's requirements: which files, which formats, and which lines an installer gets as they are."""

import json
from dataclasses import replace

import pytest

from devkit.facts.dependencies import NO_DEPENDENCIES, DependencyChoice, LocalPackage, PackageManager, RequirementRole
from devkit.probe.dependencies.conda import convert_conda_version
from devkit.probe.dependencies.manifests import convert_poetry_version
from devkit.probe.dependencies.requirements import COMPUTED
from devkit.probe.host import LocalHost
from devkit.probe.project import reader
from devkit.probe.project.reader import read_local_dependencies
from tests.cases import cases


def read(folder, files, **choice):
    """What devkit reads of a project that holds these files, with the extras, groups and lists that were chosen."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return reader.read_dependencies(LocalHost(), project=str(folder), choice=DependencyChoice(**choice))


def asked(found):
    """What the image installs: origin -> requirement."""
    return {need.origin: need.text for need in found.needs if need.role is not RequirementRole.CONSTRAINT}


def limits(found):
    """What only limits a version: origin -> requirement."""
    return {need.origin: need.text for need in found.needs if need.role is RequirementRole.CONSTRAINT}


def unread(found):
    return {each.origin: each.problem for each in found.unread}


PROJECT = '[project]\nname = "p"\nversion = "1"\n'


@cases(
    "files, tool, because",
    {
        "uv's lock first": ({"uv.lock": "", "poetry.lock": ""}, PackageManager.UV, "the project has uv.lock"),
        "a lock before a list": ({"poetry.lock": "", "requirements.txt": ""}, PackageManager.POETRY, "poetry.lock"),
        "PDM's lock": ({"pdm.lock": "", "pyproject.toml": PROJECT}, PackageManager.PDM, "pdm.lock"),
        "a Pipfile": ({"Pipfile": ""}, PackageManager.PIPENV, "the project has Pipfile"),
        "conda": ({"environment.yml": "", "requirements.txt": ""}, PackageManager.CONDA, "environment.yml"),
        "old Poetry": ({"pyproject.toml": "[tool.poetry.dependencies]\n"}, PackageManager.POETRY, "[tool.poetry]"),
        "settings of uv": ({"pyproject.toml": "[tool.uv]\n"}, PackageManager.UV, "[tool.uv]"),
        "a list": ({"pyproject.toml": "[tool.uv]\n", "requirements.txt": ""}, PackageManager.PIP, "requirements.txt"),
        "the source of a list": ({"requirements.in": "a\n"}, PackageManager.PIP, "requirements.in"),
        "setup.py": ({"setup.py": ""}, PackageManager.PIP, "setup.py"),
        "a Python alone": ({".python-version": "3.12\n"}, PackageManager.NONE, "none of the project's files"),
    },
)
def test_the_tool_is_the_one_that_the_files_show(tmp_path, files, tool, because):
    found = read(tmp_path, files)
    assert found.tool is tool
    assert because in found.because


@pytest.mark.parametrize("files", [{}, {"train.py": "import torch"}, {"docs/requirements.txt": "sphinx"}], ids=len)
def test_a_project_without_such_files_needs_nothing(tmp_path, files):
    assert replace(read(tmp_path, files), framework_because="") == NO_DEPENDENCIES
    assert reader.read_dependencies(LocalHost(), project=str(tmp_path / "gone")) == NO_DEPENDENCIES


def test_a_list_for_pip_is_read_with_its_options_and_includes(tmp_path):
    found = read(
        tmp_path,
        {
            "requirements.txt": "# ours\n--extra-index-url https://me:pw@download.pytorch.org/whl/cu121\n"
            "-r more/base.txt\n"
            "-c limits.txt\nTorch==2.4.1+cu121  # pinned\nfoo[b,a]>=1 ; python_version < '3.12' \\\n"
            "    --hash=sha256:aa \\\n    --hash=sha256:bb\n-e .\n./libs/x\n"
            "git+https://token@example.org/a/thing.git@v1\nzip @ https://example.org/zip-1.tar.gz\n",
            "more/base.txt": "-r ../requirements.txt\nnumpy<2\n",
            "limits.txt": "transformers<5\n",
            "requirements-dev.txt": "pytest\n",
            "requirements-docs.txt": "sphinx\n",
        },
    )
    assert asked(found) == {
        "more/base.txt:2": "numpy<2",
        "requirements.txt:5": "torch==2.4.1+cu121",
        "requirements.txt:6": 'foo[a,b]>=1 ; python_version < "3.12"',
        "requirements.txt:11": "thing @ git+https://example.org/a/thing.git@v1",
        "requirements.txt:12": "zip @ https://example.org/zip-1.tar.gz",
        "requirements-dev.txt:1": "pytest",
    }
    assert limits(found) == {"limits.txt:1": "transformers<5"}
    assert found.files == ("requirements.txt", "more/base.txt", "limits.txt", "requirements-dev.txt")
    assert found.left_out == ()
    assert found.local == (LocalPackage("libs/x", "requirements.txt", 10),)
    assert found.available.requirements == ("requirements-docs.txt",)
    assert [(each.url, each.line) for each in found.indexes] == [("https://download.pytorch.org/whl/cu121", 2)]
    assert unread(found) == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        pytest.param("torch 2.4", "torch 2.4 is not a requirement", id="a space instead of =="),
        pytest.param("torch=2.4", "torch=2.4 is not a requirement", id="conda's way"),
        pytest.param("torch==" + "9" * 5000, "torch==99", id="a number that Python refuses"),
        pytest.param("-r gone.txt", "gone.txt: it does not exist", id="an include that is missing"),
        pytest.param("-r ../outside.txt", "../outside.txt: it is outside the project", id="an include out of it"),
        pytest.param("-r /etc/passwd", "/etc/passwd: it is outside the project", id="an absolute include"),
        pytest.param("-r https://example.org/r.txt", "it includes a file from the network", id="one of the network"),
        pytest.param("-r it$s.txt", "it$s.txt: a Dockerfile cannot carry this name", id="a name for shells"),
        pytest.param("https://e.org/a.zip ; python_version < '3'", "an address that", id="an address with a marker"),
        pytest.param("https://example.org/a.zip", "an address that does not show which package it is", id="an address"),
    ],
)
def test_a_line_that_says_no_requirement_is_named(tmp_path, line, problem):
    (tmp_path.parent / "outside.txt").write_text("secret==1\n")
    found = read(tmp_path, {"requirements.txt": f"numpy\n{line}\n"})
    assert list(unread(found)) == ["requirements.txt:2"]
    assert unread(found)["requirements.txt:2"].startswith(problem)
    assert asked(found) == {"requirements.txt:1": "numpy"}


def test_links_out_of_the_project_are_not_followed(tmp_path):
    (tmp_path / "outside.txt").write_text("secret==1\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/requirements.txt").symlink_to(tmp_path / "outside.txt")
    found = reader.read_dependencies(LocalHost(), project=str(tmp_path / "project"))
    assert found == NO_DEPENDENCIES or "secret" not in repr(found)
    assert unread(found) == {"requirements.txt:1": "it is outside the project"}


def test_the_address_of_a_torch_wheel_says_its_build(tmp_path):
    wheel = "https://download.pytorch.org/whl/cu118/torch-2.0.1%2Bcu118-cp310-cp310-linux_x86_64.whl"
    (torch,) = read(tmp_path, {"requirements.txt": wheel}).needs
    assert (torch.name, torch.specifier, torch.url) == ("torch", "==2.0.1+cu118", wheel)


def test_pyproject_is_read_with_its_groups_sources_and_dynamic_files(tmp_path):
    text = (
        '[project]\nname = "p"\nrequires-python = ">=3.10,<3.13"\ndependencies = [\n  "torch==2.4.1",\n'
        '  "lib",\n  "near",\n  "numpy<2; python_version < \'3.12\'",\n]\n[project.optional-dependencies]\n'
        'train = ["peft"]\n'
        '[dependency-groups]\ndev = ["pytest", {include-group = "lint"}]\nlint = ["ruff", {include-group = "dev"}]\n'
        'docs = ["sphinx"]\n[tool.uv.sources]\nlib = {git = "https://example.org/lib", tag = "v1"}\n'
        'near = {path = "near"}\n'
        '[[tool.uv.index]]\nname = "t"\nurl = "https://download.pytorch.org/whl/cu121"\nexplicit = true\n'
    )
    found = read(tmp_path, {"pyproject.toml": text})
    assert found.tool is PackageManager.UV
    assert [(need.text, need.group, need.line) for need in found.needs] == [
        ("torch==2.4.1", "", 5),
        ("lib @ git+https://example.org/lib@v1", "", 6),
        ('numpy<2 ; python_version < "3.12"', "", 8),
        ("pytest", "dev", 13),
        ("ruff", "dev", 14),
    ]
    assert [(each.specifier, each.origin) for each in found.python] == [("<3.13,>=3.10", "pyproject.toml:3")]
    assert (found.left_out, [each.place for each in found.local]) == ((), ["near"])
    assert (found.available.extras, found.available.groups) == (("train",), ("lint", "docs"))
    assert [each.url for each in found.indexes] == ["https://download.pytorch.org/whl/cu121"]


@cases(
    "table, expected",
    {
        "setuptools": ('[tool.setuptools.dynamic]\n'
        'dependencies = {file = ["deps.txt"]}\n', {"deps.txt:1": "numpy"}),
        "Hatch": ('[tool.hatch.metadata.hooks.requirements_txt]\n'
        'files = ["deps.txt"]\n', {"deps.txt:1": "numpy"}),
        "an environment": ('[tool.hatch.envs.default]\n'
        'dependencies = ["rich"]\n', {"pyproject.toml:6": "rich"}),
    },
)  # fmt: skip
def test_dependencies_in_other_places_are_found(tmp_path, table, expected):
    found = read(tmp_path, {"pyproject.toml": f'{PROJECT}dynamic = ["dependencies"]\n{table}', "deps.txt": "numpy\n"})
    assert asked(found) == expected


def test_dependencies_that_the_build_computes_are_said_to_be_unread(tmp_path):
    found = read(tmp_path, {"pyproject.toml": f'{PROJECT}dynamic = ["dependencies"]\n'})
    assert unread(found) == {"pyproject.toml:4": f"its dependencies are {COMPUTED}"}
    assert found.is_computed


@pytest.mark.parametrize(
    ("path", "text", "origin", "problem"),
    [
        pytest.param("pyproject.toml", "[project]\nname = \n", "pyproject.toml:2", "it is not TOML", id="TOML"),
        pytest.param("environment.yml", "a: 1\nb: [\n", "environment.yml:3", "it is not YAML", id="YAML"),
        pytest.param("Pipfile.lock", '{\n"a": }', "Pipfile.lock:2", "it is not JSON", id="JSON"),
        pytest.param("setup.cfg", "no section\n", "setup.cfg:1", "it is not an INI file", id="INI"),
        pytest.param("setup.py", "setup(\n  a b)\n", "setup.py:2", "it is not Python", id="Python"),
        pytest.param(".python-version", "pypy-3.9\n", ".python-version:1", "is not a version of CPython", id="a Python"),
        pytest.param(".python-version", f"3.{'9' * 5000}", ".python-version:1", "is not a version of", id="a long Python"),
        pytest.param("requirements.txt", "#" * (17 << 20), "requirements.txt:1", "it is too large", id="its size"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_its_line(tmp_path, path, text, origin, problem):
    found = unread(read(tmp_path, {"Pipfile": ""} | {path: text} if path == "Pipfile.lock" else {path: text}))
    assert list(found) == [origin]
    assert problem in found[origin]


def test_no_login_is_kept(tmp_path):
    files = {
        "requirements.txt": "-i https://me:hunter2@a.example/simple\nx @ git+https://me:hunter2@b.example/x\n",
        "pyproject.toml": f'{PROJECT}[[tool.uv.index]]\nurl = "https://me:hunter2@c.example/simple"\n',
    }
    assert "hunter2" not in repr(read(tmp_path, files))


UV_LOCK = """\
version = 1
requires-python = ">=3.11"

[[package]]
name = "p"
version = "1"
source = { virtual = "." }
dependencies = [
    { name = "torch", version = "2.13.0", source = { registry = "https://pypi.org/simple" }, marker = "sys_platform == 'darwin'" },
    { name = "torch", version = "2.13.0+cu130", marker = "sys_platform == 'linux'" },
]

[[package]]
name = "torch"
version = "2.13.0"
source = { registry = "https://pypi.org/simple" }
resolution-markers = [
    "sys_platform == 'darwin'",
]

[[package]]
name = "torch"
version = "2.13.0+cu130"
source = { registry = "https://download.pytorch.org/whl/cu130" }
resolution-markers = [
    "python_full_version >= '3.12' and sys_platform == 'linux'",
    "python_full_version < '3.12' and sys_platform == 'linux'",
]
dependencies = [
    { name = "sympy" },
]

[[package]]
name = "sympy"
version = "1.14.0"
"""
POETRY_LOCK = """\
# This file is automatically @generated by Poetry 2.1.2 and should not be changed by hand.

[[package]]
name = "numpy"
version = "2.3.0"
groups = ["main"]
files = [
    {file = "numpy-2.3.0.tar.gz", hash = "sha256:aa"},
]

[[package]]
name = "nvidia-nccl-cu12"
version = "2.27.5"
markers = "platform_system == \\"Linux\\""
files = []

[[package]]
name = "torch"
version = "2.9.1"
files = []

[package.dependencies]
nvidia-nccl-cu12 = {version = "2.27.5", markers = "platform_system == \\"Linux\\""}
sympy = ">=1.13"

[package.extras]
opt-einsum = ["opt-einsum (>=3.3)"]

[[package]]
name = "sympy"
version = "1.14.0"
files = []

[metadata]
lock-version = "2.1"
"""


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("^1.2.3", ">=1.2.3,<2"),
        ("^0.2.3", ">=0.2.3,<0.3"),
        ("^0.0.3", ">=0.0.3,<0.0.4"),
        ("^0", ">=0,<1"),
        ("~1.2.3", ">=1.2.3,<1.3"),
        ("~1", ">=1,<2"),
        ("1.2.3", "==1.2.3"),
        ("1.2.*", "==1.2.*"),
        ("*", ""),
        (">=2.4,<2.6", ">=2.4,<2.6"),
        (">=2.4 <2.6", ">=2.4,<2.6"),
        ("~=2.4", "~=2.4"),
        ("2.4.1+cu121", "==2.4.1+cu121"),
        ("^2.4 || ^3.0", ">=2.4,<4"),
        ("", ""),
    ],
)
def test_versions_of_poetry_in_the_words_of_pep_440(written, meant):
    assert convert_poetry_version(written) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("=1.26", "==1.26.*"),
        ("==1.26.4", "==1.26.4"),
        ("=1.26.4=py311_0", "==1.26.4"),
        ("1.26.*", "==1.26.*"),
        (">=1.2,<2", ">=1.2,<2"),
        ("1.26|1.25", ""),
        ("*", ""),
        ("", ""),
    ],
)
def test_versions_of_conda_in_the_words_of_pep_440(written, meant):
    assert convert_conda_version(written) == meant


def test_poetry_is_read_with_its_lock(tmp_path):
    text = (
        '[tool.poetry]\nname = "p"\n[tool.poetry.dependencies]\npython = "^3.11"\ntorch = "^2.9"\n'
        'numpy = [{version = "^1.26", python = "<3.12"}, {version = "^2.0", python = ">=3.12"}]\n'
        'lib = {git = "https://example.org/lib.git", rev = "abc"}\nnear = {path = "near"}\n'
        'extra = {version = "*", optional = true}\n'
        '[tool.poetry.group.dev.dependencies]\npytest = "*"\n[tool.poetry.group.docs.dependencies]\nsphinx = "*"\n'
    )
    found = read(tmp_path, {"pyproject.toml": text, "poetry.lock": POETRY_LOCK})
    assert [need.text for need in found.needs if need.role is not RequirementRole.CONSTRAINT] == [
        "torch<3,>=2.9",
        'numpy<2,>=1.26 ; python_version < "3.12"',
        'numpy<3,>=2.0 ; python_version >= "3.12"',
        "lib @ git+https://example.org/lib.git@abc",
        "pytest",
    ]
    assert limits(found)["poetry.lock:18"] == "torch==2.9.1"
    assert limits(found)["poetry.lock:12"] == 'nvidia-nccl-cu12==2.27.5 ; platform_system == "Linux"'
    assert (found.lock, found.python[0].specifier) == ("poetry.lock", "<4,>=3.11")
    assert found.torch_family == ("nvidia-nccl-cu12", "sympy", "torch")
    assert (found.left_out, [each.place for each in found.local]) == ((), ["near"])
    assert (found.groups, found.available.groups) == (("dev",), ("docs",))


def test_what_the_project_asks_for_itself_is_not_there_for_torch_alone(tmp_path):
    text = '[tool.poetry.dependencies]\ntorch = "*"\nsympy = "*"\n'
    found = read(tmp_path, {"pyproject.toml": text, "poetry.lock": POETRY_LOCK})
    assert found.torch_family == ("nvidia-nccl-cu12", "torch")


def test_a_lock_of_uv_limits_each_platform_by_its_markers(tmp_path):
    text = f'{PROJECT}dependencies = ["torch"]\n'
    unused = '\n[[package]]\nname = "of-another-extra"\nversion = "1"\n'
    found = read(tmp_path, {"pyproject.toml": text, "uv.lock": f"{UV_LOCK}{unused}"})
    assert limits(found) == {
        "uv.lock:14": 'torch==2.13.0 ; sys_platform == "darwin"',
        "uv.lock:22": "torch==2.13.0+cu130 ; (python_full_version >= \"3.12\" and sys_platform == \"linux\") or "
        "(python_full_version < \"3.12\" and sys_platform == \"linux\")",
        "uv.lock:34": "sympy==1.14.0",
    }  # fmt: skip
    assert found.torch_family == ("sympy", "torch")


def test_what_a_lock_of_uv_has_for_another_python_alone_does_not_count_for_the_plans(tmp_path):
    newer = '\n    { name = "audioop-lts", marker = "python_full_version >= \'3.13\'" },'
    needed = '\n[[package]]\nname = "audioop-lts"\nversion = "0.2.1"\n'
    lock = UV_LOCK.replace("dependencies = [", f"dependencies = [{newer}", 1) + needed
    found = read(tmp_path, {"pyproject.toml": f'{PROJECT}dependencies = ["torch"]\n', "uv.lock": lock})
    assert [text for text in limits(found).values() if "audioop" in text] == [
        'audioop-lts==0.2.1 ; python_full_version >= "3.13"'
    ]


def test_a_package_with_two_versions_and_no_word_when_is_left_open(tmp_path):
    twice = '[[package]]\nname = "torch"\nversion = "2.9.1"\n\n[[package]]\nname = "torch"\nversion = "2.8.0"\n'
    assert limits(read(tmp_path, {"pyproject.toml": PROJECT, "pdm.lock": twice})) == {}


def test_a_lock_of_pdm_is_read(tmp_path):
    lock = (
        '[[package]]\nname = "torch"\nversion = "2.9.1"\ndependencies = [\n    "sympy>=1.13",\n]\n\n'
        '[[package]]\nname = "sympy"\nversion = "1.14.0"\n'
    )
    found = read(tmp_path, {"pyproject.toml": f'{PROJECT}dependencies = ["torch"]\n', "pdm.lock": lock})
    assert (found.tool, found.torch_family) == (PackageManager.PDM, ("sympy", "torch"))
    assert limits(found)["pdm.lock:2"] == "torch==2.9.1"


@pytest.mark.parametrize(
    ("files", "origins"),
    [
        pytest.param({"pixi.toml": "[dependencies]\n"}, ["pixi.toml:1"], id="pixi"),
        pytest.param({"pyproject.toml": "[tool.pixi.workspace]\n"}, ["pyproject.toml:1"], id="pixi in pyproject.toml"),
        pytest.param({"conda-lock.yml": "package:\n"}, ["conda-lock.yml:1"], id="conda-lock alone"),
        pytest.param({"conda-lock.yml": "", "environment.yml": "dependencies:\n- a\n"}, [], id="beside its source"),
    ],
)
def test_a_file_of_a_tool_that_devkit_does_not_read_is_named(tmp_path, files, origins):
    found = unread(read(tmp_path, files))
    assert list(found) == origins
    assert all("environment.yml" in problem for problem in found.values())


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("PyTorch>=1.10", "torch>=1.10"),
        ("sklearn==0.0.post5 ; python_version>'3'", 'scikit-learn ; python_version > "3"'),
        ("torch>=2.6.0+cu126,<3+x", "torch<3,>=2.6.0"),
        ("pyyaml", "pyyaml"),
    ],
)
def test_a_name_that_the_index_has_no_wheel_of_is_the_package_that_is_meant(tmp_path, line, asks):
    found = read(tmp_path, {"requirements.txt": f"rich\n{line}\n"})
    assert found.needs[1].text == asks
    # An installer would take the list's own word.
    assert found.lists == (("requirements.txt",) if line == asks else ())


def test_pipenv_is_read_with_its_lock(tmp_path):
    text = (
        '[packages]\ntorch = "==2.4.1"\nnumpy = "*"\n[dev-packages]\npytest = {version = ">=8"}\n[requires]\n'
        'python_version = "3.11"\n'
    )
    locked = {"torch": "==2.4.1", "nvidia-nccl-cu12": "==2.20.5", "numpy": "==2.1.0"}
    lock = {"default": {name: {"version": version} for name, version in locked.items()}}
    lock["develop"] = {"pytest": {"version": "==8.1"}}
    found = read(tmp_path, {"Pipfile": text, "Pipfile.lock": json.dumps(lock, indent=4)})
    assert list(asked(found).values()) == ["torch==2.4.1", "numpy", "pytest>=8"]
    assert limits(found)["Pipfile.lock:3"] == "torch==2.4.1"
    assert found.python[0].specifier == "==3.11.*"
    assert found.torch_family == ("nvidia-nccl-cu12", "torch")
    # What `pipenv install` would lock again does not count.
    stale = json.dumps(lock).replace("8.1", "7.4")
    found = read(tmp_path, {"Pipfile": text, "Pipfile.lock": stale})
    assert (found.lock, found.set_aside, found.files) == ("", ("Pipfile.lock",), ("Pipfile",))


def test_setup_cfg_is_read(tmp_path):
    text = (
        "[options]\npython_requires = >=3.10\ninstall_requires =\n    torch==2.4.1\n    numpy; python_version<'3.12'\n"
    )
    found = read(tmp_path, {"setup.cfg": text})
    assert list(asked(found)) == ["setup.cfg:4", "setup.cfg:5"]
    assert found.python[0].origin == "setup.cfg:2"


# Which lines an installer is handed as they are, and which devkit must write out for it.


BY_ADDRESS = "torch @ https://example.org/torch-2.4.1-cp311-cp311-linux_x86_64.whl\n"
CONDA = "dependencies:\n  - pip:\n    - -r a.txt\n"
IN_FOLDER = '[tool.uv.sources]\nnear = {path = "near"}\n'


def roles(found):
    return {need.name: need.role for need in found.needs}


@pytest.mark.parametrize(
    ("files", "lists"),
    [
        pytest.param({"requirements.txt": "rich\n"}, ("requirements.txt",), id="a list"),
        pytest.param({"pyproject.toml": f'{PROJECT}dependencies = ["rich"]\n'}, ("pyproject.toml",), id="a table"),
        pytest.param({"requirements.txt": "rich\n-e .\n"}, (), id="a list that installs the project"),
        pytest.param({"requirements.txt": "rich\n-e git+https://e.org/x#egg=x\n"}, (), id="a list with a checkout"),
        pytest.param({"requirements.txt": "rich\n./libs/near\n"}, (), id="a list with a folder"),
        pytest.param({"requirements.txt": f"rich\n{BY_ADDRESS}"}, (), id="torch by its address"),
        pytest.param({"pyproject.toml": f'{PROJECT}dependencies = ["rich", "near"]\n{IN_FOLDER}'}, (), id="a folder"),
        pytest.param({"setup.cfg": "[options]\ninstall_requires = rich\n"}, (), id="setup.cfg"),
        pytest.param({"environment.yml": "dependencies:\n  - pip:\n    - rich\n"}, (), id="conda"),
        pytest.param({"environment.yml": CONDA, "a.txt": "rich"}, ("a.txt",), id="a list of conda's"),
        pytest.param({"environment.yml": CONDA, "a.txt": "rich\n-e ."}, (), id="one that installs the project"),
    ],
)  # fmt: skip
def test_a_file_is_handed_over_where_an_installer_can_take_it_whole(tmp_path, files, lists):
    found = read(tmp_path, files)
    assert found.lists == lists
    assert roles(found)["rich"] is (RequirementRole.PASSED_THROUGH if lists else RequirementRole.GENERATED)


def test_groups_of_an_older_pdm_are_written_out(tmp_path):
    text = f'{PROJECT}dependencies = ["rich"]\n[tool.pdm.dev-dependencies]\ndev = ["pytest"]\n'
    found = read(tmp_path, {"pyproject.toml": text})
    assert roles(found) == {"rich": RequirementRole.PASSED_THROUGH, "pytest": RequirementRole.GENERATED}


@pytest.mark.parametrize(
    ("ignored", "is_hidden"),
    [
        pytest.param("*.lock\n", True, id="by a pattern"),
        pytest.param("*\n!src\n", True, id="as all but some"),
        pytest.param("*\n!pyproject.toml\n!uv.lock\n", False, id="all but these"),
        pytest.param("data\n# *.lock\n", False, id="not at all"),
    ],
)
def test_a_file_that_the_build_may_not_see_is_written_out(tmp_path, ignored, is_hidden):
    lock = '[[package]]\nname = "rich"\nversion = "14.0"\n'
    table = f'{PROJECT}dependencies = ["rich"]\n'
    found = read(tmp_path, {"pyproject.toml": table, "uv.lock": lock, ".dockerignore": ignored})
    assert found.lock == ("" if is_hidden else "uv.lock")
    assert (".dockerignore:1" in unread(found)) is is_hidden
    assert found.needs[0].role is (RequirementRole.GENERATED if is_hidden else RequirementRole.PASSED_THROUGH)


@pytest.mark.parametrize(
    ("files", "is_package"),
    [
        pytest.param({"pyproject.toml": f"{PROJECT}[build-system]\n"}, True, id="a build system"),
        pytest.param({"setup.py": ""}, True, id="setup.py"),
        pytest.param({"pyproject.toml": PROJECT}, False, id="no build system"),
        pytest.param({"requirements.txt": "rich\n"}, False, id="a list alone"),
        pytest.param({"pyproject.toml": "[tool.poetry]\npackage-mode = false\n[build-system]\n"}, False, id="Poetry"),
        pytest.param({"pyproject.toml": "[tool.uv]\npackage = false\n[build-system]\n"}, False, id="uv"),
        pytest.param({"pyproject.toml": "[tool.pdm]\ndistribution = false\n[build-system]\n"}, False, id="PDM"),
    ],
)
def test_a_project_is_a_package_unless_its_tool_says_otherwise(tmp_path, files, is_package):
    assert read(tmp_path, files).builds_itself is is_package


def test_a_folder_of_this_machine_is_read_only_where_it_holds_such_files(tmp_path):
    assert read_local_dependencies(str(tmp_path)) == read_local_dependencies(str(tmp_path / "gone")) == NO_DEPENDENCIES
    read(tmp_path, {"requirements.txt": "rich\n"})
    assert read_local_dependencies(str(tmp_path)).needs[0].name == "rich"


def test_a_workspace_of_uv_differs_from_a_project(tmp_path):
    assert not read(tmp_path, {"pyproject.toml": f"{PROJECT}[tool.uv]\n"}).has_members
    assert read(tmp_path, {"pyproject.toml": f'{PROJECT}[tool.uv.workspace]\nmembers = ["a/*"]\n'}).has_members


# Which requirement files there are, which of them the project installs, and what is said of the others.


# As in https://github.com/lllyasviel/Fooocus.
FOOOCUS = {
    "environment.yaml": "name: fooocus\ndependencies:\n  - python=3.10\n",
    "readme.md": "    conda env create -f environment.yaml\n    pip install -r requirements_versions.txt\n",
    "requirements_docker.txt": "torch==2.1.0\n",
    "requirements_versions.txt": "einops==0.8.0\n",
}
# As in https://github.com/oobabooga/text-generation-webui.
WEBUI = {
    "README.md": "pip install -r requirements/portable/requirements.txt\n"
    "pip install -r requirements/full/<requirements file according to table below>\n",
    "docs/11 - AMD Setup.md": "pip install -r requirements/full/requirements_amd.txt\n",
    "setup.cfg": "[pycodestyle]\nmax-line-length = 120\n",
    "requirements/full/requirements.txt": "gradio\n",
    "requirements/full/requirements_amd.txt": "amd\n",
    "requirements/portable/requirements.txt": "portable\n",
}


@cases(
    "files, installed, because, others",
    {
        "by the readme, beside conda": (
            FOOOCUS,
            {"requirements_versions.txt:1": "einops==0.8.0"},
            "readme.md:1 installs environment.yaml and requirements_versions.txt",
            ("requirements_docker.txt",),
        ),
        "by the folder that the documentation names most": (
            WEBUI,
            {"requirements/full/requirements.txt:1": "gradio"},
            "the project has setup.cfg, and the project has requirements/full/requirements.txt, "
            "the most plausible of its lists",
            ("requirements/full/requirements_amd.txt", "requirements/portable/requirements.txt"),
        ),
        "by its name": (
            {"requirements_linux.txt": "a\n", "requirements_windows.txt": "b\n"},
            {"requirements_linux.txt:1": "a"},
            "the project has requirements_linux.txt",
            ("requirements_windows.txt",),
        ),
        "in another folder": (
            {"src/requirements.txt": "a\n", "docs/requirements.txt": "sphinx\n"},
            {"src/requirements.txt:1": "a"},
            "the project has src/requirements.txt",
            (),
        ),
        "the usual name first": (
            {"requirements.in": "a\n", "requirements.txt": "a==1\n", "requirements_versions.txt": "b\n"},
            {"requirements.txt:1": "a==1"},
            "the project has requirements.txt",
            ("requirements_versions.txt",),
        ),
        "not where the project says what it needs": (
            {"pyproject.toml": f'{PROJECT}dependencies = ["rich"]\n', "requirements/metrics.txt": "b\n"},
            {"pyproject.toml:4": "rich"},
            "the project has pyproject.toml",
            ("requirements/metrics.txt",),
        ),
        "beside a Poetry that names a Python alone": (
            {"pyproject.toml": '[tool.poetry.dependencies]\npython = ">=3.7"\n', "requirements.txt": "diffusers\n"},
            {"requirements.txt:1": "diffusers"},
            "pyproject.toml has a table [tool.poetry], and the project has requirements.txt",
            (),
        ),
        "none for this system": (
            {"requirements-windows.txt": "a\n", "README.md": "no word of it"},
            {},
            "none of the project's files lists a package",
            ("requirements-windows.txt",),
        ),
    },
)
def test_the_most_plausible_list_is_the_projects(tmp_path, files, installed, because, others):
    found = read(tmp_path, files)
    assert asked(found) == installed
    assert found.because == because
    assert found.available.requirements == others
    assert read_local_dependencies(str(tmp_path)) == found


@pytest.mark.parametrize("path", ["requirements.txt", "below/requirements.txt"])
def test_python_in_a_list_is_python_itself(tmp_path, path):
    found = read(tmp_path, {path: "python >= 3.8\nrich\n"})
    assert (asked(found), found.lists) == ({f"{path}:2": "rich"}, ()), "no index has it"
    assert [(each.specifier, each.origin) for each in found.python] == [(">=3.8", f"{path}:1")]


def test_a_list_of_one_program_among_several_names_the_others(tmp_path):
    files = {f"{each}/README.md": "" for each in ("one", "two", "notes")} | {"one/requirements.txt": "rich\n"}
    found = read(tmp_path, files | {f"{each}/main.py": "" for each in ("one", "two")})
    says = "two: other programs with their own guides, which `devkit init FOLDER` plans"
    assert (asked(found), found.because) == (
        {"one/requirements.txt:1": "rich"},
        f"the project has one/requirements.txt; {says}",
    )


def test_a_chosen_list_replaces_those_that_are_found_and_a_lock(tmp_path):
    files = {
        "pyproject.toml": f'{PROJECT}dependencies = ["a"]\n',
        "uv.lock": '[[package]]\nname = "a"\nversion = "1"\n',
        "requirements.txt": "b\n",
        "requirements-dev.txt": "c\n",
        "more/train.txt": "-r ../common.txt\nd\n",
        "common.txt": "e\n",
    }
    found = read(tmp_path, files, requirements=("./more/train.txt",))
    assert (found.tool, found.lock, found.because) == (PackageManager.PIP, "", "./more/train.txt was chosen")
    assert {need.text for need in found.needs} == {"a", "d", "e"}
    assert found.lists == ("more/train.txt", "pyproject.toml")
    assert found.available.requirements == ("requirements-dev.txt", "requirements.txt")


def test_more_folders_and_documents_than_anyone_has_are_not_all_read(tmp_path):
    for number in range(120):
        (tmp_path / f"part{number}").mkdir()
        (tmp_path / f"part{number}/requirements.txt").write_text("a\n")
        (tmp_path / f"readme{number}.md").write_text("pip install -r part119/requirements.txt\n")
    host = CountingHost()
    from devkit.probe.project.reader import read_dependencies

    found = read_dependencies(host, project=str(tmp_path))
    assert len(found.available.requirements) < 60
    assert host.reads < 60


class CountingHost(LocalHost):
    """This machine, counting the files that are read."""

    reads = 0

    def read(self, path):
        self.reads += 1
        return super().read(path)


@pytest.mark.parametrize(
    ("paths", "read"),
    [
        (("backend/ml/requirements.txt", "backend/ml/requirements-test.txt"), "backend/ml/requirements.txt"),
        (("requirements-benchmark.txt", "server/requirements.txt"), "server/requirements.txt"),
        (("server/requirements.txt", "workers/a/requirements.txt"), "server/requirements.txt"),
        (("server/requirements-test.txt", "workers/a/requirements.txt"), "workers/a/requirements.txt"),
        (("docs/a/requirements.txt", "a/b/c/requirements.txt"), ""),
    ],
)
def test_of_nested_lists_the_highest_that_is_for_all_counts(tmp_path, paths, read):
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("einops\n")
    found = read_local_dependencies(str(tmp_path))
    assert (found.files, len(found.needs)) == (((read,), 1) if read else ((), 0))
