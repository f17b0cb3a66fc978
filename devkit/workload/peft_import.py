"""peft, which all other modules take from here: it is kept from importing bitsandbytes where nothing is packed.

By itself it imports bitsandbytes wherever that is installed, needed or not: every start would be longer, and where
bitsandbytes finds no native library that fits, peft could not be imported either.
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
    """For peft to put adapters on `base`: it asks bitsandbytes only where layers of `base` are packed by that.

    It says nothing of what it calls by a name that transformers 5 has given up: a user can do nothing about it.
    """
    with warnings.catch_warnings(), hide_module("bitsandbytes", unless=_is_packed(base)):
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        _look_again()
        try:
            yield
        finally:
            _look_again()


def _is_packed(base: Model) -> bool:
    return any(type(each).__module__.startswith("bitsandbytes") for each in base.modules())


def _look_again() -> None:
    """peft keeps what it found out about bitsandbytes."""
    for found in (is_bnb_available, is_bnb_4bit_available):
        found.cache_clear()
