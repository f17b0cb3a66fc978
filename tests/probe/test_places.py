"""The lines of settings in a project's files."""

import pytest

from devkit.probe.host import LocalHost
from devkit.probe.project.places import (
    drop_repeated,
    list_noted,
    locate_excerpt,
    locate_setting,
    locate_values,
    locate_words,
    note_list,
)
from devkit.probe.project.scopes import list_scoped
from tests.cases import cases

COMPOSE = """services:
  app:
    image: x
    volumes:
      - ./data:/data
      - ./more:/more
    privileged: ture
    extends: {file: c.yaml, service: comon}
configs:
  train: {file: ./train.tml}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer/devcontainer.json").write_text(
        '{\n  // one\n  "runArgs": [\n    "--init",\n    "-m"\n  ]\n}'
    )
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    (tmp_path / "compose.override.yaml").write_text("services:\n\n\n  app:\n    mem_limit: 1g\n")
    (tmp_path / "broken.yaml").write_text("services: [")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("keys", "value", "place"),
    [
        (("services", "app", "privileged"), "", "compose.yaml:7"),
        (("services", "app", "mem_limit"), "", "compose.override.yaml:5"),
        (("services", "app", "volumes", "source"), "/far/away/more", "compose.yaml:6"),
        (("services", "app", "absent"), "", "compose.override.yaml:4"),
        (("configs", "train", "file"), "/p/train.tml", "compose.yaml:10"),
        (("services", "other", "privileged"), "", ""),
        (("runArgs",), "-m", ".devcontainer/devcontainer.json:5"),
        (("capAdd",), "X", ""),
    ],
)
def test_the_deepest_key_that_a_file_has_is_found(folder, keys, value, place):
    found = locate_setting(LocalHost(), folder, keys, value)
    assert (f"{found.file}:{found.line}" if found else "") == place


def test_anchors_within_anchors_are_followed_once(tmp_path):
    lines = [f"  a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 40)]
    (tmp_path / "compose.yaml").write_text("\n".join(("services:", "  a0: &a0 [x]", *lines)))
    found = locate_setting(LocalHost(), str(tmp_path), ("services", "a39"), "gone")
    assert found and found.line == 41


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("services.app.privileged must be a boolean", ("services.app.privileged in compose.yaml:7",)),
        ("'services[app].privileged' expected type bool", ("services.app.privileged in compose.yaml:7",)),
        ('cannot extend service "app": service "comon" not found', ("services.app in compose.yaml:8",)),
        ("no configuration file provided", ()),
    ],
)
def test_the_setting_that_compose_names_is_found(folder, words, settings):
    assert locate_words(LocalHost(), folder, words) == settings


@cases(
    "files, words, places",
    {
        "a key of a file that another names": (
            {"compose.yaml": "include: [more/b.yaml]\n", "more/b.yaml": "services:\n  base: {image: x}\n"},
            'service "base" not found',
            ["services.base in more/b.yaml:2"],
        ),
        "a folder above the path": (
            {"compose.yaml": "services:\n  a:\n    build: ./d\n", "d/Dockerfile": "FROM x\nENV HOME=/root\n"},
            "mkdir: can't create '/root/.cache/': denied",
            ["ENV in d/Dockerfile:2"],
        ),
        "a variable that Compose lacks": (
            {"compose.yaml": "services:\n  a:\n    image: x:${TAG}\n    command: [a, $$TAG]\n"},
            'invalid reference "x:${TAG}"',
            ["services.a.image in compose.yaml:3 (TAG is not set: set TAG in .env, or write a default)"],
        ),
        "a variable of .env": (
            {"compose.yaml": "services:\n  a:\n    image: x:${TAG}\n", ".env": "TAG=1\n"},
            'invalid reference "x:${TAG}"',
            ["services.a.image in compose.yaml:3"],
        ),
        "variables that are alternatives": (
            {".devcontainer.json": '{"mounts": ["source=${localEnv:HOME}${localEnv:GONE},target=/d"]}'},
            "cannot mount at '/d'",
            ["mounts in .devcontainer.json:1"],
        ),
        "a script of the project": (
            {".devcontainer.json": '{"postCreateCommand": "sh up.sh"}', "up.sh": "set -e\ncp c/a.yaml b\n"},
            "cp: can't stat 'c/a.yaml': No such file or directory",
            ["command in up.sh:2"],
        ),
        "the whole path before its folder": (
            {"Dockerfile": "FROM x\nENV HOME=/root\nRUN touch /root/a\n"},
            "touch: /root/a: denied",
            ["RUN in Dockerfile:3"],
        ),
        "two dollars are one": (
            {"compose.yaml": "services:\n  a:\n    command: echo $$TAG\n"},
            "cannot run 'echo $$TAG'",
            ["services.a.command in compose.yaml:3"],
        ),
        "words of a sentence": ({"compose.yaml": "x: 1\n"}, "the image could not be built", []),
        "outside": ({"compose.yaml": "x: ../Dockerfile\n"}, "../Dockerfile", []),
    },
)
def test_what_a_programs_words_repeat_is_found(tmp_path, monkeypatch, files, words, places):
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path.parent / "Dockerfile").write_text("FROM ../Dockerfile\n")
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    assert [str(each) for each in locate_values(LocalHost(), str(tmp_path), words)] == places


def test_a_line_that_is_known_is_not_told_again(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM x\nRUN mkdir /data\nRUN touch /data/ok\n")
    known = locate_excerpt(LocalHost(), str(tmp_path), "   7 | >>> RUN touch /data/ok")
    others = locate_values(LocalHost(), str(tmp_path), "touch: /data/ok: denied", apart_from=(known,))
    assert [each.line for each in drop_repeated((known, *others, known))] == [3, 2]


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("ARG A=1\nFROM x:$A\nRUN echo $A\n", {3: "A has no value here, because line 1 sets it out of reach"}),
        ("ARG A=1\nFROM x:$A\nARG A\nRUN echo $A\n", {}),
        ("FROM x AS y\nENV A=1\nARG B=1\nFROM y\nRUN echo $A $B\n", {5: "B has no value here"}),
        ("FROM x\nARG A=1\nFROM x\nRUN A=2 && echo $A ${A:-3} $PATH\n", {}),
        ("FROM x\nENV A=1:$A\nFROM x\nENV A=2:$A\n", {}),
        ('FROM x\nCMD ["run", "$A"]\nENTRYPOINT ["/bin/sh", "-c", "$A"]\n', {2: "no shell reads a list"}),
        ('FROM x\nCMD ["python3 a.py", "--b"]\n', {2: "no shell splits the first entry of the list of CMD"}),
        ('FROM x\nRUN ["cd", "/a", "&&", "make"]\n', {2: "no shell reads the list of RUN, so that && is an argument"}),
        ('FROM x\nRUN ["find", "/a", "-exec", "touch", "{}", ";"]\nCMD ["sh", "-c", "a && b"]\n', {}),
        ("".join(f"ARG A{n}=$A{n - 1}$A{n - 1}xx\n" for n in range(1, 60)) + "FROM x\n", {}),
    ],
    ids=[
        "above FROM",
        "repeated",
        "of another stage",
        "set by the command",
        "of the base image",
        "a list",
        "several words in the first entry",
        "an operator of a shell",
        "an operator of the program",
        "growing without end",
    ],
)
def test_variables_that_have_no_value_where_they_stand(text, notes):
    found = {each.instruction.line: each.note for each in list_scoped(text) if each.note}
    assert found.keys() == notes.keys()
    assert all(found[line].startswith(note) for line, note in notes.items())


@pytest.mark.parametrize(
    "name, text, remedy",
    [
        ("devcontainer.json", '{"postCreateCommand": ["python3 a.py", "-v"]}', '["python3", "a.py", "-v"]'),
        ("devcontainer.json", '{"postCreateCommand": {"a": ["python3 a.py"]}}', '["python3", "a.py"]'),
        ("compose.yaml", "services: {a: {healthcheck: {test: [CMD, curl -f x]}}}", '["CMD", "curl", "-f", "x"]'),
        ("compose.yaml", "services: {a: {command: [python3 a.py]}}", '["python3", "a.py"]'),
        ("compose.yaml", "services: {a: {healthcheck: {test: [CMD-SHELL, curl -f x || exit 1]}}}", ""),
        ("devcontainer.json", r'{"initializeCommand": ["C:\\Program Files\\a.exe"]}', ""),
        ("devcontainer.json", '{"postCreateCommand": "python3 a.py", "onCreateCommand": ["sh", "-c", "a && b"]}', ""),
    ],
)
def test_a_first_entry_of_several_words_is_noted_with_the_list_to_write(tmp_path, name, text, remedy):
    (tmp_path / name).write_text(text)
    found = note_list(LocalHost(), str(tmp_path))
    assert (found.remedy if found else "") == (f"write {remedy}" if remedy else "")


def test_a_file_beyond_the_limit_is_not_read(tmp_path):
    (tmp_path / "compose.yaml").write_text("services: {a: {command: [a b]}}" + " " * (1 << 20))
    assert note_list(LocalHost(), str(tmp_path)) is None


def test_what_cannot_work_as_it_is_written_is_noted_without_a_failure(tmp_path):
    (tmp_path / "compose").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "compose.yaml").write_text(
        "services:\n  a:\n    build: .\n    command: [python, a.py, '&&', python, b.py]\n"
        "    volumes: [./results:/results]\n    extends: {file: compose/common.yaml, service: a}\n"
    )
    (tmp_path / "compose/common.yaml").write_text("services:\n  a:\n    volumes: [./config:/etc/a]\n")
    (tmp_path / "Dockerfile").write_text('ARG TAG=1\nFROM x\nENV HOME_OF=/opt/$TAG\nCMD ["awk", "{print $NF}"]\n')
    (tmp_path / "other.Dockerfile").write_text("ARG TAG=1\nFROM x\nENV HOME_OF=/opt/$TAG\n")
    assert [str(each) for each in list_noted(LocalHost(), str(tmp_path))] == [
        "ENV in Dockerfile:3 (TAG has no value here, because line 1 sets it out of reach: write `ARG TAG` between FROM and line 3)",
        "services.a.command in compose.yaml:4 (no shell reads the list of command, so that && is an argument: "
        "write command as one text, without brackets)",
        "services.a.volumes in compose/common.yaml:3 (compose/config does not exist, but config does: "
        "write ../config in place of ./config)",
    ]
