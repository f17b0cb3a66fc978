"""`devkit compare`: every form of input, the exit codes, and a thousand reports."""

import gzip
import json
import re

import pytest
from click.testing import CliRunner

from devkit.cli.compare import compare
from devkit.errors import DevkitError
from tests.doctor.comparison.cluster import cluster, put, written
from tests.doctor.comparison.proofs import proofs


def run(*arguments, data=None):
    return CliRunner().invoke(compare, [str(each) for each in arguments], input=data, standalone_mode=True)


def refused(*arguments, data=None):
    with pytest.raises(DevkitError) as error:
        CliRunner().invoke(compare, [str(each) for each in arguments], input=data, catch_exceptions=False)
    return error.value


def six(odd="node-0004"):
    nodes = cluster(6)
    put(nodes[odd], "driver.fabric_manager", "inactive")
    return nodes


def lines(documents, *, named=True):
    rows = [{"node": name, **each} if named else each for name, each in documents.items()]
    return "".join(json.dumps(row) + "\n" for row in rows)


def odd_in(result):
    """Names of the oddest nodes in the JSON answer of a run."""
    assert result.exit_code == 1, result.output
    return json.loads(result.stdout)["groups"][0]["odd"][0]["nodes"]


def test_a_folder_of_files_is_compared_by_their_names(tmp_path):
    result = run(written(tmp_path, six()))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0].endswith("outlier: node-0004 (6 compared)")


def test_nodes_that_differ_in_nothing_that_matters_end_with_0(tmp_path):
    assert run(written(tmp_path, cluster(3))).exit_code == 0


class TestForms:
    def test_a_file_of_lines_with_names_in_them(self, tmp_path):
        (tmp_path / "all.jsonl").write_text(lines(six()))
        assert odd_in(run(tmp_path / "all.jsonl", "--json")) == ["node-0004"]

    def test_packed_files_whatever_they_are_called(self, tmp_path):
        for number, (name, document) in enumerate(six().items()):
            packed = gzip.compress(json.dumps(document).encode())
            (tmp_path / (f"{name}.json.gz" if number % 2 else f"{name}.json")).write_bytes(packed)
        assert odd_in(run(tmp_path, "--json")) == ["node-0004"]

    def test_files_with_the_same_name_go_by_their_folders(self, tmp_path):
        for name, document in six().items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "facts.json").write_text(json.dumps(document, indent=2))
        assert odd_in(run(tmp_path, "--json")) == ["node-0004"]

    def test_a_second_report_of_a_node_is_called_so(self):
        twice = lines(cluster(3)) + lines({"node-0003": six("node-0003")["node-0003"]})
        assert odd_in(run("-", "--json", data=twice)) == ["node-0003 #2"]

    def test_the_answer_can_go_to_a_file(self, tmp_path):
        result = run("-", "--output", tmp_path / "answer.txt", data=lines(six()))
        assert result.exit_code == 1 and not result.stdout
        assert "outlier: node-0004" in (tmp_path / "answer.txt").read_text()


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            pytest.param("", "it is empty", id="empty"),
            pytest.param("{", "not JSON", id="cut off"),
            pytest.param("[" * 100_000, "nested too deep", id="nested without end"),
            pytest.param("\xff\xfe", "not JSON", id="no text"),
            pytest.param('{"schema": "devkit.facts/2"}', "devkit.facts/2", id="a schema of tomorrow"),
        ],
    )
    def test_a_file_that_holds_no_report_is_named(self, tmp_path, text, says):
        written(tmp_path, cluster(2))
        (tmp_path / "zz.json").write_bytes(text.encode("latin-1"))
        error = refused(tmp_path)
        assert "zz" in error.message and says in error.message
        assert "--keep-going" in error.hint

    def test_a_wrong_line_is_named_by_its_number(self):
        assert "-:2 cannot be compared: not JSON" in refused("-", data=lines(cluster(1), named=False) + "{]\n").message

    def test_one_report_alone(self, tmp_path):
        error = refused(written(tmp_path, cluster(1)))
        assert error.message == "there are no two reports of one kind: 1 of devkit.facts/1"


def test_with_keep_going_the_others_are_compared_and_the_rest_is_named(tmp_path):
    written(tmp_path, cluster(3))
    (tmp_path / "zz.json").write_text("{")
    result = run(tmp_path, "--keep-going", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1 and document["verdict"] == "differ" and document["nodes"] == 3
    assert [each["name"] for each in document["unreadable"]] == ["zz"]
    assert "not read: zz: not JSON" in run(tmp_path, "--keep-going").stdout


def test_a_proof_that_was_changed_later_is_the_odd_one(tmp_path):
    nodes = proofs(4)
    nodes["node-0002"]["conclusion"] = "proved on a toaster"
    assert odd_in(run(written(tmp_path, nodes), "--json")) == ["node-0002"]


def test_a_page_has_a_row_for_each_node_that_differs_and_runs_nothing_from_a_report(tmp_path):
    nodes = cluster(4)
    put(nodes["node-0002"], "driver.fabric_manager", "<script>alert(1)</script>")
    put(nodes["node-0003"], "system.kernel", "6.5.0-44-generic")
    done = run("--format", "html", written(tmp_path, nodes))
    assert done.exit_code == 1
    assert re.findall(r"<tr><td>([^<]*)", done.output) == ["node-0002", "node-0003"]
    assert done.output.count("<script>") == 1
    assert "&lt;script&gt;" in done.output
