"""The .env file: one line changes, the others stay."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.render.container.dotenv import parse_env_value, set_env_value

from .plans import CPU_PLAN, GPU_PLAN, ROCM_PLAN
from .test_artifacts import CLOSED, MIRRORED, PLAIN, texts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", "A='/w'\n", id="a new file"),
        pytest.param("B=1\n", "B=1\nA='/w'\n", id="beside another"),
        pytest.param("B=1", "B=1\nA='/w'\n", id="after a line without an end"),
        pytest.param("A=old\nB=1\n", "A='/w'\nB=1\n", id="in its place"),
        pytest.param("export A=old\n", "A='/w'\n", id="an exported one"),
        pytest.param("AA=1\n", "AA=1\nA='/w'\n", id="not a longer name"),
    ],
)
def test_with_setting(before, after):
    assert set_env_value(before, "A", "/w") == after
    assert set_env_value(after, "A", "/w") == after


@pytest.mark.parametrize(
    "path", ["/it's", "/a\nb", "C:\\wheels\\"], ids=["a single quote", "a line break", "a backslash at the end"]
)
def test_a_path_that_cannot_be_quoted_is_refused(path):
    with pytest.raises(DevkitError, match=r"cannot be written to an \.env file"):
        set_env_value("", "A", path)


def test_a_backslash_is_taken_as_it_is():
    assert set_env_value("A=x\n", "A", r"C:\wheels\1") == "A='C:\\wheels\\1'\n"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        pytest.param("A='/w'", "/w", id="single quotes go"),
        pytest.param('A="/w"', "/w", id="double quotes go"),
        pytest.param("A='/w\"'", '/w"', id="a quote inside stays"),
        pytest.param("A=/w", "/w", id="none are needed"),
        pytest.param("A=", "", id="nothing is nothing"),
        pytest.param("A='", "'", id="one quote is no pair"),
    ],
)
def test_a_setting_is_read_without_the_quotes_around_it(line, value):
    assert parse_env_value(f"{line}\n", "A") == value


def test_every_variable_that_compose_substitutes_is_explained_in_the_guide():
    every = replace(PLAIN, profiles=("jupyter", "monitoring"))
    cases = ((CPU_PLAN, CLOSED), (GPU_PLAN, every), (GPU_PLAN, MIRRORED), (ROCM_PLAN, PLAIN))
    files = [text for plan, settings in cases for text in texts(plan, settings).values()]
    substituted = {name for text in files for name in re.findall(r"\$\{(DEVKIT_\w+):?-", text)}
    guide = (Path(__file__).resolve().parents[2] / "docs/guides/dev-container.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`(DEVKIT_\w+)`", guide))
    assert substituted - {"DEVKIT_JUPYTER_IP"} == explained & substituted
    assert len(substituted) > 12
