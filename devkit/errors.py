"""The one exception that devkit raises on purpose, and the exit codes of its commands."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes, the same for text and JSON."""

    DONE = 0
    ANSWER_IS_NO = 1
    WRONG_INPUT = 2
    BUG = 3
    INTERRUPTED = 130


class DevkitError(Exception):
    """The user's input or set-up is wrong: printed as one line and a hint, with an exit code that is 2 by default.

    `message` says what is wrong and the value seen, lower case, without a full stop.
    `hint` says what to do about it; it may span lines.
    Findings and conflicts are values, not exceptions; anything else that is raised is a bug.
    """

    exit_code: int = ExitCode.WRONG_INPUT

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
