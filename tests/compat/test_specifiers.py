"""Specifiers without `packaging` say what `packaging` says."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name as packaging_name

from devkit.compat.specifiers import canonicalize_name, satisfies, satisfies_python, split_requirement

NUMBERS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
LOCAL = st.sampled_from(["", "", "+cu126", "+cpu", "+rocm7.2"])
CLAUSES = st.lists(st.tuples(st.sampled_from([">=", "<=", "==", "!=", ">", "<", "~="]), NUMBERS), max_size=3)


@given(NUMBERS, LOCAL, CLAUSES)
def test_it_agrees_with_packaging(version, local, clauses):
    specifier = ",".join(f"{sign}{bound}.0" if sign == "~=" else f"{sign}{bound}" for sign, bound in clauses)
    assert satisfies(version + local, specifier) is SpecifierSet(specifier).contains(version + local, prereleases=True)


@pytest.mark.parametrize(
    ("version", "specifier", "met"),
    [
        pytest.param("2.4.1+cu121", "==2.4.1+cu121", True, id="a local build by its name"),
        pytest.param("2.4.1+cu124", "==2.4.1+cu121", False, id="another local build"),
        pytest.param("2.4.1+cu124", "==2.4.1", True, id="any local build"),
        pytest.param("2.4.1", "==2.4.*", True, id="a wildcard"),
        pytest.param("2.4.1", "===2.4.1", True, id="the very text"),
        pytest.param("2.4.1", "", True, id="no specifier"),
        pytest.param("2.4.1", "latest", True, id="what is no specifier refuses nothing"),
        pytest.param("main", ">=2", True, id="what is no version is refused by nothing"),
    ],
)
def test_meets(version, specifier, met):
    assert satisfies(version, specifier) is met


@pytest.mark.parametrize(
    ("python", "specifier", "met"),
    [
        pytest.param("3.11", ">=3.9,<3.12", True, id="within"),
        pytest.param("3.12", ">=3.9,<3.12", False, id="above"),
        pytest.param("3.11", ">=3.11.4", True, id="some patch release is new enough"),
        pytest.param("3.11", "==3.11.4", True, id="one patch release"),
        pytest.param("3.11", "==3.11", True, id="the minor alone"),
        pytest.param("3.1", "==3.11.4", False, id="3.1 is not 3.11"),
        pytest.param("3.11", "!=3.11.4", True, id="all but one patch release"),
        pytest.param("3.11", "~=3.11", True, id="a compatible release"),
    ],
)
def test_meets_python(python, specifier, met):
    assert satisfies_python(python, specifier) is met


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,12}[A-Za-z0-9])?", fullmatch=True))
def test_names_are_compared_as_pep_503_does(name):
    assert canonicalize_name(name) == packaging_name(name)


def test_a_requirement_line_has_a_name_and_a_specifier():
    assert split_requirement("huggingface-hub>=0.34.0,<1.0") == ("huggingface-hub", ">=0.34.0,<1.0")
    assert split_requirement("numpy<2") == ("numpy", "<2")


PLAN = """
import sys
from devkit.cli import main
sys.argv = ["devkit", "plan", "--gpu", "H100", "--driver", "580.95.05", "--no-resolve"]
try:
    main()
except SystemExit:
    sys.exit("packaging" in sys.modules)
"""


def test_a_plan_needs_no_packaging(tmp_path):
    done = subprocess.run([sys.executable, "-c", PLAN], cwd=tmp_path, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
