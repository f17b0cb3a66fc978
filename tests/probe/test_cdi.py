import json

import pytest

from devkit.facts.values import Release
from devkit.probe.engine.cdi import read_cdi
from tests.hosts import written

SPEC = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}} for name in ("0", "all")],
    "containerEdits": {
        "mounts": [{"hostPath": "/usr/lib/libcuda.so.580.95.05", "containerPath": "/usr/lib/libcuda.so"}]
    },
}
YAML = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits: {env: [A=b]}
    - name: 1
      containerEdits: {env: [A=b]}
containerEdits:
    hooks:
        - args: [nvidia-cdi-hook, enable-cuda-compat, --host-driver-version=570.86.15]
"""


def specs(tmp_path, files, more=""):
    text = "".join(f"\"{path}\" = '''{content}'''\n" for path, content in files.items())
    return read_cdi(written(tmp_path, f"{more}\n[files]\n{text}"))


def test_a_specification_in_json_is_read(tmp_path):
    (spec,) = specs(tmp_path, {"/etc/cdi/nvidia.json": json.dumps(SPEC)})
    assert (spec.kind, spec.cdi_version, spec.devices) == ("nvidia.com/gpu", "0.7.0", ("0", "all"))
    assert (spec.driver, spec.error) == (Release.parse("580.95.05"), "")


def test_a_specification_in_yaml_is_read(tmp_path):
    (spec,) = specs(tmp_path, {"/var/run/cdi/nvidia.yaml": YAML})
    assert (spec.cdi_version, spec.devices) == ("0.5.0", ("0", "1"))
    assert spec.driver == Release.parse("570.86.15")


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        pytest.param("x.json", "{", "Expecting", id="broken JSON"),
        pytest.param("x.yaml", "a: [", "expected", id="broken YAML"),
        pytest.param("x.yaml", "!!python/object/apply:os.system [id]", "could not determine", id="YAML that runs code"),
        pytest.param("x.yaml", "text", "the top level is not an object", id="YAML that is no object"),
        pytest.param("x.yaml", "kind: nvidia.com/gpu", "it has no cdiVersion", id="no version"),
    ],
)
def test_an_unusable_specification_is_kept_with_its_reason(tmp_path, name, text, error):
    (spec,) = specs(tmp_path, {f"/etc/cdi/{name}": text})
    assert spec.error.startswith(error) or error in spec.error
    assert spec.devices == ()


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    (spec,) = specs(tmp_path, {"/etc/cdi/x.yaml": YAML}, more='unreadable = ["/etc/cdi/x.yaml"]')
    assert spec.error == "this user cannot read it"


def test_a_folder_reached_by_two_names_counts_once(tmp_path):
    text = f"[links]\n\"/var/run\" = \"/run\"\n[files]\n\"/run/cdi/x.yaml\" = '''{YAML}'''\n"
    assert len(read_cdi(written(tmp_path, text))) == 1


NODES = {
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "all", "containerEdits": {}},
    ],
    "containerEdits": {
        "deviceNodes": [{"path": "/dev/dri/card1", "hostPath": "/dev/dri/card0"}],
        "mounts": [{"hostPath": "/usr/lib/libcuda.so.580.95.05", "containerPath": "/x"}],
        "hooks": [{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache"]}],
    },
}


def test_devices_without_a_node_and_paths_that_are_gone_are_named(tmp_path):
    (spec,) = specs(tmp_path, {"/etc/cdi/x.json": json.dumps(SPEC | NODES), "/dev/nvidia0": ""})
    assert spec.without_nodes == ("all",)
    assert spec.missing_paths == ("/dev/dri/card0", "/usr/lib/libcuda.so.580.95.05", "/usr/bin/nvidia-cdi-hook")


@pytest.mark.parametrize("wrong", [3, [None], [{"path": 3}], [{"hostPath": None}]])
@pytest.mark.parametrize("key", ["containerEdits", "deviceNodes", "mounts", "hooks", "devices"])
def test_edits_of_another_shape_are_passed_over(tmp_path, key, wrong):
    edits = {**NODES["containerEdits"], key: wrong} if key not in NODES else NODES["containerEdits"]
    content = SPEC | NODES | {"containerEdits": edits} | ({key: wrong} if key in NODES else {})
    (spec,) = specs(tmp_path, {"/etc/cdi/x.json": json.dumps(content)})
    assert isinstance(spec.error, str)
    assert isinstance(spec.missing_paths, tuple)
