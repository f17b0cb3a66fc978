"""A plan and the project's own dev container, as changes of files."""

from devkit.render.adopt.adoption import Adoption, adoption_of
from devkit.render.adopt.existing import Existing
from devkit.render.artifact import Artifact
from devkit.render.change import Change, changes_for
from devkit.render.lock import lock_artifact
from devkit.render.project import Project, own_settings
from devkit.solver.model import Machine, Plan


def adopted_changes(
    project: Project, existing: Existing, plan: Plan, machines: tuple[Machine, ...]
) -> tuple[tuple[Change, ...], Adoption]:
    """What making the project's own dev container fit the plan would change. Reads the disk, writes nothing.

    Raises: DevkitError for files that cannot be read or do not parse.
    """
    adoption = adoption_of(project.root, plan, machines, existing.lock)
    repaired = dict(existing.lock.repaired)
    for made in adoption.made:
        repaired[made.path] = tuple(sorted({*repaired.get(made.path, ()), made.code}))
    texts = [Artifact(path, content) for path, content in sorted(adoption.texts.items())]
    lock = lock_artifact(plan, (), machines, repaired)
    return changes_for(project.root, [lock], [*own_settings(project), *texts], adopts=True), adoption
