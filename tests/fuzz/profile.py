"""How much is tried: the same examples every time, so that a failure is met again."""

from hypothesis import HealthCheck, settings

FUZZ = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SLOWEST_S = 2.0
"""For one text of a few thousand characters, on a machine with other work."""
