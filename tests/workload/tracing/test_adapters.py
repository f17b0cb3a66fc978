"""The trace gives a model the adapters that training gives it, and that the closed form counts."""

import pytest

from devkit.estimate.config import build_model_shape
from devkit.estimate.settings import Method, Stack, TrainingSettings
from devkit.estimate.shape import count_adapter_parameters
from tests.workload.tracing.shapes import LLAMA, MIXTURE

pytestmark = pytest.mark.workload


def trained(document, settings):
    from benchmarks.tracing.steps import build_traced_model

    return sum(each.numel() for each in build_traced_model(document, settings).parameters() if each.requires_grad)


@pytest.mark.parametrize("document", [pytest.param(LLAMA, id="a dense model"), pytest.param(MIXTURE, id="a mixture")])
@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA, Method.INT8_LORA])
def test_the_trainable_parameters_are_those_of_the_closed_form(document, method):
    settings = TrainingSettings(method=method, rank=4)
    assert trained(document, settings) == count_adapter_parameters(build_model_shape(document), settings)


# peft sets a rank for its fused experts by a pattern, and then warns that no plain layer matches it.
@pytest.mark.filterwarnings("ignore::RuntimeWarning:peft")
def test_peft_all_linear_includes_fused_experts():
    ours, theirs = TrainingSettings(rank=4), TrainingSettings(rank=4, stack=Stack.TRAINER)
    assert trained(MIXTURE, theirs) > trained(MIXTURE, ours)
