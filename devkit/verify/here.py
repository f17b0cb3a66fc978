"""The proof where devkit runs: of the machine or container, and of the project in it."""

import time
from dataclasses import replace
from pathlib import Path

from devkit.errors import DevkitError
from devkit.facts.dependencies import Framework
from devkit.facts.values import Unknown
from devkit.probe.host import Host
from devkit.probe.machine.interpreter import PYTHON_VARIABLE, find_workload_python
from devkit.probe.project.reader import read_dependencies
from devkit.render.devkit_lock import read_project_lock
from devkit.render.devkit_toml import DEVKIT_TOML, ProjectSettings, parse_devkit_toml
from devkit.solver.plan import CompileMode
from devkit.verify.local_proof import prove_here
from devkit.verify.process import Progress
from devkit.verify.project_stages import ProjectEnvironment, prove_project
from devkit.verify.report import VerificationReport
from devkit.verify.without_torch import prove_without_torch
from devkit.workload.interpreter import inspect_interpreter
from devkit.workload.proof.stages import Depth


def prove_machine_and_project(
    host: Host,
    folder: Path,
    *,
    depth: Depth,
    timeout_s: float,
    progress: Progress,
    model: str = "",
    job: str = "",
    command: str = "",
) -> VerificationReport:
    """Run the proof here, and the stages of the project in `folder` where its environment is one of its own.

    A project of devkit's (it has a devkit.toml) that does not require torch, and has none, is proved without it.
    `command` is one that must work, besides that of devkit.toml. Raises DevkitError as `prove_here` does.
    """
    ends_at = time.monotonic() + timeout_s
    file = folder / DEVKIT_TOML
    settings = parse_devkit_toml(file.read_bytes()) if file.is_file() else ProjectSettings()
    dependencies = read_dependencies(host, project=str(folder.resolve()), choice=settings.choice)
    python = find_workload_python(host)
    if isinstance(python, Unknown):
        raise DevkitError(f"no Python to prove with: {python.reason}", f"Is {PYTHON_VARIABLE} or VIRTUAL_ENV wrong?")
    has_environment = file.is_file() and python.executable != host.python
    names_torch = dependencies.torch_family or any(need.name == "torch" for need in dependencies.needs)
    requires_torch = dependencies.framework is Framework.TORCH and names_torch
    if has_environment and not requires_torch and "torch" not in inspect_interpreter(host, python.executable).packages:
        report = prove_without_torch(
            host, folder, dependencies.framework, python=python.executable, depth=depth, progress=progress
        )
    else:
        report = prove_here(host, depth=depth, timeout_s=timeout_s, progress=progress, model=model, job=job)
    if not has_environment and not command:
        return report
    compiled = read_project_lock(folder).plan.get("compiled", ())
    left_out = tuple(each["name"] for each in compiled if each["mode"] == CompileMode.LEFT_OUT)
    project = ProjectEnvironment(folder.resolve(), dependencies, python, left_out)
    stages = prove_project(project, command or settings.command, ends_at=ends_at, progress=progress)
    return replace(report, stages=(*report.stages, *stages))
