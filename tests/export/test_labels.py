"""Names of jobs are DNS labels; another one is refused with one that would do."""

import pytest

from devkit.errors import DevkitError
from devkit.export.labels import LONGEST_JOB, checked_label


@pytest.mark.parametrize("name", ["a", "a-b", "0", "a" * LONGEST_JOB, "a--b"])
def test_labels(name):
    assert checked_label(name, "--name") == name


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("My Job", "my-job"),
        ("a_b.c", "a-b-c"),
        ("-a-", "a"),
        ("a" * (LONGEST_JOB + 1), "a" * LONGEST_JOB),
        ("a\nb", "a-b"),
        ("ä", "a-z"),
        ("${HOME}", "home"),
        ("", "a-z"),
    ],
)
def test_what_is_no_label_comes_with_one_that_is(name, proposed):
    with pytest.raises(DevkitError) as refused:
        checked_label(name, "--name")
    assert proposed in refused.value.hint
    assert "\n" not in refused.value.message
