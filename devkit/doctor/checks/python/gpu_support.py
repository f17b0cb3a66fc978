"""Checks of torch against the GPUs: its build, its kernels, the GPUs that it sees, and the features that they support."""

from collections.abc import Iterator
from typing import Any

from devkit.compat.rules import CodeSupport, check_gpu_code
from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.python.packages import find_python_packages
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    is_in_container,
    require,
    require_some,
    require_torch,
    require_torch_cuda,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.wheels import find_compatible_wheel, find_driver_cuda, find_wheel_row, list_wheel_requirements
from devkit.facts.gpu import Gpu
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import join_words


def _find_wheel_values(facts: Facts) -> dict[str, Any]:
    wheel = find_compatible_wheel(facts)
    if wheel is None:
        return {"wheel": ""}
    return {
        "wheel": wheel.version,
        "label": wheel.label,
        "index": wheel.index_url,
        "requirements": list_wheel_requirements(facts, wheel),
    }


@check("PYT001", causes=("PYT003", "PYT017", "PYT018", "PYT019", "PYT020"))
def torch_is_cuda_build(facts: Facts) -> Iterator[Problem]:
    torch = require_torch(facts)
    if require(torch.cuda) is not None:
        return
    processor = require(facts.system).machine
    yield problem(
        "cpu-build",
        version=torch.version,
        processor=processor,
        **_find_wheel_values(facts),
        severity=Severity.ERROR if is_in_container(facts) else Severity.WARNING,
        evidence=(f"torch {torch.version}: no CUDA in its version file", f"machine {processor}"),
    )


@check("PYT002", causes=("PYT003", "PYT012", "CON004", "CON005", "PYT017", "PYT018", "PYT019", "PYT020"))
def torch_has_kernels(facts: Facts) -> Iterator[Problem]:
    torch, cuda = require_torch(facts), require_torch_cuda(facts)
    skip_if(not facts.gpus, "no GPU answers")
    row = find_wheel_row(torch.version, cuda, require(facts.system).machine)
    if row is None:
        raise NotApplicable(f"the tables do not list what torch {torch.version} with CUDA {cuda} was built for")
    driver = find_driver_cuda(facts)
    compiles = driver is None or driver.can_compile(cuda)
    for gpu in facts.gpus:
        capability = require(gpu.capability)
        if check_gpu_code(capability, row.sass, row.ptx, driver_compiles=compiles) is CodeSupport.NONE:
            yield problem(
                "no-kernels",
                version=torch.version,
                sm=capability.sm,
                index_of_gpu=gpu.index,
                gpu=gpu.name,
                **_find_wheel_values(facts),
                severity=Severity.WARNING if row.is_inferred else Severity.ERROR,
                subject=f"GPU {gpu.index}",
                evidence=(f"built for {join_words(row.sass)}", f"GPU {gpu.index} has compute capability {capability}"),
                confidence=Confidence.LIKELY if row.is_inferred else Confidence.CERTAIN,
            )


@check("PYT006", causes=("CUD011", "PYT017"))
def visible_devices_exist(facts: Facts) -> Iterator[Problem]:
    value = require_some(require(facts.python).cuda_visible_devices, "CUDA_VISIBLE_DEVICES is not set")
    skip_if(not facts.gpus, "no GPU answers")
    entries = [entry.strip() for entry in value.split(",")]
    unknown = next((entry for entry in entries if not _is_existing_gpu(entry, facts.gpus)), None)
    if unknown is None:
        return
    evidence = (f"CUDA_VISIBLE_DEVICES={value}", f"GPUs that answer: {len(facts.gpus)}")
    if entries.index(unknown):
        yield problem("unknown-entry", value=value, entry=unknown, evidence=evidence)
    else:
        is_meant = unknown in ("", "-1", "NoDevFiles")
        severity = Severity.WARNING if is_meant else Severity.ERROR
        yield problem("hides-all", value=value, severity=severity, evidence=evidence)


def _is_existing_gpu(entry: str, gpus: tuple[Gpu, ...]) -> bool:
    if entry.isdigit():
        return int(entry) < len(gpus)
    uuids = [gpu.uuid for gpu in gpus]
    if any(isinstance(uuid, Unknown) for uuid in uuids):
        return entry.startswith(("GPU-", "MIG-"))
    instances = [name for gpu in gpus for name in gpu.mig_instances]
    return bool(entry) and any(str(name).startswith(entry) for name in (*uuids, *instances))


def _find_older_gpus(facts: Facts, feature: str) -> tuple[Gpu, ...]:
    """GPUs that are too old for a feature of the tables."""
    require_torch_cuda(facts)
    skip_if(not facts.gpus, "no GPU answers")
    needed = load_tables().stack.features[feature].capability
    return tuple(gpu for gpu in facts.gpus if require(gpu.capability) < needed)


def _describe_older_gpu(name: str, gpu: Gpu) -> Problem:
    return problem(
        name,
        index=gpu.index,
        gpu=gpu.name,
        capability=gpu.capability,
        evidence=[f"compute capability {gpu.capability}"],
    )


@check("PYT013")
def gpus_support_bf16(facts: Facts) -> Iterator[Problem]:
    for gpu in _find_older_gpus(facts, "bf16"):
        yield _describe_older_gpu("no-bfloat16", gpu)


@check("PYT014")
def gpus_support_int8(facts: Facts) -> Iterator[Problem]:
    skip_if("bitsandbytes" not in find_python_packages(facts), "bitsandbytes is not installed in this Python")
    for gpu in _find_older_gpus(facts, "llm-int8"):
        yield _describe_older_gpu("no-int8", gpu)


@check("PYT015")
def cuda_numbers_gpus_as_nvidia_smi(facts: Facts) -> Iterator[Problem]:
    python = require(facts.python)
    selected = python.cuda_visible_devices or ""
    if not any(entry.strip().isdigit() for entry in selected.split(",")):
        raise NotApplicable("CUDA_VISIBLE_DEVICES selects no GPU by number")
    skip_if(len({gpu.name for gpu in facts.gpus}) < 2, "all GPUs here are the same model")
    order = require(python.cuda_device_order)
    if order == "PCI_BUS_ID":
        return
    yield problem(
        "fastest-first",
        selected=selected,
        evidence=(f"CUDA_DEVICE_ORDER={order or 'unset'}", *(f"GPU {gpu.index}: {gpu.name}" for gpu in facts.gpus)),
    )
