"""The stage that another machine can repeat: the same few steps on the CPU in fp32, wherever the proof runs."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from devkit.workload import lora
from devkit.workload.bench import Bench
from devkit.workload.device import cpu_device
from devkit.workload.settings import Precision
from devkit.workload.stage import Reading, at_most, fact, series

STEPS = 12


def reference(bench: Bench) -> Iterator[Reading]:
    """LoRA starts to learn the sentence on the CPU. `devkit verify --check` repeats it and compares the losses.

    Equal software on an equal processor gives equal losses to the bit; others round differently.
    """
    settings = replace(bench.settings, precision=Precision.FP32)
    own = Bench(settings, cpu_device(Precision.FP32), bench.folder)
    model = lora.attach(own.base(), settings)
    losses = own.train(model, own.optimizer(model), STEPS)
    yield fact("processor", own.device.name)
    yield fact("instructions", torch.backends.cpu.get_cpu_capability())
    yield fact("adapter_sha256", lora.digest(model))
    yield at_most("last_loss", losses[-1], losses[0])
    yield series("losses", losses)
