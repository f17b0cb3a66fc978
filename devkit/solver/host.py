"""What a plan must say of the NVIDIA Container Toolkit on its machines: known holes and faults (I6, S4)."""

from collections.abc import Iterator

from devkit.facts.values import Release
from devkit.solver.model import Machine, Vendor
from devkit.solver.question import Question


def toolkit_warnings(question: Question) -> Iterator[str]:
    """Warnings for machines whose toolkit is known; saved facts tell it, flags do not."""
    if question.vendor is not Vendor.NVIDIA:
        return
    for machine in question.machines:
        if machine.toolkit is not None:
            yield from _holes(machine, machine.toolkit, question)
            yield from _faults(machine, machine.toolkit, question)


def _holes(machine: Machine, toolkit: Release, question: Question) -> Iterator[str]:
    open_holes = [row for row in question.tables.engines.vulnerabilities if toolkit < row.fixed_in]
    if open_holes:
        closed = max(row.fixed_in for row in open_holes)
        names = ", ".join(row.id for row in open_holes[:3])
        more = f" and {len(open_holes) - 3} more" if len(open_holes) > 3 else ""
        yield (
            f"NVIDIA Container Toolkit {toolkit} of {machine.origin} has known holes ({names}{more}):"
            f" update it to {closed} or newer (I6)"
        )


def _faults(machine: Machine, toolkit: Release, question: Question) -> Iterator[str]:
    for row in question.tables.engines.faults:
        concerns = row.program == "nvidia-container-toolkit" and row.when in ("", machine.platform)
        if concerns and row.since <= toolkit < row.fixed_in:
            yield f"NVIDIA Container Toolkit {toolkit} of {machine.origin}: {row.summary}; fixed in {row.fixed_in} (S4)"
