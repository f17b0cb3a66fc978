"""Takes in documents one by one, keeping counts of them alone, and groups their nodes by kind and make."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from devkit.doctor.comparing.classes import Make, make_of, settled
from devkit.doctor.comparing.comparison import Group
from devkit.doctor.comparing.facts_leaves import FactsLeaves
from devkit.doctor.comparing.grouping import grouped
from devkit.doctor.comparing.kinds import Kind, WrongReport, check_form, kind_of
from devkit.doctor.comparing.leaves import Leaf
from devkit.doctor.comparing.report_leaves import leaves_of
from devkit.doctor.comparing.rules import LIVE, Grade, How, Rule
from devkit.doctor.comparing.tally import Tally
from devkit.facts.store import WrongFacts, from_document

Reread = Callable[[Sequence[int]], Iterator[tuple[int, dict[str, Any]]]]
"""Reads documents again, by their numbers in the order in which they were added; yields them in any order."""

DECIDES = Rule(How.EQUAL, grade=Grade.DECIDES)


class Gathering:
    """A comparison in the making. `keeps_all` also compares times, serial numbers and readings of the moment."""

    def __init__(self, *, keeps_all: bool = False) -> None:
        self._keeps_all = keeps_all
        self._names: list[str] = []
        self._tallies: dict[tuple[Kind, Make], Tally] = {}
        self._facts = FactsLeaves()

    def add(self, name: str, document: object, *, is_changed: bool = False) -> None:
        """Count one document. `is_changed`: its own hash says that it was changed later. Raises WrongReport."""
        kind = kind_of(document)
        if not isinstance(document, dict):
            raise WrongReport("not a JSON object")
        check_form(document, kind)
        try:
            leaves = self._leaves(document, kind)
        except RecursionError as error:
            raise WrongReport("it is nested too deep") from error
        if kind is Kind.VERIFY:
            leaves.append(("report_sha256", DECIDES, "not its own" if is_changed else "its own"))
        tally = self._tallies.setdefault((kind, make_of(document, kind)), Tally())
        if kind is Kind.FACTS and tally.has_news(leaves):
            # Only a document with something new in it can be wrong: what was there before, was right.
            _check_facts(document)
        tally.add(len(self._names), leaves)
        self._names.append(name)

    def _leaves(self, document: dict[str, Any], kind: Kind) -> list[Leaf]:
        found = self._facts.of(document) if kind is Kind.FACTS else list(leaves_of(document, kind))
        if not self._keeps_all:
            return found
        return [(path, LIVE if rule.how is How.LEFT_OUT else rule, value) for path, rule, value in found]

    @property
    def kinds(self) -> dict[Kind, int]:
        """How many documents there are of each kind, in the order in which kinds came."""
        counts: dict[Kind, int] = {}
        for (kind, _), tally in self._tallies.items():
            counts[kind] = counts.get(kind, 0) + len(tally.nodes)
        return counts

    def finish(self, reread: Reread) -> tuple[Group, ...]:
        """The groups, the largest first within a kind. `reread` is asked for the few documents that stand out.

        Raises WrongReport for a document that only now shows to be wrong: in what is not compared.
        """
        return tuple(
            grouped(tally, kind=kind, make=make, names=self._names, reread=reread, keeps_all=self._keeps_all)
            for kind in self.kinds
            for make, tally in self._groups(kind)
        )

    def _groups(self, kind: Kind) -> list[tuple[Make, Tally]]:
        """Tallies of a kind by make, with those of few nodes taken into the nearest."""
        own = {make: tally for (each, make), tally in self._tallies.items() if each is kind}
        homes = settled({make: len(tally.nodes) for make, tally in own.items()})
        for home in set(homes.values()):
            guests = [make for make, into in homes.items() if into == home and make != home]
            if guests:
                _label(own[home], home)
            for make in guests:
                _label(own[make], make)
                own[home].absorb(own[make])
        kept = [(make, own[make]) for make in own if homes[make] == make]
        return sorted(kept, key=lambda pair: -len(pair[1].nodes))


def _label(tally: Tally, make: Make) -> None:
    """Make the GPUs a field of their own, so that nodes of another make than the group's differ in it."""
    tally.label("gpus", DECIDES, make.label)


def _check_facts(document: object) -> None:
    try:
        from_document(document)
    except (WrongFacts, RecursionError) as error:
        raise WrongReport(str(error) or "it is nested too deep") from error
