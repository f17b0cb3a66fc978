"""GGUF files as models: written once as safetensors into the hub's cache, where everything else finds them.

Importable without torch: a child process converts. `python -m devkit.workload.finetune.model.gguf FILE FOLDER` is it.
Source of what can be read: https://huggingface.co/docs/transformers/gguf
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from devkit.errors import DevkitError
from devkit.text import to_one_line
from devkit.workload.finetune.model.files import FETCH_AGAIN_HINT, fingerprint_files, reject_lfs_pointer
from devkit.workload.interpreter import build_module_command

MAGIC = b"GGUF"
SUFFIX = ".gguf"


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file that `path` is, or the only one in the folder; None for a model of transformers.

    Raises DevkitError for a folder with several.
    """
    if path.is_file():
        return path if path.suffix.lower() == SUFFIX else None
    files = sorted(path.glob(f"*{SUFFIX}")) if not (path / "config.json").is_file() else []
    if len(files) > 1:
        shown = ", ".join(file.name for file in files[:3])
        raise DevkitError(f"{path} holds {len(files)} GGUF files: {shown}", f"Name one of them: {files[0]}")
    return files[0] if files else None


def resolve_gguf(file: Path) -> Path:
    """Return the folder of the model in a GGUF file, converted the first time.

    Raises DevkitError for a damaged file, and for a kind that transformers cannot read.
    """
    reject_lfs_pointer(file)
    with file.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise DevkitError(f"{file} is no GGUF file", FETCH_AGAIN_HINT)
    commit = fingerprint_files([file])[:40]
    return install_snapshot(f"gguf--{file.stem}", commit, lambda folder: convert_gguf(file, folder))


def install_snapshot(name: str, commit: str, write: Callable[[Path], None]) -> Path:
    """Return the snapshot of a model in the hub's cache, which `write` fills the first time, whole or not at all."""
    from huggingface_hub.constants import HF_HUB_CACHE

    root = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    if (snapshot / "config.json").is_file():
        return snapshot
    try:
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{commit}.tmp-", dir=snapshot.parent))
    except OSError as error:
        raise DevkitError(f"cannot write {root}: {error.strerror}", "Set HF_HOME to a folder that is yours.") from error
    try:
        write(scratch)
        scratch.chmod(0o755)
        scratch.replace(snapshot)
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / "main").write_text(commit, encoding="ascii")
    except OSError as error:
        if not (snapshot / "config.json").is_file():  # else another process was first
            raise DevkitError(f"cannot write {snapshot}: {error.strerror}", "Free disk space there.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return snapshot


def find_snapshot(name: str) -> Path | None:
    """Return the snapshot of this name in the hub's cache; None if there is none that is complete."""
    from huggingface_hub.constants import HF_HUB_CACHE

    root = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    try:
        snapshot = root / "snapshots" / (root / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return snapshot if (snapshot / "config.json").is_file() else None


def convert_gguf(file: Path, folder: Path, *, packages: Path | None = None) -> None:
    """Write the model in `file` into `folder`: weights in bf16 as safetensors, tokenizer and chat template.

    In a child process, whose memory goes back to the system; `packages` is a folder with the package gguf, where this
    Python has none.
    """
    command = [*build_module_command(sys.executable, __name__), str(file), str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    cause = to_one_line(lines[-1]) if lines else f"exit status {done.returncode}"
    if "gguf" in cause and ("install" in cause or "No module named" in cause):
        raise DevkitError(f"{file} needs the package gguf, which is not installed", "pip install gguf")
    if done.returncode < 0:
        raise DevkitError(f"converting {file} was stopped by signal {-done.returncode}", "Is there enough memory?")
    raise DevkitError(
        f"transformers cannot read {file}: {cause}",
        "Fetch it again if a download was cut short; else name the model that it was made from, in safetensors.",
    )


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **source)
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent), dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **source
    )
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
