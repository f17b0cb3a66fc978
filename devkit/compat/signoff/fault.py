"""What speaks against a refreshed table."""

from devkit.facts.record import record


@record
class Fault:
    """One reason not to use a table. `row` names the row, "" for the table as a whole.

    With `may_be_forced` it only differs from what ships with devkit, and whoever knows better may take it all the same.
    """

    table: str
    row: str
    says: str
    may_be_forced: bool = False

    def __str__(self) -> str:
        where = f"{self.table}: {self.row}" if self.row else self.table
        return f"{where}: {self.says}"
