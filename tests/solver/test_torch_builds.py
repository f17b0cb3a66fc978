"""Extras that exclude each other, each with a torch of its own: the one whose build fits the plan is taken."""

from pathlib import Path

import pytest

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.dependencies import NOTHING_CHOSEN, DependencyChoice
from devkit.probe.project.reader import read_local_dependencies
from devkit.solver.plan import Conflict
from devkit.solver.project import list_choices, select_torch_build, validate_choice
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve_project

PROJECTS = Path(__file__).resolve().parents[1] / "projects"
ADA = build_machine_from_flags(driver="570.124.06", gpus=("RTX 4090",))
NO_GPU = build_machine_from_flags(machine="x86_64")
RECIPE = """\
[project]
name = "p"
version = "1"
dependencies = []
[project.optional-dependencies]
cpu = ["torch>=2.7"]
cu128 = ["torch>=2.7", "nccl4py"]
cu126 = ["torch>=2.7"]
rocm = ["torch>=2.7"]
all = ["p[cu128]", "rich"]
[tool.uv]
conflicts = [[{ extra = "cpu" }, { extra = "cu128" }, { extra = "cu126" }, { extra = "rocm" }]]
[tool.uv.sources]
torch = [
  { index = "pytorch-cpu", extra = "cpu" },
  { index = "pytorch-cu128", extra = "cu128" },
  { index = "pytorch-cu126", extra = "cu126" },
  { index = "pytorch-rocm", extra = "rocm" },
]
"""
for label in ("cpu", "cu128", "cu126", "rocm6.3"):
    name = label.partition("6.3")[0]
    RECIPE += f'[[tool.uv.index]]\nname = "pytorch-{name}"\nurl = "https://download.pytorch.org/whl/{label}"\nexplicit = true\n'


def solved(folder, machine, choice=NOTHING_CHOSEN, **wanted):
    """The plan for a project, and what is installed for it."""
    dependencies = read_local_dependencies(str(folder), choice)
    plan = solve_project(build_request(machines=(machine,), **wanted), dependencies, load_tables())
    assert not isinstance(plan, Conflict), plan.blockers
    return plan, select_torch_build(dependencies, plan)


@pytest.mark.parametrize(
    ("machine", "extra", "variant"), [(ADA, "gpu", "cu128"), (NO_GPU, "cpu", "cpu")], ids=["a GPU", "no GPU"]
)
def test_nanochat_gets_the_extra_whose_torch_fits_the_machine(machine, extra, variant):
    plan, dependencies = solved(PROJECTS / "nanochat", machine, vendor="cpu" if variant == "cpu" else None)
    assert (plan.torch, plan.variant, dependencies.extras) == ("2.9.1", variant, (extra,))
    assert dependencies.torch_builds == ()
    other = {"gpu": "cpu", "cpu": "gpu"}[extra]
    assert plan.because("extra") == f"its torch is built for {variant}; --extra {other} takes another"
    assert list(list_choices(dependencies)) == [
        f"not installed: the extra {other}; --extra NAME installs one",
        "not installed: the group dev; --group NAME installs one",
    ]


def test_a_lock_limits_torch_to_the_version_of_the_chosen_extra():
    def locked(extras):
        found = read_local_dependencies(str(PROJECTS / "nanochat"), DependencyChoice(extras=extras))
        return {need.specifier for need in found.needs if need.name == "torch" and need.path == "uv.lock"}

    assert locked(()) == {"==2.9.1"}
    assert locked(("gpu",)) == {"==2.9.1+cu128"}
    assert locked(("cpu",)) == {"==2.9.1+cpu"}


def test_a_lock_that_was_made_without_a_gpu_keeps_the_version_and_not_the_build(tmp_path):
    lock = """version = 1
requires-python = ">=3.11"
[[package]]
name = "own"
version = "1"
source = { virtual = "." }
dependencies = [{ name = "torch" }]
[package.metadata]
requires-dist = [{ name = "torch", specifier = ">=2" }]
[[package]]
name = "torch"
version = "2.9.1+cpu"
source = { registry = "https://download.pytorch.org/whl/cpu" }
"""
    (tmp_path / "uv.lock").write_text(lock)
    project = '[project]\nname = "own"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["torch>=2"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    plan, _ = solved(tmp_path, ADA)
    assert (plan.torch, plan.variant) == ("2.9.1", "cu128")


@pytest.mark.parametrize(
    ("wanted", "extra"),
    [
        pytest.param({}, "cu126", id="the build of the plan"),
        pytest.param({"cuda": "12.8"}, "cu128", id="the one that was asked for"),
        pytest.param({"cuda": "12.4", "torch": "2.6"}, None, id="none of them"),
        pytest.param({"vendor": "cpu"}, "cpu", id="the CPU's"),
    ],
)
def test_the_extra_follows_the_plan(tmp_path, wanted, extra):
    (tmp_path / "pyproject.toml").write_text(RECIPE if extra else RECIPE.replace(">=2.7", "<2.7"))
    plan, dependencies = solved(tmp_path, ADA, **wanted)
    assert dependencies.extras == ((extra or "cu128"),)
    assert ("nccl4py" in {need.name for need in dependencies.needs}) is (dependencies.extras == ("cu128",))
    assert plan.because("extra").startswith(f"its torch is built for {dependencies.extras[0]}")


LCM = """
[project]
name = "lcm"
version = "1"
dependencies = ["torch>=2.5.1"]
[project.optional-dependencies]
cpu = ["torch>=2.5.1"]
eval = ["rich"]
[tool.uv.sources]
torch = [{ index = "pytorch-cpu", extra = "cpu" }]
[[tool.uv.index]]
name = "pytorch-cpu"
url = "https://download.pytorch.org/whl/cpu"
explicit = true
"""


@pytest.mark.parametrize(("machine", "extras"), [(ADA, ("eval",)), (NO_GPU, ("cpu", "eval"))], ids=["a GPU", "no GPU"])
def test_the_extra_for_the_cpu_of_a_guide_is_for_machines_without_a_gpu(tmp_path, machine, extras):
    (tmp_path / "pyproject.toml").write_text(LCM)
    (tmp_path / "README.md").write_text("# Install\n```\nuv sync --extra cpu --extra eval\n```\n")
    plan, dependencies = solved(tmp_path, machine)
    assert (plan.vendor == "cpu", dependencies.extras) == (machine is NO_GPU, extras)


def test_an_extra_that_was_chosen_stays(tmp_path):
    (tmp_path / "pyproject.toml").write_text(RECIPE)
    plan, dependencies = solved(tmp_path, ADA, DependencyChoice(extras=("All", "cu128")))
    assert dependencies.extras == ("cu128", "all")
    assert {need.name for need in dependencies.needs} == {"torch", "nccl4py", "rich"}
    assert "extra" not in {reason.field for reason in plan.reasons}


@pytest.mark.parametrize(
    ("choice", "message", "hint"),
    [
        (DependencyChoice(extras=("gup",)), "no extra 'gup'", "Did you mean gpu? It has cpu and gpu."),
        (DependencyChoice(groups=("docs",)), "no group 'docs'", "It has dev."),
    ],
)
def test_a_name_that_the_project_lacks_is_refused_with_those_that_it_has(choice, message, hint):
    with pytest.raises(DevkitError, match=message) as refused:
        validate_choice(choice, read_local_dependencies(str(PROJECTS / "nanochat"), choice))
    assert refused.value.hint == hint


def test_an_unknown_list_is_refused_with_the_one_that_was_read_in_its_place(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch\n")
    choice = DependencyChoice(requirements=("reqs.txt",))
    with pytest.raises(DevkitError, match="no readable requirements file") as refused:
        validate_choice(choice, read_local_dependencies(str(tmp_path), choice))
    assert refused.value.hint == "It has requirements.txt."
