"""The solver's own terms: the question with its tables, the candidates, and what speaks against one."""

from collections.abc import Callable
from functools import cached_property, wraps
from typing import TypeVar, cast

from devkit.compat.version_tables import RocmIndex, TableRow, Tables, TorchRelease, TorchWheel, WheelIndex
from devkit.facts.values import ComputeCapability, Release, record
from devkit.solver.plan import Machine, Request, Vendor
from devkit.solver.request import parse_torch

AnswerT = TypeVar("AnswerT")


@record
class Problem:
    """A request whose vendor is settled, with the tables to answer it from."""

    request: Request
    vendor: Vendor
    tables: Tables

    @cached_property
    def remembered(self) -> dict[tuple[object, ...], object]:
        """Answers already given about a candidate: the stages ask the same again and again."""
        return {}

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """Those that the plan computes on: those with a GPU of the vendor, or all when none has one."""
        match self.vendor:
            case Vendor.NVIDIA:
                found = [machine for machine in self.request.machines if machine.driver or machine.gpus]
            case Vendor.ROCM:
                found = [machine for machine in self.request.machines if machine.amd_gpus]
            case Vendor.CPU:
                found = []
        return tuple(found) or self.request.machines

    @cached_property
    def gpus(self) -> tuple[tuple[str, ComputeCapability], ...]:
        """Every NVIDIA GPU that must be served, each model once; empty for another plan."""
        if self.vendor is not Vendor.NVIDIA:
            return ()
        return tuple(dict.fromkeys(gpu for machine in self.machines for gpu in machine.gpus))

    @cached_property
    def amd_gpus(self) -> tuple[tuple[str, str], ...]:
        """Every AMD GPU that must be served, each model once; empty for another plan."""
        if self.vendor is not Vendor.ROCM:
            return ()
        return tuple(dict.fromkeys(gpu for machine in self.machines for gpu in machine.amd_gpus))

    @cached_property
    def spoken_gpus(self) -> tuple[str, ...]:
        """Every GPU that must be served, in words."""
        return (
            *(describe_gpu(name, capability) for name, capability in self.gpus),
            *(describe_amd_gpu(name, target) for name, target in self.amd_gpus),
        )

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """The processors of every machine, those without a GPU too: the image must start there."""
        return tuple(sorted({machine.machine for machine in self.request.machines})) or ("x86_64",)


@record
class Candidate:
    """One torch build: a release from one wheel index."""

    release: TorchRelease
    index: WheelIndex
    wheels: tuple[TorchWheel, ...]
    """The known CUDA wheels, one per processor that must compute on a GPU."""

    @property
    def cuda(self) -> Release | None:
        """The CUDA it is built with; None for the other builds."""
        return self.index.cuda

    @property
    def rocm(self) -> Release | None:
        """The ROCm it is built with; None for the other builds."""
        return self.index.rocm if isinstance(self.index, RocmIndex) else None

    @property
    def built_for(self) -> str:
        """What it computes with, in words: "CUDA 13.0", "ROCm 7.2", "the CPU"."""
        if self.cuda:
            return f"CUDA {self.cuda}"
        return f"ROCm {self.rocm}" if self.rocm else "the CPU"

    def __str__(self) -> str:
        return f"torch {self.release.version}+{self.index.label}"


def memoize(ask: Callable[[Candidate, Problem], AnswerT]) -> Callable[[Candidate, Problem], AnswerT]:
    """Ask once per candidate of a question."""

    @wraps(ask)
    def remembered(candidate: Candidate, question: Problem) -> AnswerT:
        key = (ask, candidate.release.version.text, candidate.index.label)
        if key not in question.remembered:
            question.remembered[key] = ask(candidate, question)
        return cast(AnswerT, question.remembered[key])

    return remembered


def describe_gpu(name: str, capability: ComputeCapability) -> str:
    """A GPU with its compute capability, once: "Tesla P40 (6.1)", "sm_86"."""
    return name if name == capability.sm else f"{name} ({capability})"


def describe_amd_gpu(name: str, target: str) -> str:
    """An AMD GPU with its target, once: "AMD Instinct MI300X (gfx942)", "gfx942"."""
    return name if name == target else f"{name} ({target})"


@record
class Objection:
    """What speaks against a candidate. It refuses only when it rests on rows that were read at their source."""

    rule: str
    says: str
    source: str
    refuses: bool = True

    @classmethod
    def by(cls, row: TableRow, rule: str, says: str) -> "Objection":
        """An objection that rests on one row: an inferred row may warn, never refuse."""
        return cls(rule, says, row.source[0], refuses=not row.is_inferred)


def list_candidates(question: Problem) -> tuple[Candidate, ...]:
    """Every torch build that the request's own words allow, newest first."""
    wanted, variant = parse_torch(question.request.torch)
    found = []
    for release in question.tables.torch.releases:
        if wanted and wanted not in (str(release.version), release.minor):
            continue
        found += [
            Candidate(release, index, _wheels(release, index.label, question))
            for index in _indexes(release, question)
            if variant in ("", index.label) and _has_cuda(index, question.request.cuda)
        ]
    return tuple(sorted(found, key=lambda each: (each.release.version, each.cuda or Release.parse("0")), reverse=True))


def _indexes(release: TorchRelease, question: Problem) -> list[WheelIndex]:
    """The indexes that hold a release for the vendor."""
    match question.vendor:
        case Vendor.NVIDIA:
            return [question.tables.torch.indexes[label] for label in release.variants]
        case Vendor.ROCM:
            row = question.tables.rocm.releases.get(release.version)
            return [question.tables.rocm.indexes[label] for label in row.variants] if row else []
        case Vendor.CPU:
            return [question.tables.torch.indexes["cpu"]]


def _has_cuda(index: WheelIndex, wanted: str | None) -> bool:
    if wanted is None or index.cuda is None:
        return True
    numbers = Release.parse(wanted).numbers
    return index.cuda.numbers[: len(numbers)] == numbers[: len(index.cuda.numbers)]


def _wheels(release: TorchRelease, label: str, question: Problem) -> tuple[TorchWheel, ...]:
    rows = question.tables.torch.wheels
    machines = dict.fromkeys(machine.machine for machine in question.machines)
    return tuple(rows[key] for machine in machines if (key := (release.minor, label, machine)) in rows)
