"""Tensors come back from a file as they were, for the safetensors library, too."""

import hashlib

import pytest

pytestmark = pytest.mark.workload

torch = pytest.importorskip("torch", reason="needs the workload extra")

from safetensors.torch import load_file

from devkit.workload.finetune.checkpoint import iterate_safetensors, write_synced
from tests.workload.finetune.disks import files_of_at_most

TENSORS = {
    "floats": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
    "bf16": torch.arange(7, dtype=torch.bfloat16) / 3,
    "fp16": torch.arange(3, dtype=torch.float16) / 7,
    "double": torch.tensor([1e-300], dtype=torch.float64),
    "packed": torch.arange(255, dtype=torch.uint8),
    "count": torch.tensor(7, dtype=torch.int64),
    "yes and no": torch.tensor([True, False, True]),
    "empty": torch.zeros(0, 4),
    "not in a row": torch.arange(12.0).reshape(3, 4).t(),
    "step": torch.tensor(3.0),
    "naïve name": torch.tensor([float("inf"), -0.0]),
}


def written(path, tensors):
    return write_synced(path, iterate_safetensors(tensors))


def test_the_library_reads_what_was_written(tmp_path):
    written(tmp_path / "all.safetensors", TENSORS)
    read = load_file(tmp_path / "all.safetensors")
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype, name
        assert torch.equal(read[name], tensor), name


def test_size_and_hash_are_those_of_the_file(tmp_path):
    record = written(tmp_path / "all.safetensors", TENSORS)
    whole = (tmp_path / "all.safetensors").read_bytes()
    assert (record.bytes, record.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())


def test_a_file_that_exists_is_never_written_over(tmp_path):
    (tmp_path / "taken").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "taken", [b"yours"])
    assert (tmp_path / "taken").read_bytes() == b"mine"


def test_a_disk_error_is_raised_after_the_last_tensor_and_not_before(tmp_path):
    # Larger than what Python keeps back.
    chunks = iterate_safetensors({"large": torch.zeros(1 << 16), **TENSORS})
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        write_synced(tmp_path / "large", chunks)
    assert next(chunks, None) is None
