"""What is kept of a report, and that it does not grow to the report's own size."""

import json
import tracemalloc

from devkit.doctor.comparison.leaves import FactsFlattener
from devkit.doctor.comparison.outliers import ComparisonBuilder
from devkit.doctor.comparison.rules import EQUAL, FACTS_RULES, find_facts_rule
from tests.doctor.comparison.cluster import recorded, varied
from tests.hosts import MACHINES

KEPT_BYTES = 8192
"""Of a report that takes a hundred and fifty thousand once it is read."""
NOT_RECORDED = {"nvml.gpus[].health.display_active"}


def test_a_report_more_takes_a_few_bytes_for_each_field():
    builder, document = ComparisonBuilder(), recorded()
    for number in range(20):
        builder.add(f"node-{number}", varied(document, number))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(20, 140):
        builder.add(f"node-{number}", varied(document, number))
    after, _ = tracemalloc.get_traced_memory()
    one = len(json.dumps(document))
    tracemalloc.stop()
    assert (after - before) / 120 < KEPT_BYTES < one


def test_only_outliers_are_read_again():
    builder, document = ComparisonBuilder(), recorded()
    own = [varied(document, number) for number in range(50)]
    own[7]["driver"]["fabric_manager"] = "inactive"
    for number, each in enumerate(own):
        builder.add(f"node-{number}", each)
    asked = []

    def reread(numbers):
        asked.extend(numbers)
        return ((number, own[number]) for number in numbers)

    builder.finish(reread)
    assert 7 in asked and len(set(asked)) <= 12


def patterns():
    """The pattern of every field of every recorded machine."""
    cut = FactsFlattener()
    for name in MACHINES:
        cut.flatten(recorded(name))
    return {pattern for _, pattern, _ in cut._places.values()}


def test_every_rule_is_for_an_existing_field():
    found = patterns()
    unused = [words.pattern for words, _ in FACTS_RULES if not any(words.fullmatch(each) for each in found)]
    assert not unused


def test_the_inside_of_a_container_is_compared_by_the_same_rules():
    for pattern in patterns():
        if not pattern.startswith(("inside", "taken_at", "schema", "training", "verification")):
            assert find_facts_rule(f"inside.{pattern}") == find_facts_rule(pattern)


def test_a_field_without_a_rule_is_compared_for_equality():
    assert find_facts_rule("driver.loaded") == find_facts_rule("a.field.of.tomorrow") == EQUAL
