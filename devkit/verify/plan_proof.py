"""The proof of a plan in a throw-away environment: its packages are installed, and the project's first program runs.

GPU libraries are left out: torch is its build for the CPU, and what compiles against CUDA is not installed. The project's
code runs in a copy, with variables from a list and a separate home; the environment is removed in every case.
"""

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, takewhile
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.doctor.known_errors import find_known_errors
from devkit.facts.dependencies import TORCH_FAMILY, Dependencies, Resolved
from devkit.facts.values import Unknown
from devkit.probe.dependencies.imports import MAX_FILES, list_dotted_imports
from devkit.probe.uv_resolver import UNBUILT, UNREACHABLE, build_uv_environment, find_uv, find_uv_cache
from devkit.reading import read_within
from devkit.solver.plan import Plan
from devkit.text import join_words, to_one_line
from devkit.verify import import_child
from devkit.verify.process import CompletedCommand, Progress, run_streaming
from devkit.verify.project_stages import MISSING, RAISED, find_help_commands, find_own_modules, find_programs

DEADLINE_S = 1500.0
"""For everything: most of it is the download of torch."""
PROGRAM_DEADLINE_S = 240.0
MAX_REPAIRS = 3
MAX_UNBUILT = 6
"""Packages that are left out, each after another try, because they do not build."""
MAX_COPIED_BYTES = 16 << 20
"""Larger files of a project are its data, which no import reads."""
_NOT_COPIED = frozenset((".git", ".venv", "venv", "node_modules", "__pycache__", ".devcontainer", "wandb", "outputs"))
_INHERITED = ("LANG", "LC_ALL", "TZ", "OPENBLAS_CORETYPE", "SYSTEMROOT", "SSL_CERT_FILE", "SSL_CERT_DIR")
_QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONFAULTHANDLER": "1",
    "WANDB_MODE": "disabled",
}
"""A program that is only to print its help asks no server and draws no window."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_RUN_BY_DEVKIT = ("pip", "install")


@dataclass(frozen=True)
class PlanProof:
    """The end of the proof. `reason` says why nothing was tried, "" where it was.

    `failures` are what went wrong, each with its file and line; `added` are requirements that repaired others; `left_out`
    are packages that were not installed. `command` is the program that ran, "" where only imports were tried.
    """

    reason: str = ""
    command: str = ""
    failures: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe it in one line, the first of the output."""
        if self.reason:
            return f"not proved: {self.reason}"
        notes = [f"left out: {join_words(self.left_out)}"] if self.left_out else []
        notes += [f"added: {join_words(self.added)}"] if self.added else []
        if self.failures:
            says = ("not proved: it was tried", *self.failures)
        elif not self.command:
            says = (
                "not proved: the guide's first program prints no help, so devkit did not run it; its imports are installed",
            )
        elif "-c" in self.command.split():
            says = (f"not proved: the guide does not mention a program of the project, but runs: {self.command}",)
        else:
            says = (f"proved: imports and first command run ({self.command})",)
        return "; ".join([*says, *notes])


@dataclass
class _Environment:
    """A throw-away environment in `folder`, and the copy of the project."""

    folder: Path
    uv: str
    cache: Path
    ends_at: float
    progress: Progress
    held: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    unbuilt: list[str] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def python(self) -> Path:
        return self.folder / "env" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")

    def run_uv(self, *words: str) -> CompletedCommand:
        """Run uv with its own settings, and no other variable: setup programs of packages run below it."""
        own = {"HOME": str(self.folder / "home"), "UV_CACHE_DIR": str(self.cache)}
        argv = (self.uv, *words, "--no-progress", "--color=never", "--no-config")
        return self._run(argv, self.folder, build_uv_environment() | own, self.ends_at)

    def run_python(self, *words: str) -> CompletedCommand:
        """Run the environment's Python in the copy of the project."""
        scratch = {name: str(self.folder / "home") for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ} | _QUIET | scratch
        inherited["PATH"] = os.pathsep.join((str(self.python.parent), "/usr/local/bin", "/usr/bin", "/bin"))
        inherited["PYTHONPATH"] = os.pathsep.join(str(self.project / each) for each in ("", "src"))
        ends_at = min(self.ends_at, time.monotonic() + PROGRAM_DEADLINE_S)
        return self._run((str(self.python), *words), self.project, inherited, ends_at)

    def _run(self, argv: Iterable[str], folder: Path, inherited: dict[str, str], ends_at: float) -> CompletedCommand:
        left_s = max(0.0, ends_at - time.monotonic())
        return run_streaming([*argv], progress=_ignore, timeout_s=left_s, folder=folder, inherited=inherited)

    def install(self, plan: Plan, resolved: Resolved) -> str:
        """Install the plan's packages; returns why that is not possible, "" where it was done."""
        done = self.run_uv("venv", f"--python={plan.python}", "--no-python-downloads", "env")
        if done.code != 0:
            return f"uv cannot find Python {plan.python} on this machine; --python plans for an installed one"
        compiled = {each.name for each in plan.compiled}
        self.left_out += [name for name, _ in resolved.packages if name in compiled]
        self.held = {name: version for name, version in resolved.packages if name not in compiled}
        family = [f"{name}=={self.held[name]}" for name in TORCH_FAMILY if name in self.held]
        if family:
            self.progress(f"{join_words(family)} for the CPU …")
            index = re.sub(r"[^/]+$", "cpu", plan.torch_index.rstrip("/"))
            done = self._install("--no-deps", f"--default-index={index}", *family)
            if done.code != 0 and "UV_FIND_LINKS" in build_uv_environment():
                # A folder of wheels, which the user has named, may have it, and the index what is built beside it.
                done = self._install("--no-deps", *family)
            if done.code != 0:
                return f"the CPU build of {join_words(family)} cannot be installed: {_shorten(done)}"
        for _ in range(MAX_UNBUILT):
            others = [f"{name}=={version}" for name, version in self.held.items() if name not in TORCH_FAMILY]
            self.progress(f"{len(others)} packages …")
            done = self._install("--no-deps", *others) if others else done
            failed = UNBUILT.search("\n".join(done.log))
            name = canonicalize_name(failed["name"]) if failed else ""
            if done.code == 0 or name not in self.held:
                break
            self.unbuilt.append(f"{name} {self.held.pop(name)} does not build")
        return "" if done.code == 0 else f"the packages cannot be installed: {_shorten(done)}"

    def _install(self, *words: str) -> CompletedCommand:
        return self.run_uv("pip", "install", f"--python={self.python}", "--link-mode=copy", *words)

    def repair(self, requirements: Iterable[str]) -> bool:
        """Install what repairs a failure beside what is held; returns whether that was possible."""
        wanted = [Requirement(each) for each in requirements]
        names = {canonicalize_name(each.name) for each in wanted}
        if not wanted or names & {*TORCH_FAMILY}:
            return False
        held = [f"{name}=={version}" for name, version in self.held.items() if name not in names]
        (self.folder / "held.txt").write_text("\n".join(held), encoding="utf-8")
        return self._install("--constraints=held.txt", *map(str, wanted)).code == 0


def _ignore(_: str) -> None:
    """Print nothing of what programs say: their last lines are judged."""


def prove_plan(root: Path, dependencies: Dependencies, plan: Plan, command: str, progress: Progress) -> PlanProof:
    """Try the plan of the project in the folder `root`. `command` is the user's own, "" for the first of its guide.

    Runs the project's code and the setup programs of its packages: only for who asked for that.
    """
    resolved = plan.resolution
    if not isinstance(resolved, Resolved):
        return PlanProof(resolved.reason if isinstance(resolved, Unknown) else "the project does not list any packages")
    if (uv := find_uv()) is None:
        return PlanProof("uv is not installed")
    words, program = choose_program(root, command)
    if not (words or program):
        return PlanProof("the guide does not mention a program, devkit.toml has no command, and no folder is a package")
    with tempfile.TemporaryDirectory(prefix="devkit-prove-", ignore_cleanup_errors=True) as name:
        trial = _Environment(Path(name), uv, find_uv_cache(uv), time.monotonic() + DEADLINE_S, progress)
        (trial.folder / "home").mkdir()
        try:
            _copy(root, trial.project)
        except OSError as error:
            return PlanProof(
                f"the project cannot be copied to {name}: {error.strerror or to_one_line(str(error))[:200]}"
            )
        if reason := trial.install(plan, resolved):
            return PlanProof(reason, left_out=tuple(trial.left_out))
        added: list[str] = []
        for repairs_left in reversed(range(MAX_REPAIRS + 1)):
            progress(f"{shlex.join(['python', *words]) if words else f'the imports of {program}'} …")
            # All that the guide runs; of these the first that prints help is started, too.
            programs = dict.fromkeys((program, *(path for _, path in find_programs(trial.project)))) if program else ()
            reached = chain(*(list_reached_imports(trial.project, each) for each in programs))
            failures = [*_try_imports(trial, reached), *(_try_command(trial, words) if words else ())]
            repairs = [each for _, fix in failures for each in fix if each not in added]
            if not repairs or not repairs_left or not trial.repair(repairs):
                break
            added += dict.fromkeys(repairs)
        says = tuple(dict.fromkeys((*trial.unbuilt, *(text for text, _ in failures))))
        shown = shlex.join(("python", *words)) if words else ""
        return PlanProof("", shown, says, tuple(added), tuple(trial.left_out))


def choose_program(root: Path, command: str) -> tuple[list[str], str]:
    """Choose the arguments of Python that print help, [] where that is not known, and the program that they run.

    A library without a program is imported.
    """
    for line in (command, *find_help_commands(root, ())) if command else find_help_commands(root, ()):
        try:
            words = shlex.split(line)
        except ValueError:  # a quotation that does not end: the shell would refuse it, too
            continue
        if len(words) > 1 and words[0] in ("python", "python3"):
            return words[1:], _find_program(root, words[1:])
    for _, path in find_programs(root):
        return [], path
    for name, place in find_own_modules(root):
        return ["-c", f"import {name}"], (place / name / "__init__.py").relative_to(root).as_posix()
    return [], ""


def _find_program(root: Path, words: list[str]) -> str:
    """Find the project's file that Python runs with these arguments; "" for a program of somebody else."""
    name = words[1].replace(".", "/") if words[0] == "-m" and len(words) > 1 else words[0]
    names = (f"{name}.py", f"{name}/__main__.py") if words[0] == "-m" else (name,)
    paths = (f"{folder}{each}" for folder in ("", "src/") for each in names)
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


def list_reached_imports(root: Path, program: str) -> tuple[tuple[str, str, int], ...]:
    """List the modules of others that a program of the project imports at once, itself and by modules of the project.

    Returns: each full name, as list_dotted_imports has it, with the file and line of its first import. Modules below `try` do
    not count; at most `MAX_FILES` files are read.
    """
    # A guide enters one of these folders, or the program itself adds it to the path.
    roots = [*takewhile(root.__ne__, (root / program).parents), root, root / "src"]
    waiting, seen = [root / program], {root / program}
    found: dict[str, tuple[str, str, int]] = {}
    while waiting and len(seen) <= MAX_FILES:
        path = waiting.pop(0)
        dotted = [*list_dotted_imports(read_within(root, path), path.relative_to(root).parts[:-1])]
        reached = [(name, file) for name, _ in dotted for each in roots for file in _find_files(each, name.split("."))]
        own = {name.partition(".")[0] for name, _ in reached} | sys.stdlib_module_names
        for name, line in dotted:
            if name.partition(".")[0] not in own:
                found.setdefault(name, (name, path.relative_to(root).as_posix(), line))
        waiting += [file for _, file in dict.fromkeys(reached) if file not in seen]
        seen.update(file for _, file in reached)
    return tuple(found.values())


def _find_files(root: Path, names: list[str]) -> list[Path]:
    """Find the files of the project that an import of a dotted name runs; a folder alone is a package, too."""
    found = []
    for count in range(1, len(names) + 1):
        place = root.joinpath(*names[:count])
        files = [each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()]
        found += files[:1]
        if not files and not place.is_dir():
            break
    return found


_Failure = tuple[str, tuple[str, ...]]
"""What went wrong, with its file and line, and the requirements that repair it."""


def _try_imports(trial: _Environment, imports: Iterable[tuple[str, str, int]]) -> Iterator[_Failure]:
    """Import each module in one process, and yield the failures."""
    origins = {name.partition(".")[0]: f"{path}:{line}" for name, path, line in reversed([*imports])}
    if not origins:
        return
    done = trial.run_python(import_child.__file__, "imports", *origins)
    try:
        replies: dict[str, dict[str, str]] = json.loads(done.out.splitlines()[-1])
    except (ValueError, IndexError):
        yield f"importing {join_words(list(origins)[:4])} …: {done.last_line}", ()
        return
    for module, failure in replies.items():
        if failure:
            yield _judge(f"{failure['error']}: {failure['message']}", module, origins[module], failure["missing"])


def _try_command(trial: _Environment, words: list[str]) -> Iterator[_Failure]:
    """Run the program, and yield its failure."""
    done = trial.run_python(*words)
    if done.code == 0:
        return
    raised = next((match for line in reversed(done.log) if (match := RAISED.match(line.strip()))), None)
    frames = [match for line in done.log if (match := _FRAME.match(line))]
    own = [each for each in frames if Path(each["file"]).is_relative_to(trial.project)] or frames
    origin = words[0]
    if own:
        path = Path(own[-1]["file"])
        shown = path.relative_to(trial.project) if path.is_relative_to(trial.project) else Path(path.name)
        origin = f"{shown.as_posix()}:{own[-1]['line']}"
    ended = "it did not end" if done.code is None else done.last_line
    text = f"{raised['error']}: {raised['message']}" if raised else ended
    missing = MISSING.search(text)
    yield _judge(text, "python " + " ".join(words), origin, missing[1] if missing else "")


def _judge(text: str, what: str, origin: str, missing: str) -> _Failure:
    """Describe a failure, and find the requirements by which one package or one row of the catalog repairs it."""
    missing = missing.partition(".")[0]
    if missing:
        imports = load_tables().imports
        name = imports.distributions().get(missing, "")
        return f"{origin} needs {missing}, which is not installed", (
            name + imports.limits().get(name, ""),
        ) if name else ()
    matches = find_known_errors(text, is_ours=True)
    fix = [each for command in (matches[0].fix.commands if matches else ()) for each in _list_requirements(command)]
    cause = f" ({matches[0].code or 'known'}: {matches[0].cause})" if matches else ""
    return f"{what} ({origin}): {' '.join(text.split())[:240]}{cause}", tuple(fix)


def _list_requirements(command: str) -> Iterator[str]:
    """List the requirements with a version that a `pip install` names."""
    words = shlex.split(command)
    if tuple(words[:2]) != _RUN_BY_DEVKIT or any(each.startswith("--index-url") for each in words):
        return
    for word in words[2:]:
        try:
            if Requirement(word).specifier:
                yield word
        except InvalidRequirement:
            continue


def _shorten(done: CompletedCommand) -> str:
    """Return uv's error in one line."""
    text = " ".join(" ".join(done.log).partition("error:")[2].split())
    if any(word in text.lower() for word in UNREACHABLE):
        return "uv cannot reach the package index"
    return text[:240] or ("the time ran out" if done.code is None else done.last_line)
