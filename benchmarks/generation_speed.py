"""Tokens a second of generation on a pretrained model: devkit, transformers' `generate` and llama.cpp, on the same weights.

All answer the same prompts greedily, one at a time and in batches, with as many tokens each. Every arm is a process of
its own; they take turns, and the medians count. That the tokens are equal is recorded beside the speed.

    python benchmarks/generation_speed.py [--gguf FILE]

llama.cpp runs where the package xllamacpp is installed, which has it compiled, and reads FILE, the GGUF file that the
model was made from: its weights are written in fp32 by the package gguf, so that no arm computes with other numbers.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import record, versions

MODEL, TOKENS, THREADS = "smollm2-135m", 32, 1
TORCH_ARMS = ("devkit", "transformers-dynamic", "transformers-static")
PRECISIONS = ("fp32", "bf16")
LLAMA_CPP = "llama.cpp fp32"
BATCHES = (1, 4)
TOPICS = ("the sea", "a GPU", "bread", "an old clock")
PROMPTS = tuple(f"Write a few sentences about {topic}." for topic in TOPICS)


def main() -> int:
    """Measure every arm, by turns, and record medians, ratios and whose tokens are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gguf", type=Path, help="the model's GGUF file, for llama.cpp")
    parser.add_argument("--only-print", action="store_true", help="record nothing")
    given = parser.parse_args()
    arms = [f"{arm} {precision}" for precision in PRECISIONS for arm in TORCH_ARMS]
    arms += [LLAMA_CPP] if given.gguf else []
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory(prefix="devkit-generation-") as scratch:
        weights = Path(scratch) / "fp32.gguf"
        if given.gguf:
            write_fp32(given.gguf, weights)
        for number in range(given.rounds):
            for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
                found[arm].append(_run(arm, weights))
    table = {arm: _summarize(runs, found[_ours(arm)][0]) for arm, runs in found.items()}
    for batch in map(str, BATCHES):
        for arm in arms:
            ours, theirs = (table[each][batch]["tokens_per_cpu_s"] for each in (_ours(arm), arm))
            table[arm][batch]["devkit_is_times"] = round(ours / theirs, 2)
    packages = ["torch", "transformers", *(["xllamacpp"] if given.gguf else [])]
    result = {"model": MODEL, "threads": THREADS, "new_tokens": TOKENS, "prompts": len(PROMPTS)}
    document = {**result, "rounds": given.rounds, "versions": versions(*packages), "arms": table}
    print(json.dumps(document, indent=2))
    if not given.only_print:
        print(record("generation_speed", document))
    return 0


def _ours(arm: str) -> str:
    """Return devkit's arm in the same precision."""
    return f"devkit {arm.rpartition(' ')[2]}"


def _summarize(runs: list[dict[str, Any]], devkit: dict[str, Any]) -> dict[str, Any]:
    medians = {
        batch: {
            name: round(statistics.median(run[batch][name] for run in runs), 1)
            for name in ("tokens_per_s", "tokens_per_cpu_s")
        }
        for batch in map(str, BATCHES)
    }
    equal = {
        f"batch of {batch}": sum(a == b for a, b in zip(runs[0][batch]["ids"], devkit["1"]["ids"], strict=True))
        for batch in medians
    }
    return {**medians, "answers_equal_to_devkit_alone": equal, "peak_mib": max(run["peak_mib"] for run in runs)}


def _run(arm: str, weights: Path) -> dict[str, Any]:
    print(f"{time.strftime('%H:%M:%S')} {arm}", file=sys.stderr, flush=True)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS), "GOMP_SPINCOUNT": "1000"}
    program = f"from benchmarks.generation_speed import measure; measure({arm!r}, {str(weights)!r})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{arm} failed:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(arm: str, weights: str) -> None:
    """Print what one arm does, as JSON: by the size of a batch its speed and the tokens of each answer."""
    prompts = encode_prompts()
    generate = load_llama_cpp(weights) if arm == LLAMA_CPP else load_torch(*arm.split())
    told: dict[str, Any] = {}
    for batch in BATCHES:
        generate(prompts[:batch], 4)
        before = time.perf_counter(), time.process_time()
        ids = [
            answer
            for start in range(0, len(prompts), batch)
            for answer in generate(prompts[start : start + batch], TOKENS)
        ]
        wall_s, cpu_s = time.perf_counter() - before[0], time.process_time() - before[1]
        tokens = sum(map(len, ids))
        told[str(batch)] = {"tokens_per_s": tokens / wall_s, "tokens_per_cpu_s": tokens / cpu_s, "ids": ids}
    told["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print("\n" + json.dumps(told))


def encode_prompts() -> list[list[int]]:
    """Encode the prompts by the model's chat template."""
    from transformers import AutoTokenizer

    from devkit.workload.finetune.files import resolve_model_folder
    from devkit.workload.generation.decoding import encode_prompt
    from devkit.workload.generation.settings import Prompt

    tokenizer = AutoTokenizer.from_pretrained(resolve_model_folder(MODEL))
    return [encode_prompt(Prompt(text), tokenizer, raw=False) for text in PROMPTS]


def load_torch(arm: str, precision: str) -> Any:  # noqa: ANN401 - a function
    """Return devkit's own generation, or transformers' with one of its caches."""
    import torch

    from devkit.estimate.settings import Precision
    from devkit.workload.generation.decoding import generate_in_order
    from devkit.workload.generation.program import GenerationSession, resolve_model
    from devkit.workload.generation.settings import DecodingSettings, GenerateSettings, find_generation_files

    torch.set_num_threads(THREADS)
    session = GenerationSession(
        resolve_model(find_generation_files(GenerateSettings(model=MODEL, precision=Precision(precision))))
    )
    model, padding = session.generator.model, session.generator.tokenizer.pad_token_id

    def by_devkit(prompts: list[list[int]], tokens: int) -> Iterator[list[int]]:
        decoding = DecodingSettings(tokens=tokens, batch=len(prompts))
        return (list(each.ids) for each in generate_in_order(session.generator, prompts, decoding))

    def by_transformers(prompts: list[list[int]], tokens: int) -> Iterator[list[int]]:
        longest = max(map(len, prompts))
        rows = [[*[padding] * (longest - len(each)), *each] for each in prompts]
        mask = [[0] * (longest - len(each)) + [1] * len(each) for each in prompts]
        kind = "static" if arm.endswith("static") else "dynamic"
        output = model.generate(
            torch.tensor(rows), attention_mask=torch.tensor(mask), max_new_tokens=tokens, do_sample=False,
            cache_implementation=kind, pad_token_id=padding, eos_token_id=session.generator.eos_token_ids,
            disable_compile=True,
        )  # fmt: skip
        for row in output[:, longest:].tolist():
            ends = [row.index(each) for each in session.generator.eos_token_ids if each in row]
            yield row[: min(ends, default=len(row))]

    return by_devkit if arm == "devkit" else by_transformers


def load_llama_cpp(weights: str) -> Any:  # noqa: ANN401 - a function
    """Return llama.cpp's generation: as many slots as a batch has prompts, one after the other for one."""
    from concurrent.futures import ThreadPoolExecutor

    import xllamacpp
    from transformers import AutoTokenizer

    from devkit.workload.finetune.files import resolve_model_folder

    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.n_ctx, params.n_parallel, params.cache_prompt, params.warmup = 4 * 512, 4, False, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.verbosity = -1
    server = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(BATCHES[-1])

    tokenizer = AutoTokenizer.from_pretrained(resolve_model_folder(MODEL))

    def complete(prompt: list[int], tokens: int) -> list[int]:
        # Text, and not tokens, so that it reads the same prompt by its own tokenizer and special tokens.
        text = tokenizer.decode(prompt)
        answer = server.handle_completions({"prompt": text, "max_tokens": tokens, "temperature": 0})
        answer = json.loads(answer) if isinstance(answer, str | bytes) else answer
        ids: list[int] = tokenizer(answer["choices"][0]["text"], add_special_tokens=False)["input_ids"]
        return ids

    return lambda prompts, tokens: list(pool.map(lambda each: complete(each, tokens), prompts))


def write_fp32(source: Path, target: Path) -> None:
    """Write the model of a GGUF file with all weights in fp32."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize

    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    sys.exit(main())
