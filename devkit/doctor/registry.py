"""Every check, in the order of the report: from the hardware up, so that causes come before consequences."""

from devkit.doctor.checks.loader import load_checks
from devkit.doctor.model import Check

CHECKS: tuple[Check, ...] = load_checks()

BY_CODE = {check.code: check for check in CHECKS}
