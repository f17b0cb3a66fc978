"""The long tests on engines: a part of them with every commit, all of them with DEVKIT_LONG=1."""

from tests.amount import LONG, TURN

PARTS = (
    frozenset({"test_podman.py"}),
    frozenset({"test_editors.py", "test_repaired.py"}),
    frozenset({"test_profiles.py", "test_the_gpus_that_the_task_counts_are_passed_on"}),
    frozenset({"test_locked_image.py"}),
    frozenset({"test_bundle.py", "test_compose_starts_the_same_container"}),
)
"""Files and tests, in parts that take about as long. Few changes touch what they prove: each commit runs one part."""

TRIED = TURN % len(PARTS)


def has(name: str) -> bool:
    """Whether the file or test of that name runs this time; those that are not long always do."""
    return LONG or name in PARTS[TRIED] or not any(name in part for part in PARTS)


def told() -> str:
    """Which of them run, and how to run the same ones again."""
    return "all" if LONG else f"part {TRIED}: {', '.join(sorted(PARTS[TRIED]))} (again with DEVKIT_TURN={TURN})"
