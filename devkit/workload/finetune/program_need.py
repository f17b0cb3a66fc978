"""How much memory a run on a model will take, by the estimate."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from devkit.errors import DevkitError
from devkit.workload.finetune.decisions import Need


def need_of(config: Mapping[str, Any]) -> Need | None:
    """The estimate for the model of this configuration; None for an architecture that it does not know."""
    from devkit.estimate.config import shape_of_config
    from devkit.estimate.training import estimate_training

    try:
        shape = shape_of_config(config)
    except DevkitError:
        return None
    return partial(estimate_training, shape)
