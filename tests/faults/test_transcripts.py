"""What the children print of NVML and of the engine, with one value at a time of another shape, or a line missing."""

import dataclasses
import json

import pytest

from tests.faults.damage import Damaged
from tests.faults.examining import broken, examine_anew
from tests.faults.test_answers import examine_sound, watched
from tests.hosts import machine

MACHINES = {"ask_nvml": ("ubuntu-4090-ok", "mig-a100"), "ask_engine": ("ubuntu-4090-ok", "podman-behind-docker-socket")}
CHILDREN = [pytest.param(name, child, id=f"{name}: {child}") for child, names in MACHINES.items() for name in names]
SHAPES = (None, True, -1, 1 << 70, 1.5e308, "", "x\0\n", [], [None], {}, {"value": None})


def places(value, path=()):
    """The path of every value in a JSON document, the document itself first."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in pairs:
        yield from places(below, (*path, key))


def reshaped(value, path, shape):
    """A copy of a document with another value at `path`."""
    if not path:
        return shape
    first, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[first] = reshaped(value[first], rest, shape)
    return copy


def asking(name, child):
    return next(argv for argv in watched(name)["run"] if any(word.endswith(f"{child}.py") for word in argv))


def tell(name, argv, lines):
    """What doctor finds where the child prints these lines."""
    told = dataclasses.replace(machine(name).run(argv), out="\n".join(lines) + "\n")
    return examine_anew(
        examine_sound(name), Damaged(machine(name), "run", argv, lambda _: told), watched(name)["run"][argv]
    )


@pytest.mark.parametrize(("name", "child"), CHILDREN)
def test_any_value_may_have_any_shape(name, child):
    argv = asking(name, child)
    lines = machine(name).run(argv).out.splitlines()
    problems = []
    for number, line in enumerate(lines):
        for path in places(json.loads(line)):
            for shape in SHAPES:
                changed = json.dumps(reshaped(json.loads(line), path, shape))
                found = broken(tell(name, argv, [*lines[:number], changed, *lines[number + 1 :]]))
                problems += [f"line {number + 1}: {path}: {shape!r}: {problem}" for problem in found]
    assert not problems, "\n".join(("", *problems))


@pytest.mark.parametrize(("name", "child"), CHILDREN)
def test_any_line_may_be_missing_or_come_twice(name, child):
    argv = asking(name, child)
    lines = machine(name).run(argv).out.splitlines()
    told = [lines[:place] + lines[place + 1 :] for place in range(len(lines))]
    told += [[*lines, line] for line in lines] + [list(reversed(lines))]
    problems = []
    for kept in told:
        seen = tell(name, argv, kept)
        problems += [*broken(seen), *sorted(seen.accusations - examine_sound(name).accusations)]
    assert not problems, "\n".join(("", *problems))
