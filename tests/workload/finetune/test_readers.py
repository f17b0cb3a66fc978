"""Files and folders to records: every usual form, and one line with the place for whatever is wrong."""

import codecs
import importlib.util
import json
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.estimate.settings import Objective
from devkit.workload.finetune.records import RecordLocation, RecordReader, TextRecord
from devkit.workload.finetune.run_folder import check_inputs
from devkit.workload.finetune.settings import FinetuneSettings
from tests.cases import cases
from tests.fuzz.profile import FUZZ

A, B = '{"text": "a"}', '{"text": "b"}'


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return f"{path}"

    return written


def texts(*names):
    return [record.text for record in RecordReader(names)]


@cases(
    "name, content",
    {
        "JSON lines": ("a.jsonl", f"{A}\n{B}\n"),
        "with the line ends of Windows": ("a.jsonl", f"{A}\r\n{B}\r\n"),
        "with a byte order mark": ("a.jsonl", codecs.BOM_UTF8 + f"{A}\n{B}\n".encode()),
        "with blank lines": ("a.jsonl", f"\n{A}\n  \n{B}\n\n"),
        "JSON lines in a .json file": ("a.json", f"{A}\n{B}\n"),
        "a list": ("a.json", f"[{A}, {B}]"),
        "a list within an object": ("a.json", f'{{"data": [{A}, {B}]}}'),
        "within an object of several lines": ("a.json", f'{{\n"version": 1,\n"train": [{A}, {B}]\n}}'),
    },
)
def test_records_are_read(write, name, content):
    assert texts(write(name, content)) == ["a", "b"]


@cases(
    "content",
    {"plain": "one\ntwo\n", "byte order mark": codecs.BOM_UTF8 + b"one\ntwo"},
)
def test_a_text_file_is_one_record(write, content):
    path = write("a.txt", content)
    assert list(RecordReader([path])) == [TextRecord("one\ntwo", RecordLocation(path))]


@cases(
    "content, message, hint",
    {
        "truncated": (f'{A}\n{{"text": "b"', ":2:13: not JSON: it ends too early", "one JSON object"),
        "commas between lines": (f"{A},\n{B}", ":1:14: not JSON: extra data (here: ,)", "one JSON object"),
        "a list in a .jsonl file": (f"[{A},\n{B}]", ":1:16: not JSON: it ends too early", "one JSON object"),
        "single quotes": ("{'text': 'a'}", ":1:2: not JSON: put the key in double quotes", "one JSON object"),
        "a repeated key": ('{"text": "a", "text": "b"}', ':1: the key "text" occurs twice', "one JSON"),
        "nested too deeply": ("[" * 100_000, ":1: nested too deeply", "one JSON"),
        "a huge number": ('{"text": "a", "n": ' + "9" * 5000 + "}", ":1: Exceeds the limit", "one JSON"),
        "an empty object": (f"{A}\n{{}}", ":2: unknown record format", "One of"),
        "Latin-1": (A.encode() + b"\n\xe9\n", ":2 is not UTF-8: byte 0xe9 at byte 1", "iconv"),
        "NUL bytes": (A.encode() + b"\n\0\0\0", ":2 holds a NUL byte", "damaged"),
        "UTF-16": (codecs.BOM_UTF16_LE + A.encode("utf-16-le"), " is UTF-16", "iconv -f UTF-16"),
        "blank lines alone": ("\n \n", "it has no records", "One of"),
        "empty texts": ('{"text": " "}\n{"text": ""}', "none of 2 records has anything: ", "One of"),
        "one empty text alone": ('{"text": ""}', ":1 holds no text", "One of"),
        "roles in capitals": (
            '{"messages": [{"role": "User", "content": "a"}, {"role": "Assistant", "content": "b"}]}',
            ':1 has no answer by "assistant"',
            "One of",
        ),
        "a text cut off": ('{"text": "a', ":1:10: not JSON: unterminated string", "one JSON object"),
        "a bare line end": ('{"text": "a\nb"}', ":1:10: not JSON: unterminated string", "written \\n"),
        "kinds mixed in a file": (
            f'{A}\n{{"prompt": "a", "completion": "b"}}',
            ":2 is a prompt record, but",
            "only one kind of record per file",
        ),
    },
)
def test_what_is_wrong_is_named_with_its_place(write, content, message, hint):
    path = write("a.jsonl", content)
    with pytest.raises(DevkitError) as caught:
        list(RecordReader([path]))
    assert message in caught.value.message
    assert path in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message


@cases(
    "content, message",
    {
        "in a list": ('[\n{"text": "a"},\n{"text" "b"}\n]', ":3:9: not JSON: expecting ':' delimiter"),
        "an empty list": ("[]", "it has no records"),
        "deep objects": ('{"a":' * 100_000, "not JSON|nested too deeply"),
        "deep lists": ("[" * 100_000, "nested too deeply"),
        "no comma": ('[{"text": "a"} {"text": "b"}]', "1:16: not JSON: a comma is missing"),
        "a comma too many": ('[{"text": "a"}, ]', "not JSON"),
        "no end": ('[{"text": "a"}', "it ends too early"),
        "more": ('[{"text": "a"}] x', "1:17: not JSON: extra data"),
        "a large object": ('{"data": "' + "a" * (17 << 20) + '"}', "unknown record format"),
    },
)
def test_what_is_wrong_in_a_json_file_is_named_with_its_place(write, content, message):
    with pytest.raises(DevkitError, match=message):
        list(RecordReader([write("a.json", content)]))


def test_a_folder_is_read_in_the_order_of_its_names(write, tmp_path):
    write("b/two.jsonl", '{"text": "3"}')
    write("b/one.txt", "2")
    write("a.jsonl", '{"text": "1"}')
    write("README.md", "# not data")
    write(".cache/hidden.jsonl", "not JSON")
    records = RecordReader([f"{tmp_path}"])
    assert [record.text for record in records] == ["1", "2", "3"]
    assert [os.path.relpath(each, tmp_path) for each in records.sources] == ["a.jsonl", "b/one.txt", "b/two.jsonl"]


def test_a_folder_of_nothing_readable_is_named_with_what_is_read(write, tmp_path):
    write("a.csv", "text\na")
    write("b.csv", "text\na")
    write("LICENSE", "")
    with pytest.raises(DevkitError, match="nothing to read in") as caught:
        RecordReader([f"{tmp_path}"])
    assert "pandas" in caught.value.hint


@cases(
    "name, hint",
    {
        "a letter is missing": ("chat.jsonl", "Did you mean chats.jsonl?"),
        "not even its folder": ("no/such/folder.jsonl", "The folder no/such does not exist either."),
    },
)
def test_what_is_near_a_name_of_nothing_is_said(write, name, hint, tmp_path, monkeypatch):
    write("chats.jsonl", A)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DevkitError) as caught:
        RecordReader([name])
    assert caught.value.hint == hint


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(write, tmp_path):
    path = write("a.jsonl", A)
    (tmp_path / "a.jsonl").chmod(0)
    with pytest.raises(DevkitError, match=r"a\.jsonl cannot be read: Permission denied"):
        list(RecordReader([path]))


def summarize(*names):
    reader = RecordReader(names)
    list(reader)
    return reader.summary


def test_the_survey_counts_kinds_and_what_is_left_out(write):
    first = write("a.jsonl", f'{A}\n{{"text": ""}}\n{B}\n{{"text": " "}}\n')
    second = write("b.jsonl", '{"prompt": "p", "completion": "c"}')
    left_out = f"2 more without anything to train on left out (the first: {first}:2 holds no text)"
    assert summarize(first, second) == f"1 prompt and 2 text records in 2 sources, {left_out}"
    assert summarize(second) == "1 prompt record in 1 source"


def test_reading_needs_no_torch(write):
    """`--dry-run` counts records where the workload is not installed."""
    import subprocess

    path = write("a.jsonl", A)
    script = (
        "import sys\nfrom devkit.workload.finetune.records import RecordReader\n"
        f"reader = RecordReader([{path!r}])\nprint(len(list(reader)), reader.summary)\n"
        "print([each for each in ('torch', 'transformers', 'datasets', 'numpy') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 1 text record in 1 source", "[]"]


def test_what_needs_an_optional_library_says_which(monkeypatch):
    # Python's own word for a module that there is not.
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DevkitError, match=r"owner/name") as caught:
        list(RecordReader(["owner/name"]))
    assert "pip install datasets" in caught.value.hint


def test_a_table_needs_pyarrow_and_says_so(write, monkeypatch):
    # Another test may have imported its parts.
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DevkitError, match="needs pyarrow, which is not installed"):
        list(RecordReader([write("a.parquet", b"PAR1")]))


several = settings(FUZZ, suppress_health_check=[*FUZZ.suppress_health_check, HealthCheck.function_scoped_fixture])


@several
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_every_text_survives_json_lines(tmp_path, written, ascii_only, end):
    path = tmp_path / "a.jsonl"
    kept = [each for each in written if each.strip()]
    lines = [json.dumps({"text": each}, ensure_ascii=ascii_only) for each in written]
    path.write_bytes((end.join(lines) + end).encode())
    try:
        assert texts(f"{path}") == kept
    except DevkitError as error:
        assert not kept, error.message


@several
@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:\\u0abtex \n', max_size=60).map(str.encode))
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt"])
def test_whatever_a_file_holds_it_is_records_or_an_error_for_people(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    try:
        assert all(record.place.source == f"{path}" for record in RecordReader([f"{path}"]))
    except DevkitError as error:
        assert f"{path}" in error.message
        assert "\n" not in error.message


def test_a_link_to_nothing_is_called_that(write, tmp_path):
    """Not a hub's name, and not its own nearest neighbor."""
    link = tmp_path / "link.jsonl"
    link.symlink_to("gone.jsonl")
    for name in (link, tmp_path):
        with pytest.raises(DevkitError) as caught:
            RecordReader([str(name)])
        assert caught.value.message == f"{link} is a link to gone.jsonl, which does not exist"


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv"])
def test_for_a_file_of_another_kind_it_is_said_how_it_becomes_one_that_is_read(write, name):
    with pytest.raises(DevkitError, match="is not a file type that devkit reads") as caught:
        RecordReader([write(name, "x")])
    assert "Unpack archives" in caught.value.hint
    assert "to_json(" in caught.value.hint


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".JSON", ".txt"])
def test_a_wrong_file_is_refused_before_torch_is_imported(tmp_path, suffix):
    file = tmp_path / f"rows{suffix}"
    file.write_bytes(b"\0\n")
    with pytest.raises(DevkitError, match="holds a NUL byte"):
        check_inputs(FinetuneSettings(model="owner/model", data=(str(file),), output=tmp_path / "out"))


def test_an_unknown_model_is_refused_before_torch_is_imported(tmp_path, write, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DevkitError, match="owner/never is neither here"):
        check_inputs(FinetuneSettings(model="owner/never", data=(write("a.jsonl", A),), output=tmp_path / "out"))


def test_what_an_objective_needs_is_checked_before_torch_is_imported(tmp_path, monkeypatch, write):
    def check(has_trl, **given):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: "trl" if has_trl else None)
        with pytest.raises(DevkitError) as refused:
            check_inputs(FinetuneSettings(model="owner/model", output=tmp_path / "out", **given))
        return f"{refused.value.message}; {refused.value.hint}"

    dpo = {"objective": Objective.DPO, "data": (write("pairs.jsonl", '{"prompt": "a", "chosen": "b"}'),)}
    assert check(has_trl=False, **dpo) == "--objective dpo needs TRL, which is not installed; pip install trl"
    assert 'pairs.jsonl:1: "rejected" is missing' in check(has_trl=True, **dpo)
    code = write("reward.py", "def good(completions, **_):\n    return [1.0 for _ in completions]\n\nraise SystemExit")
    for reward, said in {"reward": "cannot read", f"{code}:bad": "defines good, not bad"}.items():
        assert said in check(has_trl=True, objective=Objective.GRPO, data=dpo["data"], reward=reward)
