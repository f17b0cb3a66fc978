"""Everything that one question about memory is answered with."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from devkit.estimate.cards import Card, Verdict, smallest_card
from devkit.estimate.document import estimate_document, shape_document
from devkit.estimate.host import HostNeeds, host_needs
from devkit.estimate.model import MemoryEstimate
from devkit.estimate.settings import InferenceSettings, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.speed import UTILISATION, seconds_for
from devkit.estimate.spelled import plain
from devkit.estimate.training import estimate_training
from devkit.facts.record import keyword_record

if TYPE_CHECKING:
    from devkit.estimate.prices import Prices
    from devkit.estimate.rules import Rule
    from devkit.estimate.search import Choice

HOUR_S = 3600

Settings = TrainingSettings | InferenceSettings


@keyword_record
class Duration:
    """How long so many tokens take, and what that costs: from the best to the plainest stack."""

    tokens: int
    seconds: tuple[float, float]
    costs: tuple[tuple[str, float, float], ...]
    """Where, and the least and the most it costs, in the currency of the price file."""


@keyword_record
class CardAnswer:
    """One GPU: whether it fits, what would, and for how long it would work."""

    card: Card
    verdict: Verdict
    better: "tuple[Choice, ...]"
    """Settings that fit, the fastest first; what was asked for is not repeated among them."""
    together: "Choice | None"
    """With how many of them it fits, where it does not on one."""
    duration: Duration | None


@keyword_record
class Answer:
    """What `devkit estimate` prints. `smallest` is None where no known card is enough."""

    shape: ModelShape
    settings: Settings
    estimate: MemoryEstimate
    cards: tuple[CardAnswer, ...]
    smallest: Card | None
    host: HostNeeds | None
    rules: "tuple[tuple[Rule, int | None], ...]"
    prices: "Prices | None" = None
    learned_from: str = ""
    """The file of measurements that tightened the bounds."""

    @property
    def fits_somewhere(self) -> bool:
        """Whether it fits on one of the GPUs asked about, at least if nothing goes wrong; True when none was."""
        return not self.cards or any(each.verdict is not Verdict.DOES_NOT_FIT for each in self.cards)


@keyword_record
class Question:
    """What is asked. `tokens` is how many are to be trained on, 0 when nobody said."""

    shape: ModelShape
    settings: Settings
    cards: tuple[Card, ...] = ()
    tokens: int = 0
    prices: "Prices | None" = None
    rules: "tuple[Rule, ...]" = ()


def closed_form(question: Question) -> MemoryEstimate:
    """The estimate by formulas. Raises DevkitError for settings that make no sense."""
    if isinstance(question.settings, TrainingSettings):
        return estimate_training(question.shape, question.settings)
    from devkit.estimate.inference import estimate_inference

    return estimate_inference(question.shape, question.settings)


def answer(question: Question, estimate: MemoryEstimate, *, learned_from: str = "") -> Answer:
    """What the estimate means for GPUs, machine, time and money."""
    settings = question.settings
    host = None
    if isinstance(settings, TrainingSettings):
        host = host_needs(question.shape, settings, tokens=question.tokens)
    return Answer(
        shape=question.shape,
        settings=settings,
        estimate=estimate,
        cards=tuple(_card_answer(question, card, estimate) for card in question.cards),
        smallest=smallest_card(estimate),
        host=host,
        rules=tuple((rule, rule.apply(question.shape, settings)) for rule in question.rules),
        prices=question.prices,
        learned_from=learned_from,
    )


def _card_answer(question: Question, card: Card, estimate: MemoryEstimate) -> CardAnswer:
    verdict, settings = card.verdict(estimate), question.settings
    if not isinstance(settings, TrainingSettings):
        return CardAnswer(card=card, verdict=verdict, better=(), together=None, duration=None)
    from devkit.estimate.search import choices, gpus_needed

    better = tuple(choice for choice in choices(question.shape, settings, card) if choice.changes)
    is_hopeless = verdict is Verdict.DOES_NOT_FIT and not any(each.verdict is Verdict.FITS for each in better)
    return CardAnswer(
        card=card,
        verdict=verdict,
        better=better,
        together=gpus_needed(question.shape, settings, card) if is_hopeless else None,
        duration=_duration(question, card, settings) if verdict is not Verdict.DOES_NOT_FIT else None,
    )


def _duration(question: Question, card: Card, settings: TrainingSettings) -> Duration | None:
    if not question.tokens or card.flops is None:
        return None
    least, most = seconds_for(question.tokens, question.shape, settings, flops=card.flops)
    priced = question.prices.for_gpu(card.name) if question.prices else ()
    gpu_hours = (least * settings.world / HOUR_S, most * settings.world / HOUR_S)
    costs = tuple((price.where, price.per_hour * gpu_hours[0], price.per_hour * gpu_hours[1]) for price in priced)
    return Duration(tokens=question.tokens, seconds=(least, most), costs=costs)


def answer_document(found: Answer) -> dict[str, Any]:
    """The answer as JSON: devkit.estimate/1."""
    shown = estimate_document(found.estimate)
    first = next((each.better[0] for each in found.cards if each.better), None)
    return {
        "schema": "devkit.estimate/1",
        "model": shape_document(found.shape),
        "settings": plain(found.settings),
        **shown,
        "gpus": [_card_document(each) for each in found.cards],
        "recommended": _choice_document(first) if first else None,
        "smallest_gpu": {"name": found.smallest.name, "memory_bytes": found.smallest.memory_bytes}
        if found.smallest
        else None,
        "host": vars(found.host) if found.host else None,
        "rules": [
            {"name": rule.name, "bytes": size, "says": rule.says, "source": rule.source} for rule, size in found.rules
        ],
        "utilisation": list(UTILISATION),
        "prices": {"as_of": found.prices.as_of, "currency": found.prices.currency} if found.prices else None,
        "learned_from": found.learned_from or None,
    }


def _card_document(each: CardAnswer) -> dict[str, Any]:
    return {
        "name": each.card.name,
        "count": each.card.count,
        "memory_bytes": each.card.memory_bytes,
        "memory_is_measured": each.card.is_measured,
        "verdict": each.verdict,
        "lacks_bf16": each.card.lacks_bf16,
        "recommended": _choices_document(each.better),
        "together": _choice_document(each.together) if each.together else None,
        "duration": _duration_document(each.duration) if each.duration else None,
    }


def _choices_document(found: "Iterable[Choice]") -> list[dict[str, Any]]:
    return [_choice_document(choice) for choice in found]


def _choice_document(choice: "Choice") -> dict[str, Any]:
    return {
        "changes": list(choice.changes),
        "settings": plain(choice.settings),
        "device_peak_bytes": vars(choice.estimate.device_peak_bytes),
        "verdict": choice.verdict,
        "slowness": round(choice.slowness, 3),
        "costs": [{"factor": cost.factor, "says": cost.says, "source": cost.source} for cost in choice.costs],
    }


def _duration_document(duration: Duration) -> dict[str, Any]:
    return {
        "tokens": duration.tokens,
        "seconds": list(duration.seconds),
        "costs": [{"where": where, "least": least, "most": most} for where, least, most in duration.costs],
    }
