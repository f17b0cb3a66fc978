"""What the children print of NVML and of the engine, with one value at a time of another shape, or a line missing."""

import dataclasses
import json

import pytest

from tests.faults.damage import Damaged
from tests.faults.examining import broken, examine_anew
from tests.faults.test_answers import ASKED, SOUND
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
    return next(argv for argv in ASKED[name]["run"] if any(word.endswith(f"{child}.py") for word in argv))


def cases():
    for child, names in MACHINES.items():
        for name in names:
            argv = asking(name, child)
            lines = machine(name).run(argv).out.splitlines()
            for number, line in enumerate(lines):
                for path in places(json.loads(line)):
                    where = ".".join(map(str, path)) or "the line"
                    yield pytest.param(name, argv, number, path, id=f"{name}: {child}: line {number + 1}: {where}")


@pytest.mark.parametrize(("name", "argv", "number", "path"), list(cases()))
@pytest.mark.turns(3)
def test_any_value_may_have_any_shape(name, argv, number, path, count):
    host = machine(name)
    sound = host.run(argv)
    problems = []
    for shape in SHAPES:
        lines = sound.out.splitlines()
        lines[number] = json.dumps(reshaped(json.loads(lines[number]), path, shape))
        told = dataclasses.replace(sound, out="\n".join(lines) + "\n")
        damaged = Damaged(host, "run", argv, lambda _, told=told: told)
        seen = examine_anew(SOUND[name], damaged, ASKED[name]["run"][argv])
        problems += [f"{json.dumps(shape)}: {problem}" for problem in broken(seen)]
    count(len(SHAPES))
    assert not problems, "\n".join(("", *problems))


@pytest.mark.parametrize(("name", "child"), CHILDREN)
def test_any_line_may_be_missing_or_come_twice(name, child, count):
    host, argv = machine(name), asking(name, child)
    sound = host.run(argv)
    lines = sound.out.splitlines()
    told = [lines[:place] + lines[place + 1 :] for place in range(len(lines))]
    told += [[*lines, line] for line in lines] + [list(reversed(lines))]
    problems = []
    for kept in told:
        answer = dataclasses.replace(sound, out="\n".join(kept))
        damaged = Damaged(host, "run", argv, lambda _, answer=answer: answer)
        seen = examine_anew(SOUND[name], damaged, ASKED[name]["run"][argv])
        problems += broken(seen)
        problems += sorted(seen.accusations - SOUND[name].accusations)
    count(len(told))
    assert not problems, "\n".join(("", *problems))
