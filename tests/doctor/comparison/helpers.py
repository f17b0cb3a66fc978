"""Comparisons of documents in memory, as the command compares files."""

from devkit.doctor.comparison.model import Comparison
from devkit.doctor.comparison.outliers import ComparisonBuilder


def compare(documents, *, keeps_all=False):
    """Compare documents by the names of their nodes."""
    builder = ComparisonBuilder(keeps_all=keeps_all)
    for name, document in documents.items():
        builder.add(name, document)
    own = list(documents.values())
    return Comparison(builder.finish(lambda numbers: ((number, own[number]) for number in numbers)))


def get_only_group(comparison):
    (group,) = comparison.groups
    return group


def outlier_names(comparison):
    """Return the names of the nodes with a relevant difference, the worst first."""
    return [
        name for group in comparison.groups for outlier in group.outliers if outlier.grade for name in outlier.nodes
    ]


def differences_by_field(outlier):
    """Return the relevant differences of an outlier by field: its value, the usual one, the findings it causes."""
    return {each.field: (each.value, each.usual, each.settles) for each in outlier.differences if each.grade}
