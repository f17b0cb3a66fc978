"""Texts for parsers: any at all, and sound ones with a few edits."""

from hypothesis import strategies as st

_MARKS = r"""" ' \ [ ] { } ( ) < > : , ; = == -> => # // /* */ --- - &a *a !reset ${ ${A:- $( $ %s {0} <<EOF"""
_WORDS = (
    "null true None NaN -1 0 0x10 1e999 1.2.3.4.5 .. / // ~ <<:*a !!python/object:os.system [[]] \ufeff \ufffd ² ٣ é"
)
TOKENS = (
    *_MARKS.split(),
    *_WORDS.split(),
    *("\n", "\r\n", "\t", " ", "\0", "\x1b[31m", "\u202e", "\U0001f600", "<<: *a", "\\\n", "- "),
    *('{"value": null}', '{"unknown": 1}', '"gpu": []', "x" * 300, "9" * 30, "9" * 400),
)


def anything() -> st.SearchStrategy[str]:
    """Any text that a file may hold once its bytes were decoded."""
    return st.text(st.characters(exclude_categories=("Cs",)), max_size=200)


def nearly(sound: str) -> st.SearchStrategy[str]:
    """`sound` with a few edits, or anything at all."""
    edit = st.tuples(
        st.integers(0, 999),
        st.integers(0, 40),
        st.one_of(st.sampled_from(TOKENS), anything(), st.just("")),
        st.booleans(),
    )
    return st.one_of(st.lists(edit, min_size=1, max_size=6).map(lambda edits: _edited(sound, edits)), anything())


def _edited(sound, edits):
    text = sound
    for place, length, token, doubles in edits:
        at = len(text) * place // 1000
        text = text[:at] + token + text[at if doubles else at + length :]
    return text
