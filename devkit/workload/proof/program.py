"""The proof as a program: `python -m devkit.workload.proof.program` prints one JSON event per line on stdout.

The parent reads the events; a crash or a hang of this process fails one stage, and the report goes on.
All output of libraries goes to stderr.
"""

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devkit.estimate.settings import Precision
from devkit.workload import environment
from devkit.workload.proof.stages import (
    DEVICE_LOST_EXIT_CODE,
    STAGES,
    Depth,
    ProofSettings,
    StageReading,
    StageResult,
    StageSpec,
    StageStatus,
    run_stage,
    select_stages,
    skip_for_failed_need,
)

if TYPE_CHECKING:
    from devkit.workload.device import Device
    from devkit.workload.proof.models import ProofModels

Emit = Callable[[dict[str, Any]], None]

ALONE = {
    "torch": "stages:import_torch",
    "bitsandbytes": "stages:import_bitsandbytes",
    "libraries": "stages:import_libraries",
    "torch-build": "device_stages:prove_torch_build",
}
ON_DEVICE = {
    "device": "device_stages:prove_device",
    "kernel": "device_stages:prove_kernels",
    "compute-rate": "device_stages:prove_compute_rate",
    "memory-rate": "device_stages:prove_memory_rate",
    "link-rate": "device_stages:prove_link_rate",
    "bitsandbytes-native": "device_stages:prove_bitsandbytes",
    "triton": "device_stages:prove_triton",
    "nccl": "collectives:prove_nccl",
    "gloo": "collectives:prove_gloo",
    "compile": "device_stages:prove_compile",
}
ON_MODELS = {
    "reference": "model_stages:prove_reference",
    "inference": "model_stages:prove_caches_agree",
    "memory-estimate": "run_stages:prove_memory_estimate",
    "own-model": "run_stages:prove_own_model",
    "own-job": "run_stages:prove_own_job",
    "lora-memorizes": "model_stages:prove_lora_memorizes",
    "base-frozen": "model_stages:prove_base_frozen",
    "adapter-disabled": "model_stages:prove_adapter_disabled",
    "adapter-reload": "model_stages:prove_adapter_reload",
    "adapter-merged": "model_stages:prove_adapter_merge",
    "resume": "model_stages:prove_resume",
    "checkpointing": "model_stages:prove_checkpointing",
    "qlora-memorizes": "model_stages:prove_qlora_memorizes",
    "qlora-frozen": "model_stages:prove_qlora_frozen",
    "optimizer-8bit": "model_stages:prove_8bit_optimizer",
    "int8-base": "model_stages:prove_int8_base",
}
"""Stage name -> module:function, by the argument that the function takes. Modules are imported when their stage runs,
so that an import which fails or crashes is that stage's result."""


class Proof:
    """Runs stages in order. The device and the models are made for the first stage that needs them."""

    def __init__(self, settings: ProofSettings, folder: Path, emit: Callable[[dict[str, Any]], None]) -> None:
        self._settings = settings
        self._folder = folder
        self._emit = emit

    def run(self, stages: Sequence[StageSpec], results: dict[str, StageResult]) -> bool:
        """Emit one result per stage; `results` of earlier processes count as needs. False when the device was lost."""
        for stage in stages:
            result, is_lost = skip_for_failed_need(stage, results), False
            if result is None:
                self._emit({"event": "started", "stage": stage.name})
                result, is_lost = run_stage(stage.name, lambda name=stage.name: self._readings(name))  # type: ignore[misc]
            results[stage.name] = result = replace(result, budget_s=stage.budget_s)
            self._emit({"event": "finished", "stage": result.to_document()})
            if is_lost:
                return False
        return True

    def _readings(self, name: str) -> Iterable[StageReading]:
        target = ALONE.get(name) or ON_DEVICE.get(name) or ON_MODELS[name]
        module, _, function = target.partition(":")
        prove: Callable[..., Iterable[StageReading]] = getattr(
            importlib.import_module(f"devkit.workload.proof.{module}"), function
        )
        if name in ALONE:
            return prove()
        return prove(self._device if name in ON_DEVICE else self._models)

    @cached_property
    def _device(self) -> "Device":
        from devkit.workload import device

        make_torch_deterministic()
        chosen = device.choose_device(self._settings.precision)
        driver = device.read_cuda_driver()
        self._emit({"event": "device", "device": device.describe_device(chosen, driver)})
        return chosen

    @cached_property
    def _models(self) -> "ProofModels":
        from devkit.workload.proof.models import ProofModels

        return ProofModels(self._settings, self._device, self._folder)


def make_torch_deterministic() -> None:
    """Set deterministic kernels, and no more threads than the model is worth."""
    import torch

    torch.set_num_threads(environment.PROOF_THREADS)
    torch.set_float32_matmul_precision("highest")
    # Where a GPU kernel has no deterministic form torch only warns: the stages compare bits themselves.
    torch.use_deterministic_algorithms(True, warn_only=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m devkit.workload.proof.program", description=__doc__)
    parser.add_argument("--depth", type=Depth, choices=tuple(Depth), default=Depth.STANDARD)
    parser.add_argument("--precision", type=Precision, choices=tuple(Precision), default=None)
    parser.add_argument("--model", default="", help="a model of the user's, by folder or by its id in the cache")
    parser.add_argument("--job", default="", help="a TOML file with the settings of a run of the user's")
    parser.add_argument("--stages", default="", help="names separated by commas; all of the depth when empty")
    parser.add_argument(
        "--scratch", default=None, help="where to make the folder for adapters; the system's by default"
    )
    parser.add_argument("--failed", default="", help="stages that failed in an earlier process")
    return parser.parse_args()


def main() -> int:
    """Run the chosen stages. Exit status 0 when all of them ran, passed or not; 75 when the device was lost."""
    arguments = _parse_arguments()
    environment.prepare_process()
    failed = {name: StageResult(name, StageStatus.FAILED) for name in filter(None, arguments.failed.split(","))}
    if "bitsandbytes" in failed:
        environment.hide_bitsandbytes()
    names = set(filter(None, arguments.stages.split(",")))
    stages = [stage for stage in STAGES if stage.name in names] if names else select_stages(arguments.depth)
    settings = ProofSettings.for_depth(arguments.depth, arguments.precision, model=arguments.model, job=arguments.job)
    with (
        environment.reserve_stdout_for_events() as emit,
        tempfile.TemporaryDirectory(prefix="devkit-proof-", dir=arguments.scratch) as folder,
    ):
        emit({"event": "environment", "environment": environment.describe_environment()})
        # The folder's name without its path: reports are shown to others.
        shown = replace(settings, model=Path(settings.model).name, job=Path(settings.job).name)
        emit({"event": "inputs", "inputs": {"depth": arguments.depth, **asdict(shown)}})
        if not Proof(settings, Path(folder), emit).run(stages, failed):
            return DEVICE_LOST_EXIT_CODE
        emit({"event": "done"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
