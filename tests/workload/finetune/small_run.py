"""A run small enough to be repeated hundreds of times: a tiny Llama, an adapter with dropout, AdamW, random ids."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from devkit.workload.finetune.checkpoint import CheckpointState
from devkit.workload.finetune.distributed import Ranks
from devkit.workload.finetune.trainer import seed_generators
from devkit.workload.models import LoraConfig, adapter_injection, get_peft_model

SEED = 11
VOCABULARY = 64
ALONE = Ranks(0, 1, torch.device("cpu"))


def tiny_llama(*, tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


def adapted(*, dropout: float = 0.1, rank: int = 4):
    base = tiny_llama()
    torch.manual_seed(SEED + 1)
    config = LoraConfig(r=rank, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM")
    with adapter_injection(base):
        return get_peft_model(base, config).train()


def made(model, optimizer=torch.optim.AdamW) -> CheckpointState:
    trainable = [each for each in model.parameters() if each.requires_grad]
    return CheckpointState(model, optimizer(trainable, lr=1e-2))


def step(state: CheckpointState, number: int) -> float:
    """One optimizer step on the ids that belong to it; its loss."""
    ids = torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(number))
    seed_generators(seed=SEED, step=number, rank=0)
    state.optimizer.zero_grad()
    loss = state.model(input_ids=ids, labels=ids).loss
    loss.backward()
    state.optimizer.step()
    return loss.item()


def trained(state: CheckpointState) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in state.model.named_parameters() if each.requires_grad}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether both hold the same tensors, bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
