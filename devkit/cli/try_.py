"""`devkit try`: a real model learns a name, and nothing is left."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from devkit.cli.command import Command
from devkit.cli.output import print_next, print_wrapped
from devkit.cli.terminal import show_status
from devkit.errors import DevkitError, ExitCode
from devkit.text import format_bytes, format_duration, join_words

if TYPE_CHECKING:
    from devkit.solver.plan import Plan
    from devkit.verify.tryout import TryOut


@click.command("try", cls=Command)
def try_() -> int:
    """Teach a real model a name in a temporary environment, show its answers before and after LoRA, and leave nothing behind.

    Installs torch, transformers, peft and accelerate into a temporary folder, unless the active environment has them, and
    removes it. uv's cache keeps the downloads. Exits with 1 if the model did not learn the name.
    """
    from devkit.probe.package_indexes import list_own_indexes, require_addresses
    from devkit.verify.process import interrupt_on_termination
    from devkit.verify.tryout import MODEL, open_tryout, remove_leftovers, require_index
    from devkit.workload.finetune.files import find_snapshot
    from devkit.workload.interpreter import require_workload_python

    python = ""
    require_addresses()
    with interrupt_on_termination():
        for each in remove_leftovers():
            print_wrapped(f"Removed the files that a killed run had left: {each}.")
        with suppress(DevkitError):
            python = require_workload_python("devkit try").executable
        if not (python and find_snapshot(MODEL)):
            require_index(list_own_indexes())
        plan = None if python else _make_plan()
        with open_tryout(python, plan) as tryout:
            return go_through(tryout)


def _make_plan() -> "Plan":
    """Plan torch for this machine and this Python. Raises DevkitError where nothing fits."""
    from devkit.cli.plan_options import build_request_from_settings, solve_request
    from devkit.render.devkit_toml import ProjectSettings
    from devkit.solver.plan import Plan

    python = ".".join(map(str, sys.version_info[:2]))
    answer = solve_request(build_request_from_settings(ProjectSettings(python=python)))
    if not isinstance(answer, Plan):
        raise DevkitError(f"no build of torch fits this machine and Python {python}", f"devkit plan --python {python}")
    return answer


def go_through(tryout: "TryOut", *, clock: Callable[[], float] = time.monotonic) -> int:
    """Say what will be downloaded and where, take the steps, and remove everything. Returns the exit code."""
    from devkit.verify.tryout import ANSWER, MODEL

    said = ""
    try:
        download, disk = tryout.measure()
        print_wrapped(f"A real model, {MODEL}, learns a name on this machine.")
        if tryout.plan is None:
            print_wrapped(f"It trains with {tryout.python}, which has torch.")
        elif tryout.wheels:
            print_wrapped(f"Uses torch from {join_words(tryout.wheels)}, because its index does not respond.")
        else:
            print_wrapped(f"Takes torch {tryout.plan.torch} ({tryout.plan.variant}) from {tryout.plan.torch_index}.")
        if download:
            print_wrapped(
                f"Downloads at most {format_bytes(download)}, minus the files that uv already has in {tryout.cache}."
            )
        print_wrapped(f"Works in {tryout.folder}, with up to {format_bytes(disk)}, and removes it.")
        click.echo()
        for name, step in tryout.list_steps():
            began = clock()
            with show_status(name):
                said = step()
            print_wrapped(f"{name} ({format_duration(clock() - began)})")
            if said:
                print_wrapped(said, indent="    ")
    finally:
        print_wrapped(f"Only uv's cache remains: removed {tryout.remove()}.")
    if ANSWER not in said:
        return ExitCode.ANSWER_IS_NO
    print_next("devkit init", where="in your project")
    return ExitCode.DONE
