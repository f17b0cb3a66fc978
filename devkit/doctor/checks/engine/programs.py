"""Checks of the engine's programs: why they do not start, and the docker command with the variables of this shell."""

from collections.abc import Iterator

from devkit.doctor.checks.cascades import CONTAINER_START_CODES
from devkit.doctor.model import check
from devkit.doctor.preconditions import require, require_some
from devkit.doctor.problems import Problem
from devkit.doctor.program_failures import report_failure
from devkit.facts.model import EngineFailure, Facts

_NOT_EXECUTABLE = 126
"""Source: POSIX, Shell Command Language, 2.8.2."""


@check("ENG018", causes=("ENG001",))
def engine_programs_start(facts: Facts) -> Iterator[Problem]:
    if isinstance(facts.engine, EngineFailure):
        yield from map(report_failure, require(facts.engine.said))


@check("ENG019", causes=("ENG001", "ENG007", "ENG011", "ENG017", *CONTAINER_START_CODES))
def docker_works_with_these_variables(facts: Facts) -> Iterator[Problem]:
    docker = require_some(require(facts.clients).named("docker"), "the docker command is not installed here")
    failure = require(docker.failure)
    is_command = failure is not None and (failure.status == _NOT_EXECUTABLE or failure.program == docker.path)
    if failure is not None and (failure.works_without or is_command):
        yield report_failure(failure)
