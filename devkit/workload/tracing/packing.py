"""A model's linear layers swapped for packed ones, as loading with bitsandbytes does."""

from torch import nn

from devkit.estimate.settings import Method, TrainingSettings
from devkit.workload.tracing.packed import Linear4bit, Linear8bit
from devkit.workload.tracing.program import Model


def pack(model: Model, settings: TrainingSettings) -> None:
    """Swap every linear layer but the output head. Fused experts are no linear layers and stay as they are."""
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and child is not head:
                setattr(module, name, _packed(child, settings))


def upcast(model: Model) -> None:
    """As peft's prepare_model_for_kbit_training: whatever is not packed becomes fp32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.float()


def _packed(layer: nn.Linear, settings: TrainingSettings) -> nn.Linear:
    if settings.method is Method.INT8_LORA:
        return Linear8bit(layer)
    return Linear4bit(layer, double_quantisation=settings.double_quantisation)
