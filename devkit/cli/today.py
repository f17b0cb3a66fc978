"""The one clock of the commands: version tables carry a day, and the solver reads none."""


def today() -> str:
    """The day it is in UTC, ISO 8601."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()
