"""What only shows when it is tried, each in a process of its own."""

import time
from concurrent.futures import ThreadPoolExecutor

from devkit.facts.model import CudaStop, Deep, StepEnd
from devkit.facts.values import Unknown
from devkit.probe.cuda_call import read_cuda
from devkit.probe.host import Host
from devkit.probe.hub_call import read_hub_call
from devkit.probe.torch_call import read_torch

CUDA_SHARE = 0.3
"""Of the deadline. cuInit takes seconds on a machine with many GPUs and no persistence daemon, importing torch more."""

HUB_DEADLINE_S = 10.0
"""For three small requests."""


def read_deep(host: Host, *, deadline_s: float) -> Deep | Unknown:
    """CUDA by its own library, then torch and what is built on it, the hub meanwhile, within `deadline_s` seconds."""
    ends_at = time.monotonic() + deadline_s
    with ThreadPoolExecutor(max_workers=1) as beside:
        hub = beside.submit(read_hub_call, host, deadline_s=min(HUB_DEADLINE_S, deadline_s))
        cuda = read_cuda(host, deadline_s=deadline_s * CUDA_SHARE)
        if isinstance(cuda, CudaStop) and cuda.end is StepEnd.TIMED_OUT:
            return Deep(cuda, Unknown(f"{cuda.call} hangs, and torch would wait for it too"), hub.result())
        return Deep(cuda, read_torch(host, deadline_s=ends_at - time.monotonic()), hub.result())
