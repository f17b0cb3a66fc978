"""The name that a text says a library lacks, and what the releases of the library that were read say about it."""

import builtins
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile

from devkit.compat.specifiers import canonicalize_name
from devkit.doctor.signatures.catalog import find_candidates
from devkit.doctor.signatures.frames import list_frames
from devkit.doctor.signatures.library_changes import (
    OWN_CODE,
    find_class_libraries,
    load_distributions,
    name_distribution,
)
from devkit.doctor.signatures.log_text import Words
from devkit.doctor.signatures.matching import find_template
from devkit.doctor.signatures.text_facts import PACKAGES, TextFacts
from devkit.facts.releases import Candidate, MissingName, NameHistory

_IMPORT = re.compile(r"\bfrom ([A-Za-z_][\w.]*) import ([^\n]{1,300})")
_CALL = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)\(")
_PLACE = re.compile(r"'\s{0,3}\(([^)\n]{1,300})\)")
"""The file of the module that an ImportError names."""
_INSTALLED = re.compile(r"(?:site|dist)-packages|\.egg\b|custom_nodes|unknown location")
_AROUND = 300
_PLAIN_TYPES = frozenset(dir(builtins)).union(each.__name__ for each in vars(types).values() if isinstance(each, type))
"""Classes of Python itself."""


def find_missing_name(text: Words, values: TextFacts) -> MissingName | None:
    """Find what a text says that an installed library lacks; None where it says no such thing."""
    if "partially initialized module" in text.lowered:
        # The name is there once the import of the module has ended.
        return None
    for family in find_candidates(text.words):
        for template in family.texts if family.has_changes else ():
            hit = find_template(template, text)
            missing = hit and _describe(hit[0].format_captures(hit[1]), text, hit[1], values)
            if missing:
                return replace(missing, python=values.python or "")
    return None


def _describe(captures: Mapping[str, str], text: Words, found: re.Match[str], values: TextFacts) -> MissingName | None:
    if captures.keys() & {"model", "count"} or text.lowered.startswith("name '", found.start()):
        return None
    above = text.shown[: found.start()]
    frames = list(list_frames(above))
    function, module = captures.get("function", ""), captures.get("module", "")
    name = captures.get("argument", "") or captures.get("thing", "")
    owner = captures.get("owner", "") or function.rpartition(":")[2]
    if owner in ("__init__", "__new__"):
        module, owner = _find_callee(above, owner)
    if owner.partition(".")[0] in _PLAIN_TYPES or not (owner or module):
        return None if owner or "thing" not in captures else _describe_import(name, text, frames, values)
    is_attribute = bool(module and not owner and found[0].startswith("module '"))
    missing = MissingName(
        name, owner, bool(function), is_attribute, folders=tuple({each for each, _ in frames if each})
    )
    if module and not owner:
        candidates = _list_of_module(module, text, found, values)
        if not name and "." not in module:
            return None
    else:
        candidates = list(_list_of_owner(owner, module, text, frames, values))
    return _add_frames(replace(missing, candidates=tuple(candidates)), frames)


def _describe_import(name: str, text: Words, frames: list[tuple[str, str]], values: TextFacts) -> MissingName | None:
    """Describe a name whose module the error does not say, where a line of the text imports it."""
    lines = [found for found in _IMPORT.finditer(text.shown) if re.search(rf"\b{re.escape(name)}\b", found[2])]
    if not lines or not name:
        return None
    candidates = _list_of_module(lines[-1][1], text, lines[-1], values)
    return _add_frames(MissingName(name, candidates=tuple(candidates)), frames)


def _add_frames(missing: MissingName, frames: list[tuple[str, str]]) -> MissingName | None:
    roots = {each.module.partition(".")[0] for each in missing.candidates}
    last = frames[-1][1] if frames else ""
    if not missing.owner and last.partition("/")[0] in roots:
        # Files of two releases of one library are mixed.
        return None
    if missing.candidates and missing.candidates[0].module.partition(".")[0] != last.partition("/")[0]:
        # The file that raises it may ask for the name in the library that is likelier to have it.
        roots.discard(last.partition("/")[0])
    outside = [file for _, file in frames if file.partition("/")[0] not in roots]
    missing = replace(missing, frame=last, callers=tuple(dict.fromkeys(takewhile(bool, reversed(outside)))))
    return missing if missing.candidates or (missing.owner and missing.frame) else None


def _list_of_module(module: str, text: Words, found: re.Match[str], values: TextFacts) -> list[Candidate]:
    """List the package of a module, if the text or the tables know it for one: a file of the program is not asked about."""
    root = module.partition(".")[0]
    place = _PLACE.search(text.shown, found.start(), found.end() + _AROUND)
    if not root.isidentifier() or root in sys.stdlib_module_names or (place and not _INSTALLED.search(place[1])):
        return []
    return [_build_candidate(module, values)] if place or _is_package(root, values) else []


def _is_package(root: str, values: TextFacts) -> bool:
    """Say if the tables or a version in the text show that a module is of a package: others may be the program's own."""
    return root in load_distributions() or bool(values.find_version(canonicalize_name(root)))


def _list_of_owner(
    owner: str, module: str, text: Words, frames: list[tuple[str, str]], values: TextFacts
) -> Iterator[Candidate]:
    """Yield the packages that a class or function may be of: imported so, known so, of a frame, named with a version.

    Of those that are known for it, the ones whose version the text says come first.
    """
    first = owner.partition(".")[0]
    lines = (found[1] for found in _IMPORT.finditer(text.shown) if re.search(rf"\b{re.escape(first)}\b", found[2]))
    stated = [each for each in PACKAGES if each in text.lowered and values.find_version(each)]
    # A class that begins with a package's name, such as PeftModel, is likelier to be of that one.
    stated.sort(key=lambda each: not first.lower().startswith(each))
    inside = (file.partition("/")[0] for _, file in frames[-1:] if file)
    seen = set()
    imported = (each for each in (module, *lines) if _is_package(each.partition(".")[0], values))
    known = sorted(find_class_libraries(first), key=lambda each: not values.find_version(canonicalize_name(each)))
    for each in (*imported, *known, *inside, *stated):
        root = each.partition(".")[0].replace("-", "_")
        if root not in ("", "python", *sys.stdlib_module_names) and root not in seen and not each.startswith("."):
            seen.add(root)
            yield _build_candidate(each.replace("-", "_"), values)


def _find_callee(above: str, owner: str) -> tuple[str, str]:
    """Return the module and the class that the last line above an error calls, where the error says only __init__."""
    lines = [each for each in above[-4096:].splitlines()[-6:] if each.strip(" ^~-")]
    called = _CALL.findall(lines[-1]) if lines else []
    if not called or called[-1] in ("super", "func", "cls"):
        return "", owner
    module, _, name = called[-1].rpartition(".")
    return ("" if module == "self" else module), name if name[:1].isupper() else owner


def _build_candidate(module: str, values: TextFacts) -> Candidate:
    root = module.partition(".")[0]
    package = canonicalize_name(name_distribution(root))
    version = values.find_version(package)
    return Candidate(module, package, version, "the text" if version else "")


def describe_history(missing: MissingName, history: NameHistory) -> dict[str, str]:
    """Return the captures by which a family of errors tells what the releases say, as a sentence and its certainty."""
    what = missing.name or (missing.candidates[0].module if missing.candidates else "")
    if missing.owner:
        what = f"{missing.owner}({what})" if missing.is_argument else f"{missing.owner}.{what}"
    elif missing.name and missing.candidates:
        what = f"{missing.candidates[0].module}.{missing.name}"
    library = history.package
    caller = history.caller or OWN_CODE
    # Where the program can be changed, or another release serves as well, the fix leaves a choice.
    has_choice = bool(history.removed and (caller == OWN_CODE or history.caller_release or history.added))
    if history.removed:
        says = f"{library} {history.removed} {'lacks' if history.has_gap else 'removed'} {what}, which {caller} needs; "
        says += f"{history.last} is the last release {'read ' if history.has_gap else ''}that has it"
        says += f", {history.first} the first" if history.first else ""
        says += f" ({history.added} has it again)" if history.added else ""
    else:
        installed = f"{library} {history.installed}" if history.installed else f"the installed {library}"
        says = f"{installed} does not have {what} yet, which {caller} needs; {history.added} is the first release that has it"
    return {
        "missing": missing.name or what,
        "change": "read" if history.is_sure and not has_choice else "seen",
        "library": library,
        "caller": caller,
        "what": what,
        "said": says,
        "removed": history.removed,
        "below": f"<={history.last}" if history.has_gap else f"<{history.removed}",
        "added": history.added,
        "until": history.until,
        "first": history.first,
        "free": history.caller_release,
    }
