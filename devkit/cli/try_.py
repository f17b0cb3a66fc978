"""`devkit try`: a real model learns a name, and nothing is left."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from devkit.cli.output import print_next, print_wrapped
from devkit.cli.terminal import show_status
from devkit.errors import DevkitError, ExitCode
from devkit.text import format_bytes, format_duration, join_words

if TYPE_CHECKING:
    from devkit.solver.plan import Plan
    from devkit.verify.tryout import TryOut


@click.command("try")
def try_() -> int:
    """Teach a real model a name, and leave nothing: a throw-away environment, an answer before and after LoRA.

    Installs torch, transformers, peft and accelerate into a temporary folder, unless the active environment has them, and
    removes it. uv's cache keeps the downloads. Exit code 1: the model did not learn the name.
    """
    from devkit.probe.package_indexes import list_own_indexes
    from devkit.verify.process import interrupt_on_termination
    from devkit.verify.tryout import MODEL, open_tryout, remove_folder, remove_leftovers, require_index
    from devkit.workload.finetune.files import find_snapshot
    from devkit.workload.interpreter import require_workload_python

    python = ""
    with interrupt_on_termination():
        for each in remove_leftovers():
            print_wrapped(f"Removed what a killed run had left: {each}.")
        with suppress(DevkitError):
            python = require_workload_python("devkit try").executable
        if not (python and find_snapshot(MODEL)):
            require_index(list_own_indexes())
        plan = None if python else _make_plan()
        with open_tryout(python, plan) as tryout:
            try:
                has_learned = _go_through(tryout)
            finally:
                print_wrapped(f"Nothing is left but uv's cache: removed {remove_folder(tryout.folder)}.")
    if not has_learned:
        return ExitCode.ANSWER_IS_NO
    print_next("devkit init", where="in your project")
    return ExitCode.DONE


def _make_plan() -> "Plan":
    """Plan torch for this machine and this Python. Raises DevkitError where nothing fits."""
    from devkit.cli.plan_options import PlanOptions, build_request_from_options, solve_request
    from devkit.solver.plan import Plan

    python = ".".join(map(str, sys.version_info[:2]))
    answer = solve_request(build_request_from_options(PlanOptions(python=python)))
    if not isinstance(answer, Plan):
        raise DevkitError(f"no build of torch fits this machine and Python {python}", f"devkit plan --python {python}")
    return answer


def _go_through(tryout: "TryOut") -> bool:
    """Install, fetch, ask, tune, ask again. Returns whether the answer has the name."""
    from devkit.verify.tryout import ANSWER, CHATS, MODEL, QUESTION

    tryout.require_space()
    _announce(tryout)
    if tryout.plan:
        with _step("install the environment"):
            tryout.install()
    with _step(f"fetch {MODEL}"):
        tryout.fetch()
    with _step(f"ask it: {QUESTION}"):
        answer = tryout.ask("--model", MODEL)
    print_wrapped(answer, indent="    ")
    with _step(f"fine-tune it on {len(CHATS)} chats with LoRA"):
        done = tryout.tune()
    print_wrapped(done, indent="    ")
    with _step("ask again"):
        answer = tryout.ask("--adapter", str(tryout.adapter))
    print_wrapped(answer, indent="    ")
    return ANSWER in answer


def _announce(tryout: "TryOut") -> None:
    """Say what is downloaded and installed, and where."""
    from devkit.probe.uv_resolver import find_uv, find_uv_cache
    from devkit.verify.tryout import MODEL

    uv, sizes = find_uv(), tryout.sizes
    print_wrapped(f"A real model, {MODEL}, learns a name on this machine.")
    if tryout.plan is None:
        print_wrapped(f"It trains with {tryout.python}, which has torch. Nothing is installed.")
    if tryout.wheels:
        print_wrapped(f"Takes torch from {join_words(tryout.wheels)}, as its index does not answer.")
    elif tryout.plan:
        print_wrapped(f"Takes torch {tryout.plan.torch} ({tryout.plan.variant}) from {tryout.plan.torch_index}.")
    if sizes.download:
        cache = find_uv_cache(uv) if uv else "its cache"
        print_wrapped(f"Downloads at most {format_bytes(sizes.download)}, less what uv already has in {cache}.")
    print_wrapped(f"Works in {tryout.folder}, with up to {format_bytes(sizes.disk)}, and removes it.")
    click.echo()


@contextmanager
def _step(name: str) -> Iterator[None]:
    """Show a step while it runs, and what it took."""
    began = time.monotonic()
    with show_status(name):
        yield
    click.echo(f"{name} ({format_duration(time.monotonic() - began)})")
