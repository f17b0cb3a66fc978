"""Reports of `devkit verify` from machines with two H100, as that command writes them."""

import random

from devkit.verify.report import ProofLocation, VerificationReport, add_hash
from devkit.workload.proof.stages import StageResult, StageStatus

HASH = "8602da021f60c87f9f033f3bf2307f165ae65e237be8cc9a22e54905615ce0f9"
LAST_LOSS = 0.6823710799217224


def proof(node, *, count=2):
    """One healthy report: rates, heat and times scatter by the node, and everything else is the same."""
    chance = random.Random(node)
    rates = {f"gpu_{index}_copy_gb_per_s": round(2600 * chance.uniform(0.98, 1.02), 3) for index in range(count)}
    stages = (
        _stage("torch", chance, {"version": "2.9.1+cu128"}),
        _stage("memory-rate", chance, rates),
        _stage("kernel", chance, {"matmul_bf16_error": chance.uniform(1, 9) * 1e-7}),
        _stage("reference", chance, {**_REFERENCE, "adapter_sha256": HASH, "last_loss": LAST_LOSS}),
        _stage("lora-memorizes", chance, {"steps": 80, "last_loss": chance.uniform(1, 9) * 1e-4}),
        _stage("nccl", chance, {"bus_gb_per_s": round(310 * chance.uniform(0.97, 1.03), 2)}),
    )
    environment = {"devkit": "0.1.0", "torch": "2.9.1+cu128", "transformers": "5.0.0", "peft": "0.18.0", "cpus": "192"}
    device = {"kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "count": count, "driver": "570.172.08"}
    report = VerificationReport(
        ProofLocation.CONTAINER, device, environment, stages, taken_at=f"2026-03-01T00:00:{node % 60:02d}"
    )
    return report.to_document()


_REFERENCE = {"processor": "Intel Xeon 8480C", "instructions": "AVX512"}


def _stage(name, chance, measured):
    return StageResult(name, StageStatus.PASSED, measured, ms=1000 * chance.uniform(0.5, 2))


def proofs(count):
    """Names and reports of so many nodes."""
    return {f"node-{number:04d}": proof(number) for number in range(1, count + 1)}


def changed(document, stage, **changes):
    """A report whose stage read something else, with its hash made anew. `status` and `reason` are the stage's own."""
    for each in document["stages"]:
        if each["name"] == stage:
            own = {name: changes.pop(name) for name in ("status", "reason") if name in changes}
            each.update(own)
            each["measured"].update(changes)
    document.pop("report_sha256")
    return add_hash(document)
