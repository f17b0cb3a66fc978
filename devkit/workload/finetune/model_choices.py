"""How a base model is to lie in memory. Importable without torch."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.estimate.settings import Method, Precision


class Quantisation(StrEnum):
    """How the base's linear layers are kept: as they are computed with, in 4 bits, or in 8."""

    NONE = "none"
    NF4 = "nf4"
    INT8 = "int8"

    @classmethod
    def of_method(cls, method: Method) -> "Quantisation":
        """What a way of training keeps its base in."""
        return {Method.QLORA: cls.NF4, Method.INT8_LORA: cls.INT8}.get(method, cls.NONE)


@dataclass(frozen=True, kw_only=True)
class ModelChoices:
    """One base on one device. `device` is named as torch does, `attention` as transformers does.

    `precision` is that of computing: weights that are not quantised are kept in it, too.
    `double_quantisation` also quantises the scales of 4-bit weights, which saves 0.4 bits of each. `is_shared_out` says
    that FSDP2 will keep a part of each weight on each process.
    """

    precision: Precision = Precision.FP32
    device: str = "cpu"
    quantisation: Quantisation = Quantisation.NONE
    double_quantisation: bool = True
    is_shared_out: bool = False
    attention: str = "sdpa"
