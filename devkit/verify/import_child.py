"""Import a package in the project's Python, or list what could be: a separate program, because an import may hang or crash.

It needs Python 3.9, and imports nothing of devkit.

    python import_child.py import MODULE            in the folder that the user would be in
    python import_child.py imports FILE             imports as programs have them: FILE is JSON, `[[NAME, FILE, LINE], …]`
    python import_child.py list FOLDER [NAME …]     the modules of the project in FOLDER, and of these distributions

Prints one JSON object: `{"error": TYPE, "message": TEXT, "missing": MODULE, "importer": FILE}`, without fields where the import
works; of several `{NAME: TRACEBACK}` for each that fails; or `{"own": NAME, "scripts": [NAME …], "modules": {NAME: [MODULE …]
or null where it is not installed}}`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def find_first_cause(error: BaseException) -> BaseException:
    """Return the error that the others were raised from, or while it was handled.

    A module that is missing because its stand-in is missing, too, is the one that was looked for last.
    """
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None or (isinstance(error, ModuleNotFoundError) and isinstance(cause, ModuleNotFoundError)):
        return error
    return find_first_cause(cause)


def try_import(module: str) -> dict[str, str]:
    """Import a module. Returns {} where that works, else the first cause and the file that it was raised in."""
    try:
        importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - packages raise what they like, SystemExit included
        first = find_first_cause(error)
        frames = [frame.filename for frame in traceback.extract_tb(first.__traceback__)]
        files = [file for file in frames if not file.startswith("<") and Path(file) != Path(__file__)]
        own = [file for file in files if f"{os.sep}importlib{os.sep}" not in file]
        missing = str(first.name or "") if isinstance(first, ModuleNotFoundError) else ""
        names = {"error": type(first).__name__, "message": " ".join(str(first).split())[:2000], "missing": missing}
        return {**names, "importer": own[-1] if own else ""}
    return {}


def try_statements(imports: list[tuple[str, str, int]]) -> dict[str, str]:
    """Import each name as the statement in its file does. Returns the tracebacks of those that fail, by name."""
    failed = {}
    for name, path, line in imports:
        module, _, last = name.rpartition(".")
        statement = f"from {module} import {last}" if module else f"import {name}"
        try:
            # The traceback then begins in the program, at the line of the import.
            exec(compile("\n" * (line - 1) + statement, path, "exec"), {})  # noqa: S102
        except BaseException as error:  # noqa: BLE001 - packages raise what they like, SystemExit included
            first = find_first_cause(error)
            frames = first.__traceback__
            if frames and frames.tb_frame.f_code.co_filename == __file__:
                frames = frames.tb_next
            failed[name] = "".join(traceback.format_exception(type(first), first, frames, chain=False))
    return failed


def list_modules(distribution: importlib.metadata.Distribution) -> list[str]:
    """List the modules that a distribution brings, by what it declares, else by its files."""
    declared = (distribution.read_text("top_level.txt") or "").split()
    found = set(declared)
    for file in () if declared else distribution.files or ():
        name = file.parts[0] if len(file.parts) > 1 else inspect.getmodulename(file.name)
        if name and name.isidentifier() and inspect.getmodulename(file.name):
            found.add(name)
    return sorted(name for name in found if not name.startswith("_"))


def is_from(distribution: importlib.metadata.Distribution, folder: Path) -> bool:
    """Return whether a distribution was installed from this folder. Source: PEP 610."""
    try:
        url = urlsplit(json.loads(distribution.read_text("direct_url.json") or "{}").get("url", ""))
    except ValueError:
        return False
    return url.scheme == "file" and Path(unquote(url.path)).resolve() == folder.resolve()


def list_project(folder: Path, names: list[str]) -> dict[str, Any]:
    """List the modules of distributions, and the project's own distribution with its console scripts."""
    own = next((each for each in importlib.metadata.distributions() if is_from(each, folder)), None)
    found: dict[str, Any] = {"own": "", "scripts": [], "modules": {}}
    if own is not None:
        found["own"] = own.metadata["Name"]
        found["scripts"] = [each.name for each in own.entry_points if each.group == "console_scripts"]
    for name in names:
        try:
            found["modules"][name] = list_modules(importlib.metadata.distribution(name))
        except importlib.metadata.PackageNotFoundError:
            found["modules"][name] = None
    return found


def main() -> None:
    """Do what the arguments say, with the current folder in front of the path as in `python -c`."""
    report = os.dup(1)
    # Packages print greetings on standard output, which belongs to the report alone.
    os.dup2(2, 1)
    sys.path[0] = ""
    action, what, *names = sys.argv[1:]
    found: dict[str, Any]
    if action == "imports":
        found = try_statements(json.loads(Path(what).read_text(encoding="utf-8")))
    else:
        found = try_import(what) if action == "import" else list_project(Path(what), names)
    os.write(report, (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    main()
