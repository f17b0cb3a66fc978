"""The fix of a row for a text: its variant, its values, and its commands for the text's engine.

A value that the error's own words name comes first, then what the text states elsewhere, then the machine. What nobody knows
is asked for by a command that prints it: within the command where the shell can, else before it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from devkit.doctor.model import Fix
from devkit.doctor.problems import FixRow, build_unknown_facts, render_fix
from devkit.doctor.signatures.engines import fit_to_cluster, fit_to_engine
from devkit.doctor.signatures.library_changes import load_distributions, name_distribution
from devkit.doctor.signatures.model import FamilyCause
from devkit.doctor.signatures.text_facts import TextFact, TextFacts
from devkit.facts.machine import Python, Torch

DEFAULT_LABEL = "cu128"
"""The index of torch where neither driver nor GPU nor an installed torch is known: nearly every driver runs it."""
_NAME = re.compile(r"(?<![{$])\{([a-z_]{2,40})\}(?!\})")

_ASKED = re.compile(r"<([a-z][a-z ]{1,30})>")
_PLAIN = re.compile(r"[\w./:@+-]{1,160}")
"""A value that the shell takes as it is."""

_OF_FILE = re.compile(r"(?:site|dist)-packages/([A-Za-z]\w{1,60}?)(?:-\d|/|\.cpython|\.abi3|\.so)")
"""The package that a file belongs to."""
_ANY_GPU = re.compile(r" -i __index__$(?<!reset -i __index__)")
"""The choice of a GPU in a command that only reads, and may read all."""

_ASK: Mapping[str, str] = {
    **dict.fromkeys(("branch", "driver_branch"), "$(modinfo -F version nvidia | cut -d. -f1)"),
    **dict.fromkeys(("release", "driver_version"), "$(modinfo -F version nvidia)"),
    "torch_version": "$(python -c 'import torch; print(torch.__version__.split(\"+\")[0])')",
    "torch_cuda": "$(python -c 'import torch; print(torch.version.cuda)')",
    "torch_cuda_dashed": '$(python -c \'import torch; print(torch.version.cuda.replace(".", "-"))\')',
}
"""By value, the words of a shell that print it where the command runs."""
_QUOTED_QUERY = re.compile(r"'([^'\"]*\$\(modinfo[^'\"]*)'")
_SAID: Mapping[str, str] = {
    **dict.fromkeys(("branch", "driver_branch"), "the driver's branch"),
    **dict.fromkeys(("release", "driver_version"), "the driver's version"),
    "torch_version": "the installed release",
    **dict.fromkeys(("torch_cuda", "torch_cuda_dashed"), "torch's CUDA"),
}
"""By value, what a sentence says in its place."""
_PRINT: Mapping[str, str] = {
    "index": "nvidia-smi -L",
    "address": "lspci -D | grep -i nvidia",
    "package": "pip list",
    "interface": "ip -br address",
}
"""By value, a command that prints it, for a person to put in its place."""


def list_values(facts: TextFacts) -> dict[str, str]:
    """Return the values that commands may name besides those of the error: stated, of the machine, or the words that print them."""
    return {
        **_ASK,
        "torch_label": DEFAULT_LABEL,
        "cuda_major": DEFAULT_LABEL[2:-1],
        "cuda_folder": "/usr/local/cuda",
        "cuda_repository": "ubuntu2204",
        **facts.as_captures(),
        **_list_known(facts),
    }


def _list_known(facts: TextFacts) -> dict[str, str]:
    known: dict[str, str] = {}
    branches = {each.partition(".")[0] for each in facts.list_values("driver")}
    if len(branches) == 1:
        known["branch"] = known["driver_branch"] = branches.pop()
    if driver := facts.find("driver"):
        known["release"] = known["driver_version"] = driver
    build, torch = facts.find("torch_build"), facts.find_version("torch").partition("+")[0]
    installed = getattr(facts.machine, "python", None)
    if isinstance(installed, Python) and isinstance(installed.torch, Torch):
        torch = torch or installed.torch.version.partition("+")[0]
        build = build or installed.torch.version.partition("+")[2]
    if torch:
        known["torch_version"] = torch
    if build.startswith("cu"):
        digits = build.removeprefix("cu")
        cuda = f"{digits[:-1]}.{digits[-1]}"
        known |= {"torch_cuda": cuda, "torch_cuda_dashed": cuda.replace(".", "-"), "cuda_major": digits[:-1]}
    if toolkit := facts.find("cuda_toolkit"):
        known["cuda_folder"] = f"/usr/local/cuda-{toolkit}"
        known.setdefault("cuda_major", facts.find("cuda_major") or toolkit.partition(".")[0])
    if build.startswith("cu"):
        known["torch_label"] = build
    if facts.driver is not None or facts.reported_cuda is not None or facts.capabilities:
        from devkit.doctor.signatures.computed_fixes import find_torch_wheel

        # The index of torch for the driver and GPUs comes before that of the installed one.
        if wheel := find_torch_wheel(facts, facts.capabilities):
            known["torch_label"] = wheel.label
    return known


def render_fix_of(row: FamilyCause, captures: Mapping[str, str], facts: TextFacts, line: int = 0) -> Fix:
    """Render the fix of an error's row for a text and its engine. The error is at `line`, 0 where that is unknown."""
    fix = (
        render_rows(row.variants, captures, facts)
        if row.variants
        else _fill(row.fix, {**list_values(facts), **captures}, _NAME)
    )
    fix = fit_to_cluster(fit_to_engine(fix, facts), facts)
    return replace(fix, commands=tuple(_name_things(command, captures, facts, line) for command in fix.commands))


def _name_things(command: str, captures: Mapping[str, str], facts: TextFacts, line: int) -> str:
    """Fill what a command asks a person for where the error or the text names it: of several the last above the error."""

    captured = _name_captured(captures)

    def find(found: re.Match[str]) -> str:
        name = found[1].replace(" ", "_")
        said = f"named:{found[1]}"
        stated = facts.find(said) or facts.find_above(said, line)
        value = captures.get(name, "") or stated or ("" if facts.list_values(said) else captured.get(name, ""))
        return value if _PLAIN.fullmatch(value) else found[0]

    filled = _ASKED.sub(find, command.replace("<owner>/<model>", "<model>") if facts.find("named:model") else command)
    package = captured.get("package", "")
    is_built = package and package in filled and "--no-build-isolation" in filled
    if is_built and package not in load_distributions().values():
        return f"{filled}  # built from a folder: its path in place of {package}"
    return filled


def _name_captured(captures: Mapping[str, str]) -> dict[str, str]:
    """Return what a command asks for by the captures that lead to it: the package of a module or file, the folder of a path."""
    named: dict[str, str] = {}
    module = captures.get("module", "").partition(".")[0]
    if found := _OF_FILE.search(captures.get("file", "") or captures.get("path", "")):
        module = found[1]
    if module:
        named["package"] = name_distribution(module)
    if path := captures.get("path", ""):
        named |= {"file": path, "folder": path if "." not in path.rpartition("/")[2] else path.rpartition("/")[0]}
    return named


def render_rows(rows: Iterable[FixRow], captures: Mapping[str, str], facts: TextFacts) -> Fix:
    """Render the variant of a fix of the catalog for a text. Raises LookupError where none is for it.

    Where nobody knows the distribution, commands that depend on one are Ubuntu's and say so.
    """
    rows = tuple(rows)
    texts = [text for row in rows for text in (row.summary, row.docs, *row.commands)]
    names = dict.fromkeys(name for text in texts for name in re.findall(r"\{([a-z_]+)\}", text))
    # What the commands of a macro take is not in the templates.
    names |= dict.fromkeys(("branch", "release"))
    macros = {command for row in rows for command in row.commands}
    values: dict[str, object] = {name: f"__{name}__" for name in names if f"{{{name}}}" not in macros}
    values |= {"inside": "container" if facts.find("inside") else "host"} if facts.machine is None else {}
    fix = render_fix(rows, {**values, **captures}, facts.facts)
    is_shown_for_any = facts.facts is build_unknown_facts() and any("machine" in row.when for row in rows)
    if facts.machine is None and not facts.find("distribution") and not is_shown_for_any:
        as_ubuntu = replace(facts, stated=(*facts.stated, TextFact("distribution", "ubuntu")))
        of_ubuntu = render_fix(rows, {**values, **captures}, as_ubuntu.facts)
        if len(of_ubuntu.commands) > len(fix.commands):
            shared = (*fix.commands, "sudo reboot")
            labels = ("" if command in shared else "  # Ubuntu" for command in of_ubuntu.commands)
            fix = replace(of_ubuntu, commands=tuple(map("".join, zip(of_ubuntu.commands, labels, strict=True))))
    return _fill(fix, list_values(facts), re.compile(r"__([a-z_]{2,40}?)__"))


def _fill(fix: Fix, values: Mapping[str, str], name: re.Pattern[str]) -> Fix:
    queries: list[str] = []

    def find(found: re.Match[str]) -> str:
        if found[1] in values:
            return values[found[1]]
        if found[1] in _PRINT and _PRINT[found[1]] not in queries:
            queries.append(_PRINT[found[1]])
        return f"<{found[1].replace('_', ' ')}>"

    def say(found: re.Match[str]) -> str:
        value = find(found)
        return _SAID[found[1]] if value.startswith("$(") else value

    def fill(command: str) -> str:
        filled = name.sub(find, command)
        # The shell fills in nothing between single quotation marks.
        return filled if filled == command else _QUOTED_QUERY.sub(r'"\1"', filled)

    is_known = "index" in values
    shown = [command if is_known else _ANY_GPU.sub("", command) for command in fix.commands]
    commands = tuple(map(fill, shown))
    before = tuple(each for each in queries if not any(command.startswith(each) for command in commands))
    return Fix(
        name.sub(say, fix.summary),
        (*before, *commands),
        fix.where,
        fix.root,
        fix.restart,
        name.sub(say, fix.docs),
        fix.repairs,
    )
