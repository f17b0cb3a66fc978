"""The chunked cross-entropy is the standard one: value, gradients and what stands between head and logits.

Tolerance: fp32, 1e-6 relative for the loss; gradients are compared to the largest of them.
"""

from dataclasses import replace

import pytest
import torch

pytestmark = pytest.mark.workload

from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from devkit.workload import patches as loss_module
from devkit.workload.patches import OutputHead, compute_loss, get_output_head, head_matches_model

WIDTH, VOCABULARY, TOKENS = 24, 97, 40


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(loss_module, "CHUNK_TOKENS", 7)


def made(*, bias=False, trainable=True, scale=1.0, softcap=0.0):
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDTH, VOCABULARY, bias=bias).requires_grad_(requires_grad=trainable)
    states = torch.randn(TOKENS, WIDTH).mul_(3).requires_grad_()
    return OutputHead(layer, scale, softcap), states, torch.randint(0, VOCABULARY, (TOKENS,))


def standard(head, states, targets):
    logits = head.layer(states) * head.scale
    if head.softcap:
        logits = torch.tanh(logits / head.softcap) * head.softcap
    return functional.cross_entropy(logits, targets, reduction="sum")


def results(loss, head, states):
    inputs = [states, *(each for each in head.layer.parameters() if each.requires_grad)]
    return loss.detach(), torch.autograd.grad(loss * 0.125, inputs)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="a trained head"),
        pytest.param({"trainable": False}, id="a frozen head"),
        pytest.param({"bias": True}, id="a head with a bias"),
        pytest.param({"softcap": 5.0}, id="Gemma's capped logits"),
        pytest.param({"scale": 0.5, "softcap": 3.0, "bias": True}, id="all of it"),
    ],
)
def test_loss_and_gradients_are_those_of_whole_logits(how):
    head, states, targets = made(**how)
    wanted, wanted_gradients = results(standard(head, states, targets), head, states)
    found, gradients = results(compute_loss(head, states, targets), head, states)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    for one, other in zip(gradients, wanted_gradients, strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_no_counted_token_gives_no_loss_but_still_a_gradient_for_everyone_to_add():
    head, states, targets = made()
    found, gradients = results(compute_loss(head, states[:0], targets[:0]), head, states)
    assert found.item() == 0
    assert all(not each.any() for each in gradients)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.numel())
        return result


def largest_tensor(compute):
    with Largest() as seen:
        compute().backward()
    return seen.numbers


@pytest.mark.parametrize("layers", ["a matrix", "more than a matrix"])
def test_logits_of_all_tokens_are_never_in_memory_at_once(layers):
    head, states, targets = made()
    if layers != "a matrix":
        head = replace(head, layer=torch.nn.Sequential(head.layer, torch.nn.Tanh()))
    chunk = 7 * VOCABULARY
    assert largest_tensor(lambda: compute_loss(head, states, targets)) <= max(chunk, WIDTH * VOCABULARY)
    assert largest_tensor(lambda: standard(head, states, targets)) == TOKENS * VOCABULARY


def test_the_gradient_of_a_trained_head_is_rounded_once_and_not_with_each_chunk():
    head, states, targets = made()
    low = replace(head, layer=torch.nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.bfloat16))
    rounded = states.detach().bfloat16().requires_grad_()
    exact = torch.autograd.grad(standard(low, rounded, targets).double(), low.layer.weight)[0].float()
    found = torch.autograd.grad(compute_loss(low, rounded, targets), low.layer.weight)[0].float()
    assert (found - exact).abs().max() <= 2**-7 * exact.abs().max()


def test_an_unknown_twist_between_decoder_and_logits_is_noticed():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.5, attn_implementation="eager",
    )  # fmt: skip
    model = Gemma2ForCausalLM(config)
    head = get_output_head(model)
    assert head.softcap == 0.5
    assert head_matches_model(head, model)
    assert not head_matches_model(replace(head, softcap=0.0), model)
