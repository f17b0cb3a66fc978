"""devkit.toml: read strictly, written once, edited without losing a word of the user's."""

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.render.choices import SECTIONS, Choices, choices_text, read_choices

MADE = Choices(
    name="Bob's model",
    driver="570.124.06",
    gpus=("RTX 4090", "9.0"),
    vendor="nvidia",
    torch="2.13.0",
    pins=(("peft", "0.21.2"),),
    wheelhouse=True,
)


@pytest.mark.parametrize(
    "choices",
    [pytest.param(Choices(name="x"), id="nothing chosen"), pytest.param(MADE, id="many things chosen")],
)
def test_what_is_written_reads_back(choices):
    assert read_choices(choices_text(choices, None).encode()) == choices


def test_every_example_in_a_new_file_is_valid_when_its_hash_is_taken_away():
    text = choices_text(Choices(name="x"), None)
    examples = [line for line in text.splitlines() if re.match(r"# \w+ = ", line)]
    # The name is written out, and devkit's own section left out.
    assert len(examples) == sum(len(keys) for _, keys in SECTIONS.values()) - 2
    for line in examples:
        assert tomllib.loads(line.removeprefix("# "))


def test_an_edit_keeps_comments_order_and_spelling():
    text = "# ours\nname = 'demo' # quoted our way\n[versions]\ntorch = '2.12.0' # tested\n"
    edited = choices_text(Choices(name="demo", torch="2.13.0", gpus=("H100",)), text.encode())
    assert "# ours\nname = 'demo' # quoted our way\n" in edited
    assert 'torch = "2.13.0" # tested' in edited
    assert read_choices(edited.encode()).gpus == ("H100",)


def test_equal_choices_leave_the_bytes_alone():
    text = "name='demo'   \r\n\r\n[ versions ]\n"
    assert choices_text(Choices(name="demo"), text.encode()) == text


def test_flags_win_and_what_they_leave_open_stays():
    merged = MADE.with_flags(Choices(torch="2.12.0"))
    assert (merged.torch, merged.driver, merged.wheelhouse) == ("2.12.0", "570.124.06", True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("name = ", "is not TOML", id="a syntax error"),
        pytest.param("[versions]\ntorhc = '2.13.0'", "versions.torhc", id="a misspelt key"),
        pytest.param("[version]\ntorch = '2.13.0'", "version.torch", id="a misspelt section"),
        pytest.param("torch = '2.13.0'", "torch", id="a key outside its section"),
        pytest.param("[versions]\ntorch = 2.13", "a string in quotes", id="a number for a version"),
        pytest.param("[target]\ngpus = 'H100'", "a list of strings", id="a string for a list"),
        pytest.param("[network]\nwheelhouse = 'yes'", "true or false", id="a string for a switch"),
        pytest.param("[pins]\npeft = 1", "pins", id="a number for a pin"),
        pytest.param("pins = 3", "pins", id="pins that are no table"),
    ],
)
def test_wrong_input_is_one_line_with_a_hint(text, says):
    with pytest.raises(DevkitError) as refused:
        read_choices(text.encode())
    assert says in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint


def test_a_file_that_is_not_text_is_refused():
    with pytest.raises(DevkitError, match="not TOML"):
        read_choices(b"\xff\xfe")


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40))
def test_any_text_survives_the_file(text):
    assert read_choices(choices_text(Choices(name=text), None).encode()).name == text


@pytest.mark.parametrize("key", ["machine", "platform", "vendor", "engine", "gpu_runtime"])
def test_a_setting_with_few_values_takes_no_other_and_names_them(key):
    with pytest.raises(DevkitError, match=rf"target\.{key} cannot be 'banana'") as refused:
        read_choices(f'[target]\n{key} = "banana"\n'.encode())
    assert " or " in refused.value.hint
