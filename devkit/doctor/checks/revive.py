"""How a GPU that failed is brought back, from the gentlest means to the strongest."""

from devkit.doctor.machine import driver_side
from devkit.doctor.model import Fix, Restart, Side
from devkit.doctor.xids import SOURCE
from devkit.facts.model import Facts, FailedGpu, Gpu


def cold_start(facts: Facts) -> Fix:
    """For a GPU that has left the bus: only taking its power away brings it back."""
    if driver_side(facts) is Side.WINDOWS:
        return Fix("Restart Windows.", where=Side.WINDOWS, restart=Restart.HOST)
    return Fix(
        "Power the host off and on again; a warm reboot may not bring the GPU back. If it happens again, check power"
        " cables, slot or riser, cooling and firmware, and try a lower clock: `sudo nvidia-smi -lgc 300,1500`. Until"
        " then use the other GPUs by CUDA_VISIBLE_DEVICES.",
        ("journalctl -k -b | grep -iE 'xid|fallen off the bus'", "sudo poweroff"),
        root=True,
        restart=Restart.HOST,
        docs=SOURCE,
    )


def reset_or_reboot(facts: Facts, gpu: Gpu | FailedGpu | None) -> Fix:
    """For a GPU that its own driver has given up on."""
    if driver_side(facts) is Side.WINDOWS:
        return Fix("Restart Windows.", where=Side.WINDOWS, restart=Restart.HOST)
    return Fix(
        "Stop every program that uses the GPU, then reset it on the host; reboot if the reset is refused. If the fault"
        " comes back, update the driver, then have the card tested.",
        (f"sudo nvidia-smi --gpu-reset -i {gpu.index}" if gpu else "sudo reboot",),
        root=True,
        docs=SOURCE,
    )
