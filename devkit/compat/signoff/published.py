"""What was published once does not change: a table that says otherwise is wrong, or the shipped one was."""

from collections.abc import Iterator
from typing import Any

from devkit.compat.load import TABLES
from devkit.compat.rows import Confidence
from devkit.compat.signoff.fault import Fault
from devkit.compat.signoff.shape import row_name
from devkit.compat.table import Document

LASTING: dict[tuple[str, str], tuple[str, ...]] = {
    ("driver", "toolkit"): ("cuda", "linux_driver", "windows_driver"),
    ("driver", "family"): ("linux_driver", "windows_driver"),
    ("driver", "branch"): ("cuda",),
    ("driver", "windows_branch"): ("cuda",),
    ("driver", "forward"): ("cuda",),
    ("driver", "capability"): ("first_cuda", "last_cuda", "first_branch", "last_branch", "generic_wheels_from_cuda"),
    ("gpus", "gpu"): ("capability", "forward"),
    ("torch", "release"): ("glibc", "default_variant"),
    ("torch", "wheel"): ("sass", "ptx"),
    ("torch", "index"): ("cuda", "url"),
    ("rocm", "index"): ("rocm", "url", "targets"),
    ("rocm", "gpu"): ("target",),
    ("stack", "bitsandbytes"): ("cudas", "cpu", "aarch64"),
    ("stack", "library"): ("sass", "ptx"),
    ("stack", "feature"): ("capability",),
    ("images", "python_image"): ("python", "machines"),
    ("images", "cuda_image"): ("python", "glibc", "machines"),
}
"""Fields of published things. An end that nobody knew yet (None) may still be set."""


def published_faults(name: str, document: Document, *, shipped: Document) -> Iterator[Fault]:
    """Where table `name` goes back on what ships with devkit. All of it may be forced: the shipped row may be wrong.

    An inferred row may change freely: it was a guess.
    """
    for array in TABLES[name].arrays():
        lasting = LASTING.get((name, array.name))
        if lasting is None:
            continue
        now = {_key(row, array.unique): row for row in document[array.name]}
        for number, before in enumerate(shipped[array.name], start=1):
            if before["confidence"] == Confidence.INFERRED:
                continue
            called, after = row_name(array, before, number), now.get(_key(before, array.unique))
            if after is None:
                yield Fault(name, called, "the shipped table has it, this one does not", True)
            else:
                yield from (Fault(name, called, says, True) for says in _changes(before, after, lasting))


def _changes(before: dict[str, Any], after: dict[str, Any], lasting: tuple[str, ...]) -> Iterator[str]:
    for field in lasting:
        if field in before and after.get(field) != before[field]:
            yield f"{field} is {after.get(field)!r}; the shipped table says {before[field]!r}"
    if after["confidence"] == Confidence.INFERRED:
        yield f"it is inferred; the shipped table calls it {before['confidence']}"


def _key(row: dict[str, Any], unique: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(row[field]) for field in unique)
