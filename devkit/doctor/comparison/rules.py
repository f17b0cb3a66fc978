"""How each field is compared: for equality, within a tolerance, only where a finding hangs on it, or not at all."""

import re
from enum import IntEnum

from devkit.facts.values import record


class ComparisonKind(IntEnum):
    """The ways of comparing."""

    EQUAL = 0
    MEASURED = 1
    """A number that scatters: it differs when it is far from what is usual in the group."""
    LIVE = 2
    """A reading of the moment, such as heat or free space: it counts only where a check's finding hangs on it."""
    LEFT_OUT = 3
    """Different on every machine by its nature: a time, a serial number."""


class Grade(IntEnum):
    """How much a difference weighs."""

    NONE = 0
    """No check looks at it."""
    READ = 1
    """A check looks at it, and comes to the same answer."""
    DECIDES = 2
    """A finding hangs on it, or a proof failed."""


@record
class FieldRule:
    """How to compare a field. `tolerance` is relative; `span` an absolute distance that is no difference yet.

    `grade` and `subjects` say how much it weighs and for what where no check can be asked: in reports. For facts
    the checks themselves are asked. `is_whole` keeps a list in one piece instead of going into it; `is_blurred` takes
    texts that differ in their numbers alone for the same; entries of a list that begin with `without` are dropped. A
    field that `is_optional` is compared among the nodes that have it.
    """

    how: ComparisonKind
    tolerance: float = 0.0
    span: float = 0.0
    grade: Grade = Grade.NONE
    subjects: tuple[str, ...] = ()
    is_whole: bool = False
    is_blurred: bool = False
    is_optional: bool = False
    without: str = ""


EQUAL = FieldRule(ComparisonKind.EQUAL)
IGNORED = FieldRule(ComparisonKind.LEFT_OUT)
TRANSIENT = FieldRule(ComparisonKind.LIVE, is_whole=True)
LOG = FieldRule(ComparisonKind.LIVE, is_whole=True, is_blurred=True)
"""Lines of a log, which carry times, addresses and counts."""
CAPACITY = FieldRule(ComparisonKind.MEASURED, tolerance=0.02)
"""Memory as the system reports it: firmware, ECC and the driver keep back a little more or less of the same boards."""
HEAT = FieldRule(ComparisonKind.LIVE, tolerance=0.1, span=10)
"""Degrees Celsius, percent: two idle machines differ by a few."""
SHARE = FieldRule(ComparisonKind.LIVE, tolerance=0.25)
"""Free space and memory, clocks, power: far from usual begins where a quarter is."""

_FACTS: tuple[tuple[str, FieldRule], ...] = (
    (r"taken_at|schema|system\.host_name|.*\.uuid|verification\.(taken_at|log)", IGNORED),
    (r"deep\.hub\.took_ms", IGNORED),
    (r"(system|nvml\.gpus\[\]|amd\.gpus\[\])\.memory_bytes|(limits|wsl)\.swap_bytes", CAPACITY),
    (r".*\.(temperature_c|utilisation_percent)", HEAT),
    (r".*\.(free_bytes|free_files|available_bytes|power_mw|sm_clock_mhz)|training(\..*)?", SHARE),
    (r".*\.(ecc_uncorrected|out_of_memory_kills|clock_ahead_s|clock_behind_s)", FieldRule(ComparisonKind.LIVE, span=1)),
    (r".*\.(processes|clock_reasons|display_active|pcie_generation|link_width|mig_instances)", TRANSIENT),
    (r"kernel_log\.driver_lines|driver\.upgraded_packages", LOG),
    (r"engine\.(containers|stopped|images)|kernel_log(\..*)?|driver\.booted_at", TRANSIENT),
    (r".*\.(pci_address|address)", TRANSIENT),
    (
        r"limits\.nccl",
        FieldRule(ComparisonKind.EQUAL, without="MASTER_ADDR="),
    ),  # of the nodes of one job, one is the master
)
"""Patterns of fields of facts and their rules; the first that matches whole. The rest is compared for equality."""

_COMPILED = tuple((re.compile(pattern), rule) for pattern, rule in _FACTS)


def find_facts_rule(pattern: str) -> FieldRule:
    """The rule of a field of facts; `pattern` is its path with [] for every place in a list."""
    own = pattern.removeprefix("inside.")
    return next((rule for words, rule in _COMPILED if words.fullmatch(own)), EQUAL)
