"""A throw-away environment for a plan: its packages without GPU libraries, and releases of them that are tried instead."""

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import Requirement

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import TORCH_FAMILY, PackageRequirement, Resolved
from devkit.probe.uv_resolver import UNBUILT, build_uv_environment, explain_unreachable
from devkit.solver.plan import Plan
from devkit.text import join_words
from devkit.verify import stand_in_child
from devkit.verify.process import CompletedCommand, Progress, run_streaming
from devkit.verify.project_stages import list_import_roots

PROGRAM_DEADLINE_S = 240.0
MAX_UNBUILT = 6
"""Packages that are left out, each after another try, because they do not build."""
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
_ABSENT = re.compile(
    r"(?P<name>[\w.-]+)(?:==\S+ (?:and you require|cannot be used)| was not found in the package registry)"
)
_FILE = re.compile(r"site-packages[/\\]([A-Za-z_]\w*)")
_QUOTED = re.compile(r"'([A-Za-z_]\w*)[\w.]*'")


@dataclass
class Environment:
    """A throw-away environment in `folder`, and the copy of the project. `as_of` is the day of the plan, "" for today.

    `held` are the packages of the plan with their versions, but for `left_out`, which need a GPU's compiler, and `unbuilt`.
    `needs` are the project's own requirements.
    """

    folder: Path
    uv: str
    cache: Path
    ends_at: float
    progress: Progress
    as_of: str
    held: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    unbuilt: list[str] = field(default_factory=list)
    needs: Iterable[PackageRequirement] = ()

    @property
    def project(self) -> Path:
        """The copy of the project."""
        return self.folder / "project"

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "env" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")

    @property
    def _packages(self) -> Path:
        return next(self.folder.glob("env/[Ll]ib/**/site-packages"))

    def run_uv(self, *words: str) -> CompletedCommand:
        """Run uv with its own settings, and no other variable: setup programs of packages run below it."""
        own = {"HOME": str(self.folder / "home"), "UV_CACHE_DIR": str(self.cache)}
        own["UV_PYTHON_INSTALL_DIR"] = str(self.folder / "python")
        argv = (self.uv, *words, "--no-progress", "--color=never", "--no-config")
        return self._run(argv, self.folder, build_uv_environment() | own, self.ends_at)

    def run_python(self, *words: str) -> CompletedCommand:
        """Run the environment's Python in the copy of the project."""
        scratch = {name: str(self.folder / "home") for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ} | _QUIET | scratch
        inherited["PATH"] = os.pathsep.join((str(self.python.parent), "/usr/local/bin", "/usr/bin", "/bin"))
        inherited["PYTHONPATH"] = os.pathsep.join(str(self.project / each) for each in list_import_roots(self.project))
        ends_at = min(self.ends_at, time.monotonic() + PROGRAM_DEADLINE_S)
        return self._run((str(self.python), *words), self.project, inherited, ends_at)

    def _run(self, argv: Iterable[str], folder: Path, inherited: dict[str, str], ends_at: float) -> CompletedCommand:
        left_s = max(0.0, ends_at - time.monotonic())
        # What programs say is not shown: their last lines are judged.
        return run_streaming([*argv], progress=lambda _: None, timeout_s=left_s, folder=folder, inherited=inherited)

    def install(self, plan: Plan, resolved: Resolved, torch_index: str) -> str:
        """Install the plan's packages; returns why that is not possible, "" where it was done."""
        done = self.run_uv("venv", f"--python={plan.python}", "env")
        if done.code != 0:
            return f"uv can neither find nor download Python {plan.python}: uv python install {plan.python}"
        compiled = {each.name for each in plan.compiled}
        self.left_out += [name for name, _ in resolved.packages if name in compiled]
        self.held = {name: version for name, version in resolved.packages if name not in compiled}
        family = [f"{name}=={self.held[name]}" for name in TORCH_FAMILY if name in self.held]
        if family:
            self.progress(f"{join_words(family)} for the CPU …")
            index = re.sub(r"[^/]+$", "cpu", torch_index.rstrip("/"))
            done = self._install("--no-deps", f"--default-index={index}", *family)
            if done.code != 0 and "UV_FIND_LINKS" in build_uv_environment():
                # A folder of wheels, which the user has named, may have it, and the index what is built beside it.
                done = self._install("--no-deps", *family)
            if done.code != 0:
                return f"the CPU build of {join_words(family)} cannot be installed: {_shorten(done)}"
        sources = {each.name: f" @ {each.url}" for each in self.needs if each.url}
        for _ in range(MAX_UNBUILT):
            wanted = [name for name in self.held if name not in TORCH_FAMILY]
            self.progress(f"{len(wanted)} packages …")
            others = [f"{name}{sources.get(name, f'=={self.held[name]}')}" for name in wanted]
            done = self._install("--no-deps", *others) if others else done
            said = " ".join(" ".join(done.log).split())
            failed = UNBUILT.search(said) or _ABSENT.search(said)
            name = canonicalize_name(failed["name"]) if failed else ""
            if done.code == 0 or name not in self.held:
                break
            why = (
                "does not build" if failed and failed.re is UNBUILT else f"is not on the index for Python {plan.python}"
            )
            self.unbuilt.append(f"{name} {self.held.pop(name)} {why}")
        if done.code == 0 and self.left_out:
            # The modules of what is left out can be imported, so that the rest of a program is tried.
            modules = {name.replace("-", "_") for name in self.left_out}
            modules |= {each for each, name in load_tables().imports.distributions().items() if name in self.left_out}
            text = f"{Path(stand_in_child.__file__).read_text(encoding='utf-8')}\nstand_in({sorted(modules)})\n"
            (self._packages / "devkit_stand_ins.py").write_text(text, encoding="utf-8")
            (self._packages / "devkit_stand_ins.pth").write_text("import devkit_stand_ins\n", encoding="utf-8")
        return "" if done.code == 0 else f"the packages cannot be installed: {_shorten(done)}"

    def _install(self, *words: str) -> CompletedCommand:
        return self.run_uv("pip", "install", f"--python={self.python}", "--link-mode=copy", *words)

    def try_release(self, requirement: str) -> dict[str, str]:
        """Install what a requirement asks for beside the other packages of the plan, and what that needs.

        Returns: What was installed before in place of each package that changed, "" for nothing; {} where it is not possible.
        """
        name = canonicalize_name(Requirement(requirement).name)
        if name in TORCH_FAMILY:
            return {}
        before = self.list_installed()
        held = [f"{each}=={version}" for each, version in before.items() if each in self.held and each != name]
        own = [replace(each, url="", extras=()).text for each in self.needs if each.specifier and not each.url]
        (self.folder / "held.txt").write_text("\n".join((*held, *own)), encoding="utf-8")
        until = [f"--exclude-newer={self.as_of}T23:59:59Z"] if self.as_of else []
        if self._install("--constraints=held.txt", *until, requirement).code != 0:
            return {}
        after = self.list_installed()
        return {each: before.get(each, "") for each, version in after.items() if before.get(each) != version}

    def restore(self, changed: Mapping[str, str]) -> None:
        """Undo what a try changed."""
        if added := [name for name, version in changed.items() if not version]:
            self.run_uv("pip", "uninstall", f"--python={self.python}", *added)
        if replaced := [f"{name}=={version}" for name, version in changed.items() if version]:
            self._install("--no-deps", *replaced)

    def list_installed(self) -> dict[str, str]:
        """List what is installed, with versions."""
        names = (each.name.removesuffix(".dist-info").split("-") for each in self._packages.glob("*.dist-info"))
        return {canonicalize_name(each[0]): each[1] for each in names if len(each) == 2}

    def map_modules(self) -> dict[str, str]:
        """Map each top module that is installed to its package."""
        found = {}
        for info in self._packages.glob("*.dist-info"):
            record = info / "RECORD"
            for line in record.read_text(encoding="utf-8").splitlines() if record.is_file() else ():
                top = line.partition("/")[0].partition(".py,")[0]
                found[top] = canonicalize_name(info.name.partition("-")[0])
        return found

    def list_owners(self, text: str) -> dict[str, str]:
        """List the packages of a traceback, from the one that was called first to what its last line names, with versions."""
        last = text.rstrip().rpartition("\n")[2]
        installed, modules = self.list_installed(), self.map_modules()
        tops: Iterator[str] = (each for found in (_FILE.findall(text), _QUOTED.findall(last)) for each in found)
        names = [modules[each] for each in tops if each in modules]
        # Each at its last place: what raises the error is the end of the chain.
        order = reversed(dict.fromkeys(reversed(names)))
        return {each: installed[each] for each in order if each in installed}


def _shorten(done: CompletedCommand) -> str:
    """Return uv's error in one line."""
    text = " ".join(" ".join(done.log).partition("error:")[2].split())
    return explain_unreachable(text) or text[:240] or ("the time ran out" if done.code is None else done.last_line)
