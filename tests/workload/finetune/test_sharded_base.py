"""A base that processes shard: they map its files, and none of them holds it whole."""

import json
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.full,
    pytest.mark.workload,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc"),
]

from tests.workload.finetune.command_line import finetune_words, losses, unless_given
from tests.workload.finetune.run_factory import TEXTS, write_base, write_texts
from tests.workload.small_models import save_model

EQUAL = 2e-5
"""Relative: sums are taken in another order, in fp32."""

LARGE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}


def argv(base, texts, output, *more):
    places = {"model": base, "data": texts, "output": output}
    usual = unless_given(more, precision="fp32", batch=4, learning_rate=0.005)
    return finetune_words(*more, **places, **usual, steps=3)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts") / "texts.jsonl", TEXTS)


def test_no_process_holds_more_than_its_part_and_a_layer(zygote, texts, tmp_path):
    """What they read lies in the file's pages, which the machine takes back when it needs them."""
    base = save_model(tmp_path / "base", "llama", **LARGE)
    size = (base / "model.safetensors").stat().st_size
    seen = [tmp_path / f"memory-{rank}" for rank in range(2)]
    places = {rank: {"faults": {"memory of loading": str(path)}} for rank, path in enumerate(seen)}
    words = argv(base, texts, tmp_path / "run", "--dtype", "fp32", "--sharding", "zero3")
    run = zygote.start(words, world=2, places=places)
    assert run.ended() == [0, 0], run.said(1)
    for path in seen:
        assert 0.45 * size < json.loads(path.read_text()) < 0.75 * size


BASES = {
    "tied embeddings": lambda folder: save_model(folder, "llama", tie_word_embeddings=True),
    "GPT-2's linear layers": lambda folder: save_model(folder, "gpt2", attn_pdrop=0, embd_pdrop=0, resid_pdrop=0),
    "fused experts": lambda folder: save_model(folder, "qwen3_moe"),
    "bf16 files": lambda folder: save_model(folder, "llama", dtype=torch.bfloat16),
    "plain": write_base,
    "positions that grow": lambda folder: save_model(
        folder, "llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0}
    ),
}


@pytest.mark.parametrize(
    ("base", "more"),
    [
        ("tied embeddings", ("--method", "full", "--learning-rate", "0.001")),
        ("tied embeddings", ("--method", "qlora")),
        ("GPT-2's linear layers", ("--method", "qlora")),
        ("GPT-2's linear layers", ()),
        ("fused experts", ()),
        ("fused experts", ("--method", "qlora")),
        ("bf16 files", ("--dtype", "fp32")),
        ("plain", ("--dora",)),
        ("plain", ("--dora", "--method", "qlora")),
        ("plain", ("--packing", "--max-length", "64", "--batch", "2")),
        ("positions that grow", ()),
    ],
)
def test_a_sharded_base_has_the_losses_of_a_whole_one(zygote, texts, tmp_path, base, more):
    folder = BASES[base](tmp_path / "base")
    runs = []
    for world, sharding in ((1, ()), (2, ("--sharding", "zero3"))):
        runs.append(zygote.start(argv(folder, texts, tmp_path / f"of {world}", *more, *sharding), world=world))
        assert runs[-1].ended() == [0] * world, [runs[-1].said(rank) for rank in range(world)]
    alone, both = map(losses, runs)
    assert both == pytest.approx(alone, rel=EQUAL)
    assert alone[-1] != pytest.approx(alone[0], rel=100 * EQUAL), "nothing was learned, so that nothing was compared"


def test_packed_weights_are_read_by_each_process(zygote, texts, tmp_path):
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    base = save_model(tmp_path / "base")
    packed = save_model(tmp_path / "packed")
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_quant_storage=torch.float32)
    AutoModelForCausalLM.from_pretrained(base, quantization_config=how).save_pretrained(packed)
    runs = []
    for world, sharding in ((1, ()), (2, ("--sharding", "zero3"))):
        words = argv(packed, texts, tmp_path / f"of {world}", "--method", "qlora", "--dtype", "fp32", *sharding)
        runs.append(zygote.start(words, world=world))
        assert runs[-1].ended() == [0] * world, [runs[-1].said(rank) for rank in range(world)]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), rel=EQUAL)


def test_different_models_from_the_same_files_are_reported_before_they_are_sharded(zygote, texts, tmp_path):
    """As another version of transformers on one of the machines would make it."""
    base = write_base(tmp_path / "base")
    run = zygote.start(
        argv(base, texts, tmp_path / "run", "--sharding", "zero3"),
        world=2,
        places={1: {"faults": {"another transformers": None}}},
    )
    assert run.ended() == [2, 2]
    told = run.said(0) + run.said(1)
    assert told.count("Error: ") == 1
    assert "build different models from the same files: some do not have model.base_model.model.another" in told
    assert "Install the same versions of transformers and peft on all machines." in told
