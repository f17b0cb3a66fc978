"""A host for gpu.sh, once for every shell that is here."""

from pathlib import Path

import pytest

from .gpu_host import PLAN, SETTINGS, Machine, every_shell, place


@pytest.fixture(params=every_shell)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    """A machine with no engine and no GPU, and the generated files of a plan for NVIDIA's."""
    made = Machine(tmp_path, shell=request.param)
    made.prepare()
    place(made, PLAN, SETTINGS)
    return made
