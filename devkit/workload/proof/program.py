"""The proof as a program: `python -m devkit.workload.proof.program` prints one JSON event per line on stdout.

The parent reads the events; a crash or a hang of this process fails one stage, and the report goes on.
All output of libraries goes to stderr.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from devkit.estimate.settings import Precision
from devkit.workload import environment
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import STAGES, Depth, ProofSettings, StageReading, select_stages

if TYPE_CHECKING:
    from devkit.workload.device import Device
    from devkit.workload.proof.models import ProofModels

ALONE = {
    "torch": "standalone:import_torch",
    "bitsandbytes": "stages:import_bitsandbytes",
    "libraries": "standalone:import_libraries",
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
    "preferences": "run_stages:prove_preferences",
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
    """The stages of the full proof. The device and the models are made for the first stage that needs them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, emit: Callable[..., None]) -> None:
        self._folder, self._emit = folder, emit
        environment.prepare_process()
        if "bitsandbytes" in arguments.failed:
            environment.hide_bitsandbytes()
        depth = Depth(arguments.depth or Depth.STANDARD)
        precision = Precision(arguments.precision) if arguments.precision else None
        self._settings = ProofSettings.for_depth(depth, precision, model=arguments.model, job=arguments.job)
        names = arguments.stages
        stages = [stage for stage in STAGES if stage.name in names] if names else select_stages(depth)
        self.stages = [(stage.name, stage.needs, float(stage.budget_s)) for stage in stages]
        # The folder's name without its path: reports are shown to others.
        shown = replace(self._settings, model=Path(arguments.model).name, job=Path(arguments.job).name)
        self.inputs = {"depth": depth, **asdict(shown)}

    def describe_environment(self) -> dict[str, str]:
        """Return the versions that the report names."""
        return environment.describe_environment()

    def prove(self, name: str) -> Iterable[StageReading]:
        """Return the readings of a stage."""
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
        self._emit(event="device", device=device.describe_device(chosen, driver))
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


if __name__ == "__main__":
    sys.exit(standalone.main(Proof))
