"""What may stand in a Dockerfile or YAML as it is, and a plan's reasons as comments."""

import re
import textwrap

from devkit.errors import DevkitError
from devkit.solver.model import Plan

_PLAIN = {
    "base image": re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII),
    "Python version": re.compile(r"\d+\.\d+", re.ASCII),
    "version": re.compile(r"[A-Za-z0-9][\w.+!-]*", re.ASCII),
    "package name": re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII),
    "wheel index": re.compile(r"https?://[\w.:/@%+~-]+", re.ASCII),
    "digest": re.compile(r"sha256:[0-9a-f]{64}"),
    "devkit URL": re.compile(r"[\w.:/@%+~#=-]+", re.ASCII),
}


def plain(kind: str, value: str) -> str:
    """The value itself. Raises DevkitError when it could not stand in a file as it is."""
    if not _PLAIN[kind].fullmatch(value):
        raise DevkitError(f"{value!r} cannot be a {kind}", "Check the value in devkit.toml and on the command line.")
    return value


def check_plan(plan: Plan) -> None:
    """Raise DevkitError for a plan with a value that could not stand in a file as it is."""
    plain("base image", plan.base_image)
    plain("Python version", plan.python)
    plain("wheel index", plan.torch_index)
    plain("version", plan.torch)
    for name, version in plan.packages:
        plain("package name", name)
        plain("version", version)


def reason_comment(plan: Plan, field: str) -> str:
    """Why a field has its value, as the text of a comment; lines after the first begin with `# `."""
    found = next((reason for reason in plan.reasons if reason.field == field), None)
    text = f"{field} {found.value}: {found.because}" if found else f"{field}: chosen with the rest of the plan"
    return "\n# ".join(textwrap.wrap(text, width=110, break_long_words=False, break_on_hyphens=False))
