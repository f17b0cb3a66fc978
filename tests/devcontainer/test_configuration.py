"""devcontainer.json as the specification and the dev container CLI read it."""

import json

import pytest

from devkit.devcontainer.configuration import (
    compute_devcontainer_id,
    find_dev_container,
    list_commands,
    merge_settings,
    replace_container_variables,
)
from devkit.errors import DevkitError


def write(folder, document, location=".devcontainer/devcontainer.json"):
    file = folder / location
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def test_it_is_found_from_a_folder_below(tmp_path):
    file = write(tmp_path, {"image": "debian"})
    (tmp_path / "src/deep").mkdir(parents=True)
    found = find_dev_container(tmp_path / "src/deep", env={})
    assert (found.folder, found.file) == (tmp_path, file)
    assert found.labels == {"devcontainer.local_folder": str(tmp_path), "devcontainer.config_file": str(file)}


def test_variables_of_the_host_are_put_in(tmp_path):
    document = {
        "image": "a:${localEnv:TAG:latest}",
        "mounts": ["source=${devcontainerId}-cache,target=/cache,type=volume"],
        "containerEnv": {"HERE": "${localWorkspaceFolderBasename}", "THERE": "${containerWorkspaceFolder}/x"},
        "remoteEnv": {"PATH": "${containerEnv:PATH}:/more"},
    }
    write(tmp_path, document)
    found = find_dev_container(tmp_path, env={"TAG": "12"}).properties
    assert found["image"] == "a:12"
    assert found["containerEnv"] == {"HERE": tmp_path.name, "THERE": f"/workspaces/{tmp_path.name}/x"}
    assert "${" not in found["mounts"][0]
    assert replace_container_variables(found["remoteEnv"], {"PATH": "/bin"}) == {"PATH": "/bin:/more"}


def test_the_id_is_the_one_that_the_dev_container_cli_computes():
    # Computed by @devcontainers/cli 0.89.0 for the same labels.
    labels = {"devcontainer.local_folder": "/a", "devcontainer.config_file": "/a/.devcontainer.json"}
    assert compute_devcontainer_id(labels) == "1s2ir76ql7ilu9vi2o6i1fuiqvq1o6o1bmkgaf6hkn5tgepfqjjk"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(None, "has no dev container", id="there is none"),
        pytest.param("{", "cannot be read", id="no JSON"),
        pytest.param("[]", "holds no object", id="a list"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_a_hint(tmp_path, document, message):
    if document is not None:
        write(tmp_path, document)
    with pytest.raises(DevkitError, match=message) as error:
        find_dev_container(tmp_path, env={})
    assert error.value.hint


def test_of_several_one_must_be_named(tmp_path):
    for name in ("cpu", "gpu"):
        write(tmp_path, {"image": name}, f".devcontainer/{name}/devcontainer.json")
    with pytest.raises(DevkitError, match="has 2 dev containers") as error:
        find_dev_container(tmp_path, env={})
    assert ".devcontainer/gpu/devcontainer.json" in error.value.hint
    chosen = find_dev_container(tmp_path, tmp_path / ".devcontainer/gpu/devcontainer.json", env={})
    assert chosen.properties["image"] == "gpu"


def test_the_repository_is_mounted_and_work_starts_in_the_folder(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").touch()
    write(tmp_path / "part", {"image": "debian"})
    found = find_dev_container(tmp_path / "part", env={})
    assert found.workspace_mount == f"type=bind,source={tmp_path},target=/workspaces/{tmp_path.name}"
    assert found.workspace_folder == f"/workspaces/{tmp_path.name}/part"


def test_the_images_metadata_is_merged_and_devcontainer_json_decides():
    image = {
        "remoteUser": "vscode",
        "postCreateCommand": "first",
        "capAdd": ["SYS_PTRACE"],
        "mounts": [{"type": "volume", "source": "a", "target": "/x"}],
        "remoteEnv": {"A": "1", "B": "1"},
    }
    own = {
        "postCreateCommand": ["second"],
        "capAdd": ["SYS_PTRACE", "NET_ADMIN"],
        "mounts": ["type=bind,src=/b,dst=/x"],
        "remoteEnv": {"B": None},
        "updateRemoteUserUID": False,
    }
    merged = merge_settings([image, own])
    assert (merged.remote_user, merged.updates_uid, merged.init) == ("vscode", False, False)
    assert merged.hooks["postCreateCommand"] == ("first", ["second"])
    assert merged.cap_add == ("SYS_PTRACE", "NET_ADMIN")
    assert merged.mounts == ({"type": "bind", "source": "/b", "target": "/x"},)
    assert merged.remote_env == {"A": "1", "B": None}
    assert replace_container_variables(merged.remote_env, {}) == {"A": "1"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param("a && b", [("", ["/bin/sh", "-c", "a && b"])], id="a text is for the shell"),
        pytest.param(["a", "b c"], [("", ["a", "b c"])], id="a list is not"),
        pytest.param({"x": "a", "y": ["b"]}, [("x", ["/bin/sh", "-c", "a"]), ("y", ["b"])], id="an object holds both"),
        pytest.param(None, [], id="nothing"),
        pytest.param("  ", [], id="blank"),
    ],
)
def test_lifecycle_commands_have_three_forms(command, expected):
    assert list_commands(command) == expected
