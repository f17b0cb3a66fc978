"""How large the dev container's image is, and which step of its Dockerfile made it so, as the engine has it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from devkit.errors import DevkitError
from devkit.facts.values import Unknown
from devkit.probe.host import Host
from devkit.verify.container import COMPOSE_FILE, SERVICE
from devkit.verify.engine import WorkingEngine, working_engine

BASE_IMAGE = "base image"
_DEADLINE_S = 30.0
_STEPS = (
    ("system packages", re.compile(r"dpkg-query|ca\.crt|update-ca-certificates")),
    ("Python environment", re.compile(r"-m venv /opt/venv")),
    ("uv", re.compile(r"&& pip install ")),
    ("torch", re.compile(r"the plan needs torch")),
    ("packages of the plan", re.compile(r"/mnt/requirements\.(?:txt|lock)")),
    ("packages of the project", re.compile(r"/mnt/work")),
    ("devkit", re.compile(r"devkit[-_]gpu")),
    ("user and folders", re.compile(r"useradd|WORKDIR|ENV|CMD|USER|ARG|LABEL")),
)
"""What a layer is for, by words of the instruction that made it; the first that fits counts."""


@dataclass(frozen=True)
class ImageReport:
    """An image, and the bytes of each part on the disk, unpacked, in the order of the Dockerfile."""

    image: str
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """The size of the image."""
        return sum(size for _, size in self.parts)


def image_report(folder: Path, host: Host) -> ImageReport | Unknown:
    """The sizes of the image that was built for `folder` on this machine, or why there are none."""
    try:
        engine = working_engine(host)
    except DevkitError as error:
        return Unknown(error.message)
    image = _image_of(folder, host, engine)
    if isinstance(image, Unknown):
        return image
    words = ["history", "--no-trunc", "--human=false", "--format", "{{.Size}}\t{{.CreatedBy}}", image]
    done = host.run([engine.program, *words], deadline_s=_DEADLINE_S)
    if done.code != 0:
        return Unknown(f"{image} is not built on this machine")
    return ImageReport(image, parts_of(done.out))


def parts_of(history: str) -> tuple[tuple[str, int], ...]:
    """The parts of an image from its history, newest layer first, each line with bytes, a tab, and the instruction."""
    layers = [line.partition("\t") for line in reversed(history.splitlines()) if line.strip()]
    names = [_step(instruction) for _, _, instruction in layers]
    first = next((at for at, name in enumerate(names) if name == _STEPS[0][0]), len(layers))
    found: dict[str, int] = {}
    for at, (size, _, _) in enumerate(layers):
        if size_bytes := int(float(size)):
            name = BASE_IMAGE if at < first else names[at]
            found[name] = found.get(name, 0) + size_bytes
    return tuple(found.items())


def _step(instruction: str) -> str:
    return next((name for name, words in _STEPS if words.search(instruction)), "other steps")


def _image_of(folder: Path, host: Host, engine: WorkingEngine) -> str | Unknown:
    argv = [*engine.compose, "--file", str(folder / COMPOSE_FILE), "config", "--format", "json"]
    done = host.run(argv, deadline_s=_DEADLINE_S)
    try:
        document = json.loads(done.out)
        return str(document["services"][SERVICE].get("image") or f"{document['name']}-{SERVICE}")
    except (ValueError, KeyError, TypeError, AttributeError):
        return Unknown(f"{' '.join(engine.compose)} cannot read {COMPOSE_FILE}: {done.err.strip()[-300:]}")
