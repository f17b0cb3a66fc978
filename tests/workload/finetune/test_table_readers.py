"""Parquet, where pyarrow is installed."""

import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from devkit.errors import DevkitError
from devkit.workload.finetune import records
from devkit.workload.finetune.records import RecordReader

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
ROWS = [{"messages": CHAT, "text": None}, {"messages": CHAT, "text": None}]


def read(path):
    return [f"{record.place}" for record in RecordReader([f"{path}"])]


def places(path):
    return [f"{path}, row 0", f"{path}, row 1"]


def test_a_parquet_file_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.Table.from_pylist(ROWS), path)
    assert read(path) == places(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PAR1xxxxPAR1"], ids=["empty", "nonsense", "a broken footer"])
def test_a_broken_table_is_named(tmp_path, content):
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(DevkitError, match="cannot be read"):
        read(path)


@pytest.mark.full
@pytest.mark.parametrize("is_one_row", [False, True])
def test_a_small_table_that_unpacks_to_fill_memory_is_refused(tmp_path, monkeypatch, is_one_row):
    if is_one_row and sys.platform != "linux":
        pytest.skip("the memory of one batch is bounded on Linux")
    monkeypatch.setattr(records, "MAX_BATCH_BYTES", 128 << 20)
    monkeypatch.setattr(records, "MAX_UNPACKED_BYTES", 64 << 20)
    count = 3000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["word " * 100_000]))
    table = pa.table({"text": pa.ListArray.from_arrays([0, count], texts) if is_one_row else texts})
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, compression="zstd", store_schema=False)
    with pytest.raises(DevkitError, match="unpacks to"):
        read(path)
