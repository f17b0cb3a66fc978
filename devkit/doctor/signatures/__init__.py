"""Error texts as users paste them, and the check that each speaks for. Pure: text in, matches out."""

from collections.abc import Mapping

from devkit.doctor.signatures.cuda import CUDA
from devkit.doctor.signatures.driver import DRIVER
from devkit.doctor.signatures.engine import ENGINE
from devkit.doctor.signatures.health import GROUPS, LOST, XIDS
from devkit.doctor.signatures.matching import found_in
from devkit.doctor.signatures.model import Match, Signature
from devkit.doctor.signatures.project import HUB, PROJECT
from devkit.doctor.signatures.python import PACKAGES, TORCH
from devkit.doctor.signatures.several import SEVERAL
from devkit.doctor.signatures.toolkit import TOOLKIT
from devkit.doctor.signatures.wsl import WSL

__all__ = ["SIGNATURES", "Match", "Signature", "matches"]

_ALL: tuple[Signature, ...] = (
    *DRIVER,
    *LOST,
    *XIDS,
    *GROUPS,
    *WSL,
    *ENGINE,
    *TOOLKIT,
    *CUDA,
    *TORCH,
    *PACKAGES,
    *SEVERAL,
    *PROJECT,
    *HUB,
)
SIGNATURES: tuple[Signature, ...] = tuple(row for row in _ALL if len(row.code) == 6)
"""Every known error. Order does not matter: the more specific wins."""


def matches(text: str, *, causes: Mapping[str, tuple[str, ...]] | None = None) -> tuple[Match, ...]:
    """The known errors in `text`, best first; empty where there is none.

    `causes` (code -> codes that follow from it) puts consequences behind their cause. Noise in `text`, such as time
    stamps and colours, does not matter.
    """
    return found_in(text, SIGNATURES, causes=causes)
