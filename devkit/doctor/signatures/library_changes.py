"""What releases of Python libraries brought and removed, as far as it is known without reading them, and who wants it.

`library_changes.txt` has a line for each release: the library, "added" or "removed", the release, and the names: of
classes and functions, `Class.method`, `Class(argument)`, `module:name` where a name left that module alone, full names of
modules, and `model:type` of what transformers loads. It has what public threads asked for; `devkit.probe.release_names`
reads every other name. `library_classes.txt` has a line for each library with classes that error texts name alone.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import get_data

from devkit.doctor.signatures.frames import list_packages
from devkit.doctor.signatures.log_text import Words
from devkit.doctor.signatures.text_facts import read_versions

OWN_CODE = "the program"
_DISTINCTIVE = re.compile(r"[a-z][A-Z]|_.*_|[(]")
"""What a name has that leads to its library where the text does not name it."""
_ALIASES = {
    **{"lightning": "pytorch_lightning", "pkg_resources": "setuptools", "PIL": "pillow", "sklearn": "scikit-learn"},
    **{"google": "protobuf"},
    **dict.fromkeys(("asyncio", "collections", "configparser", "datetime", "enum", "fractions", "functools"), "python"),
    **dict.fromkeys(("imp", "importlib", "inspect", "itertools", "pkgutil", "types", "typing", "tomllib"), "python"),
    **dict.fromkeys(("asyncore", "asynchat", "smtpd", "cgi", "pipes", "audioop", "imghdr", "telnetlib"), "python"),
}
"""Libraries by the name of a module, where they differ."""
_NAMED_MODULE = re.compile(r"cannot import name '\w{1,60}' from '?(?:partially initialized module '?)?(\w+)")
"""The package of a name that a text without a capture of its module misses."""


@dataclass(frozen=True)
class Change:
    """A name that a release of a library added or removed."""

    library: str
    is_removed: bool
    release: str
    name: str


@cache
def _load_changes() -> str:
    return (get_data(__package__, "library_changes.txt") or b"").decode()


def find_changes(words: str) -> Iterator[Change]:
    """Yield the changes of the names that contain `words`; a space in them is the end of the name."""
    changes = _load_changes()
    place = changes.find(words)
    while place != -1:
        start = changes.rfind("\n", 0, place) + 1
        library, kind, release, _ = changes[start : start + 120].split(" ", 3)
        name = changes[changes.rfind(" ", 0, place + 1) + 1 : changes.find(" ", place + 1)]
        yield Change(library, kind == "removed", release, name)
        place = changes.find(words, place + 1)


@cache
def load_distributions() -> Mapping[str, str]:
    """Return the packages on the index by the names of their modules."""
    from devkit.compat.version_tables import load_tables

    return load_tables().imports.distributions(with_compiled=True)


def name_distribution(module: str) -> str:
    """Return the package of a module, also of a compiled one such as flash_attn_2_cuda; the module itself where no table knows it."""
    return load_distributions().get(re.sub(r"(?:_\d)?_cuda$", "", module), module)


def find_class_libraries(name: str) -> list[str]:
    """List the libraries of `library_classes.txt` that have a class of this name."""
    lines = (get_data(__package__, "library_classes.txt") or b"").decode().splitlines()
    return [line.partition(" ")[0] for line in lines if f" {name} " in line]


def describe_change(captures: Mapping[str, str], text: Words, position: int) -> dict[str, str]:
    """Return what happened to the name that an error misses.

    Returns:
        `caller` is the package that wants it, and `change` "unknown", "removed" or "added", "probably …" where the text
        does not name the library, "both", "mixed" where the package misses one of its names, or "called" where the
        library calls the program's code with an argument that the release added; then there are `library`, the releases
        `removed` and `added`, and `what`.
    """
    module = captures.get("module", "")
    library = module.partition(".")[0]
    library = _ALIASES.get(library, library)
    frames = list_packages(text.shown[:position])
    # The package that the name was to be imported from, "" for other errors.
    imported = _NAMED_MODULE.match(text.shown, position)
    source = imported[1] if imported else ""
    is_public = captures.get("thing", "_").lstrip("_") == captures.get("thing")
    if source and is_public and frames[-1:] == [source]:
        own = source.replace("_", "-")
        return {"change": "mixed", "library": own, "caller": own, "what": captures["thing"]}
    if source and not module and f"\n{_ALIASES.get(source, source)} " in _load_changes():
        return {"change": "unknown", "caller": OWN_CODE}  # its releases are known, so it is not another library's
    is_name_error = text.lowered.startswith("name '", position)
    for words, is_sure in _list_names(captures):
        found = [each for each in find_changes(words) if library in ("", each.library)]
        if not library and not is_sure:
            named = [each for each in found if each.library in frames or _names_library(each.library, text.lowered)]
            found = named or [each for each in found if _DISTINCTIVE.search(each.name)]
        fitting = [each for each in found if _fits_installed(each, text.lowered)]
        if found and not fitting and is_name_error and frames[-1:] not in ([], [""], [found[0].library]):
            return {**_describe(found[:1], text, frames, is_sure=is_sure), "change": "outdated"}
        found = fitting
        if len({each.library for each in found}) == 1:
            changes = _describe(found, text, frames, is_sure=is_sure)
            is_called = "count" in captures and frames[-1:] == [found[0].library]
            return changes | ({"change": "called"} if is_called else {})
    return {"change": "unknown", "caller": _name_caller(frames, library)}


def _describe(found: list[Change], text: Words, frames: list[str], *, is_sure: bool) -> dict[str, str]:
    library = found[0].library
    removed = max((each.release for each in found if each.is_removed), key=_order, default="")
    added = min((each.release for each in found if not each.is_removed), key=_order, default="")
    kind = "removed" if removed else "added"
    is_named = _names_library(library, text.lowered)
    return {
        "change": "both" if removed and added else kind if is_sure and is_named else f"probably {kind}",
        "library": library.replace("_", "-"),
        "removed": removed,
        "added": added,
        "what": found[0].name.replace("model:", "the model type ").rpartition(":")[2],
        "caller": _name_caller(frames, library),
    }


def _name_caller(frames: list[str], library: str) -> str:
    """Return the package of the last frame outside the library."""
    caller = next((package for package in reversed(frames) if package != library), "")
    return caller.replace("_", "-") or OWN_CODE


def _list_names(captures: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield the names to look for, the most exact first, and whether the text names their library or class."""
    thing, module = captures.get("thing", ""), captures.get("module", "")
    owner = captures.get("function", "").rpartition(":")[2].removesuffix(".__init__")
    argument = captures.get("argument", "")
    if "model" in captures:
        yield f" model:{captures['model']} ", True
    elif argument:
        if owner != "__init__":
            yield f" {owner}({argument}) ", True
        else:
            yield f"({argument}) ", False
    elif owner:
        yield f".{owner.rpartition('.')[2]}(", False
    elif "owner" in captures:
        yield f" {captures['owner']}.{thing} ", False
        yield f" {captures['owner']}({thing}) ", True
    elif module and not thing:
        yield f" {module} ", True
    elif thing:
        if module:
            yield f" {module}:{thing} ", True
        yield f" {thing} ", bool(module)
        if not module:
            yield f":{thing} ", False
        yield from ((f" {module}.{thing} ", True),) if module else ()


def _names_library(library: str, lowered: str) -> bool:
    names = (library, *(name for name, each in _ALIASES.items() if each == library))
    return any(name.lower().replace("_", "-") in lowered.replace("_", "-") for name in names)


def _fits_installed(change: Change, lowered: str) -> bool:
    """Say if a change explains what is missing in the release of the library that a text names, if it names one alone."""
    found = (re.match(r"\d+\.\d+", version) for version in read_versions(lowered, change.library.replace("_", "-")))
    releases = {version[0] for version in found if version}
    return len(releases) != 1 or change.is_removed == (_order(change.release) <= _order(releases.pop()))


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in release.split("."))
