"""The benchmark of one machine with a GPU: parts that are devkit commands, each with its own result.

A part that has its result is not run again, so that an interrupted benchmark goes on where it stopped.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.compat.gpus import find_datasheet
from devkit.errors import DevkitError
from devkit.facts.settings import format_setting
from devkit.probe.host import LocalHost
from devkit.release import __version__
from devkit.whole_files import write_whole
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.interpreter import build_module_command, find_torch_interpreter

RESULT_FILE = "benchmark.json"
FLOPS_PER_PARAMETER = 4
"""Operations for each parameter and token of LoRA: forward, and the gradient of the activations."""

TRAIN_STEPS, WARM_UP = 8, 3


@dataclass(frozen=True)
class ModelSize:
    """A Llama of random weights, by the numbers of its config.json."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int


LLAMA_8B = ModelSize("llama-3.1-8b", 4096, 32, 32, 8, 14336, 128256)
LLAMA_1B = ModelSize("llama-3.2-1b", 2048, 16, 32, 8, 8192, 128256)


@dataclass(frozen=True)
class Part:
    """One part of the benchmark. `measure` returns its figures; it raises DevkitError where it cannot."""

    name: str
    about: str
    measure: Callable[["Workspace"], dict[str, Any]]


@dataclass(frozen=True)
class Workspace:
    """The folder of a benchmark, with the models that its parts share. `gpu` is the GPU's name."""

    folder: Path
    gpu: str

    def run_devkit(self, *arguments: str, ok: Sequence[int] = (0,)) -> str:
        """Return what a command of devkit prints on stdout. Raises DevkitError where it ends otherwise."""
        command = [*build_module_command(sys.executable, "devkit"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode not in ok:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
            raise DevkitError(f"devkit {arguments[0]} ended with {done.returncode}: {lines[0]}", "Run it alone.")
        return done.stdout

    def model(self, size: ModelSize) -> Path:
        """Return the folder of a random model, written the first time."""
        folder = self.folder / "models" / size.name
        if not (folder / "config.json").is_file():
            module = "devkit.workload.proof.models"
            command = build_module_command(sys.executable, module)
            done = subprocess.run([*command, str(folder), json.dumps(vars(size))], capture_output=True, check=False)
            if done.returncode != 0:
                said = done.stderr.decode(errors="replace").splitlines()[-1:]
                raise DevkitError(f"cannot write a random {size.name}: {' '.join(said)}", "Is the disk full?")
        return folder

    def finetune(self, name: str, size: ModelSize, **settings: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:  # noqa: ANN401
        """Train a few steps on rows that are full, and return the run's record and its steps."""
        output, data = self.folder / "runs" / name, self.folder / "rows.jsonl"
        line = json.dumps({"text": "the quick brown fox jumps over it " * (settings["sequence"] // 32 + 1)})
        data.write_text(f"{line}\n" * settings["batch"] * TRAIN_STEPS, encoding="utf-8")
        own = {"model": self.model(size), "data": (data,), "output": output, "steps": TRAIN_STEPS, **settings}
        words = [word for key, value in own.items() for word in format_setting(FinetuneSettings, key, value)]
        self.run_devkit("finetune", "--no-resume", "--json", *words)
        events = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        record = json.loads((output / "run.json").read_text(encoding="utf-8"))
        return record, [event for event in map(json.loads, events) if event["event"] == "step"]


def find_gpu_name() -> str | None:
    """Return the name of the GPU that torch computes on here; None without one. Raises DevkitError without torch."""
    program = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    interpreter = find_torch_interpreter(LocalHost())
    done = subprocess.run([interpreter.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def measure_doctor(work: Workspace) -> dict[str, Any]:
    """Return the doctor's verdict on this driver."""
    document = json.loads(work.run_devkit("doctor", "--json", ok=(0, 1)))
    return {"verdict": document["verdict"], "root_causes": document["root_causes"]}


def measure_proof(work: Workspace) -> dict[str, Any]:
    """Return the stages of the full proof, with the rates against the data sheet."""
    document = json.loads(work.run_devkit("verify", "--here", "--full", "--json", ok=(0, 1)))
    stages = {each["name"]: each["measured"] for each in document["stages"] if each["status"] == "passed"}
    failed = [each["name"] for each in document["stages"] if each["status"] == "failed"]
    rates = {name: stages[name] for name in ("compute-rate", "memory-rate", "link-rate") if name in stages}
    return {"verdict": document["verdict"], "failed": failed, **rates}


def measure_memory(work: Workspace, size: ModelSize = LLAMA_1B) -> dict[str, Any]:
    """Return measured peaks beside estimated ones: three methods, with and without checkpointing, two lengths."""
    runs = []
    for method in ("full", "lora", "qlora"):
        for checkpointing in (False, True):
            for sequence in (512, 2048):
                name = f"{method}-{sequence}{'-checkpointing' if checkpointing else ''}"
                record, _ = work.finetune(
                    name, size, method=method, sequence=sequence, checkpointing=checkpointing, batch=2, micro_batch=2
                )
                measured, estimated = record.get("measured"), record.get("estimated")
                if measured and estimated:
                    peak, wanted = measured["allocated_peak_bytes"], estimated["allocated_peak_bytes"]
                    runs.append({"run": name, "measured": peak, "estimated": wanted, "ratio": round(wanted / peak, 3)})
    return {"model": size.name, "runs": runs}


def measure_training(work: Workspace, size: ModelSize = LLAMA_8B, sequence: int = 4096) -> dict[str, Any]:
    """Return tokens per second of LoRA by the settings that finetune chooses, and the share of the GPU's peak."""
    _, steps = work.finetune(f"lora-{size.name}", size, method="lora", sequence=sequence, batch=4)
    speeds = sorted(each["tokens_per_s"] for each in steps[WARM_UP:])
    speed = speeds[len(speeds) // 2]
    sheet = find_datasheet(work.gpu)
    utilization = {}
    if sheet is not None and sheet.bf16_tflops:
        utilization["mfu"] = round(
            FLOPS_PER_PARAMETER * _count_parameters(size) * speed / (sheet.bf16_tflops * 1e12), 4
        )
    return {"model": size.name, "tokens_per_s": speed, **utilization}


def _count_parameters(size: ModelSize) -> int:
    """Count what a token is multiplied with: the layers' matrices and the output head."""
    head = size.hidden // size.heads
    attention = size.hidden * (2 * size.heads + 2 * size.kv_heads) * head
    return size.layers * (attention + 3 * size.hidden * size.inner) + size.hidden * size.vocabulary


def measure_decoding(work: Workspace, size: ModelSize = LLAMA_8B) -> dict[str, Any]:
    """Return tokens per second of one sequence, and the share of what the GPU's bandwidth allows."""
    words = ("--prompt", "the quick brown fox", "--max-new-tokens", "128", "--raw", "--json")
    speed = json.loads(work.run_devkit("generate", "--model", str(work.model(size)), *words))["speed"]["tokens_per_s"]
    sheet = find_datasheet(work.gpu)
    # Each token reads every weight once, in 16 bits.
    read = 2 * _count_parameters(size) * speed
    share = {"roofline": round(read / (sheet.bandwidth_gb_per_s * 1e9), 4)} if sheet else {}
    return {"model": size.name, "tokens_per_s": speed, **share}


PARTS = (
    Part("doctor", "devkit doctor on the real driver", measure_doctor),
    Part(
        "proof", "devkit verify --full: kernels, rates, LoRA, QLoRA, NCCL where there are several GPUs", measure_proof
    ),
    Part("memory", "estimated against measured peaks: full, LoRA, QLoRA, checkpointing, two lengths", measure_memory),
    Part("training", "LoRA on a random Llama-3.1-8B: tokens a second, and share of the GPU's peak", measure_training),
    Part("decoding", "generation with it: tokens a second, and share of the GPU's bandwidth", measure_decoding),
)


def run_benchmark(
    folder: Path, gpu: str, *, parts: Sequence[Part] = PARTS, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run the parts that have no result yet in `folder`, and write one JSON document of all results.

    A result of another GPU, or of another devkit, does not count.
    """
    work = Workspace(folder.resolve(), gpu)
    results = folder / "parts"
    results.mkdir(parents=True, exist_ok=True)
    origin = {"gpu": gpu, "devkit": __version__}
    found: dict[str, Any] = {}
    for part in parts:
        file = results / f"{part.name}.json"
        kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if kept.get("origin") == origin:
            progress(f"{part.name}: measured already")
            found[part.name] = kept["result"]
            continue
        progress(f"{part.name}: {part.about}")
        started = time.monotonic()
        try:
            found[part.name] = {**part.measure(work), "seconds": round(time.monotonic() - started, 1)}
        except DevkitError as error:
            # Tried again the next time; the others still run.
            found[part.name] = {"error": error.message}
            continue
        write_whole(file, json.dumps({"origin": origin, "result": found[part.name]}).encode())
    document = {"schema": "devkit.benchmark/1", **origin, "parts": found}
    write_whole(folder / RESULT_FILE, (json.dumps(document, indent=2) + "\n").encode())
    return document
