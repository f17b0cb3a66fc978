"""Texts that one process tokenised reach the others as they were."""

import signal
import tempfile

import pytest

torch = pytest.importorskip("torch", reason="the workload extra is not installed")
pytestmark = pytest.mark.workload

from devkit.workload.finetune.checkpoint import fingerprint_examples
from devkit.workload.finetune.data import dataset
from devkit.workload.finetune.data.batches import BatchLayout, BatchRow, Example, collate
from devkit.workload.finetune.data.dataset import Dataset
from devkit.workload.finetune.process import StoppedBySignal

LEARNED = [Example.compact([5, 6, 70_000], [0, 1, 1]), Example.compact([9], [0]), Example((1, 2, 3, 4, 5), (0,) * 5)]
HELD_OUT = [Example.compact(range(300), [1] * 300)]


def handed_on(data):
    path = dataset.write_dataset_file(data)
    try:
        return dataset._map_dataset_file(path)
    finally:
        path.unlink()


def plain(examples):
    return [(list(each.ids), list(each.loss_mask), each.target_count) for each in examples]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(Dataset(LEARNED, HELD_OUT, ("a note", "ein Hinweis: ü\n"), "{{ messages }}"), id="everything"),
        pytest.param(Dataset(LEARNED, [], (), None), id="nothing held out"),
        *(
            pytest.param(Dataset(LEARNED, [], ("x" * length,), None), id=f"a first line of {length} letters more")
            for length in range(4)
        ),
    ],
)
def test_a_mapped_dataset_equals_the_written_one(data):
    found = handed_on(data)
    assert plain(found.train) == plain(data.train)
    assert plain(found.held_out) == plain(data.held_out)
    assert (found.notes, found.chat_template) == (data.notes, data.chat_template)
    assert fingerprint_examples(found.train) == fingerprint_examples(data.train)


def test_a_batch_of_mapped_texts_is_that_of_the_texts():
    texts = [each for each in LEARNED if len(each.ids) > 1]
    mapped = handed_on(Dataset(texts, [], (), None)).train
    for layout in (BatchLayout.FLAT, BatchLayout.PADDED):
        one, other = (collate([BatchRow((each,)) for each in some], layout) for some in (texts, mapped))
        assert torch.equal(one.ids, other.ids) and torch.equal(one.labels, other.labels)
        assert (one.target_count, one.token_count) == (other.target_count, other.token_count)


def test_a_file_that_is_not_there_is_none_of_ours(tmp_path):
    assert dataset._map_dataset_file(tmp_path / "gone") is None


def test_a_signal_while_the_dataset_is_written_leaves_no_file(tmp_path, monkeypatch):
    class Signalled:
        """Token ids that are never written to the end."""

        def __len__(self):
            return 2

        def __iter__(self):
            raise StoppedBySignal(signal.SIGTERM)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(StoppedBySignal):
        dataset.write_dataset_file(Dataset([Example(Signalled(), [0, 1])], [], (), None))
    assert list(tmp_path.iterdir()) == []
