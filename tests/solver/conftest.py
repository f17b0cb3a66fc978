"""One fixture to solve a request, so that a case is one line."""

from collections.abc import Callable

import pytest

from devkit.compat.version_tables import load_tables
from devkit.solver.plan import Conflict, Plan
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve

MACHINE_FLAGS = ("driver", "gpus", "machine", "platform", "glibc")


@pytest.fixture
def solve_for() -> Callable[..., Plan | Conflict]:
    """Solve for a machine and a request given as flags."""

    def answer(*more_machines, **flags):
        machine = build_machine_from_flags(**{name: flags.pop(name) for name in MACHINE_FLAGS if name in flags})
        return solve(build_request(machines=(machine, *more_machines), **flags), load_tables())

    return answer
