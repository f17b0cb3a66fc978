"""A container that was really started with a GPU. Run with `devkit doctor --smoke`."""

from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Unknown


@record
class Smoke:
    """How starting a container with a GPU ended: `request` is how it was asked for, `code` its exit status."""

    image: str
    request: str
    """"gpus", "cdi" or "runtime"."""
    code: int
    out: str
    err: str
    device_nodes: tuple[str, ...] | Unknown = NOT_READ
    """NVIDIA nodes under /dev inside of it."""
    nvidiactl: str | Unknown = NOT_READ
    """"open", "absent" or "refused": how opening /dev/nvidiactl ended there."""
    libcuda: str | Unknown = NOT_READ
    """Where libcuda.so.1 is inside of it, "" for nowhere."""
    nvidia_smi: str | Unknown = NOT_READ
    """The first GPU that `nvidia-smi -L` names inside of it, or its error; "" when there is no such program."""
    timed_out: bool | Unknown = NOT_READ
    left_behind: str | Unknown = NOT_READ
    """The name of the container where it could not be removed, else ""."""
