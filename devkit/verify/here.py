"""The proof where devkit runs: of the machine or container, in a child process, and of the project in it.

The child is started again after a crash for the remaining stages.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.facts.dependencies import Framework
from devkit.facts.gpu import Gpu, NvmlAnswer
from devkit.facts.values import Unknown
from devkit.probe.children.protocol import format_signal
from devkit.probe.gpu.nvml import read_nvml
from devkit.probe.host import Host
from devkit.probe.machine.interpreter import find_workload_python, hint_at_variable
from devkit.probe.machine.python import read_cuda_toolkit
from devkit.probe.project.reader import read_dependencies
from devkit.release import __version__
from devkit.render.devkit_lock import read_project_lock
from devkit.render.devkit_toml import DEVKIT_TOML, ProjectSettings, parse_devkit_toml
from devkit.solver.plan import CompileMode
from devkit.text import format_count, format_duration, join_words
from devkit.verify import framework_child
from devkit.verify.process import CompletedCommand, Progress, run_streaming
from devkit.verify.project_stages import ProjectEnvironment, prove_project
from devkit.verify.report import BECAUSE, PROGRAM, ProofLocation, ProofRequest, VerificationReport
from devkit.workload.interpreter import (
    MIN_PYTHON,
    Interpreter,
    build_module_command,
    find_torch_interpreter,
    inspect_interpreter,
)
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import (
    DEVICE_LOST_EXIT_CODE,
    GPU_STAGES,
    STANDALONE_STAGES,
    Depth,
    StageReading,
    StageResult,
    StageSkipped,
    StageSpec,
    StageStatus,
    expect_above,
    expect_equal,
    run_stage,
    select_stages,
    skip_for_failed_need,
)


@dataclass(frozen=True)
class ProofProgram:
    """A program that proves: its words before the arguments, all of its stages, and why it is not the full proof, "" if it is."""

    words: Sequence[str]
    stages: tuple[StageSpec, ...]
    not_full_because: str = ""


def choose_program(interpreter: Interpreter, depth: Depth) -> ProofProgram:
    """Return the full proof if this Python and its packages can run it, else the proof that needs only torch."""
    python, flags = interpreter.executable, ("-u", "-X", "faulthandler")
    if interpreter.version >= MIN_PYTHON and not interpreter.missing:
        # Nothing of devkit's own environment is importable there.
        words = build_module_command(python, "devkit.workload.proof.program", *flags, with_requirements=False)
        return ProofProgram(words, select_stages(depth))
    because = f"the project's environment has no {join_words(interpreter.missing)}"
    if interpreter.version < MIN_PYTHON:
        because = f"the project's Python is {interpreter.version}, and the full proof needs {MIN_PYTHON}"
    return ProofProgram((python, *flags, standalone.__file__), STANDALONE_STAGES, because)


def prove_here(host: Host, request: ProofRequest) -> VerificationReport:
    """Run the proof on this machine.

    A crash or hang fails the stage it happens in and skips those that need it; the others still run.
    Raises: DevkitError when no Python here has torch.
    """
    program = choose_program(find_torch_interpreter(host), request.depth)
    if program.not_full_because:
        request.progress(f"the proof that needs only torch: {program.not_full_because}")
        if request.model:
            raise DevkitError(f"this needs the full proof, but {program.not_full_because}", "Leave --model out.")
    run = _ProofRun(program.stages, request.timeout_s, request.progress)
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    ends_at = time.monotonic() + request.timeout_s
    # The folder belongs to this process, because the child may not live to remove it.
    with tempfile.TemporaryDirectory(prefix="devkit-verify-") as scratch:
        while run.pending:
            failed = [name for name, result in run.results.items() if result.status is StageStatus.FAILED]
            arguments = [f"--depth={request.depth}", f"--stages={','.join(run.pending)}"]
            arguments += [f"--failed={','.join(failed)}", f"--scratch={scratch}", f"--model={request.model}"]
            argv, left_s = [*program.words, *arguments], max(0.0, ends_at - time.monotonic())
            run.finish_process(run_streaming(argv, on_output=run.read, timeout_s=left_s, grace_s=0))
    stages = tuple(run.results[stage.name] for stage in run.stages)
    inputs = run.inputs | (
        {PROGRAM: "standalone", BECAUSE: program.not_full_because} if program.not_full_because else {}
    )
    return VerificationReport(
        ProofLocation.HERE, run.device, run.environment, stages, run.log, inputs=inputs, taken_at=taken_at
    )


@dataclass
class _ProofRun:
    """The results so far, from the events of one process after the other."""

    stages: tuple[StageSpec, ...]
    timeout_s: float
    progress: Progress
    results: dict[str, StageResult] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=lambda: {"kind": "unknown"})
    environment: dict[str, Any] = field(default_factory=lambda: {"devkit": __version__})
    inputs: dict[str, Any] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    _current: str = ""
    _started_at: float = 0.0
    _count_before: int = 0
    """The number of results when the last process ended."""

    @property
    def pending(self) -> list[str]:
        """The names of the stages without a result, in order."""
        return [stage.name for stage in self.stages if stage.name not in self.results]

    def read(self, line: str) -> None:
        """Record the event in a line of the proof's output. Unknown ones and other output are ignored."""
        try:
            event = json.loads(line) if line.startswith("{") else None
        except ValueError:
            return
        match event:
            case {"event": "environment", "environment": dict() as found}:
                self.environment |= found
            case {"event": "inputs", "inputs": dict() as found}:
                self.inputs = found
            case {"event": "device", "device": dict() as found}:
                self.device = found
                self.progress(
                    f"device: {found['kind']}, {found['name']} ({found['reason']}); "
                    f"precision: {found['precision']} ({found['precision_reason']})"
                )
            case {"event": "started", "stage": str(name)}:
                self._current, self._started_at = name, time.monotonic()
                self.progress(f"{name} …")
            case {"event": "finished", "stage": dict() as document}:
                self._finish_stage(StageResult.from_document(document))
            case _:
                return

    def _finish_stage(self, result: StageResult) -> None:
        self.results[result.name] = result
        self._current = ""
        because = f": {result.reason}" if result.reason else ""
        self.progress(f"{result.name} {result.status} in {format_duration(result.ms / 1000)}{because}")

    def finish_process(self, end: CompletedCommand) -> None:
        """Judge the end of a process: with stages pending it was a crash, a hang, or a lost device."""
        if not self.pending:
            return
        self.log = end.log
        lost_device = end.code == DEVICE_LOST_EXIT_CODE and not self._current
        # A lost device fails no further stage, unless the process made no progress: then it would start forever.
        if not (lost_device and len(self.results) > self._count_before):
            self._fail_current(end)
        for stage in self.stages:
            if stage.name in self.results:
                continue
            skipped = skip_for_failed_need(stage, self.results)
            if skipped is None and end.code is None:
                skipped = StageResult(stage.name, StageStatus.SKIPPED, reason="the time ran out")
            if skipped is not None:
                self._finish_stage(skipped)
        self._count_before = len(self.results)

    def _fail_current(self, end: CompletedCommand) -> None:
        """Fail the running stage with the most informative line of the log, such as Python's own fatal error."""
        lines = [line.strip() for line in end.log if line.strip()]
        if end.code is None:
            reason = f"no result within {format_duration(self.timeout_s)}; the time ran out and the process was killed"
        else:
            said = [line for line in lines if line.startswith("Fatal Python error")] or lines
            name = format_signal(-end.code) if end.code < 0 else ""
            how = f"was ended by {name}" if name else f"ended with exit status {end.code}"
            how += ", usually because memory ran out" if name == "SIGKILL" else ""
            reason = ": ".join((f"the process {how}", *said[-1:]))
        ms = (time.monotonic() - self._started_at) * 1000 if self._current else 0.0
        self._finish_stage(StageResult(self._current or self.pending[0], StageStatus.FAILED, reason=reason, ms=ms))


def prove_machine_and_project(host: Host, folder: Path, request: ProofRequest) -> VerificationReport:
    """Run the proof here, and the stages of the project in `folder` if it has its own environment.

    A project of devkit's (it has a devkit.toml) that does not require torch, and has none, is proved without it.
    The command of the request goes before that of devkit.toml. Raises DevkitError as `prove_here` does.
    """
    ends_at = time.monotonic() + request.timeout_s
    file = folder / DEVKIT_TOML
    settings = parse_devkit_toml(file.read_bytes()) if file.is_file() else ProjectSettings()
    dependencies = read_dependencies(host, project=str(folder.resolve()), choice=settings.choice)
    python = find_workload_python(host)
    if isinstance(python, Unknown):
        raise DevkitError(f"no Python to prove with: {python.reason}", hint_at_variable(host))
    has_environment = file.is_file() and python.executable != host.python
    names_torch = dependencies.torch_family or any(need.name == "torch" for need in dependencies.needs)
    requires_torch = dependencies.framework is Framework.TORCH and names_torch
    if has_environment and not requires_torch and "torch" not in inspect_interpreter(host, python.executable).packages:
        report = prove_without_torch(host, folder, dependencies.framework, python.executable, request)
    else:
        report = prove_here(host, request)
    if not has_environment and not request.command:
        return report
    compiled = read_project_lock(folder).plan.get("compiled", ())
    left_out = tuple(each["name"] for each in compiled if each["mode"] == CompileMode.LEFT_OUT)
    project = ProjectEnvironment(folder.resolve(), dependencies, python, left_out)
    command = request.command or settings.command
    stages = prove_project(project, command, ends_at=ends_at, progress=request.progress)
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
    host: Host, folder: Path, framework: Framework, python: str, request: ProofRequest
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
        request.progress(f"{stage.name} …")
        result = skip_for_failed_need(stage, results) or run_stage(stage.name, provers[stage.name])[0]
        results[stage.name] = result
        request.progress(f"{stage.name} {result.status}" + (f": {result.reason}" if result.reason else ""))
    inputs = {"depth": request.depth.value, PROGRAM: "gpu", BECAUSE: "the project does not require torch"}
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
