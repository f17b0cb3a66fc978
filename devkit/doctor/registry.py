"""Every check, in the order of the report: from the hardware up, so that causes come before consequences."""

from collections.abc import Iterable

from devkit.doctor.checks.loader import build_unknown_code_error, load_checks
from devkit.doctor.model import Check

CHECKS: tuple[Check, ...] = load_checks()

BY_CODE = {check.code: check for check in CHECKS}


def select_checks(codes: Iterable[str] = ()) -> tuple[Check, ...]:
    """Return the checks with these codes, all without any, in the report's order. Raises DevkitError for an unknown code."""
    wanted = {code.upper() for code in codes}
    if unknown := wanted - set(BY_CODE):
        raise build_unknown_code_error(min(unknown))
    return tuple(check for check in CHECKS if not wanted or check.code in wanted)
