"""`devkit serve`: start vLLM, llama.cpp or transformers' own server with settings that fit this machine."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.command import FOLDER, Command
from devkit.errors import DevkitError
from devkit.reading import find_similar_paths, refuse_pointer
from devkit.text import escape_text, suggest

if TYPE_CHECKING:
    from devkit.estimate.inference import ServingSettings

_PROGRAMS = {"vllm": "vllm", "llama-cpp": "llama-server", "transformers": "transformers"}
_INSTALL = {
    "vllm": "devkit plan --install --stack vllm",
    "llama-cpp": "Install llama.cpp: https://github.com/ggml-org/llama.cpp/blob/master/docs/install.md",
    "transformers": "pip install 'transformers[serving]'",
}
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Source: https://github.com/vllm-project/vllm/blob/main/vllm/config/lora.py, MaxLoRARanks."""
_CAN_SERVE = """
from transformers.utils.import_utils import is_accelerate_available, is_serve_available
raise SystemExit(not (is_serve_available() and is_accelerate_available()))
"""


@click.command(cls=Command)
@click.argument("model")
@click.argument("rest", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE_ARGUMENTS…]")
@click.option(
    "--engine",
    type=click.Choice(list(_PROGRAMS)),
    help="Inference engine. Default: the one that fits the model and the GPUs.",
)
@click.option("--adapter", metavar="DIR", type=FOLDER, help="Also serve this LoRA adapter (vLLM).")
@click.option(
    "--context",
    metavar="TOKENS",
    type=click.IntRange(min=2),
    help="Context length in tokens. Default: the longest that fits.",
)
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", metavar="N", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Port.")
@click.option("--dry-run", is_flag=True, help="Print the command without starting it.")
def serve(
    *,
    model: str,
    rest: tuple[str, ...],
    engine: str | None,
    adapter: Path | None,
    context: int | None,
    host: str,
    port: int,
    dry_run: bool,
) -> None:
    """Serve a model over the OpenAI protocol: a folder, a hub id, a GGUF file, or smollm2-135m.

    Uses the GPUs with the most free memory, unless CUDA_VISIBLE_DEVICES is set, and the longest context that fits.
    """
    model = f"./{model}" if model.startswith("-") else model  # no option of the server
    is_gguf = model.lower().endswith(".gguf")
    if engine is not None and is_gguf != (engine == "llama-cpp"):
        raise DevkitError(
            f"{engine} serves no {'GGUF file' if is_gguf else 'folder'} here",
            "Give a GGUF file for llama.cpp, and a folder or hub id for the other engines: convert_hf_to_gguf.py DIR --outfile FILE",
        )
    folder, settings = _resolve(model, context)
    has_gpu = bool(settings) or bool(os.environ.get("CUDA_VISIBLE_DEVICES"))
    engine = engine or ("llama-cpp" if is_gguf else "vllm" if has_gpu and _find_program("vllm") else "transformers")
    if adapter is not None and engine != "vllm":
        raise DevkitError(f"{engine} takes no adapter", "Merge it: devkit generate --adapter DIR --merge MERGED")
    program = _require_program(engine)
    if engine == "vllm":
        words = _vllm_words(folder, settings, adapter)
        # Clients name the model as the user does here, and not by a folder in a cache.
        words += ["--served-model-name", model] if folder != model else []
    elif engine == "llama-cpp":
        words = ["-m", folder, *(["-c", f"{context}"] if context else [])]  # it offloads what fits automatically
    else:
        words = ["serve", folder, *(["--dtype", "float16"] if settings and settings.is_half else [])]
    command = [program, *words, "--host", host, "--port", f"{port}", *rest]
    chosen = {"CUDA_VISIBLE_DEVICES": ",".join(settings.gpus)} if settings else {}
    shown = shlex.join([*(f"{key}={value}" for key, value in chosen.items()), *command])
    click.echo(escape_text(shown), err=not dry_run)
    if dry_run:
        return
    environment = {**os.environ, **chosen}
    if sys.platform == "win32":
        sys.exit(subprocess.call(command, env=environment))
    os.execve(program, command, environment)  # noqa: S606 - a list of arguments has no use for a shell


def _resolve(model: str, context: int | None) -> "tuple[str, ServingSettings | None]":
    """Return the model by the name that servers read, and what fits; None without GPUs or where the user chose them."""
    from devkit.cli.estimate import find_model_config, read_local_gpus
    from devkit.estimate.config import build_model_shape
    from devkit.estimate.inference import solve_serving
    from devkit.estimate.shape import find_model
    from devkit.probe.package_indexes import require_addresses
    from devkit.workload.finetune.files import find_local_model, find_packaged_model, model_not_found, refuse_adapter

    if model.lower().endswith(".gguf"):
        hint = "Write one: convert_hf_to_gguf.py MERGED --outfile FILE, which comes with llama.cpp"
        if not Path(model).is_file():
            raise DevkitError(f"the file {model} does not exist", suggest(find_similar_paths(Path(model)), hint))
        try:
            with Path(model).open("rb") as file:
                start = file.read(40)
        except OSError as error:
            raise DevkitError(f"cannot read {model}: {error.strerror}", "Make it readable by this user.") from error
        refuse_pointer(Path(model), start)
        if not start.startswith(b"GGUF"):
            raise DevkitError(f"{model} is not a GGUF file", hint)
        return model, None
    local, packaged = find_local_model(model), find_packaged_model(model)
    if not (local or packaged or "/" in model or find_model(model)):
        raise model_not_found(model)
    if local:
        refuse_adapter(
            local, f"Merge it into its base model first: devkit generate --model BASE --adapter {model} --merge DIR"
        )
    if not (local or packaged):
        require_addresses(["HF_ENDPOINT"])
    name = str(packaged) if packaged else model
    config, known = find_model_config(name, None)  # first: what the server lacks matters only to a model that exists
    if "CUDA_VISIBLE_DEVICES" in os.environ or not (gpus := read_local_gpus()):
        return name, None
    if "quantization_config" in config or any(gpu.mig_enabled is True for gpu in gpus):
        return name, None  # of neither is the memory known
    settings = solve_serving(build_model_shape(config, name=known), gpus, context=context)
    if settings is None:
        raise DevkitError(
            f"{model} may not fit the free memory of this machine's GPUs",
            f"devkit estimate {shlex.quote(model)} --inference; to try it anyway, set CUDA_VISIBLE_DEVICES",
        )
    return name, settings


def _find_program(engine: str) -> str | None:
    """Find the server beside the Python of the active environment, then on PATH."""
    folders = [Path(os.environ.get("VIRTUAL_ENV") or sys.prefix, "bin"), Path(sys.executable).parent]
    places = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    return shutil.which(_PROGRAMS[engine], path=places)


def _require_program(engine: str) -> str:
    program = _find_program(engine)
    if program is None:
        raise DevkitError(f"{_PROGRAMS[engine]} is not installed", _INSTALL[engine])
    python = Path(program).absolute().with_name("python")
    if engine == "transformers" and python.exists():
        # Python imports from its working folder first, which may be a stranger's project.
        words = [str(python), "-c", _CAN_SERVE]
        if subprocess.run(words, cwd=python.parent, capture_output=True, check=False).returncode:
            raise DevkitError(f"{program} does not have the packages that its server needs", _INSTALL[engine])
    return program


def _vllm_words(name: str, settings: "ServingSettings | None", adapter: Path | None) -> list[str]:
    words = ["serve", name]
    if settings:
        words += ["--max-model-len", f"{settings.context}", "--gpu-memory-utilization", f"{settings.memory_share:g}"]
        words += ["--tensor-parallel-size", f"{len(settings.gpus)}"] if len(settings.gpus) > 1 else []
        words += ["--dtype", "half"] if settings.is_half else []
    if adapter:
        from devkit.workload.finetune.files import CHAT_TEMPLATE_FILE, inspect_adapter

        found = inspect_adapter(adapter)
        largest = max((found.config["r"], *(found.config.get("rank_pattern") or {}).values()))
        rank = next((each for each in _VLLM_RANKS if each >= largest), None)
        if rank is None or found.config.get("use_dora") or found.config.get("modules_to_save"):
            raise DevkitError(
                f"vLLM cannot serve the adapter {adapter}: DoRA, whole modules, or a rank above {_VLLM_RANKS[-1]}",
                f"Merge it: devkit generate --adapter {shlex.quote(str(adapter))} --merge MERGED",
            )
        words += [
            "--enable-lora",
            "--max-lora-rank",
            f"{rank}",
            "--lora-modules",
            f"{adapter.resolve().name}={adapter}",
        ]
        words += ["--chat-template", str(adapter / CHAT_TEMPLATE_FILE)] if found.chat_template else []
    return words
