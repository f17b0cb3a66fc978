"""All of this folder takes minutes, but for the tests that are marked `fast` by their names here."""

from pathlib import Path

import pytest

FAST = ("test_a_file_is_read_without_waiting", "test_any_amount_of_disk_may_be_left")


def pytest_collection_modifyitems(items):
    """Leave all but samples to `make test-all`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.originalname not in FAST:
            item.add_marker(pytest.mark.full)
