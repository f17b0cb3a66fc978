"""The proof's models: random Llamas made on the spot, so that nothing is downloaded, and the LoRA runs on them.

What stages share is made on first use, so that a stage can run alone. As a program, `models.py FOLDER SIZE` with SIZE as
JSON, it writes a random Llama.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from devkit.estimate.settings import Precision
from devkit.workload.device import Device
from devkit.workload.models import (
    LORA_PARAMETER_MARK,
    LoraConfig,
    Model,
    PeftModel,
    build_nf4_config,
    get_peft_model,
    prepare_model_for_kbit_training,
)
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import ProofSettings
from devkit.workload.proof.standalone import BOS, EOS, decode, make_llama

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def compute_logits(model: Model, ids: list[int]) -> torch.Tensor:
    """Compute the logits of one sequence in evaluation mode, on the CPU in fp32. Shape: [len(ids), vocabulary]."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids], device=next(model.parameters()).device)).logits[0]
    model.train(was_training)
    return logits.float().cpu()


def load_quantized(folder: Path, config: BitsAndBytesConfig, device: Device) -> Model:
    """Load the model in `folder`, as users do, and quantize it onto the device."""
    model = AutoModelForCausalLM.from_pretrained(
        str(folder),
        quantization_config=config,
        device_map={"": device.torch_device},
        dtype=device.dtype,
        attn_implementation="eager",
        local_files_only=True,
    )
    model.requires_grad_(requires_grad=False)
    return model


def count_linear_layers(model: Model) -> dict[str, int]:
    """Count the linear layers by class name, without the output head and peft's wrappers."""
    counts: dict[str, int] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        is_wrapper = hasattr(module, "base_layer")
        if kind.startswith("Linear") and not is_wrapper and "lora_" not in name and "lm_head" not in name:
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def copy_packed_weights(model: Model) -> dict[str, torch.Tensor]:
    """Copy the packed 4-bit bytes, by parameter name.

    Do so before the first forward pass in evaluation mode: on CPUs with AVX512-BF16, bitsandbytes then repacks
    the weights into another layout, and equal values have different bytes.
    """
    return {
        name: parameter.data.detach().clone()
        for name, parameter in model.named_parameters()
        if type(parameter).__name__ == "Params4bit"
    }


def write_random_llama(
    folder: Path,
    *,
    seed: int,
    hidden: int = 1024,
    layers: int = 8,
    inner: int = 0,
    heads: int = 0,
    kv_heads: int = 0,
    vocabulary: int = 8192,
) -> Path:
    """Write a Llama with random weights in bf16, by default a hundred million, and a tokenizer of bytes. Returns `folder`.

    It is for figures that the tiny model would not show, and devkit finetune can load it.
    """
    bos, eos = 256, 257
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner or hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=heads or hidden // 64,
        num_key_value_heads=kv_heads or hidden // 128,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=bos,
        eos_token_id=eos,
    )
    torch.manual_seed(seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        LlamaForCausalLM(config).save_pretrained(str(folder))
    finally:
        torch.set_default_dtype(default)
    ids = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    ids |= {SPECIAL_TOKENS["bos_token"]: bos, SPECIAL_TOKENS["eos_token"]: eos}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(str(folder))
    return folder


LOSS_SCALE = {Precision.FP32: 1.0, Precision.BF16: 1.0, Precision.FP16: 1024.0}
"""Fixed factor on the loss: gradients of a tiny model would underflow in fp16."""

STATE_FILE = "state.pt"
PROOF_ADAPTER_FOLDER = "adapter"
EXTRA_TOKENS = 8
"""Tokens that generation may add beyond the sentence, so that one which does not stop is noticed."""


@dataclass(frozen=True)
class TunedModel:
    """A base with a trained adapter, and the base's answers from before training.

    `base_logits` has shape [tokens, vocabulary]. `changed_tensors` names the frozen tensors that training changed,
    compared before the first forward pass in evaluation mode.
    """

    model: Model
    losses: list[float]
    base_logits: torch.Tensor
    base_text: str
    frozen_tensors: int
    changed_tensors: list[str]


class ProofModels:
    """The models of one proof on one device. `folder` is scratch space that the caller removes."""

    def __init__(self, settings: ProofSettings, device: Device, folder: Path) -> None:
        self.settings = settings
        self.device = device
        self.folder = folder
        self.ids = [BOS, *settings.sentence.encode(), EOS]

    def build_base(self) -> Model:
        """Build a fresh base model, equal each time. The backward pass of eager attention is deterministic everywhere."""
        return make_llama(
            self.device.torch_device, self.device.dtype, seed=self.settings.seed, attn_implementation="eager"
        )

    def attach_lora(self, base: Model, *, dropout: float = 0.0) -> Model:
        """Attach a new adapter, in fp32, to every linear layer but the output head. Changes `base` in place."""
        torch.manual_seed(self.settings.seed + 1)
        config = LoraConfig(
            r=self.settings.rank,
            lora_alpha=self.settings.alpha,
            lora_dropout=dropout,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        return get_peft_model(base, config)

    def build_optimizer(self, model: Model) -> torch.optim.Optimizer:
        """Build AdamW over the trainable parameters."""
        optimizer: torch.optim.Optimizer = standalone.build_optimizer(
            list_trainable(model), self.settings.learning_rate
        )
        return optimizer

    def train(self, model: Model, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
        """Train on the sentence. Returns the loss before each step."""
        model.train()
        scale = LOSS_SCALE[self.device.precision]
        return standalone.train(
            lambda ids: model(input_ids=ids).logits, optimizer, steps=steps, ids=self.ids, scale=scale
        )

    def generate(self, model: Model) -> str:
        """Generate greedily from BOS, with enough tokens for the whole sentence."""
        return decode(standalone.generate(model, len(self.ids) + EXTRA_TOKENS))

    def compute_logits(self, model: Model) -> torch.Tensor:
        """Compute the logits over the sentence. Shape: [tokens, vocabulary]."""
        return compute_logits(model, self.ids)

    @cached_property
    def tuned(self) -> TunedModel:
        """LoRA on the plain base, trained."""
        base = self.build_base()
        base_logits, base_text = self.compute_logits(base), self.generate(base)
        return self._tune(self.attach_lora(base), base_logits, base_text)

    @cached_property
    def base_folder(self) -> Path:
        """The base model on disk, to be loaded as users do."""
        folder = self.folder / "base"
        self.build_base().save_pretrained(str(folder))
        return folder

    @cached_property
    def tuned_4bit(self) -> TunedModel:
        """QLoRA: LoRA on the base in 4-bit NormalFloat, trained with gradient checkpointing.

        The base's own text is taken from a second copy: the first forward pass in evaluation mode may repack it.
        """
        untouched, base = (
            load_quantized(self.base_folder, build_nf4_config(self.device.dtype), self.device) for _ in range(2)
        )
        base_logits, base_text = self.compute_logits(untouched), self.generate(untouched)
        return self._tune(self.attach_lora(prepare_for_kbit_training(base)), base_logits, base_text)

    def _tune(self, model: Model, base_logits: torch.Tensor, base_text: str) -> TunedModel:
        before = {name: tensor.detach().clone() for name, tensor in named_frozen_tensors(model)}
        losses = self.train(model, self.build_optimizer(model), self.settings.steps)
        after = dict(named_frozen_tensors(model))
        changed = [name for name, tensor in before.items() if name not in after or not torch.equal(tensor, after[name])]
        return TunedModel(model, losses, base_logits, base_text, len(before), changed)

    @cached_property
    def adapter_folder(self) -> Path:
        """The trained adapter on disk."""
        folder = self.folder / "adapter"
        self.tuned.model.save_pretrained(str(folder), save_embedding_layers=False)
        return folder

    def reload_adapter(self) -> Model:
        """Load the saved adapter onto a fresh base."""
        return PeftModel.from_pretrained(self.build_base(), str(self.adapter_folder))

    def merge_adapter(self) -> Model:
        """Merge the saved adapter into a fresh base."""
        return self.reload_adapter().merge_and_unload()

    @cached_property
    def checkpoint_folder(self) -> Path:
        """The checkpoint of a run stopped half-way, on disk: adapter, optimizer state, random number generators."""
        folder = self.folder / "checkpoint"
        folder.mkdir()
        model = self.attach_lora(self.build_base(), dropout=self.settings.resume_dropout)
        optimizer = self.build_optimizer(model)
        self.train(model, optimizer, self.settings.resume_steps // 2)
        model.save_pretrained(str(folder / PROOF_ADAPTER_FOLDER), save_embedding_layers=False)
        state = {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda_rng"] = torch.cuda.get_rng_state()
        torch.save(state, folder / STATE_FILE)
        return folder

    def resume(self, *, with_optimizer_state: bool) -> tuple[Model, list[float]]:
        """Train the second half, from the checkpoint. Without the optimizer state it is the negative control."""
        folder = self.checkpoint_folder
        model = PeftModel.from_pretrained(self.build_base(), str(folder / PROOF_ADAPTER_FOLDER), is_trainable=True)
        optimizer = self.build_optimizer(model)
        state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
        if with_optimizer_state:
            optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        if "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"])
        return model, self.train(model, optimizer, self.settings.resume_steps // 2)


def list_trainable(model: Model) -> list[torch.nn.Parameter]:
    """List the parameters that training may change, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def named_frozen_tensors(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of all that training must not change: all but the adapter's, buffers included.

    By name and not by `requires_grad`, so that a weight which was left trainable by mistake is among them.
    """
    for name, parameter in model.named_parameters():
        if LORA_PARAMETER_MARK not in name:
            yield name, parameter.data
    yield from model.named_buffers()


def prepare_for_kbit_training(base: Model) -> Model:
    """Prepare a quantized base for adapters as peft advises: small layers in fp32, gradient checkpointing on."""
    return prepare_model_for_kbit_training(
        base, use_gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}
    )


if __name__ == "__main__":
    # On the GPU if there is one.
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = json.loads(sys.argv[2])
    del sizes["name"]
    write_random_llama(Path(sys.argv[1]), seed=1, **sizes)
