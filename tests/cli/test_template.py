"""`devkit template` from the outside."""

import json

from .test_init import assert_refused, devkit, tree


def test_every_template_is_written_and_a_second_run_changes_nothing(tmp_path):
    first = devkit("template", tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    before = tree(tmp_path)
    ids = {path.split("/")[0] for path in before}
    assert ids == {"pytorch-cuda", "pytorch-rocm", "pytorch-cpu"}
    assert {f"{name}/devcontainer-template.json" for name in ids} <= set(before)
    assert devkit("template", tmp_path).stdout == f"wrote 0 files in {tmp_path}\n"
    assert tree(tmp_path) == before


def test_one_template_as_json_and_nothing_written(tmp_path):
    done = devkit("template", tmp_path, "--only", "pytorch-cpu", "--dry-run", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "devkit.template/1"
    assert {file["path"].split("/")[0] for file in document["files"]} == {"pytorch-cpu"}
    assert tree(tmp_path) == {}


def test_a_file_that_somebody_changed_is_not_lost(tmp_path):
    devkit("template", tmp_path, "--only", "pytorch-cpu")
    file = tmp_path / "pytorch-cpu/devcontainer-template.json"
    file.write_text("{}\n")
    assert devkit("template", tmp_path, "--only", "pytorch-cpu").returncode == 2
    assert file.read_text() == "{}\n"
    assert devkit("template", tmp_path, "--only", "pytorch-cpu", "--force").returncode == 0
    assert json.loads(file.read_text())["id"] == "pytorch-cpu"


def test_an_unknown_template_is_refused(tmp_path):
    assert_refused(devkit("template", tmp_path, "--only", "tpu"), "there is no Template 'tpu'")
