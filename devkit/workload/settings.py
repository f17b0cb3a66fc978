"""What a proof is asked to do. Importable without torch."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.estimate.settings import Precision as Precision


class Depth(StrEnum):
    """How much is proved: seconds, the whole proof, or everything that takes longer."""

    QUICK = "quick"
    STANDARD = "standard"
    FULL = "full"

    @property
    def rank(self) -> int:
        """Its place in the order quick < standard < full."""
        return tuple(Depth).index(self)


@dataclass(frozen=True)
class ProofSettings:
    """The numbers of one proof. `precision` None means: by the device.

    `sentence` is learned by heart; `steps` optimizer steps do that with room to spare, `resume_steps` are
    run once straight and once interrupted in the middle. `model` is the user's own, "" for none.
    """

    sentence: str = "devkit taught this model one sentence, and here it is: proven."
    seed: int = 20250601
    rank: int = 16
    alpha: int = 32
    steps: int = 80
    learning_rate: float = 3e-3
    resume_steps: int = 40
    resume_dropout: float = 0.05
    precision: Precision | None = None
    model: str = ""

    @classmethod
    def for_depth(cls, depth: Depth, precision: Precision | None = None, model: str = "") -> "ProofSettings":
        """The settings of a depth. The quick proof trains for fewer steps, still enough to memorise."""
        return cls(steps=50 if depth is Depth.QUICK else 80, precision=precision, model=model)
