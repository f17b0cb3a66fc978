"""Rules of comparing: for equality, within a tolerance, only where it causes a finding, or not at all."""

import re
from dataclasses import replace
from enum import IntEnum

from devkit.facts.values import record


class ComparisonKind(IntEnum):
    """A way of comparing a field."""

    EQUAL = 0
    MEASURED = 1
    """A number that scatters: it differs when it is far from the usual range of the group."""
    TRANSIENT = 2
    """A metric of the moment, such as temperature or free space: it counts only where it causes a finding."""
    IGNORED = 3
    """Different on every machine by its nature: a time, a serial number."""


class Grade(IntEnum):
    """The relevance of a difference."""

    NONE = 0
    """No check reads it."""
    READ = 1
    """A check reads it, and comes to the same answer."""
    DECIDES = 2
    """It causes a finding, or a proof failed."""


@record
class FieldRule:
    """The way in which a field is compared.

    `grade` and `subjects` say how relevant a difference in a report is, and for which checks or stages; for facts the
    checks themselves are run. `is_whole` compares a list as one value instead of its entries; `masks_numbers` treats
    texts that differ only in their numbers as equal; list entries that begin with `ignored_prefix` are dropped. A field
    that `is_optional` is compared among the nodes that have it, and one with `idle_value` is as good as absent.
    """

    kind: ComparisonKind
    relative_tolerance: float = 0.0
    absolute_tolerance: float = 0.0
    grade: Grade = Grade.NONE
    subjects: tuple[str, ...] = ()
    is_whole: bool = False
    masks_numbers: bool = False
    is_optional: bool = False
    ignored_prefix: str = ""
    idle_value: int | None = None

    @property
    def is_transient(self) -> bool:
        """True for a metric of the moment."""
        return self.kind is ComparisonKind.TRANSIENT


EQUAL = FieldRule(ComparisonKind.EQUAL)
IGNORED = FieldRule(ComparisonKind.IGNORED)
TRANSIENT = FieldRule(ComparisonKind.TRANSIENT, is_whole=True)
LOG = FieldRule(ComparisonKind.TRANSIENT, is_whole=True, masks_numbers=True)
"""Lines of a log, which contain times, addresses and counts."""
CAPACITY = FieldRule(ComparisonKind.MEASURED, relative_tolerance=0.02)
"""Memory as the system reports it: firmware, ECC and the driver reserve a little more or less on identical boards."""
HEAT = FieldRule(ComparisonKind.TRANSIENT, relative_tolerance=0.1, absolute_tolerance=10)
"""Degrees Celsius, percent: two idle machines differ by a few."""
SHARE = FieldRule(ComparisonKind.TRANSIENT, relative_tolerance=0.25)
"""Free space and memory, clocks, power: a quarter away from the usual value is far."""

RELEVANT = FieldRule(ComparisonKind.EQUAL, grade=Grade.READ)
"""Hardware and system that a job feels though no check on one machine can tell that they are wrong."""
_GPU_HEALTH = r"nvml\.gpus\[\]\.health\."

_FACTS: tuple[tuple[str, FieldRule], ...] = (
    (r"system\.memory_bytes", replace(CAPACITY, grade=Grade.READ)),
    (r"system\.kernel|driver\.pci_gpus\[\]\.(numa_node|max_link_width)", RELEVANT),
    (
        r"limits\.(fabric_ports|link_mtus|numa_balancing|cpu_model)(\[\])?|python\.packages\[nvidia-nccl-\w+\](\..*)?",
        RELEVANT,
    ),
    (
        _GPU_HEALTH + r"(vbios|ecc_enabled|pcie_max_\w+|nvlink_(count|active)|power_limit_mw|application_clock_mhz)",
        RELEVANT,
    ),
    # A GPU without work goes down to the first generation by itself.
    (_GPU_HEALTH + "pcie_generation", replace(RELEVANT, is_optional=True, idle_value=1)),
    (r"taken_at|schema|system\.host_name|.*\.uuid|verification\.(taken_at|log)", IGNORED),
    (r"deep\.hub\.took_ms", IGNORED),
    (r"(system|nvml\.gpus\[\]|amd\.gpus\[\])\.memory_bytes|(limits|wsl)\.swap_bytes", CAPACITY),
    (r".*\.(temperature_c|utilization_percent)", HEAT),
    (r".*\.(free_bytes|free_files|power_mw|sm_clock_mhz)|training(\..*)?", SHARE),
    (
        r".*\.(ecc_uncorrected|nvlink_errors|nvlink_errors_per_s|out_of_memory_kills|clock_ahead_s|clock_behind_s)",
        FieldRule(ComparisonKind.TRANSIENT, absolute_tolerance=1),
    ),
    (r".*\.(processes|clock_reasons|display_active|pcie_generation|link_width|mig_instances)", TRANSIENT),
    (r"kernel_log\.driver_lines|driver\.upgraded_packages", LOG),
    (r"engine\.(containers|stopped|images)|kernel_log(\..*)?|driver\.booted_at", TRANSIENT),
    (r".*\.(pci_address|address|bridges)", TRANSIENT),
    # of the nodes of one job, one is the master
    (r"limits\.nccl", FieldRule(ComparisonKind.EQUAL, ignored_prefix="MASTER_ADDR=")),
)
"""Patterns of fields of facts and their rules: the first that matches completely. Others are compared for equality."""

FACTS_RULES = tuple((re.compile(pattern), rule) for pattern, rule in _FACTS)


def find_facts_rule(pattern: str) -> FieldRule:
    """Return the rule of a field of facts; `pattern` is its path with [] for every place in a list."""
    own = pattern.removeprefix("inside.")
    return next((rule for words, rule in FACTS_RULES if words.fullmatch(own)), EQUAL)
