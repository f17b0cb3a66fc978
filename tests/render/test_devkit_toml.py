"""devkit.toml and devkit.lock: read strictly, written once, edited without losing a word of the user's."""

import json
import subprocess
import tomllib
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.facts.dependencies import BuildNeed, Resolved, SourceBuild
from devkit.facts.settings import SettingInfo
from devkit.facts.values import ComputeCapability, Release
from devkit.render.devkit_lock import parse_lock, parse_locked_plan, render_lock
from devkit.render.devkit_toml import SECTIONS, ProjectSettings, parse_devkit_toml, render_devkit_toml
from devkit.render.files import Artifact
from devkit.render.toml_tables import TableSource, parse_table, set_toml_values
from devkit.solver.plan import Machine
from tests.render.plans import GPU_PLAN

# devkit.toml: read strictly, written once, edited without losing a word of the user's.


SETTINGS = ProjectSettings(
    name="Bob's model",
    driver="570.124.06",
    gpus=("RTX 4090", "9.0"),
    vendor="nvidia",
    torch="2.13.0",
    pins=(("peft", "0.21.2"),),
    wheelhouse=True,
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
    ("content", "place"),
    [
        pytest.param(b"name = ", "1:8", id="a value that is missing"),
        pytest.param(b"name = 'x'\r\n# \xff", "2:3", id="a byte that is no UTF-8"),
        pytest.param(b"[versions]\n  torhc = '2'", "2:3", id="an unknown key in a section"),
        pytest.param(b"versions = { cuda = '13.0', torhc = '2' }", "1:1", id="a key inside of a table on one line"),
        pytest.param(b'name = """\n[versions]\ntorch = 1\n"""\n[ versions ]\n\'torch\' = 2', "6:1", id="a long text"),
        pytest.param(b"\xef\xbb\xbf[target]\ngpus = 'H100'", "2:1", id="a wrong type after a byte order mark"),
        pytest.param(b"[pins]\npeft = '1'\ntrl = 2", "3:1", id="a pin that is a number"),
        pytest.param(b"x = " + b"9" * 5000, "", id="a number that is too long to read"),
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
        ("torch = '2.13.0'", "versions.torch"),
        ("[network]\napt = []", "project.apt"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_known_one(text, near):
    with pytest.raises(DevkitError) as refused:
        parse_devkit_toml(text.encode())
    assert refused.value.hint == f"Did you mean {near}?"


@pytest.mark.parametrize("text", ["[container]\nprofiles = ['ci']", "[container]\nbake = true", "name = 'x'\n[policy]"])
def test_a_removed_key_is_answered_with_what_does_its_part(text):
    with pytest.raises(DevkitError, match=r"devkit.toml:2:\d: the setting [.\w]+ was removed") as refused:
        parse_devkit_toml(text.encode())
    assert "/guides/" in refused.value.hint


def test_an_edit_leaves_comments_and_a_byte_order_mark_alone():
    text = "\ufeff[network] # ours\nindex = 'https://pypi.example.org/simple'\n"
    settings = replace(parse_devkit_toml(text.encode()), torch="2.13.0")
    assert render_devkit_toml(settings, text.encode()).startswith(text)
    assert parse_devkit_toml(render_devkit_toml(settings, text.encode()).encode()) == settings


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40))
def test_any_text_survives_the_file(text):
    assert parse_devkit_toml(render_devkit_toml(ProjectSettings(name=text), None).encode()).name == text


@pytest.mark.parametrize("key", ["machine", "platform", "vendor", "engine", "gpu_runtime"])
def test_a_setting_with_few_values_takes_no_other_and_names_them(key):
    with pytest.raises(DevkitError, match=rf"target\.{key} cannot be 'banana'") as refused:
        parse_devkit_toml(f'[target]\n{key} = "banana"\n'.encode())
    assert " or " in refused.value.hint


# Values put into a file of the user's: they stand there, and all the rest stays.


GPUS = {("job", "gpus"): 4}


def put(content, values=GPUS, comments=None):
    return set_toml_values(content, values, comments or {}, shown_as="devkit.toml")


@pytest.mark.parametrize("content", [None, b""])
def test_a_file_that_is_not_there_is_begun(content):
    assert put(content, comments={("job", "gpus"): "GPUs on each node"}) == b"[job]\ngpus = 4  # GPUs on each node\n"


def test_a_new_table_follows_an_empty_line():
    assert put(b'name = "x"\n') == b'name = "x"\n\n[job]\ngpus = 4\n'


def test_comments_order_and_spelling_stay():
    before = b"# ours\n[job]  # the job\n# how many\ngpus = 1 # one\nspot=true\n\n\n[versions]\ntorch='2.13.0'\n"
    assert put(before, comments={("job", "gpus"): "not here"}) == before.replace(b"gpus = 1 ", b"gpus = 4 ")


def test_the_mark_at_the_start_of_files_from_windows_stays():
    assert put("\ufeff[job]\r\ngpus=1\r\n".encode()) == "\ufeff[job]\r\ngpus=4\r\n".encode()


def test_inner_tables_are_made_or_found():
    values = {("job", "slurm", "models"): "/a", ("job", "gpus"): 2}
    made = tomllib.loads(put(b'[job.slurm]\npartition = "p"\n[target]\na = 1\n', values).decode())
    assert made == {"job": {"gpus": 2, "slurm": {"partition": "p", "models": "/a"}}, "target": {"a": 1}}


@pytest.mark.parametrize("content", [b"job = { gpus = 1 }\n", b"job.gpus = 1\n", b"[job]\nslurm = { x = 1 }\n"])
def test_other_ways_to_write_a_table(content):
    values = {("job", "gpus"): 4, ("job", "slurm", "models"): "/a"}
    made = tomllib.loads(put(content, values, dict.fromkeys(values, "a comment")).decode())["job"]
    assert (made["gpus"], made["slurm"]["models"]) == (4, "/a")


@pytest.mark.parametrize("content", [b"job = 3\n", b"[[job]]\ngpus = 1\n", b"[job]\nslurm = 3\n"])
def test_what_is_no_table_is_left_alone(content):
    with pytest.raises(DevkitError, match=r"written in a way that .* cannot be put into"):
        put(content, {("job", "slurm", "models"): "/a"})


# Settings from a table: every kind of value, and the place of whatever is wrong.


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Boat:
    name: Annotated[str, SettingInfo("Name.")] = ""
    oars: Annotated[int | None, SettingInfo("Oars.")] = None
    length: Annotated[float, SettingInfo("Length.")] = 1.0
    has_sail: Annotated[bool, SettingInfo("A sail.")] = False
    crew: Annotated[tuple[str, ...], SettingInfo("Crew.")] = ()
    color: Annotated[Color | None, SettingInfo("Color.")] = None
    log: Annotated[Path, SettingInfo("Log.")] = Path("log")


def values(text):
    return parse_table(tomllib.loads(text), Boat, TableSource("boat.toml", text))


def test_values_have_the_types_of_the_settings():
    text = 'name="a"\noars=2\nlength=3\nhas-sail=true\ncrew=["x","y"]\ncolor="blue"\nlog="a/b"\n'
    found = values(text)
    assert Boat(**found) == Boat(
        name="a", oars=2, length=3.0, has_sail=True, crew=("x", "y"), color=Color.BLUE, log=Path("a/b")
    )
    assert isinstance(found["length"], float)


def test_one_text_is_a_list_of_one():
    assert values('crew = "x"\n') == {"crew": ("x",)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\noras = 2", "boat.toml:2:1: the setting 'oras' does not exist | Did you mean oars?"),
        ("zzzzzz = 2", "boat.toml:1:1: the setting 'zzzzzz' does not exist | The settings are name"),
        ("oars = 2.5", "boat.toml:1:1: oars must be a whole number, not 2.5"),
        ("oars = true", "oars must be a whole number, not True"),
        ("length = 'x'", "length must be a number, not 'x'"),
        ("has_sail = 1", "has_sail must be true or false, not 1"),
        ("crew = []", "crew must be a list of strings, not []"),
        ("crew = [1]", "crew must be a list of strings, not [1]"),
        ("color = 'green'", 'color must be "red" or "blue", not'),
        ("name = ''", "name must be a string in quotes, not ''"),
        ("name = 3", "name must be a string in quotes, not 3"),
        ("log = 3", "log must be a string in quotes, not 3"),
        ("has-sail = true\nhas_sail = true", "boat.toml:2:1: has_sail is set twice"),
    ],
)
def test_wrong_values_are_refused_with_their_place(text, said):
    with pytest.raises(DevkitError) as refused:
        values(text)
    assert said in f"{refused.value.message} | {refused.value.hint}"


def test_the_place_is_that_in_the_inner_table():
    text = "[a]\noars = 1\n[a.b]\noars = 'x'\n"
    with pytest.raises(DevkitError, match=r"boat\.toml:4:1"):
        parse_table({"oars": "x"}, Boat, TableSource("boat.toml", text, ("a", "b")))


# devkit.lock: what is written can be read again, of every schema.


MACHINE = Machine(
    driver=Release.parse("570.124.06"),
    cuda=Release.parse("12.8"),
    gpus=(("NVIDIA GeForce RTX 4090", ComputeCapability(8, 9)),),
    machine="x86_64",
    platform="linux",
    glibc=Release.parse("2.36"),
    origin="this machine",
    notes=("GPU 1 does not answer",),
    amd_gpus=(("MI300X", "gfx942"),),
    toolkit=Release.parse("1.18.0"),
)
EMPTY = Machine(driver=None, cuda=None, gpus=(), machine="aarch64", platform="wsl2", glibc=None, origin="the flags")


def test_machines_come_back_as_they_were():
    lock = parse_lock(render_lock(GPU_PLAN, (), (MACHINE, EMPTY)).content)
    assert lock.machines == (MACHINE, EMPTY)
    assert str(lock.machines[0].driver) == "570.124.06"


def test_what_debian_packages_depend_on_comes_back():
    build = SourceBuild("x", (BuildNeed("header", "a.h", "setup.py:3"),), ("cython>=3",))
    wheels = (("soundfile", "soundfile-1-py3-none-any.whl"),)
    found = Resolved((("x", "1.0"), ("soundfile", "1")), ("x",), builds=(build,), wheels=wheels)
    served = tuple(
        (name, f"https://user:secret@x.example/{file}") for name, file in (*wheels, ("y", "y-1-py3-none-any.whl"))
    )
    lock = parse_lock(render_lock(replace(GPU_PLAN, resolution=replace(found, wheels=served)), ()).content)
    assert parse_locked_plan(lock.plan).resolution == found
    assert lock.is_for(replace(GPU_PLAN, resolution=replace(found, wheels=served)))
    assert not lock.is_for(replace(GPU_PLAN, resolution=replace(found, builds=())))


@pytest.mark.parametrize("text", ["", "one\n", "\r\ntwo\r\n", "\ufeffé 大\n"])
def test_a_file_is_known_by_the_id_that_git_gives_it(text, tmp_path):
    lock = parse_lock(render_lock(GPU_PLAN, (Artifact.from_text("a", text),)).content)
    (tmp_path / "a").write_bytes(text.encode())
    git = subprocess.run(["git", "hash-object", "--no-filters", str(tmp_path / "a")], capture_output=True, check=True)
    assert lock.files == {"a": git.stdout.decode().strip()}


def test_a_file_that_is_kept_out_of_version_control_is_named_alone():
    lock = parse_lock(render_lock(GPU_PLAN, (Artifact("x.whl", b"\xff", is_local=True),)).content)
    assert lock.files == {"x.whl": ""}


def test_repaired_files_come_back_with_their_codes():
    lock = parse_lock(render_lock(GPU_PLAN, (), (), {"b": ("PRJ020",), "a": ("PRJ022", "PRJ026")}).content)
    assert list(lock.repaired.items()) == [("a", ("PRJ022", "PRJ026")), ("b", ("PRJ020",))]


@pytest.mark.parametrize("key", ["machines", "files", "repaired", "plan"])
@pytest.mark.parametrize("value", [1, "x", [1], {"a": 1}, None], ids=repr)
def test_a_damaged_part_is_one_line(key, value):
    document = json.loads(
        render_lock(GPU_PLAN, (Artifact.from_text("a", "b"),), (MACHINE,), {"a": ("PRJ020",)}).content
    )
    document[key] = value
    try:
        parse_lock(json.dumps(document).encode())
    except DevkitError as refusal:
        assert "devkit.lock" in refusal.message
