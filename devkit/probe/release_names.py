"""The releases of a package that have a name, by the files of their wheels on the index, read in ranges and never run.

The index learns the name of the package, and which files of its wheels are read. What a wheel says is kept in the user's
data folder by its address.
"""

import contextlib
import json
import netrc
import os
import re
import time
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from hashlib import sha256
from html.parser import HTMLParser
from http.client import HTTPException
from importlib.metadata import distributions
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from devkit.compat.specifiers import canonicalize_name
from devkit.errors import DevkitError
from devkit.facts.releases import Candidate, MissingName, NameHistory
from devkit.facts.values import Unknown
from devkit.formats.python_source import (
    MAX_SOURCE_BYTES,
    Module,
    asks_for,
    find_method,
    has_fields,
    list_members,
    mentions,
    parse_module,
    takes_argument,
)
from devkit.probe.package_indexes import find_offline_setting, list_own_indexes
from devkit.probe.wheel_files import open_wheel, run_side_by_side, send_request
from devkit.user_folder import find_user_file, write_user_file

DEADLINE_S = 10.0
"""For all that is read about one text."""
MAX_PAGE_BYTES = 32 << 20
CONNECTIONS = 6
_T = TypeVar("_T")
MAX_SEARCHED_BYTES = 3 << 20
"""Of sources, packed, that are searched for a class which the package itself does not export."""
MAX_STARS = 8
"""Modules of `from x import *` that are read for one name, those of the likeliest names first."""
MAX_DEPTH = 8
MAX_CALLERS = 2
_RULES = 3
"""Raised where a wheel is judged in a different way than before: older answers are not used then."""
_PLAIN_BASES = frozenset({"object", "ABC", "Module", "Generic", "Protocol", "Enum", "dict", "list", "str", "Exception"})
_JSON = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"


class Sight(StrEnum):
    """The view that a release gives of a name. DOUBT: it lacks the name as far as it was read. UNKNOWN: its source does not say it."""

    HAS = "has"
    LACKS = "lacks"
    DOUBT = "doubt"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Wheel:
    """A wheel of a release: its address, the header of a login for its server, and the Pythons that it is for.

    `day` is that of its upload, such as 2023-07-24, "" where the index does not say it.
    """

    version: Version
    url: str
    login: str = ""
    requires_python: str = ""
    day: str = ""

    def runs_on(self, python: str) -> bool:
        """Say if the release is for a Python such as 3.11; "" is any."""
        try:
            return not python or SpecifierSet(self.requires_python).contains(f"{python}.99")
        except InvalidSpecifier:
            return True


def read_history(missing: MissingName) -> NameHistory | Unknown:
    """Read which releases have a missing name, as far as DEADLINE_S allows. Unknown says why nothing was found."""
    if setting := find_offline_setting():
        return Unknown(f"{setting} is set")
    return _Reader(missing, time.monotonic() + DEADLINE_S).read()


class _Reader:
    """Reads the releases for one missing name until a moment of the monotonic clock."""

    def __init__(self, missing: MissingName, ends_at: float) -> None:
        self._missing = missing
        self._ends_at = ends_at

    def read(self) -> NameHistory | Unknown:
        """Read the candidates in their order; the first package whose releases differ in the name counts."""
        says: Unknown | None = None
        for candidate in self._list_candidates():
            if self._ends_at < time.monotonic():
                return Unknown(f"the index did not respond within {DEADLINE_S:.0f} s")
            found = self._read_candidate(candidate)
            if isinstance(found, NameHistory):
                return self._add_caller(found)
            says = says or found
        return says or Unknown("the text does not show which package lacks the name")

    def _list_candidates(self) -> Iterator[Candidate]:
        yield from self._missing.candidates
        frame = self._missing.frame
        # The class that a frame calls is one that its file imports.
        wheels = self._list_wheels(canonicalize_name(frame.partition("/")[0])) if self._missing.owner and frame else []
        newest = [] if isinstance(wheels, Unknown) else wheels[-1:]
        for module in filter(None, self._read_many(newest, lambda files: files.load(_name_module(frame)))):
            source, name = module.imported.get(self._missing.owner.partition(".")[0], ("", ""))
            root = source.partition(".")[0]
            if root and root not in {each.module.partition(".")[0] for each in self._missing.candidates}:
                yield Candidate(source if name else root, canonicalize_name(root))

    def _read_candidate(self, candidate: Candidate) -> NameHistory | Unknown:
        wheels = self._list_wheels(candidate.package)
        if isinstance(wheels, Unknown):
            return wheels
        candidate = _find_installed(candidate, self._missing.folders)
        missing = self._missing
        question = (candidate.module, missing.owner, missing.name, missing.is_argument, missing.is_attribute)
        ask = _ask_once(question, lambda files: _see(files, candidate.module, self._missing))
        place = _find_place(wheels, candidate.version)
        sights = self._search(wheels, ask, place)
        return _judge(candidate, wheels, sights, place)

    def _search(
        self, wheels: list[Wheel], ask: "Callable[[WheelFiles], Sight]", place: float | None
    ) -> dict[int, Sight]:
        """Read releases until those on both sides of the change nearest to the installed one are next to each other.

        Args:
            place: The installed release's place among the wheels, between two where it has none, None where it is unknown.
        """
        last = len(wheels) - 1
        near = [] if place is None else [int(place // 1), int(-(-place // 1))]
        wanted = {min(max(each, 0), last) for each in (*_spread(0, last, CONNECTIONS), *near)}
        sights: dict[int, Sight] = {}
        while wanted and self._ends_at > time.monotonic():
            order = sorted(wanted)
            found = self._read_many([wheels[each] for each in order], ask)
            sights |= {
                each: Sight.UNKNOWN if sight is None else sight for each, sight in zip(order, found, strict=True)
            }
            gaps = _find_gaps(sights, place)
            wanted = {each for one, other in gaps for each in _spread(one, other, CONNECTIONS // len(gaps) + 2)} - set(
                sights
            )
            if not gaps and Sight.HAS not in sights.values() and len(sights) < 4 * CONNECTIONS:
                wanted = set(_spread(0, last, 3 * CONNECTIONS)) - set(sights)
        return sights

    def _read_many(self, wheels: list[Wheel], ask: "Callable[[WheelFiles], _T]") -> list[_T | None]:
        """Ask the wheels at the same time; None for those that cannot be read, or not in time."""
        tasks = {place: partial(lambda each: ask(WheelFiles(each)), wheel) for place, wheel in enumerate(wheels)}
        found = run_side_by_side(tasks, self._ends_at - time.monotonic(), CONNECTIONS)
        return [found.get(place) for place in tasks]

    def _list_wheels(self, package: str) -> list[Wheel] | Unknown:
        found = run_side_by_side({package: partial(list_wheels, package)}, self._ends_at - time.monotonic())
        wheels, python = found.get(package, Unknown("the index does not respond")), self._missing.python
        if isinstance(wheels, Unknown):
            return wheels
        return [each for each in wheels if each.runs_on(python)] or Unknown(f"no {package} is for Python {python}")

    def _add_caller(self, history: NameHistory) -> NameHistory:
        """Add the calling package, and its release that no longer asks for the name, where a release removed it.

        A package whose releases were read and never ask for it, such as one that only wraps the call, is not the caller.
        """
        for file in self._missing.callers[:MAX_CALLERS]:
            package = canonicalize_name(file.partition("/")[0])
            if package == history.package:
                continue
            if not history.removed:
                return replace(history, caller=package)
            wheels = self._list_wheels(package)
            sights = {} if isinstance(wheels, Unknown) else self._search(wheels, self._ask_caller(file), None)
            if isinstance(wheels, Unknown) or not {Sight.HAS, Sight.LACKS}.intersection(sights.values()):
                return replace(history, caller=package)
            asking = [each for each, sight in sights.items() if sight is Sight.HAS]
            free = [each for each, sight in sights.items() if sight is Sight.LACKS and asking and each > max(asking)]
            if free:
                says = (
                    f"{file}: {package} {wheels[max(asking)].version} asks for it, {wheels[min(free)].version} does not"
                )
                evidence = (*history.evidence, says)
                return replace(
                    history, caller=package, caller_release=str(wheels[min(free)].version), evidence=evidence
                )
            if asking:
                return replace(history, caller=package)
        return history

    def _ask_caller(self, file: str) -> "Callable[[WheelFiles], Sight]":
        missing = self._missing
        root = missing.candidates[0].module.partition(".")[0] if missing.candidates else ""

        def ask(files: "WheelFiles") -> Sight:
            module = files.load(_name_module(file))
            if module is None:
                return Sight.UNKNOWN
            name = missing.name or missing.candidates[0].module
            asks = asks_for(module, name, package=root, owner=missing.owner, is_argument=missing.is_argument)
            return Sight.HAS if asks else Sight.LACKS

        return _ask_once(("asks", file, missing.owner, missing.name), ask)


def has_names(package: str, names: Iterable[str]) -> bool:
    """Say whether a package's newest wheel has the dotted names, of which each starts with a module, as far as it was read."""
    wheels = list_wheels(package)
    return not isinstance(wheels, Unknown) and not list_lacking(wheels[-1], names)


def list_lacking(wheel: Wheel, names: Iterable[str]) -> list[str]:
    """List the dotted names that a wheel lacks and that the module which should have them never mentions."""

    def see(name: str, files: WheelFiles) -> Sight:
        place, *parts = name.split(".")
        if not files.has(place):
            return Sight.LACKS
        for part in parts:
            if not files.has(f"{place}.{part}"):
                module = files.load(place)
                is_lacking = module and _find(files, place, part)[0] is Sight.LACKS and not mentions(module, part)
                # Machine code beside it may fill the module, as cv2's does.
                return Sight.LACKS if is_lacking and not files.has_machine_code(place) else Sight.HAS
            place += f".{part}"
        return Sight.HAS

    files = WheelFiles(wheel)
    return [each for each in names if _ask_once(("lacks", each), partial(see, each))(files) is Sight.LACKS]


def _judge(
    candidate: Candidate, wheels: list[Wheel], sights: dict[int, Sight], place: float | None
) -> NameHistory | Unknown:
    """Judge what the releases show, in the order of their versions."""
    having = [each for each, sight in sorted(sights.items()) if sight is Sight.HAS]
    lacking = [each for each, sight in sorted(sights.items()) if sight in (Sight.LACKS, Sight.DOUBT)]
    count = sum(sight is not Sight.UNKNOWN for sight in sights.values())
    if not count:
        return Unknown(f"no release of {candidate.package} that was read tells")
    if not having or not lacking:
        says = "all have it" if having else "none has it"
        return Unknown(f"{candidate.package}: of {count} releases read {says}")
    if place is not None and sights.get(round(place)) is Sight.HAS and place == round(place):
        return Unknown(f"{candidate.package} {wheels[round(place)].version} has it, as its wheel shows")
    low, high = _find_sides(having, lacking, place)
    pairs = _find_pairs(having, lacking, place)
    history = NameHistory(candidate.package, candidate.version)
    for one, other in pairs:
        first, second = str(wheels[one].version), str(wheels[other].version)
        if one == low:
            history = replace(history, last=first, removed=second, has_gap=other - one > 1)
        elif other == high:
            history = replace(history, added=second)
        elif low is not None and other <= low:
            history = replace(history, first=second)
        else:
            history = replace(history, until=second)
    if not (history.removed or history.added):
        return Unknown(f"the releases of {candidate.package} around the installed one could not be read")
    is_whole = all(other - one == 1 and Sight.DOUBT not in (sights[one], sights[other]) for one, other in pairs)
    sides = sorted({each for pair in pairs for each in pair})
    evidence = f"{candidate.module or candidate.package} in the wheels of {candidate.package}: "
    evidence += ", ".join(
        f"{wheels[each].version} {'has it' if sights[each] is Sight.HAS else 'lacks it'}" for each in sides
    )
    if any(other - one > 1 for one, other in pairs):
        evidence += "; those between could not be read"
    read = (evidence, f"{candidate.package} {candidate.version} is installed, as {candidate.source} says")
    is_sure = is_whole and bool(candidate.version) and not (history.removed and history.added)
    return replace(history, is_sure=is_sure, evidence=read if candidate.version else read[:1])


def _find_sides(having: list[int], lacking: list[int], place: float | None) -> tuple[int | None, int | None]:
    """Find the last release with the name before the installed one, and the first after it.

    Where the installed one is unknown, it is the newest, or one before all that have the name if the newest has it.
    """
    is_known = place is not None
    at = lacking[-1] if place is None else place
    low = max((each for each in having if each < at), default=None)
    high = min((each for each in having if each > at), default=None)
    return (low if is_known or high is None else None), high


def _find_gaps(sights: dict[int, Sight], place: float | None) -> list[tuple[int, int]]:
    """Find the pairs of releases between which one that was not read may be the nearer one to a change."""
    having = sorted(each for each, sight in sights.items() if sight is Sight.HAS)
    lacking = sorted(each for each, sight in sights.items() if sight in (Sight.LACKS, Sight.DOUBT))
    pairs = _find_pairs(having, lacking, place) if having and lacking else []
    return [(one, other) for one, other in pairs if any(each not in sights for each in range(one + 1, other))]


def _find_pairs(having: list[int], lacking: list[int], place: float | None) -> list[tuple[int, int]]:
    """Find the releases, as read so far, between which the name went before the installed one, came after it, and went again."""
    low, high = _find_sides(having, lacking, place)
    pairs = [] if low is None else [(low, each) for each in lacking if each > low][:1]
    if low is not None and place is None:
        # The installed release may as well be older than the name.
        pairs += [(before, min(each for each in having if each > before)) for before in lacking if before < low][-1:]
    if high is not None:
        pairs += [(each, high) for each in lacking if each < high][-1:]
        pairs += [(max(each for each in having if each < after), after) for after in lacking if after > high][:1]
    return pairs


def _spread(first: int, last: int, count: int) -> list[int]:
    """Return `count` whole numbers from first to last, as evenly as they go."""
    steps = max(1, min(count - 1, last - first))
    return sorted({first + (last - first) * each // steps for each in range(steps + 1)})


def _find_place(wheels: list[Wheel], version: str) -> float | None:
    """Find the place of a version among the wheels, halfway between two where it is none of them."""
    try:
        wanted = Version(version)
    except InvalidVersion:
        return None
    older = sum(each.version < wanted for each in wheels)
    return float(older) if any(each.version == wanted for each in wheels) else older - 0.5


def _find_installed(candidate: Candidate, folders: Iterable[str]) -> Candidate:
    """Read the installed version where the site-packages of the text are on this machine."""
    if candidate.version:
        return candidate
    for folder in folders:
        if Path(folder).is_absolute() and Path(folder).is_dir():
            for each in distributions(path=[folder]):
                if canonicalize_name(each.metadata["Name"] or "") == candidate.package:
                    return replace(candidate, version=each.version, source=folder)
    return candidate


def list_wheels(package: str) -> list[Wheel] | Unknown:
    """List a wheel of each stable release of a package, oldest first, on the first of the user's indexes that has it."""
    found = _list_page(package)
    if isinstance(found, Unknown):
        return found
    wheels = _choose_wheels(*found)
    return wheels or Unknown(f"{package} has only source distributions, which are not read")


def list_compiled_pythons(package: str, version: str, python: str) -> tuple[str, ...]:
    """List the Pythons for which a release has compiled wheels for Linux.

    Where it has none, but a later release has, for Pythons that are all older than `python`, those of the first such release.
    Raises: OSError where the index does not say it.
    """
    found = _list_page(package)
    if isinstance(found, Unknown):
        raise OSError(found.reason)
    releases: dict[Version, set[str]] = {}
    for name, *_ in found[0]:
        with contextlib.suppress(InvalidWheelFilename, InvalidVersion):
            _, release, _, tags = parse_wheel_filename(name)
            built = {each.interpreter for each in tags if "linux" in each.platform}
            if release >= Version(version) and built:
                releases.setdefault(release, set()).update(built)
    first = min(releases, default=Version(version))
    found_tags = sorted(releases.get(first, ()))
    pythons = tuple(f"{each[2]}.{each[3:]}" for each in found_tags if re.fullmatch(r"cp\d{2,3}", each))
    is_older = all(Version(each) < Version(python) for each in pythons)
    return pythons if is_older or first == Version(version) else ()


_File = tuple[str, str, str, str]
"""A file on the page of a package: its name, its address, the Pythons that it is for, and the day of its upload."""


def _list_page(package: str) -> tuple[list[_File], str, str, str] | Unknown:
    """Return the files of a package on the first of the user's indexes that has it, with that page, its index and the login."""
    indexes = list_own_indexes()
    for index in indexes:
        address, login = _split_login(index)
        try:
            with send_request(f"{address}/{package}/", login, Accept=_JSON) as answer:
                page = answer.read(MAX_PAGE_BYTES + 1)
                base, kind = answer.url, answer.headers.get("Content-Type", "")
        except (OSError, HTTPException, ValueError) as error:
            # An index that refuses or does not answer may have the package: the next one is not asked.
            if getattr(error, "code", 0) != 404:
                return Unknown(
                    f"the package index does not respond ({getattr(error, 'code', '') or type(error).__name__})"
                )
            continue
        if len(page) > MAX_PAGE_BYTES:
            return Unknown(f"the page of {package} is too long")
        return _list_files(page, kind), base, address, login
    return Unknown(f"the index has no package {package}" if indexes else "the index is a folder of this machine")


def _split_login(index: str) -> tuple[str, str]:
    """Return an index without its login, and the header of the login: of the address, else of the user's netrc."""
    parts = urlsplit(index)
    host = parts.netloc.rpartition("@")[2]
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not user:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            known = netrc.netrc(os.environ.get("NETRC")).authenticators(parts.hostname or "")
            user, password = (known[0], known[2]) if known else ("", "")
    login = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""
    return urlunsplit((parts.scheme, host, parts.path, "", "")), login


def _list_files(page: bytes, kind: str) -> list[_File]:
    """List the files of a project's page that are not withdrawn. Source: PEP 503, PEP 592, PEP 691, PEP 700."""
    if "json" in kind:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            rows = json.loads(page)["files"]
            wanted = ("filename", "url", "requires-python", "upload-time")
            kept = [[str(each.get(name) or "") for name in wanted] for each in rows if not each.get("yanked")]
            return [(name, url, pythons, time[:10]) for name, url, pythons, time in kept]
        return []
    parser = _Links()
    parser.feed(page.decode("utf-8", "replace"))
    return parser.files


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.files: list[_File] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        url = found.get("href") or ""
        if tag == "a" and "data-yanked" not in found:
            name = unquote(urlsplit(url).path).rpartition("/")[2]
            self.files.append((name, url, found.get("data-requires-python") or "", ""))


def _choose_wheels(files: Iterable[_File], base: str, address: str, login: str) -> list[Wheel]:
    """Choose of each release the wheel that is the likeliest to have sources: the one for every machine, else for Linux."""
    best: dict[Version, tuple[tuple[bool, bool, str], str, str, str]] = {}
    for name, url, pythons, day in files:
        try:
            _, version, _, tags = parse_wheel_filename(name)
        except (InvalidWheelFilename, InvalidVersion):
            continue
        platforms = {each.platform for each in tags}
        rank = ("any" in platforms, any("linux" in each and "x86_64" in each for each in platforms), name)
        if version not in best or rank > best[version][0]:
            best[version] = rank, url, pythons, day
    stable = [each for each in best if not each.is_prerelease] or list(best)
    chosen = []
    for version in sorted(stable):
        url = urljoin(base, best[version][1]).partition("#")[0]
        if not url.startswith(("https://", "http://")):
            continue
        # Only the index itself gets its login.
        is_own = urlsplit(url)[:2] == urlsplit(address)[:2]
        chosen.append(Wheel(version, url, login if is_own else "", *best[version][2:]))
    return chosen


def _ask_once(question: tuple[object, ...], ask: "Callable[[WheelFiles], Sight]") -> "Callable[[WheelFiles], Sight]":
    """Return a question whose answer by a wheel is kept in the user's data folder."""

    def answer(files: WheelFiles) -> Sight:
        name = f"wheel-names/{sha256(repr((_RULES, files.wheel.url, question)).encode()).hexdigest()}"
        with contextlib.suppress(OSError, ValueError):
            return Sight(Path(find_user_file(name) or os.devnull).read_text(encoding="utf-8"))
        sight = ask(files)
        with contextlib.suppress(DevkitError):
            write_user_file(name, sight.encode())
        return sight

    return answer


class WheelFiles:
    """The modules of a wheel, each read and parsed once."""

    def __init__(self, wheel: Wheel) -> None:
        self.wheel = wheel
        self._archive: zipfile.ZipFile | None = None
        self._names: dict[str, str] = {}
        self._modules: dict[str, Module | None] = {}
        self.stars_left = MAX_STARS

    def _open(self) -> zipfile.ZipFile:
        if self._archive is None:
            self._archive = open_wheel(self.wheel.url, self.wheel.login)
            # Files of NAME.data/purelib and platlib are installed beside the others.
            self._names = {
                re.sub(r"^[^/]+\.data/(?:purelib|platlib)/", "", each): each for each in self._archive.namelist()
            }
        return self._archive

    def has(self, module: str) -> bool:
        """Say if a module can be imported: a file of source or machine code, or a folder with such files."""
        self._open()
        path = module.replace(".", "/")
        start = tuple(f"{path}{each}" for each in (".py", "/", ".so", ".pyd", ".cpython", ".cp3", ".abi3"))
        return any(each.startswith(start) for each in self._names)

    def has_machine_code(self, module: str) -> bool:
        """Say if machine code lies in the folder of a module."""
        native = re.compile(rf"{module.replace('.', '/')}/[^/]+\.(?:so|pyd)")
        return any(map(native.fullmatch, self._names))

    def load(self, module: str) -> Module | None:
        """Parse a module; None where the wheel has no source of it that can be read."""
        if module not in self._modules:
            archive, path = self._open(), module.replace(".", "/")
            found = next((each for each in (f"{path}/__init__.py", f"{path}.py") if each in self._names), "")
            self._modules[module] = None
            if found and archive.getinfo(self._names[found]).file_size <= MAX_SOURCE_BYTES:
                source = archive.read(self._names[found])
                self._modules[module] = parse_module(module, source, is_package=found.endswith("/__init__.py"))
        return self._modules[module]

    def find_anywhere(self, name: str) -> tuple[object, str]:
        """Find a class or function in whichever module of a small wheel defines it, and that module; None for none."""
        archive = self._open()
        files = [each for each in self._names if each.endswith(".py")]
        if sum(archive.getinfo(self._names[each]).compress_size for each in files) > MAX_SEARCHED_BYTES:
            return None, ""
        start = re.compile(rf"^(?:class|def) {re.escape(name)}\b".encode(), re.MULTILINE)
        for file in files:
            if archive.getinfo(self._names[file]).file_size <= MAX_SOURCE_BYTES and start.search(
                archive.read(self._names[file])
            ):
                module = self.load(_name_module(file))
                return (module.defined.get(name) if module else None), _name_module(file)
        return None, ""


def _name_module(file: str) -> str:
    return re.sub(r"\.__init__$", "", file.removesuffix(".py").replace("/", "."))


def _see(files: WheelFiles, module: str, missing: MissingName) -> Sight:
    """See what a wheel shows of a missing name."""
    root = module.partition(".")[0]
    if not files.has(root):
        return Sight.UNKNOWN
    if not missing.owner:
        if not missing.name:
            return Sight.HAS if files.has(module) else Sight.LACKS
        if missing.is_attribute and files.has(f"{module}.{missing.name}"):
            return _see_submodule(files, module, missing.name)
        return _find(files, module, missing.name)[0] if files.has(module) else Sight.LACKS
    owner, _, method = missing.owner.partition(".")
    _, node, place = _find_node(files, module, owner)
    if node is None:
        node, place = files.find_anywhere(owner)
    if node is None:
        # A release without the class does not show what it takes.
        return Sight.UNKNOWN
    if missing.is_argument:
        return _see_argument(files, place, node, method or "__init__", missing.name)
    return _see_member(files, place, node, missing.name, MAX_DEPTH)


def _see_submodule(files: WheelFiles, module: str, name: str) -> Sight:
    """See if a package imports its submodule, which is its attribute only then. Other modules may import it, too."""
    loaded = files.load(module)
    if loaded is None:
        return Sight.UNKNOWN
    sources = {*loaded.stars, *(source for source, _ in loaded.imported.values())}
    has = name in loaded.defined or name in loaded.imported or name in loaded.exported or f"{module}.{name}" in sources
    return Sight.HAS if has else Sight.DOUBT


def _find(files: WheelFiles, name_of: str, name: str, depth: int = MAX_DEPTH) -> tuple[Sight, str, str]:
    """Find a name in a module: what is seen of it, and the module and name that it comes from, "" for its own."""
    module = files.load(name_of)
    if files.has(f"{name_of}.{name}"):
        return Sight.HAS, "", ""
    if module is None:
        # A folder without __init__.py has its modules alone; machine code does not say what it has.
        is_folder = not files.has(f"{name_of}.__init__") and files.has(f"{name_of}.")
        return Sight.LACKS if is_folder else Sight.UNKNOWN, "", ""
    if name in module.defined:
        return Sight.HAS, "", ""
    if name in module.imported:
        return Sight.HAS, *module.imported[name]
    if name in module.exported:
        submodule = module.exported[name]
        return Sight.HAS, f"{name_of}.{submodule.lstrip('.')}" if submodule else "", name
    is_doubtful = module.is_lazy
    stars = [each for each in dict.fromkeys(module.stars) if each.partition(".")[0] == name_of.partition(".")[0]]
    is_doubtful |= len(stars) < len(set(module.stars))
    # The likeliest first: those of which the last part of the name is in the name.
    ends = {each: each.rpartition(".")[2].replace("_", "").lower() for each in stars}
    for star in sorted(stars, key=lambda each: -len(ends[each]) * (ends[each] in name.replace("_", "").lower())):
        if files.stars_left <= 0 or depth <= 0:
            return Sight.DOUBT, "", ""
        files.stars_left -= 1
        sight, *source = _find(files, star, name, depth - 1)
        if sight is Sight.HAS and not name.startswith("_"):
            return Sight.HAS, source[0] or star, source[1] or name
        is_doubtful |= sight is not Sight.LACKS
    if module.is_lazy and name in module.mentioned:
        return Sight.UNKNOWN, "", ""
    return Sight.DOUBT if is_doubtful else Sight.LACKS, "", ""


def _find_node(files: WheelFiles, module: str, name: str, depth: int = MAX_DEPTH) -> tuple[Sight, object, str]:
    """Find the definition of a class or function that a module has or takes from another, and the module it stands in."""
    sight, source, original = _find(files, module, name)
    if sight is not Sight.HAS or depth <= 0:
        return sight, None, module
    loaded = files.load(module)
    if not source:
        return sight, loaded.defined.get(name) if loaded else None, module
    if not files.has(source):
        return sight, None, module
    return _find_node(files, source, original or name, depth - 1)


def _see_argument(
    files: WheelFiles, place: str, node: object, method: str, argument: str, depth: int = MAX_DEPTH
) -> Sight:
    import ast

    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        takes = takes_argument(node, argument)
        return Sight.UNKNOWN if takes is None else Sight.HAS if takes else Sight.LACKS
    if not isinstance(node, ast.ClassDef):
        return Sight.UNKNOWN
    own = find_method(node, method)
    if own is not None:
        return _see_argument(files, place, own, method, argument)
    is_listed = method == "__init__" and has_fields(node)
    if is_listed and argument in list_members(node):
        return Sight.HAS
    sights = [
        _see_argument(files, where, base, method, argument, depth - 1)
        if base is not None and depth > 0
        else Sight.UNKNOWN
        for base, where in _list_bases(files, place, node)
    ]
    if is_listed and Sight.HAS not in sights:
        return Sight.LACKS if all(each is Sight.LACKS for each in sights) else Sight.DOUBT
    return sights[0] if sights else Sight.UNKNOWN


def _see_member(files: WheelFiles, place: str, node: object, name: str, depth: int) -> Sight:
    import ast

    if not isinstance(node, ast.ClassDef):
        return Sight.UNKNOWN
    if name in (found := list_members(node)):
        return Sight.HAS
    is_doubtful = bool({"__getattr__", "__getattribute__"} & found)
    for base, where in _list_bases(files, place, node):
        sight = _see_member(files, where, base, name, depth - 1) if base is not None and depth > 0 else Sight.DOUBT
        if sight is Sight.HAS:
            return sight
        is_doubtful |= sight is not Sight.LACKS
    return Sight.DOUBT if is_doubtful else Sight.LACKS


def _list_bases(files: WheelFiles, place: str, node: object) -> Iterator[tuple[object, str]]:
    """Yield the definition of each base of a class, and its module; None for what is outside the wheel."""
    import ast

    for base in node.bases if isinstance(node, ast.ClassDef) else ():
        name = ast.unparse(base).partition("[")[0]
        if name.rpartition(".")[2] not in _PLAIN_BASES:
            _, found, where = _find_node(files, place, name) if "." not in name else (None, None, place)
            yield found, where
