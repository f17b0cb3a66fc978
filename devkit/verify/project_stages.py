"""The stages about the project itself: it and its requirements import, and a command of it runs."""

import json
import platform
import posixpath
import re
import shlex
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

from devkit.compat.specifiers import holds_in_container
from devkit.compat.version_tables import load_tables
from devkit.doctor.known_errors import find_known_errors
from devkit.facts.dependencies import Dependencies, RequirementRole
from devkit.probe.children.protocol import find_signal, format_signal
from devkit.probe.dependencies.steps import read_lines
from devkit.probe.documents import get_object, get_texts
from devkit.probe.machine.interpreter import WorkloadPython
from devkit.reading import read_within
from devkit.text import format_duration
from devkit.verify import import_child
from devkit.verify.process import CompletedCommand, Progress, run_streaming
from devkit.workload.proof.stages import PROJECT_STAGES, StageResult, StageStatus

IMPORT_DEADLINE_S = 90.0
HELP_DEADLINE_S = 60.0
AT_ONCE = 4
MAX_NAMED = 8
"""Failures that the reason of a stage names."""
TIME_RAN_OUT = "the time ran out"

PROVED = frozenset({"torch", "transformers", "peft", "accelerate", "bitsandbytes"})
"""Packages that the proof imports, each in a separate stage."""
_NO_PACKAGE = re.compile(
    r"[._].*|tests?|testing|docs?|examples?|samples?|benchmarks?|scripts|tools|build|dist|assets|notebooks|conftest|setup"
)
_COMMAND = re.compile(
    r"\s*(?:[$>-] *)?(?:\w+=\S+ +)*(?:(?:nohup|time|exec|srun(?: +-\S+)*) +)?"
    r"(?P<manager>(?:uv|poetry) +run +(?:(?:--(?:extra|(?:only-)?group|with|python|package|env-file) +\S+|--?[\w-]+(?:=\S+)?) +)*)?"
    r"(?:(?:python3? +-m +)?(?:uvicorn|streamlit +run) +(?P<served>[\w./]+)"
    r"|(?:python3?(?: +-[uOBEsI]+)*|(?:accelerate +launch|torchrun|deepspeed)(?: +-\S+(?: +(?!-|\S*\.py(?:\s|$))\S+)?)*"
    r"|(?(manager)|(?!))) *(?:(?<= )-m +(?P<module>[\w.]+)|(?<= )(?P<file>[\w./-]+\.py))(?!\S)"
    r"|(?:(?:bash|sh|source|\.|sbatch(?: +-\S+)*) +)?(?P<shell>[\w./-]+\.(?:sh|slurm|sbatch))(?!\S)"
    r"|(?P<script>[\w.-]+)(?!\S))"
)
"""A command that runs a program of the project, or a shell script that may."""
_ENTERS = re.compile(r"\s*(?:[$>] *)?cd +([\w./-]+)\s*$")
_MAX_SCRIPTS = 20
_MAX_MEMBERS = 50
_LONGEST = 2000
"""Characters of a command, or of a line of a shell script."""
_ASSIGNMENT = re.compile(r"""^\s*(?:export +)?(\w+)=["']?([^"'\s]*)""", re.MULTILINE)
_UNKNOWN_FOLDER = re.compile(r"\$(?:\{[^{}]*\}|\([^()]*\)|\w+)/")
_ENTRY_POINT = re.compile(r"""^\s*["']?([\w.-]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)["']?,?\s*\]?$""", re.MULTILINE)
"""A console script of setup.cfg or setup.py, alone in its line."""
_PARSES_ARGUMENTS = re.compile(
    r"\b(?:argparse|click|typer|fire|absl|tyro|docopt|hydra|jsonargparse|simple_parsing|HfArgumentParser)\b"
)
"""A program that parses its arguments prints help and does nothing else; another would start to train."""

_LIBRARY = re.compile(r"(?P<name>lib[\w.+-]+?)\.so\.?(?P<version>[\d.]*): cannot open shared object file")
_NOT_OF_DEBIAN = re.compile(
    r"lib(?:cuda\w*|cublas\w*|cudnn\w*|cufft\w*|curand|cusolver\w*|cusparse\w*|cupti|cufile\w*|nv\w+|nccl|torch\w*|c10\w*|python)"
    r"(?:[-_.\d].*)?"
)
_OF_GLIB = re.compile(r"lib(?:glib|gobject|gio|gmodule|gthread)-2\.0")
RAISED = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|NotFound)): (?P<message>.*)$")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+')
MISSING = re.compile(r"No module named '?([\w.]+)")
_BREAKS = ("Traceback (most recent call last)", "error while loading shared libraries", "Fatal Python error")


@dataclass(frozen=True)
class ProjectEnvironment:
    """The project in `folder`, what its files require, and the interpreter of its environment.

    `left_out` are requirements that the plan leaves out of the image, because they cannot be compiled for it.
    """

    folder: Path
    dependencies: Dependencies
    python: WorkloadPython
    left_out: tuple[str, ...] = ()

    @property
    def requirements(self) -> dict[str, str]:
        """The distributions that the project requires here, and the file and line that says so."""
        version = self.python.version.minor
        return {
            need.name: need.origin
            for need in self.dependencies.needs
            if need.role is not RequirementRole.CONSTRAINT
            and need.name not in self.left_out
            and (not need.marker or holds_in_container(need.marker, machine=platform.machine(), python=version))
        }

    @property
    def required_names(self) -> set[str]:
        """The names of the requirements, as modules that are called like their distribution have them."""
        return {name.replace("-", "_") for name in self.requirements}


def prove_project(
    project: ProjectEnvironment, command: str, *, ends_at: float, progress: Progress
) -> Iterator[StageResult]:
    """Yield the result of each stage about the project, until the monotonic clock reads `ends_at`.

    `command` is the user's own, "" to run what the project documents with --help.
    """
    if time.monotonic() > ends_at:
        yield from (StageResult(stage.name, StageStatus.SKIPPED, reason=TIME_RAN_OUT) for stage in PROJECT_STAGES)
        return
    argv = [project.python.executable, import_child.__file__, "list", str(project.folder), *project.requirements]
    found = _read_reply(_run(argv, project.folder, IMPORT_DEADLINE_S, ends_at)) or {}
    modules, is_installed, scripts = found.get("modules", {}), bool(found.get("own")), tuple(found.get("scripts", ()))
    provers: dict[str, Callable[[], StageResult]] = {
        "imports": lambda: prove_imports(project, modules, is_installed=is_installed, ends_at=ends_at),
        "command": lambda: prove_command(project, command, scripts, ends_at=ends_at),
    }
    for name, prove in provers.items():
        progress(f"{name} …")
        start = time.perf_counter()
        result = prove()
        result = replace(result, ms=(time.perf_counter() - start) * 1000)
        because = f": {result.reason}" if result.reason else ""
        progress(f"{name} {result.status} in {format_duration(result.ms / 1000)}{because}")
        yield result


def _run(
    argv: Sequence[str], folder: Path, timeout_s: float, ends_at: float, is_canceled: Callable[[], bool] = bool
) -> CompletedCommand:
    """Run a command for at most `timeout_s` seconds, nor beyond `ends_at` of the monotonic clock."""
    left_s = min(timeout_s, ends_at - time.monotonic())
    return run_streaming(argv, folder=folder, timeout_s=left_s, grace_s=0, is_canceled=is_canceled)


def _read_reply(done: CompletedCommand) -> dict[str, Any] | None:
    """Return what a child printed; None where it ended without."""
    try:
        reply = json.loads(done.out.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return reply if isinstance(reply, dict) else None


def prove_imports(
    project: ProjectEnvironment, modules: Mapping[str, list[str] | None], *, is_installed: bool, ends_at: float
) -> StageResult:
    """Import each package of the project and each that it requires, in a separate process.

    `modules` are those of the required distributions, None for one that is not installed.
    """
    imports = {(name, ""): folder for name, folder in find_own_modules(project.folder, is_installed=is_installed)}
    for distribution, names in modules.items():
        named = [name for name in names or () if name not in PROVED and not _NO_PACKAGE.fullmatch(name)]
        imports |= {(name, distribution): project.folder for name in named}
    reasons = [
        f"{distribution}: {project.requirements[distribution]} requires it, but it is not installed"
        for distribution, names in modules.items()
        if names is None
    ]
    missing = len(reasons)
    if not imports and not missing:
        reason = "no file of the project requires another package, and no folder of it is one"
        return StageResult("imports", StageStatus.SKIPPED, reason=reason)
    known = {name for name, _ in imports} | project.required_names
    child, stopped = (project.python.executable, "-X", "faulthandler", import_child.__file__, "import"), Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            running = {
                key: pool.submit(_run, (*child, key[0]), folder, IMPORT_DEADLINE_S, ends_at, stopped.is_set)
                for key, folder in imports.items()
            }
            for (name, distribution), done in running.items():
                if reason := _judge_import(done.result(), project.folder, known):
                    of = f" ({distribution})" if distribution and distribution != name else ""
                    reasons.append(f"{name}{of}: {reason}")
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
    measured = {"imported": len(imports) - len(reasons) + missing, "failed": len(reasons) - missing}
    expected = {"failed": "0"}
    if missing:
        measured["not_installed"], expected["not_installed"] = missing, "0"
    more = [f"and {len(reasons) - MAX_NAMED} more"] if len(reasons) > MAX_NAMED else []
    status = StageStatus.FAILED if reasons else StageStatus.PASSED
    return StageResult("imports", status, {**measured}, expected, "; ".join([*reasons[:MAX_NAMED], *more]))


def find_own_modules(folder: Path, *, is_installed: bool = False) -> Iterator[tuple[str, Path]]:
    """Yield the project's packages by its layout, and the folder from which they import."""
    for root in (folder / "src", folder):
        packages = [path.parent.name for path in sorted(root.glob("*/__init__.py"))]
        named = [name for name in packages if name.isidentifier() and not _NO_PACKAGE.fullmatch(name)]
        if named:
            # Where the project is installed it imports from everywhere, and its compiled parts perhaps from there alone.
            yield from ((name, folder if is_installed else root) for name in named)
            return


def _judge_import(done: CompletedCommand, folder: Path, known: set[str]) -> str:
    """Return why an import failed; "" where it did not."""
    if done.code is None:
        return f"no answer within {format_duration(IMPORT_DEADLINE_S)}"
    failure = _read_reply(done)
    if failure is None:
        return _describe_end(done)
    return explain_failure(failure, folder, known) if failure else ""


def _describe_end(done: CompletedCommand) -> str:
    number = find_signal(done.code or 0)
    how = f"was ended by {format_signal(number)}" if number else f"ended with status {done.code}"
    fatal = next((line for line in done.log if line.startswith("Fatal Python error")), done.last_line)
    return f"the process {how}: {fatal}"


def explain_failure(failure: Mapping[str, str], folder: Path, known: set[str]) -> str:
    """Return the first cause of an import that failed in the project in `folder`, and what helps where devkit knows it.

    `failure` is what import_child.py prints, `known` are the modules that the project has or requires.
    """
    text = f"{failure['error']}: {failure['message']}"
    library = _LIBRARY.search(text)
    if library and (package := find_debian_package(library["name"], library["version"])):
        return f"{library[0].partition(':')[0]} is missing; Debian has it in {package}: devkit init --apt {package}"
    missing = failure["missing"].partition(".")[0]
    if missing:
        importer, is_own = failure["importer"].replace("\\", "/"), False
        for mark in ("/site-packages/", "/dist-packages/"):
            importer = importer.rpartition(mark)[2]
        if importer.startswith(f"{folder.as_posix()}/"):
            importer, is_own = importer.removeprefix(f"{folder.as_posix()}/"), missing not in known
        undeclared = ", and no requirement of the project names it" if is_own else ""
        name = load_tables().imports.distributions().get(missing)
        advice = f': packages = ["{name}"] under [project] in devkit.toml' if undeclared and name else ""
        return f"{importer or 'it'} imports {missing}, which is not installed{undeclared}{advice}"
    matches = find_known_errors(text, is_ours=True)
    return f"{text} ({': '.join(filter(None, (matches[0].code, matches[0].cause)))})" if matches else text


def find_debian_package(library: str, version: str) -> str:
    """Return the Debian package of a shared library by its name, as policy has it; "" for those of CUDA and Python.

    Source: https://www.debian.org/doc/debian-policy/ch-sharedlibs.html#run-time-shared-libraries.
    """
    if not version or _NOT_OF_DEBIAN.fullmatch(library):
        return ""
    if _OF_GLIB.fullmatch(library):
        return "libglib2.0-0"
    name = library.lower().replace("_", "-")
    return f"{name}{'-' if name[-1].isdigit() else ''}{version}"


def prove_command(
    project: ProjectEnvironment, command: str, scripts: tuple[str, ...], *, ends_at: float
) -> StageResult:
    """Run the user's command, or else what the project documents, with --help.

    For packages that devkit found itself, only a traceback, a crash or a missing library is a failure.
    """
    found = () if command else tuple(dict.fromkeys(find_help_commands(project.folder, scripts)))
    if not command and not found:
        reason = "none: pass one with --command or in devkit.toml; no program in the README prints help"
        return StageResult("command", StageStatus.SKIPPED, reason=reason)
    timeout_s = max(0.0, ends_at - time.monotonic()) if command else HELP_DEADLINE_S
    path = shlex.quote(str(Path(project.python.executable).parent))
    measured: dict[str, str | int | float | bool] = {}
    expected, broken, unjudged = {}, [], []
    for words in (command,) if command else found:
        argv = ("sh", "-c", f'PATH={path}:"$PATH"; export PATH; {words}')
        done = _run(argv, project.folder, timeout_s, ends_at)
        measured[words] = "no exit" if done.code is None else done.code
        reason = "" if done.code == 0 else f"{words}: {_judge_command(done, project, timeout_s)}"
        if (
            command
            or not reason
            or any(mark in line for mark in _BREAKS for line in done.log)
            or find_signal(done.code or 0)
        ):
            expected[words] = "0"
            broken += [reason] if reason else []
        else:
            unjudged.append(reason)
    status = StageStatus.FAILED if broken else StageStatus.PASSED if expected else StageStatus.SKIPPED
    reason = "; ".join(broken or ([] if expected else [f"not checked: {each}" for each in unjudged]))
    return StageResult("command", status, measured, expected, reason)


def find_help_commands(folder: Path, scripts: tuple[str, ...]) -> Iterator[str]:
    """Yield the first program of README that prints help, and the first console script, each with --help."""
    for words, path in find_programs(folder):
        near = (
            [path]
            if words.startswith("python ")
            else [f"{Path(path).parent}/{each.name}" for each in (folder / path).parent.glob("*.py")]
        )
        if words and any(_PARSES_ARGUMENTS.search(read_within(folder, folder / each)) for each in near):
            yield f"{words} --help"
            break
    yield from (f"{shlex.quote(script)} --help" for script in scripts[:1])


def find_programs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the programs of the project that README runs, in its order: the command, "" for a server's, and the file.

    The folder that `cd` leads to counts, and shell scripts are read for what they run.
    """
    name = "[Rr][Ee][Aa][Dd][Mm][Ee]*"
    readmes = sorted(path for path in folder.glob(name) if path.is_file())
    below = [] if readmes else list(islice(folder.glob(f"*/{name}"), 2))
    scripts = find_own_scripts(folder)
    for readme in readmes[:1] or below[: len(below) == 1]:
        section, base, in_words, seen = -1, "", list[str](), set[Path]()
        for line in read_lines(read_within(folder, readme)):
            section, base = line.section, base if line.section == section else ""
            text = line.text.replace("\\\n", " ")
            in_words += [] if line.is_code else [each for each in text.split("`")[1::2] if each.startswith("python")]
            for command in re.split("&&|;", text) if line.is_code else (text,):
                if entered := _ENTERS.match(command):
                    inner = posixpath.normpath(posixpath.join(base, entered[1]))
                    base = inner if (folder / inner).is_dir() and not inner.startswith((".", "/")) else base
                named = _COMMAND.match(command)
                if named and named["script"] in scripts and line.is_code:
                    yield named["script"], scripts[named["script"]][0]
                elif named:
                    yield from _find_run(folder, base, command, seen)
        # What a sentence mentions comes after the commands in separate lines.
        yield from (found for command in in_words for found in _find_run(folder, "", command, seen))


def _find_run(
    folder: Path, base: str, command: str, seen: set[Path], *, is_inner: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the programs that a command of a guide, or an inner one of a shell script, runs in the folder `base`.

    Each script is read once: `seen` are those that were.
    """
    match = _COMMAND.match(command) if len(command) <= _LONGEST else None
    if match is None or match["script"]:
        return
    served = (match["served"] or "").removesuffix(".py").replace(".", "/")
    name = match["file"] or match["shell"] or f"{served or match['module'].replace('.', '/')}.py"
    able = {place: (folder / place / name).resolve() for place in (base, "")}
    root = folder.resolve()
    found = {place: path for place, path in able.items() if path.is_relative_to(root) and path.is_file()}
    for place, path in islice(found.items(), 1):
        relative = path.relative_to(root).as_posix()
        if match["shell"] and path not in seen and len(seen) < _MAX_SCRIPTS:
            seen.add(path)
            text = read_within(folder, path).replace("\\\n", " ")
            values = dict(_ASSIGNMENT.findall(text))
            for line in (each.replace('"', "") for each in text.splitlines() if len(each) <= _LONGEST):
                filled = re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], found[0]), line)  # noqa: B023 - used at once
                where = place or posixpath.dirname(relative)
                yield from _find_run(folder, where, _UNKNOWN_FOLDER.sub("", filled), seen, is_inner=True)
        elif not match["shell"]:
            written = f"-m {match['module']}" if match["module"] else match["file"]
            yield "" if served else f"python {relative if place else written}", relative
    if not found and (match["file"] or served) and ".." not in name and not is_inner:
        # The guide runs it in a folder of the project, mostly after a `cd` that it says in words.
        inner = [
            each.relative_to(folder).as_posix() for each in folder.glob(f"*/{name.removeprefix('./').lstrip('/')}")
        ]
        yield from (("" if served else f"python {each}", each) for each in inner[:1] if len(inner) == 1)


def list_import_roots(folder: Path) -> tuple[str, ...]:
    """List the folders from which a project's modules import, by twos: the project and the members of its uv workspace, and src in each."""
    patterns = get_texts(get_object(_read_pyproject(folder, ""), "tool", "uv", "workspace"), "members")
    inner = (path for each in patterns if ".." not in each and not each.startswith("/") for path in folder.glob(each))
    members = (f"{each.relative_to(folder).as_posix()}/" for each in islice(inner, _MAX_MEMBERS) if each.is_dir())
    return tuple(f"{base}{each}" for base in ("", *sorted(members)) for each in ("", "src/"))


def _read_pyproject(folder: Path, base: str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_within(folder, folder / base / "pyproject.toml"))
    except tomllib.TOMLDecodeError:
        return {}  # what is wrong with it, the plan says


def find_own_scripts(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Find the console scripts of the project by their names: the file, its module, and what is called there."""
    roots = list_import_roots(folder)
    found = []
    for base in roots[::2]:
        table = _read_pyproject(folder, base)
        tables = (get_object(table, "project", "scripts"), get_object(table, "tool", "poetry", "scripts"))
        found += [(name, *str(place).partition(":")[::2]) for each in tables for name, place in each.items()]
        for name in ("setup.cfg", "setup.py"):
            text = read_within(folder, folder / base / name)
            found += _ENTRY_POINT.findall(text) if "console_scripts" in text else []
    scripts = {}
    for name, module, function in found:
        place = module.strip().replace(".", "/")
        able = (f"{base}{place}{end}" for base in roots for end in (".py", "/__init__.py"))
        is_called = all(map(str.isidentifier, function.strip().split(".")))
        if (path := next((each for each in able if (folder / each).is_file()), "")) and is_called:
            scripts[name] = (path, module.strip(), function.strip())
    return scripts


def _judge_command(done: CompletedCommand, project: ProjectEnvironment, timeout_s: float) -> str:
    if done.code is None:
        return f"it did not end within {format_duration(timeout_s)}"
    raised = next((match for line in reversed(done.log) if (match := RAISED.match(line.strip()))), None)
    if raised is None:
        return _describe_end(done)
    missing = MISSING.search(raised["message"])
    frames = [match["file"] for line in done.log if (match := _FRAME.match(line))]
    failure = {**raised.groupdict(), "missing": missing[1] if missing else "", "importer": frames[-1] if frames else ""}
    return explain_failure(failure, project.folder, project.required_names)
