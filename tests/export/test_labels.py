"""Names of jobs are DNS labels; another one is refused with one that would do."""

import pytest

from devkit.errors import DevkitError
from devkit.export.values import MAX_JOB_NAME_LENGTH, validate_dns_label


@pytest.mark.parametrize("name", ["a", "a-b", "0", "a" * MAX_JOB_NAME_LENGTH, "a--b"])
def test_labels(name):
    assert validate_dns_label(name, "--name") == name


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("My Job", "my-job"),
        ("a_b.c", "a-b-c"),
        ("-a-", "a"),
        ("a" * (MAX_JOB_NAME_LENGTH + 1), "a" * MAX_JOB_NAME_LENGTH),
        ("a\nb", "a-b"),
        ("ä", "a-z"),
        ("${HOME}", "home"),
        ("", "a-z"),
    ],
)
def test_what_is_no_label_comes_with_one_that_is(name, proposed):
    with pytest.raises(DevkitError) as refused:
        validate_dns_label(name, "--name")
    assert proposed in refused.value.hint
    assert "\n" not in refused.value.message
