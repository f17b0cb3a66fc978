"""Diffs never show a user's values of variables and build arguments; a merge keeps both sides' changes and breaks no document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.formats.jsonc import load_jsonc
from devkit.render.diffs import format_unified_diff, has_conflict_markers, merge_file, merge_lines

SECRET = "zQ7hunter2Xk9"
TEXTS = {
    "Compose, a table": f"services:\n  app:\n    environment:\n      BILLING: {SECRET}\n      LEVEL: debug\n",
    "Compose, a list": f'    environment:\n      - BILLING={SECRET}\n      - "LEVEL=debug"\n',
    "Compose, build arguments": f"    build:\n      args:\n        INDEX_LOGIN: '{SECRET}'\n",
    "devcontainer.json": f'{{\n  "containerEnv": {{ "BILLING": "{SECRET}", "LEVEL": "debug" }},\n  "build": {{}}\n}}\n',
    "a Dockerfile": f"FROM python:3.12\nENV BILLING={SECRET} LEVEL=debug\nARG LOGIN={SECRET}\n",
    "a Dockerfile, in the old form": f"FROM python:3.12\nENV BILLING {SECRET} and more\n",
    "a Dockerfile, over lines": f"FROM python:3.12\nENV LEVEL=debug \\\n    BILLING={SECRET}\n",
    "Compose, small letters": f'services:\n  app:\n    environment:\n      billing: it\'s a, "{SECRET}"\n    image: x\n',
    "Compose, a list at its key": f"    environment:\n    - billing={SECRET} # note\n    image: x\n",
    "Compose, a block": f"    environment:\n      billing: |\n        first\n        {SECRET}\n    image: x\n",
    "devcontainer.json, a quote": f'{{"containerEnv": {{"billing": "a\\"{SECRET}"}}, "x": 1}}\n',
    "devcontainer.json, options": f'{{"runArgs": ["--env=k={SECRET}", "-e", "b={SECRET}", "--build-arg", "C={SECRET}"]}}\n',
    "a key that says it is secret": f"db_password: {SECRET}\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_values_that_were_there_are_hidden(text):
    after = f"{text}# added\nNVIDIA_VISIBLE_DEVICES: all\n"
    for shown in (
        format_unified_diff("x", text.encode(), after.encode()),
        format_unified_diff("x", after.encode(), b""),
    ):
        assert SECRET not in shown
    assert "+# added" in format_unified_diff("x", text.encode(), after.encode())


def test_a_value_that_begins_with_another_is_hidden_whole():
    shown = format_unified_diff("x", b"A_B: one\nb:\n  A_B: one two\n", b"")
    assert shown.splitlines()[3:] == ["-A_B: …", "-b:", "-  A_B: …"]


def test_what_devkit_adds_is_shown():
    shown = format_unified_diff("x", b"A_B: one\n", b"A_B: one\nNVIDIA_VISIBLE_DEVICES: all\nENV LEVEL debug\n")
    assert "+NVIDIA_VISIBLE_DEVICES: all\n+ENV LEVEL debug" in shown


def test_bytes_that_are_no_text_are_not_shown():
    assert format_unified_diff("x", b"\xff", b"\xfe") == "x: binary files differ"
    assert format_unified_diff("x", b"\xff", b"\xff") == ""


def test_controls_in_a_file_move_no_cursor():
    shown = format_unified_diff("x", b"a\n", "b\x1b]0;title\x07\u202e\n".encode())
    assert "\x1b" not in shown and "\u202e" not in shown


BASE = "one\ntwo\nthree\nfour\nfive\n"


def merge(path: str, base: str, ours: str, theirs: str) -> tuple[str, list[str]]:
    """The merged text, and where it needs a decision."""
    result = merge_file(path, base=base, ours=ours.encode(), theirs=theirs.encode())
    assert result is not None
    content, conflicts = result
    assert {conflict.path for conflict in conflicts} <= {path}
    return content.decode(), [conflict.place for conflict in conflicts]


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
    assert merged == (both.encode(), ())


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
    def text(pieces, side):
        return "".join(piece[side] for piece in pieces)

    for changed in (ours, theirs):
        for pieces in (
            merge_lines(base, changed, base),
            merge_lines(base, base, changed),
            merge_lines(base, changed, changed),
        ):
            assert {text(both, side) for both in [list(pieces)] for side in (0, 1)} == {"".join(changed)}
    pieces = list(merge_lines(base, ours, theirs))
    # A line that one side added is in the pieces of that side, whether they meet or not.
    for side, lines in enumerate((ours, theirs)):
        assert all(line in text(pieces, side) for line in set(lines) - set(base))


MINE = """{
\t// ours
\t"name": "Démo", /* as people call it */
\t"service": "dev",
\t"extensions": [
\t\t"python", // language server
\t\t"toml"
\t],
\t"init": true
}
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "places"),
    [
        pytest.param(MINE.replace("Démo", "Mine"), MINE.replace("true", "false"), [], id="different keys"),
        pytest.param(MINE.replace("Démo", "Mine"), MINE.replace("Démo", "Theirs"), ["line 3"], id="the same key"),
        pytest.param(
            MINE.replace('"toml"', '"toml",\n\t\t"docker"'),
            MINE.replace('"toml"', '"toml",\n\t\t"ruff"'),
            ["line 7"],
            id="items at the end of a list",
        ),
        pytest.param(
            MINE.replace(',\n\t"init": true', ""),
            "{\n\t// devkit's\n" + MINE.partition("{\n")[2],
            [],
            id="a key that the user removed",
        ),
    ],
)
def test_a_document_gets_both_sides_or_keeps_the_users_and_stays_a_document(ours, theirs, places):
    text, found = merge("devcontainer.json", MINE, ours, theirs)
    assert found == places
    merged, mine = load_jsonc(text), load_jsonc(ours)
    if places:
        assert text == ours
    else:
        assert merged == mine | {"init": load_jsonc(theirs)["init"]} or "init" not in mine


def test_a_merge_of_lines_that_breaks_a_document_keeps_the_users_file():
    ours = '{\n"a": 1,\n"x": 3\n}\n'
    text, places = merge("devcontainer.json", '{\n"a": 1,\n"b": 2,\n"x": 3\n}\n', ours, '{\n"a": 1,\n"b": 2\n}\n')
    assert (text, places) == (ours, ["line 3"])
    text, places = merge("devcontainer.json", "{}", "{ half", '{"a": 1}')
    assert (text, places) == ("{ half", ["the whole file"])


def test_compose_files_keep_comments_of_both():
    base = "services:\n  dev:\n    # size\n    shm_size: 8gb\n    cap: 1\n    init: true\n"
    ours = base.replace("init: true\n", "init: true\n    # ours\n    cpus: 4\n")
    theirs = base.replace("# size\n    shm_size: 8gb", "# a limit\n    shm_size: 16gb")
    text, places = merge("docker-compose.yml", base, ours, theirs)
    assert places == []
    assert text == theirs + "    # ours\n    cpus: 4\n"
    met = base.replace("8gb", "4gb")
    assert merge("docker-compose.yml", base, met, theirs) == (met, ["line 3"])


def test_what_is_no_text_is_not_merged():
    assert merge_file("x.whl", base="", ours=b"\xff\xfe", theirs=b"") is None
