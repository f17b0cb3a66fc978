"""LoRA and DoRA adapters: where they sit, and how many numbers they hold."""

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR, TrainingSettings
from devkit.estimate.shape import Layer, Linear, ModelShape, Reads

HEAD = "lm_head"
"""What transformers calls the output head in every family that is known here."""


def adapted(layer: Layer, settings: TrainingSettings) -> tuple[Linear, ...]:
    """The linears of a layer that carry an adapter. Experts in fused tensors never do."""
    if settings.targets == ALL_LINEAR:
        return layer.linears
    return tuple(linear for linear in layer.linears if linear.name in settings.targets)


def adapted_head(shape: ModelShape, settings: TrainingSettings) -> Linear | None:
    """The output head where it carries an adapter. One that is the embedding never does: merged, it would be both."""
    return _head(shape) if HEAD in settings.targets else None


def _head(shape: ModelShape) -> Linear | None:
    if shape.is_tied or not shape.is_decoder:
        return None
    return Linear(HEAD, shape.hidden, shape.vocabulary, Reads.LAST_STATE)


def adapter_parameters(shape: ModelShape, settings: TrainingSettings) -> int:
    """Numbers in all adapters. Raises DevkitError for a target that no layer has."""
    known = {linear.name: None for layer in shape.layers for linear in layer.linears}
    if _head(shape) is not None:
        known[HEAD] = None
    unknown = [target for target in settings.targets if settings.targets != ALL_LINEAR and target not in known]
    if unknown:
        raise DevkitError(
            f"{shape.name} has no linear module {unknown[0]!r} to put an adapter on",
            f"It has {', '.join(known)}; {ALL_LINEAR[0]} means all of them but the output head.",
        )
    inside = sum(
        layer.count * sum(_parameters(linear, settings) for linear in adapted(layer, settings))
        for layer in shape.layers
    )
    head = adapted_head(shape, settings)
    return inside + (_parameters(head, settings) if head is not None else 0)


def _parameters(linear: Linear, settings: TrainingSettings) -> int:
    return settings.rank * (linear.inputs + linear.outputs) + (linear.outputs if settings.dora else 0)
