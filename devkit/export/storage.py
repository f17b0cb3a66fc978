"""The storage of a job: models, the project with its data, checkpoints; and how large each must be."""

from pathlib import PurePosixPath

from devkit.errors import DevkitError
from devkit.export.job import JobSettings
from devkit.export.need import Need
from devkit.export.quantities import GIB, bytes_in, gibibytes
from devkit.export.task import COMPILE_CACHE, HUB_CACHE, TOKEN_FOLDER, Role, Volume
from devkit.text import human_bytes

LEAST_BYTES = 10 * GIB
"""Of new storage, where the estimate asks for less or nothing is known."""
ROOM = 1.2
"""For file systems' own books, a tokenizer, metrics: a fifth beyond what is counted."""
STATES = 3
"""`devkit finetune` asks for room for its checkpoints before the first step: the weights and two numbers for each."""
OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/local")  # noqa: S108 - named to be refused
"""Folders that every node has for itself."""


def checked_output(workspace: str, output: str) -> str:
    """The output folder inside the container, absolute. Raises DevkitError where its storage would hide something."""
    path = PurePosixPath(workspace, output)
    if ".." in path.parts:
        raise DevkitError(
            f"the run's output {output!r} leads out of the project, which is all that the job sees",
            'Name a folder in it, such as output = "tuned".',
        )
    for taken, what in ((workspace, "the project"), (HUB_CACHE, "the models"), (COMPILE_CACHE, "compiled kernels")):
        if path == PurePosixPath(taken) or path in PurePosixPath(taken).parents:
            raise DevkitError(
                f"the run's output {output!r} is where {what} would be: storage for it would hide them",
                'Name a folder of its own, such as output = "tuned".',
            )
    if path == PurePosixPath(TOKEN_FOLDER) or PurePosixPath(TOKEN_FOLDER) in path.parents:
        raise DevkitError(f"the run's output {output!r} is where the hub's token lies", 'Such as output = "tuned".')
    return str(path)


def volumes_for(
    job: JobSettings, need: Need | None, *, workspace: str, output: str, keep: int, project_bytes: int, is_local: bool
) -> tuple[Volume, ...]:
    """Raises DevkitError for storage that could not hold what goes there.

    `keep` is how many checkpoints stay, `project_bytes` what of the project is known to go along; a model that
    `is_local` lies in the project.
    """
    models = 0 if need is None or is_local else need.hub_bytes
    return (
        _volume(job, Role.MODELS, HUB_CACHE, models, "the model's weights"),
        _volume(job, Role.DATA, workspace, project_bytes, "the project, its data and models"),
        _volume(job, Role.CHECKPOINTS, output, _output_bytes(need, keep), _output_words(need, keep)),
    )


def _output_bytes(need: Need | None, keep: int) -> int:
    """Checkpoints that stay and the one being written, and the result beside them."""
    if need is None:
        return 0
    one = max(need.host.checkpoint_bytes, STATES * need.result_bytes)
    return (keep + 1) * one + need.result_bytes


def _output_words(need: Need | None, keep: int) -> str:
    size = human_bytes(need.host.checkpoint_bytes) if need is not None else ""
    return f"{keep} checkpoints of {size}, the one being written, and the result" if need is not None else ""


def _volume(job: JobSettings, role: Role, path: str, least_bytes: int, holds: str) -> Volume:
    source, asked = getattr(job, str(role)), getattr(job, f"{role}_size")
    flag = f"--{role}-size"
    _check_shared(source, f"--{role}", job.nodes)
    if asked:
        size = bytes_in(asked, flag)
        if size < least_bytes:
            raise DevkitError(
                f"{flag} {asked} is less than {holds}: {human_bytes(least_bytes)}",
                f"Give {flag} {gibibytes(round(least_bytes * ROOM))}Gi.",
            )
        return Volume(role=role, path=path, source=source, size_bytes=size, because="asked for")
    size = max(LEAST_BYTES, gibibytes(round(least_bytes * ROOM)) * GIB)
    because = f"{holds}: {human_bytes(least_bytes)}" if least_bytes else "at least; nothing is known of what goes there"
    return Volume(role=role, path=path, source=source, size_bytes=size, because=because)


def _check_shared(source: str, flag: str, nodes: int) -> None:
    """Several processes write one checkpoint, and all of them read it again."""
    path = PurePosixPath(source)
    own = next((each for each in OF_ONE_NODE if PurePosixPath(each) in (path, *path.parents)), None)
    if nodes > 1 and own is not None:
        raise DevkitError(
            f"{flag} {source} is a folder that each of the {nodes} nodes has for itself",
            "Name one on a file system that all of them share.",
        )
