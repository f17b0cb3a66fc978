"""A folder of wheels that builds in seconds: stand-ins for what is large, real ones for what the build runs."""

import re
import shutil
from importlib import metadata
from pathlib import Path

from tests.wheels import make_wheel

from . import tools

STAND_INS = ("transformers", "huggingface-hub", "accelerate", "peft", "bitsandbytes")
TORCH = {"torch/version.py": "__version__ = '{version}+cpu'\ncuda = None\nhip = None\n"}


def lockers() -> list[str]:
    """What the generated files install to read another tool's lock, as pip is asked for it."""
    from devkit.compat.version_tables import load_tables  # installed after this module's first use

    versions = {row.name: row.version for row in load_tables().images.tools}
    return [f"{name}=={versions[name]}" for name in ("poetry", "poetry-plugin-export")]


def installer() -> str:
    """uv as the generated files install it."""
    from devkit.compat.version_tables import load_tables  # installed after this module's first use

    return f"uv=={load_tables().images.tools[0].version}"


def pins_of(dockerfile: Path) -> dict[str, str]:
    """The version of every package that a generated Dockerfile names."""
    return dict(re.findall(r"(?<!\S)([\w-]+)==([\w.+]+)(?=\s)", dockerfile.read_text(encoding="utf-8")))


def light_wheelhouse(folder: Path, dockerfile: Path, *programs: str) -> Path:
    """What the generated `dockerfile` names, and `programs` with all they need."""
    pins = pins_of(dockerfile)
    own = [line for line in metadata.requires("devkit-gpu") or [] if "extra ==" not in line]
    real = tools.wheelhouse([installer(), *own, *programs])
    shutil.copytree(real, folder)
    torch = {path: text.format(version=pins["torch"]) for path, text in TORCH.items()}
    make_wheel(folder, "torch", f"{pins['torch']}+cpu", files=torch)
    for name in STAND_INS:
        make_wheel(folder, name, pins[name], requires=("torch>=2",))
    return folder
