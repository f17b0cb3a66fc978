"""The program of every proof, and the stages that need torch alone: Python 3.9, and nothing of devkit or its requirements.

As a file it runs where the full proof cannot, in a Python that is too old for devkit, or without transformers and peft. What
it can do in torch alone it does; with transformers and peft it fine-tunes and generates with their classes, too. The full
proof (program.py) is the same program with more stages.

    python standalone.py --stages=NAME,… [--failed=NAME,…] [--scratch=FOLDER]

Prints JSON events, one on a line of stdout.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

STAGES = (
    ("torch", "", ()),
    ("torch-build", "", ("torch",)),
    ("device", "", ("torch",)),
    ("kernel", "", ("device",)),
    ("memory", "", ("device",)),
    ("training", "a network in plain torch memorizes a sentence", ("kernel",)),
    ("libraries", "", ("torch",)),
    ("inference", "generation gives the same tokens with every cache", ("kernel", "libraries")),
    ("lora-memorizes", "LoRA fine-tuning memorizes a sentence", ("kernel", "libraries")),
    ("adapter-reload", "the adapter reloads bit for bit", ("lora-memorizes",)),
)
"""Name (its method is `prove_<name>`), claim, and the stages that must pass before. Those that are called as in the full proof
show the same as there."""

DEVICE_LOST_EXIT_CODE = 75
"""Exit status after an error that leaves the CUDA context unusable: the other stages need a fresh process."""
SEED, RANK, ALPHA, STEPS, LEARNING_RATE = 20250601, 16, 32, 60, 3e-3
SENTENCE = "devkit taught this model one sentence, and here it is: proven."
MEMORIZED_LOSS = 0.01
VOCABULARY, BOS, EOS, PAD = 260, 256, 257, 258
HIDDEN, WIDE, LAYERS, HEADS = 128, 256, 2, 4
HEAD_SCALE = 10.0
"""Factor on the random output head. Without it the logits are too flat for LoRA alone to memorize a sentence."""
KERNEL_SIZE = 256
TOLERANCES = {"fp32": 4e-3, "bf16": 2e-2, "fp16": 4e-3}
CPU_TOLERANCES = {**TOLERANCES, "fp32": 1e-5}
"""Largest error relative to the largest true value. bf16 keeps 8 bits of a number, fp16 11, fp32 24.

GPU kernels may take fp32 numbers through TF32, which keeps 11 bits.
"""
MEMORY_BYTES = 64 * 2**20
DEVICE_FOLDER = Path("/dev")
IDS = [BOS, *SENTENCE.encode(), EOS]
TOKENS = len(IDS) + 8
"""Generated at most: a few beyond the sentence, so that generation which does not stop is noticed."""
INPUTS = {"sentence": SENTENCE, "seed": SEED, "rank": RANK, "alpha": ALPHA, "learning_rate": LEARNING_RATE}
"""The numbers that all proofs share."""

REQUIRED_LIBRARIES = ("transformers", "peft", "accelerate")

torch: Any = None
"""Imported by the first stage that runs in this process."""


class Reading(NamedTuple):
    """One measured value. `expected` is "" for one that is recorded and not judged; a tuple is a series."""

    name: str
    measured: Any
    expected: str = ""
    is_as_expected: bool = True


def expect(name: str, measured: Any, wanted: Any) -> Reading:  # noqa: ANN401 - any value of JSON
    """Return a reading that must be `wanted`."""
    return Reading(name, measured, str(wanted), measured == wanted)


def expect_at_most(name: str, measured: float, limit: float) -> Reading:
    """Return a reading that must not exceed `limit`. NaN always fails."""
    return Reading(name, measured, f"<= {limit:g}", measured <= limit)


class Skipped(Exception):  # noqa: N818 - not an error: the stage has nothing to prove here
    """Raised by a stage that cannot apply in this environment."""


class Proof:
    """The stages, and what one of them leaves to the next."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, emit: Callable[..., None]) -> None:
        self.folder, self.emit = folder, emit
        self.inputs = {"depth": arguments.depth, **INPUTS, "steps": STEPS}
        chosen = arguments.stages or [name for name, _, _ in STAGES]
        self.stages = [(name, needs, 0.0) for name, _, needs in STAGES if name in chosen]
        self.environment = describe_environment(("torch", *REQUIRED_LIBRARIES))

    def prove(self, name: str) -> Iterator[Reading]:
        # After a crash the stages that are left run in a fresh process, without the first one.
        globals()["torch"] = importlib.import_module("torch")
        # The model is too small to share, and other work here may need the processors.
        torch.set_num_threads(1)
        readings: Iterator[Reading] = getattr(self, f"prove_{name.replace('-', '_')}")()
        return readings

    @cached_property
    def placement(self) -> tuple[str, Any]:
        """The device and its data type, reported at the first use."""
        about = {"kind": "cpu", "name": platform.processor() or "CPU", "reason": "torch sees no GPU"}
        dtype, precision, because = torch.float32, "fp32", "CPUs compute fp32 exactly and fast"
        if torch.cuda.is_available():
            found, count = torch.cuda.get_device_properties(0), torch.cuda.device_count()
            capability = f"{found.major}.{found.minor}"
            about = {"kind": "cuda", "name": found.name, "reason": f"torch sees {count} GPU{'s' * (count > 1)}"}
            about.update(capability=capability, memory_bytes=found.total_memory, count=count)
            because = f"compute capability {capability} is below 8.0, the first with bf16"
            if found.major >= 8 or torch.version.hip:
                dtype, precision, because = torch.bfloat16, "bf16", f"compute capability {capability} has bf16"
        self.emit(event="device", device={**about, "precision": precision, "precision_reason": because})
        return str(about["kind"]), dtype

    @property
    def device(self) -> str:
        return self.placement[0]

    @property
    def dtype(self) -> Any:  # noqa: ANN401 - of torch
        return self.placement[1]

    @cached_property
    def models(self) -> Models:
        return Models(self.folder, *self.placement)

    def prove_torch(self) -> Iterator[Reading]:
        return import_torch()

    def prove_torch_build(self) -> Iterator[Reading]:
        """Prove that torch sees the GPU that this machine has."""
        yield from read_torch_build()
        sees = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if has_gpu_node():
            yield Reading("gpus_seen_by_torch", sees, "> 0", sees > 0)

    def prove_device(self) -> Iterator[Reading]:
        """Prove that the device stores tensors and returns them unchanged."""
        yield Reading("device", self.device)
        yield read_copy(self.device)

    def prove_kernel(self) -> Iterator[Reading]:
        """Prove that kernels in every precision of this device agree with the CPU in fp64."""
        # Half precision is for GPUs: older releases of torch do not multiply in it on a CPU.
        precisions = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        if self.device == "cpu":
            del precisions["fp16"]
        elif self.dtype != torch.bfloat16:
            del precisions["bf16"]
        return read_kernel_errors(self.device, precisions)

    def prove_memory(self) -> Iterator[Reading]:
        """Prove that the GPU's memory is given, and given back."""
        if self.device == "cpu":
            raise Skipped("torch counts only GPU memory, but sees no GPU")
        before = torch.cuda.memory_allocated()
        numbers = torch.ones(MEMORY_BYTES, dtype=torch.uint8, device=self.device)
        yield expect("allocated_bytes", torch.cuda.memory_allocated() - before, MEMORY_BYTES)
        yield expect("sum", int(numbers.sum().item()), MEMORY_BYTES)
        del numbers
        torch.cuda.empty_cache()
        yield expect("left_bytes", torch.cuda.memory_allocated() - before, 0)

    def prove_training(self) -> Iterator[Reading]:
        """Prove that AdamW has a random network memorize the sentence, by the place of each letter."""
        torch.manual_seed(SEED)
        layers = (torch.nn.Linear(len(IDS), WIDE), torch.nn.SiLU(), torch.nn.Linear(WIDE, VOCABULARY))
        network = torch.nn.Sequential(*layers).to(self.device)
        places = HEAD_SCALE * torch.eye(len(IDS), device=self.device)

        def read() -> str:
            with torch.no_grad():
                return decode([BOS, *network(places)[:-1].argmax(-1).tolist()])

        untrained = read()
        losses = train(lambda ids: network(places[: ids.shape[1]])[None], build_optimizer(network))
        yield from read_memorization(losses, read(), untrained)

    def prove_libraries(self) -> Iterator[Reading]:
        """Import transformers, and peft where it is installed, together with this torch."""
        require("transformers")
        return import_libraries([name for name in REQUIRED_LIBRARIES if importlib.util.find_spec(name)])

    def prove_inference(self) -> Iterator[Reading]:
        """Prove that transformers generates the same tokens with and without a KV cache."""
        model = make_llama(self.device, self.dtype)
        cached, uncached = (generate(model, use_cache=each) for each in (True, False))
        yield Reading("tokens", len(cached) - 1)
        yield expect("same_tokens", cached == uncached, True)

    def prove_lora_memorizes(self) -> Iterator[Reading]:
        """Prove that peft's LoRA memorizes the sentence, which the base model does not say."""
        require("peft")
        return prove_lora_memorizes(self.models)

    def prove_adapter_reload(self) -> Iterator[Reading]:
        """Prove that peft's adapter, saved and loaded onto a fresh base, gives the same logits, and the sentence."""
        return prove_adapter_reload(self.models)


class Tuned(NamedTuple):
    """A base with a trained adapter, and the base's answers from before training. `base_logits` is [tokens, vocabulary].

    `changed_tensors` names the frozen tensors that training changed, compared before the first pass in evaluation mode.
    """

    model: Any
    losses: list[float]
    base_logits: Any
    base_text: str
    frozen_tensors: int
    changed_tensors: list[str]


class Models:
    """The models of a proof, random Llamas made on the spot, and LoRA runs on them. What stages share is made on first use.

    `folder` is scratch space that the caller removes.
    """

    def __init__(self, folder: Path, device: Any, dtype: Any, steps: int | None = None) -> None:  # noqa: ANN401 - of torch
        self.folder, self.torch_device, self.dtype = folder, device, dtype
        self.steps = STEPS if steps is None else steps

    @cached_property
    def peft(self) -> Any:  # noqa: ANN401 - a module
        return importlib.import_module("peft")

    def build_base(self) -> Any:  # noqa: ANN401 - of transformers
        """Build a fresh base model, equal each time. The backward pass of eager attention is deterministic everywhere."""
        return make_llama(self.torch_device, self.dtype, attn_implementation="eager")

    def attach_lora(self, base: Any, dropout: float = 0.0) -> Any:  # noqa: ANN401 - of peft
        """Attach a new adapter, in fp32, to every linear layer but the output head. Changes `base` in place."""
        importlib.import_module("torch").manual_seed(SEED + 1)
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        config = self.peft.LoraConfig(
            r=RANK, lora_alpha=ALPHA, lora_dropout=dropout, target_modules=targets, task_type="CAUSAL_LM"
        )
        return self.peft.get_peft_model(base, config)

    def build_optimizer(self, model: Any) -> Any:  # noqa: ANN401 - of torch
        return build_optimizer(model)

    def train(self, model: Any, optimizer: Any, steps: int) -> list[float]:  # noqa: ANN401 - of torch
        """Train on the sentence. Returns the loss before each step."""
        model.train()
        # Gradients of a tiny model would underflow in fp16.
        scale = 1024.0 if str(self.dtype) == "torch.float16" else 1.0
        return train(lambda ids: model(input_ids=ids).logits, optimizer, steps=steps, scale=scale)

    def tune(self, model: Any, untouched: Any) -> Tuned:  # noqa: ANN401 - of peft
        """Train the adapter of `model`, whose base answers as `untouched` does."""
        base_logits, base_text = compute_logits(untouched), generate_text(untouched)
        before = {name: tensor.detach().clone() for name, tensor in list_frozen_tensors(model)}
        losses = self.train(model, self.build_optimizer(model), self.steps)
        after = dict(list_frozen_tensors(model))
        changed = [
            name for name, tensor in before.items() if name not in after or not bool((tensor == after[name]).all())
        ]
        return Tuned(model, losses, base_logits, base_text, len(before), changed)

    @cached_property
    def tuned(self) -> Tuned:
        """LoRA on the plain base, trained."""
        return self.tune(self.attach_lora(self.build_base()), self.build_base())

    @cached_property
    def adapter_folder(self) -> Path:
        folder = self.folder / "adapter"
        self.tuned.model.save_pretrained(str(folder), save_embedding_layers=False)
        return folder

    def reload_adapter(self) -> Any:  # noqa: ANN401 - of peft
        return self.peft.PeftModel.from_pretrained(self.build_base(), str(self.adapter_folder))


def list_trainable(model: Any) -> list[Any]:  # noqa: ANN401 - of torch
    """List the parameters that training may change, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def list_frozen_tensors(model: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - of torch
    """Yield name and tensor of all that training must not change: all but the adapter's, buffers included.

    By name and not by `requires_grad`, so that a weight which was left trainable by mistake is among them.
    """
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            yield name, parameter.data
    yield from model.named_buffers()


def compute_logits(model: Any) -> Any:  # noqa: ANN401 - of torch
    """Compute the logits over the sentence in evaluation mode, on the CPU in fp32. Shape: [tokens, vocabulary]."""
    torch = importlib.import_module("torch")
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([IDS], device=next(model.parameters()).device)).logits[0]
    model.train(was_training)
    return logits.float().cpu()


def compute_difference(left: Any, right: Any) -> float:  # noqa: ANN401 - tensors
    """Return the largest absolute difference; NaN if either side holds one."""
    return float((left - right).abs().max())


def prove_lora_memorizes(models: Models) -> Iterator[Reading]:
    """Prove that the tuned model says the sentence exactly; the base model does not, so it was learned here."""
    return read_memorization(models.tuned.losses, generate_text(models.tuned.model), models.tuned.base_text)


def prove_adapter_reload(models: Models) -> Iterator[Reading]:
    """Prove that the adapter, saved and loaded onto a fresh base, gives bitwise the same logits, and the sentence."""
    reloaded = models.reload_adapter()
    yield Reading("adapter_bytes", sum(each.stat().st_size for each in models.adapter_folder.iterdir()))
    difference = compute_difference(compute_logits(reloaded), compute_logits(models.tuned.model))
    yield expect_at_most("largest_difference", difference, 0.0)
    yield expect("generated", generate_text(reloaded), SENTENCE)


def has_gpu_node() -> bool:
    """Return whether there is the device node of an NVIDIA GPU or of WSL 2."""
    return any(re.fullmatch(r"nvidia\d+|dxg", node.name) for node in DEVICE_FOLDER.glob("*"))


def import_torch() -> Iterator[Reading]:
    """Import torch, whose own message names a missing library."""
    yield Reading("version", str(importlib.import_module("torch").__version__))


def import_libraries(names: Iterable[str] = REQUIRED_LIBRARIES) -> Iterator[Reading]:
    """Import these packages together with this torch."""
    for name in names:
        yield Reading(name, str(getattr(importlib.import_module(name), "__version__", "unknown")))


def read_torch_build() -> Iterator[Reading]:
    """Read the version of torch, and what it is built for."""
    torch = importlib.import_module("torch")
    yield Reading("torch", str(torch.__version__))
    yield Reading("cuda", torch.version.cuda or torch.version.hip or "none")


def read_copy(device: Any) -> Reading:  # noqa: ANN401 - of torch
    """Read that a tensor comes back from the device unchanged."""
    torch = importlib.import_module("torch")
    sent = torch.arange(KERNEL_SIZE * KERNEL_SIZE)
    return expect("copied_back_equal", bool(torch.equal(sent.to(device).cpu(), sent)), True)


def read_kernel_errors(device: Any, precisions: dict[str, Any]) -> Iterator[Reading]:  # noqa: ANN401 - of torch
    """Read the errors of matrix product and attention, in data types by their name, against the CPU in fp64.

    Both sides have the same rounded inputs. Releases of torch before 2.0 have no attention.
    """
    torch = importlib.import_module("torch")
    kernels = {"matmul": torch.matmul}
    if hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        kernels["attention"] = attend
    tolerances = CPU_TOLERANCES if str(device) == "cpu" else TOLERANCES
    for precision, dtype in precisions.items():
        for name, kernel in kernels.items():
            generator = torch.Generator().manual_seed(SEED)
            inputs = [torch.randn(KERNEL_SIZE, KERNEL_SIZE, generator=generator).to(dtype) for _ in range(2)]
            true = kernel(*(each.double() for each in inputs))
            found = kernel(*(each.to(device) for each in inputs)).cpu().double()
            error = float((found - true).abs().max() / true.abs().max())
            yield expect_at_most(f"{name}_{precision}_error", error, tolerances[precision])


def attend(left: Any, right: Any) -> Any:  # noqa: ANN401 - tensors
    """Compute causal attention of four heads over two matrices."""
    query, key = (each.reshape(1, 4, KERNEL_SIZE, KERNEL_SIZE // 4) for each in (left, right))
    attention = importlib.import_module("torch").nn.functional.scaled_dot_product_attention
    return attention(query, key, query, is_causal=True)


def make_llama(device: Any, dtype: Any, **options: Any) -> Any:  # noqa: ANN401 - of torch
    """Make a frozen random Llama, equal on every device, since it is sampled on the CPU in fp32."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=256,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        tie_word_embeddings=False,
        **options,
    )
    torch.manual_seed(SEED)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(HEAD_SCALE)
    return model.requires_grad_(False).to(device=device, dtype=dtype).eval()


def require(name: str) -> None:
    """Raise Skipped where a package is not installed. A package that is installed but broken is a failure."""
    if importlib.util.find_spec(name) is None:
        raise Skipped(f"the project's environment has no {name}")


def build_optimizer(model: Any) -> Any:  # noqa: ANN401 - of torch
    """Build AdamW over the trainable parameters."""
    optimizers = importlib.import_module("torch").optim
    return optimizers.AdamW(list_trainable(model), lr=LEARNING_RATE, weight_decay=0.0)


def train(
    compute_logits: Callable[[Any], Any],
    optimizer: Any,  # noqa: ANN401 - of torch
    *,
    steps: int | None = None,
    scale: float = 1.0,
) -> list[float]:
    """Train the weights of `optimizer` on the sentence, with the loss times `scale`. Returns the loss before each step."""
    torch = importlib.import_module("torch")
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    batch = torch.tensor([IDS], device=weights[0].device)
    losses = []
    for _ in range(STEPS if steps is None else steps):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(compute_logits(batch)[0, :-1].float(), batch[0, 1:])
        (loss * scale).backward()
        for weight in weights if scale != 1.0 else ():
            if weight.grad is not None:
                weight.grad.div_(scale)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def generate(model: Any, tokens: int = TOKENS, **options: Any) -> list[int]:  # noqa: ANN401 - of transformers
    """Generate greedily from only BOS, in evaluation mode, at most `tokens` tokens. Returns BOS and the answer."""
    torch = importlib.import_module("torch")
    prompt = torch.tensor([[BOS]], device=next(model.parameters()).device)
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": tokens, "do_sample": False, **options}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        ids: list[int] = model.generate(input_ids=prompt, **options)[0].tolist()
    model.train(was_training)
    return ids


def generate_text(model: Any) -> str:  # noqa: ANN401 - of transformers
    """Generate greedily from BOS, with enough tokens for the whole sentence."""
    return decode(generate(model))


def read_memorization(losses: list[float], generated: str, untrained: str) -> Iterator[Reading]:
    """Read that the sentence was learned, which the base does not say. A falling loss alone would not show that."""
    first, last = (losses[0], losses[-1]) if losses else (math.nan, math.nan)
    yield Reading("steps", len(losses))
    yield Reading("losses", tuple(losses))
    yield Reading("first_loss", first)
    yield expect_at_most("last_loss", last, MEMORIZED_LOSS)
    yield expect("generated", generated, SENTENCE)
    yield expect("base_says_it_too", untrained == SENTENCE, False)


def decode(ids: list[int]) -> str:
    """Decode byte ids after BOS up to EOS; broken UTF-8 becomes U+FFFD."""
    ids = ids[1 : ids.index(EOS)] if EOS in ids else ids[1:]
    return bytes(each for each in ids if each < 256).decode(errors="replace")


def run_stage(name: str, readings: Callable[[], Iterable[Reading]]) -> tuple[dict[str, Any], bool]:
    """Run one stage. Returns its part of devkit.verify/1, and whether the error that ended it lost the GPU."""
    start, taken, status, reason, is_lost = time.perf_counter(), [], "passed", "", False
    try:
        for reading in readings():
            taken.append(reading)  # noqa: PERF402 - keeps what was read before an exception
    except Skipped as skipped:
        status, reason = "skipped", str(skipped)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is what this stage found
        status, reason = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:600] or 'no message'}"
        is_lost = is_device_lost(error)
    broken = [each for each in taken if not each.is_as_expected]
    if broken and status == "passed":
        status = "failed"
        reason = "; ".join(f"{each.name} is {each.measured}, expected {each.expected}" for each in broken)
    values = {each.name: each.measured for each in taken if not isinstance(each.measured, tuple)}
    document = {
        "name": name,
        "status": status,
        "measured": {name: to_json(each) for name, each in values.items()},
        "expected": {each.name: each.expected for each in taken if each.expected},
        "reason": reason,
        "ms": round((time.perf_counter() - start) * 1000, 1),
        "series": {each.name: [*map(to_json, each.measured)] for each in taken if isinstance(each.measured, tuple)},
    }
    return document, is_lost


def is_device_lost(error: Exception) -> bool:
    """Return whether the error leaves the CUDA context unusable. Running out of memory does not."""
    kind = type(error).__name__
    return kind == "AcceleratorError" or ("CUDA error" in str(error) and kind != "OutOfMemoryError")


def to_json(value: Any) -> Any:  # noqa: ANN401 - any value of a reading
    """Return a number that JSON cannot hold as text, and any other value as it is."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def find_skip_reason(needs: Iterable[str], ended: dict[str, tuple[str, str]]) -> str:
    """Return why a stage is skipped: a stage that it needs ended, as (status, reason), and did not pass. "" to run it."""
    for need in needs:
        status, reason = ended.get(need, ("passed", ""))
        if status != "passed":
            return f"{need} did not pass" if status == "failed" else reason
    return ""


def run(proof: Any, ended: dict[str, tuple[str, str]], emit: Callable[..., None]) -> int:  # noqa: ANN401 - of two classes
    """Run the stages of a proof in order; `ended` are those of earlier processes. Returns the exit status."""
    for name, needs, budget_s in proof.stages:
        reason = find_skip_reason(needs, ended)
        if not reason:
            emit(event="started", stage=name)
        document, is_lost = run_stage(name, lambda: skip(reason) if reason else proof.prove(name))  # noqa: B023 - used at once
        ended[name] = document["status"], document["reason"]
        emit(event="finished", stage={**document, "budget_s": budget_s})
        if is_lost:
            return DEVICE_LOST_EXIT_CODE
    emit(event="done")
    return 0


def skip(reason: str) -> Iterator[Reading]:
    """Raise Skipped."""
    raise Skipped(reason)


def describe_environment(packages: Iterable[str]) -> dict[str, str]:
    """Return machine and versions, for the report, by the packages' metadata. What is not installed is left out.

    `gpu_request` is how the dev container requested a GPU from its engine, such as nvidia, cdi or cpu; absent elsewhere.
    """
    from importlib.metadata import PackageNotFoundError, version

    found = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": sys.platform,
        "machine": platform.machine(),
    }
    if os.environ.get("DEVKIT_GPU"):
        found["gpu_request"] = os.environ["DEVKIT_GPU"]
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def reserve_stdout() -> Callable[..., None]:
    """Reserve stdout for JSON events, one a line: whatever else writes to file descriptor 1, C libraries included, reaches stderr.

    Returns the function that writes an event of the fields that it is given.
    """
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return lambda **event: print(json.dumps(event, allow_nan=False), file=stream, flush=True)


def main(make_proof: Callable[..., Any] = Proof, words: Sequence[str] | None = None) -> int:
    """Run the chosen stages. Exit status 0 when all of them ran, passed or not; 75 when the GPU was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("depth", "precision", "model", "scratch"):
        parser.add_argument(f"--{name}", default="")
    for name in ("stages", "failed"):
        parser.add_argument(f"--{name}", default=[], type=lambda text: [each for each in text.split(",") if each])
    arguments = parser.parse_args(words)
    # No network. bitsandbytes may otherwise look for kernels on the Hub while it is imported.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
    emit = reserve_stdout()
    with tempfile.TemporaryDirectory(prefix="devkit-proof-", dir=arguments.scratch or None) as folder:
        proof = make_proof(arguments, Path(folder), emit)
        emit(event="environment", environment=proof.environment)
        emit(event="inputs", inputs=proof.inputs)
        return run(proof, dict.fromkeys(arguments.failed, ("failed", "")), emit)


if __name__ == "__main__":
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).resolve().parent]
    sys.exit(main())
