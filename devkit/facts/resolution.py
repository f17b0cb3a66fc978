"""A project's packages as uv resolves them: what it is given, and what it answers."""

import re

from devkit.facts.values import Unknown, record

TORCH_FAMILY = ("torch", "torchvision", "torchaudio")
"""torch, and the packages of which every wheel is built for one build of it; they come from its own index.

Source: https://pytorch.org/get-started/locally/.
"""


@record
class RequirementSources:
    """The requirements as the image's installer gets them.

    `files` are paths relative to the project, with their text; `lists` are those of them that uv is given, the others are
    included by these. `options` are uv's besides, such as --extra and --group. `lines` are requirements that devkit
    writes out. `unchecked` are packages that come from a URL: they are not fetched to see what they need.
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
    """A request to resolve the project's requirements and these, for one Python and machine.

    `constraints` limit versions and install nothing, `requirements` are installed too. `glibc` is that of the image, ""
    where it is unknown. `relaxed` are packages whose versions in the project's files do not count. With `is_alone` none
    of these files does, and without `follows` only the requirements themselves are resolved, not what they need.
    """

    python: str
    machine: str
    glibc: str = ""
    constraints: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    relaxed: tuple[str, ...] = ()
    is_alone: bool = False
    follows: bool = True


@record
class Resolved:
    """Every package with its version. `from_source` are those without a wheel for this Python and machine.

    `unread` says of which packages the requirements were not read, and why.
    """

    packages: tuple[tuple[str, str], ...]
    from_source: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@record
class Refused:
    """There is no resolution: uv's reason in short, and all of it."""

    reason: str
    details: str = ""

    def mentions(self, *words: str) -> bool:
        """Return whether uv's reason has to do with one of these."""
        text = self.details or self.reason
        return any(re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text) for word in words)


Resolution = Resolved | Refused | Unknown
"""Unknown where uv could not look: without a network, for example."""
