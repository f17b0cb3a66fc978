"""From a project to the question that its versions answer: its choices, its machines, and what its files ask for."""

from dataclasses import replace
from typing import TYPE_CHECKING

from devkit.cli.container_flags import selection_of
from devkit.cli.selection import request_from
from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies

if TYPE_CHECKING:
    from devkit.render.project import Project
    from devkit.solver.model import Conflict, Machine, Plan, Request


def request_of_project(
    project: "Project", *, facts: tuple[str, ...] = (), machines: "tuple[Machine, ...]" = ()
) -> "Request":
    """What to solve for a project. Raises DevkitError for input that cannot be a request.

    Machines: those of the saved facts; else the one that devkit.toml describes; else `machines`; else this machine.
    """
    selection = selection_of(project.choices, facts)
    if machines and not facts and not selection.describes_a_machine:
        # What stands in for the machines here is replaced: reading this one would only cost time.
        request = request_from(replace(selection, machine=machines[0].machine))
        return replace(request, machines=machines, policy=project.choices.policy)
    return replace(request_from(selection), policy=project.choices.policy)


def answer_to(request: "Request", dependencies: Dependencies = NO_DEPENDENCIES) -> "Plan | Conflict":
    """What the solver says, by the version tables, in a project with these dependencies."""
    from devkit.compat.load import tables
    from devkit.solver.project import solve_project

    return solve_project(request, dependencies, tables())
