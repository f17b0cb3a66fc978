"""Times and sizes in the spellings that people and engines use, and names of jobs, which are DNS labels."""

import pytest

from devkit.errors import DevkitError
from devkit.export.values import (
    GIB,
    MAX_JOB_NAME_LENGTH,
    format_slurm_time,
    parse_duration,
    parse_size,
    round_up_to_gib,
    validate_dns_label,
)


def test_sizes():
    sizes = {"64Gi": 64 * GIB, "500G": 500 * 10**9, "1.5Ti": 1536 * GIB, "10": 10, "2 GiB": 2 * GIB, "1k": 1000}
    assert {text: parse_size(text, "--set memory") for text in sizes} == sizes
    for text in ("", "Gi", "-1G", "0", "1e9", "1 000", "64Gi\n64Gi", "nan", "1,5G", "i", "5i b c"):
        with pytest.raises(DevkitError, match=r"--set memory is .* which is not a size"):
            parse_size(text, "--set memory")


def test_times():
    times = {"90m": 5400, "24h": 86400, "2d": 172800, "1h30m": 5400, "1-12:00:00": 129600, "00:10": 600, "5s": 5}
    assert {text: parse_duration(text, "--time") for text in times} == times
    for text in ("", "90", "0s", "1.5h", "h", "-5m", "1:2", "00:00:00", "5 m"):
        with pytest.raises(DevkitError, match=r"--time is .* which is not a duration"):
            parse_duration(text, "--time")


def test_slurms_clock_is_read_back_as_the_same_time():
    for seconds, clock in {1: "00:00:01", 86399: "23:59:59", 86400: "1-00:00:00", 129661: "1-12:01:01"}.items():
        assert format_slurm_time(seconds) == clock
        assert parse_duration(clock, "--time") == seconds


def test_what_is_no_label_comes_with_one_that_is():
    for name in ("a", "a-b", "0", "a" * MAX_JOB_NAME_LENGTH, "a--b"):
        assert validate_dns_label(name, "--name") == name
    cut = "a" * MAX_JOB_NAME_LENGTH
    proposed = {"My Job": "my-job", "a_b.c": "a-b-c", "-a-": "a", f"{cut}a": cut, "a\nb": "a-b", "${HOME}": "home"}
    for name, label in (proposed | {"ä": "a-z", "": "a-z"}).items():
        with pytest.raises(DevkitError) as refused:
            validate_dns_label(name, "--name")
        assert label in refused.value.hint
        assert "\n" not in refused.value.message


def test_whole_gibibytes_hold_what_they_must():
    assert [round_up_to_gib(each) for each in (1, GIB - 1, GIB, GIB + 1)] == [1, 1, 1, 2]
