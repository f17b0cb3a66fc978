"""What a proof says of a run's memory is what the estimate learns from."""

from pathlib import Path

import pytest
from devkit.estimate.measured_runs import ObservedRun, parse_observed_runs

from devkit.workload.proof.run_stages import FinishedRun, _compare_memory

MEASURED = {"allocated_peak_bytes": 10 << 30, "reserved_peak_bytes": 11 << 30}
ESTIMATED = {"allocated_peak_bytes": 9 << 30, "reserved_peak_bytes": {"point": 1, "upper": 2}}


def stage(record):
    readings = _compare_memory(FinishedRun([1.0], record, Path()))
    return {"name": "memory", "status": "passed", "measured": {each.name: each.measured for each in readings}}


def test_a_stage_with_measured_memory_is_one_run_to_calibrate_with():
    stages = [stage({"measured": MEASURED, "estimated": ESTIMATED})]
    report = {"schema": "devkit.verify/1", "device": {"name": "NVIDIA H200"}, "stages": stages}
    assert parse_observed_runs(report, origin="verify.json") == (
        ObservedRun(
            gpu="NVIDIA H200",
            allocated_bytes=10 << 30,
            reserved_bytes=11 << 30,
            device_bytes=0,
            estimated_bytes=9 << 30,
        ),
    )


@pytest.mark.parametrize("missing", ["measured", "estimated"])
def test_a_run_without_one_of_the_two_figures_has_no_reading(missing):
    record = {"measured": MEASURED, "estimated": ESTIMATED} | {missing: None}
    assert stage(record)["measured"] == {}
