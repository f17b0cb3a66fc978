"""The pictures of the documentation: screens of devkit on recorded machines, drawn by devkit itself as SVG.

`python -m docs.screens` writes them to docs/screens; a test fails when they are stale.
"""

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from devkit.cli.output import draw_report
from devkit.cli.terminal import make_console
from devkit.doctor.report.lines import UNICODE_MARKS
from tests.doctor.running import build_full_report
from tests.hosts.golden import expected_facts

FOLDER = Path(__file__).parent / "screens"
WIDTH = 80


def draw_doctor(machine: str) -> Callable[[Console], None]:
    """Return what draws `devkit doctor` on a recorded machine."""

    def draw(console: Console) -> None:
        facts = expected_facts(machine)
        draw_report(console, facts, build_full_report(facts), marks=UNICODE_MARKS, is_verbose=False)

    return draw


SCREENS = {
    "doctor-healthy": ("devkit doctor", draw_doctor("ubuntu-4090-ok")),
    "doctor-no-gpu": ("devkit doctor", draw_doctor("no-gpu-laptop")),
    "doctor-driver": ("devkit doctor", draw_doctor("driver-lib-mismatch")),
    "doctor-toolkit": ("devkit doctor", draw_doctor("toolkit-missing")),
}
"""File name -> the command in the title, and what draws its screen."""


def render_text(name: str, *, width: int) -> str:
    """Return a screen as the text that a terminal of this width shows, without colors."""
    console = make_console(io.StringIO(), width=width, record=True)
    SCREENS[name][1](console)
    return "".join(f"{line.rstrip()}\n" for line in console.export_text().splitlines())


def render_svg(name: str) -> str:
    """Return a screen as SVG."""
    console = make_console(io.StringIO(), width=WIDTH, record=True)
    title, draw = SCREENS[name]
    draw(console)
    return console.export_svg(title=title, unique_id=name)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in SCREENS:
        (FOLDER / f"{name}.svg").write_text(render_svg(name), encoding="utf-8")
