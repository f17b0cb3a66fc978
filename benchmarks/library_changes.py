"""What releases of Python libraries brought and removed, for `devkit explain`: writes library_changes.txt anew.

    python -m benchmarks.library_changes CLONES [--wheels FOLDER] [--users FOLDER]

CLONES has a Git repository with its tags for each of `LIBRARIES`, in a folder `owner+name`; wheels of libraries whose history
is too large may lie in a folder. Only names that the repositories of `--users` import count, and what hangs on them. Lines of
libraries that are in neither place are kept as they are: they come of release notes.
"""

import argparse
import ast
import io
import re
import subprocess
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "devkit/doctor/signatures/library_changes.txt"
LIBRARIES = {
    "transformers": ("huggingface/transformers", ("src/transformers",), "4.25"),
    "huggingface_hub": ("huggingface/huggingface_hub", ("src/huggingface_hub",), "0.10"),
    "accelerate": ("huggingface/accelerate", ("src/accelerate",), "0.12"),
    "peft": ("huggingface/peft", ("src/peft",), "0.1"),
    "trl": ("huggingface/trl", ("trl",), "0.4"),
    "diffusers": ("huggingface/diffusers", ("src/diffusers",), "0.10"),
    "datasets": ("huggingface/datasets", ("src/datasets",), "1.18"),
    "pytorch_lightning": ("Lightning-AI/pytorch-lightning", ("src/lightning/pytorch", "src/pytorch_lightning", "pytorch_lightning"), "1.5"),
}  # fmt: skip
"""By the name of the module: the repository, the folders that it lay in, and the first release that is read."""

OFTEN = 3
"""Imports after which what a class takes and has is of interest, too."""

_INNER = re.compile(r"(?:^|\.)_|test|commands|generated|deprecated|^cli\.|^models\.|^pipelines\.|^inference\.")
_PLACEHOLDERS = re.compile(r"(?:^|/)dummy_\w+\.py$")
"""Files whose classes only say that a dependency is missing: they outlive what they stand for."""
_CLASS = re.compile(r"(?m)^class (\w+)(?:\(([^)]*)\))?:")
_DEFINED = re.compile(r"(?m)^(?: {4})?(?:class|(?:async )?def) (\w+)|^(?: {4})?(\w+)(?: ?:[^=\n]+)? = ")
_IMPORTED = re.compile(r"(?ms)^(?: {4})?from [\w.]+ import (\([^)]*\)|[^\n]+)")
_MEMBER = re.compile(
    r"(?m)^    (?:async )?def (\w+)|^    (\w+)\s*(?::[^=\n]+)?(?:=|$)|\bself\.([a-zA-Z_]\w*)\s*(?::[^=\n]{1,60})?=(?!=)"
)
_OLD = ("old_name", "deprecated_args")
"""Keywords of decorators that name deprecated arguments."""
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
        if _PLACEHOLDERS.search(path):
            continue
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
            stated = {each.arg for each in (*row.args.args, *row.args.kwonlyargs)} - {"self", "cls"}
            arguments[name] = stated | read_deprecated(row)
            any_argument |= {name} if row.args.kwarg else set()


def read_deprecated(row: ast.FunctionDef) -> set[str]:
    """Read the arguments that a decorator still takes: deprecated names, which the signature no longer has."""
    calls = (
        each
        for each in row.decorator_list
        if isinstance(each, ast.Call) and "deprecat" in ast.unparse(each.func).lower()
    )
    given = (each for call in calls for each in (*call.args, *(key.value for key in call.keywords if key.arg in _OLD)))
    texts = (each.value for value in given for each in ast.walk(value) if isinstance(each, ast.Constant))
    return {text for text in texts if isinstance(text, str) and text.isidentifier()}


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


def list_releases(clone: Path, folders: tuple[str, ...], first: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the files of every release of a clone that ends in .0."""
    tags = subprocess.run(["git", "-C", clone, "tag"], capture_output=True, text=True, check=True).stdout.split()
    for tag in sorted((tag for tag in tags if re.fullmatch(r"v?\d+\.\d+\.0", tag)), key=order):
        if order(tag) < order(first):
            continue
        for folder in folders:
            packed = subprocess.run(["git", "-C", clone, "archive", tag, folder], capture_output=True, check=False)
            if packed.returncode == 0:
                with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
                    members = [each for each in archive if each.isfile() and each.name.endswith(".py")]
                    files = {each.name.removeprefix(f"{folder}/"): archive.extractfile(each) for each in members}
                    yield (
                        tag.removeprefix("v"),
                        {name: file.read().decode("utf-8", "replace") for name, file in files.items() if file},
                    )
                break


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


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--users", type=Path, help="default: CLONES")
    options = parser.parse_args()
    imports = count_imports(options.users or options.clones)
    lines = {tuple(line.split(" ", 3)[:3]): line for line in TABLE.read_text(encoding="utf-8").splitlines()}
    for library, (repository, folders, first) in LIBRARIES.items():
        clone = options.clones / repository.replace("/", "+")
        clone = clone / "repo" if (clone / "repo").exists() else clone
        found = (
            list_releases(clone, folders, first)
            if clone.exists()
            else list_wheels(options.wheels or options.clones, library)
        )
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
