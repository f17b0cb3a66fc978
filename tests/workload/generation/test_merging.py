"""A merged model says what its base with the adapter said, and lies on disk as a whole or not at all."""

import errno
import json
from pathlib import Path

import pytest
import torch

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.device import TORCH_DTYPES
from devkit.workload.finetune import model as adapters
from devkit.workload.finetune.files import BaseQuantization, LoadSettings, inspect_adapter, inspect_model
from devkit.workload.finetune.model import apply_adapter, load_base_and_tokenizer
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.generation import program
from devkit.workload.generation.program import (
    MERGE_TOLERANCE,
    find_stored_precision,
    merge_adapter,
    require_empty_folder,
    write_merged_model,
)
from tests.workload.small_models import save_model, save_trained_adapter

pytestmark = pytest.mark.workload

IDS = torch.arange(40, 60)[None]
WHOLE_BLOCKS = {"hidden_size": 64, "intermediate_size": 128}
"""bitsandbytes's kernel for CPUs with AVX512-BF16 wants rows of whole blocks of 64 weights."""


def logits(model):
    """What the model says of a fixed line."""
    with torch.no_grad():
        return model(input_ids=IDS).logits.float()


def moved(one, other):
    """The largest difference as a share of the range."""
    return float((one - other).abs().max() / (one.max() - one.min()))


@pytest.fixture(scope="module", params=["lora", "dora"])
def pair(request, tmp_path_factory):
    """A base and an adapter on it, both in folders."""
    root = tmp_path_factory.mktemp(request.param)
    loaded = load_base_and_tokenizer(f"{save_model(root / 'base', **WHOLE_BLOCKS)}", LoadSettings())
    settings = FinetuneSettings(model="", data=(), output=Path(), rank=4, dora=request.param == "dora")
    model = adapters.attach_adapter(loaded.model, settings, precision=Precision.FP32)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model):
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    save_trained_adapter(model, root / "adapter", loaded)
    return root / "base", root / "adapter"


@pytest.mark.parametrize(
    ("precision", "quantization"),
    [
        (Precision.FP32, BaseQuantization.NONE),
        (Precision.FP16, BaseQuantization.NONE),
        (Precision.BF16, BaseQuantization.NONE),
        (Precision.BF16, BaseQuantization.NF4),
        (Precision.BF16, BaseQuantization.INT8),
    ],
)
def test_a_merged_model_reloads_with_the_logits_of_base_and_adapter(pair, tmp_path, precision, quantization):
    base, folder = pair
    adapter = inspect_adapter(folder)
    choices = LoadSettings(precision=precision, quantization=quantization)
    plain = load_base_and_tokenizer(f"{base}", choices).model
    if quantization is not BaseQuantization.NONE:
        plain = plain.dequantize().to(TORCH_DTYPES[precision])
    wanted = logits(apply_adapter(plain, adapter, precision=Precision.FP32))

    loaded = load_base_and_tokenizer(f"{base}", choices)
    merged, change = merge_adapter(loaded, adapter, precision=precision, quantization=quantization)
    write_merged_model(merged, loaded, tmp_path / "whole")

    files = inspect_model(tmp_path / "whole")
    assert files.quantized is BaseQuantization.NONE
    assert find_stored_precision(files) is precision
    again = load_base_and_tokenizer(f"{tmp_path / 'whole'}", LoadSettings(precision=precision))
    assert change <= MERGE_TOLERANCE[precision]
    assert moved(wanted, logits(again.model)) <= MERGE_TOLERANCE[precision]
    assert moved(wanted, logits(load_base_and_tokenizer(f"{base}", choices).model)) > MERGE_TOLERANCE[precision], (
        "the adapter changes something"
    )
    assert again.tokenizer("a line")["input_ids"] == loaded.tokenizer("a line")["input_ids"]


def test_a_merge_that_loses_the_adapter_is_refused(pair, monkeypatch):
    base, folder = pair
    monkeypatch.setitem(program.MERGE_TOLERANCE, Precision.BF16, 1e-9)
    with pytest.raises(DevkitError, match="merging changed the logits by"):
        merge_adapter(
            load_base_and_tokenizer(f"{base}", LoadSettings(precision=Precision.BF16)),
            inspect_adapter(folder),
            precision=Precision.BF16,
            quantization=BaseQuantization.NONE,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_merged_model_has_the_precision_of_its_base(tmp_path, dtype):
    wanted = {torch.float32: Precision.FP32, torch.bfloat16: Precision.BF16, torch.float16: Precision.FP16}[dtype]
    assert find_stored_precision(inspect_model(save_model(tmp_path, dtype=dtype))) is wanted


def occupied(path, how):
    """A place that somebody else uses."""
    if how == "a file":
        path.write_text("mine")
    elif how == "a link":
        path.symlink_to(path.parent)
    elif how == "a full folder":
        path.mkdir()
        (path / "notes.txt").write_text("mine")


@pytest.mark.parametrize("how", ["a file", "a link", "a full folder"])
def test_a_folder_in_use_is_refused_and_unchanged(tmp_path, how):
    place = tmp_path / "whole"
    occupied(place, how)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DevkitError):
        require_empty_folder(place)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(DevkitError, match="is not a directory"):
        require_empty_folder(tmp_path / "nowhere" / "new")
    require_empty_folder(tmp_path / "new")


class FullDisk:
    """A model that does not fit on the disk: it fails when half is written."""

    def save_pretrained(self, folder):
        """Write something and run out of room."""
        Path(folder).mkdir()
        (Path(folder) / "config.json").write_text(json.dumps({}))
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_nothing_behind(pair, tmp_path):
    with pytest.raises(DevkitError, match="No space left on device"):
        write_merged_model(FullDisk(), load_base_and_tokenizer(f"{pair[0]}", LoadSettings()), tmp_path / "whole")
    assert list(tmp_path.iterdir()) == []
