"""How a base model is to lie in memory. Importable without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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

    @classmethod
    def in_files(cls, config: Mapping[str, Any]) -> "Quantisation":
        """How the weights are kept on disk, by the config.json beside them."""
        how = config.get("quantization_config") or {}
        if how.get("load_in_4bit"):
            return cls.NF4
        return cls.INT8 if how.get("load_in_8bit") else cls.NONE


def is_shared_out_packed(in_files: Quantisation, method: Method, *, dora: bool) -> bool:
    """Whether weights are packed already when processes share them out, so that each reads all of them onto its device.

    Those that are packed in their files, and those that DoRA takes the lengths of when it is put on them.
    """
    is_to_be_packed = Quantisation.of_method(method) is not Quantisation.NONE
    return in_files is not Quantisation.NONE or (is_to_be_packed and dora)


class Reading(StrEnum):
    """Where the weights of a base are once it is loaded."""

    ONTO_DEVICE = "onto the device"
    MAPPED = "mapped"
    """In their files, which are mapped into memory: they reach devices when they are handed out."""
    NOWHERE = "nowhere"
    """The model has its shape, and waits for the process that reads them."""


@dataclass(frozen=True, kw_only=True)
class ModelChoices:
    """One base on one device. `device` is named as torch does, `attention` as transformers does.

    `precision` is that of computing: weights that are not quantised are kept in it, too.
    `double_quantisation` also quantises the scales of 4-bit weights, which saves 0.4 bits of each. `is_shared_out` says
    that FSDP2 will keep a part of each weight on each process, `reading` who of them reads the weights.
    """

    precision: Precision = Precision.FP32
    device: str = "cpu"
    quantisation: Quantisation = Quantisation.NONE
    double_quantisation: bool = True
    is_shared_out: bool = False
    reading: Reading = Reading.ONTO_DEVICE
    attention: str = "sdpa"
