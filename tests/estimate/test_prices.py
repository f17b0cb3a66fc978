"""A user's price file: what is read, and what is refused."""

import pytest

from devkit.errors import DevkitError
from devkit.estimate.resources import parse_prices

HEAD = {"as_of": "2026-11-21", "currency": "EUR"}
RENTED = {"gpu": "H100 SXM", "per_hour": 3.0, "where": "a cloud"}
OWN = {"gpu": "RTX 4090", "purchase": 2000, "hours_of_use": 1000, "power_w": 500, "electricity_per_kwh": 0.4}


def test_prices_are_found_by_every_name_of_the_gpu_the_cheapest_first():
    rows = [RENTED, {**RENTED, "gpu": "NVIDIA H100 SXM", "per_hour": 2.0}, {**RENTED, "gpu": "L4"}]
    found = parse_prices({**HEAD, "rented": rows}, origin="prices.toml").for_gpu("NVIDIA H100 SXM")
    assert [price.per_hour for price in found] == [2.0, 3.0]


def test_a_gpu_of_ones_own_costs_its_share_of_the_purchase_and_its_electricity():
    found = parse_prices({**HEAD, "own": [OWN]}, origin="prices.toml").for_gpu("rtx4090")
    assert [price.per_hour for price in found] == [pytest.approx(2000 / 1000 + 0.5 * 0.4)]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        pytest.param({}, "says no as_of", id="nothing"),
        pytest.param({"as_of": "2026-11-21"}, "says no currency", id="no currency"),
        pytest.param(HEAD, "holds no prices", id="no prices"),
        pytest.param({**HEAD, "rented": [{"per_hour": 1}]}, "names no gpu", id="a price of nothing"),
        pytest.param({**HEAD, "rented": [{**RENTED, "per_hour": 0}]}, "per_hour of H100 SXM", id="for free"),
        pytest.param({**HEAD, "rented": [{**RENTED, "per_hour": "3"}]}, "is '3'", id="a word"),
        pytest.param({**HEAD, "own": [{**OWN, "hours_of_use": -1}]}, "hours_of_use", id="fewer than no hours"),
    ],
)
def test_a_price_file_that_makes_no_sense_is_refused(document, says):
    with pytest.raises(DevkitError) as refusal:
        parse_prices(document, origin="prices.toml")
    assert says in refusal.value.message
