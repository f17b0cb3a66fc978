"""The proof's models: random Llamas made on the spot, so that nothing is downloaded, the LoRA runs on them, and their stages.

What stages share is made on first use, so that a stage can run alone. As a program, `models.py FOLDER SIZE` with SIZE as
JSON, it writes a random Llama.
"""

import json
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from time import perf_counter
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

from devkit.estimate.settings import Precision
from devkit.workload import models
from devkit.workload.device import Device
from devkit.workload.models import Model, build_int8_config, build_nf4_config, prepare_model_for_kbit_training
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import ProofSettings, StageReading, StageSkipped, expect_at_most, expect_equal
from devkit.workload.proof.standalone import BOS, EOS, SENTENCE, Tuned, compute_logits, generate, generate_text

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


MERGE_TOLERANCE = {Precision.FP32: 1e-4, Precision.BF16: 2e-2, Precision.FP16: 4e-3}
"""Largest logit difference after merging, relative to the range of the logits: merged weights are rounded once."""

LINEAR_LAYERS = 14
"""Seven projections in each of two blocks; the output head is not among them."""


def prove_base_frozen(models: ProofModels) -> Iterator[StageReading]:
    """Prove that training changed no bit of the base, and did change the adapter."""
    yield from read_frozen_tensors(models.tuned)
    changed = sum(bool(weight.any()) for name, weight in models.tuned.model.named_parameters() if "lora_B" in name)
    yield StageReading("adapters_changed", changed, "> 0", changed > 0)


def read_frozen_tensors(tuned: Tuned) -> Iterator[StageReading]:
    """Read that no frozen tensor has different bytes than before training."""
    yield StageReading("frozen_tensors", tuned.frozen_tensors)
    yield expect_equal("changed_tensors", len(tuned.changed_tensors), 0)


def prove_adapter_disabled(models: ProofModels) -> Iterator[StageReading]:
    """Prove that with the adapter off the tuned model is bitwise the base model, and with the adapter on it is not."""
    with models.tuned.model.disable_adapter():
        off = compute_logits(models.tuned.model)
    yield expect_at_most("difference_off", standalone.compute_difference(off, models.tuned.base_logits), 0.0)
    on = standalone.compute_difference(compute_logits(models.tuned.model), models.tuned.base_logits)
    yield StageReading("difference_on", on, "> 0", on > 0)


def prove_adapter_merged(models: ProofModels) -> Iterator[StageReading]:
    """Prove that merged into the base, the adapter gives the same logits within rounding, and the sentence."""
    merged, wanted = models.reload_adapter().merge_and_unload(), compute_logits(models.tuned.model)
    relative = standalone.compute_difference(compute_logits(merged), wanted) / float(wanted.max() - wanted.min())
    yield expect_at_most("relative_difference", relative, MERGE_TOLERANCE[models.device.precision])
    yield expect_equal("generated", generate_text(merged), SENTENCE)


def prove_resume(models: ProofModels) -> Iterator[StageReading]:
    """Prove that a run stopped half-way and resumed from disk ends bitwise equal to one that was not stopped.

    Its negative control, resumed without the optimizer state, must differ: otherwise the comparison sees nothing.
    """
    half = models.settings.resume_steps // 2
    straight = models.attach_lora(models.build_base(), dropout=RESUME_DROPOUT)
    straight_losses = models.train(straight, models.build_optimizer(straight), 2 * half)
    resumed, losses = models.resume(with_optimizer_state=True)
    without_state, _ = models.resume(with_optimizer_state=False)
    yield StageReading("steps", 2 * half)
    yield expect_equal("losses_equal", losses == straight_losses[half:], wanted=True)

    def count_different(model: Model) -> int:
        pairs = zip(standalone.list_trainable(straight), standalone.list_trainable(model), strict=True)
        return sum(not torch.equal(a, b) for a, b in pairs)

    yield expect_equal("different_tensors", count_different(resumed), 0)
    different = count_different(without_state)
    yield StageReading("different_without_optimizer_state", different, "not 0", different != 0)


def prove_inference(models: ProofModels) -> Iterator[StageReading]:
    """Prove that greedy tokens are the same without a KV cache, with a dynamic one, and with a static one."""
    model = models.tuned.model.eval()
    plain = _without_cache(model)
    yield expect_equal("generated", standalone.decode(plain), SENTENCE)
    start = perf_counter()
    dynamic = generate(model)
    yield StageReading("tokens_per_s", round((len(dynamic) - 1) / (perf_counter() - start), 1))
    static = generate(model, cache_implementation="static", disable_compile=True)
    yield expect_equal("growing_cache_agrees", dynamic == plain, wanted=True)
    yield expect_equal("static_cache_agrees", static == plain, wanted=True)


def _without_cache(model: Model) -> list[int]:
    """Generate each token from a full pass over all before it."""
    ids = [BOS]
    device = next(model.parameters()).device
    with torch.inference_mode():
        while len(ids) <= standalone.TOKENS and ids[-1] != EOS:
            logits = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids


def prove_qlora_memorizes(models: ProofModels) -> Iterator[StageReading]:
    """Prove that QLoRA on a 4-bit base with double quantization memorizes; the output head stays unquantized."""
    _require_backend(models)
    tuned = models.tuned_4bit
    base = tuned.model.get_base_model()
    yield expect_equal("linear4bit_layers", count_linear_layers(base).get("Linear4bit", 0), LINEAR_LAYERS)
    yield expect_equal("lm_head", type(base.lm_head).__name__, "Linear")
    yield from standalone.read_memorization(tuned.losses, generate_text(tuned.model), tuned.base_text)


def prove_qlora_frozen(models: ProofModels) -> Iterator[StageReading]:
    """Prove that training changed no packed byte."""
    packed = sum(type(each).__name__ == "Params4bit" for each in models.tuned_4bit.model.parameters())
    yield expect_equal("packed_tensors", packed, LINEAR_LAYERS)
    yield from read_frozen_tensors(models.tuned_4bit)


def prove_int8_base(models: ProofModels) -> Iterator[StageReading]:
    """Prove that LoRA on a base in LLM.int8() memorizes the sentence."""
    _require_backend(models)
    base = load_quantized(models.base_folder, build_int8_config(), models.device)
    yield expect_equal("linear8bit_layers", count_linear_layers(base).get("Linear8bitLt", 0), LINEAR_LAYERS)
    model = models.attach_lora(prepare_for_kbit_training(base))
    losses = models.train(model, models.build_optimizer(model), models.settings.steps)
    yield StageReading("losses", tuple(losses))
    yield StageReading("first_loss", losses[0])
    yield expect_at_most("last_loss", losses[-1], standalone.MEMORIZED_LOSS)
    yield expect_equal("generated", generate_text(model), SENTENCE)


def _require_backend(models: ProofModels) -> None:
    if models.device.kind == "mps":
        raise StageSkipped("devkit does not test 4-bit and 8-bit base models on Apple GPUs")


if __name__ == "__main__":
    # On the GPU if there is one.
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = json.loads(sys.argv[2])
    del sizes["name"]
    write_random_llama(Path(sys.argv[1]), seed=1, **sizes)
