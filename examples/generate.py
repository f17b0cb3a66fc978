"""Write every example's expected/ folder anew; `tests/render/test_examples.py` compares them."""

import shutil
import sys
import tempfile
from pathlib import Path

from devkit.cli.export import DEPLOY_FOLDER as DEPLOY
from devkit.cli.export import plan_export
from devkit.cli.plan_options import build_request_from_settings
from devkit.compat.version_tables import load_tables
from devkit.export.targets import TARGETS, load_target
from devkit.release import __version__
from devkit.render.changes import write_changes
from devkit.render.container.settings import FromIndex
from devkit.render.devkit_lock import LOCK_PATH
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.project import compute_project_changes, open_project
from devkit.solver.plan import Plan
from devkit.solver.solve import solve

EXAMPLES = {
    "quickstart": ProjectSettings(driver="570.124.06", gpus=("RTX 4090",)),
    "cluster": ProjectSettings(driver="580.95.05", gpus=("H100",)),
}
"""Example -> the flags that its expected/ was made with."""

JOB = "run.toml"
"""An example with this file is a job: its expected/ holds what each target of `devkit export` writes, and no more."""

FOLDER = Path(__file__).resolve().parent


def generate(name: str, into: Path) -> None:
    """What an example's expected/ holds, in the folder `into`."""
    if not (FOLDER / name / JOB).is_file():
        initialize(name, into)
        return
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch) / "project"
        initialize(name, project)
        shutil.copy(FOLDER / name / JOB, project)
        for target in TARGETS:
            answer = plan_export(load_target(target), project, {})
            if answer.refusal is not None:
                sys.exit(f"{name} for {target}: {answer.refusal}")
            write_changes(answer.folder, answer.changes)
        # The locks say everything twice.
        shutil.copytree(project / DEPLOY, into, ignore=shutil.ignore_patterns(LOCK_PATH))


def initialize(name: str, into: Path) -> None:
    """Run `devkit init` with the example's flags on a copy of it, and put what it wrote into the folder `into`.

    devkit comes from the package index here, because a wheel of it would change with every line of code.
    """
    flags = EXAMPLES[name]
    into.mkdir(parents=True)
    shutil.copy(FOLDER / name / "devkit.toml", into)
    request = build_request_from_settings(flags)
    plan = solve(request, load_tables())
    if not isinstance(plan, Plan):
        sys.exit(f"no plan for {name}: {plan.wanted}")
    project = open_project(into, flags)
    write_changes(
        project.root, compute_project_changes(project, plan, machines=request.machines, source=FromIndex(__version__))
    )


if __name__ == "__main__":
    for example in EXAMPLES:
        with tempfile.TemporaryDirectory() as scratch:
            generate(example, Path(scratch) / "expected")
            shutil.rmtree(FOLDER / example / "expected", ignore_errors=True)
            shutil.copytree(Path(scratch) / "expected", FOLDER / example / "expected")
