"""The rows about base images and what builds on them."""

from devkit.compat.rows import Row
from devkit.facts.record import keyword_record
from devkit.facts.values import Release


@keyword_record
class PythonImage(Row):
    """An official Python image."""

    tag: str
    python: str
    glibc: Release
    machines: tuple[str, ...]


@keyword_record
class SystemImage(Row):
    """A system that images are built on. `tags` are how tags name it; `python` is its own, "" for none."""

    name: str
    tags: tuple[str, ...]
    glibc: Release
    python: str
    machines: tuple[str, ...]


@keyword_record
class ImageTool(Row):
    """A program that builds an image's contents, in the version that devkit was tried with."""

    name: str
    version: str


@keyword_record
class CudaImage(Row):
    """The nvidia/cuda images of one CUDA release on one system."""

    cuda: Release
    system: str
    glibc: Release
    python: str
    machines: tuple[str, ...]
    may_vanish: bool = False


@keyword_record
class WithdrawnTag(Row):
    """An image tag that does not exist, and what to use instead."""

    tag: str
    problem: str
    instead: str


@keyword_record
class ImageLife(Row):
    """When images of a CUDA release or of a CUDA major got their last update.

    `name` is "12.8.0" or "11"; `ended` is a month (2025-03); `instead` what is kept in their place.
    """

    name: str
    ended: str
    instead: str
