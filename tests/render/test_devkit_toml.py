"""devkit.toml: read strictly, written once, edited without losing a word of the user's."""

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.facts.project import Policy
from devkit.render.devkit_toml import SECTIONS, ProjectSettings, parse_devkit_toml, render_devkit_toml

SETTINGS = ProjectSettings(
    name="Bob's model",
    driver="570.124.06",
    gpus=("RTX 4090", "9.0"),
    vendor="nvidia",
    torch="2.13.0",
    pins=(("peft", "0.21.2"),),
    wheelhouse=True,
    policy=Policy(
        registries=("docker.io/library", "registry.example.org:5000/ml"),
        mirrors=(("docker.io", "mirror.example.org/hub"),),
        required_labels=(("org.example.team", 'the "ML" team'),),
        allow_root=True,
    ),
)


@pytest.mark.parametrize(
    "settings",
    [pytest.param(ProjectSettings(name="x"), id="nothing chosen"), pytest.param(SETTINGS, id="many things chosen")],
)
def test_what_is_written_reads_back(settings):
    assert parse_devkit_toml(render_devkit_toml(settings, None).encode()) == settings


def test_a_new_file_holds_the_settings_that_were_made_and_says_where_the_others_are():
    text = render_devkit_toml(ProjectSettings(name="x", torch="2.13.0", sudo=True), None)
    assert tomllib.loads(text) == {"name": "x", "versions": {"torch": "2.13.0"}, "project": {"sudo": True}}
    assert "/settings/" in text


def test_every_example_of_the_settings_page_is_valid():
    for section, (_, keys) in SECTIONS.items():
        for key, (example, _) in keys.items():
            parse_devkit_toml(f"[{section}]\n{key} = {example}".removeprefix("[]\n").encode())


def test_an_edit_keeps_comments_order_and_spelling():
    text = "# ours\nname = 'demo' # quoted our way\n[versions]\ntorch = '2.12.0' # tested\n"
    edited = render_devkit_toml(ProjectSettings(name="demo", torch="2.13.0", gpus=("H100",)), text.encode())
    assert "# ours\nname = 'demo' # quoted our way\n" in edited
    assert 'torch = "2.13.0" # tested' in edited
    assert parse_devkit_toml(edited.encode()).gpus == ("H100",)


def test_equal_choices_leave_the_bytes_alone():
    text = "name='demo'   \r\n\r\n[ versions ]\n"
    assert render_devkit_toml(ProjectSettings(name="demo"), text.encode()) == text


def test_flags_win_and_what_they_leave_open_stays():
    merged = SETTINGS.with_flags(ProjectSettings(torch="2.12.0"))
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
        parse_devkit_toml(text.encode())
    assert says in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("content", "place"),
    [
        pytest.param(b"name = ", "1:8", id="a value that is missing"),
        pytest.param(b"name = 'x'\n[versions", "2:10", id="the end of the document"),
        pytest.param(b"name = 'x'\r\n# \xff", "2:3", id="a byte that is no UTF-8"),
        pytest.param(b"[versions]\n  torhc = '2'", "2:3", id="an unknown key in a section"),
        pytest.param(b"versions.torhc = '2'", "1:1", id="a dotted key"),
        pytest.param(b"versions = { cuda = '13.0', torhc = '2' }", "1:1", id="a key inside of a table on one line"),
        pytest.param(b'name = """\n[versions]\ntorch = 1\n"""\n[ versions ]\n\'torch\' = 2', "6:1", id="a long text"),
        pytest.param(b"\xef\xbb\xbf[target]\ngpus = 'H100'", "2:1", id="a wrong type after a byte order mark"),
        pytest.param(b"[pins]\npeft = '1'\ntrl = 2", "3:1", id="a pin that is a number"),
        pytest.param(b"x = " + b"9" * 5000, "", id="a number that is too long to read"),
        pytest.param(b"x = " + b"[" * 5000, "", id="brackets without end"),
        pytest.param(b"[policy]\nallow_root = 'no'", "2:1", id="a rule of another type"),
        pytest.param(b"[policy]\nregistreis = []", "2:1", id="an unknown rule"),
        pytest.param(b"[policy.required_labels]\n'a b' = 'x'", "2:1", id="a label with a space in its name"),
        pytest.param(b'[policy]\nrequired_labels.team = "a\\nb"', "2:1", id="a label of two lines"),
        pytest.param(b"[policy]\nregistries = ['https://docker.io']", "2:1", id="an address for a registry"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_column(content, place):
    with pytest.raises(DevkitError) as refused:
        parse_devkit_toml(content)
    assert refused.value.message.startswith(f"devkit.toml:{place}" if place else "devkit.toml")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("[versions]\ntorhc = '2'", "versions.torch"),
        ("[policy]\nregistreis = []", "policy.registries"),
        ("torch = '2.13.0'", "versions.torch"),
        ("[network]\nregistries = []", "policy.registries"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_known_one(text, near):
    with pytest.raises(DevkitError) as refused:
        parse_devkit_toml(text.encode())
    assert refused.value.hint == f"Did you mean {near}?"


def test_an_edit_leaves_the_policy_and_a_byte_order_mark_alone():
    text = "\ufeff[policy] # ours\nrequired_labels = {team='ml'}\n"
    settings = replace(parse_devkit_toml(text.encode()), torch="2.13.0")
    assert render_devkit_toml(settings, text.encode()).startswith(text)
    assert parse_devkit_toml(render_devkit_toml(settings, text.encode()).encode()) == settings


def test_a_file_that_is_not_text_is_refused():
    with pytest.raises(DevkitError, match="not TOML"):
        parse_devkit_toml(b"\xff\xfe")


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40))
def test_any_text_survives_the_file(text):
    assert parse_devkit_toml(render_devkit_toml(ProjectSettings(name=text), None).encode()).name == text


@pytest.mark.parametrize("key", ["machine", "platform", "vendor", "engine", "gpu_runtime"])
def test_a_setting_with_few_values_takes_no_other_and_names_them(key):
    with pytest.raises(DevkitError, match=rf"target\.{key} cannot be 'banana'") as refused:
        parse_devkit_toml(f'[target]\n{key} = "banana"\n'.encode())
    assert " or " in refused.value.hint
