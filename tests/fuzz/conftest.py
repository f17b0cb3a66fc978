"""All of this folder takes minutes, but for a few samples."""

from pathlib import Path

import pytest

FAST = (
    "test_every_sound_text_says_something",
    "test_a_version_is_read_back_as_it_was",
    "test_an_address_never_keeps_its_login",
    "test_a_document_with_lines_is_one_or_says_where_not",
    "test_saved_facts_with_another_value_are_facts_or_said_to_be_wrong",
)


def pytest_collection_modifyitems(items):
    """Leave all but samples to `make test-all`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.originalname not in FAST:
            item.add_marker(pytest.mark.full)
