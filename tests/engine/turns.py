"""The long tests on engines: a part of them with every commit, all of them with DEVKIT_LONG=1."""

from tests.amount import LONG, TURN

PARTS = (
    frozenset({"test_podman.py"}),
    frozenset({"test_editors.py", "test_two_projects_run_side_by_side"}),
    frozenset({"test_profiles.py", "test_the_gpus_that_the_task_counts_are_passed_on"}),
    frozenset({"test_verify_on_the_host_builds_starts_proves_and_cleans_up"}),
    frozenset({"test_bundle.py"}),
    frozenset(
        {
            "test_matrix.py",
            "test_the_older_engine_passes_on_the_gpu_as_the_newest_does",
            "test_the_older_engine_passes_on_one_gpu",
            "test_a_base_image_whose_user_holds_uid_1000_gives_way",
        }
    ),
    frozenset({"test_repaired.py", "test_compose_starts_the_same_container"}),
    frozenset({"test_locked_image.py"}),
    frozenset({"test_dependencies.py", "test_frameworks.py"}),
    frozenset(
        {
            "test_verify_leaves_a_container_that_ran_before",
            "test_verify_leaves_no_container_when_interrupted",
            "test_opening.py",
        }
    ),
)
"""Files and tests, in parts that take about as long. Few changes touch what they prove: each commit runs one part.

What else takes long and has one turn in five has none in that of the bundles, the fifth.
"""

TRIED = TURN % len(PARTS)


def has(name: str) -> bool:
    """Whether the file or test of that name runs this time; those that are not long always do."""
    return LONG or name in PARTS[TRIED] or not any(name in part for part in PARTS)


def told() -> str:
    """Which of them run, and how to run the same ones again."""
    return "all" if LONG else f"part {TRIED}: {', '.join(sorted(PARTS[TRIED]))} (again with DEVKIT_TURN={TURN})"
