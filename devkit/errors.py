"""The one exception that devkit raises on purpose."""


class DevkitError(Exception):
    """The user's input or set-up is wrong: printed as one line and a hint, with an exit code that is 2 by default.

    `message` says what is wrong and the value seen, lower case, without a full stop.
    `hint` says what to do about it; it may span lines.
    Findings and conflicts are values, not exceptions; anything else that is raised is a bug.
    """

    exit_code = 2

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
