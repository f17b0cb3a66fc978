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
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from devkit.estimate.settings import Precision
from devkit.probe.host import LocalHost
from devkit.workload import environment
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import CUDA_S, STAGES, Depth, ProofSettings, StageReading, select_stages

if TYPE_CHECKING:
    from devkit.workload.device import Device
    from devkit.workload.proof.models import ProofModels

MODULES = {
    "stages": ("bitsandbytes",),
    "device_stages": (
        *("torch-build", "device", "kernel", "compute-rate", "memory-rate", "link-rate"),
        *("bitsandbytes-native", "triton"),
    ),
    "collectives": ("nccl", "gloo"),
    "standalone": ("lora-memorizes", "adapter-reload"),
    "run_stages": ("memory-estimate", "preferences", "own-model"),
}
"""Module -> its stages, each a function `prove_<name>`; all others are in models. A module is imported when its
stage runs, so that an import which fails or crashes is that stage's result."""

IMPORTS = {"torch": standalone.import_torch, "libraries": standalone.import_libraries}


class Proof:
    """The stages of the full proof. The device and the models are made for the first stage that needs them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, emit: Callable[..., None]) -> None:
        self._folder, self._emit = folder, emit
        environment.prepare_process()
        if "bitsandbytes" in arguments.failed:
            environment.hide_bitsandbytes()
        depth = Depth(arguments.depth or Depth.STANDARD)
        precision = Precision(arguments.precision) if arguments.precision else None
        # The quick proof trains for fewer steps, still enough to memorize.
        steps = 50 if depth is Depth.QUICK else 80
        self._settings = ProofSettings(steps, precision=precision, model=arguments.model)
        names = arguments.stages
        stages = [stage for stage in STAGES if stage.name in names] if names else select_stages(depth)
        self.stages = [(stage.name, stage.needs, float(stage.budget_s)) for stage in stages]
        # The folder's name without its path: reports are shown to others.
        shown = replace(self._settings, model=Path(arguments.model).name)
        self.inputs = {"depth": depth, **standalone.INPUTS, **asdict(shown)}
        self.environment = environment.describe_environment()

    def prove(self, name: str) -> Iterable[StageReading]:
        if name in IMPORTS:
            return IMPORTS[name]()
        module = next((module for module, names in MODULES.items() if name in names), "models")
        prove: Callable[..., Iterable[StageReading]] = getattr(
            importlib.import_module(f"devkit.workload.proof.{module}"), f"prove_{name.replace('-', '_')}"
        )
        return prove(*(self._device if each == "device" else self._models for each in signature(prove).parameters))

    @cached_property
    def _device(self) -> "Device":
        from devkit.probe.deep import read_cuda
        from devkit.workload import device

        make_torch_deterministic()
        chosen = device.choose_device(self._settings.precision)
        self._emit(event="device", device=device.describe_device(chosen, read_cuda(LocalHost(), deadline_s=CUDA_S)))
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
