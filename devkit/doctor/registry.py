"""Every check, in the order of the report: from the hardware up, so that causes come before consequences."""

from collections.abc import Iterable
from difflib import get_close_matches

from devkit.doctor.checks.loader import load_checks
from devkit.doctor.model import Check
from devkit.errors import DevkitError

CHECKS: tuple[Check, ...] = load_checks()

BY_CODE = {check.code: check for check in CHECKS}


def select_checks(codes: Iterable[str] = ()) -> tuple[Check, ...]:
    """Return the checks with these codes, all without any, in the report's order. Raises DevkitError for an unknown code."""
    wanted = {code.upper() for code in codes}
    if unknown := wanted - set(BY_CODE):
        code = min(unknown)
        close = get_close_matches(code, BY_CODE, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise DevkitError(f"no check has the code {code!r}", f"{hint}`devkit doctor --list` shows all codes.")
    return tuple(check for check in CHECKS if not wanted or check.code in wanted)
