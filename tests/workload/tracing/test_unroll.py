"""A deep model from five layers: the same events as from all of them."""

import pytest

from devkit.estimate.settings import (
    CacheKind,
    InferenceSettings,
    Loss,
    Method,
    Optimizer,
    Precision,
    Stack,
    TrainingSettings,
)
from devkit.workload.tracing.stream import (
    TRACED_LAYERS,
    Allocation,
    Deallocation,
    Section,
    StepPhase,
    is_periodic,
    unroll_layers,
)
from tests.workload.tracing.shapes import GEMMA, LLAMA, MIXTURE

in_turn = pytest.mark.turns(5, first=3)

SHORT = {"sequence": 32, "rank": 4}
TRAINER = {**SHORT, "stack": Stack.TRAINER, "loss": Loss.STANDARD, "adapter_precision": Precision.FP32}


@in_turn
@pytest.mark.workload
@pytest.mark.parametrize(
    ("document", "settings"),
    [
        pytest.param(LLAMA, TrainingSettings(**SHORT), id="lora with checkpointing"),
        pytest.param(
            LLAMA,
            TrainingSettings(**TRAINER, checkpointing=False, method=Method.QLORA, upcast=True),
            id="qlora without",
        ),
        pytest.param(LLAMA, TrainingSettings(**SHORT, method=Method.INT8_LORA, dora=True), id="int8 with dora"),
        pytest.param(
            LLAMA,
            TrainingSettings(**SHORT, method=Method.FULL, optimizer=Optimizer.ADAMW_FOREACH, accumulation=2, world=2),
            id="full, accumulated, on two GPUs",
        ),
        pytest.param(MIXTURE, TrainingSettings(**SHORT, targets=("q_proj",)), id="a mixture of experts"),
        pytest.param(LLAMA, InferenceSettings(prompt=32, new=8), id="generation"),
        pytest.param(LLAMA, InferenceSettings(prompt=32, new=8, cache=CacheKind.STATIC), id="with a static cache"),
    ],
)
def test_the_unrolled_stream_is_that_of_the_whole_model(document, settings):
    from devkit.workload.tracing.estimate import replay_steps, split_loading, trace_model

    shallow = trace_model(document, settings, depth=TRACED_LAYERS)
    assert is_periodic(shallow)
    deep, whole = unroll_layers(shallow, document["num_hidden_layers"]), trace_model(document, settings, depth=None)
    assert len(deep) == len(whole)
    assert replay_steps(*split_loading(deep)) == replay_steps(*split_loading(whole))


@in_turn
@pytest.mark.workload
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(MIXTURE | {"mlp_only_layers": [1, 3, 5]}, id="some with experts"),
        pytest.param(GEMMA, id="some with a window"),
    ],
)
def test_models_with_different_layers_are_traced_whole(document):
    from devkit.workload.tracing.estimate import trace_model, trace_stream
    from devkit.workload.tracing.request import TraceRequest

    settings = TrainingSettings(**SHORT, targets=("q_proj",))
    assert not is_periodic(trace_model(document, settings, depth=TRACED_LAYERS))
    whole = trace_stream(TraceRequest(document=document, settings=settings))
    assert {event.section.layer for event in whole} == {None, *range(document["num_hidden_layers"])}


def test_fewer_layers_than_are_traced_are_refused():
    with pytest.raises(ValueError, match="4 layers are fewer"):
        unroll_layers([], 4)


def layer(number, *, phase=StepPhase.FORWARD):
    return Section(phase, number)


def test_memory_of_the_middle_layer_is_freed_in_every_copy():
    made = [Allocation(layer(number), 0, 10) for number in range(TRACED_LAYERS)]
    end = Section(StepPhase.OPTIMIZER)
    stream = [*made, *(Deallocation(end, each.name) for each in made)]
    assert [event.name[0].layer for event in unroll_layers(stream, 8)] == 2 * list(range(8))


def test_a_backward_pass_goes_from_the_last_layer_to_the_first():
    made = [Allocation(layer(number, phase=StepPhase.BACKWARD), 0, 10) for number in reversed(range(TRACED_LAYERS))]
    assert [event.section.layer for event in unroll_layers(made, 7)] == [6, 5, 4, 3, 2, 1, 0]


def test_a_layer_that_frees_memory_of_a_distant_layer_cannot_be_repeated():
    made = [Allocation(layer(number), 0, 10) for number in range(TRACED_LAYERS)]
    assert is_periodic(made)
    assert not is_periodic([*made, Deallocation(layer(2), made[0].name)])


def test_a_middle_layer_that_does_more_than_its_neighbors_cannot_be_repeated():
    made = [Allocation(layer(number), 0, 10) for number in range(TRACED_LAYERS)]
    assert not is_periodic([*made, Allocation(layer(2), 1, 10)])
