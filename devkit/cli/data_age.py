"""How old the version tables are that an answer rests on."""

from devkit.text import count_of

OLD_DAYS = 180
"""Drivers and wheels appear every few weeks: after half a year a newest release is no longer the newest."""


def today() -> str:
    """The date of today, in UTC and ISO 8601."""
    import time

    return time.strftime("%Y-%m-%d", time.gmtime())


def age_days(as_of: str, *, on: str) -> int:
    """Days from `as_of` to the date `on`, both ISO 8601; 0 where the clock is behind."""
    from datetime import date

    return max((date.fromisoformat(on) - date.fromisoformat(as_of)).days, 0)


def age_warning(as_of: str, *, on: str) -> str:
    """What to warn of on the date `on`, "" while the data is fresh."""
    days = age_days(as_of, on=on)
    if days <= OLD_DAYS:
        return ""
    return f"the version tables are {count_of(days, 'day')} old (as of {as_of}): `devkit data update` takes newer ones"
