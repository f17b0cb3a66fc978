"""Facts of machines that `devkit doctor --save-facts` saved."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from devkit.errors import DevkitError
from devkit.facts.machine import Container
from devkit.facts.model import Facts, InvalidFacts, parse_facts
from devkit.reading import MAX_DOCUMENT_BYTES, read_named_file

_HOW_TO_SAVE = "Save facts on the machine in question: devkit doctor --save-facts FILE"


def load_saved_facts(paths: Sequence[Path]) -> Facts:
    """Load a saved machine, or a host with its container where two files are given, in any order.

    Raises DevkitError for a file that is not there or holds no facts, and for two of the same side.
    """
    facts = [_load(path) for path in paths]
    if len(facts) == 1:
        return facts[0]
    # False sorts first: the host before what runs on it.
    host, inside, *more = sorted(facts, key=_is_inside)
    if more or _is_inside(host) or not _is_inside(inside):
        raise DevkitError(
            "two facts files must describe a host and a container on it",
            "Save one outside and one inside the container: devkit doctor --save-facts FILE",
        )
    return replace(host, inside=inside)


def _is_inside(facts: Facts) -> bool:
    return isinstance(facts.container, Container)


def _load(path: Path) -> Facts:
    try:
        return parse_facts(read_named_file(path, MAX_DOCUMENT_BYTES, _HOW_TO_SAVE))
    except InvalidFacts as error:
        raise DevkitError(f"{path} does not contain the facts of a machine: {error}", _HOW_TO_SAVE) from error
