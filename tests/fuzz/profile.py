"""How much is tried: the same few examples every time in CI, many others with DEVKIT_FUZZ=2000."""

import os

from hypothesis import HealthCheck, settings

ASKED_FOR = os.environ.get("DEVKIT_FUZZ", "")
EXAMPLES = int(ASKED_FOR) if ASKED_FOR else 25
FUZZ = settings(
    max_examples=EXAMPLES,
    derandomize=not ASKED_FOR,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NAME = f"{EXAMPLES} examples each, {'new ones' if ASKED_FOR else 'the same every time'}"
SLOWEST_S = 2.0
"""For one text of a few thousand characters, on a machine with other work."""
