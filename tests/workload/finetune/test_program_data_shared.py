"""Texts that one process tokenised reach the others as they were."""

import signal
import tempfile

import pytest

torch = pytest.importorskip("torch", reason="the workload extra is not installed")
pytestmark = pytest.mark.workload

from devkit.workload.finetune import program_data_shared  # noqa: E402
from devkit.workload.finetune.batch import Example, Layout, Row, collated  # noqa: E402
from devkit.workload.finetune.checkpoint_settings import fingerprint_of_data  # noqa: E402
from devkit.workload.finetune.program_data import Data  # noqa: E402
from devkit.workload.finetune.stopping import Stopped  # noqa: E402

LEARNED = [Example.compact([5, 6, 70_000], [0, 1, 1]), Example.compact([9], [0]), Example((1, 2, 3, 4, 5), (0,) * 5)]
HELD_OUT = [Example.compact(range(300), [1] * 300)]


def handed_on(data):
    path = program_data_shared.written(data)
    try:
        return program_data_shared._mapped(path)
    finally:
        path.unlink()


def plain(examples):
    return [(list(each.ids), list(each.counted), each.learned) for each in examples]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(Data(LEARNED, HELD_OUT, ("a note", "ein Hinweis: ü\n"), "{{ messages }}"), id="everything"),
        pytest.param(Data(LEARNED, [], (), None), id="nothing held out"),
        *(
            pytest.param(Data(LEARNED, [], ("x" * length,), None), id=f"a first line of {length} letters more")
            for length in range(4)
        ),
    ],
)
def test_data_that_is_handed_on_is_the_same(data):
    found = handed_on(data)
    assert plain(found.learned) == plain(data.learned)
    assert plain(found.held_out) == plain(data.held_out)
    assert (found.notes, found.chat_template) == (data.notes, data.chat_template)
    assert fingerprint_of_data(found.learned) == fingerprint_of_data(data.learned)


def test_a_batch_of_mapped_texts_is_that_of_the_texts():
    texts = [each for each in LEARNED if len(each.ids) > 1]
    mapped = handed_on(Data(texts, [], (), None)).learned
    for layout in (Layout.FLAT, Layout.PADDED):
        one, other = (collated([Row((each,)) for each in some], layout) for some in (texts, mapped))
        assert torch.equal(one.ids, other.ids) and torch.equal(one.labels, other.labels)
        assert (one.counted, one.tokens) == (other.counted, other.tokens)


def test_a_file_that_is_not_there_is_none_of_ours(tmp_path):
    assert program_data_shared._mapped(tmp_path / "gone") is None


def test_a_signal_while_texts_are_handed_on_leaves_no_file(tmp_path, monkeypatch):
    class Signalled:
        """Token ids that are never written to the end."""

        def __len__(self):
            return 2

        def __iter__(self):
            raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(Stopped):
        program_data_shared.written(Data([Example(Signalled(), [0, 1])], [], (), None))
    assert list(tmp_path.iterdir()) == []
