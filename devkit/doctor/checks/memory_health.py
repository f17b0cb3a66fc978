"""Checks of a GPU's memory and of its own record of itself: errors, replaced rows, what the driver asks for."""

from collections.abc import Iterator

from devkit.doctor.checks.chains import TRIED
from devkit.doctor.checks.revive import reset_or_reboot
from devkit.doctor.gpus import name_of, read_states
from devkit.doctor.machine import driver_side
from devkit.doctor.model import Confidence, Finding, Fix, Restart, Severity, check
from devkit.facts.model import Facts
from devkit.text import count_of

MEMORY_ERRORS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
PAGE_RETIREMENT = "https://docs.nvidia.com/deploy/dynamic-page-retirement/"

_CAN_WAIT = "drain-p2p"
_ASKED = {
    "gpu-reset": "a reset",
    "node-reboot": "a reboot of the machine",
    "drain-p2p": "an end of all transfers between GPUs, and a reset then",
    "drain-and-reset": "an end of the work on it, and a reset",
    "recover-imex-domain": "a recovery of its IMEX domain",
    "bus-reset": "a reset of its bus",
    "system-reboot": "a reboot of the whole system",
}


@check(
    "GPU027",
    "No GPU asks to be recovered",
    covers=("B02", "B07", "B08"),
    symptoms=("GPU recovery action changed", "Xid 154", "GPU Reset Required", "Drain and Reset Recommended"),
    causes=("GPU009", "GPU010", *TRIED),
)
def no_recovery_is_asked_for(facts: Facts) -> Iterator[Finding]:
    """The driver considers every GPU usable as it is.

    Why it matters: after a fault the driver may keep a GPU listed, and nvidia-smi may show it, while new programs fail
    on it until it is reset. NVML then says which recovery it needs.
    How it is seen: NVML's field for the recovery action, which drivers have from release 555 or so on.
    Source: NVIDIA, NVML API reference, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; NVIDIA, Xid catalog, Xid 154.
    """
    for gpu, health in read_states(facts, "recovery_action"):
        action = str(health.recovery_action)
        if action == "none":
            continue
        yield Finding(
            Severity.WARNING if action == _CAN_WAIT else Severity.ERROR,
            f"{name_of(gpu)} is out of order: its driver asks for {_ASKED.get(action, action)}",
            reset_or_reboot(facts, None if "reboot" in action else gpu),
            subject=name_of(gpu),
            evidence=(f"{name_of(gpu)} {gpu.name}: recovery action {action}",),
        )


@check(
    "GPU009",
    "GPU memory is sound",
    covers=("B02",),
    symptoms=("uncorrectable ECC error encountered", "CUDA error: uncorrectable ECC error encountered", "Xid 48"),
    causes=("GPU010", "GPU011"),
)
def memory_has_no_open_error(facts: Facts) -> Iterator[Finding]:
    """No GPU counts an uncorrectable memory error since its driver was loaded.

    Why it matters: such an error ends the program that it hits. One alone is dealt with at the next reset; a count that
    grows again after a reset is a card that fails.
    How it is seen: NVML's volatile count of uncorrectable ECC errors. Most GeForce have no ECC.
    Source: NVIDIA, GPU memory error management; NVIDIA, Xid catalog, Xid 48, 94 and 95.
    """
    for gpu, health in read_states(facts, "ecc_uncorrected"):
        if not isinstance(health.ecc_uncorrected, int) or not health.ecc_uncorrected:
            continue
        yield Finding(
            Severity.WARNING,
            f"{name_of(gpu)} has had {count_of(health.ecc_uncorrected, 'uncorrectable memory error')} since its driver"
            " was loaded: programs that were hit have ended, and it should be reset before long work",
            Fix(
                "Stop the programs on the GPU and reset it, which retires the bad memory. If the count grows again soon"
                " after, have the card tested and replaced.",
                (f"sudo nvidia-smi --gpu-reset -i {gpu.index}", f"nvidia-smi -q -d ECC -i {gpu.index}"),
                where=driver_side(facts),
                root=True,
                docs=MEMORY_ERRORS,
            ),
            subject=name_of(gpu),
            evidence=(f"{name_of(gpu)} {gpu.name}: uncorrectable, volatile: {health.ecc_uncorrected}",),
        )


@check(
    "GPU010",
    "Bad rows of GPU memory are replaced",
    covers=("B03", "B04"),
    symptoms=(
        "Row Remapper: New row marked for remapping, reset gpu to activate",
        "Row Remap Failure",
        "Xid 63",
        "Xid 64",
    ),
)
def bad_rows_are_replaced(facts: Facts) -> Iterator[Finding]:
    """No GPU waits for a reset to replace a bad row of its memory, and none has run out of spare rows.

    Why it matters: until the reset the row is only avoided. A replacement that failed means that the spare rows of that
    part are used up, for which NVIDIA takes a card back.
    How it is seen: NVML's state of row remapping, which Ampere and newer have.
    Source: NVIDIA, GPU memory error management, "Row remapping"; NVIDIA, Xid catalog, Xid 63 and 64.
    """
    for gpu, health in read_states(facts, "remap_pending"):
        evidence = (f"{name_of(gpu)} {gpu.name}: pending {health.remap_pending}, failed {health.remap_failed}",)
        if health.remap_failed is True:
            yield Finding(
                Severity.WARNING,
                f"{name_of(gpu)} could not replace a bad row of its memory: its spare rows are used up there",
                Fix(
                    "Move important work to another GPU. Run NVIDIA's field diagnostics or `dcgmi diag -r 3`, and ask"
                    " the vendor for a replacement with their report.",
                    (f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.index}",),
                    docs=MEMORY_ERRORS,
                ),
                subject=name_of(gpu),
                evidence=evidence,
            )
        elif health.remap_pending is True:
            yield Finding(
                Severity.WARNING,
                f"{name_of(gpu)} waits for a reset to replace a bad row of its memory",
                Fix(
                    "Reset the GPU, or reboot, at the next opportunity; until then the row is avoided.",
                    (f"sudo nvidia-smi --gpu-reset -i {gpu.index}",),
                    root=True,
                    docs=MEMORY_ERRORS,
                ),
                subject=name_of(gpu),
                evidence=evidence,
            )


@check(
    "GPU011",
    "Bad pages of GPU memory are retired",
    covers=("B05",),
    symptoms=("Pending Page Blacklist", "Dynamic Page Retirement: New retired page, reload the driver to activate"),
)
def bad_pages_are_retired(facts: Facts) -> Iterator[Finding]:
    """No GPU of the Volta generation or older waits for a reboot to retire a bad page of its memory.

    Why it matters: until the driver is loaded anew, programs may still get the page and end with a memory error.
    How it is seen: NVML's pending status of page retirement; newer GPUs replace rows instead.
    Source: NVIDIA, Dynamic Page Retirement.
    """
    for gpu, health in read_states(facts, "retirement_pending"):
        if health.retirement_pending is not True:
            continue
        yield Finding(
            Severity.WARNING,
            f"{name_of(gpu)} waits for its driver to be loaded anew, to retire a bad page of its memory",
            Fix(
                "Reboot, or unload and load the driver, when no program uses the GPU. Many retired pages are a reason"
                " to have the card replaced: the document says how many.",
                ("nvidia-smi -q -d PAGE_RETIREMENT", "sudo reboot"),
                root=True,
                restart=Restart.HOST,
                docs=PAGE_RETIREMENT,
            ),
            subject=name_of(gpu),
            evidence=(f"{name_of(gpu)} {gpu.name}: retired pages pending",),
        )


@check(
    "GPU012",
    "The GPU's own record (infoROM) is intact",
    covers=("B15",),
    symptoms=("WARNING: infoROM is corrupted at gpu",),
)
def inforom_is_intact(facts: Facts) -> Iterator[Finding]:
    """NVML can read the configuration that each GPU stores on its own board.

    Why it matters: the infoROM keeps the record of memory errors and of settings such as ECC. A damaged one does not
    keep programs from running, but replaced rows and settings may be forgotten at the next start.
    How it is seen: NVML's return value 14, "corrupted infoROM".
    Source: NVIDIA, NVML API reference, nvmlReturn_t and nvmlDeviceGetInforomConfigurationChecksum.
    """
    for gpu, health in read_states(facts, "inforom_ok"):
        if health.inforom_ok is False:
            yield Finding(
                Severity.WARNING,
                f"the infoROM of {name_of(gpu)} is corrupted: the GPU works, but may forget its memory's errors",
                Fix(
                    "Work on if you must, and ask the card's vendor for a new infoROM image or a replacement.",
                    (f"nvidia-smi -q -i {gpu.index}",),
                    where=driver_side(facts),
                ),
                subject=name_of(gpu),
                evidence=("NVML returned 14: corrupted infoROM",),
                confidence=Confidence.LIKELY,
            )
