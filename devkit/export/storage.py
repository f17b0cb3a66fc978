"""The storage of a job: models, the project with its data, checkpoints; and how large each must be."""

from devkit.errors import DevkitError
from devkit.export.job import JobSettings
from devkit.export.need import Need
from devkit.export.quantities import GIB, bytes_in, gibibytes
from devkit.export.task import HUB_CACHE, Role, Volume
from devkit.text import human_bytes

LEAST_BYTES = 10 * GIB
"""Of new storage, where the estimate asks for less or nothing is known."""
ROOM = 1.2
"""For file systems' own books, a tokenizer, metrics: a fifth beyond what is counted."""


def volumes_for(job: JobSettings, need: Need | None, *, workspace: str, output: str) -> tuple[Volume, ...]:
    """Raises DevkitError for storage that could not hold what goes there."""
    host = need.host if need is not None else None
    kept = host.disk_bytes - host.model_bytes - host.data_bytes if host is not None else 0
    return (
        _volume(job, Role.MODELS, HUB_CACHE, host.model_bytes if host is not None else 0, "the model's weights"),
        _volume(job, Role.DATA, workspace, host.data_bytes if host is not None else 0, "the project and its data"),
        _volume(job, Role.CHECKPOINTS, output, kept, "the checkpoints kept and the one being written"),
    )


def _volume(job: JobSettings, role: Role, path: str, least_bytes: int, holds: str) -> Volume:
    source, asked = getattr(job, str(role)), getattr(job, f"{role}_size")
    flag = f"--{role}-size"
    if asked:
        size = bytes_in(asked, flag)
        if size < least_bytes:
            raise DevkitError(
                f"{flag} {asked} is less than {holds}: {human_bytes(least_bytes)}",
                f"Give {flag} {gibibytes(round(least_bytes * ROOM))}Gi.",
            )
        return Volume(role=role, path=path, source=source, size_bytes=size, because="asked for")
    size = max(LEAST_BYTES, gibibytes(round(least_bytes * ROOM)) * GIB)
    because = f"{holds}: {human_bytes(least_bytes)}" if least_bytes else "at least; nothing is known of the model"
    return Volume(role=role, path=path, source=source, size_bytes=size, because=because)
