"""The catalog of errors: every row sound, every text found, every symptom of a check known; and the time it takes."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.signatures.catalog import find_symptoms, load_failures, load_families
from devkit.doctor.signatures.computed_fixes import COMPUTED_FIXES
from devkit.doctor.signatures.log_text import HEAD, TAIL, read_words
from devkit.doctor.signatures.matching import find_errors, match_family
from devkit.doctor.signatures.model import Family, FamilyCause
from devkit.doctor.signatures.patterns import compile_pattern, list_whole_words
from devkit.doctor.signatures.rendering import render_fix_of
from devkit.doctor.signatures.text_facts import FACT_NAMES, TextFacts, read_text_facts

FAMILIES = load_families()
FAILURES = {failure.id: failure for failure in load_failures()}
OF_FAILURES = [row for row in FAMILIES if row.id in FAILURES]
"""Rows of failures: their texts lead to a check."""

SAMPLES = {
    "version": "570.124.06",
    "number": "12",
    "cuda": "12080",
    "hex": "0x2",
    "size": "2.00 GiB",
    "condition": "cuda>=12.8",
    "requirement": "a-b>=1.2,<2",
    "word": "shm",
    "symbol": "_ZN5torch",
    "arch": "sm_120",
    "name": "a/b-c.d",
    "text": "some words",
    "soname": "libcudart.so.12",
    "path": "/opt/x/libcuda.so",
    "cc": "8.6",
}
"""A text for each kind of capture."""


def written_out(template):
    """A text as it may be met: captures filled, gaps closed."""
    return re.sub(r"\{\w+:(\w+)\}", lambda found: SAMPLES[found[1]], template).replace("…", " ")


STATED = {
    "rebooted": "# reboot",
    "mig_devices": "| No MIG devices found |",
    "held_here": "a total capacity of 24 GiB of which 1 GiB is free; this process has 23 GiB memory in use",
    "wsl": "WSL 2",
    "macos": "/Users/amy/app.py",
    "windows_build": "[Version 10.0.19043.1586]",
    "wsl_version": "* Ubuntu Stopped 1",
    "wsl_distribution": "* Ubuntu Stopped 1",
}
"""A line that states a fact which rows ask for, as they ask for it."""


def with_neighbor(row, template):
    """The text, and beside it what the row asks for."""
    stated = dict.fromkeys(STATED[name] for cause in row.causes for name in cause.given)
    return "\n".join([*stated, written_out(template), *(written_out(near) for near in row.beside[:1])])


def codes_of(text):
    """The codes that a text leads to, first or beside."""
    found = find_known_errors(text)
    beside = {cause.code for match in found for cause in match.alternatives}
    return {match.code for match in found} | {code for match in found for code in match.also} | beside - {""}


def test_every_text_of_the_table_is_found_and_leads_to_its_check():
    texts = [(row.causes[0].code, with_neighbor(row, text)) for row in OF_FAILURES for text in row.texts]
    assert [(code, text) for code, text in texts if code not in codes_of(text)] == []


def test_every_text_is_found_where_a_log_is_read():
    missed = []
    for template in dict.fromkeys(text for row in FAMILIES for text in row.texts):
        read = read_words(written_out(template.replace("…", " and ")) + " end")
        pattern = compile_pattern(template)
        if not (list_whole_words(template) <= read.words and pattern.find(read.shown, read.lowered)):
            missed.append(template)
    assert missed == []


def find_faults(row):
    """Yield what is wrong with a row of the table."""
    patterns = [compile_pattern(text) for text in row.texts]
    captured = [
        {*re.findall(r"\{(\w+):", text), *FACT_NAMES, *(CHANGES if row.has_changes else ())} for text in row.texts
    ]
    if not row.sources:
        yield "it has no source"
    if any("…" in text or "{" in text for text in row.symptoms):
        yield "a symptom on its page has marks of a pattern"
    if any("}{" in text for text in row.texts):
        yield "two captures are side by side"
    if row.id in FAILURES and min(pattern.specificity for pattern in patterns) < 6:
        yield "a text has too few words of its own"
    for cause in row.causes:
        yield from find_faults_of_cause(row, cause, set().union(*captured))


def find_faults_of_cause(row, cause, captured):
    """Yield what is wrong with a cause of a row."""
    names = {*re.findall(r"(?<![{$])\{(\w+)\}", cause.cause), *cause.where}
    if not names <= captured:
        yield f"names what no text captures: {cause.cause}"
    if not {*filter(None, [cause.code]), *row.also} <= set(BY_CODE) or cause.code in row.also:
        yield f"its codes are not checks, or twice the same: {cause.cause}"
    if cause.computed and cause.computed not in COMPUTED_FIXES:
        yield f"no computed fix: {cause.computed}"
    if cause.cause != cause.cause.strip(" .") or not cause.fix.summary.endswith((".", "`")):
        yield f"its cause is no sentence, and its fix is one: {cause.cause}"
    fix = render_fix_of(cause, {}, TextFacts())
    if any(re.search(r"(?<![{$.])\{[a-z_]+\}(?!\})", word) for word in (fix.summary, *fix.commands)):
        yield f"its fix shows a name in braces: {cause.cause}"
    for rule in (*cause.where.values(), *cause.given.values()):
        re.compile(rule)
    for template in (*cause.proof, *cause.needs, *cause.speaks_for, *cause.speaks_against):
        compile_pattern(template)


CHANGES = ("change", "library", "added", "removed", "what", "caller", "said")
"""What the releases of libraries add to the captures of a text."""


def test_every_row_is_whole():
    assert [(row.id, row.texts[0], fault) for row in FAMILIES for fault in find_faults(row)] == []


def decides(cause):
    """Whether something besides the error's own words decides if the cause applies."""
    return any((cause.where, cause.needs, cause.given, cause.proof))


def test_no_text_stands_in_two_rows():
    alone = [row for row in FAMILIES if len(row.causes) == 1 and not decides(row.causes[0])]
    plain = [row for row in alone if not (row.beside or row.unless or row.is_consequence or row.is_harmless)]
    texts = [text for row in plain if not row.is_whole_line for text in row.texts]
    assert sorted({text for text in texts if texts.count(text) > 1}) == []


def test_nearly_every_failure_with_a_text_has_a_row():
    assert len({row.id for row in OF_FAILURES}) >= 95


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
    "OCI runtime create failed": "the line around the cause",
    "failed to create shim task": "the line around the cause",
    "error response from daemon": "the line around the cause",
    "/dev/nvidia0 exists, but nvidia-smi is not there": "a description",
    "the version that was installed is not the one that is imported": "a description",
}
"""Symptoms that look like an error text and are too little of one to be sure, with the reason."""


def test_the_symptom_of_a_check_leads_to_it_or_to_its_cause():
    quoted = [
        (check.code, symptom)
        for check in CHECKS
        for symptom in find_symptoms(check.code)
        if len(symptom.split()) >= 4 and FAILURE.search(symptom) and symptom not in NOT_BY_ITSELF
    ]
    assert len(quoted) > 200
    assert [
        (code, symptom)
        for code, symptom in quoted
        if code not in (codes := codes_of(symptom))
        and not any(code in BY_CODE[cause].causes for cause in codes if cause)
    ] == []


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


JUNK = {
    "one word": "x",
    "blanks": " ",
    "empty lines": "\n",
    "lines of a letter": "a\n",
    "backslashes": "\\",
    "colors that never end": "\x1b[",
    "titles that never end": "\x1b]",
    "bare colors that never end": "[1;2",
    "quotation marks": "> ",
    "bars": "| ",
    "names before bars": "a" * 79 + " | ",
    "nearly an error": "NVML: Driver/library version mismatc\n",
    "beginnings of Xids": "Xid (PCI:0000:01:00): 7",
    "beginnings of architectures": "CUDA CUDA capability sm_",
    "gaps without an end": "undefined symbol: flash_attn so ",
    "an error over and over": "Failed to initialize NVML: Unknown Error\n",
    "other alphabets and line ends": "é\u2028",
}


def measure_s(search, text):
    """The processor time of a search."""
    started = time.process_time()
    search(text)
    return time.process_time() - started


def find_slow(search, texts, bound_s):
    """The texts that take longer than the bound twice, without what the first search loads: other programs slow down one."""
    search("warm up")
    slow = {name: text for name, text in texts.items() if measure_s(search, text) >= bound_s}
    return {name: took_s for name, text in slow.items() if (took_s := measure_s(search, text)) >= bound_s}


def search(text):
    """The errors of the catalog in a text, before they are weighed."""
    words = read_words(text)
    return list(find_errors(words, read_text_facts(words)))


def repeat_junk(size):
    return {name: piece * (size // len(piece)) for name, piece in JUNK.items()}


def test_a_hundred_thousand_characters_take_little_time():
    assert find_slow(search, repeat_junk(100_000), 0.2) == {}


@pytest.mark.full
def test_five_million_characters_take_less_than_two_seconds():
    assert find_slow(search, repeat_junk(5_000_000), 2) == {}


def test_of_a_very_long_text_the_beginning_and_the_end_are_read():
    first, middle, last = (
        "nvidia-container-cli: requirement error: invalid expression",
        "GatedRepoError: 401 Client Error",
        "nvml error: driver not loaded",
    )
    fill = "a line of a log\n" * (max(HEAD, TAIL) // 16)
    found = {match.code for match in find_known_errors(f"{first}\n{fill}{middle}\n{fill}\n{fill}\n{last}")}
    assert {"CUD001", "DRV001"} == found


@given(st.text())
def test_no_text_breaks_it(text):
    assert isinstance(find_known_errors(text), tuple)


@given(st.text(), st.text())
def test_an_error_is_found_between_any_two_lines(before, after):
    found = find_known_errors(f"{before}\nnvml error: driver/library version mismatch\n{after}")
    assert "DRV002" in {match.code for match in found}


def test_what_is_near_counts_and_what_is_far_does_not():
    cause = FamilyCause("a cause", FAMILIES[0].causes[0].fix)
    row = Family("x", "a name", ("a strange failure",), ("a source",), (cause,), unless=("of the printer",))
    text = "a strange failure"

    def finds(said):
        return match_family(row, read_words(said), TextFacts()) is not None

    assert finds(text)
    assert not finds(f"{text} of the printer")
    assert finds(f"{text}{' word' * 400} of the printer")


def test_cleaning_keeps_the_words():
    assert read_words("web-1  | 2026-11-21T10:00:00Z \x1b[1mone\x1b[0m\n> two\r\n  three").shown == "one two three"
