"""Programs that failed, in their own words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ProgramFailure:
    """A failed program that devkit ran or whose log it read.

    `words` are its last error lines, the newest last; `read_from` is the command or the file that they were read from.
    """

    program: str
    words: tuple[str, ...]
    read_from: str = ""
    status: int = 1
    """Its exit status; below zero the signal that ended it."""
    works_without: tuple[str, ...] = ()
    """The variables without which it works, by trial: all of them have to go."""
    set_in: tuple[str, ...] = ()
    """Lines of start-up files that set these variables, as file:line."""
    settings: tuple[str, ...] = ()
    """Settings of the program whose value its words repeat, as "key in file", and settings files that they name."""
    needed_by: str = ""
    """The file of the project that needs the program; "" for one that GPU containers need."""

    @property
    def message(self) -> str:
        """Its last words."""
        return self.words[-1] if self.words else f"it ended with status {self.status} and no message"
