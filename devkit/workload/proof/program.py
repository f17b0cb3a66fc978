"""The proof as a program: `python -m devkit.workload.proof.program` prints one JSON event per line on stdout.

The parent reads the events; a crash or a hang of this process is one failed stage to it, not the end of the report.
Whatever libraries print goes to stderr.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devkit.workload import environment
from devkit.workload.proof.stages import (
    DEVICE_LOST_EXIT_CODE,
    STAGES,
    Depth,
    Precision,
    ProofSettings,
    StageReading,
    StageResult,
    StageSpec,
    StageStatus,
    run_stage,
    skip_for_failed_need,
)

if TYPE_CHECKING:
    from devkit.workload.device import Device
    from devkit.workload.proof.training import ProofModels

Emit = Callable[[dict[str, Any]], None]

ALONE = {
    "torch": "environment:import_torch",
    "bitsandbytes": "environment:import_bitsandbytes",
    "libraries": "environment:import_libraries",
    "torch-build": "proof.device_stages:prove_torch_build",
}
ON_DEVICE = {
    "device": "proof.device_stages:prove_device",
    "kernel": "proof.device_stages:prove_kernels",
    "compute-rate": "proof.rates:prove_compute_rate",
    "memory-rate": "proof.rates:prove_memory_rate",
    "link-rate": "proof.rates:prove_link_rate",
    "bitsandbytes-native": "proof.device_stages:prove_bitsandbytes",
    "triton": "proof.device_stages:prove_triton",
    "nccl": "proof.collectives:prove_nccl",
    "gloo": "proof.collectives:prove_gloo",
    "compile": "proof.device_stages:prove_compile",
}
ON_BENCH = {
    "reference": "proof.model_stages:prove_reference",
    "inference": "proof.model_stages:prove_caches_agree",
    "memory-estimate": "proof.run_stages:prove_memory_estimate",
    "own-model": "proof.run_stages:prove_own_model",
    "lora-memorises": "proof.model_stages:prove_lora_memorizes",
    "base-frozen": "proof.model_stages:prove_base_frozen",
    "adapter-disabled": "proof.model_stages:prove_adapter_disabled",
    "adapter-reload": "proof.model_stages:prove_adapter_reload",
    "adapter-merged": "proof.model_stages:prove_adapter_merge",
    "resume": "proof.model_stages:prove_resume",
    "checkpointing": "proof.model_stages:prove_checkpointing",
    "qlora-memorises": "proof.model_stages:prove_qlora_memorizes",
    "qlora-frozen": "proof.model_stages:prove_qlora_frozen",
    "optimizer-8bit": "proof.model_stages:prove_8bit_optimizer",
    "int8-base": "proof.model_stages:prove_int8_base",
}
"""Stage name -> module:function, by what the function is given. Modules load when their stage runs, so that
an import which fails or crashes is that stage's result."""


class Proof:
    """Runs stages in order. Device and models are made when the first stage asks for them."""

    def __init__(self, settings: ProofSettings, folder: Path, emit: Emit) -> None:
        self._settings = settings
        self._folder = folder
        self._emit = emit

    def run(self, stages: Sequence[StageSpec], results: dict[str, StageResult]) -> bool:
        """Emit one result per stage; `results` of earlier processes count as needs. False when the device was lost."""
        for stage in stages:
            result, error = skip_for_failed_need(stage, results), None
            if result is None:
                self._emit({"event": "started", "stage": stage.name})
                result, error = run_stage(stage.name, lambda name=stage.name: self._readings(name))  # type: ignore[misc]
            results[stage.name] = result = replace(result, budget_s=stage.budget_s)
            self._emit({"event": "finished", "stage": result.to_document()})
            if error is not None and is_device_lost(error):
                return False
        return True

    def _readings(self, name: str) -> Iterable[StageReading]:
        if name in ALONE:
            return _load(ALONE[name])()
        if name in ON_DEVICE:
            return _load(ON_DEVICE[name])(self._device)
        return _load(ON_BENCH[name])(self._bench)

    @cached_property
    def _device(self) -> "Device":
        from devkit.workload import device

        make_torch_deterministic()
        chosen = device.choose_device(self._settings.precision)
        driver = device.read_cuda_driver()
        self._emit({"event": "device", "device": device.describe_device(chosen, driver)})
        return chosen

    @cached_property
    def _bench(self) -> "ProofModels":
        from devkit.workload.proof.training import ProofModels

        return ProofModels(self._settings, self._device, self._folder)


def _load(target: str) -> Callable[..., Iterable[StageReading]]:
    module, _, function = target.partition(":")
    loaded: Callable[..., Iterable[StageReading]] = getattr(
        importlib.import_module(f"devkit.workload.{module}"), function
    )
    return loaded


def make_torch_deterministic() -> None:
    """Repeatable kernels, and no more threads than the model is worth."""
    import torch

    torch.set_num_threads(environment.PROOF_THREADS)
    torch.set_float32_matmul_precision("highest")
    # Where a GPU kernel has no repeatable form torch only warns: the stages compare bits themselves.
    torch.use_deterministic_algorithms(True, warn_only=True)


def is_device_lost(error: Exception) -> bool:
    """Whether the error leaves the CUDA context unusable. Out of memory does not."""
    return type(error).__name__ == "AcceleratorError" or (
        "CUDA error" in str(error) and type(error).__name__ != "OutOfMemoryError"
    )


@contextmanager
def reserve_stdout_for_events() -> Iterator[Emit]:
    """Keep stdout for events: whatever else writes to file descriptor 1, C libraries included, reaches stderr."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(own, "w", encoding="utf-8", buffering=1) as stream:
        yield lambda event: print(json.dumps(event, allow_nan=False), file=stream, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m devkit.workload.proof.program", description=__doc__)
    parser.add_argument("--depth", type=Depth, choices=tuple(Depth), default=Depth.STANDARD)
    parser.add_argument("--precision", type=Precision, choices=tuple(Precision), default=None)
    parser.add_argument("--model", default="", help="a model of the user's, by folder or by its id in the cache")
    parser.add_argument("--stages", default="", help="names separated by commas; all of the depth when empty")
    parser.add_argument(
        "--scratch", default=None, help="where to make the folder for adapters; the system's by default"
    )
    parser.add_argument("--failed", default="", help="stages that failed in an earlier process")
    return parser.parse_args()


def _chosen(arguments: argparse.Namespace) -> list[StageSpec]:
    wanted = set(filter(None, arguments.stages.split(",")))
    return [
        stage for stage in STAGES if (stage.name in wanted if wanted else stage.depth.level <= arguments.depth.level)
    ]


def main() -> int:
    """Run the chosen stages. Exit status 0 when all of them ran, whatever came of them; 75 when the device was lost."""
    arguments = _arguments()
    environment.prepare_process()
    failed = {name: StageResult(name, StageStatus.FAILED) for name in filter(None, arguments.failed.split(","))}
    if "bitsandbytes" in failed:
        environment.hide_bitsandbytes()
    settings = ProofSettings.for_depth(arguments.depth, arguments.precision, arguments.model)
    with (
        reserve_stdout_for_events() as emit,
        tempfile.TemporaryDirectory(prefix="devkit-proof-", dir=arguments.scratch) as folder,
    ):
        emit({"event": "environment", "environment": environment.describe_environment()})
        # A folder's name, and not where somebody keeps it: reports are shown to others.
        shown = replace(settings, model=Path(settings.model).name)
        emit({"event": "inputs", "inputs": {"depth": arguments.depth, **asdict(shown)}})
        if not Proof(settings, Path(folder), emit).run(_chosen(arguments), failed):
            return DEVICE_LOST_EXIT_CODE
        emit({"event": "done"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
