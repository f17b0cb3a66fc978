import pytest

from devkit.doctor.gpus import DAY_S, compute_seconds_between


@pytest.mark.parametrize(
    ("earlier", "later", "seconds"),
    [
        pytest.param("2025-12-31T23:59:59+00:00", "2026-01-01T00:00:00+00:00", 1, id="over the new year"),
        pytest.param("2025-12-31T12:00:00+0200", "2025-12-31T10:00:00Z", 0, id="in two time zones"),
        pytest.param("2025-12-31T12:00:00-03:30", "2025-12-31T15:30:00+00:00", 0, id="west of Greenwich"),
        pytest.param("2024-02-28", "2024-03-01", 2 * DAY_S, id="over a leap day"),
        pytest.param(
            "2025-12-11 06:41:02 upgrade libnvidia-compute-580", "2025-12-11T06:41:03+00:00", 1, id="a log line"
        ),
        pytest.param("812.4 s after the start", "2025-12-31T10:00:00Z", None, id="no date"),
        pytest.param("2025-13-31", "2025-12-31", None, id="no such month"),
    ],
)
def test_how_far_apart_two_moments_are(earlier, later, seconds):
    assert compute_seconds_between(earlier, later) == seconds
