"""Run `devkit init` on public repositories and check what it wrote against what their README's first step needs.

    python -m benchmarks.real_repositories FOLDER [--only NAME]… [--record]      (FOLDER/OWNER+NAME are clones)
    python -m benchmarks.real_repositories FOLDER --clone             (clones what is missing, where there is a network)

Of each repository: `init` ends with a plan; its own files are kept; uv resolves the very files that the image installs, by the
command lines of the Dockerfile and for the plan's Python; the packages, system packages and compilers that the first step needs
are among them. A repository works if all of this holds. No image is built here: tests/engine and the recorded builds do that.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import record_rows, versions

REPOSITORIES = Path(__file__).parent / "real_repositories.toml"
MACHINE = ("--driver", "570.124.06", "--gpu", "RTX 4090")
WRITTEN = re.compile(r"printf '%s\\n'((?:\s+'[^']*'|\s+[^\s'>&]+)+)\s+> /mnt/work/project\.txt")
EXPORTERS = ("uv export", "poetry export", "pdm export", "pipenv requirements")


@dataclass
class Row:
    """What was seen of one repository; each text in `problems` is a reason why it does not work."""

    name: str
    held_out: bool = False
    seconds: float = 0.0
    headline: str = ""
    files: int = 0
    lines: int = 0
    resolved: int = 0
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def examine(repository: dict[str, Any], source: Path) -> Row:
    """Run `devkit init` in a copy of the repository and check what it wrote."""
    row = Row(str(repository["name"]), held_out="held_out" in repository)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / source.name.partition("+")[2]
        shutil.copytree(source, root, symlinks=True)
        _git(root, "init", "--quiet")
        _git(root, "add", "--all", "--force")
        _git(root, "-c", "user.name=devkit", "-c", "user.email=devkit@localhost", "commit", "--quiet", "--message=copy")
        argv = [sys.executable, "-m", "devkit", "init", str(root), *MACHINE, "--yes", *repository.get("options", [])]
        started = time.monotonic()
        done = subprocess.run([*argv, "--json"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        row.seconds = time.monotonic() - started
        if done.returncode:
            row.problems.append(f"init exits {done.returncode}: {_shorten(done.stdout + done.stderr)}")
            return row
        document = json.loads(done.stdout)
        row.warnings = list(document.get("warnings") or [])
        plan = document.get("plan") or {}
        row.headline = f"{plan.get('base_image')} torch {plan.get('torch')} ({plan.get('variant')})"
        _check_files(row, root)
        if "own" in repository:
            text = "".join(
                path.read_text(errors="replace") for path in (root / ".devcontainer").rglob("*") if path.is_file()
            )
            row.problems += [f"its dev container does not say {each}" for each in repository["own"] if each not in text]
        else:
            _check_needs(row, root, plan, repository)
    return row


def _check_files(row: Row, root: Path) -> None:
    changed = _git(root, "status", "--porcelain", "--untracked-files=all").splitlines()
    for line in changed:
        if line[:2] != "??" and not line[3:].startswith((".devcontainer/", ".gitignore", ".dockerignore")):
            row.problems.append(f"its own {line[3:]} was changed")
    written = [root / line[3:] for line in changed if line[:2] == "??"]
    row.files = len(written)
    row.lines = sum(path.read_bytes().count(b"\n") for path in written)


def _check_needs(row: Row, root: Path, plan: dict[str, Any], repository: dict[str, Any]) -> None:
    dockerfile = (root / ".devcontainer" / "Dockerfile").read_text()
    commands = re.sub(r"\\\n", " ", "\n".join(each for each in dockerfile.splitlines() if not each.startswith("#")))
    resolved, problem = resolve(commands, root, plan)
    if problem:
        row.problems.append(f"uv: {problem}")
    row.resolved = len(resolved)
    container = (root / ".devcontainer" / "devcontainer.json").read_text()
    conda = root / ".devcontainer" / "conda.yaml"
    if conda.exists():
        # No channel of conda can be asked here: what micromamba installs is taken from the file.
        resolved |= {
            canonicalize_name(each)
            for each in re.findall(r'^  - "(?:\w+::)?([\w.-]+)', conda.read_text(), re.MULTILINE)
        }
    for name in repository.get("needs", []):
        if canonicalize_name(name) not in resolved and not re.search(rf"\b{re.escape(name)}\b", commands):
            row.problems.append(f"without {name}")
    row.problems += [f"without the system package {each}" for each in repository.get("apt", []) if each not in commands]
    for each in repository.get("compiles", []):
        if "no-build-isolation" not in (container if each == "." else commands + container):
            row.problems.append(f"{each} is built in isolation, without torch")
    if repository.get("nvcc") and not re.search(r"-devel-|nvidia-cuda-nvcc|cuda-nvcc", commands):
        row.problems.append("without CUDA's compiler")


def resolve(commands: str, root: Path, plan: dict[str, Any]) -> tuple[set[str], str]:
    """Resolve what the Dockerfile's installations ask for, with uv alone, all at once; the names, and uv's refusal."""
    words: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        torch = str(plan.get("torch") or "")
        constraints = Path(scratch) / "torch.txt"
        constraints.write_text(f"torch=={torch}\n" if torch else "")
        exported = Path(scratch) / "exported.txt"
        for lines in WRITTEN.findall(commands):
            exported.with_name("project.txt").write_text("".join(f"{line}\n" for line in shlex.split(lines)))
        for command in re.split(r"&&|\n|;(?= )", commands):
            command = command.strip()
            if (start := next((command.index(each) for each in EXPORTERS if each in command), None)) is not None:
                problem = _export(command[start:], root, exported)
                if problem:
                    return set(), problem
            elif "uv pip install" in command and "/opt/devkit" not in command:
                words += _map_words(shlex.split(command.partition("uv pip install")[2]), root, exported)
        if not any(not word.startswith("--") or "=" in word for word in words):
            return set(), ""
        argv = [
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--no-header",
            "--no-annotate",
            "--python-version",
            str(plan.get("python")),
        ]
        argv += ["--constraint", str(constraints), "--python-platform", "x86_64-unknown-linux-gnu"]
        positional = Path(scratch) / "positional.in"
        options = [word for word in words if word.startswith("--")]
        positional.write_text("".join(f"{word}\n" for word in words if not word.startswith("--")))
        paths = [Path(option.partition("=")[2]) for option in options if option.startswith("--requirement=")]
        by_url: set[str] = set()
        sources = [str(_without_urls(path, by_url)) for path in paths]
        others = [option for option in options if not option.startswith(("--requirement=", "--constraint="))]
        if exported.exists():
            pins = {line.split("==")[0].strip() for line in exported.read_text().splitlines() if "==" in line}
            return {canonicalize_name(name.split("[")[0]) for name in pins} | {"torch"}, ""
        done = subprocess.run(
            [*argv, *others, *sources, str(positional)], cwd=root, capture_output=True, text=True, check=False
        )
        names = {
            canonicalize_name(re.split(r"[=@ \[]", line)[0])
            for line in done.stdout.splitlines()
            if re.match(r"\w", line)
        }
        return names | by_url, _shorten(done.stderr) if done.returncode else ""


def _without_urls(path: Path, by_url: set[str]) -> Path:
    """Return a copy of a list without what comes from a URL: a check of versions must not need a clone of every one."""
    if path.suffix not in (".txt", ".in") or not path.exists():
        return path
    kept = []
    for line in path.read_text(errors="replace").splitlines():
        if "://" in line and not line.strip().startswith(("#", "-")):
            found = re.match(
                r"\s*([A-Za-z0-9._-]+)\s*(?:\[.*?\])?\s*@|.*/([A-Za-z0-9._]+?)(?:-[0-9].*\.whl|\.git)", line
            )
            by_url.update(canonicalize_name(each) for each in (found.groups() if found else ()) if each)
            continue
        kept.append(line)
    copy = path.with_name(f"{path.stem}.without-urls{path.suffix}")
    copy.write_text("".join(f"{line}\n" for line in kept))
    return copy


def _map_words(words: list[str], root: Path, exported: Path) -> list[str]:
    """Translate the words of an installation to a compilation on this machine: paths, and no index of torch's own."""
    kept = []
    for word in words:
        if word.startswith(
            ("--default-index", "--index", "--link-mode", "--compile-bytecode", "--no-deps", "--excludes", "--python=")
        ):
            continue
        if "/mnt/work/exported" in word:
            word = f"--requirement={exported}"
        elif "/mnt/work/project.txt" in word:
            word = f"--requirement={exported.with_name('project.txt')}"
        elif "=/mnt/work/" in word:
            continue
        word = word.replace("/mnt/project/", f"{root}/").replace("/mnt/", f"{root}/.devcontainer/")
        kept.append(word)
    return kept


def _export(command: str, root: Path, exported: Path) -> str:
    """Write a lock as requirements by the image's own command; uv's refusal."""
    if not command.startswith("uv export"):
        lock = next(path for path in (root / "poetry.lock", root / "pdm.lock", root / "Pipfile.lock") if path.exists())
        names = re.findall(r'^name = "(.+)"', lock.read_text(), re.MULTILINE)
        exported.write_text("".join(f"{name}==0\n" for name in names))
        return ""
    words = [word for word in shlex.split(command.partition(">")[0]) if not word.startswith("--output-file")]
    argv = [word.replace("/mnt/project", str(root)) for word in words]
    done = subprocess.run([*argv, f"--output-file={exported}"], capture_output=True, text=True, cwd=root, check=False)
    if "python-build-standalone" in done.stderr:
        # uv fetches a Python that the project allows, where this machine has none; without a network the lock's names must do.
        names = re.findall(r'^name = "(.+)"', (root / "uv.lock").read_text(), re.MULTILINE)
        exported.write_text("".join(f"{name}==0\n" for name in names))
        return ""
    return _shorten(done.stderr) if done.returncode else ""


def _git(root: Path, *argv: str) -> str:
    done = subprocess.run(["git", *argv], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout


def _shorten(text: str) -> str:
    return " ".join(text.split())[:400]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", type=Path, default=REPOSITORIES)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--clone", action="store_true")
    parser.add_argument("--record", action="store_true", help="add the rows to results/real_repositories.json")
    options = parser.parse_args()
    rows = []
    for repository in tomllib.loads(options.list.read_text())["repository"]:
        name = repository["name"]
        if options.only and not any(each in name for each in options.only):
            continue
        source = options.folder / name.replace("/", "+")
        if options.clone and not source.exists():
            subprocess.run(["git", "clone", "--quiet", f"https://github.com/{name}", str(source)], check=True)
            subprocess.run(["git", "checkout", "--quiet", repository["commit"]], cwd=source, check=True)
        row = examine(repository, source) if source.exists() else Row(name, problems=["not here"])
        rows.append(row)
        print(
            f"{'works' if not row.problems else 'FAILS':6} {name:40} {row.seconds:5.1f} s {row.files:2} files {row.lines:4} lines"
            f" {row.resolved:3} packages  {row.headline}"
        )
        for problem in row.problems:
            print(f"         - {problem}")
        sys.stdout.flush()
    works = sum(not row.problems for row in rows)
    print(f"{works} of {len(rows)} work")
    if options.record:
        command = " ".join(("devkit init", *MACHINE, "--yes"))
        record_rows(
            "real_repositories",
            [vars(row) for row in rows],
            {"versions": versions("devkit-gpu", "uv"), "command": command},
        )
    return 0 if works == len(rows) else 1


if __name__ == "__main__":
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    sys.exit(main())
