"""The command of a job as words: devkit finetune, torchrun before it for several processes, and the exit code kept."""

from dataclasses import fields
from enum import StrEnum

from devkit.facts.said import flag_of
from devkit.workload.finetune.settings import FinetuneSettings

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""What torchrun hands on: without being told, SIGUSR1 would end it.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html"""

KEEP_CODE = """\
# torchrun leaves with 1 whatever its processes' codes are: run.json tells preempted (75, try again) from failed.
record=$1; shift
"$@" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null' TERM HUP USR1
trap 'kill -INT "$child" 2>/dev/null' INT
code=0; wait "$child" || code=$?
# A signal ends `wait` and not the child.
while kill -0 "$child" 2>/dev/null; do code=0; wait "$child" || code=$?; done
if [ "$code" -ne 0 ] && grep -qs '"status": "preempted"' "$record"; then exit 75; fi
exit "$code"
"""
"""POSIX sh, as process 1 too. Its first word is run.json's path, the others are the command."""


def finetune_words(settings: FinetuneSettings) -> tuple[str, ...]:
    """`devkit finetune` with every setting that differs from its default, in the settings' order."""
    return ("devkit", "finetune", *_flags(settings))


def command_words(settings: FinetuneSettings, *, is_distributed: bool) -> tuple[str, ...]:
    """What one node runs."""
    if not is_distributed:
        return finetune_words(settings)
    keeping = ("sh", "-c", KEEP_CODE, "devkit", f"{settings.output}/run.json")
    return (*keeping, "torchrun", f"--signals-to-handle={SIGNALS}", "-m", "devkit", "finetune", *_flags(settings))


def _flags(settings: FinetuneSettings) -> tuple[str, ...]:
    words: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == field.default and field.name != "output":
            continue
        flag = flag_of(field.name)
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, tuple):
            words += [word for each in value for word in (flag, str(each))]
        else:
            words += [flag, str(value) if isinstance(value, StrEnum) else f"{value}"]
    return tuple(words)
