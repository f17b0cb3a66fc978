"""The proof where devkit runs: of the machine or container, and of the project in it."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from devkit.errors import DevkitError
from devkit.facts.dependencies import Framework
from devkit.facts.gpu import Gpu, NvmlAnswer
from devkit.facts.values import Unknown
from devkit.probe.gpu.nvml import read_nvml
from devkit.probe.host import Host
from devkit.probe.machine.interpreter import PYTHON_VARIABLE, find_workload_python
from devkit.probe.project.reader import read_dependencies
from devkit.release import __version__
from devkit.render.devkit_lock import read_project_lock
from devkit.render.devkit_toml import DEVKIT_TOML, ProjectSettings, parse_devkit_toml
from devkit.solver.plan import CompileMode
from devkit.text import format_count
from devkit.verify.local_proof import prove_here
from devkit.verify.process import Progress
from devkit.verify.project_stages import ProjectEnvironment, prove_project
from devkit.verify.report import BECAUSE, PROGRAM, ProofLocation, VerificationReport
from devkit.workload.interpreter import inspect_interpreter
from devkit.workload.proof.stages import Depth, StageReading, StageSkipped, expect_above, run_stage


def prove_machine_and_project(
    host: Host,
    folder: Path,
    *,
    depth: Depth,
    timeout_s: float,
    progress: Progress,
    model: str = "",
    command: str = "",
) -> VerificationReport:
    """Run the proof here, and the stages of the project in `folder` if it has its own environment.

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
        report = prove_without_torch(host, depth=depth, progress=progress)
    else:
        report = prove_here(host, depth=depth, timeout_s=timeout_s, progress=progress, model=model)
    if not has_environment and not command:
        return report
    compiled = read_project_lock(folder).plan.get("compiled", ())
    left_out = tuple(each["name"] for each in compiled if each["mode"] == CompileMode.LEFT_OUT)
    project = ProjectEnvironment(folder.resolve(), dependencies, python, left_out)
    stages = prove_project(project, command or settings.command, ends_at=ends_at, progress=progress)
    return replace(report, stages=(*report.stages, *stages))


NVML_DEADLINE_S = 20.0
_GPU_NODE = re.compile(r"nvidia\d+|dxg")


def prove_without_torch(host: Host, *, depth: Depth, progress: Progress) -> VerificationReport:
    """Prove what a container needs for GPU work without torch."""
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    answer = read_nvml(host, deadline_s=NVML_DEADLINE_S)
    gpus = [gpu for gpu in answer.gpus if isinstance(gpu, Gpu)] if isinstance(answer, NvmlAnswer) else []
    device: dict[str, object] = {"kind": "cpu", "name": "CPU", "reason": "NVML sees no GPU"}
    if gpus:
        device = {"kind": "cuda", "name": str(gpus[0].name), "reason": f"NVML sees {format_count(len(gpus), 'GPU')}"}
    result, _ = run_stage("gpu", lambda: prove_gpu(host, answer, len(gpus)))
    progress(f"gpu {result.status}" + (f": {result.reason}" if result.reason else ""))
    inputs = {"depth": depth.value, PROGRAM: "gpu", BECAUSE: "the project does not require torch"}
    environment = {"devkit": __version__}
    return VerificationReport(ProofLocation.HERE, device, environment, (result,), inputs=inputs, taken_at=taken_at)


def prove_gpu(host: Host, answer: object, count: int) -> Iterator[StageReading]:
    """Prove that NVML sees the GPU whose device node is here."""
    if not any(map(_GPU_NODE.fullmatch, host.list("/dev"))):
        raise StageSkipped("this machine has no GPU")
    if not isinstance(answer, NvmlAnswer):
        raise RuntimeError(answer.reason if isinstance(answer, Unknown) else str(answer))
    yield StageReading("driver", str(answer.driver))
    yield StageReading("cuda", str(answer.cuda))
    yield expect_above("gpus", count, 0)
