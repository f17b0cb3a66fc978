"""The command of a job as words: devkit finetune, torchrun before it for several processes, and the exit code kept."""

from dataclasses import fields
from enum import StrEnum

from devkit.facts.settings import format_flag
from devkit.workload.finetune.process import EXIT_FILE_VARIABLE
from devkit.workload.finetune.settings import FinetuneSettings

FORWARDED_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""What torchrun hands on: without being told, SIGUSR1 would end it.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html"""

EXIT_CODE_WRAPPER = f"""\
child='' asked=''
# Handed on once. What is handled here, and not ignored, has its default in the command.
trap 'trap : TERM HUP USR1; asked=TERM; [ -z "$child" ] || kill -s TERM "$child"' TERM HUP USR1
trap 'trap : INT; [ -z "$child" ] || kill -s INT "$child"' INT
# torchrun leaves with 1 whatever its processes' codes are. Each writes its own into this file: 75, try again, stays 75.
{EXIT_FILE_VARIABLE}=$(mktemp) && export {EXIT_FILE_VARIABLE}
# Asked before it began: nothing is lost, and nothing has to begin.
if [ -n "$asked" ]; then rm -f "${{{EXIT_FILE_VARIABLE}:-}}"; exit 75; fi
"$@" &
child=$!
if [ -n "$asked" ]; then kill -s TERM "$child"; fi
code=0; wait "$child" || code=$?
# Above 128 a signal ended either the child or only the waiting for it.
while [ "$code" -gt 128 ]; do
  alive=''; if kill -0 "$child" 2>/dev/null; then alive=1; fi
  again=0; wait "$child" || again=$?
  if [ "$again" -ne 127 ]; then code=$again; fi
  if [ -z "$alive" ]; then break; fi
done
kept=$(sed -n '/^[1-9][0-9]*$/{{p;q;}}' "${{{EXIT_FILE_VARIABLE}:-/dev/null}}" 2>/dev/null)
rm -f "${{{EXIT_FILE_VARIABLE}:-}}"
# Ended by the very signal that was handed on: it had not begun yet, and lost nothing.
if [ "$code" -eq 143 ] && [ -n "$asked" ]; then code=75; fi
if [ "$code" -ne 0 ]; then code=${{kept:-$code}}; fi
exit "$code"
"""
"""POSIX sh, as process 1 too, which gets no signal that it does not trap. Its arguments are the command.

The signal is handed on once: Slurm tells every process of the step by itself, and torchrun ends its own wait for its
processes at each one it gets. What the processes wrote counts, and not run.json: an earlier run may have left that.
"""


def build_finetune_command(settings: FinetuneSettings) -> tuple[str, ...]:
    """`devkit finetune` with every setting that differs from its default, in the settings' order."""
    return ("devkit", "finetune", *_flags(settings))


def build_node_command(settings: FinetuneSettings, *, is_distributed: bool) -> tuple[str, ...]:
    """What one node runs."""
    if not is_distributed:
        return build_finetune_command(settings)
    return ("sh", "-c", EXIT_CODE_WRAPPER, "devkit", "torchrun", "-m", "devkit", "finetune", *_flags(settings))


def build_torchrun_variables(*, grace_s: int) -> tuple[tuple[str, str], ...]:
    """torchrun's own settings that are the same on every node: as variables, which a release without the flag ignores.

    `grace_s` is how long it waits for its processes, which save meanwhile, before it kills them: without being told
    30 s, too short for the checkpoint of a large model.
    Source: https://github.com/pytorch/pytorch/pull/172596, https://github.com/pytorch/pytorch/issues/154849
    """
    return (("PET_SIGNALS_TO_HANDLE", FORWARDED_SIGNALS), ("PET_SHUTDOWN_TIMEOUT", str(grace_s)))


def _flags(settings: FinetuneSettings) -> tuple[str, ...]:
    words: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == field.default and field.name != "output":
            continue
        flag = format_flag(field.name)
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, tuple):
            words += [word for each in value for word in (flag, str(each))]
        else:
            words += [flag, str(value) if isinstance(value, StrEnum) else f"{value}"]
    return tuple(words)
