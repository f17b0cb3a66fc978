"""Resolves a project's requirements with uv, as the image's build will.

Nothing of a package runs on this machine: where uv would build a source distribution to learn its requirements, the build
ends before its first line, and the requirements are read from what the archive itself says.
"""

import os
import re
import shlex
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from devkit.compat.specifiers import canonicalize_name
from devkit.errors import DevkitError
from devkit.facts.dependencies import (
    PROJECT_FOLDER,
    PUBLIC_INDEX,
    SETTINGS_FILE,
    TORCH_FAMILY,
    IndexUse,
    PackageIndex,
    Refused,
    RequirementSources,
    Resolution,
    ResolutionRequest,
    Resolved,
)
from devkit.facts.project import is_below_index
from devkit.facts.values import Unknown
from devkit.probe.dependencies.requirements import INDEX_OPTIONS, OPTION, join_lines, parse_option, strip_login
from devkit.probe.host import CALL_DEADLINE_S, TIMED_OUT, ProgramResult, run_program
from devkit.probe.package_indexes import (
    describe_proxy,
    find_allowed_indexes,
    find_offline_setting,
    find_pip_index,
    require_addresses,
)
from devkit.probe.source_distributions import read_source_builds
from devkit.text import to_one_line

DEADLINE_S = 300.0
"""For all calls of one command together: where nothing is in the cache, a busy machine reads hundreds of answers and source
distributions. uv itself gives up on a server that does not answer."""
PAGES_DEADLINE_S = 5.0
"""For the pages of the packages that have no wheel for the plan's Python."""
MAX_SOURCE_DISTRIBUTIONS = 24
"""Source distributions whose requirements are read for one resolution, each with another call of uv."""
MAX_STEPS = 3
"""Steps of uv's derivation that are shown."""
_HOST = re.compile(r"https?://(?:[^/@\s]+@)?([\w.-]+(?::\d+)?)")
_UNREACHABLE = (
    "error sending request",
    "failed to fetch",
    "dns error",
    "network connectivity",
    "network was disabled",
    "connection refused",
    "operation timed out",
)
"""What uv says where it finds no network, in lower case."""
_DISTRUST = "invalid peer certificate"
_CERTIFICATE_VARIABLES = ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""The user's own choice of the certificates that uv trusts; it comes with others, and does not trust the system's."""

_PATIENCE = {"UV_HTTP_RETRIES": "1", "UV_HTTP_CONNECT_TIMEOUT": "3"}
"""Where a network swallows everything, uv's own patience of 10 s for each of three tries only takes time."""
_INHERITED = re.compile(
    r"PATH|HOME|TMPDIR|LD_LIBRARY_PATH|XDG_\w+|USERPROFILE|(?:LOCAL)?APPDATA|TE?MP|SYSTEM(?:ROOT|DRIVE)|WINDIR|PATHEXT"
    r"|COMSPEC|(?:HTTPS?|ALL|NO)_PROXY|SSL_CERT_(?:FILE|DIR)|NETRC|DBUS_SESSION_BUS_ADDRESS"
    r"|UV_(?:DEFAULT_INDEX|INDEX|(?:EXTRA_)?INDEX_URL|FIND_LINKS|NO_INDEX|INDEX_STRATEGY|KEYRING_PROVIDER|INSECURE_HOST"
    r"|NATIVE_TLS|SYSTEM_CERTS|SSL_CERT_\w+|OFFLINE|CACHE_DIR|NO_CACHE|CONFIG_FILE|NO_CONFIG|CREDENTIALS_DIR|HTTP_\w+"
    r"|REQUEST_TIMEOUT|CONCURRENT_\w+|EXCLUDE_NEWER|PRERELEASE|RESOLUTION|PREVIEW\w*|LINK_MODE)",
    re.IGNORECASE,
)
"""The variables that uv gets: folders, proxies, certificates, indexes, logins by host. No other may reach an index.

UV_INDEX_…_PASSWORD is left out: uv sends it to whatever address a project gives the index of that name.
"""
_VARIABLE = re.compile(r"\$\{[^}\s]*\}")
"""A reference that uv, like pip, replaces by a variable of its environment, wherever it stands in a requirement list."""
_COMMENT = re.compile(r"(?:^|\s)#.*")
_REMOTE_LIST = re.compile(r"\s*(?:-r|-c|--requirements?|--constraints?)[ =]?\s*\w+://")
_PLATFORMS = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
_GLIBCS = ("2.17", "2.28", *(f"2.{minor}" for minor in range(31, 41)))
"""C libraries that --python-platform knows by name."""
_NO_BUILD = "import os\nos._exit(77)\n"
"""sitecustomize.py of whatever Python uv starts to build with. It asks an interpreter about itself with -I, which skips it."""
UNBUILT = re.compile(
    r"Failed to (?:download and )?build `(?P<name>[\w.-]+)(?:==(?P<version>[^`\s]+)| @ (?P<url>[^`]+))`"
)
"""What uv says of a source distribution that it cannot build."""
_ELSEWHERE = re.compile(
    r"^hint: Wheels are available for `([\w.-]+)` .*platforms?: (?:`(?:win|mac)\w+`(?:, )?)+$", re.MULTILINE
)
"""What uv says of a package whose files are all for Windows or macOS."""
_CAUSE = re.compile(r"^\s*cause: ", re.MULTILINE)
_NO_SOLUTION = "No solution found"
_OFFLINE = "To plan without looking up packages: --no-resolve."
_UNDEFINED_INDEX = "references an undeclared index"
_STEP = re.compile(r"(?:And b|B)ecause (.+?), we can conclude that .+?\.(?= And because |$)")
_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_PER_REQUIREMENT = re.compile(r"\s(?:#|--hash\b|\\\n).*", re.DOTALL)
_FROM_URL = re.compile(r"\s*(?:-e\s+|--editable[ =]\s*)?(?:[\w.-]+\s*(?:\[[^\]]*\])?\s*@\s*)?(?:\w+\+)?\w+://")


Requirements = dict[tuple[str, str], tuple[str, ...]]
"""The requirements of source distributions by name and version, as their archives say them."""
Answer = tuple[Resolution, dict[str, str]]
"""The answer to a request, and the packages that are unread since, with their version."""


class UvResolver:
    """Resolves one project's requirements, for as many Pythons and constraints as the solver tries.

    Use it as a context: what was begun and not asked for ends with it.
    """

    def __init__(
        self,
        sources: RequirementSources,
        *,
        index: str = "",
        allowed: Collection[str] = (),
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Take `index` for the package index, "" for that of the user's own settings. The user allows the indexes `allowed`.

        Raises: DevkitError for a variable that is not an address, and for a project's file that would send a variable of the
        environment to an index, that has uv download another list, which could, or that names an index which the user has not allowed.
        """
        require_addresses()
        for path, text in sources.files:
            _refuse_variables(path, text)
        self._sources = sources
        self._index = index
        named = list(sources.indexes)
        for path, text in sources.files:
            # The indexes of a pyproject.toml that uv is handed, as it is handed them.
            tables = _select_for_uv(tomllib.loads(text))["uv"].get("index", ()) if path.endswith(".toml") else ()
            named += [PackageIndex(strip_login(t.get("url", "")), path, 1, t.get("name", "")) for t in tables]
        self._may_ask = _require_consent(named, index, allowed)
        self._deadline_s = deadline_s
        self._ends_at: float | None = None
        self._known: Requirements = {}
        self._listing = threading.Lock()
        self._pythons: dict[tuple[str, str, str], tuple[str, ...]] = {}
        self._unread: dict[str, str] = {}
        """Packages whose own requirements no file says, with their version."""
        self._begun: dict[tuple[ResolutionRequest, tuple[str, ...]], Future[Answer]] = {}
        """Answers by the request and the packages that were unread before it, on which they rest."""
        self._stop = threading.Event()

    def __enter__(self) -> "UvResolver":
        """Return the resolver."""
        return self

    def __exit__(self, *error: object) -> None:
        """End what still runs; each call of uv is killed."""
        self._stop.set()
        for each in self._begun.values():
            each.exception()

    def expect(self, wanted: ResolutionRequest) -> "Future[Answer]":
        """Begin to resolve what is likely to be asked for next, beside the caller."""
        future = self._begun.get(key := (wanted, tuple(self._unread)))
        if future is None:
            future = self._begun[key] = Future()
            threading.Thread(target=self._answer, args=(wanted, dict(self._unread), future), daemon=True).start()
        return future

    def __call__(self, wanted: ResolutionRequest) -> Resolution:
        """Resolve. Unknown where uv is missing, has no network or no time."""
        answer, self._unread = self.expect(wanted).result()
        return answer

    def _answer(self, wanted: ResolutionRequest, unread: dict[str, str], future: "Future[Answer]") -> None:
        try:
            future.set_result((self._resolve(wanted, unread), unread))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            future.set_exception(error)

    def _resolve(self, wanted: ResolutionRequest, unread: dict[str, str]) -> Resolution:
        """Resolve, and add to `unread` the packages whose requirements no file says."""
        if wanted.machine not in _PLATFORMS:
            return Unknown(f"uv resolves for {' and '.join(_PLATFORMS)}, not for {wanted.machine}")
        if os.environ.get("UV_OFFLINE", "").lower() in ("1", "true", "yes"):
            return Unknown("UV_OFFLINE is set")
        uv = find_uv()
        if uv is None:
            return Unknown("uv is not installed")
        try:
            scratch = tempfile.TemporaryDirectory(prefix="devkit-resolve-")
        except OSError as error:
            return Unknown(f"cannot create a temporary folder: {error.strerror}")
        with scratch as name:
            folder = Path(name)
            with self._listing:
                if self._ends_at is None:
                    self._known.update(_list_unbuilt(uv))
                    self._ends_at = time.monotonic() + self._deadline_s
            command = [uv, *self._write_inputs(folder, wanted)]
            absent = {*wanted.absent}
            for _ in range(MAX_SOURCE_DISTRIBUTIONS):
                # Others that are resolved at the same time add to what is known.
                given = self._known.copy()
                self._write_metadata(folder, given, (*unread, *absent))
                left_s = self._ends_at - time.monotonic()
                done = ProgramResult(TIMED_OUT, "", "")
                environment = {**_PATIENCE, **build_uv_environment(), "PYTHONPATH": str(folder / "blocked")}
                if left_s > 0 and not self._stop.is_set():
                    done = run_program(command, deadline_s=left_s, inherited=environment, stop=self._stop)
                if trust_system_certificates(done.err, environment):
                    continue
                if done.code == 0:
                    found = self._parse_lock(
                        (folder / "pylock.toml").read_text(encoding="utf-8"), unread, wanted.python
                    )
                    return replace(found, absent=tuple(sorted(absent)))
                if elsewhere := {*map(canonicalize_name, _ELSEWHERE.findall(done.err))} - absent:
                    absent |= elsewhere
                    continue
                unbuilt = UNBUILT.search(done.err)
                if done.code == TIMED_OUT or unbuilt is None or not self._read_metadata(uv, unbuilt, given, unread):
                    return self._explain(done)
        return Unknown(f"more than {MAX_SOURCE_DISTRIBUTIONS} packages have only a source distribution")

    def _write_inputs(self, folder: Path, wanted: ResolutionRequest) -> Iterator[str]:
        """Write what uv reads below `folder`, and yield the words of its command."""
        (folder / "blocked").mkdir()
        (folder / "blocked" / "sitecustomize.py").write_text(_NO_BUILD, encoding="utf-8")
        project = folder / "project"
        project.mkdir()
        sources = self._sources
        if wanted.is_alone:
            # A private package is not looked up in the public index then, either.
            sources = RequirementSources(options=tuple(each for each in sources.options if "index=" in each))
        for path, text in sources.files:
            target = project / path
            target.parent.mkdir(parents=True, exist_ok=True)
            adapt = _adapt_pyproject if path.endswith(".toml") else _adapt_list
            target.write_text(adapt(text, wanted.relaxed, self._may_ask), encoding="utf-8")
        lines = [_adapt_list("\n".join(sources.lines), wanted.relaxed, self._may_ask), *wanted.requirements]
        (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
        (folder / "constraints.txt").write_text("\n".join(wanted.constraints), encoding="utf-8")
        platform = _PLATFORMS[wanted.machine]
        if wanted.glibc in _GLIBCS:
            platform = f"{wanted.machine}-manylinux_{wanted.glibc.replace('.', '_')}"
        yield from ("pip", "compile", "--format=pylock.toml", "--output-file=../pylock.toml", "--no-header")
        yield from ("--no-progress", "--no-annotate", "--color=never", f"--directory={project}")
        yield from (f"--python={sys.executable}", "--no-build-isolation", "--no-python-downloads")
        yield from (f"--python-version={wanted.python}", f"--python-platform={platform}")
        yield from ("--constraints=../constraints.txt", "--excludes=../excludes.txt")
        yield from self._order_indexes(sources)
        if not wanted.follows:
            yield "--no-deps"
        if wanted.as_of:
            yield f"--exclude-newer={wanted.as_of}T23:59:59Z"
            for name, _, later in (each.partition("=") for each in wanted.undated):
                until = str(date.fromisoformat(wanted.as_of) + timedelta(int(later))) if later.isdecimal() else later
                yield f"--exclude-newer-package={name}={until or 'false'}"
        yield from (*sources.lists, "../lines.txt")

    def _order_indexes(self, sources: RequirementSources) -> Iterator[str]:
        """Yield the project's options for uv, with the user's own default index in place of the project's: uv takes one."""
        options, inherited = list(sources.options), build_uv_environment()
        own = self._index or inherited.get("UV_DEFAULT_INDEX", "") or inherited.get("UV_INDEX_URL", "")
        if own:
            defaults = (each.url for each in sources.indexes if each.use is IndexUse.DEFAULT and each.is_third_party)
            options = [each.replace("--default-index=", "--index=", 1) for each in options]
            options += [f"--index={url}" for url in defaults if not any(url in option for option in options)]
        if self._index:
            yield f"--default-index={self._index}"
        # The user's own one stands for the public one, last as it is.
        yield from (each for each in options if not (own and each == f"--index={PUBLIC_INDEX}"))

    def _write_metadata(self, folder: Path, given: Requirements, unread: Iterable[str]) -> None:
        """Write what is known of source distributions, and what is left out because nothing is."""
        import tomlkit

        known = [
            {"name": name, "version": version, "requires-dist": list(requires)}
            for (name, version), requires in given.items()
        ]
        (folder / "project" / "uv.toml").write_text(tomlkit.dumps({"dependency-metadata": known}), encoding="utf-8")
        excluded = [*self._sources.unchecked, *unread]
        (folder / "excludes.txt").write_text("\n".join(excluded), encoding="utf-8")

    def _read_metadata(self, uv: str, unbuilt: re.Match[str], given: Requirements, unread: dict[str, str]) -> bool:
        """Read the requirements of a source distribution that uv wants to build; False where that changes nothing."""
        name, version = canonicalize_name(unbuilt["name"]), unbuilt["version"] or ""
        if name in unread or (name, version) in given:
            return False
        self._known.update(_list_unbuilt(uv))
        if (name, version) not in self._known:
            unread[name] = version
        return True

    def _parse_lock(self, text: str, unread: dict[str, str], python: str) -> Resolved:
        document: dict[str, Any] = tomllib.loads(text)
        packages = [each for each in document.get("packages", ()) if "version" in each]
        versions = [(canonicalize_name(each["name"]), str(each["version"])) for each in packages]
        built = {
            name: version for (name, version), each in zip(versions, packages, strict=True) if not each.get("wheels")
        }
        return Resolved(
            # Without the build of torch, as +cpu in a folder of wheels: the tables choose it.
            packages=tuple((n, v.partition("+")[0] if n in TORCH_FAMILY else v) for n, v in versions),
            from_source=tuple(built),
            elsewhere=tuple(self._list_elsewhere([(*each, python) for each in built.items()])),
            unread=(
                *(f"{name}, which comes from a URL" for name in self._sources.unchecked),
                *(f"{name} {version}, which only its setup.py defines" for name, version in unread.items()),
            ),
            asked=tuple(sorted(self._may_ask)),
            wheels=tuple(
                # uv takes a wheel for the machine before one for every machine.
                (canonicalize_name(each["name"]), min(urls, key=lambda url: url.endswith("-any.whl")))
                for each in packages
                if (urls := [wheel["url"] for wheel in each.get("wheels", ()) if "url" in wheel])
            ),
            hashes=tuple(
                (canonicalize_name(each["name"]), tuple(sorted(found)))
                for each in packages
                if (found := _read_hashes(each.get("wheels") or [each.get("sdist", {})]))
            ),
            builds=read_source_builds(
                {
                    canonicalize_name(each["name"]): each["sdist"]["url"]
                    for each in packages
                    if not each.get("wheels") and "url" in each.get("sdist", {})
                }
            ),
        )

    def _list_elsewhere(self, built: Collection[tuple[str, str, str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """List the Pythons for which the index has compiled wheels of packages without one for this; each is asked once."""
        from devkit.probe.release_names import list_compiled_pythons
        from devkit.probe.wheel_files import run_side_by_side

        if not find_offline_setting():
            new = {each: partial(list_compiled_pythons, *each) for each in built if each not in self._pythons}
            self._pythons |= run_side_by_side(new, PAGES_DEADLINE_S)
        yield from ((each[0], self._pythons[each]) for each in built if each in self._pythons)

    def _explain(self, done: ProgramResult) -> Refused | Unknown:
        if done.code == TIMED_OUT:
            return Unknown(f"uv did not finish within {self._deadline_s:.0f} s")
        error = done.err[done.err.find("error:") :]
        if reason := explain_unreachable(error):
            return Unknown(reason)
        if _NO_SOLUTION in error or _UNDEFINED_INDEX in error:
            # uv's reason as its premises alone: the last steps are those that name what the user wrote.
            cause = _CAUSE.split(error)[1].partition("\n\nhint:")[0] if _CAUSE.search(error) else error
            steps = _STEP.findall(" ".join(cause.split()))
            return Refused(to_one_line("; ".join(steps[-MAX_STEPS:]) or cause), error)
        says = " ".join(error.partition("hint:")[0].removeprefix("error:").split()).replace(" cause:", ":")
        return Unknown(f"uv ended with {to_one_line(says) or f'exit code {done.code}'}")


def _read_hashes(files: list[dict[str, Any]]) -> list[str]:
    """Return the SHA-256 of each file, none unless all of them have one: what is not listed could not be installed."""
    found = [str(file.get("hashes", {}).get("sha256", "")) for file in files]
    return found if all(found) else []


def find_uv() -> str | None:
    """Return the path of the uv that is installed with devkit, or of the one on PATH; None without one."""
    import shutil

    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv")


def build_uv_environment() -> dict[str, str]:
    """Build the environment of a uv that reads a stranger's files: what uv needs of this process's own, and no secret besides."""
    own = {name: value for name, value in os.environ.items() if value and _INHERITED.fullmatch(name)}
    # uv leaves pip's settings aside: packages of a company's index would be looked up in the public one.
    default, extra = find_pip_index()
    return {
        **({"UV_DEFAULT_INDEX": default} if default else {}),
        **({"UV_INDEX": " ".join(extra)} if extra else {}),
        **own,
    }


def trust_system_certificates(error: str, used: Mapping[str, str]) -> bool:
    """Have uv trust the system's certificates from now on, if `error` of a call with the variables `used` asks for that.

    Companies add their proxy's certificate to the system's, where pip, curl and git find it. Returns whether to call uv again.
    """
    wanted = _DISTRUST in error and not any(used.get(each) for each in _CERTIFICATE_VARIABLES)
    if wanted:
        os.environ["UV_SYSTEM_CERTS"] = "1"
    return wanted


def explain_unreachable(error: str) -> str:
    """Return why uv had no answer from the package index, "" where that is not what its error says."""
    if _DISTRUST in error:
        return "uv does not trust the certificate of the package index (SSL_CERT_FILE names the certificates to trust)"
    if not any(word in error.lower() for word in _UNREACHABLE):
        return ""
    asked = _HOST.search(error)  # torch and a project's own index are elsewhere
    through = describe_proxy(f"https://{asked[1]}" if asked else "https:")
    return f"uv cannot reach the package index{f' at {asked[1]}' if asked else ''}{through}"


def find_uv_cache(uv: str) -> Path:
    """Find the folder of uv's cache."""
    # Elsewhere, so that no uv.toml of the working folder names a different cache than the resolution uses.
    command = [uv, "cache", "dir", f"--directory={Path(uv).parent}"]
    return Path(run_program(command, deadline_s=CALL_DEADLINE_S, inherited=build_uv_environment()).out.strip())


def _require_consent(indexes: Iterable[PackageIndex], mirror: str, allowed: Collection[str]) -> frozenset[str]:
    """Return the addresses of indexes that may be asked. Raises DevkitError for one that the user has not allowed."""
    named = [each for each in indexes if each.needs_consent]
    if mirror:
        named.append(PackageIndex(strip_login(mirror), SETTINGS_FILE, 1))
    known = find_allowed_indexes(allowed) if named else ()
    for each in named:
        if not is_below_index(each.url, known):
            address = to_one_line(each.url)
            raise DevkitError(
                f"{each.origin} has packages taken from {address}, which you have not allowed",
                f"devkit did not contact this index. To allow it permanently: --allow-index {shlex.quote(address)}. {_OFFLINE}",
            )
    return frozenset(each.url for each in named)


def _refuse_variables(path: str, text: str) -> None:
    # Other tools' tables may hold such references; uv gets none of them.
    given = repr(_select_for_uv(tomllib.loads(text))) if path.endswith(".toml") else text
    for number, line in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", line)
        if (variable := _VARIABLE.search(line)) and variable[0] in given:
            raise DevkitError(
                f"{path}:{number}: uv would replace {variable[0]} with an environment variable and send it to an index",
                f"Remove it. Configure the index and its login in uv itself, for example with UV_INDEX and netrc. {_OFFLINE}",
            )
        if _REMOTE_LIST.match(line):
            raise DevkitError(
                f"{path}:{number}: this line refers to a requirements file on a server, which devkit does not download",
                f"Copy the file into the project. {_OFFLINE}",
            )


def _list_unbuilt(uv: str) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    """List the source distributions in uv's cache that it could not read, with their requirements.

    setuptools writes these beside its PKG-INFO; where a distribution has its own metadata, uv keeps that.
    """
    cache = find_uv_cache(uv)
    for pattern in ("sdists-v*/pypi/*/*/*/src", "sdists-v*/index/*/*/*/*/src"):
        for folder in cache.glob(pattern):
            if (folder.parent / "metadata.msgpack").exists():
                continue
            information = next(iter((*folder.glob("*.egg-info"), *folder.glob("src/*.egg-info"), folder)))
            distribution = PathDistribution(information)
            requires = tuple(distribution.requires or ())
            if distribution.read_text("PKG-INFO") and all(map(_is_requirement, requires)):
                name, version = folder.parts[-4:-2]
                yield (name, version), requires


def _is_requirement(line: str) -> bool:
    """Return whether uv can read a line: one such as numpy>=1<2, which setuptools once wrote, would end every resolution."""
    try:
        Requirement(line)
    except InvalidRequirement:
        return False
    return True


def _adapt_list(text: str, relaxed: Iterable[str], may_ask: Collection[str]) -> str:
    """Return what uv gets of a requirement list: what the image takes from it, in forms that devkit has read itself.

    torch is limited by a constraint, so that uv chooses it last and not first, which would age whatever needs another
    one. Its index need not be reachable from here: the public one has the same releases.
    """
    lines = (_adapt_requirement(line, relaxed, may_ask) for _, line in join_lines(text))
    return "\n".join(line for line in lines if line is not None)


def _adapt_requirement(line: str, relaxed: Iterable[str], may_ask: Collection[str]) -> str | None:
    """Return the requirement as uv gets it, None for one that is left out."""
    if line.startswith("-"):
        option = OPTION.fullmatch(line)
        name, value = parse_option(option) if option else ("", "")
        if name in INDEX_OPTIONS:
            return line if PROJECT_FOLDER.fullmatch(value) or strip_login(value) in may_ask else None
        return line if option and "://" not in line else None
    if _FROM_URL.match(line):
        return None
    named = _NAME.match(line)
    name = canonicalize_name(named[1]) if named else ""
    if name in TORCH_FAMILY:
        return None
    if name not in relaxed:
        return line
    requirement = Requirement(_PER_REQUIREMENT.sub("", line))
    requirement.specifier = SpecifierSet()
    return str(requirement)


def _select_for_uv(document: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of a pyproject.toml that uv gets something of."""
    uv = document.get("tool", {}).get("uv", {})
    return {
        "project": document.get("project", {}),
        "groups": document.get("dependency-groups", {}),
        "uv": {key: uv[key] for key in ("index", "sources") if key in uv},
    }


def _adapt_pyproject(text: str, relaxed: Iterable[str], may_ask: Collection[str]) -> str:
    """Do the same to a pyproject.toml, and keep only what uv reads in it."""
    import tomlkit

    document = tomllib.loads(text)

    def adapt(entries: list[Any]) -> list[Any]:
        adapted = (_adapt_requirement(each, relaxed, may_ask) if isinstance(each, str) else each for each in entries)
        return [each for each in adapted if each is not None]

    given = _select_for_uv(document)
    project, uv = dict(given["project"]), given["uv"]
    extras, groups = project.get("optional-dependencies", {}), given["groups"]
    project["dependencies"] = adapt(project.get("dependencies", []))
    project["optional-dependencies"] = {name: adapt(entries) for name, entries in extras.items()}
    indexes = [each for each in uv.get("index", ()) if strip_login(each.get("url", "")) in may_ask]
    # uv refuses an index that is defined nowhere, and looks for the package in no other.
    left_out = {each.get("name") for each in uv.get("index", ())} - {each.get("name") for each in indexes}
    sources = {
        name: source
        for name, source in uv.get("sources", {}).items()
        if all(
            isinstance(each, dict) and each.get("index", "") not in {"", *left_out}
            for each in (source if isinstance(source, list) else [source])
        )
    }
    kept = {"index": indexes, "sources": sources}
    return tomlkit.dumps(
        {
            "project": project,
            "dependency-groups": {name: adapt(entries) for name, entries in groups.items()},
            "tool": {"uv": {name: value for name, value in kept.items() if value}},
        }
    )
