"""The project's own packages in the generated files: which tool installs them, from which files, around which torch."""

import re
import shlex
import subprocess
from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.facts.dependencies import (
    Dependencies,
    LocalPackage,
    PackageManager,
    PackageRequirement,
    RequirementRole,
    Resolved,
)
from devkit.render.container.packages import parse_constraint_hashes, read_requirement_sources, render_constraints
from devkit.render.container.settings import ContainerSettings, FromIndex
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.project import render_devcontainer
from devkit.render.project_plan import date_request
from devkit.solver.request import build_request

from .plans import CPU_PLAN, GPU_PLAN

PLAIN = ContainerSettings("Demo", "demo", FromIndex("0.1.0"))


def need(name, specifier="", *, role=RequirementRole.PASSED_THROUGH, path="requirements.txt", **more):
    return PackageRequirement(name, specifier, path, 1, role=role, **more)


LIST = Dependencies(
    PackageManager.PIP,
    "the project has requirements.txt",
    files=("requirements.txt", "more/base.txt"),
    lists=("requirements.txt",),
    included=("more/base.txt",),
    needs=(need("rich"), need("torchvision", ">=0.20,<1"), need("torch", ">=2")),
)
TABLE = Dependencies(
    PackageManager.UV,
    "pyproject.toml has a table [tool.uv]",
    files=("pyproject.toml",),
    lists=("pyproject.toml",),
    groups=("dev", "docs"),
    needs=(need("rich", path="pyproject.toml"), need("pytest", path="pyproject.toml", group="dev")),
)
WRITTEN = Dependencies(
    PackageManager.CONDA,
    "the project has environment.yml",
    files=("environment.yml",),
    needs=(
        need("rich", ">=13", role=RequirementRole.GENERATED, path="environment.yml", marker="python_version < '3.13'"),
        need("rich", "==14.0", role=RequirementRole.CONSTRAINT, path="conda-lock.yml"),
        need("torch", "<2.9", role=RequirementRole.GENERATED, path="environment.yml"),
        need("lib", role=RequirementRole.GENERATED, path="environment.yml", url="git+https://example.org/lib@v1"),
    ),
)


def locked(tool, lock):
    needs = (
        need("rich", path="pyproject.toml"),
        need("torchaudio", "==2.13.0+cu126", role=RequirementRole.CONSTRAINT, path=lock),
    )
    family = ("nvidia-nccl-cu12", "sympy", "torch")
    return Dependencies(tool, f"the project has {lock}", files=(lock,), lock=lock, needs=needs, torch_family=family)


UV, POETRY = (
    locked(PackageManager.UV, "uv.lock"),
    replace(locked(PackageManager.POETRY, "poetry.lock"), groups=("dev",)),
)
PDM, PIPENV = locked(PackageManager.PDM, "pdm.lock"), locked(PackageManager.PIPENV, "Pipfile.lock")


def made(dependencies, plan=GPU_PLAN, **settings):
    found = render_devcontainer(plan, replace(PLAIN, dependencies=dependencies, **settings))
    return {each.path.removeprefix(f"{DEVCONTAINER_FOLDER}/"): each.content.decode() for each in found}


def instructions(dockerfile, word):
    """The RUN instructions that hold a word."""
    return [each for each in re.findall(r"^RUN (?:[^\n]*\\\n)*[^\n]*\n", dockerfile, re.MULTILINE) if word in each]


def bound(dockerfile):
    """The files of the project that the build sees."""
    return re.findall(r"--mount=type=bind,from=project,source=(\S+),target=/mnt/project/\S+", dockerfile)


@pytest.mark.parametrize(
    ("dependencies", "files", "command"),
    [
        pytest.param(LIST, ["requirements.txt", "more/base.txt"], "=/mnt/project/requirements.txt", id="pip"),
        pytest.param(TABLE, ["pyproject.toml"], "--group=/mnt/project/pyproject.toml:dev", id="a table"),
        pytest.param(UV, ["pyproject.toml", "uv.lock"], "uv export --project=/mnt/project --locked", id="uv"),
        pytest.param(POETRY, ["pyproject.toml", "poetry.lock"], "poetry export --project=/mnt/project", id="Poetry"),
        pytest.param(PDM, ["pyproject.toml", "pdm.lock"], "PDM_CHECK_UPDATE=0 uv tool run", id="PDM"),
        pytest.param(PIPENV, ["Pipfile", "Pipfile.lock"], "PIPENV_PIPFILE=/mnt/project/Pipfile", id="Pipenv"),
        pytest.param(WRITTEN, [], "--requirement=/mnt/work/project.txt", id="written out"),
    ],
)  # fmt: skip
def test_the_image_installs_with_the_projects_tool_from_the_named_files_alone(dependencies, files, command):
    files_made = made(dependencies)
    dockerfile = files_made["Dockerfile"]
    assert bound(dockerfile) == files
    assert command in dockerfile
    assert "COPY --from=project" not in dockerfile
    assert "--with=dev" in dockerfile or dependencies is not POETRY
    assert ("project: .." in files_made["docker-compose.yml"]) is bool(files)
    assert dockerfile.index("transformers==") < dockerfile.index(command)


def test_devkit_is_installed_last_into_an_environment_of_its_own():
    runs = instructions(made(LIST)["Dockerfile"], "pip install")
    assert "devkit-gpu==" in runs[-1]
    assert all("--python=/opt/devkit" in line for line in re.findall(r"uv pip install .*", runs[-1]))


def test_a_project_without_packages_adds_nothing():
    assert "/mnt/project" not in made(Dependencies(PackageManager.NONE, ""))["Dockerfile"]
    assert "project: .." not in made(replace(TABLE, needs=(), lists=()))["docker-compose.yml"]


@pytest.mark.parametrize("dependencies", [LIST, TABLE, WRITTEN], ids=["pip", "a table", "written out"])
def test_torch_is_held_which_pins_what_came_with_it_and_nothing_else(dependencies):
    files = made(dependencies)
    run = instructions(files["Dockerfile"], "/mnt/constraints.txt")[-1]
    assert "--constraint=/mnt/constraints.txt --requirement=" in run
    assert ("--no-sources-package=torch " in run) is (dependencies is TABLE)
    assert [line for line in files["constraints.txt"].splitlines() if not line.startswith("#")] == ["torch==2.13.0"]


def test_the_hashes_of_an_earlier_run_are_kept_where_its_versions_are():
    digest = "a" * 64
    known = parse_constraint_hashes(f"# by hand\nrich==14.0 --hash=sha256:{digest}\nold==1 --hash=sha256:{digest}\n")

    def held(**changes) -> list[str]:
        plan = replace(GPU_PLAN, limits=("rich==14.0", "new==2"))
        settings = replace(PLAIN, dependencies=LIST, hashes=known, **changes)
        (made,) = render_constraints(plan, settings)
        return [line for line in made.content.decode().splitlines() if not line.startswith("#")]

    assert held() == ["new==2", f"rich==14.0 --hash=sha256:{digest}", "torch==2.13.0"]
    assert held(uses_wheelhouse=True) == ["new==2", "rich==14.0", "torch==2.13.0"]


@pytest.mark.parametrize("dependencies", [POETRY, PDM, PIPENV], ids=["Poetry", "PDM", "Pipenv"])
def test_a_lock_brings_everything_but_torch_and_what_torch_alone_needs(dependencies):
    (run,) = instructions(made(dependencies)["Dockerfile"], "--excludes")
    assert "printf '%s\\n' torch torchvision torchaudio nvidia-nccl-cu12 sympy >" in run
    assert "--no-deps --excludes=/mnt/work/excluded.txt" in run


def test_a_workspace_of_uv_is_installed_with_all_its_packages():
    (run,) = instructions(made(replace(UV, has_members=True))["Dockerfile"], "--excludes")
    assert "--locked --all-packages --no-emit-workspace" in run
    assert "printf '%s\\n' torch torchvision torchaudio nvidia-nccl-cu12 sympy >" in run


@pytest.mark.parametrize(("can_check", "flag"), [(True, "--locked"), (False, "--frozen")])
def test_a_lock_is_compared_with_its_manifest_where_uv_can_do_that(can_check, flag):
    assert f"{flag} --prune=torch" in made(replace(UV, can_check_lock=can_check))["Dockerfile"]


@pytest.mark.parametrize(
    ("dependencies", "words"),
    [
        pytest.param(
            replace(TABLE, extras=("train",)),
            "--requirement=/mnt/project/pyproject.toml --group=/mnt/project/pyproject.toml:dev --extra=train",
            id="a table",
        ),
        pytest.param(UV, "--prune=torch --extra=gpu --group=docs --no-emit-workspace", id="uv"),
        pytest.param(POETRY, "--project=/mnt/project --extras=gpu --with=docs --format", id="Poetry"),
        pytest.param(PDM, "--project=/mnt/project --group=gpu --group=docs --format", id="PDM"),
    ],
)
def test_chosen_extras_and_groups_are_installed_by_the_projects_tool(dependencies, words):
    chosen = dependencies if dependencies.extras else replace(dependencies, extras=("gpu",), groups=("docs",))
    assert words in made(chosen)["Dockerfile"]


@pytest.mark.parametrize("tool", [POETRY, PDM], ids=["Poetry", "PDM"])
def test_folders_of_the_project_are_dropped_from_what_its_tool_exports(tool):
    near = LocalPackage("near", "pyproject.toml", 3)
    (run,) = instructions(made(replace(tool, local=(near,)))["Dockerfile"], "--excludes")
    (program,) = re.findall(r"sed -i -E '(.+?)' /mnt/work/exported.txt", run)
    lines = "near @ file:///mnt/project/near ; python_version >= '3.11'\n-e file:///mnt/project/far\nidna==3.10\n"
    done = subprocess.run(["sed", "-E", program], input=lines, capture_output=True, text=True, check=True)
    assert done.stdout == "idna==3.10\n"
    assert "sed -i" not in made(tool)["Dockerfile"]


def test_the_name_of_an_extra_is_no_shell_command():
    with pytest.raises(DevkitError, match="cannot be a package name"):
        made(replace(TABLE, extras=("x; rm -rf /",)))


def test_packages_that_are_built_for_one_torch_come_from_its_index():
    (run,) = instructions(made(LIST)["Dockerfile"], '"torchvision')
    assert "--default-index=https://download.pytorch.org/whl/cu130 " in run
    assert '"torchvision>=0.20,<1"' in run
    (run,) = instructions(made(LIST, torch_index="https://t.example.org/whl")["Dockerfile"], '"torchvision')
    assert "--default-index=https://t.example.org/whl/cu130 " in run
    (run,) = instructions(made(UV)["Dockerfile"], '"torchaudio')
    assert 'torch==2.13.0 "torchaudio==2.13.0"' in run
    (run,) = instructions(made(LIST)["Dockerfile"], 'torch==2.13.0 "torch')
    assert "--no-deps" not in run, "it would be the newest one, for any torch"
    known = replace(GPU_PLAN, resolution=Resolved((("torchvision", "0.28.0"),)))
    (run,) = instructions(made(LIST, plan=known)["Dockerfile"], 'torch==2.13.0 "torch')
    # torch's index has old releases of what it needs.
    assert "--no-deps --default-index" in run and '"torchvision==0.28.0"' in run
    (run,) = instructions(made(LIST)["Dockerfile"], "--requirement=/mnt/project")
    assert " 'torchvision>=0.20,<1'" in run
    assert not instructions(made(TABLE)["Dockerfile"], '"torch')


def test_a_version_that_a_lock_keeps_for_another_system_counts_for_nothing():
    needs = (
        need(
            "torchvision",
            "==0.23.0",
            role=RequirementRole.CONSTRAINT,
            path="uv.lock",
            marker="sys_platform == 'darwin'",
        ),
        need(
            "torchvision",
            "==0.24.0+cu130",
            role=RequirementRole.CONSTRAINT,
            path="uv.lock",
            marker="sys_platform == 'linux'",
        ),
    )
    assert '"torchvision==0.24.0"' in made(replace(UV, needs=needs))["Dockerfile"]


def test_a_closed_network_asks_no_index_and_trusts_the_lock_as_it_is():
    for dependencies in (LIST, UV, POETRY, PDM, PIPENV, WRITTEN):
        dockerfile = made(dependencies, uses_wheelhouse=True)["Dockerfile"]
        for run in instructions(dockerfile, "/mnt/work"):
            for command in re.findall(r"uv (?:pip install|tool run) .*?(?=&&|$)", run.replace("\\\n", " "), re.DOTALL):
                assert "--no-index --find-links=/mnt/wheelhouse" in command
    assert "--frozen" in made(UV, uses_wheelhouse=True)["Dockerfile"]
    assert "--frozen" in made(UV, index="https://pypi.example.org/simple")["Dockerfile"]


def test_requirements_that_no_installer_reads_are_written_out_with_their_origin():
    dockerfile = made(WRITTEN, CPU_PLAN)["Dockerfile"]
    (run,) = instructions(dockerfile, "/mnt/work/project.txt")
    (words,) = re.findall(r"printf '%s\\n' ((?:.|\n)*?)> /mnt/work/project\.txt", run)
    written = ["rich>=13,==14.0 ; python_version < '3.13'", "lib @ git+https://example.org/lib@v1"]
    assert shlex.split(words.replace("\\\n", "")) == written
    assert "without the whole project: environment.yml:1" in dockerfile


def test_a_list_that_windows_wrote_in_utf_16_is_resolved_as_uv_reads_it(tmp_path):
    for path, text in (("requirements.txt", "rich>=13\n"), ("more/base.txt", "torch\n")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-16")
    texts = dict(read_requirement_sources(tmp_path, LIST).files)
    assert texts == {"requirements.txt": "rich>=13\n", "more/base.txt": "torch\n"}


def test_a_requirement_that_is_no_line_cannot_leave_its_word():
    broken = replace(WRITTEN, needs=(replace(WRITTEN.needs[0], marker="x\nRUN touch /owned"),))
    with pytest.raises(DevkitError, match="must be one line of text"):
        made(broken, CPU_PLAN)


@pytest.mark.parametrize(("dependencies", "day"), [(LIST, "2020-02-02"), (UV, "")], ids=["a list", "a lock"])
def test_what_a_lock_holds_has_no_day(dependencies, day, tmp_path, monkeypatch):
    monkeypatch.setattr("devkit.probe.project.reader.read_last_change", lambda root: "2020-02-02")
    assert date_request(build_request(machines=()), dependencies, tmp_path).as_of == day
