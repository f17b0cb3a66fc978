"""What chance gives: as often as the model says, and never what was left out."""

import pytest

torch = pytest.importorskip("torch", reason="needs the workload extra")
pytestmark = pytest.mark.workload

from devkit.workload.generation import decoding
from devkit.workload.generation.decoding import SeededSampler
from devkit.workload.generation.settings import DecodingSettings

SCORES = torch.tensor([2.0, -torch.inf, 0.0, 1.0, -1.0, -torch.inf])
MANY = 20_000


def drawn(how, numbers, scores=SCORES, place=0):
    """The token of each prompt."""
    rows = scores.repeat(len(numbers), 1)
    ids = torch.zeros(len(numbers), 3 + place, dtype=torch.long)
    found = SeededSampler(how, numbers, prompt_length=3)(ids, rows)
    assert (found.isfinite().sum(-1) == 1).all()
    return found.argmax(-1)


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"temperature": 1.0}, [0, 2, 3, 4]),
        ({"temperature": 0.5}, [0, 2, 3, 4]),
        ({"temperature": 1.0, "top_k": 2}, [0, 3]),
        # The first has 0.64 of the whole, the first two 0.88.
        ({"temperature": 1.0, "top_p": 0.85}, [0, 3]),
        ({"temperature": 1.0, "top_p": 0.5}, [0]),
        ({"temperature": 3.0, "top_k": 3, "top_p": 0.99}, [0, 2, 3]),
    ],
)
def test_each_token_is_sampled_with_its_probability(how, kept):
    wanted = torch.zeros(len(SCORES))
    wanted[kept] = (SCORES[kept] / how["temperature"]).softmax(-1)
    found = drawn(DecodingSettings(**how), range(MANY)).bincount(minlength=len(SCORES)) / MANY
    assert found[wanted == 0].sum() == 0
    # Five times the spread of what is counted in so many draws.
    assert ((found - wanted).abs() <= 5 * (wanted * (1 - wanted) / MANY).sqrt()).all()


def test_positions_and_prompts_are_sampled_independently():
    how = DecodingSettings(temperature=1.0)
    places = torch.stack([drawn(how, range(200), place=place) for place in range(20)])
    assert len({tuple(row) for row in places.tolist()}) == 20
    assert len({tuple(row) for row in places.T.tolist()}) == 200
    assert (places == drawn(DecodingSettings(temperature=1.0, seed=1), range(200))).float().mean() < 0.6


@pytest.mark.parametrize(("chance", "token"), [(0.0, 0), (1 - 2**-53, 4)])
def test_extreme_samples_choose_a_possible_token(monkeypatch, chance, token):
    monkeypatch.setattr(decoding, "_sample", lambda *_: chance)
    assert drawn(DecodingSettings(temperature=1.0), [0]).tolist() == [token]
    turned = drawn(DecodingSettings(temperature=1.0), [0], scores=SCORES.flip(0))
    assert SCORES.flip(0)[turned[0]].isfinite()
