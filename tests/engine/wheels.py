"""A folder of wheels that builds in seconds: stand-ins for what is large, real ones for what the build runs."""

import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from . import tools

STAND_INS = ("transformers", "huggingface-hub", "accelerate", "peft", "bitsandbytes")
TORCH = {"torch/version.py": "__version__ = '{version}+cpu'\ncuda = None\nhip = None\n"}


def stand_in(
    folder: Path, name: str, version: str, *, requires: Sequence[str] = (), files: Mapping[str, str] = {}
) -> Path:
    """A wheel of a package that holds nothing but its name, its needs and `files`."""
    bare = name.replace("-", "_")
    path = folder / f"{bare}-{version}-py3-none-any.whl"
    info = f"{bare}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in (files or {f"{bare}.py": f"VERSION = '{version}'\n"}).items():
            archive.writestr(place, text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def light_wheelhouse(folder: Path, requirements: Path, *programs: str) -> Path:
    """What the generated `requirements` name, and `programs` with all they need."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", requirements.read_text(encoding="utf-8"), re.MULTILINE))
    own = [line for line in metadata.requires("devkit-gpu") or [] if "extra ==" not in line]
    real = tools.wheelhouse([f"uv=={pins['uv']}", *own, *programs])
    shutil.copytree(real, folder)
    torch = {path: text.format(version=pins["torch"]) for path, text in TORCH.items()}
    stand_in(folder, "torch", f"{pins['torch']}+cpu", files=torch)
    for name in STAND_INS:
        stand_in(folder, name, pins[name], requires=("torch>=2",))
    return folder
