"""The lines of settings in a project's files."""

import pytest

from devkit.probe.host import LocalHost
from devkit.probe.project.places import locate_setting, locate_words

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
    assert locate_setting(LocalHost(), folder, keys, value) == place


def test_anchors_within_anchors_are_followed_once(tmp_path):
    lines = [f"  a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 40)]
    (tmp_path / "compose.yaml").write_text("\n".join(("services:", "  a0: &a0 [x]", *lines)))
    assert locate_setting(LocalHost(), str(tmp_path), ("services", "a39"), "gone") == "compose.yaml:41"


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
