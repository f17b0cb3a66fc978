"""What a project's own dev container asks of a plan."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devkit.compat.images import system_of_image
from devkit.compat.load import tables
from devkit.doctor.checks.project_images import CudaTag
from devkit.doctor.checks.project_units import Unit, units_of
from devkit.doctor.model import NotApplicable
from devkit.probe.gather import gather
from devkit.probe.host import LocalHost
from devkit.render.adopt.adoption import is_own_pin
from devkit.render.lock import Lock, read_lock_in
from devkit.solver.model import Constraint

_PYTHON = re.compile(r"(?:^|/)python:(?:\d+-)?(3\.\d+)")
_SYSTEM = re.compile(r"([a-z]+)([\d.]+)")


@dataclass(frozen=True)
class Existing:
    """A dev container that somebody wrote, and what it asks of a plan; "" leaves the choice to the plan.

    `lock` is that of an earlier adoption, an empty one before the first.
    """

    paths: tuple[str, ...]
    image: str
    python: str
    constraints: tuple[Constraint, ...]
    lock: Lock


def existing_container(root: Path, paths: tuple[str, ...]) -> Existing:
    """The project's own dev container, whose devcontainer.json files have these paths."""
    lock = read_lock_in(root)
    units = _units(root)
    image, python = _image(units)
    return Existing(paths, image, python, tuple(_constraints(units, lock)), lock)


def _units(root: Path) -> tuple[Unit, ...]:
    try:
        units = units_of(gather(LocalHost(), only=("project",), project=str(root.resolve())))
    except NotApplicable:
        return ()
    return tuple(unit for unit in units if unit.dev is not None)


def _image(units: tuple[Unit, ...]) -> tuple[str, str]:
    """The image to plan for, and its Python: the system of a CUDA image without CUDA, any other as it is."""
    image = next((unit.image.value for unit in units if unit.image is not None), "")
    tag = CudaTag.of(image)
    if tag is not None and tag.flavour != "devel" and (system := _SYSTEM.fullmatch(tag.system)):
        image = f"{system[1]}:{system[2]}"
    found = _PYTHON.search(image)
    return image, found[1] if found else _python_of_system(image)


def _python_of_system(image: str) -> str:
    """The Python that comes with a bare system, such as ubuntu:22.04; "" where nobody can tell."""
    system = system_of_image(image, tables().images.systems)
    return system.python if system and re.search(rf"(?:^|/){system.name}:", image) else ""


def _constraints(units: tuple[Unit, ...], lock: Lock) -> Iterator[Constraint]:
    """What the image's own commands pin, except what devkit pinned there."""
    for unit in units:
        for install in unit.installs:
            for one in install.requirements:
                is_asked = re.match(r"[=<>!~]", one.specifier) is not None
                if is_asked and not is_own_pin(lock, one.path, one.name, one.specifier):
                    yield Constraint(one.name, one.specifier, f"{one.path}:{one.line}")
