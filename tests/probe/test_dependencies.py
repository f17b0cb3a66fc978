from dataclasses import replace

import pytest

from devkit.facts.dependencies import NO_DEPENDENCIES, DependencyChoice, LocalPackage, PackageManager, RequirementRole
from devkit.probe.dependencies.requirements import COMPUTED
from devkit.probe.host import LocalHost
from devkit.probe.project import reader


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


@pytest.mark.parametrize(
    ("files", "tool", "because"),
    [
        pytest.param(
            {"uv.lock": "", "poetry.lock": ""}, PackageManager.UV, "the project has uv.lock", id="uv's lock first"
        ),
        pytest.param(
            {"poetry.lock": "", "requirements.txt": ""}, PackageManager.POETRY, "poetry.lock", id="a lock before a list"
        ),
        pytest.param({"pdm.lock": "", "pyproject.toml": PROJECT}, PackageManager.PDM, "pdm.lock", id="PDM's lock"),
        pytest.param({"Pipfile": ""}, PackageManager.PIPENV, "the project has Pipfile", id="a Pipfile"),
        pytest.param({"pixi.toml": ""}, PackageManager.PIXI, "pixi.toml", id="pixi.toml"),
        pytest.param(
            {"pyproject.toml": "[tool.pixi]\n"}, PackageManager.PIXI, "[tool.pixi]", id="pixi in pyproject.toml"
        ),
        pytest.param(
            {"environment.yml": "", "requirements.txt": ""}, PackageManager.CONDA, "environment.yml", id="conda"
        ),
        pytest.param(
            {"pyproject.toml": "[tool.poetry.dependencies]\n"}, PackageManager.POETRY, "[tool.poetry]", id="old Poetry"
        ),
        pytest.param({"pyproject.toml": "[tool.uv]\n"}, PackageManager.UV, "[tool.uv]", id="settings of uv"),
        pytest.param(
            {"pyproject.toml": "[tool.uv]\n", "requirements.txt": ""},
            PackageManager.PIP,
            "requirements.txt",
            id="a list",
        ),
        pytest.param({"requirements.in": "a\n"}, PackageManager.PIP, "requirements.in", id="the source of a list"),
        pytest.param({"setup.py": ""}, PackageManager.PIP, "setup.py", id="setup.py"),
        pytest.param({".python-version": "3.12\n"}, PackageManager.NONE, "no file", id="a Python alone"),
    ],
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
        pytest.param("torch 2.4", "torch 2.4 is no requirement", id="a space instead of =="),
        pytest.param("torch=2.4", "torch=2.4 is no requirement", id="conda's way"),
        pytest.param("-r gone.txt", "gone.txt: it does not exist", id="an include that is missing"),
        pytest.param("-r ../outside.txt", "../outside.txt: it is outside of the project", id="an include out of it"),
        pytest.param("-r /etc/passwd", "/etc/passwd: it is outside of the project", id="an absolute include"),
        pytest.param("-r https://example.org/r.txt", "it includes a file from the network", id="one of the network"),
        pytest.param("-r it$s.txt", "it$s.txt: a Dockerfile cannot carry this name", id="a name for shells"),
        pytest.param("https://e.org/a.zip ; python_version < '3'", "an address that", id="an address with a marker"),
        pytest.param("https://example.org/a.zip", "an address that does not say which package it is", id="an address"),
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
    assert unread(found) == {"requirements.txt:1": "it is outside of the project"}


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


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        pytest.param('[tool.setuptools.dynamic]\n'
        'dependencies = {file = ["deps.txt"]}\n', {"deps.txt:1": "numpy"}, id="setuptools"),
        pytest.param('[tool.hatch.metadata.hooks.requirements_txt]\n'
        'files = ["deps.txt"]\n', {"deps.txt:1": "numpy"}, id="Hatch"),
        pytest.param('[tool.hatch.envs.default]\n'
        'dependencies = ["rich"]\n', {"pyproject.toml:6": "rich"}, id="an environment"),
    ],
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
        pytest.param(".python-version", "pypy-3.9\n", ".python-version:1", "is no version of CPython", id="a Python"),
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
