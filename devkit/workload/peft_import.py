"""The only module that imports peft, without bitsandbytes.

By itself peft imports bitsandbytes wherever that is installed: every start would take longer, and where bitsandbytes
finds no native library that fits, peft could not be imported either.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from devkit.workload.environment import hide_module
from devkit.workload.models import Model

with hide_module("bitsandbytes"):
    from peft import (
        LoraConfig,
        PeftConfig,
        PeftModel,
        PeftModelForCausalLM,
        get_peft_model,
        get_peft_model_state_dict,
        prepare_model_for_kbit_training,
    )
    from peft.import_utils import is_bnb_4bit_available, is_bnb_available
    from peft.tuners.lora import Linear, LoraLayer

__all__ = [
    "Linear",
    "LoraConfig",
    "LoraLayer",
    "PeftConfig",
    "PeftModel",
    "PeftModelForCausalLM",
    "adapter_injection",
    "get_peft_model",
    "get_peft_model_state_dict",
    "prepare_model_for_kbit_training",
]


@contextmanager
def adapter_injection(base: Model) -> Iterator[None]:
    """Let peft inject adapters into `base` within the block, with bitsandbytes only where that packed layers of `base`.

    A deprecation warning about peft's own use of transformers is hidden: a user can do nothing about it.
    """
    is_packed = any(type(each).__module__.startswith("bitsandbytes") for each in base.modules())
    with warnings.catch_warnings(), hide_module("bitsandbytes", unless=is_packed):
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        _forget_bitsandbytes()
        try:
            yield
        finally:
            _forget_bitsandbytes()


def _forget_bitsandbytes() -> None:
    """Clear what peft has cached about bitsandbytes."""
    for cached in (is_bnb_available, is_bnb_4bit_available):
        cached.cache_clear()
