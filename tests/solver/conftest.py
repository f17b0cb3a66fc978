"""One way to ask the solver, so that a case is one line."""

from collections.abc import Callable

import pytest

from devkit.compat.load import tables
from devkit.solver.machine import machine_from_flags
from devkit.solver.model import Conflict, Plan
from devkit.solver.request import request_of
from devkit.solver.solve import solve

MACHINE_FLAGS = ("driver", "gpus", "machine", "platform", "glibc")


@pytest.fixture
def ask() -> Callable[..., Plan | Conflict]:
    """Solve for the machine and wishes given as flags."""

    def answer(*more_machines, **flags):
        machine = machine_from_flags(**{name: flags.pop(name) for name in MACHINE_FLAGS if name in flags})
        return solve(request_of(machines=(machine, *more_machines), **flags), tables())

    return answer
