import pytest

CASES = "faults"


@pytest.fixture
def count(record_property):
    """A function that adds cases to the number which the summary prints."""

    def add(cases):
        record_property(CASES, cases)

    return add
