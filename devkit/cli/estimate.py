"""`devkit estimate`: how much GPU memory it takes, where it fits, and what to change."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exits
from devkit.cli.estimate_flags import Flags, config_from, settings_of, settings_options
from devkit.errors import DevkitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from devkit.estimate.answer import Question
    from devkit.estimate.cards import Card
    from devkit.estimate.model import MemoryEstimate
    from devkit.estimate.prices import Prices
    from devkit.estimate.rules import Rule
    from devkit.estimate.settings import Precision
    from devkit.facts.gpu import Gpu

_FILE = click.Path(path_type=Path, dir_okay=False)
_NVML_S = 3.0
_NODES = ("/dev/nvidiactl", "/dev/dxg")
"""Device nodes of NVIDIA's driver on Linux, and of GPUs in WSL 2."""


@click.command()
@click.argument("model", required=False)
@click.option("--inference", is_flag=True, help="Generate text instead of training.")
@settings_options
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help='Does it fit there? "RTX 4090", "H100 MIG 3g.40gb".')
@click.option(
    "--facts", "facts_files", multiple=True, type=_FILE, metavar="FILE", help="A machine saved by devkit doctor."
)
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="How many tokens to train on: time and disk.")
@click.option("--prices", "price_file", type=_FILE, metavar="FILE", help="Your prices; see examples/prices.toml.")
@click.option("--rule", "rule_names", multiple=True, metavar="NAME", help="A rule of thumb beside it, such as seed:4x.")
@click.option("--exact", is_flag=True, help="Trace the real program (needs torch, takes seconds).")
@click.option("--why", metavar="TERM", help="Explain one term of the peak.")
@click.option(
    "--learn", "learn_file", is_flag=False, flag_value="", metavar="FILE", help="Draw the bounds in by a measured run."
)
@click.option("--reset", is_flag=True, help="With --learn: forget what was learned.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.pass_context
def estimate(ctx: click.Context, /, *, flags: "Mapping[str, Flags]", **asked: Any) -> None:  # noqa: ANN401 - see _Asked
    """Say how much GPU memory training or inference takes, where it fits, and what to change.

    MODEL is a known name such as llama-3.1-8b, a config.json or its folder, or a repository on the hub; or describe it
    with --hidden, --layers and so on. Nothing is downloaded but a config.json. Ends with 1 where it fits on none of the
    GPUs: those named, those of --facts, or those of this machine.
    """
    ctx.exit(_answered(_Asked(**asked), flags))


@dataclass(frozen=True)
class _Asked:
    """The command's own flags, as typed."""

    model: str | None
    inference: bool
    gpus: tuple[str, ...]
    facts_files: tuple[Path, ...]
    tokens: int | None
    price_file: Path | None
    rule_names: tuple[str, ...]
    exact: bool
    why: str | None
    learn_file: str | None
    reset: bool
    as_json: bool


def _answered(asked: _Asked, flags: "Mapping[str, Flags]") -> int:
    from devkit.estimate.answer import answer, answer_document, closed_form
    from devkit.estimate.text import answer_text, why_text

    if asked.reset or asked.learn_file is not None:
        return _learned(asked)
    question, config, learned_from = _question(asked, flags)
    found = _traced(question, config) if asked.exact else closed_form(question)
    width = shutil.get_terminal_size().columns
    if asked.why:
        click.echo(why_text(found, asked.why, width=width))
        return exits.DONE
    told = answer(question, found, learned_from=learned_from)
    if asked.as_json:
        click.echo(json.dumps(answer_document(told), indent=2, ensure_ascii=False))
    else:
        click.echo(answer_text(told, width=width))
    return exits.DONE if told.fits_somewhere else exits.ANSWER_IS_NO


def _question(asked: _Asked, flags: "Mapping[str, Flags]") -> "tuple[Question, Mapping[str, Any], str]":
    """The question, the model's config, and the file of measurements that moved bounds, "" for none."""
    from devkit.cli.estimate_learning import with_bounds
    from devkit.cli.estimate_model import config_of_model
    from devkit.estimate.answer import Question
    from devkit.estimate.config import shape_of_config

    settings = settings_of(flags, is_inference=asked.inference)
    config, name = config_of_model(asked.model, config_from(flags["shape"], model=asked.model))
    cards, learned_from = with_bounds(_cards(asked, settings.precision))
    question = Question(
        shape=shape_of_config(config, name=name),
        settings=settings,
        cards=cards,
        tokens=asked.tokens or 0,
        prices=_prices(asked.price_file) if asked.price_file else None,
        rules=_rules(asked.rule_names),
    )
    return question, config, learned_from


def _cards(asked: _Asked, precision: "Precision") -> "tuple[Card, ...]":
    """The GPUs asked about: by name, of saved machines, else of this one."""
    from devkit.estimate.cards import card_named, cards_of

    named = tuple(card_named(name, precision) for name in asked.gpus)
    if not asked.facts_files:
        return named or cards_of(_gpus_here(), precision)
    from devkit.cli.reading import loaded

    saved = (card for path in asked.facts_files for card in cards_of(loaded([path]).gpus, precision))
    return (*named, *saved)


def _gpus_here() -> "tuple[Gpu, ...]":
    """The GPUs of this machine. Without a device node of their driver there are none, and NVML is not loaded."""
    if not any(os.access(node, os.F_OK) for node in _NODES):
        return ()
    from devkit.facts.gpu import Gpu, NvmlAnswer
    from devkit.probe.host import LocalHost
    from devkit.probe.nvml import read_nvml

    found = read_nvml(LocalHost(), deadline_s=_NVML_S)
    return tuple(gpu for gpu in found.gpus if isinstance(gpu, Gpu)) if isinstance(found, NvmlAnswer) else ()


def _rules(names: tuple[str, ...]) -> "tuple[Rule, ...]":
    if not names:
        return ()
    from devkit.estimate.rules import rule_named

    return tuple(rule_named(name) for name in names)


def _prices(path: Path) -> "Prices":
    import tomllib

    from devkit.estimate.prices import prices_of

    try:
        return prices_of(tomllib.loads(path.read_text(encoding="utf-8")), origin=str(path))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", "See examples/prices.toml for one.") from None
    except ValueError as error:
        raise DevkitError(f"{path} is not TOML: {error}", "See examples/prices.toml for one.") from None


def _traced(question: "Question", config: "Mapping[str, Any]") -> "MemoryEstimate":
    """The estimate of the real program, traced in a process of its own: importing torch takes seconds."""
    import subprocess
    import sys
    from importlib.util import find_spec

    from devkit.workload.tracing.request import Request, read_estimate, request_text

    if find_spec("torch") is None:
        raise DevkitError(
            "--exact needs torch, which is not installed here", 'Install it: pip install "devkit-gpu[workload]"'
        )
    asked = request_text(Request(document=config, settings=question.settings))
    child = subprocess.run(
        [sys.executable, "-m", "devkit.workload.tracing"], input=asked, capture_output=True, text=True, check=False
    )
    if child.returncode == exits.DONE:
        return read_estimate(child.stdout)
    message, _, hint = child.stderr.strip().rpartition("\n")
    if child.returncode == exits.WRONG_INPUT:
        raise DevkitError(message, hint)
    raise RuntimeError(f"the trace ended with {child.returncode}:\n{child.stderr}")


def _learned(asked: _Asked) -> int:
    from devkit.cli.estimate_learning import forget, learn

    if asked.model is not None or bool(asked.learn_file) == asked.reset:
        raise DevkitError("--learn takes a file or --reset, and no model", "devkit estimate --learn OUTPUT/run.json")
    click.echo(learn(Path(asked.learn_file)) if asked.learn_file else forget())
    return exits.DONE
