"""Comparing documents that are at hand, as the command compares those of files."""

from devkit.doctor.comparison.model import Comparison
from devkit.doctor.comparison.outliers import ComparisonBuilder


def compare(documents, *, keeps_all=False):
    """The comparison of named documents."""
    gathering = ComparisonBuilder(keeps_all=keeps_all)
    for name, document in documents.items():
        gathering.add(name, document)
    own = list(documents.values())
    return Comparison(gathering.finish(lambda numbers: ((number, own[number]) for number in numbers)))


def get_only_group(comparison):
    (group,) = comparison.groups
    return group


def outlier_names(comparison):
    """Names of the nodes that differ in what matters, the oddest first."""
    return [name for group in comparison.groups for odd in group.outliers if odd.grade for name in odd.nodes]


def differences_by_field(odd):
    """What a node differs in that matters, by field: its value, the usual one, the codes that hang on it."""
    return {each.field: (each.value, each.usual, each.settles) for each in odd.differences if each.grade}
