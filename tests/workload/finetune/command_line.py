"""`devkit finetune` as it is typed, and the numbers that a run in a process of its own has told."""

from devkit.facts.settings import format_flag, format_setting
from devkit.workload.finetune.settings import FinetuneSettings


def finetune_words(*more, **settings):
    """The words of the command with these settings as flags; one flag more is one word more."""
    flags = (word for name, value in settings.items() for word in format_setting(FinetuneSettings, name, value))
    return ["finetune", "--json", *flags, *more]


def unless_given(words, **settings):
    """These settings, without those that the words set."""
    return {name: value for name, value in settings.items() if format_flag(name) not in words}


def losses(run):
    return [each["loss"] for each in run.events("step")]


def norms(run):
    return [each["gradient_norm"] for each in run.events("step")]
