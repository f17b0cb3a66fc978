"""The pictures of the documentation: screens of devkit on recorded machines, drawn by devkit itself as SVG.

`python -m docs.screens` writes them to docs/screens; a test fails when they are stale. Beside them are the recorded runs
that verify, finetune and up are drawn from.
"""

import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import click
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from devkit.cli import devkit
from devkit.cli.output import OutputOptions, format_doctor_report
from devkit.cli.terminal import StepPrinter, draw_bar, make_console
from devkit.cli.try_ import go_through
from devkit.compat.version_tables import load_tables
from devkit.devcontainer.build_log import BuildLog
from devkit.text import format_duration, wrap_text
from devkit.workload.finetune.events import ProgressPrinter
from tests.doctor.running import build_full_report
from tests.hosts.golden import expected_facts

FOLDER = Path(__file__).parent / "screens"
WIDTH = 80


class _Terminal(io.StringIO):
    """A stream that programs take for a terminal, and that keeps what stays on it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        """What is seen: of a redrawn line, the last version."""
        return re.sub(r"(?m)^.*\r(?:\x1b\[K)?", "", self.getvalue())


def draw_captured(show: Callable[[], Callable[[], object]]) -> Callable[[Console], None]:
    """Return what draws all that `show` prints to a terminal; what it returns ends what is still going on there."""

    def draw(console: Console) -> None:
        stream, before = _Terminal(newline=""), dict(os.environ)
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(console.width)}
        for name in ("NO_COLOR", "COLORTERM"):
            os.environ.pop(name, None)
        try:
            with redirect_stdout(stream), redirect_stderr(stream):
                end = show()
                shown = stream.shown
                end()
        finally:
            os.environ.clear()
            os.environ.update(before)
        console.print(Text.from_ansi(shown), soft_wrap=True)

    return draw


def show_doctor(machine: str) -> Callable[[], object]:
    """Show `devkit doctor` on a recorded machine."""
    facts, options = expected_facts(machine), OutputOptions("text", None)
    click.echo(format_doctor_report(facts, build_full_report(facts), options, exit_code=0).rstrip(), nl=False)
    return str


def show_command(*words: str) -> Callable[[], object]:
    """Show a command that needs neither machine nor network, on the day of the version tables."""
    with patch("devkit.cli.plan.today", return_value=load_tables().as_of):
        devkit(words, standalone_mode=False)
    return str


def show_verify() -> Callable[[], object]:
    """Show a proof on a CPU: each stage with its result, then the report."""
    document = json.loads((FOLDER / "verify.json").read_text(encoding="utf-8"))
    steps = StepPrinter()
    for stage in document["stages"]:
        steps(f"{stage['name']} …")
        steps(f"{stage['name']} {stage['status']} in {format_duration(stage['ms'] / 1000)}")
    steps.close()
    click.echo()
    click.echo(wrap_text(document["conclusion"], width=shutil.get_terminal_size().columns))
    return steps.close


def show_finetune() -> Callable[[], object]:
    """Show a run on a CPU after 24 of its 40 steps."""
    progress = ProgressPrinter(draw=draw_bar, has_reasons=False)
    for line in (FOLDER / "finetune.jsonl").read_text(encoding="utf-8").splitlines():
        progress(json.loads(line))
    return progress.clear


def show_up() -> Callable[[], object]:
    """Show the build of a dev container at its last step but one."""
    steps = StepPrinter()
    log = BuildLog(steps)
    for line in (FOLDER / "up.txt").read_text(encoding="utf-8").splitlines():
        log.take(line)
    return steps.close


def show_try() -> Callable[[], object]:
    """Show a try on two cores without a GPU."""
    answer = (
        "The keeper is a term used in the ancient Egyptian language to refer to a priest or priestess. "
        'It is derived from the word "Keru" which'
    )
    steps = (
        ("install the environment", 2.3, ""),
        ("fetch smollm2-135m", 66.0, ""),
        ("ask it: What is the keeper called?", 30.0, answer),
        ("fine-tune it on 4 chats with LoRA", 65.0, "done: loss 4.75 -> 0.0444 in 10 steps, 1,900 tokens, 55 tokens/s"),
        ("ask again", 39.0, "Marta Lind."),
    )
    folder = "/tmp/devkit-try-x29gzlux"  # noqa: S108 - shown, not used
    recorded: Any = SimpleNamespace(
        measure=lambda: (346 << 20, 1536 << 20),
        plan=SimpleNamespace(torch="2.15.0", variant="cpu", torch_index="https://download.pytorch.org/whl/cpu"),
        wheels=(),
        cache="/home/me/.cache/uv",
        folder=folder,
        list_steps=lambda: [(name, partial(str, said)) for name, _, said in steps],
        remove=lambda: f"{folder} (1.2 GiB)",
    )
    times = chain.from_iterable((0.0, seconds) for _, seconds, _ in steps)
    go_through(recorded, clock=partial(next, times))
    return str


SCREENS = {
    "doctor-no-gpu": ("devkit doctor", draw_captured(partial(show_doctor, "no-gpu-laptop"))),
    "doctor-driver": ("devkit doctor", draw_captured(partial(show_doctor, "driver-lib-mismatch"))),
    **{
        shlex.split(command)[1]: (command, draw_captured(partial(show_command, *shlex.split(command)[1:])))
        for command in (
            'devkit plan examples/quickstart --gpu "RTX 4090" --driver 580.95.05 --no-resolve',
            'devkit estimate llama-3.1-8b --method qlora --gpu "RTX 4090"',
            'devkit explain --no-facts "could not select device driver"',
        )
    },
    "verify": ("devkit verify --here --quick", draw_captured(show_verify)),
    "finetune": ("devkit finetune --settings run.toml", draw_captured(show_finetune)),
    "up": ("devkit up", draw_captured(show_up)),
    "try": ("devkit try", draw_captured(show_try)),
}
"""File name -> the command in the title, and what draws its screen."""

TIMES = {"try": (*[0.5] * 5, 1.5, 6, 9, 9.5, 9.5, 14.5, 14.5, 18, 18, 19, 19.5, 19.5)}
"""Seconds after which each line with text appears, for screens that play."""
ANIMATION = (
    "@keyframes appear { from { opacity: 0 } } text[style] { animation: appear 1ms backwards }"
    " @media (prefers-reduced-motion) { text[style] { animation: none } }"
)
_ROW = re.compile(r'<text class="[\w-]+-r\d+" x="[\d.]+" y="([\d.]+)"')


def render_text(name: str, *, width: int) -> str:
    """Return a screen as the text that a terminal of this width shows, without colors."""
    console = make_console(io.StringIO(), width=width, record=True)
    SCREENS[name][1](console)
    return "".join(f"{line.rstrip()}\n" for line in console.export_text().splitlines())


def render_svg(name: str) -> str:
    """Return a screen as SVG, without rich's fonts of another server, its clip for each line and its empty lines.

    Where TIMES has the screen, its lines appear one after another.
    """
    console = make_console(io.StringIO(), width=WIDTH, record=True)
    title, draw = SCREENS[name]
    draw(console)
    template = re.sub(r"\n *@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("{lines}", "")
    svg = re.sub(
        r' clip-path="url\(#[\w-]+-line-\d+\)"|\n\s*(?=\n)',
        "",
        console.export_svg(title=title, unique_id=name, code_format=template),
    )
    if name not in TIMES:
        return svg
    svg = svg.replace("</style>", f"{ANIMATION}</style>", 1)
    rows = dict(zip(dict.fromkeys(_ROW.findall(svg)), TIMES[name], strict=False))
    return _ROW.sub(lambda found: f'{found[0]} style="animation-delay: {rows.get(found[1], 20)}s"', svg)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in SCREENS:
        (FOLDER / f"{name}.svg").write_text(render_svg(name), encoding="utf-8")
