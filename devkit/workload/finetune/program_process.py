"""How this process is set up before libraries start: quiet, and no larger than what it was given."""

import logging
import os
import warnings

from devkit.workload.cpus import usable_cpus


def set_up() -> None:
    """Choose what libraries read when they start. Whatever the user set stays. Call it before torch computes."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Passes of differing length otherwise leave holes that none of them fits into.
        # https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    for name in ("bitsandbytes", "transformers", "torchao"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # They tell of what this program does on purpose, or says in words of its own.
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
    warnings.filterwarnings("ignore", message="MatMul8bitLt: inputs will be cast")
    warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False but the target module is")
    warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")
    _set_up_torch()


def _set_up_torch() -> None:
    import torch
    from transformers.utils import logging as transformers_logging

    if "OMP_NUM_THREADS" not in os.environ:
        # torch counts the machine's processors, not those that a container may use.
        torch.set_num_threads(min(torch.get_num_threads(), usable_cpus()))
    transformers_logging.disable_progress_bar()
