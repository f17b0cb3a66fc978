"""What the workload left behind, for `devkit doctor` to judge: a report of verify, the folder of a finetune run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.facts.model import Facts, TrainingRun


@dataclass(frozen=True)
class LeftBehind:
    """The files that were named; None for those that were not."""

    verification: Path | None
    run: Path | None

    def added_to(self, facts: "Facts") -> "Facts":
        """The facts with what the files say. Raises DevkitError for a file that is not what it should be."""
        if self.verification is not None:
            from devkit.cli.verify import read_report
            from devkit.probe.verification import verification_of

            facts = replace(facts, verification=verification_of(read_report(self.verification)))
        if self.run is not None:
            facts = replace(facts, training=_training_run(self.run))
        return facts


def _training_run(folder: Path) -> "TrainingRun":
    from devkit.facts.values import Unknown
    from devkit.probe.host import LocalHost
    from devkit.probe.training_run import read_training_run

    found = read_training_run(LocalHost(), str(folder))
    if isinstance(found, Unknown):
        raise DevkitError(found.reason, "Name the folder that devkit finetune --output was given.")
    return found
