"""What the tests of the checks bring about is known in whole: wording, fix, evidence, severity, and all else of a finding."""

from pathlib import Path

import pytest

from tests.doctor import running
from tests.known import assert_known

REAL = ("test_fixes_on_a_machine", "test_printed_fixes")
"""Tests whose findings tell of the machine that they run on."""


@pytest.fixture(autouse=True)
def _findings_are_known(request):
    folder = str(request.getfixturevalue("tmp_path")) if "tmp_path" in request.fixturenames else "no folder"
    running.SHOWN.clear()
    yield
    if not request.module.__name__.endswith(REAL):
        assert_known(Path(__file__).parent / "findings.txt", {text.replace(folder, "TMP") for text in running.SHOWN})
