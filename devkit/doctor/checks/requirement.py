"""Reads NVIDIA_REQUIRE_CUDA as libnvidia-container does: a space means or, a comma means and."""

import operator
import re
from collections.abc import Callable, Mapping

from devkit.doctor.wheels import DriverCuda
from devkit.facts.values import Release

CONSUMER_BRANDS = ("geforce", "titan")

_CONDITION = re.compile(r"(\w+)(>=|<=|!=|=|<|>)([\w.]+)")
_COMPARISONS: Mapping[str, Callable[[Release, Release], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "!=": operator.ne,
}


def unmet(requirement: str, driver: DriverCuda, gpu_names: tuple[str, ...]) -> Release | None:
    """The CUDA version that the image asks for, when no alternative of `requirement` is met; None when one is.

    A requirement without any `cuda>=` condition is taken as met: it says nothing about CUDA.
    """
    wanted = re.search(r"cuda>=([\d.]+)", requirement)
    if wanted is None:
        return None
    alternatives = requirement.split()
    if any(_holds(alternative, driver, gpu_names) for alternative in alternatives):
        return None
    return Release.read(wanted[1])


def _holds(alternative: str, driver: DriverCuda, gpu_names: tuple[str, ...]) -> bool:
    return all(_condition_holds(condition, driver, gpu_names) for condition in alternative.split(","))


def _condition_holds(condition: str, driver: DriverCuda, gpu_names: tuple[str, ...]) -> bool:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        return False
    name, comparison, value = match.groups()
    if name == "brand":
        return _is_brand(value, gpu_names) is (comparison == "=")
    seen = {"cuda": driver.cuda, "driver": driver.release}.get(name)
    return seen is not None and value[0].isdigit() and _COMPARISONS[comparison](seen, Release.read(value))


def _is_brand(brand: str, gpu_names: tuple[str, ...]) -> bool:
    """Whether GPUs are of the brand. Only consumer brands show in a GPU's name; any other brand may be theirs."""
    consumer = [kind for kind in CONSUMER_BRANDS if any(kind in name.lower() for name in gpu_names)]
    return brand in consumer if consumer or brand in CONSUMER_BRANDS else True
