"""The proof of a plan in a throw-away environment: its packages are installed, and the project's first program runs.

GPU libraries are left out: torch is its build for the CPU, and what compiles against CUDA is not installed. The project's
code runs in a copy, with variables from a list and a separate home; the environment is removed in every case.
"""

import json
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cache, partial
from itertools import chain, pairwise, takewhile
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from devkit.compat.version_tables import load_tables
from devkit.doctor.known_errors import explain_text, find_known_errors
from devkit.facts.dependencies import CondaPackage, Dependencies, Resolved
from devkit.facts.values import Unknown
from devkit.probe.dependencies.conda import convert_conda_version
from devkit.probe.dependencies.imports import MAX_FILES, list_dotted_imports
from devkit.probe.project.reader import read_last_change
from devkit.probe.release_names import list_wheels, read_history
from devkit.probe.uv_resolver import find_uv, find_uv_cache
from devkit.reading import read_within
from devkit.solver.plan import Plan
from devkit.text import join_some, join_words, to_one_line
from devkit.verify import import_child
from devkit.verify.process import Progress
from devkit.verify.project_stages import (
    MISSING,
    RAISED,
    find_help_commands,
    find_own_modules,
    find_own_scripts,
    find_programs,
    list_import_roots,
)
from devkit.verify.throwaway import Environment

DEADLINE_S = 1500.0
"""For everything: most of it is the download of torch."""
MAX_REPAIRS = 3
"""Rounds in which something is tried for each failure."""
SAME_TIME = timedelta(days=45)
"""Releases that are further apart may not be made for each other."""
MAX_COPIED_BYTES = 16 << 20
"""Larger files of a project are its data, which no import reads."""
_NOT_COPIED = frozenset((".git", ".venv", "venv", "node_modules", "__pycache__", ".devcontainer", "wandb", "outputs"))
_LACKS_GPU = frozenset(("CON001", "DRV001", "DRV014", "PYT001", "PYT006"))
"""Of what a program says where no GPU is visible, or torch's build is the one for the CPU, as here."""
_CONDA_SPEC = re.compile(r"[\w.-]+\s*(?P<version>.*)")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True)
class PlanProof:
    """The end of the proof. `reason` says why nothing was tried, "" where it was.

    `failures` are what went wrong, each with its file and line; `added` are requirements that repaired others; `left_out`
    are packages that were not installed. `command` is the program that ran, "" where only imports were tried. `tried` are
    the versions of all packages that were installed, and `stops` the places that only a GPU lets a program pass.
    """

    reason: str = ""
    command: str = ""
    failures: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    tried: tuple[tuple[str, str], ...] = ()
    stops: tuple[str, ...] = ()
    of_conda: tuple[str, ...] = ()
    """Packages of conda that were tried as those of the index with the same name."""

    def describe(self, planned: Iterable[tuple[str, str]]) -> str:
        """Describe it in one line, the first of the output. `planned` are the packages of the plan that is written."""
        if self.reason:
            return f"not proved: {self.reason}"
        notes = (
            [f"not tried: {join_words(self.left_out)}, in place of which empty modules stood"] if self.left_out else []
        )
        notes += [f"added: {join_words(self.added)}"] if self.added else []
        notes += (
            [f"tried from the package index in place of conda: {join_some(self.of_conda)}"] if self.of_conda else []
        )
        # torch's build for the CPU, 2.15.0+cpu, stands for the planned one.
        tried = {name: version.partition("+")[0] for name, version in self.tried}
        others = [
            f"{name} {version} (tried: {tried[name]})"
            for name, version in planned
            if tried.get(name, version) != version.partition("+")[0]
        ]
        notes += [f"planned, but not tried: {join_some(others)}"] if others else []
        if self.failures:
            says = ("not proved: it was tried", *self.failures)
        elif self.stops:
            says = (f"not proved: it runs without a failure up to {join_words(self.stops)}, which needs a GPU",)
        elif not self.command:
            says = (
                "not proved: the guide's first program prints no help, so devkit did not run it; its imports are installed",
            )
        elif self.command.startswith("python -c "):
            says = (f"not proved: the guide does not mention a program of the project, but runs: {self.command}",)
        else:
            says = (f"proved: imports and first command run ({self.command})",)
        return "; ".join([*says, *notes])


def prove_plan(
    root: Path, dependencies: Dependencies, plan: Plan, command: str, progress: Progress, *, torch_index: str = ""
) -> PlanProof:
    """Try the plan of the project in the folder `root`. `command` is the user's own, "" for the first of its guide.

    `torch_index` is the mirror of the plan's own, "" for none.

    Runs the project's code and the setup programs of its packages: only for who asked for that.
    """
    resolved = plan.resolution
    if not isinstance(resolved, Resolved):
        return PlanProof(resolved.reason if isinstance(resolved, Unknown) else "the project does not list any packages")
    if (uv := find_uv()) is None:
        return PlanProof("uv is not installed")
    words, program, shown = choose_program(root, command)
    if not (words or program):
        return PlanProof("the guide does not mention a program, devkit.toml has no command, and no folder is a package")
    with tempfile.TemporaryDirectory(prefix="devkit-prove-", ignore_cleanup_errors=True) as name:
        trial = Environment(Path(name), uv, find_uv_cache(uv), time.monotonic() + DEADLINE_S, progress, plan.as_of)
        aside = {each.partition("=")[0] for each in plan.overrides}
        trial.needs = [each for each in dependencies.needs if each.name not in aside]
        (trial.folder / "home").mkdir()
        try:
            _copy(root, trial.project)
        except OSError as error:
            return PlanProof(
                f"the project cannot be copied to {name}: {error.strerror or to_one_line(str(error))[:200]}"
            )
        if reason := trial.install(plan, resolved, torch_index or plan.torch_index):
            return PlanProof(reason, left_out=tuple(trial.left_out))
        of_conda = tuple(_install_for_conda(trial, dependencies.conda))
        progress(f"{shown or f'the imports of {program}'} …")
        # All that the guide runs; of these the first that prints help is started, too.
        programs = (program, *(path for _, path in find_programs(trial.project))) if program else ()
        reached = list_reached_imports(trial.project, programs)
        repair = _Repair(
            trial,
            {each.name for each in dependencies.conda},
            lambda: [*_try_imports(trial, reached), *(_try_command(trial, words, shown) if words else ())],
        )
        failures = repair.run(plan.as_of or read_last_change(root), plan.python)
        says = (*trial.unbuilt, *(each.text for each in failures if not each.needs_gpu))
        return PlanProof(
            "",
            shown,
            tuple(dict.fromkeys(says)),
            tuple(repair.kept),
            tuple(trial.left_out),
            tuple(trial.list_installed().items()),
            tuple(dict.fromkeys(each.origin for each in failures if each.needs_gpu)),
            of_conda,
        )


def _install_for_conda(trial: Environment, packages: Iterable[CondaPackage]) -> Iterator[str]:
    """Install the index's packages of the same names in place of conda's, and yield those that it has."""
    for each in packages:
        found = _CONDA_SPEC.fullmatch(each.spec.rpartition("::")[2])
        if each.name and found and trial.try_release(f"{each.name}{convert_conda_version(found['version'])}"):
            yield each.name


@dataclass(frozen=True)
class _Failure:
    """A failure as it is shown, and as the program says it, from the traceback on.

    `origin` is its file and line. `missing` is a top module that no package has, "" for another failure; what a machine with
    a GPU would not say `needs_gpu`.
    """

    text: str
    said: str
    origin: str = ""
    missing: str = ""
    needs_gpu: bool = False
    what: frozenset[str] = frozenset()
    """The imports and the program that it ends."""

    @property
    def error(self) -> str:
        """The error alone, by which a failure is known again."""
        return self.said.rstrip().rpartition("\n")[2]


class _Repair:
    """Tries other releases where something fails, and keeps what helps. `kept` are their requirements.

    The packages `elsewhere` are in the image, but not from the package index.
    """

    def __init__(self, trial: Environment, elsewhere: Collection[str], run: Callable[[], list[_Failure]]) -> None:
        self._trial = trial
        self._elsewhere = elsewhere
        self._run = run
        self._waiting: dict[str, list[str]] = {}
        """What was not tried yet, by the error that it may repair."""
        self.kept: dict[str, dict[str, str]] = {}
        """What each requirement that helped changed."""

    def run(self, day: str, python: str) -> list[_Failure]:
        """Run until nothing fails, or nothing is left to try; returns what fails. `day` is that of the project's code."""
        failures = best = self._run()
        tried: dict[str, str] = {}
        for _ in range(MAX_REPAIRS):
            for each in (one for one in failures if not one.needs_gpu):
                waiting = self._waiting.setdefault(each.error, [*dict.fromkeys(self._list_repairs(each, day, python))])
                while waiting and each.error not in tried.values():
                    requirement = waiting.pop(0)
                    if requirement not in self.kept and (changed := self._trial.try_release(requirement)):
                        self._trial.progress(f"with {requirement} …")
                        self.kept[requirement], tried[requirement] = changed, each.error
            if not tried:
                break
            before, failures = failures, self._run()
            left = {each.error for each in failures}
            # What worked before must not pay for it.
            is_harm = not _list_ended(failures) <= _list_ended(before)
            for requirement in [each for each, error in tried.items() if is_harm or error in left]:
                self._trial.restore(self.kept.pop(requirement))
            failures = before if is_harm else failures
            tried.clear()
        # A program that now gets as far as it can without a GPU fails no more.
        if sum(not each.needs_gpu for each in failures) >= sum(not each.needs_gpu for each in best):
            for changed in reversed(self.kept.values()):
                self._trial.restore(changed)
            self.kept.clear()
            return best
        return failures

    def _list_repairs(self, failure: _Failure, day: str, python: str) -> Iterator[str]:
        """Yield the requirements that may repair a failure, the most likely first."""
        if failure.missing:
            imports = load_tables().imports
            name = imports.distributions().get(failure.missing, "")
            if name and name not in self._elsewhere:
                yield name + imports.limits().get(name, "")
            return
        owners = self._trial.list_owners(failure.said)
        stated = "".join(f"\n{name}=={version}" for name, version in owners.items())
        answer = explain_text(failure.said + stated, is_ours=True, read_history=read_history)
        yield from chain(*(_list_requirements(each) for match in answer.matches for each in match.fix.commands))
        yield from _list_of_day(owners, day, python)


def _list_ended(failures: Iterable[_Failure]) -> frozenset[str]:
    return frozenset(chain.from_iterable(each.what for each in failures if not each.needs_gpu))


def _list_of_day(owners: Mapping[str, str], day: str, python: str) -> Iterator[str]:
    """Yield requirements that put the last two packages of a traceback to the same time: the newer one is bound.

    `day` stands for the caller of a single package: the project's code.
    """
    packages = [*owners.items()][-2:]
    releases = {name: list_wheels(name) for name, _ in packages}
    days = {"": day}
    for name, version in packages:
        wheels = releases[name]
        found = [] if isinstance(wheels, Unknown) else [each for each in wheels if str(each.version) == version]
        days[name] = found[0].day if found else ""
    callers = ("", *(name for name, _ in packages))
    for one, other in pairwise(callers[-2:]):
        if not (days[one] and days[other]):
            continue
        older, newer = sorted((one, other), key=days.__getitem__)
        until = date.fromisoformat(days[older]) + SAME_TIME
        wheels = releases.get(newer, Unknown(""))
        if date.fromisoformat(days[newer]) <= until or isinstance(wheels, Unknown):
            continue
        if fits := [each for each in wheels if each.day and each.day <= str(until) and each.runs_on(python)]:
            yield f"{newer}<={fits[-1].version}"


def choose_program(root: Path, command: str) -> tuple[list[str], str, str]:
    """Choose the arguments of Python that print help, [] where that is not known, the program that they run, and how to show it.

    A library without a program is imported.
    """
    scripts = find_own_scripts(root)
    for line in (command, *find_help_commands(root, ())) if command else find_help_commands(root, ()):
        try:
            words = shlex.split(line)
        except ValueError:  # a quotation that does not end: the shell would refuse it, too
            continue
        if len(words) > 1 and words[0] in ("python", "python3"):
            return words[1:], _find_program(root, words[1:]), shlex.join(("python", *words[1:]))
        if words and words[0] in scripts:
            # The project is not installed here, and the script would do no more than this.
            path, module, function = scripts[words[0]]
            start = f"import sys; from {module} import {function.partition('.')[0]}; sys.exit({function}())"
            return ["-c", start, *words[1:]], path, shlex.join(words)
    for _, path in find_programs(root):
        return [], path, ""
    for name, place in find_own_modules(root):
        words = ["-c", f"import {name}"]
        return words, (place / name / "__init__.py").relative_to(root).as_posix(), shlex.join(("python", *words))
    return [], "", ""


def _find_program(root: Path, words: list[str]) -> str:
    """Find the project's file that Python runs with these arguments; "" for a program of somebody else."""
    name = words[1].replace(".", "/") if words[0] == "-m" and len(words) > 1 else words[0]
    names = (f"{name}.py", f"{name}/__main__.py") if words[0] == "-m" else (name,)
    paths = (f"{folder}{each}" for folder in list_import_roots(root) for each in names)
    return next((path for path in paths if (root / path).is_file() and ".." not in path), "")


def _copy(root: Path, target: Path) -> None:
    """Copy what a program may import or read at its start; links are copied as links, and lead where they did."""

    def leave_out(folder: str, names: list[str]) -> set[str]:
        paths = {name: Path(folder, name) for name in names}
        return {
            name
            for name, path in paths.items()
            if name in _NOT_COPIED
            or not (path.is_dir() or path.is_file())
            or (path.is_file() and path.stat().st_size > MAX_COPIED_BYTES)
        }

    shutil.copytree(root, target, symlinks=True, ignore=leave_out)


def list_reached_imports(root: Path, programs: Iterable[str]) -> tuple[tuple[str, str, int], ...]:
    """List the modules of others that programs of the project import at once, themselves and by modules of the project.

    Returns: each full name, as list_dotted_imports has it, with the file and line of its first import. Modules below `try` do
    not count; at most `MAX_FILES` files are read for the programs of one folder.
    """
    folders: dict[Path, list[Path]] = {}
    for each in dict.fromkeys(root / program for program in programs):
        folders.setdefault(each.parent, []).append(each)
    found: dict[str, tuple[str, str, int]] = {}
    own_roots = list_import_roots(root)
    for folder, waiting in folders.items():
        # A guide enters one of these folders, or the program itself adds it to the path.
        roots = [*takewhile(root.__ne__, (folder, *folder.parents)), *(root / each for each in own_roots)]
        find_files = cache(partial(_find_files, roots))
        seen = {*waiting}
        while waiting and len(seen) <= MAX_FILES:
            path = waiting.pop(0)
            dotted = [*list_dotted_imports(read_within(root, path), path.relative_to(root).parts[:-1])]
            reached = {name: find_files(name) for name, _ in dotted}
            own = {name.partition(".")[0] for name, files in reached.items() if files} | sys.stdlib_module_names
            for name, line in dotted:
                if name.partition(".")[0] not in own:
                    found.setdefault(name, (name, path.relative_to(root).as_posix(), line))
            new = [file for files in reached.values() for file in files if file not in seen]
            waiting += dict.fromkeys(new)
            seen.update(new)
    return tuple(found.values())


def _find_files(roots: Iterable[Path], name: str) -> list[Path]:
    """Find the files of the project that an import of a dotted name runs; a folder alone is a package, too."""
    found, names = [], name.split(".")
    for root in roots:
        for count in range(1, len(names) + 1):
            place = root.joinpath(*names[:count])
            files = [each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()]
            found += files[:1]
            if not files and not place.is_dir():
                break
    return found


def _try_imports(trial: Environment, imports: Sequence[tuple[str, str, int]]) -> Iterator[_Failure]:
    """Import each name in one process, and yield the failures, each once."""
    if not imports:
        return
    (trial.folder / "imports.json").write_text(json.dumps(imports), encoding="utf-8")
    done = trial.run_python(import_child.__file__, "imports", str(trial.folder / "imports.json"))
    try:
        failed: dict[str, str] = json.loads(done.out.splitlines()[-1])
    except (ValueError, IndexError):
        yield _Failure(
            f"importing {join_words([name for name, *_ in imports[:4]])} …: {done.last_line}", done.last_line
        )
        return
    origins = {name: f"{path}:{line}" for name, path, line in reversed(imports)}
    found: dict[str, _Failure] = {}
    for name, said in failed.items():
        failure = _judge(trial, said, name, origins[name])
        first = found.setdefault(failure.error, failure)
        found[failure.error] = replace(first, what=first.what | {name})
    yield from found.values()


def _try_command(trial: Environment, words: list[str], shown: str) -> Iterator[_Failure]:
    """Run the program, and yield its failure."""
    done = trial.run_python(*words)
    if done.code == 0:
        return
    raised = [index for index, line in enumerate(done.log) if RAISED.match(line.strip())]
    frames = [match for line in done.log if (match := _FRAME.match(line))]
    own = [each for each in frames if Path(each["file"]).is_relative_to(trial.project)] or frames
    origin = shown.split()[0] if words[0] == "-c" else words[0]
    if own:
        path = Path(own[-1]["file"])
        place = path.relative_to(trial.project) if path.is_relative_to(trial.project) else Path(path.name)
        origin = f"{place.as_posix()}:{own[-1]['line']}"
    ended = "it did not end" if done.code is None else done.last_line
    failure = _judge(trial, "\n".join(done.log[: raised[-1] + 1]) if raised else ended, shown, origin)
    yield replace(failure, what=frozenset((shown,)))


def _judge(trial: Environment, said: str, what: str, origin: str) -> _Failure:
    """Describe what a failing program says, with its cause if the catalog knows it."""
    error = said.rstrip().rpartition("\n")[2]
    if found := MISSING.search(error):
        top = found[1].partition(".")[0]
        if package := trial.map_modules().get(top):
            has = f"{package} {trial.list_installed().get(package, '')} does not have"
            return _Failure(f"{origin} needs {found[1]}, which {has}", said, origin)
        return _Failure(f"{origin} needs {top}, which is not installed", said, origin, top)
    matches = find_known_errors(error, is_ours=True)
    cause = f" ({matches[0].code or 'known'}: {matches[0].cause})" if matches else ""
    needs_gpu = bool(matches) and matches[0].code in _LACKS_GPU
    return _Failure(f"{what} ({origin}): {' '.join(error.split())[:240]}{cause}", said, origin, needs_gpu=needs_gpu)


def _list_requirements(command: str) -> Iterator[str]:
    """List the requirements with a version that a `pip install` names."""
    words = shlex.split(command)
    if "pip" not in words[:2] or "install" not in words[1:3] or any(each.startswith("--index-url") for each in words):
        return
    for word in words[2:]:
        with suppress(InvalidRequirement):
            if Requirement(word).specifier:
                yield word
