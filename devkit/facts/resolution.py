"""A project's packages as uv resolves them: what it is given, and what it answers."""

from devkit.facts.values import Unknown, record

TORCH_FAMILY = ("torch", "torchvision", "torchaudio")
"""Packages of which every release is built for one torch: the plan brings them from torch's own index."""


@record
class RequirementSources:
    """The requirements as the image's installer gets them.

    `files` are paths relative to the project, with their text; `lists` are those of them that uv is given, the others are
    included by these. `options` are uv's besides, such as --extra and --group. `lines` are requirements that devkit
    writes out. `unchecked` are packages whose own requirements cannot be read, because they come from a repository.
    """

    files: tuple[tuple[str, str], ...] = ()
    lists: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lists or self.lines)


@record
class ResolutionRequest:
    """What is resolved besides the project's requirements, and for which Python and machine.

    `constraints` limit versions and install nothing, `requirements` are installed too. `glibc` is that of the image, ""
    where it is unknown. `relaxed` are packages whose versions in the project's files do not count.
    """

    python: str
    machine: str
    glibc: str = ""
    constraints: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    relaxed: tuple[str, ...] = ()


@record
class Resolved:
    """Every package with its version. `from_source` are those without a wheel for this Python and machine.

    `unread` are those whose own requirements could not be read without running their code.
    """

    packages: tuple[tuple[str, str], ...]
    from_source: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@record
class Refused:
    """There is no resolution, and uv's reason for it."""

    reason: str


Resolution = Resolved | Refused | Unknown
"""Unknown where uv could not look: without a network, for example."""
