"""`devkit compare`: every form of input, the exit codes, and a thousand reports."""

import gzip
import json
import os
import re
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from devkit.cli.compare import compare
from devkit.errors import DevkitError
from tests.doctor.comparison.cluster import cluster, put, written
from tests.doctor.comparison.proofs import proof, proofs

SECONDS = 5
"""What a thousand reports may take."""


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

    def test_a_file_of_lines_without_names_goes_by_line(self, tmp_path):
        (tmp_path / "all.jsonl").write_text("\n" * 0 + lines(six(), named=False))
        assert odd_in(run(tmp_path / "all.jsonl", "--json")) == ["all:4"]

    def test_empty_lines_count_and_are_no_reports(self, tmp_path):
        rows = lines(six(), named=False).splitlines()
        (tmp_path / "all.jsonl").write_text("\n\n".join(rows) + "\n\n")
        assert odd_in(run(tmp_path / "all.jsonl", "--json")) == ["all:7"]

    def test_standard_input(self):
        assert odd_in(run("-", "--json", data=lines(six()))) == ["node-0004"]

    def test_packed_standard_input(self):
        assert odd_in(run("-", "--json", data=gzip.compress(lines(six()).encode()))) == ["node-0004"]

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

    def test_some_files_with_the_same_name_carry_as_many_folders_as_tell_them_apart(self, tmp_path):
        names = list(six())
        places = [f"a/x/{names[0]}", f"b/x/{names[0]}", f"a/{names[2]}"]
        for place, document in zip(places, cluster(3).values(), strict=True):
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{place}.json").write_text(json.dumps(document))
        put(odd := cluster(1)["node-0001"], "driver.fabric_manager", "inactive")
        (tmp_path / "b" / "x" / "node-0001.json").write_text(json.dumps(odd))
        assert odd_in(run(tmp_path, "--json")) == ["b/x/node-0001"]

    def test_a_second_report_of_a_node_is_called_so(self):
        twice = lines(cluster(3)) + lines({"node-0003": six("node-0003")["node-0003"]})
        assert odd_in(run("-", "--json", data=twice)) == ["node-0003 #2"]

    def test_folders_files_and_standard_input_together(self, tmp_path):
        nodes = six()
        written(tmp_path, {name: nodes.pop(name) for name in ("node-0001", "node-0002")})
        result = run(tmp_path, "-", "--json", data=lines(nodes))
        assert json.loads(result.stdout)["nodes"] == 6

    def test_a_pipe_that_can_be_read_once(self, tmp_path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        (tmp_path / "reports").write_text(lines(six()))
        writer = subprocess.Popen([sys.executable, "-c", WRITE, pipe, tmp_path / "reports"])
        result = run(pipe, "--json")
        assert writer.wait() == 0
        assert odd_in(result) == ["node-0004"]

    def test_the_answer_can_go_to_a_file(self, tmp_path):
        result = run("-", "--output", tmp_path / "answer.txt", data=lines(six()))
        assert result.exit_code == 1 and not result.stdout
        assert "outlier: node-0004" in (tmp_path / "answer.txt").read_text()


WRITE = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(pathlib.Path(sys.argv[2]).read_text())"


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

    def test_a_packed_file_that_ends_too_early_is_named(self, tmp_path):
        (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(proof(1)).encode())[:-20])
        assert "a.json.gz" in refused(tmp_path).message

    def test_a_wrong_line_is_named_by_its_number(self):
        assert "-:2 cannot be compared: not JSON" in refused("-", data=lines(cluster(1), named=False) + "{]\n").message

    def test_what_is_not_there(self, tmp_path):
        assert "there is no file" in refused(tmp_path / "gone").message

    def test_a_folder_without_reports(self, tmp_path):
        (tmp_path / "readme.md").write_text("no report")
        assert "holds no reports" in refused(tmp_path).message

    def test_one_report_alone(self, tmp_path):
        error = refused(written(tmp_path, cluster(1)))
        assert error.message == "there are no two reports of one kind: 1 of devkit.facts/1"

    def test_one_of_each_kind(self, tmp_path):
        nodes = {**cluster(1), **{"proof": proof(1)}}
        assert "1 of devkit.facts/1, 1 of devkit.verify/1" in refused(written(tmp_path, nodes)).message

    def test_a_line_without_end(self, monkeypatch):
        monkeypatch.setattr("devkit.cli.compare.MAX_REPORT_BYTES", 1 << 20)
        assert "longer than" in refused("-", data='{"a": "' + "x" * (2 << 20)).message

    def test_no_argument(self):
        assert run().exit_code == 2

    def test_facts_that_are_wrong_where_nothing_is_compared_are_named_once_they_are_looked_at(self, tmp_path):
        nodes = cluster(6)
        guest = {"type": "GpuProcess", "pid": "seven", "name": "dcgm", "memory_bytes": 1}
        put(nodes["node-0005"], "nvml.gpus.0.health.processes", [guest])
        put(nodes["node-0005"], "nvml.gpus.0.health.temperature_c", 93)
        error = refused(written(tmp_path, nodes))
        assert "node-0005" in error.message and "processes[0].pid: expected a whole number" in error.message

    @pytest.mark.parametrize(
        "value", ["1" + "0" * 400, "NaN", "-Infinity"], ids=["too large", "not a number", "infinite"]
    )
    def test_a_number_that_is_none_is_a_difference_and_no_error(self, value):
        rows = lines(cluster(4)).replace('"memory_bytes": 85520809984', f'"memory_bytes": {value}', 1)
        rows = (
            rows
            if value.isdigit()
            else lines(proofs(4)).replace('"gpu_0_copy_gb_per_s": 2', f'"x": {value}, "y": 2', 1)
        )
        result = run("-", "--json", data=rows)
        assert odd_in(result) == ["node-0001"]
        json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    def test_facts_nested_without_end_are_refused(self):
        document = cluster(1)["node-0001"]
        for _ in range(700):
            document = {**document, "system": {"type": "System", "kernel": document["system"]}}
        assert "deep cannot be compared" in refused("-", data=lines({**cluster(1), "deep": document})).message

    def test_a_file_that_changes_while_it_is_read_is_refused(self, tmp_path, monkeypatch):
        from devkit.cli.compare import ReportReader

        written(tmp_path, six())
        once = ReportReader.reread

        def again(self, places):
            (tmp_path / "node-0004.json").write_text("{")
            return once(self, places)

        monkeypatch.setattr(ReportReader, "reread", again)
        assert "was changed while it was read" in refused(tmp_path).message


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


def test_the_name_that_a_collector_adds_to_a_proof_is_no_change_of_it(tmp_path):
    nodes = proofs(6)
    written(tmp_path, {name: nodes.pop(name) for name in list(nodes)[:2]})
    assert run(tmp_path, "-", data=lines(nodes)).exit_code == 0


@pytest.mark.turns(3)
def test_a_thousand_reports_take_seconds_and_the_outlier_is_found(tmp_path):
    nodes = cluster(1000)
    put(nodes["node-0412"], "nvml.driver", "570.124.06")
    written(tmp_path, nodes)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "devkit", "compare", tmp_path], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 1, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.endswith("outlier: node-0412 (1000 compared)")
    assert "      nvml.driver is 570.124.06; 999 of 1000 have 570.172.08" in rest
    # What the processor did for it: beside other work the clock on the wall says nothing of this program.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS


def test_the_text_form_is_as_wide_as_the_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, run(written(tmp_path, six())).stdout.splitlines())) <= 50


def test_a_page_has_a_row_for_each_node_that_differs_and_runs_nothing_from_a_report(tmp_path):
    nodes = cluster(4)
    put(nodes["node-0002"], "driver.fabric_manager", "<script>alert(1)</script>")
    put(nodes["node-0003"], "system.kernel", "6.5.0-44-generic")
    done = run("--format", "html", written(tmp_path, nodes))
    assert done.exit_code == 1
    assert re.findall(r"<tr><td>([^<]*)", done.output) == ["node-0002", "node-0003"]
    assert done.output.count("<script>") == 1
    assert "&lt;script&gt;" in done.output
