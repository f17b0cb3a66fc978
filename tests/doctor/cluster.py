"""A cluster for tests and benchmarks: one recorded machine many times over, each with what differs in real life."""

import copy
import hashlib
import json
import random

from tests.hosts.golden import expected_document

RECORDED = "dgx-h100-ok"


def recorded(name=RECORDED):
    """The saved facts of a recorded machine, as a document."""
    return copy.deepcopy(expected_document(name))


def varied(document, node, *, seed=0):
    """The same machine as another of its kind: serial numbers, heat, clocks, free space, memory, times, processes.

    Numbers scatter as on idle machines of one delivery. Nothing of it is a difference.
    """
    chance = random.Random(f"{seed} {node}")
    made = json.loads(json.dumps(document))
    made["taken_at"] = (
        f"2026-03-{chance.randint(1, 28):02d}T{chance.randint(0, 23):02d}:{chance.randint(0, 59):02d}:00+00:00"
    )
    made["driver"]["booted_at"] = f"2026-02-{chance.randint(1, 28):02d}T04:{chance.randint(0, 59):02d}:11+00:00"
    made["system"]["memory_bytes"] += chance.randrange(-40, 40) << 20
    for gpu in made["nvml"]["gpus"]:
        _vary_gpu(gpu, node, chance)
    for directory in made["storage"]["directories"]:
        if isinstance(directory["free_bytes"], int):
            directory["free_bytes"] = int(directory["free_bytes"] * chance.uniform(0.9, 1.4))
    chance.random()  # the nodes of the tests were drawn with one number more
    for line in range(chance.randint(0, 2)):
        made["kernel_log"].setdefault("driver_lines", []).append(f"NVRM: {chance.random()} something harmless {line}")
    return made


def _vary_gpu(gpu, node, chance):
    number = hashlib.sha256(f"{node} {gpu['index']}".encode()).hexdigest()
    gpu["uuid"] = f"GPU-{number[:8]}"
    gpu["free_bytes"] -= chance.randrange(0, 256 << 20)
    health = gpu["health"]
    if "unknown" in health:
        return
    health["temperature_c"] = chance.randint(26, 44)
    health["power_mw"] = chance.randrange(58_000, 132_000)
    health["sm_clock_mhz"] = chance.choice([345, 1980, 1980, 1980])
    health["clock_reasons"] = chance.choice([["gpu-idle"], ["gpu-idle"], [], ["sw-power-cap"]])
    health["utilization_percent"] = chance.choice([0, 0, 0, 3])
    if chance.random() < 0.3:
        own = {"type": "GpuProcess", "pid": chance.randrange(1000, 90_000), "name": "dcgm", "memory_bytes": 400 << 20}
        health["processes"] = [own]


def cluster(count, *, seed=0, name=RECORDED):
    """Names and documents of so many machines of one kind."""
    own = recorded(name)
    return {f"node-{number:04d}": varied(own, number, seed=seed) for number in range(1, count + 1)}


def put(document, path, value):
    """Change one field in place: `put(facts, "nvml.gpus.3.health.pcie_width", 8)`."""
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        document = document[step]
    document[last] = value


def written(directory, documents):
    """Each document as a file of its node's name."""
    for name, document in documents.items():
        (directory / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return directory
