"""What releases of Python libraries brought and removed, for `devkit explain`: writes library_changes.txt anew.

    python -m benchmarks.library_changes WHEELS [--users FOLDER]

WHEELS has the first wheel of each minor release of each of `LIBRARIES`, as `pip download --no-deps` leaves them. Only names that
the repositories of `--users` import count, and what hangs on them; without it those of the present table. Lines of libraries
without wheels are kept as they are: they come from release notes.
"""

import argparse
import ast
import re
import subprocess
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "devkit/doctor/signatures/library_changes.txt"
LIBRARIES = (
    "transformers",
    "huggingface_hub",
    "accelerate",
    "peft",
    "trl",
    "diffusers",
    "datasets",
    "pytorch_lightning",
)
"""The libraries that are read, by the name of the module."""

OFTEN = 3
"""Imports after which what a class takes and has is of interest, too."""

_INNER = re.compile(r"(?:^|\.)_|test|commands|generated|deprecated|^cli\.|^models\.|^pipelines\.|^inference\.")
_CLASS = re.compile(r"(?m)^class (\w+)(?:\(([^)]*)\))?:")
_DEFINED = re.compile(r"(?m)^(?: {4})?(?:class|(?:async )?def) (\w+)|^(?: {4})?(\w+)(?: ?:[^=\n]+)? = ")
_IMPORTED = re.compile(r"(?ms)^(?: {4})?from [\w.]+ import (\([^)]*\)|[^\n]+)")
_MEMBER = re.compile(
    r"(?m)^    (?:async )?def (\w+)|^    (\w+)\s*(?::[^=\n]+)?(?:=|$)|\bself\.([a-zA-Z_]\w*)\s*(?::[^=\n]{1,60})?=(?!=)"
)
_NO_BASES = frozenset({"", "object", "nn.Module", "Module", "torch.nn.Module", "ABC"})


@dataclass
class Reading:
    """What a release has.

    Its names, those that its first module exports, what can be imported of each module, the members of classes, and the
    arguments of callables.
    """

    names: set[str]
    exported: set[str]
    modules: dict[str, set[str]]
    members: dict[str, set[str]]
    arguments: dict[str, set[str]]
    open_classes: set[str]
    """Classes with a base of another library: what they have is not known whole."""
    any_argument: set[str]
    """Callables that take any keyword."""


def read_release(files: Mapping[str, str], wanted: set[str]) -> Reading:
    """Read the files of one release."""
    names, exported = set[str](), set[str]()
    modules, arguments, any_argument = dict[str, set[str]](), dict[str, set[str]](), set[str]()
    classes: dict[str, tuple[set[str], list[str]]] = {}
    for path, text in files.items():
        if path.startswith("utils/dummy_"):
            continue  # It only raises that another package is missing, often long after its class is gone.
        module = re.sub(r"\.?__init__$", "", path.rsplit(".", 1)[0].replace("/", "."))
        here = {one or other for one, other in _DEFINED.findall(text)}
        names |= here
        if not module:
            exported = set(re.findall(r"\w+", text)) & wanted
        modules[module] = here.union(*(re.findall(r"\w+", found) for found in _IMPORTED.findall(text)))
        starts = list(_CLASS.finditer(text))
        for start, end in zip(starts, [*(each.start() for each in starts[1:]), len(text)], strict=False):
            found = {name for row in _MEMBER.findall(text[start.end() : end]) for name in row if name}
            classes[start[1]] = (found, [base.strip() for base in (start[2] or "").split(",") if "=" not in base])
        if here & wanted:
            read_arguments(text, wanted, arguments, any_argument)
    members, open_classes = dict[str, set[str]](), set[str]()
    for name in classes.keys() & wanted:
        members[name], is_open = collect_members(name, classes, set())
        open_classes |= {name} if is_open else set()
    return Reading(names | exported, exported, modules, members, arguments, open_classes, any_argument)


def collect_members(
    name: str, classes: Mapping[str, tuple[set[str], list[str]]], seen: set[str]
) -> tuple[set[str], bool]:
    """Return what a class and its bases of the same library have, and whether a base is of another one."""
    own, bases = classes[name]
    members, is_open = set(own), False
    for base in {each.rpartition(".")[2] if each not in _NO_BASES else "" for each in bases} - {""} - seen:
        inherited, is_base_open = (
            collect_members(base, classes, seen | {name}) if base in classes else (set[str](), True)
        )
        members |= inherited
        is_open |= is_base_open
    return members, is_open


def read_arguments(text: str, wanted: set[str], arguments: dict[str, set[str]], any_argument: set[str]) -> None:
    """Read what the wanted functions and classes of a file take, and the methods of trainers."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            rows = {node.name: node}
        elif isinstance(node, ast.ClassDef) and node.name in wanted:
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            rows = {
                f"{node.name}.{each.name}".removesuffix(".__init__"): each for each in methods if is_telling(node, each)
            }
            if node.name not in rows and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
                fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
                arguments[node.name] = {each.id for each in fields if isinstance(each, ast.Name)}
        else:
            continue
        for name, row in rows.items():
            taken = {each.arg for each in (*row.args.args, *row.args.kwonlyargs)} - {"self", "cls"}
            arguments[name] = taken | list_deprecated(row)
            any_argument |= {name} if row.args.kwarg else set()


def list_deprecated(row: ast.FunctionDef) -> set[str]:
    """List the arguments under an old name that a decorator such as `deprecate_kwarg("tokenizer", …)` still accepts."""
    calls = (each for each in row.decorator_list if isinstance(each, ast.Call) and each.args)
    firsts = (each.args[0] for each in calls if "deprecate" in ast.unparse(each.func))
    return {each.value for each in firsts if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def is_telling(kind: ast.ClassDef, method: ast.FunctionDef) -> bool:
    """Say if the arguments of a method are of interest."""
    return method.name == "__init__" or kind.name.endswith("Trainer")


def is_member_telling(owner: str, member: str) -> bool:
    """Say if a member of a class is of interest: of trainers and mixins, which others extend, those of their own, too."""
    return not member.startswith("_") or (owner.endswith(("Trainer", "Mixin")) and not member.startswith("__"))


def compare(releases: list[tuple[str, Reading]], imports: Counter[str], library: str) -> Iterator[tuple[str, str, str]]:
    """Yield what changed: "added" or "removed", the release, and the name."""
    readings = [reading for _, reading in releases]
    wanted, often = set(imports), {name for name, count in imports.items() if count >= OFTEN}
    general = {
        name
        for each in readings
        for module, names in each.modules.items()
        if not _INNER.search(module)
        for name in names
    }

    def is_wanted(name: str) -> bool:
        is_public = re.match(r"[A-Z]\w*[a-z]|[a-z]\w*_\w", name) and not re.match(
            r"TF|Flax|Dummy|test_|is_torch_", name
        )
        return name in wanted or name.startswith("MODEL_FOR_") or bool(name in general and len(name) > 4 and is_public)

    def diff(has: Callable[[Reading], set[str]]) -> Iterator[tuple[str, int, str]]:
        sets = [has(each) for each in readings]
        for name in sorted(set().union(*sets)):
            there = [place for place, names in enumerate(sets) if name in names]
            if there[0] > 0:
                yield "added", there[0], name
            if there[-1] < len(sets) - 1:
                yield "removed", there[-1] + 1, name

    for place, reading in enumerate(readings):
        # What a later release exports was not to be imported from the library itself before.
        reading.names -= set().union(*(each.exported for each in readings[place + 1 :])) - reading.exported
    last = readings[-1]
    rows = [
        row for row in diff(lambda each: each.names) if row[2] in wanted or (row[0] == "removed" and is_wanted(row[2]))
    ]
    rows += [
        (kind, place, f"{library}.{name}")
        for kind, place, name in diff(lambda each: set(each.modules))
        if name and not _INNER.search(name) and (kind == "removed" or "." not in name)
    ]
    rows += [
        (kind, place, f"{library}.{name}")
        for kind, place, name in diff(
            lambda each: {f"{m}:{n}" for m, names in each.modules.items() for n in names & wanted}
        )
        if kind == "removed" and not name.startswith((":", "models.")) and name.partition(":")[0] in last.modules
        if name.partition(":")[2] in last.names
    ]
    for kind, place, name in diff(lambda each: {f"{f}({a})" for f, found in each.arguments.items() for a in found}):
        callee = name.partition("(")[0]
        judged = readings[place - 1] if kind == "added" else readings[place]
        if callee.partition(".")[0] in often and callee in judged.arguments and callee not in judged.any_argument:
            rows.append((kind, place, name))
    for kind, place, name in diff(
        lambda each: {f"{c}.{m}" for c in each.members.keys() & often for m in each.members[c]}
    ):
        owner, _, member = name.partition(".")
        judged = readings[place - 1] if kind == "added" else readings[place]
        if owner in judged.members and owner not in judged.open_classes and is_member_telling(owner, member):
            rows.append((kind, place, name))
    if library == "transformers":
        models = diff(lambda each: {name[7:] for name in each.modules if re.fullmatch(r"models\.[a-z]\w*", name)})
        rows += [(kind, place, f"model:{name}") for kind, place, name in models if kind == "added"]
    return ((kind, ".".join(releases[place][0].split(".")[:2]), name) for kind, place, name in rows)


def list_wheels(folder: Path, library: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the files of every wheel of a library."""
    for path in sorted(folder.glob(f"{library}-*.whl"), key=lambda path: order(path.name.split("-")[1])):
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.startswith(f"{library}/") and name.endswith(".py")]
            yield (
                path.name.split("-")[1],
                {name.removeprefix(f"{library}/"): wheel.read(name).decode("utf-8", "replace") for name in names},
            )


def order(release: str) -> tuple[int, ...]:
    """Return what releases are ordered by."""
    return tuple(int(number) for number in re.findall(r"\d+", release))


def count_imports(users: Path) -> dict[str, Counter[str]]:
    """Count the names that repositories import of each library."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    modules = "|".join((*LIBRARIES, "lightning"))
    for clone in sorted(users.iterdir()):
        for repository in (clone / "repo", clone):
            if (repository / "HEAD").exists() or (repository / ".git").exists():
                said = subprocess.run(
                    ["git", "-C", repository, "grep", "-hE", "-A12", rf"^\s*from ({modules})(\.[a-zA-Z_.]+)? import", "HEAD", "--", "*.py"],
                    capture_output=True, check=False,
                ).stdout.decode("utf-8", "replace")  # fmt: skip
                for module, listed, line in re.findall(
                    rf"from ({modules})\b[.\w]* import (?:\(([^)]{{0,3000}})\)|([^\n]+))", said
                ):
                    library = "pytorch_lightning" if module == "lightning" else module
                    if clone.name.partition("+")[2].replace("-", "_") != library:
                        names = re.findall(r"\b([A-Za-z_]\w{2,})\b", re.sub(r"#.*|\bas \w+", "", listed or line))
                        counts[library].update(names)
                break
    return counts


def list_known_names(lines: Iterable[str]) -> dict[str, Counter[str]]:
    """List the names that lines of the table have of each library; of what hangs on them they count as often used."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        library, _, _, *names = line.split()
        for name in names:
            owner = re.split(r"[.(]", name)[0] if ":" not in name else ""
            if owner and owner != library:
                counts[library][owner] += OFTEN if owner != name else 1
            elif ":" in name and not name.startswith("model:"):
                counts[library][name.rpartition(":")[2]] += 1
    return counts


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--users", type=Path, help="default: count the names of the present table")
    options = parser.parse_args()
    lines = {tuple(line.split(" ", 3)[:3]): line for line in TABLE.read_text(encoding="utf-8").splitlines()}
    imports = count_imports(options.users) if options.users else list_known_names(lines.values())
    for library in LIBRARIES:
        found = list_wheels(options.wheels, library)
        releases = [(release, read_release(files, set(imports[library]))) for release, files in found]
        if not releases:
            continue
        lines = {key: line for key, line in lines.items() if key[0] != library}
        changes: dict[tuple[str, str], set[str]] = defaultdict(set)
        for kind, release, name in compare(releases, imports[library], library):
            changes[kind, release].add(name)
        for (kind, release), names in sorted(changes.items(), key=lambda each: (each[0][0], order(each[0][1]))):
            lines[library, kind, release] = f"{library} {kind} {release} {' '.join(sorted(names))} "
        print(f"{library}: {len(releases)} releases, {sum(map(len, changes.values()))} changes", flush=True)
    TABLE.write_text("\n".join(lines.values()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
