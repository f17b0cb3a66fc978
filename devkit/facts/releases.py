"""What a text leaves to the package index: a name that a library lacks, and requirements that contradict each other."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A package that may own a missing name: the module to look in, the package on the index, and its installed version.

    `version` is "" where neither the text nor this machine says it, and `source` where it was read.
    """

    module: str
    package: str
    version: str = ""
    source: str = ""


@dataclass(frozen=True)
class MissingName:
    """A name that a library lacks, as an error says.

    `name` is the name, the attribute or the argument, "" for a whole module. `owner` is the class or function that lacks it,
    as `Class`, `Class.method` or `function`, "" for a name of a module. An attribute
    of a module is there only if the module imports or defines it. `folders` are the site-packages of the frames, `frame` is
    the file of the last one, and `callers` those outside the library, the last first, up to one of the program. `python` is the
    Python of the program, such as 3.11: releases that are not for it do not help.
    """

    name: str
    owner: str = ""
    is_argument: bool = False
    is_attribute: bool = False
    candidates: tuple[Candidate, ...] = ()
    folders: tuple[str, ...] = ()
    frame: str = ""
    callers: tuple[str, ...] = ()
    python: str = ""


@dataclass(frozen=True)
class NameHistory:
    """The releases of a package that have a missing name, as their wheels show.

    `added` is the first release that has it after those without, `last` the last one before those without, and `removed`
    the first of these; "" where no release shows it. `until` is the release after `added` that removed it again, and
    `first` the one before `last` that brought it, read where the installed release is unknown. `is_sure` says that
    both sides were read whole, `has_gap` that releases between `last` and `removed` were not. `caller` is the package
    that asks for the name, and `caller_release` its first release that no longer does.
    """

    package: str
    installed: str = ""
    added: str = ""
    last: str = ""
    removed: str = ""
    first: str = ""
    until: str = ""
    is_sure: bool = False
    has_gap: bool = False
    evidence: tuple[str, ...] = ()
    caller: str = ""
    caller_release: str = ""


@dataclass(frozen=True)
class Contradiction:
    """Requirements that a package installer cannot meet together: the user's own, and packages in whatever release fits.

    `python` is the Python of the text, such as 3.11, "" where it does not say.
    """

    kept: tuple[str, ...]
    free: tuple[str, ...]
    python: str = ""


@dataclass(frozen=True)
class SolvedSet:
    """Releases that uv finds for all packages of a contradiction, such as torch==2.1.0. `moved` are those it was free to choose."""

    releases: tuple[str, ...]
    moved: tuple[str, ...]
    python: str
