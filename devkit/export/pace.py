"""Time: whether a run reaches its checkpoints within its limit, and writes one within the grace."""

from collections.abc import Iterator

from devkit.errors import DevkitError
from devkit.estimate.speed import seconds_for
from devkit.export.need import Need
from devkit.text import human_bytes, human_seconds
from devkit.workload.finetune.settings import FinetuneSettings

WRITE_BYTES_PER_S = 125 << 20
"""A plain network volume of a cloud, which is the least to expect.
Source: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html, the baseline of gp3."""


def seconds_per_step(need: Need | None, settings: FinetuneSettings) -> tuple[float, float] | None:
    """The shortest and the longest time of one optimizer step; None where model or GPU are not known.

    Its rows count as full: of short texts packed into rows that is so, apart they take less.
    """
    if need is None or need.card is None or need.card.flops is None:
        return None
    tokens = settings.batch * settings.sequence
    return seconds_for(tokens, need.shape, need.training, flops=need.card.flops)


def check_pace(need: Need | None, settings: FinetuneSettings, *, time_s: int) -> None:
    """Raises DevkitError where not even the fastest run comes to its first checkpoint before the time is over."""
    pace = seconds_per_step(need, settings)
    if pace is None:
        return
    steps = min(settings.save_every, settings.steps or settings.save_every)
    fastest, slowest = (steps * each for each in pace)
    if fastest <= time_s:
        return
    within = int(time_s / 2 / pace[1])
    shorter = f"Set save_every = {within} in the settings of the run, or give" if within else "Give"
    raise DevkitError(
        f"a checkpoint every {steps} steps comes after {human_seconds(fastest)} at the earliest, and --time ends the"
        f" run after {human_seconds(time_s)}",
        f"{shorter} --time {_hours(2 * slowest)}.",
    )


def pace_notes(need: Need | None, settings: FinetuneSettings, *, time_s: int, grace_s: int) -> Iterator[str]:
    """What may come too late, and what is lost then."""
    if need is not None:
        size = need.host.checkpoint_bytes
        write_s = size / WRITE_BYTES_PER_S
        if write_s > grace_s:
            yield (
                f"one checkpoint is {human_bytes(size)}: a plain network volume takes {human_seconds(write_s)} for it,"
                f" and --grace is {human_seconds(grace_s)}; what is not whole by then is lost back to the one before"
            )
    pace = seconds_per_step(need, settings)
    if pace is None:
        return
    if settings.save_every * pace[1] > time_s:
        yield (
            f"a checkpoint every {settings.save_every} steps may come only after"
            f" {human_seconds(settings.save_every * pace[1])}: a smaller save_every loses less"
        )
    if settings.steps is not None and settings.steps * pace[0] > time_s:
        yield (
            f"{settings.steps} steps take {human_seconds(settings.steps * pace[0])} at least, longer than --time: the"
            " same job goes on where it stopped when it is started again"
        )


def _hours(seconds: float) -> str:
    return f"{max(1, -(-int(seconds) // 3600))}h"
