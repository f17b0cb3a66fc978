"""Error texts as users paste them, and the check that each speaks for. Pure: text in, matches out."""

from collections.abc import Mapping

from devkit.doctor.signatures.builds import BUILDS
from devkit.doctor.signatures.cdi import CDI
from devkit.doctor.signatures.compiled import COMPILED
from devkit.doctor.signatures.cuda import CUDA
from devkit.doctor.signatures.driver import DRIVER
from devkit.doctor.signatures.engine import ENGINE
from devkit.doctor.signatures.fabric import FABRIC
from devkit.doctor.signatures.given import GIVEN
from devkit.doctor.signatures.health import LOST
from devkit.doctor.signatures.hub import HUB
from devkit.doctor.signatures.matching import search_text
from devkit.doctor.signatures.model import Match, Signature
from devkit.doctor.signatures.packages import PACKAGES
from devkit.doctor.signatures.project import PROJECT
from devkit.doctor.signatures.pulling import PULLING
from devkit.doctor.signatures.python import TORCH
from devkit.doctor.signatures.several import SEVERAL
from devkit.doctor.signatures.toolkit import TOOLKIT
from devkit.doctor.signatures.wsl import WSL
from devkit.doctor.signatures.xids import XIDS

__all__ = ["SIGNATURES", "Match", "Signature", "match_signatures"]

SIGNATURES: tuple[Signature, ...] = (
    *DRIVER,
    *LOST,
    *XIDS,
    *FABRIC,
    *WSL,
    *ENGINE,
    *PULLING,
    *TOOLKIT,
    *CDI,
    *GIVEN,
    *CUDA,
    *BUILDS,
    *TORCH,
    *PACKAGES,
    *COMPILED,
    *SEVERAL,
    *PROJECT,
    *HUB,
)
"""Every known error. Order does not matter: the more specific wins."""


def match_signatures(text: str, *, causes: Mapping[str, tuple[str, ...]] | None = None) -> tuple[Match, ...]:
    """The known errors in `text`, best first; empty where there is none.

    `causes` (code -> codes that follow from it) puts consequences behind their cause. Noise in `text`, such as time
    stamps and colours, does not matter.
    """
    return search_text(text, SIGNATURES, causes=causes)
