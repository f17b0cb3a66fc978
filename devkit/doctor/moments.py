"""How far apart two moments are that facts name in ISO 8601. Nobody here looks at a clock."""

import re
from calendar import timegm

DAY_S = 86_400

_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:Z|([+-])(\d\d):?(\d\d))?)?",
)


def seconds_between(earlier: str, later: str) -> int | None:
    """Seconds from the first moment in `earlier` to that in `later`; None where either names none.

    A date alone is its midnight, and a time without a zone is taken for UTC.
    """
    start, end = _seconds(earlier), _seconds(later)
    return None if start is None or end is None else end - start


def _seconds(text: str) -> int | None:
    found = _MOMENT.search(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    sign, zone_hours, zone_minutes = found.groups()[6:]
    ahead_s = (int(zone_hours or 0) * 60 + int(zone_minutes or 0)) * 60 * (-1 if sign == "-" else 1)
    return timegm((year, month, day, hour, minute, second)) - ahead_s
