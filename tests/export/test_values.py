"""Times and sizes in the spellings that people and engines use."""

import pytest

from devkit.errors import DevkitError
from devkit.export.values import GIB, format_slurm_time, parse_duration, parse_size, round_up_to_gib


@pytest.mark.parametrize(
    ("text", "size"),
    [("64Gi", 64 * GIB), ("500G", 500 * 10**9), ("1.5Ti", 1536 * GIB), ("10", 10), ("2 GiB", 2 * GIB), ("1k", 1000)],
)
def test_sizes(text, size):
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "Gi", "-1G", "0", "1e9", "1 000", "64Gi\n64Gi", "nan", "1,5G", "i", "5i b c"])
def test_what_is_no_size(text):
    with pytest.raises(DevkitError, match=r"--memory is .* which is no size"):
        parse_size(text, "--memory")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("24h", 86400), ("2d", 172800), ("1h30m", 5400), ("1-12:00:00", 129600), ("00:10", 600), ("5s", 5)],
)
def test_times(text, seconds):
    assert parse_duration(text, "--time") == seconds


@pytest.mark.parametrize("text", ["", "90", "0s", "1.5h", "h", "-5m", "1:2", "00:00:00", "5 m"])
def test_what_is_no_time(text):
    with pytest.raises(DevkitError, match=r"--time is .* which is no time"):
        parse_duration(text, "--time")


@pytest.mark.parametrize(
    ("seconds", "clock"), [(1, "00:00:01"), (86399, "23:59:59"), (86400, "1-00:00:00"), (129661, "1-12:01:01")]
)
def test_slurms_clock_is_read_back_as_the_same_time(seconds, clock):
    assert format_slurm_time(seconds) == clock
    assert parse_duration(clock, "--time") == seconds


def test_whole_gibibytes_hold_what_they_must():
    assert [round_up_to_gib(each) for each in (1, GIB - 1, GIB, GIB + 1)] == [1, 1, 1, 2]
