"""JSON with comments: the doctor's reading and init's editing are one tree."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.doctor.model import Repair, RepairKind
from devkit.errors import DevkitError, ExitCode
from devkit.facts.project import FileState
from devkit.formats.jsonc import InvalidJsonc, load_jsonc, parse_jsonc
from devkit.probe.documents import InvalidDocument, parse_jsonc_tree
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost
from devkit.render.repair import apply_repair
from tests.cli.test_init import devkit

SET_SHM = Repair(RepairKind.SET, "devcontainer.json", ("runArgs",), '["--shm-size=8gb"]')


def value_texts(value, text):
    """Every value's own part of the text."""
    yield text[value.start : value.end], value
    for inner in (*(member.value for member in value.members), *value.items):
        yield from value_texts(inner, text)


def test_every_value_knows_its_part_of_the_text():
    text = '\ufeff// first\n{"a": [1, "two",], /* x */ "b": {"c": null}}\n'
    root = parse_jsonc(text)
    assert [part for part, _ in value_texts(root, text)][1:] == ['[1, "two",]', "1", '"two"', '{"c": null}', "null"]
    assert [(member.key, member.line, text[member.start]) for member in root.members] == [("a", 2, '"'), ("b", 2, '"')]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param('{\n  "a" 1}', "line 2, column 7: expected a colon, got 1", id="a colon is missing"),
        pytest.param('{"a": 1\n "b": 2}', 'line 2, column 2: expected a comma, got "b"', id="a comma is missing"),
        pytest.param('{"a": NaN}', "line 1, column 7: unexpected 'NaN}'", id="a number that JSON does not have"),
        pytest.param("[\n\n[1]", "line 3, column 4: expected a comma, got the end of the file", id="an open list"),
    ],
)
def test_what_is_no_json_is_refused_with_line_and_column(text, place):
    with pytest.raises(InvalidJsonc, match=f"^{place}$"):
        parse_jsonc(text)


RAW_TAB = '{\n  "name": "my\tproject", // mine\n  "image": "python:3.12"\n}\n'


def test_doctor_and_init_agree_on_a_raw_tab_in_a_string(tmp_path):
    (tmp_path / "devcontainer.json").write_text(RAW_TAB)
    (tmp_path / ".devcontainer.json").write_text(RAW_TAB)
    project = gather_facts(LocalHost(), only=("project",), project=str(tmp_path)).project
    assert [(file.path, file.state) for file in project.files] == [(".devcontainer.json", FileState.READ)]
    after = apply_repair(RAW_TAB.encode(), SET_SHM)
    assert load_jsonc(after) == {"name": "my\tproject", "image": "python:3.12", "runArgs": ["--shm-size=8gb"]}
    assert '"my\tproject", // mine' in after


def test_doctor_and_init_refuse_a_broken_file_in_the_same_line(tmp_path):
    broken = RAW_TAB.replace(", // mine", "")
    (tmp_path / ".devcontainer.json").write_text(broken)
    project = gather_facts(LocalHost(), only=("project",), project=str(tmp_path)).project
    assert [(file.state, file.line) for file in project.files] == [(FileState.BROKEN, 3)]
    refused = devkit("init", tmp_path, "--vendor", "cpu", "--dry-run")
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (
        ExitCode.WRONG_INPUT,
        'Error: .devcontainer.json, line 3: expected a comma, got "image"',
    )
    with pytest.raises(DevkitError, match="line 3, column 3: expected a comma"):
        apply_repair(broken.encode(), SET_SHM)


PIECES = st.sampled_from(
    ["{", "}", "[", "]", ",", ":", " ", "\n", "\t", "//x\n", "/*y*/", '"a"', '"b\tc"', '"\\n"', "1", "-0.5e3", "01", "NaN",
     "null", "true", "\ufeff", '"', "\\", "\u00a0", "x"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_reading_and_editing_agree_on_every_text(text):
    try:
        tree = parse_jsonc_tree(text, file="devcontainer.json")
    except InvalidDocument as error:
        with pytest.raises(DevkitError, match=f"line {error.line}, "):
            apply_repair(text.encode(), SET_SHM)
        return
    document = load_jsonc(text)
    if isinstance(document, dict):
        assert list(tree.fields) == list(document)
        after = load_jsonc(apply_repair(text.encode(), SET_SHM))
        assert after == {**document, "runArgs": ["--shm-size=8gb"]}


@settings(max_examples=60, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_every_value_reads_as_the_json_module_reads_it(value):
    assert parse_jsonc(json.dumps(value)).to_python() == value
