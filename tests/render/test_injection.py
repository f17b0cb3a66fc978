"""Hostile values in every flag and setting: refused in one line, or carried exactly by each format."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest

from devkit.cli import COMMANDS, devkit
from devkit.errors import DevkitError
from devkit.render.container.settings import slugify, validate_project_name
from devkit.render.devkit_toml import DEVKIT_TOML, ProjectSettings, parse_devkit_toml, render_devkit_toml
from tests.render.injection import HOSTILE, WORDS, Ran, assert_refused_or_carried, assert_said_cleanly, fixed, ran, tree
from tests.render.test_certificates import AUTHORITY

# Hostile values in every flag, every setting of devkit.toml and every path: refused in one line, or carried exactly.
#
# A flag or a setting that comes later is tried without a word here. It fails only where it takes a hostile value and
# it has no harmless value yet.


RENDERS_NOTHING = {"doctor", "explain", "verify", "data", "up", "shell", "run", "down", "onboard", "serve"}
"""Commands that write no project's files; their own tests say what they do with odd input."""

HARMLESS = {
    "name": "Harmless One",
    "image": "registry.example/harmless:1",
    "pins": "harmless-package==7.7.7.7",
    "pins' package": "harmless-package",
    "pins' version": "7.7.7.7",
    "ca_certificates": "harmless.pem",
    "index": "https://harmless.example/simple",
    "allow_indexes": "https://harmless.example/allowed",
    "torch_index": "https://harmless.example/whl",
    "hub": "https://harmless.example/hub",
    "apt": "harmless-package",
    "packages": "harmless-package",
    "command": "harmless command",
}
"""A value that works, for each flag and setting that may keep a hostile one."""


def options() -> list[tuple[str, str, str]]:
    """(command, flag, name) of every option that takes a text."""
    context = click.Context(devkit)
    found = []
    for name in COMMANDS.keys() - RENDERS_NOTHING:
        command = devkit.get_command(context, name)
        assert command is not None
        texts = [each for each in command.params if isinstance(each, click.Option) and not each.is_flag]
        texts = [each for each in texts if not isinstance(each.type, click.Choice)]
        found += [(name, option.opts[-1], str(option.name)) for option in texts]
    return sorted(found)


def setting_makers() -> dict[str, Callable[[str], ProjectSettings]]:
    """How to write a text into each setting of devkit.toml that takes one."""
    makers: dict[str, Callable[[str], ProjectSettings]] = {}
    for field in fields(ProjectSettings):
        kind = type(getattr(ProjectSettings(), field.name))
        if field.name == "pins":
            makers["pins' package"] = lambda value: ProjectSettings(pins=((value, "7.7.7.7"),))
            makers["pins' version"] = lambda value: ProjectSettings(pins=(("harmless-package", value),))
        elif kind is str:
            makers[field.name] = lambda value, name=field.name: ProjectSettings(**{name: value})
        elif kind is tuple:
            makers[field.name] = lambda value, name=field.name: ProjectSettings(**{name: (value,)})
        else:
            assert kind is bool, f"say here how {field.name} takes a text"
    return makers


def swaps_of(setting: str, value: str) -> dict[str, str]:
    """What must stand where the harmless value stood."""
    if setting == "name":
        return {"Harmless One": validate_project_name(value), "harmless-one": slugify(validate_project_name(value))}
    if setting == "pins":
        (package, _, version), (harmless, _, one) = value.partition("=="), HARMLESS["pins"].partition("==")
        return {harmless: package.strip(), one: version.strip()}
    return {HARMLESS[setting]: value}


def init_with_flag(root: Path, flag: str, value: str) -> Ran:
    """`devkit init` in an empty project."""
    root.mkdir()
    return ran(root, "init", ".", *fixed(but=flag.removeprefix("--")), f"{flag}={value}")


def init_with_settings(root: Path, setting: str, value: str) -> Ran:
    """`devkit init` in a project whose devkit.toml says so, with a certificate where one is named."""
    # devkit writes no value that is no text; somebody else may.
    text = render_devkit_toml(setting_makers()[setting]("harmless.pem" if is_no_text(value) else value), None)
    written = (
        text.replace("harmless.pem", value, 1).encode("utf-8", "surrogatepass") if is_no_text(value) else text.encode()
    )
    root.mkdir()
    (root / DEVKIT_TOML).write_bytes(written)
    if setting == "ca_certificates":
        write_certificate(root, value)
    return ran(root, "init", ".", *fixed(but=setting))


def is_no_text(value: str) -> bool:
    return value.encode("utf-8", "replace").decode() != value


def write_certificate(root: Path, name: str) -> None:
    try:
        if (root / name).resolve().parent == root:
            (root / name).write_text(AUTHORITY)
    except (OSError, ValueError):
        pass  # no file of that name can exist


@cache
def harmless_run(setting: str, way: str) -> Ran:
    assert setting in HARMLESS, f"{setting} keeps hostile values: say in HARMLESS which value is harmless"
    with TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "project"
        value = HARMLESS[setting]
        done = init_with_settings(root, setting, value) if way == "toml" else init_with_flag(root, way, value)
    assert done.code == 0, done.err
    return done


AMOUNTS = [
    pytest.param(30, id="a few"),
    pytest.param(8, id="an eighth", marks=pytest.mark.full),
    pytest.param(1, id="all", marks=pytest.mark.nightly),
]
in_each_amount = pytest.mark.parametrize("part", AMOUNTS)


def try_each(
    names: Sequence[str], kinds: Sequence[str], part: int, folder: Path, attempt: Callable[[Path, str, str], None]
) -> None:
    """Try each name with one of `part` hostile values, and each value with about as many names; name all that fail."""
    failed = {}
    for number, name in enumerate(names):
        for kind in kinds[number * 7 % part :: part]:
            place = folder / f"{number}-{kinds.index(kind)}"
            place.mkdir()
            try:
                attempt(place, name, kind)
            except AssertionError as error:
                failed[name, kind] = str(error)
    assert not failed


OF_INIT = {flag: name for verb, flag, name in options() if verb == "init"}


@in_each_amount
def test_a_flag_of_init_is_refused_or_carried(tmp_path, part):
    def attempt(folder, flag, kind):
        setting, value = OF_INIT[flag], HOSTILE[kind]
        done = init_with_flag(folder / "project", flag, value)
        assert_said_cleanly(done)
        if done.code != 0:
            assert done.files == {}
        elif value.strip():  # otherwise a list of nothing
            assert_refused_or_carried(done, {}, harmless_run(setting, flag), swaps_of(setting, value))

    try_each(list(OF_INIT), WORDS, part, tmp_path, attempt)


@in_each_amount
@pytest.mark.full
def test_a_flag_of_another_command_writes_nothing_unasked(tmp_path, part):
    def attempt(folder, command, kind):
        verb, flag = command.split()
        plan = fixed(but=flag.removeprefix("--"), verb=verb) if verb == "plan" else ()
        done = ran(folder, verb, *plan, f"{flag}={HOSTILE[kind]}")
        assert_said_cleanly(done)
        assert done.files == {}

    commands = [f"{verb} {flag}" for verb, flag, _ in options() if verb != "init"]
    try_each(commands[::3] if part == AMOUNTS[0].values[0] else commands, WORDS, part, tmp_path, attempt)


@in_each_amount
def test_a_setting_of_devkit_toml_is_refused_or_carried(tmp_path, part):
    def attempt(folder, setting, kind):
        value = HOSTILE[kind]
        done = init_with_settings(folder.resolve() / "project", setting, value)
        before = {path: content for path, content in done.files.items() if path in (DEVKIT_TOML, value)}
        assert_said_cleanly(done)
        if done.code != 0:
            assert done.files == before
        elif value.strip():
            files = {path: content for path, content in done.files.items() if path != value}
            harmless = harmless_run(setting, "toml")
            expected = {path: content for path, content in harmless.files.items() if path != "harmless.pem"}
            carried = Ran(done.code, done.out, done.err, files)
            assert_refused_or_carried(carried, {}, Ran(0, "", "", expected), swaps_of(setting, value))

    try_each(list(setting_makers()), list(HOSTILE), part, tmp_path, attempt)


def test_devkit_toml_gives_back_what_was_written_into_it(tmp_path):
    def attempt(_, setting, kind):
        project_settings = setting_makers()[setting](HOSTILE[kind])
        try:
            text = render_devkit_toml(project_settings, None).encode()
            assert parse_devkit_toml(text) == project_settings
        except DevkitError as refused:
            assert re.search("cannot (contain|hold|be) |must be ", refused.message)
            return
        edited = render_devkit_toml(project_settings, b'# mine\nname = "x" # kept\n').encode()
        assert edited.startswith(b"# mine\n")
        assert parse_devkit_toml(edited) == parse_devkit_toml(edited).with_flags(project_settings)

    try_each(list(setting_makers()), list(HOSTILE), 4, tmp_path, attempt)


def test_a_name_of_bytes_that_are_no_text_is_refused_by_a_real_process(tmp_path):
    argv = [sys.executable, "-m", "devkit", "init", os.fsencode(tmp_path), *fixed(), b"--set=name=caf\xe9"]
    done = subprocess.run(argv, capture_output=True, check=False, env=os.environ | {"LC_ALL": "C.UTF-8"})
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr
    assert tree(tmp_path) == {}
