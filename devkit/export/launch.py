"""The command of a job: devkit finetune, through torchrun for several processes, with its exit code preserved."""

from dataclasses import fields

from devkit.facts.settings import format_flag
from devkit.workload.finetune.process import EXIT_FILE_VARIABLE
from devkit.workload.finetune.settings import FinetuneSettings

FORWARDED_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""Signals that torchrun forwards: by default, SIGUSR1 would end it.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html"""

EXIT_CODE_WRAPPER = f"""\
child='' stop=''
# Forwarded once. A signal that is trapped here, and not ignored, has its default action in the command.
trap 'trap : TERM HUP USR1; stop=TERM; [ -z "$child" ] || kill -s TERM "$child"' TERM HUP USR1
trap 'trap : INT; [ -z "$child" ] || kill -s INT "$child"' INT
# torchrun exits with 1 whatever its processes' codes are. Each writes its own into this file: 75, retry, stays 75.
{EXIT_FILE_VARIABLE}=$(mktemp) && export {EXIT_FILE_VARIABLE}
# A stop before the start: nothing is lost, and nothing has to start.
if [ -n "$stop" ]; then rm -f "${{{EXIT_FILE_VARIABLE}:-}}"; exit 75; fi
"$@" &
child=$!
if [ -n "$stop" ]; then kill -s TERM "$child"; fi
code=0; wait "$child" || code=$?
# Above 128 a signal ended either the child or only the wait for it.
while [ "$code" -gt 128 ]; do
  alive=''; if kill -0 "$child" 2>/dev/null; then alive=1; fi
  again=0; wait "$child" || again=$?
  if [ "$again" -ne 127 ]; then code=$again; fi
  if [ -z "$alive" ]; then break; fi
done
kept=$(sed -n '/^[1-9][0-9]*$/{{p;q;}}' "${{{EXIT_FILE_VARIABLE}:-/dev/null}}" 2>/dev/null)
rm -f "${{{EXIT_FILE_VARIABLE}:-}}"
# Ended by the forwarded signal itself: it had not started yet, and lost nothing.
if [ "$code" -eq 143 ] && [ -n "$stop" ]; then code=75; fi
if [ "$code" -ne 0 ]; then code=${{kept:-$code}}; fi
exit "$code"
"""
"""A POSIX sh script that may be process 1, which gets no signal that it does not trap. Its arguments are the command.

The signal is forwarded once: Slurm signals every process of the step itself, and each signal ends torchrun's wait for
its processes. The exit code is the one that the processes wrote, not run.json's: that may be an earlier run's.
"""


def build_finetune_command(settings: FinetuneSettings) -> tuple[str, ...]:
    """Build `devkit finetune` with every setting that differs from its default, in the settings' order."""
    return ("devkit", "finetune", *_build_flags(settings))


def build_node_command(settings: FinetuneSettings, *, is_distributed: bool) -> tuple[str, ...]:
    """Build the command of one node."""
    if not is_distributed:
        return build_finetune_command(settings)
    return ("sh", "-c", EXIT_CODE_WRAPPER, "devkit", "torchrun", "--no-python", *build_finetune_command(settings))


def build_torchrun_variables(*, grace_s: int) -> tuple[tuple[str, str], ...]:
    """Build torchrun's settings that are the same on every node, as variables: a release without the flag ignores them.

    `grace_s` is how long torchrun waits for its processes, which save meanwhile, before it kills them. The default of
    30 s is too short for the checkpoint of a large model.
    Source: https://github.com/pytorch/pytorch/pull/172596, https://github.com/pytorch/pytorch/issues/154849
    """
    return (("PET_SIGNALS_TO_HANDLE", FORWARDED_SIGNALS), ("PET_SHUTDOWN_TIMEOUT", str(grace_s)))


def _build_flags(settings: FinetuneSettings) -> tuple[str, ...]:
    flags: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == field.default and field.name != "output":
            continue
        flag = format_flag(field.name)
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, tuple):
            flags += [word for each in value for word in (flag, str(each))]
        else:
            flags += [flag, f"{value}"]
    return tuple(flags)
