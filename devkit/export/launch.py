"""The command of a job: devkit finetune, through torchrun for several processes, with its exit code preserved."""

from dataclasses import fields

from devkit.facts.settings import format_setting
from devkit.workload.finetune.settings import FinetuneSettings

FORWARDED_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""Signals that torchrun forwards: by default, SIGUSR1 would end it.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html"""

TORCHRUN = ("torchrun", "--no-python")
LAUNCHER = ("devkit", "launch")
"""Runs a command with its signals and exit code, in an image with devkit, whose Python is not the project's."""


def build_finetune_command(settings: FinetuneSettings) -> tuple[str, ...]:
    """Build `devkit finetune` with every setting that differs from its default, in the settings' order."""
    flags: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == field.default and field.name != "output":
            continue
        flags += format_setting(FinetuneSettings, field.name, value)
    return ("devkit", "finetune", *flags)


def build_node_command(settings: FinetuneSettings, *, is_distributed: bool) -> tuple[str, ...]:
    """Build the command of one node."""
    if not is_distributed:
        return build_finetune_command(settings)
    return (*LAUNCHER, *TORCHRUN, *build_finetune_command(settings))


def wrap_command(command: tuple[str, ...], *, by_torchrun: bool, has_devkit: bool) -> tuple[str, ...]:
    """Wrap a command of the user's own: in torchrun where that is requested, and in the launcher where the image has it.

    Behind torchrun every process has its own launcher, which records the exit code that torchrun loses.
    """
    launcher = LAUNCHER if has_devkit else ()
    return (*launcher, *TORCHRUN, *launcher, *command) if by_torchrun else (*launcher, *command)


def strip_launchers(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a wrapped command as it runs where there is no devkit."""
    words = command[len(LAUNCHER) :] if command[: len(LAUNCHER)] == LAUNCHER else command
    if words[: len(TORCHRUN)] == TORCHRUN:
        return (*TORCHRUN, *strip_launchers(words[len(TORCHRUN) :]))
    return words


def build_torchrun_variables(*, grace_s: int) -> tuple[tuple[str, str], ...]:
    """Build torchrun's settings that are the same on every node, as variables: a release without the flag ignores them.

    `grace_s` is how long torchrun waits for its processes, which save meanwhile, before it kills them. The default of
    30 s is too short for the checkpoint of a large model.
    Source: https://github.com/pytorch/pytorch/pull/172596, https://github.com/pytorch/pytorch/issues/154849
    """
    return (("PET_SIGNALS_TO_HANDLE", FORWARDED_SIGNALS), ("PET_SHUTDOWN_TIMEOUT", str(grace_s)))
