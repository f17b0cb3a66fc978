"""Build steps, from what BuildKit, the legacy builder and Podman print."""

import pytest

from devkit.devcontainer.build_log import BuildLog, StepEnd

BUILDKIT = """\
#0 building with "default" instance using docker driver
#1 [dev internal] load build definition from Dockerfile
#1 transferring dockerfile: 5.1kB done
#1 DONE 0.0s
#5 [dev 1/3] FROM docker.io/library/python:3.12-slim
#5 DONE 0.0s
#6 [dev 2/3] RUN groupadd --system venv     && python3 -m venv /opt/venv
#6 CACHED
#7 [dev prepared 3/3] RUN --mount=type=cache,target=/root/.cache pip install torch==9.9.9
#7 0.345 Collecting torch
#7 1.250 ERROR: No matching distribution found for torch==9.9.9
#7 ERROR: process "/bin/sh -c pip install torch==9.9.9" did not complete successfully: exit code: 1
------
 > [dev prepared 3/3] RUN pip install torch==9.9.9:
1.250 ERROR: No matching distribution found for torch==9.9.9
------
failed to solve: process "/bin/sh -c pip install torch==9.9.9" did not complete successfully: exit code: 1
"""
LEGACY = """\
Step 1/2 : FROM debian
 ---> 0123456789ab
Step 2/2 : RUN echo built
 ---> Using cache
 ---> ba9876543210
"""
PODMAN = """\
STEP 1/2: FROM debian
STEP 2/2: RUN false
Error: building at STEP "RUN false": while running runtime: exit status 1
"""


def read(text, *, is_failed):
    seen = []
    log = BuildLog(lambda step: seen.append((step.name, step.end)))
    for line in text.splitlines():
        log.take(line)
    log.close(is_failed=is_failed)
    return log, seen


def test_each_instruction_is_reported_when_it_begins_and_when_it_ends():
    log, seen = read(BUILDKIT, is_failed=True)
    assert seen == [
        ("1/3 FROM docker.io/library/python:3.12-slim", None),
        ("1/3 FROM docker.io/library/python:3.12-slim", StepEnd.DONE),
        ("2/3 RUN groupadd --system venv && python3 -m venv /opt/venv", None),
        ("2/3 RUN groupadd --system venv && python3 -m venv /opt/venv", StepEnd.CACHED),
        ("3/3 RUN pip install torch==9.9.9", None),
        ("3/3 RUN pip install torch==9.9.9", StepEnd.FAILED),
    ]
    assert log.failed is not None
    assert log.failed.output == ["Collecting torch", "ERROR: No matching distribution found for torch==9.9.9"]
    assert log.lines == BUILDKIT.splitlines()


@pytest.mark.parametrize(
    ("text", "is_failed", "ends"),
    [
        pytest.param(LEGACY, False, [StepEnd.DONE, StepEnd.CACHED], id="the legacy builder"),
        pytest.param(PODMAN, True, [StepEnd.DONE, StepEnd.FAILED], id="Podman"),
    ],
)
def test_builders_without_numbers_end_a_step_with_the_next(text, is_failed, ends):
    log, seen = read(text, is_failed=is_failed)
    assert [step.end for step in log.steps] == ends
    assert len(seen) == 2 * len(ends)


def test_a_build_that_was_cut_off_leaves_its_step_open():
    log, _ = read("#5 [2/3] RUN sleep 100", is_failed=True)
    assert [step.end for step in log.steps] == [None]
