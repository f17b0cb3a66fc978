"""What `devkit init` and `devkit update` print of a plan."""

import pytest

from devkit.cli.changes import print_plan
from tests.render.plans import GPU_PLAN


@pytest.mark.parametrize(
    ("day", "is_said"),
    [
        pytest.param("2026-11-21", False, id="tables of the same day"),
        pytest.param("2027-05-20", False, id="tables that are 180 days old"),
        pytest.param("2027-05-21", True, id="tables that are 181 days old"),
    ],
)
def test_a_plan_from_old_tables_says_so(capsys, day, is_said):
    print_plan(GPU_PLAN, wants_cpu=False, on=day)
    assert ("181 days old" in " ".join(capsys.readouterr().out.split())) is is_said
