"""Adapted layers that are computed in fewer passes give what peft gives, and step back wherever there is more to do."""

import pytest
import torch

pytestmark = pytest.mark.workload

from transformers import GemmaConfig, GemmaForCausalLM

from devkit.estimate.settings import Method, Precision
from devkit.workload.finetune import model as adapters
from devkit.workload.finetune.files import BaseQuantization, LoadSettings
from devkit.workload.finetune.model import load_base_and_tokenizer
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.patches import Recomputation, use_fused_lora_forward, use_lean_forward
from tests.workload.small_models import save_model

IDS = torch.arange(40, 64).reshape(2, 12)
LAYERS = 14
"""Seven projections in each of two layers."""

EXACT = 1e-12
"""Relative to the largest number, in fp64: only the order of two products and a sum differs."""

EQUAL = {Precision.FP32: 2e-4, Precision.BF16: 0.1}
"""The same over two layers of a random model in these data types. bf16 rounds to 8 bits, and in fewer places."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Small models of two families in folders: gpt2 has biases, and weights that lie the other way round."""
    folder = tmp_path_factory.mktemp("bases")
    return {kind: save_model(folder / kind, kind) for kind in ("llama", "gpt2")}


def adapted(folder, *, precision=Precision.FP32, adapter_precision=None, method=Method.LORA, **more):
    """A model in training whose adapter has been moved from zero."""
    choices = LoadSettings(precision=precision, quantization=BaseQuantization.from_method(method))
    settings = FinetuneSettings(**{"model": f"{folder}", "rank": 4, "alpha": 12, **more})
    model = adapters.attach_adapter(
        load_base_and_tokenizer(f"{folder}", choices).model, settings, precision=adapter_precision or precision
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model):
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.train()


def learned(model):
    """Hidden states of a fixed line, and the gradients of every trained weight and of the line's embeddings."""
    model.zero_grad()
    embedded = model.get_input_embeddings()(IDS).detach().requires_grad_()
    states = model.get_base_model().get_decoder()(inputs_embeds=embedded, use_cache=False).last_hidden_state
    # Not their squares: normalized states have a sum of squares that nothing changes.
    wanted = torch.randn(states.shape, generator=torch.Generator().manual_seed(2))
    (states * wanted.to(states.dtype)).sum().backward()
    gradients = [each.grad.double() for each in (embedded, *adapters.trainable_parameters(model))]
    return [states.detach().double(), *gradients]


def apart(left, right):
    """The largest difference of two lists of tensors, relative to the largest number of each tensor."""
    return max(
        float((one - other).abs().max() / one.abs().max().clamp_min(1e-12))
        for one, other in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA, Method.INT8_LORA])
def test_the_fused_forward_matches_peft_on_every_base_and_in_every_precision(bases, method, precision):
    model = adapted(bases["llama"], method=method, precision=precision)
    wanted = learned(model)
    assert use_fused_lora_forward(model) == LAYERS
    assert apart(wanted, learned(model)) <= EQUAL[precision]


def test_the_scale_counts_forwards_and_backwards(bases):
    """Were it left out somewhere, the comparison above would have to show it: so it does with another scale."""
    model = adapted(bases["llama"]).double()
    wanted = learned(model)
    for name, module in model.named_modules():
        if name.endswith("layers.1.mlp.down_proj"):
            module.scaling["default"] *= 1.01
    use_fused_lora_forward(model)
    assert apart(wanted, learned(model)) > 1e6 * EXACT


@pytest.mark.parametrize(
    "more", [pytest.param({"dropout": 0.1}, id="dropout"), pytest.param({"dora": True}, id="dora")]
)
def test_layers_that_do_more_stay_as_they_are(bases, more):
    model = adapted(bases["llama"], **more)
    assert use_fused_lora_forward(model) == 0


def test_adapters_in_another_data_type_than_what_they_are_given_are_left_to_peft(bases):
    model = adapted(bases["llama"], precision=Precision.BF16, adapter_precision=Precision.FP32)
    wanted = learned(model)
    use_fused_lora_forward(model)
    assert apart(wanted, learned(model)) == 0.0


def saved_bytes(model):
    """What the graph of one forward pass holds: what autograd saved, each storage once, weights left out."""
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=IDS, use_cache=False)
    return sum(storages.values())


@pytest.mark.parametrize(
    ("method", "precision"),
    [(Method.LORA, Precision.FP32), (Method.LORA, Precision.BF16), (Method.QLORA, Precision.BF16)],
)
def test_lean_norms_and_mlps_give_the_same_and_save_less(bases, method, precision):
    model = adapted(bases["llama"], method=method, precision=precision)
    use_fused_lora_forward(model)
    wanted, before = learned(model), saved_bytes(model)
    use_lean_forward(model)
    after = learned(model)
    assert torch.equal(wanted[0], after[0])
    assert apart(wanted, after) <= EQUAL[precision]
    # Layers in 4 bits still save the inputs of their adapters.
    assert saved_bytes(model) < (0.75 if method is Method.LORA else 0.95) * before


def test_modules_that_compute_something_else_stay_as_they_are(bases):
    """Norms that train, norms with 1 + weight, and MLPs with another activation."""
    whole = load_base_and_tokenizer(f"{bases['llama']}", LoadSettings()).model.requires_grad_(requires_grad=True)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    gemma = GemmaForCausalLM(GemmaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, head_dim=8))
    use_lean_forward(gemma.requires_grad_(requires_grad=False))
    assert not any("forward" in vars(each) for each in gemma.modules())
    use_lean_forward(whole)
    norms = [each for name, each in whole.named_modules() if name.endswith("norm")]
    assert norms
    assert not any("forward" in vars(each) for each in norms)


def test_a_tensor_is_computed_again_once_for_all_that_took_it_and_then_dropped():
    computed = []

    def compute():
        computed.append(torch.ones(2))
        return computed[-1]

    again = Recomputation(compute)
    for _ in range(3):
        again.take()
    first, second, third = again(), again(), again()
    assert first is second is third and len(computed) == 1
    again.take()
    assert again() is computed[1], "the backward pass of another step computes it anew"
