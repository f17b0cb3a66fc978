"""The proof where devkit runs: of the machine or container, and of the project in it."""

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
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
from devkit.probe.machine.python import read_cuda_toolkit
from devkit.probe.project.reader import read_dependencies
from devkit.release import __version__
from devkit.render.devkit_lock import read_project_lock
from devkit.render.devkit_toml import DEVKIT_TOML, ProjectSettings, parse_devkit_toml
from devkit.solver.plan import CompileMode
from devkit.text import format_count
from devkit.verify import framework_child
from devkit.verify.local_proof import prove_here
from devkit.verify.process import Progress
from devkit.verify.project_stages import ProjectEnvironment, prove_project
from devkit.verify.report import BECAUSE, PROGRAM, ProofLocation, VerificationReport
from devkit.workload.interpreter import inspect_interpreter
from devkit.workload.proof.stages import (
    GPU_STAGES,
    Depth,
    StageReading,
    StageResult,
    StageSkipped,
    expect_above,
    expect_equal,
    run_stage,
    skip_for_failed_need,
)


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
        report = prove_without_torch(
            host, folder, dependencies.framework, python=python.executable, depth=depth, progress=progress
        )
    else:
        report = prove_here(host, depth=depth, timeout_s=timeout_s, progress=progress, model=model)
    if not has_environment and not command:
        return report
    compiled = read_project_lock(folder).plan.get("compiled", ())
    left_out = tuple(each["name"] for each in compiled if each["mode"] == CompileMode.LEFT_OUT)
    project = ProjectEnvironment(folder.resolve(), dependencies, python, left_out)
    stages = prove_project(project, command or settings.command, ends_at=ends_at, progress=progress)
    return replace(report, stages=(*report.stages, *stages))


# The proof for a project that does not use torch: its container sees the GPU, and its CUDA compiler builds for it.

NVML_DEADLINE_S = 20.0
COMPILER_DEADLINE_S = 120.0
FRAMEWORK_DEADLINE_S = 180.0
"""The first call of either compiles, and loads gibibytes of libraries."""
_GPU_NODE = re.compile(r"nvidia\d+|dxg")
_KERNEL = "__global__ void add_one(float *numbers) { numbers[threadIdx.x] += 1.0f; }\n"
_SOURCES = tuple(f"{'*/' * depth}*.{suffix}" for depth in range(5) for suffix in ("cu", "cuh"))


def prove_without_torch(
    host: Host, folder: Path, framework: Framework, *, python: str, depth: Depth, progress: Progress
) -> VerificationReport:
    """Prove what a container needs for GPU work without torch.

    `folder` is the project's, whose sources are looked at, and `python` the interpreter of its environment.
    """
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    answer = read_nvml(host, deadline_s=NVML_DEADLINE_S)
    gpus = [gpu for gpu in answer.gpus if isinstance(gpu, Gpu)] if isinstance(answer, NvmlAnswer) else []
    device: dict[str, object] = {"kind": "cpu", "name": "CPU", "reason": "NVML sees no GPU"}
    if gpus:
        device = {"kind": "cuda", "name": str(gpus[0].name), "reason": f"NVML sees {format_count(len(gpus), 'GPU')}"}
    provers: dict[str, Callable[[], Iterable[StageReading]]] = {
        "gpu": lambda: prove_gpu(host, answer, len(gpus)),
        "cuda-compiler": lambda: prove_compiler(host, folder, gpus),
        "framework": lambda: prove_framework(host, framework, python=python, has_gpu=bool(gpus)),
    }
    results: dict[str, StageResult] = {}
    for stage in GPU_STAGES:
        progress(f"{stage.name} …")
        result = skip_for_failed_need(stage, results) or run_stage(stage.name, provers[stage.name])[0]
        results[stage.name] = result
        progress(f"{stage.name} {result.status}" + (f": {result.reason}" if result.reason else ""))
    inputs = {"depth": depth.value, PROGRAM: "gpu", BECAUSE: "the project does not require torch"}
    stages = tuple(results.values())
    environment = {"devkit": __version__}
    return VerificationReport(ProofLocation.HERE, device, environment, stages, inputs=inputs, taken_at=taken_at)


def prove_gpu(host: Host, answer: object, count: int) -> Iterator[StageReading]:
    """Prove that NVML sees the GPU whose device node is here."""
    if not any(map(_GPU_NODE.fullmatch, host.list("/dev"))):
        raise StageSkipped("this machine has no GPU")
    if not isinstance(answer, NvmlAnswer):
        raise RuntimeError(answer.reason if isinstance(answer, Unknown) else str(answer))
    yield StageReading("driver", str(answer.driver))
    yield StageReading("cuda", str(answer.cuda))
    yield expect_above("gpus", count, 0)


def prove_compiler(host: Host, folder: Path, gpus: list[Gpu]) -> Iterator[StageReading]:
    """Prove that nvcc builds a kernel for each of these GPUs, where the project has sources for it."""
    if not any(next(folder.glob(pattern), None) for pattern in _SOURCES):
        raise StageSkipped("the project has no CUDA sources")
    toolkit = read_cuda_toolkit(host)
    yield expect_equal("nvcc", toolkit is not None, wanted=True)
    if toolkit is None:
        return
    nvcc = f"{toolkit.path}/bin/nvcc"
    with tempfile.TemporaryDirectory(prefix="devkit-nvcc-") as scratch:
        source = Path(scratch) / "kernel.cu"
        source.write_text(_KERNEL)
        capabilities = (gpu.capability for gpu in gpus if not isinstance(gpu.capability, Unknown))
        targets = [f"-arch=sm_{each.major}{each.minor}" for each in dict.fromkeys(capabilities)] or [""]
        for target in targets:
            argv = [nvcc, *filter(None, (target,)), "-c", str(source), "-o", f"{source}.o"]
            done = host.run(argv, deadline_s=COMPILER_DEADLINE_S)
            lines = (done.err or done.out).strip().splitlines() or ["no output"]
            name = target.removeprefix("-arch=") or "default target"
            yield StageReading(name, "builds" if done.code == 0 else lines[0], "builds", done.code == 0)


def prove_framework(host: Host, framework: Framework, *, python: str, has_gpu: bool) -> Iterator[StageReading]:
    """Prove that the project's JAX or TensorFlow multiplies, on the GPU if there is one."""
    if framework not in (Framework.JAX, Framework.TENSORFLOW):
        raise StageSkipped("the project uses neither JAX nor TensorFlow")
    done = host.run([python, framework_child.__file__, framework.value], deadline_s=FRAMEWORK_DEADLINE_S)
    if done.code != 0:
        lines = done.err.strip().splitlines() or [f"exit code {done.code}"]
        raise RuntimeError(f"{framework.label} does not compute: {lines[-1]}")
    found = json.loads(done.out.splitlines()[-1])
    yield StageReading(framework.label, str(found["version"]))
    if has_gpu:
        yield expect_above("gpus", found["gpus"], 0)
    yield expect_equal("computed on", found["computed_on"], "gpu" if has_gpu else "cpu")
    yield expect_equal("sum", found["sum"], float(framework_child.SIZE**3))
