"""The proof's models: random Llamas made on the spot, so that nothing is downloaded, and the LoRA runs on them.

What stages share is made on first use, so that a stage can run alone. As a program, `models.py FOLDER SIZE` with SIZE as
JSON, it writes a random Llama.
"""

import json
import sys
from functools import cached_property
from pathlib import Path
from types import ModuleType

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from devkit.workload import models
from devkit.workload.device import Device
from devkit.workload.models import Model, build_nf4_config, prepare_model_for_kbit_training
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import ProofSettings

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


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
    tokenizer = Tokenizer(BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(str(folder))
    return folder


STATE_FILE = "state.pt"
PROOF_ADAPTER_FOLDER = "adapter"
RESUME_DROPOUT = 0.05


class ProofModels(standalone.Models):
    """The models of the full proof on one device: quantized ones, and a run that is interrupted, too."""

    def __init__(self, settings: ProofSettings, device: Device, folder: Path) -> None:
        super().__init__(folder, device.torch_device, device.dtype, settings.steps)
        self.settings, self.device = settings, device

    @cached_property
    def peft(self) -> ModuleType:
        """The package, which takes bitsandbytes only where a base needs it."""
        return models

    @cached_property
    def base_folder(self) -> Path:
        """The base model on disk, to be loaded as users do."""
        folder = self.folder / "base"
        self.build_base().save_pretrained(str(folder))
        return folder

    @cached_property
    def tuned_4bit(self) -> standalone.Tuned:
        """QLoRA: LoRA on the base in 4-bit NormalFloat, trained with gradient checkpointing.

        The base's own text is taken from a second copy: the first forward pass in evaluation mode may repack it.
        """
        untouched, base = (
            load_quantized(self.base_folder, build_nf4_config(self.device.dtype), self.device) for _ in range(2)
        )
        return self.tune(self.attach_lora(prepare_for_kbit_training(base)), untouched)

    @cached_property
    def checkpoint_folder(self) -> Path:
        """The checkpoint of a run stopped half-way, on disk: adapter, optimizer state, random number generators."""
        folder = self.folder / "checkpoint"
        folder.mkdir()
        model = self.attach_lora(self.build_base(), dropout=RESUME_DROPOUT)
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
        model = self.peft.PeftModel.from_pretrained(
            self.build_base(), str(folder / PROOF_ADAPTER_FOLDER), is_trainable=True
        )
        optimizer = self.build_optimizer(model)
        state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
        if with_optimizer_state:
            optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        if "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"])
        return model, self.train(model, optimizer, self.settings.resume_steps // 2)


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
