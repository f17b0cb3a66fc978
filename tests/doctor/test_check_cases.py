"""Cases of checks on a healthy machine with one thing changed: both sides of each boundary, a row each.

Checks that need more than a changed field have tests of their own beside this table.
"""

import pytest

from devkit.doctor.model import Found, Passed, Skipped
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, inside, limits
from tests.doctor.running import run_check

CASES = [
    # code, machine, what is changed on it, verdict, name of the case
    ("DRV014", healthy(), {}, Passed, "libcuda is installed"),
    ("DRV014", healthy(), {"driver.libcuda": None, "driver.libcuda_paths": ()}, Found, "nvidia-smi without libcuda"),
    (
        "DRV014",
        healthy(),
        {"driver.libcuda": None, "driver.libcuda_paths": (), "driver.libnvidia_ml": None},
        Passed,
        "no driver library at all is not its finding",
    ),
    ("DRV014", healthy(), {"driver.libcuda": Unknown("no ldconfig")}, Skipped, "a library that could not be looked up"),
    ("DRV014", inside(), {"driver.libcuda": None, "driver.libcuda_paths": ()}, Skipped, "a container without a GPU"),
    ("NET004", healthy(), {"limits": limits(has_infiniband=True, nccl=("NCCL_IB_DISABLE=1",))}, Found, "turned off"),
    ("NET004", healthy(), {"limits": limits(has_infiniband=True, nccl=("NCCL_IB_DISABLE=0",))}, Passed, "left on"),
    ("NET004", healthy(), {"limits": limits(has_infiniband=True, nccl=())}, Passed, "not set"),
    (
        "NET004",
        healthy(),
        {"limits": limits(has_infiniband=False, nccl=("NCCL_IB_DISABLE=1",))},
        Skipped,
        "no InfiniBand",
    ),
]


@pytest.mark.parametrize(
    ("code", "machine", "changes", "verdict"),
    [pytest.param(*case, id=f"{case[0]}: {name}") for *case, name in CASES],
)
def test_a_check_on_a_changed_machine(code, machine, changes, verdict):
    assert isinstance(run_check(code, changed(machine, changes)), verdict)
