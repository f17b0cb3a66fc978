"""What a run costs, by prices that the user keeps: devkit has none of its own."""

from collections.abc import Mapping
from typing import Any

from devkit.compat.gpus import find_gpu
from devkit.errors import DevkitError
from devkit.facts.record import keyword_record

_HINT = "See examples/prices.toml for what a price file holds."


@keyword_record
class Price:
    """One hour of one GPU: rented, or of one's own as its share of the purchase and its electricity."""

    gpu: str
    per_hour: float
    where: str
    is_own: bool = False


@keyword_record
class Prices:
    """A price file. `as_of` is the day on which its owner looked the prices up."""

    as_of: str
    currency: str
    prices: tuple[Price, ...]

    def for_gpu(self, name: str) -> tuple[Price, ...]:
        """The prices for that GPU, cheapest first."""
        wanted = find_gpu(name)
        rows = [each for each in self.prices if each.gpu.lower() == name.lower() or _is_same(each.gpu, wanted)]
        return tuple(sorted(rows, key=lambda price: price.per_hour))


def _is_same(name: str, wanted: object) -> bool:
    found = find_gpu(name)
    return found is not None and found.model is not None and found.model == getattr(wanted, "model", None)


def prices_of(document: Mapping[str, Any], *, origin: str) -> Prices:
    """The prices in a parsed file. Raises DevkitError where something is missing or no number."""
    as_of, currency = str(document.get("as_of", "")), str(document.get("currency", ""))
    if not as_of or not currency:
        raise DevkitError(f"{origin} says no {'as_of' if not as_of else 'currency'}", _HINT)
    rented = tuple(_rented(row, origin) for row in document.get("rented", ()))
    own = tuple(_own(row, origin) for row in document.get("own", ()))
    if not rented and not own:
        raise DevkitError(f"{origin} holds no prices", _HINT)
    return Prices(as_of=as_of, currency=currency, prices=(*rented, *own))


def _rented(row: Mapping[str, Any], origin: str) -> Price:
    return Price(
        gpu=_text(row, "gpu", origin), per_hour=_number(row, "per_hour", origin), where=str(row.get("where", ""))
    )


def _own(row: Mapping[str, Any], origin: str) -> Price:
    """A GPU of one's own: what it cost, spread over the hours that it will work, and its electricity."""
    share = _number(row, "purchase", origin) / _number(row, "hours_of_use", origin)
    power = _number(row, "power_w", origin) / 1000 * _number(row, "electricity_per_kwh", origin)
    return Price(gpu=_text(row, "gpu", origin), per_hour=share + power, where=str(row.get("where", "own")), is_own=True)


def _text(row: Mapping[str, Any], key: str, origin: str) -> str:
    if not isinstance(row.get(key), str) or not row[key]:
        raise DevkitError(f"a price in {origin} names no {key}", _HINT)
    return str(row[key])


def _number(row: Mapping[str, Any], key: str, origin: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise DevkitError(
            f"{key} of {row.get('gpu', 'a price')} in {origin} is {value!r}", f"Give a number above zero. {_HINT}"
        )
    return float(value)
