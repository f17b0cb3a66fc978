"""Merging: both sides' changes are kept, and where they meet nothing is lost and no document breaks."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devkit.render.splice.jsonc import JSONC
from devkit.render.splice.merge import has_conflict_markers, merge_file, merge_lines

BASE = "one\ntwo\nthree\nfour\nfive\n"


def merge(path: str, base: str, ours: str, theirs: str) -> tuple[str, list[str]]:
    """The merged text, and where it needs a decision."""
    result = merge_file(path, base=base, ours=ours.encode(), theirs=theirs.encode())
    assert result is not None
    return result.content.decode(), [conflict.place for conflict in result.conflicts]


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        pytest.param(BASE, "1\ntwo\nthree\nfour\nfive\n", "1\ntwo\nthree\nfour\nfive\n", id="only devkit changed"),
        pytest.param("1\ntwo\nthree\nfour\nfive\n", BASE, "1\ntwo\nthree\nfour\nfive\n", id="only the user changed"),
        pytest.param("1\n" + BASE[4:], BASE[:-5] + "5\n", "1\ntwo\nthree\nfour\n5\n", id="at both ends"),
        pytest.param("1\n" + BASE[4:], "1\n" + BASE[4:], "1\n" + BASE[4:], id="both the same"),
        pytest.param("one\nthree\nfour\nfive\n", BASE + "six\n", "one\nthree\nfour\nfive\nsix\n", id="taken and added"),
        pytest.param(BASE.replace("\n", "\r\n"), "zero\n" + BASE, "zero\r\n" + BASE.replace("\n", "\r\n"), id="CRLF"),
        pytest.param("\ufeff" + BASE, "zero\n" + BASE, "\ufeffzero\n" + BASE, id="a byte order mark"),
    ],
)
def test_changes_of_both_sides_are_kept(ours, theirs, both):
    merged = merge_file("Dockerfile", base=BASE, ours=ours.encode(), theirs=theirs.encode())
    if "\r\n" in ours:
        both = "zero\r\n" + BASE.replace("\n", "\r\n")
    assert (merged.content.decode(), merged.conflicts) == (both, ())


def test_where_changes_meet_a_text_gets_both_between_markers():
    text, places = merge("Dockerfile", BASE, BASE.replace("three", "ours"), BASE.replace("three", "devkit's"))
    marked = "<<<<<<< yours\nours\n=======\ndevkit's\n>>>>>>> devkit\n"
    assert (text, places) == (BASE.replace("three\n", marked), ["line 3"])
    assert has_conflict_markers(text.encode())
    assert has_conflict_markers(text.replace("\n", "\r\n").encode())
    assert not has_conflict_markers(BASE.encode())


def test_changes_of_neighboring_lines_meet_as_they_do_in_git():
    _, places = merge("gpu.sh", BASE, BASE.replace("three", "ours"), BASE.replace("four", "devkit's"))
    assert places == ["line 3"]


@pytest.mark.parametrize("path", ["settings.toml", ".env"])
def test_a_format_that_markers_would_break_keeps_the_users_lines(path):
    ours = BASE.replace("three", "ours")
    text, places = merge(path, BASE, ours, BASE.replace("three", "devkit's"))
    assert (text, places) == (ours, ["line 3"])


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=8)


@given(LINES, LINES, LINES)
def test_one_side_alone_always_wins_and_nothing_is_lost(base, ours, theirs):
    def text(regions, side):
        return [line for region in regions for line in getattr(region, side)]

    assert text(merge_lines(base, ours, base), "ours") == ours
    assert text(merge_lines(base, base, theirs), "theirs") == theirs
    assert not any(region.is_conflict for region in merge_lines(base, ours, ours))
    regions = list(merge_lines(base, ours, theirs))
    # A line that one side added is in the regions of that side, with and without conflict.
    for side, lines in (("ours", ours), ("theirs", theirs)):
        assert all(line in text(regions, side) for line in set(lines) - set(base))


DOCUMENT = {
    "name": "demo",
    "service": "dev",
    "extensions": ["python", "toml"],
    "nested": {"init": True, "size": "8gb"},
}
THEIRS = {
    "name": "demo",
    "service": "dev",
    "extensions": ["python", "ruff"],
    "nested": {"init": True, "size": "16gb", "ulimit": 1},
    "secrets": {"TOKEN": {}},
}
MINE = """{
\t// ours
\t"name": "Démo", /* as people call it */
\t"service": "dev",
\t"extensions": [
\t\t"python", // language server
\t\t"toml",
\t\t"docker",
\t],
\t"nested": { "init": false, "size": "8gb" },
}
"""


def test_a_commented_document_takes_each_change_by_itself():
    text, places = merge("devcontainer.json", json.dumps(DOCUMENT), MINE, json.dumps(THEIRS))
    assert places == []
    assert JSONC.loads(text) == {
        "name": "Démo",
        "service": "dev",
        "extensions": ["python", "docker", "ruff"],
        "nested": {"init": False, "size": "16gb", "ulimit": 1},
        "secrets": {"TOKEN": {}},
    }
    for line in ("\t// ours\n", '\t"name": "Démo", /* as people call it */\n', '\t\t"python", // language server\n'):
        assert line in text


def test_where_changes_meet_a_document_keeps_the_users_side_and_stays_a_document():
    ours = MINE.replace('"8gb"', '"64gb"').replace('\t"service": "dev",\n', "")
    theirs = THEIRS | {"service": "other"}
    text, places = merge("devcontainer.json", json.dumps(DOCUMENT), ours, json.dumps(theirs))
    assert places == ["service", "nested.size"]
    assert JSONC.loads(text)["nested"]["size"] == "64gb"
    assert "service" not in JSONC.loads(text)


def test_compose_files_keep_comments_of_both():
    base = "services:\n  dev:\n    # size\n    shm_size: 8gb\n    init: true\n"
    ours = base.replace("init: true\n", "init: true\n    # ours\n    cpus: 4\n")
    theirs = base.replace("# size\n    shm_size: 8gb", "# a limit\n    shm_size: 16gb")
    text, places = merge("docker-compose.yml", base, ours, theirs)
    assert places == []
    assert text == "services:\n  dev:\n    # a limit\n    shm_size: 16gb\n    init: true\n    # ours\n    cpus: 4\n"


def test_changes_that_only_lines_cannot_merge_are_merged_by_keys():
    base = "services:\n  dev:\n    shm_size: 8gb\n    init: true\n"
    ours = base.replace("init: true", "init: false")
    theirs = base.replace("shm_size: 8gb", "shm_size: 16gb")
    text, places = merge("docker-compose.yml", base, ours, theirs)
    assert (yaml.safe_load(text)["services"]["dev"], places) == ({"shm_size": "16gb", "init": False}, [])


def test_a_document_that_does_not_parse_stays_as_it_is():
    text, places = merge("devcontainer.json", "{}", "{ half", '{"a": 1}')
    assert (text, places) == ("{ half", ["the whole file"])


def test_what_is_no_text_is_not_merged():
    assert merge_file("x.whl", base="", ours=b"\xff\xfe", theirs=b"") is None


VALUES = st.dictionaries(
    st.sampled_from("abc"), st.one_of(st.integers(0, 3), st.dictionaries(st.sampled_from("xy"), st.integers(0, 2)))
)


@given(VALUES, VALUES, VALUES)
def test_a_merged_document_parses_and_has_every_change_that_the_user_did_not_make_too(base, ours, theirs):
    text, places = merge("a.json", *(json.dumps(each, indent=2) for each in (base, ours, theirs)))
    result = json.loads(text)
    for key in theirs:
        if ours.get(key) == base.get(key) and not any(place.startswith(key) for place in places):
            assert result.get(key) == theirs[key]
    for key in ours:
        if theirs.get(key) == base.get(key):
            assert result.get(key) == ours[key]
