"""What is kept of a report, and that it does not grow to the report's own size."""

import json
import tracemalloc

from devkit.doctor.comparing.facts_leaves import FactsLeaves
from devkit.doctor.comparing.gathered import Gathering
from devkit.doctor.comparing.rules import _COMPILED, EQUAL, facts_rule
from tests.doctor.comparing.cluster import recorded, varied
from tests.hosts import MACHINES

KEPT_BYTES = 8192
"""Of a report that takes a hundred and fifty thousand once it is read."""
NOT_RECORDED = {"nvml.gpus[].health.display_active"}


def test_a_report_more_takes_a_few_bytes_for_each_field():
    gathering, document = Gathering(), recorded()
    for number in range(20):
        gathering.add(f"node-{number}", varied(document, number))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(20, 140):
        gathering.add(f"node-{number}", varied(document, number))
    after, _ = tracemalloc.get_traced_memory()
    one = len(json.dumps(document))
    tracemalloc.stop()
    assert (after - before) / 120 < KEPT_BYTES < one


def test_only_what_stands_out_is_read_again():
    gathering, document = Gathering(), recorded()
    own = [varied(document, number) for number in range(50)]
    own[7]["driver"]["fabric_manager"] = "inactive"
    for number, each in enumerate(own):
        gathering.add(f"node-{number}", each)
    asked = []

    def reread(numbers):
        asked.extend(numbers)
        return ((number, own[number]) for number in numbers)

    gathering.finish(reread)
    assert 7 in asked and len(set(asked)) <= 12


def patterns():
    """The pattern of every field of every recorded machine."""
    cut = FactsLeaves()
    for name in MACHINES:
        cut.of(recorded(name))
    return {pattern for _, pattern, _ in cut._places.values()}


def test_every_rule_is_for_a_field_that_there_is():
    found = patterns()
    unused = [words.pattern for words, _ in _COMPILED if not any(words.fullmatch(each) for each in found)]
    assert not unused


def test_the_inside_of_a_container_is_compared_by_the_same_rules():
    for pattern in patterns():
        if not pattern.startswith(("inside", "taken_at", "schema", "training", "verification")):
            assert facts_rule(f"inside.{pattern}") == facts_rule(pattern)


def test_what_no_rule_names_is_compared_for_equality():
    assert facts_rule("driver.loaded") == facts_rule("a.field.of.tomorrow") == EQUAL
