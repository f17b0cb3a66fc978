"""Tables of cases: the name of each, and its values."""

from collections.abc import Mapping

import pytest


def cases(names: str, rows: Mapping[str, object]) -> pytest.MarkDecorator:
    """Run a test once for each row; where it takes one value, a row is that value."""
    return pytest.mark.parametrize(names, rows.values(), ids=rows)
