"""The table of signatures: every row sound, every text found, every symptom of a check known; and the time it takes."""

import re
import time
from string import Formatter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.signatures.catalog import find_symptoms, load_failures, load_signatures
from devkit.doctor.signatures.log_text import HEAD, TAIL, read_words
from devkit.doctor.signatures.matching import match_signatures, search_text
from devkit.doctor.signatures.model import Signature
from devkit.doctor.signatures.patterns import compile_pattern

SIGNATURES = load_signatures()

SAMPLES = {
    "version": "570.124.06",
    "number": "12",
    "cuda": "12080",
    "hex": "0x2",
    "size": "2.00 GiB",
    "condition": "cuda>=12.8",
    "requirement": "a-b>=1.2,<2",
    "word": "shm",
    "arch": "sm_120",
    "name": "a/b-c.d",
    "text": "some words",
    "soname": "libcudart.so.12",
    "path": "/opt/x/libcuda.so",
    "cc": "8.6",
}
"""A text for each kind of capture."""


def named(row):
    return f"{row.code} {row.texts[0]}"


def written_out(template):
    """A text as it may be met: captures filled, gaps closed."""
    return re.sub(r"\{\w+:(\w+)\}", lambda found: SAMPLES[found[1]], template).replace("…", " ")


def with_neighbor(row, template):
    """The text, and beside it what the row asks for."""
    return "\n".join([written_out(template), *(written_out(near) for near in row.beside[:1])])


@pytest.mark.parametrize("row", SIGNATURES, ids=named)
def test_every_text_of_the_table_is_found_and_leads_to_its_check(row):
    for text in row.texts:
        found = find_known_errors(with_neighbor(row, text))
        assert row.code in {match.code for match in found} | {code for match in found for code in match.also}, text


@pytest.mark.parametrize("row", SIGNATURES, ids=named)
def test_every_text_has_words_enough_and_gaps_few_enough(row):
    patterns = [compile_pattern(text) for text in row.texts]
    assert min(pattern.specificity for pattern in patterns) >= 6
    assert min(len(pattern.anchor) for pattern in patterns) >= 4
    assert max(text.count("…") for text in row.texts) <= 2


@pytest.mark.parametrize("row", SIGNATURES, ids=named)
def test_every_text_captures_what_the_cause_names(row):
    names = {name for _, name, _, _ in Formatter().parse(row.cause) if name}
    assert all(names <= set(re.findall(r"\{(\w+):", text)) for text in row.texts)


@pytest.mark.parametrize("row", SIGNATURES, ids=named)
def test_every_row_is_whole(row):
    assert {row.code, *row.also} <= set(BY_CODE)
    assert row.code not in row.also
    assert row.source
    assert row.cause == row.cause.strip(" .")
    assert row.fix.summary.endswith((".", "`", "."))
    assert all(
        "{" not in word
        for word in (row.fix.summary, *row.fix.commands)
        if "--format" not in word and "features" not in word
    )


@pytest.mark.parametrize("row", SIGNATURES, ids=named)
def test_the_symptoms_that_a_page_shows_have_no_marks(row):
    assert not [text for text in row.symptoms if "…" in text or "{" in text]


def test_no_text_stands_in_two_rows():
    texts = [text for row in SIGNATURES for text in row.texts]
    assert sorted({text for text in texts if texts.count(text) > 1}) == []


def test_nearly_every_failure_with_a_text_has_a_row():
    assert sum(bool(failure.signatures) for failure in load_failures()) >= 95


FAILURE = re.compile(
    r"error|fail|cannot|could not|can't|couldn't|not found|denied|unable|invalid|reject|mismatch|not allowed|unknown"
    r"|unsupported|not supported|no such|too old|refused|killed|is not|are not|missing",
    re.IGNORECASE,
)
"""A symptom of four words or more with one of these in it is taken for a quoted error text, others for keywords."""

NOT_BY_ITSELF = {
    "Key was rejected by service": "other modules than NVIDIA's are rejected with the same words",
    "can't assign; no space": "the kernel says it of every kind of card",
    "API mismatch: the client has the version": "cut off before the versions",
    "E: The list of sources could not be read": "apt says it of every wrong list",
    "Failed to initialize NVML": "the reason follows after a colon",
    "unable to load config file": "every program may say it",
    "could not parse config": "every program may say it",
    "401 Client Error: Unauthorized": "every web server may say it",
    "Temporary failure in name resolution": "of the hub only where the hub is named",
    "INTERNAL ASSERT FAILED device >= 0 && device < num_gpus": "torch writes it the other way round",
    "Property gpus is not allowed": "of an editor, about any JSON file",
    'Property gpus is not allowed. hostRequirements "16GB" does not match the pattern': "two such lines",
    "pull access denied for all": "the name goes on: all-in-one",
    "Driver/library version mismatch after a reboot": "a description",
    "MIG device not found": "a description",
    "CUDA is not available on a vGPU": "a description",
    "/dev/nvidia0 exists, but nvidia-smi is not there": "a description",
    "the version that was installed is not the one that is imported": "a description",
}
"""Symptoms that look like an error text and are too little of one to be sure, with the reason."""

SYMPTOMS = [
    pytest.param(check, symptom, id=f"{check.code} {symptom}")
    for check in CHECKS
    for symptom in find_symptoms(check.code)
    if len(symptom.split()) >= 4 and FAILURE.search(symptom) and symptom not in NOT_BY_ITSELF
]


@pytest.mark.parametrize(("check", "symptom"), SYMPTOMS)
def test_the_symptom_of_a_check_leads_to_it_or_to_its_cause(check, symptom):
    found = find_known_errors(symptom)
    codes = {match.code for match in found} | {code for match in found for code in match.also}
    assert check.code in codes or any(check.code in BY_CODE[code].causes for code in codes)


def test_the_exceptions_are_still_needed():
    symptoms = {symptom for check in CHECKS for symptom in find_symptoms(check.code)}
    assert {text for text in NOT_BY_ITSELF if text in symptoms and find_known_errors(text)} == set()


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{found:version}", id="no fixed words"),
        pytest.param("found {version:release} here", id="an unknown kind"),
        pytest.param("an open {brace", id="an open brace"),
        pytest.param("", id="nothing"),
    ],
)
def test_a_text_that_cannot_be_a_pattern_is_refused(template):
    with pytest.raises(ValueError, match=r"no pattern|no kind"):
        compile_pattern(template)


JUNK = [
    pytest.param("x" * 5_000_000, id="one word"),
    pytest.param(" " * 5_000_000, id="blanks"),
    pytest.param("\n" * 5_000_000, id="empty lines"),
    pytest.param("a\n" * 2_500_000, id="lines of a letter"),
    pytest.param("\\" * 5_000_000, id="backslashes"),
    pytest.param("\x1b[" * 2_500_000, id="colors that never end"),
    pytest.param("\x1b]" * 2_500_000, id="titles that never end"),
    pytest.param("[1;2" * 1_250_000, id="bare colors that never end"),
    pytest.param("> " * 2_500_000, id="quotation marks"),
    pytest.param("| " * 2_500_000, id="bars"),
    pytest.param("a" * 79 + " | ", id="a name before a bar"),
    pytest.param("NVML: Driver/library version mismatc\n" * 140_000, id="nearly an error"),
    pytest.param("Xid (PCI:0000:01:00): 7" * 220_000, id="beginnings of Xids"),
    pytest.param("CUDA CUDA capability sm_" * 210_000, id="beginnings of architectures"),
    pytest.param("undefined symbol: flash_attn so " * 160_000, id="gaps without an end"),
    pytest.param("Failed to initialize NVML: Unknown Error\n" * 120_000, id="an error over and over"),
    pytest.param("é\u2028" * 2_500_000, id="other alphabets and line ends"),
]


@pytest.mark.parametrize("text", JUNK)
@pytest.mark.turns(3)
def test_five_million_characters_take_less_than_two_seconds(text):
    match_signatures("warm up")
    started = time.process_time()
    match_signatures(text)
    assert time.process_time() - started < 2


def test_of_a_very_long_text_the_beginning_and_the_end_are_read():
    first, middle, last = (
        "Bootstrap : no socket interface found",
        "GatedRepoError: 401 Client Error",
        "nvml error: driver not loaded",
    )
    fill = "a line of a log\n" * (max(HEAD, TAIL) // 16)
    found = {match.code for match in match_signatures(f"{first}\n{fill}{middle}\n{fill}\n{fill}\n{last}")}
    assert {"NET002", "DRV001"} == found


@given(st.text())
def test_no_text_breaks_it(text):
    assert isinstance(match_signatures(text), tuple)


@given(st.text(), st.text())
def test_an_error_is_found_between_any_two_lines(before, after):
    found = match_signatures(f"{before}\nnvml error: driver/library version mismatch\n{after}")
    assert "DRV002" in {match.code for match in found}


def test_what_is_near_counts_and_what_is_far_does_not():
    row = Signature("X", ("a strange failure",), "a cause", SIGNATURES[0].fix, "a source", unless=("of the printer",))
    text = "a strange failure"
    assert search_text(text, (row,))
    assert not search_text(f"{text} of the printer", (row,))
    assert search_text(f"{text}{' word' * 400} of the printer", (row,))


def test_cleaning_keeps_the_words():
    assert read_words("web-1  | 2026-11-21T10:00:00Z \x1b[1mone\x1b[0m\n> two\r\n  three").shown == "one two three"
