"""Finds AMD GPUs by name or by LLVM target."""

import re
from functools import cache

from devkit.compat.load import Tables, tables
from devkit.facts.record import record

_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")
_NOISE = re.compile(r"\b(amd|radeon|instinct|pro|rx|graphics)\b")


@record
class NamedAmdGpu:
    """An AMD GPU as asked for: what to call it, and its LLVM target such as gfx942."""

    name: str
    target: str


def find_amd_gpu(text: str, *, known: Tables | None = None) -> NamedAmdGpu | None:
    """An AMD GPU by name, alias or target ("MI300X", "RX 7900 XTX", "gfx942"); None when nothing fits."""
    table = (known or tables()).rocm
    asked = text.strip().lower()
    if _TARGET.fullmatch(asked):
        targets = {row.target for row in table.gpus} | {
            target for row in table.indexes.values() for target in row.targets
        }
        return NamedAmdGpu(asked, asked) if asked in targets else None
    wanted = _plain(text)
    for row in table.gpus:
        if wanted and wanted in {_plain(name) for name in (row.name, *row.aliases)}:
            return NamedAmdGpu(row.name, row.target)
    return None


@cache
def _plain(text: str) -> str:
    """Lower case without makers' words and spaces, so that rx7900xtx is RX 7900 XTX."""
    spaced = re.sub(r"(?<=[a-z])(?=\d)|(?<=\d)(?=[a-z])", " ", re.sub(r"[^a-z0-9+]+", " ", text.lower()))
    return "".join(_NOISE.sub(" ", spaced).split())
