"""Measure how easy the code base is to enter: sizes, names, helpers, import depth, files a command enters.

    python -m benchmarks.code_figures                  # the table of figures
    python -m benchmarks.code_figures --list devkit/render   # what to mend there: helpers, docstrings, names, words
    python -m benchmarks.code_figures --paths          # also trace `explain CODE` and `finetune` to its first step

Counted are the Python files below devkit/. A one-use private helper is a function whose name starts with an underscore
and stands in one other place of its module. The import depth is the longest chain of imports at module level. Files
entered are those with a function that runs, module bodies aside. Words not to use come from docs/glossary.md.
"""

import argparse
import ast
import collections
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from devkit.cli import devkit

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
QUESTION_WORDS = {"How", "What", "When", "Where", "Whether", "Which", "Who", "Whom", "Whose", "Why"}
TRACE = """
import sys, threading
tree, first, *sys.argv = sys.argv[1:]
entered = set()
def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(tree) and code.co_name != "<module>":
        entered.add(code.co_filename)
        if code.co_name == first:
            raise SystemExit
sys.setprofile(note)
threading.setprofile(note)
try:
    from devkit.cli import main
    main()
finally:
    sys.setprofile(None)
    print("entered", len(entered), file=sys.stderr)
"""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Module:
    """One parsed file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")

    def definitions(self) -> Iterator[Definition]:
        yield from (node for node in ast.walk(self.tree) if isinstance(node, Definition))

    def one_use_helpers(self) -> list[Definition]:
        uses = collections.Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        return [
            node
            for node in self.definitions()
            if not isinstance(node, ast.ClassDef)
            and node.name.startswith("_")
            and not node.name.startswith("__")
            and uses[node.name] == 1
        ]

    def question_docstrings(self) -> list[Definition]:
        public = [node for node in self.definitions() if not node.name.startswith("_")]
        return [node for node in public if (ast.get_docstring(node) or "?").split()[0] in QUESTION_WORDS]

    def imports(self) -> Iterator[str]:
        """Names of what it imports at module level, type checkers' imports aside."""
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{each.name}" for each in node.names)


def import_depth(modules: list[Module]) -> int:
    """The longest chain of imports at module level, a circle counted once for each of its members."""
    known = {module.name for module in modules}
    graph = {module.name: {name for name in module.imports() if name in known - {module.name}} for module in modules}
    depths: dict[str, int] = {}

    def depth(name: str, above: tuple[str, ...]) -> int:
        if name not in depths:
            below = [depth(each, (*above, name)) for each in graph[name] if each not in above]
            depths[name] = 1 + max(below, default=0)
        return depths[name]

    return max(depth(name, ()) for name in graph)


def names_in_several_modules(modules: list[Module]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = collections.defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                places[node.name].append(module.name)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def words_not_to_use() -> str:
    """The pattern in the glossary's last code block, for `git grep -E`; nothing without one."""
    blocks = re.findall(r"git grep -nE '([^']+)'", GLOSSARY.read_text(encoding="utf-8") if GLOSSARY.exists() else "")
    return blocks[-1] if blocks else ""


def word_hits(*folders: str) -> list[str]:
    pattern = words_not_to_use()
    if not pattern:
        return []
    argv = ["git", "grep", "-nE", pattern, "--", *folders, ":!docs/glossary.md"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def files_entered(first: str, *argv: str) -> str:
    """How many files of devkit a command runs through, until the function `first` is called, "" for its end."""
    ended = subprocess.run(
        [sys.executable, "-c", TRACE, str(ROOT / "devkit"), first, "devkit", *argv],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    found = re.findall(r"^entered (\d+)$", ended.stderr, re.MULTILINE)
    return found[-1] if found else f"not measured: {ended.stderr.strip().splitlines()[-1:]}"


def finetune_path() -> str:
    """Files entered by a run on a tiny model made on the spot, up to its first optimizer step."""
    with tempfile.TemporaryDirectory() as folder:
        example = ROOT / "examples" / "ask-about-a-text"
        model = Path(folder, "model")
        made = subprocess.run(
            [sys.executable, str(example / "make_model.py"), str(model)], capture_output=True, text=True, cwd=folder
        )
        if made.returncode:
            return f"not measured: {made.stderr.strip().splitlines()[-1:]}"
        data, output = str(example / "text.jsonl"), str(Path(folder, "out"))
        # torch's AdamW steps in here, whichever of devkit's optimizers it is.
        argv = ("finetune", "--model", str(model), "--data", data, "--output", output, "--steps", "1")
        return files_entered("compute_learning_rate", *argv)


def init_path() -> str:
    """Count the files that `devkit init` enters for a project with two requirements, without a network."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "requirements.txt").write_text("torch\ntransformers\n", encoding="utf-8")
        return files_entered(
            "", "init", folder, "--gpu", "RTX 4090", "--driver", "580.95.05", "--no-resolve", "--dry-run"
        )


def count_lines(folder: Path) -> int:
    """Count the lines of the Python files below a folder."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in folder.rglob("*.py"))


def count_options(command: click.Command, path: str) -> dict[str, int]:
    """Count the options of a command and of those below it, by path."""
    counts = {path: sum(isinstance(each, click.Option) for each in command.params)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            counts |= count_options(command.get_command(context, name) or command, f"{path} {name}")
    return counts


def print_figures(*, with_paths: bool) -> None:
    modules = [Module(path) for path in sorted((ROOT / "devkit").rglob("*.py"))]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    functions = [node for module in modules for node in module.definitions() if not isinstance(node, ast.ClassDef)]
    helpers = sum(len(module.one_use_helpers()) for module in modules)
    rows = [
        ("product files", "340", str(len(modules))),
        ("product lines", "68,000", f"{sum(module.text.count(chr(10)) for module in modules):,}"),
        ("lines of tests", "50,000", f"{count_lines(ROOT / 'tests'):,}"),
        ("tracked files", "900", f"{len(tracked):,}"),
        (
            "types",
            "520",
            str(sum(isinstance(node, ast.ClassDef) for module in modules for node in module.definitions())),
        ),
        ("options of all commands", "330", str(sum(count_options(devkit, "devkit").values()))),
        ("options of the largest command", "35", str(max(count_options(devkit, "devkit").values()))),
        ("import depth", "14", str(import_depth(modules))),
        ("one-use private helpers", "15 %", f"{helpers / len(functions):.1%} of {len(functions):,} functions"),
        ("public names in several modules", "40", str(len(names_in_several_modules(modules)))),
        ("question-word docstrings", "0", str(sum(len(module.question_docstrings()) for module in modules))),
        ("lines with words not to use", "0", str(len(word_hits("devkit", "docs", "README.md")))),
    ]
    if with_paths:
        rows += [
            ("files entered by explain CODE", "25", files_entered("", "explain", "DRV001")),
            ("files entered by init of two requirements", "95", init_path()),
            ("files entered by finetune to its first step", "45", finetune_path()),
        ]
    for name, goal, value in rows:
        print(f"{name:45} goal {goal:>7}   {value}")


def print_lists(folder: str) -> None:
    modules = [Module(path) for path in sorted((ROOT / folder).rglob("*.py"))]
    for module in modules:
        shown = module.path.relative_to(ROOT)
        for node in module.one_use_helpers():
            print(f"{shown}:{node.lineno} one use: {node.name} ({(node.end_lineno or 0) - node.lineno + 1} lines)")
        for node in module.question_docstrings():
            print(
                f"{shown}:{node.lineno} question word: {node.name}: {(ast.get_docstring(node) or '').splitlines()[0]}"
            )
    everywhere = [Module(path) for path in sorted((ROOT / "devkit").rglob("*.py"))]
    here = {module.name for module in modules}
    for name, places in names_in_several_modules(everywhere).items():
        if here & set(places):
            print(f"{name} is defined in {', '.join(places)}")
    for hit in word_hits(folder):
        print(f"word: {hit}")
    functions = sum(not isinstance(node, ast.ClassDef) for module in modules for node in module.definitions())
    helpers = sum(len(module.one_use_helpers()) for module in modules)
    lines = sum(module.text.count("\n") for module in modules)
    print(f"{folder}: {len(modules)} files, {lines} lines, {functions} functions, {helpers} one-use private helpers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="FOLDER", help="what to mend in a folder")
    parser.add_argument("--paths", action="store_true", help="trace two commands, too (needs torch)")
    given = parser.parse_args()
    if given.list:
        print_lists(given.list)
    else:
        print_figures(with_paths=given.paths)


if __name__ == "__main__":
    main()
