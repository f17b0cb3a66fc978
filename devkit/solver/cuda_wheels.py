"""Packages whose wheels are built for one major of CUDA, which has to be that of the plan's torch."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from devkit.compat.version_tables import CudaWheel, Tables
from devkit.facts.values import Release


def list_cuda_limits(cuda: str | None, tables: Tables) -> tuple[str, ...]:
    """List constraints that leave out wheels for a newer major of CUDA than the plan's, where the machines run no newer.

    `cuda` is the plan's, the newest that the machines run with any torch that may be chosen.
    """
    if cuda is None:
        return ()
    major = Release.parse(cuda).major
    return tuple(
        f"{newer.name}<{newer.version}"
        for older, newer in pairwise(tables.stack.cuda_wheels)
        if older.name == newer.name and older.cuda <= major < newer.cuda
    )


def find_foreign_wheels(versions: Mapping[str, str], cuda: str | None, tables: Tables) -> Iterator[CudaWheel]:
    """Find the packages of a resolution whose wheels are built for another major of CUDA than `cuda`, None for none."""
    for name in dict.fromkeys(row.name for row in tables.stack.cuda_wheels if row.name in versions):
        version = Release.parse(versions[name])
        rows = [row for row in tables.stack.cuda_wheels if row.name == name and row.version <= version]
        newest = max(rows, key=lambda row: row.version, default=None)
        if newest is not None and (cuda is None or newest.cuda != Release.parse(cuda).major):
            yield newest


def describe_foreign_wheel(row: CudaWheel, versions: Mapping[str, str]) -> str:
    """Say for which CUDA a package's wheel is built."""
    return f"the wheel of {row.name} {versions[row.name]} is built for CUDA {row.cuda}"
