"""What takes a time that grows faster than its input hangs on a large machine, log or project."""

import random
import time
from dataclasses import replace

import pytest

from devkit.api import diagnose, explain
from devkit.doctor.comparison import compare_nodes, read_node
from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_dependencies, read_project
from tests.doctor.cluster import cluster
from tests.doctor.machines import healthy

LARGEST_RATIO = 2.3
"""The time of an input that is twice as long; 2 is linear."""

LOG_LINES = (
    "epoch {number}: loss 0.{number} on cuda:0, 812 tokens/s",
    "[rank{number}] NCCL WARN Call to connect returned Connection refused, retrying",
    '  File "/usr/lib/python3/dist-packages/torch/nn/module_{number}.py", line {number}, in forward',
    "Successfully installed package-{number}-1.{number}.0",
    "RuntimeError: CUDA error: an illegal memory access was encountered, step {number}",
)


def make_machine(gpus, containers):
    """A machine with so many GPUs, each too full, and so many running containers, each without a GPU request."""
    facts = healthy()
    (gpu,), (pci,), (running,) = facts.nvml.gpus, facts.driver.pci_gpus, facts.engine.containers
    addresses = [f"0000:{number // 256:02x}:{number % 256:02x}.0" for number in range(gpus)]
    several = (replace(gpu, index=number, uuid=f"GPU-{number}", free_bytes=number << 20) for number in range(gpus))
    others = (
        replace(running, id=f"{number:012x}", name=f"job-{number}", gpu_request="") for number in range(containers)
    )
    return replace(
        facts,
        driver=replace(facts.driver, pci_gpus=tuple(replace(pci, address=address) for address in addresses)),
        nvml=replace(facts.nvml, gpus=tuple(several)),
        engine=replace(facts.engine, containers=tuple(others)),
    )


def judge(facts):
    found = diagnose(facts)
    found.to_document(), found.to_html(), str(found)


def write_project(folder, requirements, programs):
    folder.mkdir()
    lines = [f"package-{number}>=1.{number}" for number in range(requirements)]
    (folder / "requirements.txt").write_text("\n".join(lines), encoding="utf-8")
    for number in range(programs):
        (folder / f"program_{number}.py").write_text(f"import torch, package_{number}\n", encoding="utf-8")
    return folder


def read(folder):
    read_dependencies(LocalHost(), project=str(folder))
    read_project(LocalHost(), project=str(folder))


def make_log(lines):
    chance = random.Random(lines)
    return "\n".join(chance.choice(LOG_LINES).format(number=number) for number in range(lines))


GROWING = {
    "GPUs": (100, lambda count, _: make_machine(count, 1), judge),
    "containers": (400, lambda count, _: make_machine(1, count), judge),
    "nodes": (60, lambda count, _: cluster(count), lambda nodes: compare_nodes(map(read_node, nodes, nodes.values()))),
    "lines of a log": (20_000, lambda count, _: make_log(count), lambda text: explain(text, use_machine=False)),
    "requirements": (4_000, lambda count, folder: write_project(folder, count, 1), read),
    "files": (1_000, lambda count, folder: write_project(folder, 1, count), read),
}
"""What grows -> how many there are, what makes an input of so many, and what devkit does with it."""


@pytest.mark.full
@pytest.mark.parametrize("what", GROWING)
def test_twice_as_many_take_twice_as_long(what, tmp_path):
    count, make, use = GROWING[what]
    inputs = [make(times * count, tmp_path / str(times)) for times in (1, 2)]
    best = [float("inf"), float("inf")]
    for _ in range(5):
        for place, given in enumerate(inputs):
            started = time.process_time()
            use(given)
            best[place] = min(best[place], time.process_time() - started)
        if best[1] <= LARGEST_RATIO * best[0]:
            break
    assert best[0] > 0.05, "too short to compare"
    assert best[1] <= LARGEST_RATIO * best[0], best
