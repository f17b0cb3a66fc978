"""The solver's own terms: the question with its tables, the candidates, and what speaks against one."""

from dataclasses import dataclass
from functools import cached_property

from devkit.compat.load import Tables
from devkit.compat.rows import Row, TorchRelease, TorchWheel, WheelIndex
from devkit.facts.values import ComputeCapability, Release
from devkit.solver.model import Machine, Request, Vendor
from devkit.solver.request import torch_wanted


@dataclass(frozen=True)
class Question:
    """A request whose vendor is settled, with the tables to answer it from."""

    request: Request
    vendor: Vendor
    tables: Tables

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """Those that the plan computes on: all for the CPU; for NVIDIA those with a GPU, or all when none has one."""
        with_gpu = tuple(machine for machine in self.request.machines if machine.driver or machine.gpus)
        return with_gpu if with_gpu and self.vendor is Vendor.NVIDIA else self.request.machines

    @cached_property
    def gpus(self) -> tuple[tuple[str, ComputeCapability], ...]:
        """Every GPU that must be served, each model once; empty for a CPU plan."""
        if self.vendor is not Vendor.NVIDIA:
            return ()
        return tuple(dict.fromkeys(gpu for machine in self.machines for gpu in machine.gpus))

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """The processors of every machine, those without a GPU too: the image must start there."""
        return tuple(sorted({machine.machine for machine in self.request.machines})) or ("x86_64",)


@dataclass(frozen=True)
class Candidate:
    """One torch build: a release from one wheel index. `cuda` is None for the CPU build."""

    release: TorchRelease
    index: WheelIndex
    wheels: tuple[TorchWheel, ...]
    """The known wheels, one per processor that must compute on a GPU."""

    @property
    def cuda(self) -> Release | None:
        """The CUDA it is built with."""
        return self.index.cuda

    def __str__(self) -> str:
        return f"torch {self.release.version}+{self.index.label}"


def spoken_gpu(name: str, capability: ComputeCapability) -> str:
    """A GPU with its compute capability, once: "Tesla P40 (6.1)", "sm_86"."""
    return name if name == capability.sm else f"{name} ({capability})"


@dataclass(frozen=True)
class Objection:
    """What speaks against a candidate. It refuses only when it rests on rows that were read at their source."""

    rule: str
    says: str
    source: str
    refuses: bool = True

    @classmethod
    def by(cls, row: Row, rule: str, says: str) -> "Objection":
        """An objection that rests on one row: an inferred row may warn, never refuse."""
        return cls(rule, says, row.source[0], refuses=not row.is_inferred)


def candidates(question: Question) -> tuple[Candidate, ...]:
    """Every torch build that the request's own words allow, newest first."""
    wanted, variant = torch_wanted(question.request.torch)
    found = []
    for release in question.tables.torch.releases:
        if wanted and wanted not in (str(release.version), release.minor):
            continue
        labels = release.variants if question.vendor is Vendor.NVIDIA else ("cpu",)
        for label in labels:
            index = question.tables.torch.indexes[label]
            if (not variant or variant == label) and _has_cuda(index, question.request.cuda):
                found.append(Candidate(release, index, _wheels(release, label, question)))
    return tuple(sorted(found, key=lambda each: (each.release.version, each.cuda or Release.read("0")), reverse=True))


def _has_cuda(index: WheelIndex, wanted: str | None) -> bool:
    if wanted is None or index.cuda is None:
        return True
    numbers = Release.read(wanted).numbers
    return index.cuda.numbers[: len(numbers)] == numbers[: len(index.cuda.numbers)]


def _wheels(release: TorchRelease, label: str, question: Question) -> tuple[TorchWheel, ...]:
    rows = question.tables.torch.wheels
    machines = dict.fromkeys(machine.machine for machine in question.machines)
    return tuple(rows[key] for machine in machines if (key := (release.minor, label, machine)) in rows)
