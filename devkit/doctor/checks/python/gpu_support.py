"""Checks of torch against the GPUs: its build, its kernels, the GPUs that it sees, and the features that they support."""

from collections.abc import Iterator

from devkit.compat.rules import CodeSupport, check_gpu_code
from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.python.packages import find_python_packages
from devkit.doctor.gpus import format_run_utilization
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.doctor.preconditions import (
    is_in_container,
    require,
    require_gpu_run,
    require_python,
    require_system,
    require_torch,
    require_torch_cuda,
)
from devkit.doctor.wheels import (
    find_compatible_wheel,
    find_driver_cuda,
    find_wheel_row,
    find_workload_side,
    format_wheel_install_command,
)
from devkit.facts.model import Facts, Gpu
from devkit.facts.values import Unknown
from devkit.text import join_words


def _reinstall_fix(facts: Facts, summary: str) -> Fix:
    wheel = find_compatible_wheel(facts)
    if wheel is None:
        return Fix(
            f"{summary} No wheel in devkit's tables fits this driver and these GPUs.", where=find_workload_side(facts)
        )
    return Fix(
        f"{summary} torch {wheel.version} for {wheel.label} fits this driver and these GPUs. In a generated dev"
        " container, set it in devkit.toml and rebuild.",
        (format_wheel_install_command(facts, wheel),),
        where=find_workload_side(facts),
        docs="https://pytorch.org/get-started/locally/",
    )


@check("PYT001", causes=("PYT003", "PYT017", "PYT018", "PYT019", "PYT020"))
def torch_is_cuda_build(facts: Facts) -> Iterator[Finding]:
    torch = require_torch(facts)
    if require(torch.cuda) is not None:
        return
    is_arm = require_system(facts).machine == "aarch64"
    yield Finding(
        Severity.ERROR if is_in_container(facts) else Severity.WARNING,
        f"torch {torch.version} is a CPU build, so it never uses the GPU",
        _reinstall_fix(
            facts,
            "On aarch64 the default index long had CPU builds only: install from a CUDA index."
            if is_arm
            else "Install torch from a CUDA index, and find out which requirement replaced it.",
        ),
        evidence=(f"torch {torch.version}: no CUDA in its version file", f"machine {require_system(facts).machine}"),
    )


@check("PYT002", causes=("PYT003", "PYT012", "CON004", "CON005", "PYT017", "PYT018", "PYT019", "PYT020"))
def torch_has_kernels(facts: Facts) -> Iterator[Finding]:
    torch, cuda = require_torch(facts), require_torch_cuda(facts)
    if not facts.gpus:
        raise NotApplicable("no GPU answers")
    row = find_wheel_row(torch.version, cuda, require_system(facts).machine)
    if row is None:
        raise NotApplicable(f"the tables do not know what torch {torch.version} with CUDA {cuda} was built for")
    driver = find_driver_cuda(facts)
    compiles = driver is None or driver.can_compile(cuda)
    for gpu in facts.gpus:
        capability = require(gpu.capability)
        if check_gpu_code(capability, row.sass, row.ptx, driver_compiles=compiles) is CodeSupport.NONE:
            yield Finding(
                Severity.WARNING if row.is_inferred else Severity.ERROR,
                f"torch {torch.version} has no kernels for {capability.sm} (GPU {gpu.index}, {gpu.name})",
                _reinstall_fix(facts, "Install a torch that has them."),
                subject=f"GPU {gpu.index}",
                evidence=(f"built for {join_words(row.sass)}", f"GPU {gpu.index} has compute capability {capability}"),
                confidence=Confidence.LIKELY if row.is_inferred else Confidence.CERTAIN,
            )


@check("PYT006", causes=("CUD011", "PYT017"))
def visible_devices_exist(facts: Facts) -> Iterator[Finding]:
    value = require_python(facts).cuda_visible_devices
    if value is None:
        raise NotApplicable("CUDA_VISIBLE_DEVICES is not set")
    if not facts.gpus:
        raise NotApplicable("no GPU answers")
    entries = [entry.strip() for entry in value.split(",")]
    unknown = next((entry for entry in entries if not _is_existing_gpu(entry, facts.gpus)), None)
    if unknown is None:
        return
    usable = entries.index(unknown)
    yield Finding(
        Severity.WARNING if usable or unknown in ("", "-1", "NoDevFiles") else Severity.ERROR,
        f"CUDA_VISIBLE_DEVICES={value} hides every GPU"
        if usable == 0
        else f"CUDA_VISIBLE_DEVICES={value}: {unknown!r} is no GPU here, so only the entries before it are used",
        Fix(
            "Unset it, or list GPUs that exist. Look for it in the Dockerfile, Compose file and shell profile.",
            ("unset CUDA_VISIBLE_DEVICES",),
            where=find_workload_side(facts),
        ),
        evidence=(f"CUDA_VISIBLE_DEVICES={value}", f"{len(facts.gpus)} GPUs answer"),
    )


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
    if not facts.gpus:
        raise NotApplicable("no GPU answers")
    needed = load_tables().stack.features[feature].capability
    return tuple(gpu for gpu in facts.gpus if require(gpu.capability) < needed)


@check("PYT013")
def gpus_support_bf16(facts: Facts) -> Iterator[Finding]:
    for gpu in _find_older_gpus(facts, "bf16"):
        yield Finding(
            Severity.NOTE,
            f"GPU {gpu.index} ({gpu.name}, {gpu.capability}) has no bfloat16: train in fp16",
            Fix(
                "Choose fp16 in the training settings, and float16 as compute type of 4-bit models.",
                (
                    "TrainingArguments(fp16=True, bf16=False)",
                    "BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.float16)",
                ),
                where=find_workload_side(facts),
            ),
            subject=f"GPU {gpu.index}",
            evidence=(f"compute capability {gpu.capability}",),
        )


@check("PYT014")
def gpus_support_int8(facts: Facts) -> Iterator[Finding]:
    if "bitsandbytes" not in find_python_packages(facts):
        raise NotApplicable("bitsandbytes is not installed in this Python")
    for gpu in _find_older_gpus(facts, "llm-int8"):
        yield Finding(
            Severity.NOTE,
            f"GPU {gpu.index} ({gpu.name}, {gpu.capability}) has no fast 8-bit multiplication: load_in_8bit is slow or"
            " refused",
            Fix(
                "Load models in 4 bits (NF4) instead.",
                ('BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")',),
                where=find_workload_side(facts),
            ),
            subject=f"GPU {gpu.index}",
            evidence=(f"compute capability {gpu.capability}",),
        )


@check("PYT015")
def cuda_numbers_gpus_as_nvidia_smi(facts: Facts) -> Iterator[Finding]:
    python = require_python(facts)
    selected = python.cuda_visible_devices or ""
    if not any(entry.strip().isdigit() for entry in selected.split(",")):
        raise NotApplicable("CUDA_VISIBLE_DEVICES picks no GPU by its number")
    if len({gpu.name for gpu in facts.gpus}) < 2:
        raise NotApplicable("there are not two kinds of GPU here")
    order = require(python.cuda_device_order)
    if order == "PCI_BUS_ID":
        return
    yield Finding(
        Severity.NOTE,
        f"CUDA_VISIBLE_DEVICES={selected} counts the fastest GPU first, which is not how nvidia-smi counts",
        Fix(
            "Let CUDA count as nvidia-smi does, or name GPUs by their UUID.",
            ("export CUDA_DEVICE_ORDER=PCI_BUS_ID",),
            where=find_workload_side(facts),
        ),
        evidence=(f"CUDA_DEVICE_ORDER={order or 'unset'}", *(f"GPU {gpu.index}: {gpu.name}" for gpu in facts.gpus)),
        confidence=Confidence.POSSIBLE,
    )


@check("PYT022", causes=("GPU029",))
def attention_is_fused(facts: Facts) -> Iterator[Finding]:
    run = require_gpu_run(facts)
    if require(run.attention) == "eager":
        yield Finding(
            Severity.WARNING,
            "attention runs eagerly: all scores are written to memory and read again",
            Fix(
                "Let PyTorch's own fused attention do it.", ("devkit finetune … --attention sdpa",), where=Side.PROJECT
            ),
            evidence=("attention: eager", *format_run_utilization(run)),
        )
