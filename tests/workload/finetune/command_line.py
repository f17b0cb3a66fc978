"""`devkit finetune` as it is typed, and the numbers that a run in a process of its own has told."""


def finetune_words(*more, **settings):
    """The words of the command with these settings as flags; one flag more is one word more."""
    flags = (word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value)))
    return ["finetune", "--json", *flags, *more]


def losses(run):
    return [each["loss"] for each in run.events("step")]


def norms(run):
    return [each["gradient_norm"] for each in run.events("step")]
