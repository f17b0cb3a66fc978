"""`devkit init --editor`: what the chosen editors drop is said, in text and in JSON."""

import json

import pytest

from .test_init import GPU, assert_refused, devkit


def test_the_report_names_the_key_what_becomes_of_it_and_the_source(tmp_path):
    done = devkit("init", tmp_path / "new", *GPU, "--editor", "jetbrains", COLUMNS="400")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "JetBrains:" in lines
    (dropped,) = [line for line in lines if line.startswith("  updateRemoteUserUID: ")]
    assert "it is false in these files anyway" in dropped
    assert any(line.startswith("  see https://www.jetbrains.com/") for line in lines)


def test_the_report_is_in_the_json_document(tmp_path):
    done = devkit("init", tmp_path / "new", *GPU, "--editor", "codespaces,daytona", "--json")
    editors = json.loads(done.stdout)["editors"]
    assert [editor["name"] for editor in editors] == ["codespaces", "daytona"]
    assert {"editor", "tool", "key", "effect", "instead", "source", "is_sure"} == set(editors[0]["dropped"][0])
    assert [each["key"] for each in editors[1]["dropped"]] == ["devcontainer.json"]
    assert (tmp_path / "new/.devcontainer/daytona/snapshot.sh").stat().st_mode & 0o111


def test_what_is_recorded_is_reported_again(tmp_path):
    devkit("init", tmp_path / "new", *GPU, "--editor", "daytona")
    assert "Daytona" in devkit("init", tmp_path / "new").stdout
    assert 'editors = ["daytona"]' in (tmp_path / "new/devkit.toml").read_text()


def test_without_an_editor_nothing_is_reported(tmp_path):
    done = devkit("init", tmp_path / "new", *GPU, "--json")
    assert "editors" not in json.loads(done.stdout)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param(("--editor", "emacs"), "there is no editor 'emacs'", id="an unknown editor"),
        pytest.param(("--profile", "tensorboard"), "there is no profile 'tensorboard'", id="an unknown profile"),
    ],
)
def test_a_wrong_name_is_refused_and_nothing_is_written(tmp_path, flags, says):
    root = tmp_path / "new"
    assert_refused(devkit("init", root, *GPU, *flags), says)
    assert not root.exists()
